//! The servers that are left, in order.

use std::sync::{Arc, OnceLock};

use crate::slot_set::SlotSet;

/// Servers in an order. Most steps remove few of many: which ones are left is one bit for each, and
/// the list without the others is made only once somebody asks for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remaining {
    /// Those that are left, and maybe others between them.
    order: Arc<Vec<u32>>,
    left: SlotSet,
    len: usize,
    list: OnceLock<Arc<Vec<u32>>>,
}

impl Remaining {
    /// These servers, all in slots below `capacity`.
    pub(crate) fn new(list: Vec<u32>, capacity: usize) -> Self {
        let left = SlotSet::of(&list, capacity);
        Self::of(list, left)
    }

    /// As [`Remaining::new`], of whom the set is known already.
    pub(crate) fn of(list: Vec<u32>, left: SlotSet) -> Self {
        let len = list.len();
        Self { order: Arc::new(list), left, len, list: OnceLock::new() }
    }

    /// Without some of them.
    pub(crate) fn without(&self, gone: impl Iterator<Item = u32>) -> Self {
        let mut left = self.left.clone();
        gone.for_each(|slot| left.remove(slot));
        let order = Arc::clone(self.list.get().unwrap_or(&self.order));
        let remaining = Self { order, len: left.len(), left, list: OnceLock::new() };
        if remaining.len < remaining.order.len() / 2 {
            // Those that are gone would cost every later look at the order.
            remaining.list();
        }
        remaining
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.left.has(slot)
    }

    /// The same in the order of slots.
    pub(crate) fn set(&self) -> &SlotSet {
        &self.left
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let order = self.list.get().unwrap_or(&self.order);
        order.iter().copied().filter(|slot| self.has(*slot))
    }

    /// [`Remaining::iter`] as a list, which is kept.
    pub(crate) fn list(&self) -> &Arc<Vec<u32>> {
        self.list.get_or_init(|| {
            if self.len == self.order.len() {
                return Arc::clone(&self.order);
            }
            Arc::new(self.left.of_list(&self.order))
        })
    }

    /// The order in which the servers are that are left, and in which those were that were removed last.
    pub(crate) fn order(&self) -> &Arc<Vec<u32>> {
        &self.order
    }

    /// Whether the servers and their order are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.left == other.left
            && (Arc::ptr_eq(&self.order, &other.order) || self.iter().eq(other.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_keeps_its_order() {
        let all = Remaining::new(vec![70, 3, 9, 64], 128);
        let most = all.without([9].into_iter());
        assert_eq!((most.len(), most.list().as_slice()), (3, &[70, 3, 64][..]));
        let few = most.without([70, 64].into_iter());
        assert_eq!((few.iter().collect::<Vec<_>>(), few.list().as_slice()), (vec![3], &[3][..]));
        assert!(most.is_same(&Remaining::new(vec![70, 3, 64], 128)));
        assert!(!most.is_same(&Remaining::new(vec![3, 70, 64], 128)) && !most.is_same(&few));
        assert!(Arc::ptr_eq(all.list(), all.list()) && all.has(9) && !few.has(9));
        let order = few.order().iter().copied();
        assert!(order.filter(|slot| [70, 64].contains(slot)).eq([70, 64]));
    }
}
