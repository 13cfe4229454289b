//! Which leases live until when, and which records go with them. Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::LeaseId;

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    /// Monotonic time at which it ends.
    deadline: Duration,
    keys: BTreeSet<String>,
}

/// The leases of a store.
#[derive(Debug, Default)]
pub(super) struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    /// The lease of each bound record.
    bound: BTreeMap<String, LeaseId>,
}

impl Leases {
    pub(super) fn grant(&mut self, id: LeaseId, ttl: Duration, now: Duration) {
        let deadline = now.saturating_add(ttl);
        self.leases.insert(id, Lease { ttl, deadline, keys: BTreeSet::new() });
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// False when there is no such lease.
    pub(super) fn renew(&mut self, id: LeaseId, now: Duration) -> bool {
        let lease = self.leases.get_mut(&id);
        lease.is_some_and(|lease| {
            lease.deadline = now.saturating_add(lease.ttl);
            true
        })
    }

    /// Binds a record to a lease, or to none.
    pub(super) fn bind(&mut self, key: &str, to: Option<LeaseId>) {
        if let Some(old) = self.bound.remove(key)
            && let Some(lease) = self.leases.get_mut(&old)
        {
            lease.keys.remove(key);
        }
        if let Some(id) = to
            && let Some(lease) = self.leases.get_mut(&id)
        {
            lease.keys.insert(key.to_owned());
            self.bound.insert(key.to_owned(), id);
        }
    }

    pub(super) fn lease_of(&self, key: &str) -> Option<LeaseId> {
        self.bound.get(key).copied()
    }

    /// The records that go with a lease.
    pub(super) fn keys(&self, id: LeaseId) -> Vec<String> {
        self.leases.get(&id).map_or_else(Vec::new, |lease| lease.keys.iter().cloned().collect())
    }

    pub(super) fn remove(&mut self, id: LeaseId) {
        if let Some(lease) = self.leases.remove(&id) {
            for key in lease.keys {
                self.bound.remove(&key);
            }
        }
    }

    /// The lease that ends first, and when.
    pub(super) fn next_end(&self) -> Option<(Duration, LeaseId)> {
        self.leases.iter().map(|(&id, lease)| (lease.deadline, id)).min()
    }

    /// The store could not serve renewals for `stalled`: nobody loses a lease for that.
    pub(super) fn extend_all(&mut self, stalled: Duration) {
        for lease in self.leases.values_mut() {
            lease.deadline = lease.deadline.saturating_add(stalled);
        }
    }

    /// Tries the removal of a lease again later.
    pub(super) fn postpone(&mut self, id: LeaseId, until: Duration) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.deadline = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_ends_a_ttl_after_its_last_renewal() {
        let mut leases = Leases::default();
        leases.grant(LeaseId(1), 3 * SECOND, SECOND);
        leases.grant(LeaseId(2), 5 * SECOND, SECOND);
        assert_eq!(leases.next_end(), Some((4 * SECOND, LeaseId(1))));
        assert!(leases.renew(LeaseId(1), 3 * SECOND));
        assert_eq!(leases.next_end(), Some((6 * SECOND, LeaseId(1))));
        leases.extend_all(SECOND);
        assert_eq!(leases.next_end(), Some((7 * SECOND, LeaseId(1))));
        leases.remove(LeaseId(1));
        assert!(!leases.renew(LeaseId(1), SECOND));
    }

    #[test]
    fn a_record_belongs_to_the_lease_of_its_last_write() {
        let mut leases = Leases::default();
        leases.grant(LeaseId(1), SECOND, SECOND);
        leases.grant(LeaseId(2), SECOND, SECOND);
        leases.bind("k", Some(LeaseId(1)));
        leases.bind("k", Some(LeaseId(2)));
        assert!(leases.keys(LeaseId(1)).is_empty());
        assert_eq!(leases.keys(LeaseId(2)), ["k"]);
        leases.bind("k", None);
        assert_eq!(leases.lease_of("k"), None);
        leases.bind("k", Some(LeaseId(2)));
        leases.remove(LeaseId(2));
        assert_eq!(leases.lease_of("k"), None);
    }
}
