//! What changed of servers and the allocator has not taken over yet.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::ids::{ServerUuid, VmUuid};
use parking_lot::RwLockWriteGuard;

use super::{Entry, Fleet, Inner};

/// What changed of a server.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    /// Anything may be different.
    pub whole: bool,
    /// Its record, its sysinfo or its status.
    pub record: bool,
    /// Its sizes.
    pub figures: bool,
    /// These of its VMs.
    pub vms: BTreeSet<VmUuid>,
}

/// By server.
pub(super) type Stales = BTreeMap<ServerUuid, Stale>;

impl Inner {
    pub(super) fn stale(&mut self, server: ServerUuid) -> &mut Stale {
        self.stale.entry(server).or_default()
    }
}

impl Fleet {
    /// Changes one server in memory alone, making room for it if it is new.
    #[cfg(test)]
    pub(crate) fn update<R>(&self, server: ServerUuid, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut inner = self.inner();
        inner.stale(server).whole = true;
        let changed = change(inner.servers.entry(server).or_default());
        drop(inner);
        self.stale_wake.notify_one();
        changed
    }

    /// Takes over a report, making room for the server if it is new. Sizes that move without a
    /// meaning for allocations cost no more than the comparison.
    pub fn report(&self, server: ServerUuid, change: impl FnOnce(&mut Entry)) {
        let mut inner = self.inner();
        let entry = inner.servers.entry(server).or_default();
        if self.changes_figures(entry, change) {
            self.figures_changed(inner, server);
        }
    }

    /// As [`Fleet::report`] if the server is registered; else nothing changes, and it is `false`.
    pub fn report_registered(&self, server: ServerUuid, change: impl FnOnce(&mut Entry)) -> bool {
        let mut inner = self.inner();
        let entry = inner.servers.get_mut(&server).filter(|entry| entry.record.is_some());
        let Some(entry) = entry else { return false };
        if self.changes_figures(entry, change) {
            self.figures_changed(inner, server);
        }
        true
    }

    /// Changes a server; whether figures moved that count in an allocation.
    fn changes_figures(&self, entry: &mut Entry, change: impl FnOnce(&mut Entry)) -> bool {
        let before = entry.figures.clone();
        change(entry);
        entry.figures.differ(&before, &self.figures_read)
    }

    fn figures_changed(&self, mut inner: RwLockWriteGuard<'_, Inner>, server: ServerUuid) {
        inner.stale(server).figures = true;
        drop(inner);
        self.stale_wake.notify_one();
    }

    /// At most so many servers that changed since they were taken the last time so that an
    /// allocation could come out differently.
    #[must_use]
    pub fn take_stale(&self, most: usize) -> BTreeMap<ServerUuid, Stale> {
        // Mostly nothing is new, and that is seen without keeping readers out.
        if self.read().stale.is_empty() {
            return BTreeMap::new();
        }
        let mut inner = self.inner();
        if inner.stale.len() <= most {
            return std::mem::take(&mut inner.stale);
        }
        let mut taken = BTreeMap::new();
        while taken.len() < most
            && let Some((server, stale)) = inner.stale.pop_first()
        {
            taken.insert(server, stale);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::status::Meminfo;

    use super::*;

    fn report(fleet: &Fleet, server: ServerUuid, available: u64, total: u64) -> bool {
        let memory =
            Meminfo { availrmem_bytes: available, arcsize_bytes: available, total_bytes: total };
        fleet.report(server, |entry| {
            entry.figures.set_memory(&memory);
            entry.reported_at = available.to_string();
        });
        fleet.take_stale(9).contains_key(&server)
    }

    #[tokio::test]
    async fn what_no_decision_compares_leaves_nothing_to_take_over() {
        let fleet = Fleet::new(crate::app::tests::context().await);
        let server = ServerUuid(uuid::Uuid::from_u128(1));
        assert!(report(&fleet, server, 5, 9), "the first report says how large it is");
        assert!(!report(&fleet, server, 5, 9), "nothing moved");
        assert!(!report(&fleet, server, 4, 9), "what is free at the moment does not count");
        assert!(report(&fleet, server, 4, 10), "its size does");
        assert!(!report(&fleet, server, 3, 10));
    }

    #[tokio::test]
    async fn few_are_taken_at_a_time() {
        let fleet = Fleet::new(crate::app::tests::context().await);
        for n in 1..=5 {
            fleet.update(ServerUuid(uuid::Uuid::from_u128(n)), |_| ());
        }
        let sizes: Vec<usize> = (0..3).map(|_| fleet.take_stale(2).len()).collect();
        assert_eq!(sizes, [2, 2, 1]);
        assert!(fleet.take_stale(2).is_empty());
    }
}
