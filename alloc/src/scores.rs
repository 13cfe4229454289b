//! The scores of one evaluation.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

/// Scores, in the order of the list that was scored last: scorers follow each other, and look at
/// servers in the order of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scores {
    capacity: usize,
    list: Arc<Vec<u32>>,
    /// Of the list's servers, in its order.
    listed: Vec<f64>,
    /// By slot, as they were when this list was first scored: what counts for servers that are not
    /// in it. Empty if no other list was scored.
    others: Vec<f64>,
    by_slot: OnceLock<Vec<f64>>,
}

impl Scores {
    /// None yet, of slots below `capacity`.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// These, by slot.
    pub(crate) fn of_slots(others: Vec<f64>) -> Self {
        Self { capacity: others.len(), others, ..Self::default() }
    }

    /// By slot.
    pub(crate) fn by_slot(&self) -> &[f64] {
        self.by_slot.get_or_init(|| {
            let mut by_slot = self.others.clone();
            by_slot.resize(self.capacity, 0.0);
            for (slot, score) in self.list.iter().zip(&self.listed) {
                by_slot[*slot as usize] = *score;
            }
            by_slot
        })
    }

    /// Of a list's servers, in its order.
    pub(crate) fn of(&self, list: &Arc<Vec<u32>>) -> Cow<'_, [f64]> {
        if Arc::ptr_eq(list, &self.list) {
            return (&self.listed).into();
        }
        let by_slot = self.by_slot();
        list.iter().map(|slot| by_slot[*slot as usize]).collect()
    }

    /// As [`Scores::of`], to be changed.
    pub(crate) fn of_mut(&mut self, list: &Arc<Vec<u32>>) -> &mut [f64] {
        if !Arc::ptr_eq(list, &self.list) {
            if self.list.is_empty() && self.others.is_empty() {
                // Not memory that the kernel zeroes: reading it would map pages that adding maps again.
                self.listed.clear();
                self.listed.extend(list.iter().map(|_| 0.0));
            } else {
                self.listed = self.of(list).into_owned();
                self.by_slot();
                self.others = self.by_slot.take().unwrap_or_default();
            }
            self.list = Arc::clone(list);
        }
        self.by_slot.take();
        &mut self.listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_keep_their_scores_while_others_are_scored() {
        let mut scores = Scores::new(64);
        let (all, some, others) =
            (Arc::new(vec![5, 1, 9]), Arc::new(vec![9, 5]), Arc::new(vec![1, 7]));
        scores.of_mut(&all).copy_from_slice(&[0.5, 0.1, 0.9]);
        assert_eq!(scores.of(&some), [0.9, 0.5].as_slice());
        scores.of_mut(&some)[0] += 1.0;
        assert_eq!(scores.of(&all), [0.5, 0.1, 1.9].as_slice());
        scores.of_mut(&others)[1] += 7.0;
        scores.of_mut(&all)[1] += 1.0;
        let by_slot = scores.by_slot();
        assert_eq!((by_slot[5], by_slot[1], by_slot[9], by_slot[7]), (0.5, 1.1, 1.9, 7.0));
        assert_eq!(by_slot.iter().filter(|score| **score == 0.0).count(), 60);
        let again = Scores::of_slots(by_slot.to_vec());
        assert_eq!(again.of(&all), scores.of(&all));
    }
}
