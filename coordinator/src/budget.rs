//! Bytes that may be held at a time, by all requests or all agents together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes that many share. Whoever waits for some is served in order.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    left: Arc<Semaphore>,
    total: u32,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(total: u32) -> Self {
        Self { left: Arc::new(Semaphore::new(permits(total))), total }
    }

    /// Nobody is ever asked for more than there is: one alone may have all of it.
    fn share(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.total)
    }

    /// Whether nobody holds any.
    pub(crate) fn is_free(&self) -> bool {
        self.left.available_permits() == permits(self.total)
    }

    /// So many bytes, if they are free.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Hold> {
        let taken = Arc::clone(&self.left).try_acquire_many_owned(self.share(bytes));
        taken.ok().map(|permit| Hold(Some(permit)))
    }

    /// So many bytes, as soon as they are free. Cancel-safe.
    pub(crate) async fn take(&self, bytes: usize) -> Hold {
        let taken = Arc::clone(&self.left).acquire_many_owned(self.share(bytes)).await;
        // The semaphore is never closed.
        Hold(taken.ok())
    }
}

/// A semaphore holds more than a u32 on every machine with 64 bits, and 512 MiB on others.
fn permits(total: u32) -> usize {
    usize::try_from(total).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// Bytes of a [`Budget`]; given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Hold(Option<OwnedSemaphorePermit>);

impl Hold {
    /// Holds these as well.
    pub(crate) fn add(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(held), Some(more)) => held.merge(more),
            (held, more) => *held = held.take().or(more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_held_is_missing_until_it_is_dropped() {
        let budget = Budget::new(10);
        assert!(budget.is_free());
        let mut held = Hold::default();
        held.add(budget.try_take(4).unwrap());
        assert!(!budget.is_free());
        held.add(budget.try_take(3).unwrap());
        assert!(budget.try_take(4).is_none());
        let small = budget.try_take(3).unwrap();
        drop(held);
        assert!(budget.try_take(8).is_none());
        drop(small);
        // More than there is: all of it.
        let all = budget.take(1_000).await;
        assert!(budget.try_take(1).is_none());
        drop(all);
        assert!(budget.try_take(10).is_some());
    }
}
