//! Filters by what lies side by side in a snapshot: a word of servers at a time, whose figures are
//! in one chunk. Most servers are kept, and need no look of their own.

use std::sync::Arc;

use crate::change::Resource;
use crate::findings::Left;
use crate::order::SortKey;
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};
use crate::slot_set::{CHUNK, WORD, slots_of};
use crate::snapshot::Chunk;

/// The servers of a word, in the chunk that they are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    pub(crate) chunk: &'a Chunk,
    /// Place of its first server in the chunk.
    first: usize,
}

impl Word<'_> {
    /// Which of all its servers have a figure that is refused.
    pub(crate) fn refused<T: Copy>(
        &self,
        figures: &[T; CHUNK],
        refuses: impl Fn(T) -> bool,
    ) -> u64 {
        let figures = figures[self.first..self.first + WORD].iter();
        // Without a branch, so that it is decided for several at a time. Mostly none is refused.
        if !figures.clone().fold(false, |any, figure| any | refuses(*figure)) {
            return 0;
        }
        let bits = figures.zip(0_u32..).map(|(figure, bit)| u64::from(refuses(*figure)) << bit);
        bits.fold(0, |all, bit| all | bit)
    }
}

fn key(resource: Resource) -> SortKey {
    match resource {
        Resource::Memory => SortKey::Ram,
        Resource::Disk => SortKey::Disk,
        Resource::Cores => SortKey::Cpu,
    }
}

impl Run<'_> {
    /// The servers that are refused, in the order of slots. What is said of a word's other servers
    /// does not count.
    pub(crate) fn sweep(&mut self, mut refused: impl FnMut(Word<'_>) -> u64) -> Vec<u32> {
        let (snapshot, remaining) = (self.snapshot, self.remaining().clone());
        let mut gone = Vec::new();
        for word in 0..remaining.set().words() {
            if self.is_over() {
                return Vec::new();
            }
            let left = remaining.set().word(word);
            if left != 0 {
                let (chunk, first) = snapshot.chunk_of(word);
                gone.extend(slots_of(word, left & refused(Word { chunk, first })));
            }
        }
        gone
    }

    /// Removes servers that are left.
    pub(crate) fn remove(&mut self, removed: Vec<(u32, Option<Reason>)>) -> Reasons {
        if removed.is_empty() {
            return Reasons::None;
        }
        self.without(removed.iter().map(|(slot, _)| *slot));
        let because = |(slot, reason): (u32, Option<Reason>)| Some((slot, reason?));
        Reasons::removed(removed.into_iter().filter_map(because).collect())
    }

    /// As [`Run::remove`], each with a reason that follows from the server.
    pub(crate) fn remove_because(
        &mut self,
        gone: impl IntoIterator<Item = u32>,
        mut why: impl FnMut(u32) -> Reason,
    ) -> Reasons {
        let because = |slot| (slot, Some(why(slot)));
        self.remove(gone.into_iter().map(because).collect())
    }

    /// Keeps the servers that have so much of a resource left.
    pub(crate) fn keep_with(&mut self, resource: Resource, least: f64) -> Reasons {
        // What is not known (NaN) is not enough.
        let (key, is_enough) = (key(resource), |spare: f64| spare >= least);
        if !matches!(self.found.left(), Left::Fast) {
            return self.filter(|run, slot| {
                let spare = run.value(slot, key);
                if is_enough(spare) {
                    Verdict::Keep
                } else {
                    Verdict::Because(Reason::Spare(spare))
                }
            });
        }
        let (snapshot, remaining) = (self.snapshot, Arc::clone(self.remaining()));
        let order = snapshot.order(key);
        let gone = if order.len() == snapshot.len() {
            // Mostly few servers have too little, and no other one is looked at.
            order.below(is_enough).filter(|slot| remaining.has(*slot)).collect()
        } else {
            self.sweep(|word| word.refused(word.chunk.column(key), |spare| !is_enough(spare)))
        };
        self.remove_because(gone, |slot| Reason::Spare(snapshot.value(slot, key)))
    }
}
