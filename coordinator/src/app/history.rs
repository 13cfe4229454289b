//! How much of the store a history takes: of tasks, of jobs.

use super::config::HistoryLimits;
use super::context::Context;
use crate::store::{MAX_PAGE, StoreError};

/// What is kept of one kind of record. The bytes are those of the records, large results in blobs not
/// counted; a record that goes counts as an average one until everything is measured again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    count: u64,
    bytes: u64,
}

impl History {
    /// Counts all records under a prefix. What is made meanwhile may be counted twice, until the
    /// next time.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn measure(ctx: &Context, prefix: &str) -> Result<Self, StoreError> {
        let mut history = Self::default();
        let mut after: Option<String> = None;
        loop {
            let page = ctx.parts.store.list(prefix, after.as_deref(), MAX_PAGE).await?;
            for stored in &page.records {
                history.add(stored.value.len());
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(history),
            }
        }
    }

    /// A record was made, or found.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// A record was deleted.
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
