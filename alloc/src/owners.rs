//! How many VMs of an owner servers have, and how that changes from one state of a server to the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::server::Server;
use crate::vm::Vm;

/// Most servers of a part: an owner may have VMs on all of a large fleet, and each snapshot that is kept
/// has its own copy of a part that changed.
const PART: usize = 256;

/// The servers that have VMs of an owner, in the order of slots, and how many of these count there,
/// promises included.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerSlots(Arc<[Part]>);

type Part = Arc<[(u32, u32)]>;

impl OwnerSlots {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().flat_map(|part| part.iter().copied())
    }

    /// Notes how many of the owner's VMs count on a server; `None` if it has none there.
    pub(crate) fn set(&mut self, slot: u32, count: Option<u32>) {
        let ends_before = |part: &Part| part.last().is_some_and(|(last, _)| *last < slot);
        let at = self.0.partition_point(ends_before).min(self.0.len().saturating_sub(1));
        let (before, rest) = self.0.split_at(at);
        let (changed, mut after) = rest.split_at(rest.len().min(1));
        let mut changed = changed.concat();
        match (changed.binary_search_by_key(&slot, |(slot, _)| *slot), count) {
            (Ok(at), Some(count)) => changed[at].1 = count,
            (Ok(at), None) => drop(changed.remove(at)),
            (Err(at), Some(count)) => changed.insert(at, (slot, count)),
            (Err(_), None) => return,
        }
        // Parts that only ever got smaller would become as many as there are servers.
        if let Some((next, others)) = after.split_first()
            && changed.len() + next.len() <= PART / 2
        {
            changed.extend_from_slice(next);
            after = others;
        }
        let parts = changed.len().div_ceil(PART).max(1);
        let changed = changed.chunks(changed.len().div_ceil(parts).max(1)).map(Part::from);
        let (before, after) = (before.iter().cloned(), after.iter().cloned());
        self.0 = before.chain(changed).chain(after).collect();
    }
}

/// How many of an owner's VMs count on a server; `None` if it has none there, counted or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

/// The owners whose VMs on a server may be others than before.
pub(crate) fn changed(before: Option<&Server>, after: &Server) -> BTreeMap<Uuid, Counts> {
    let (vms, promised) = before.map_or_else(Default::default, |server| {
        (server.vms.as_slice(), server.promised.vms.as_slice())
    });
    let vms = differing(vms, &after.vms).chain(differing(promised, &after.promised.vms));
    let mut owners: BTreeMap<_, _> = vms.map(|vm| (vm.owner, Counts::default())).collect();
    for (owner, counts) in before.into_iter().flat_map(all) {
        if let Some(changed) = owners.get_mut(&owner) {
            *changed.before.get_or_insert(0) += counts;
        }
    }
    for (owner, counts) in all(after) {
        if let Some(changed) = owners.get_mut(&owner) {
            *changed.after.get_or_insert(0) += counts;
        }
    }
    owners
}

/// Each VM's owner, and 1 if the VM counts.
fn all(server: &Server) -> impl Iterator<Item = (Uuid, u32)> {
    let shown = server.vms.iter().map(|vm| (vm.owner, u32::from(vm.is_loaded())));
    shown.chain(server.promised.vms.iter().map(|vm| (vm.owner, 1)))
}

/// What lies between the beginning and the end that two lists have in common: of many VMs, one is
/// new.
fn differing<'a>(old: &'a [Arc<Vm>], new: &'a [Arc<Vm>]) -> impl Iterator<Item = &'a Vm> {
    let is_same = |(old, new): &(&Arc<Vm>, &Arc<Vm>)| Arc::ptr_eq(old, new);
    let first = old.iter().zip(new).take_while(is_same).count();
    let (old, new) = (&old[first..], &new[first..]);
    let last = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count();
    let (old, new) = (&old[..old.len() - last], &new[..new.len() - last]);
    old.iter().chain(new).map(AsRef::as_ref)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::Map;

    use super::*;
    use crate::promises::Promised;
    use crate::server_name::ServerName;
    use crate::vm::State;

    fn counted_anew(server: &Server) -> BTreeMap<Uuid, u32> {
        let mut counts = BTreeMap::new();
        for vm in server.vms.iter().chain(&server.promised.vms) {
            counts.entry(vm.owner).or_default();
        }
        for vm in server.counted() {
            *counts.entry(vm.owner).or_default() += 1;
        }
        counts
    }

    /// A server with some of these VMs, by place: those that it shows and those that are promised.
    fn server(vms: &[Arc<Vm>], shown: &BTreeSet<usize>, promised: &BTreeSet<usize>) -> Server {
        let some = |of: &BTreeSet<usize>| of.iter().map(|at| Arc::clone(&vms[*at])).collect();
        let mut server = Server::new(ServerName::of("any"), Arc::new(Map::new()));
        server.vms = Arc::new(some(shown));
        server.promised = Arc::new(Promised { vms: some(promised), ..Promised::default() });
        server
    }

    fn in_slots(slots: &OwnerSlots) -> Vec<(u32, u32)> {
        assert!(slots.0.iter().all(|part| (1..=PART).contains(&part.len())));
        slots.iter().collect()
    }

    #[test]
    fn few_servers_that_are_left_are_one_part() {
        let mut slots = OwnerSlots::default();
        let all: Vec<(u32, u32)> = (0..2_000).map(|slot| (slot * 7 % 2_000, slot)).collect();
        all.iter().for_each(|(slot, count)| slots.set(*slot, Some(*count)));
        let (whole, parts) = (slots.clone(), slots.0.len());
        assert!((8..=16).contains(&parts), "{parts} parts");
        all[20..].iter().for_each(|(slot, _)| slots.set(*slot, None));
        assert_eq!((slots.0.len(), in_slots(&slots).len()), (1, 20));
        assert_eq!(in_slots(&whole).len(), 2_000, "one that is kept stays as it was");
        all.iter().for_each(|(slot, _)| slots.set(*slot, None));
        assert!(slots.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        #[test]
        fn owners_have_vms_where_it_was_said(
            changes in proptest::collection::vec((0..900_u32, proptest::option::of(0..9_u32)), 0..3_000),
        ) {
            let (mut slots, mut known) = (OwnerSlots::default(), BTreeMap::new());
            for (slot, count) in changes {
                slots.set(slot, count);
                match count {
                    Some(count) => drop(known.insert(slot, count)),
                    None => drop(known.remove(&slot)),
                }
                prop_assert_eq!(slots.is_empty(), known.is_empty());
            }
            prop_assert!(in_slots(&slots).into_iter().eq(known));
        }
    }

    proptest! {
        #[test]
        fn what_changed_is_what_counting_anew_says(
            vms in proptest::collection::vec((1..4_u128, any::<bool>()), 12),
            lists in proptest::array::uniform4(proptest::collection::btree_set(0..12_usize, 0..9)),
            is_new in any::<bool>(),
        ) {
            let vm = |(owner, up): &(u128, bool)| {
                let owner = Uuid::from_u128(*owner);
                let state = if *up { State::Up } else { State::Provisioning };
                Arc::new(Vm { owner, state, ..Vm::default() })
            };
            let vms: Vec<_> = vms.iter().map(vm).collect();
            let [shown, promised, next_shown, next_promised] = &lists;
            let before = (!is_new).then(|| server(&vms, shown, promised));
            let after = server(&vms, next_shown, next_promised);
            let was = before.as_ref().map(counted_anew).unwrap_or_default();
            let is = counted_anew(&after);
            let changed = changed(before.as_ref(), &after);
            for owner in was.keys().chain(is.keys()).chain(changed.keys()) {
                let (before, after) = (was.get(owner).copied(), is.get(owner).copied());
                match changed.get(owner) {
                    Some(counts) => prop_assert_eq!(*counts, Counts { before, after }),
                    None => prop_assert_eq!(before, after),
                }
            }
        }
    }
}
