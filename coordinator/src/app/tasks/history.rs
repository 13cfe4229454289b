//! How much of the store ended tasks take. Pure.

use crate::app::HistoryLimits;

/// Ended tasks in the store. The bytes are those of their records, large results in blobs not
/// counted; a record that goes counts as an average one until everything is measured again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    count: u64,
    bytes: u64,
}

impl History {
    /// A task has ended, or was found.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// An ended task was deleted.
    pub(crate) fn remove(&mut self) {
        self.bytes = self.bytes.saturating_sub(self.bytes / self.count.max(1));
        self.count = self.count.saturating_sub(1);
    }

    /// Whether more is kept than the limits allow.
    pub(crate) fn is_over(self, limits: HistoryLimits) -> bool {
        self.count > limits.count || self.bytes > limits.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_and_too_large_are_over() {
        let limits = HistoryLimits { count: 2, bytes: 100 };
        let mut history = History::default();
        history.add(40);
        history.add(60);
        assert!(!history.is_over(limits));
        history.add(0);
        assert!(history.is_over(limits), "three tasks");
        history.remove();
        assert!(!history.is_over(limits));
        history.add(60);
        history.remove();
        assert!(history.is_over(HistoryLimits { count: 2, bytes: 80 }), "{history:?}");
        for _ in 0..3 {
            history.remove();
        }
        assert_eq!(history, History::default());
    }
}
