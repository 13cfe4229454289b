//! The state of one request while its expression is evaluated, and what algorithms share.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::bits::Bits;
use crate::findings::{Findings, Left, Vms};
use crate::ratios::Ratios;
use crate::reason::{Reason, Reasons};
use crate::recent::Recent;
use crate::remaining::Remaining;
use crate::request::Request;
use crate::rng::Rng;
use crate::scored::Scored;
use crate::scores::Scores;
use crate::server::{Unreserved, flag};
use crate::settings::Settings;
use crate::slot_set::slots_of;
use crate::snapshot::Snapshot;
use crate::vm::Vm;

/// Keep or remove a server.
#[derive(Debug)]
pub(crate) enum Verdict {
    Keep,
    /// Removed without a reason.
    Drop,
    /// Removed.
    Because(Reason),
}

impl Verdict {
    #[inline]
    pub(crate) fn keep_if(keep: bool) -> Self {
        if keep { Self::Keep } else { Self::Drop }
    }
}

/// Says when it is no longer worth to go on.
#[derive(Clone, Copy, Default)]
pub(crate) struct Until<'a>(Option<&'a dyn Fn() -> bool>);

impl std::fmt::Debug for Until<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Until" } else { "Never" })
    }
}

/// One evaluation: what an algorithm may look at, and, by its methods alone, what it may change.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) request: &'a Request,
    pub(crate) settings: &'a Settings,
    pub(crate) recent: &'a Recent,
    pub(crate) rng: Rng,
    remaining: Arc<Remaining>,
    /// Flags that all and that any of the servers had which the evaluation began with.
    bits: Bits,
    scores: Scores,
    pub(crate) found: Findings,
    /// Reservations count even if the pipeline has no `calculate-ticketed-vms`.
    pub(crate) always_promised: bool,
    until: Until<'a>,
    /// It ended early, and what was found is nothing.
    over: bool,
    /// The snapshot's sums and flags are not used: the long way, to compare with.
    #[cfg(test)]
    no_sums: bool,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        request: &'a Request,
        settings: &'a Settings,
        recent: &'a Recent,
        seed: u64,
    ) -> Self {
        Self {
            snapshot,
            request,
            settings,
            recent,
            rng: Rng::new(seed),
            remaining: Arc::default(),
            bits: Bits::default(),
            scores: Scores::new(snapshot.capacity()),
            found: Findings::new(request),
            always_promised: true,
            until: Until::default(),
            over: false,
            #[cfg(test)]
            no_sums: false,
        }
    }

    /// Looks at every server's VMs and flags instead of what the snapshot has ready.
    #[cfg(test)]
    pub(crate) fn without_sums(&mut self) {
        self.no_sums = true;
        self.bits = Bits::default();
    }

    /// Whether the snapshot's sums may be used at all.
    pub(crate) fn uses_sums(&self) -> bool {
        #[cfg(test)]
        return !self.no_sums;
        #[cfg(not(test))]
        true
    }

    /// Gives up as soon as `is_over` says so.
    pub(crate) fn end_when(&mut self, is_over: &'a dyn Fn() -> bool) {
        self.until = Until(Some(is_over));
    }

    /// Whether to give up.
    pub(crate) fn is_over(&mut self) -> bool {
        self.over = self.over || self.until.0.is_some_and(|is_over| is_over());
        self.over
    }

    /// Begins with these servers.
    pub(crate) fn start_with(&mut self, servers: Remaining) {
        self.go_back(&Arc::new(servers));
        self.bits = Bits::of(self.snapshot, self.remaining.set());
    }

    /// The servers left.
    pub(crate) fn remaining(&self) -> &Arc<Remaining> {
        &self.remaining
    }

    /// The servers left, in order. Who asks only for their number, or for one of them, asks
    /// [`Run::remaining`].
    pub(crate) fn list(&self) -> &Arc<Vec<u32>> {
        self.remaining.list()
    }

    /// Has these servers left, in this order: some of those that there were.
    pub(crate) fn leave(&mut self, list: Vec<u32>) {
        self.go_back(&Arc::new(Remaining::new(list, self.snapshot.capacity())));
    }

    /// Has the servers left that there were at an earlier point, for another try with them.
    pub(crate) fn go_back(&mut self, remaining: &Arc<Remaining>) {
        self.remaining = Arc::clone(remaining);
    }

    /// Flags of the servers that the evaluation began with.
    pub(crate) fn bits(&self) -> Bits {
        self.bits
    }

    pub(crate) fn scores(&self) -> &Scores {
        &self.scores
    }

    /// The scores, when nothing more is decided.
    pub(crate) fn take_scores(&mut self) -> Scores {
        std::mem::take(&mut self.scores)
    }

    /// Has the scores of an earlier point, by slot.
    pub(crate) fn set_scores(&mut self, scores: &[f64]) {
        self.scores = Scores::of_slots(scores.to_vec());
    }

    /// Changes scores.
    pub(crate) fn score(&mut self, scored: &Scored) {
        scored.apply(self.scores.of_mut(&scored.list));
    }

    /// Judges each server of the list, in the order of slots. A judge looks at one server and
    /// nothing else, so that the order does not matter.
    pub(crate) fn filter(&mut self, mut judge: impl FnMut(&Self, u32) -> Verdict) -> Reasons {
        let mut removed = Vec::new();
        for word in 0..self.remaining.set().words() {
            if self.is_over() {
                return Reasons::None;
            }
            for slot in slots_of(word, self.remaining.set().word(word)) {
                match judge(self, slot) {
                    Verdict::Keep => {}
                    Verdict::Drop => removed.push((slot, None)),
                    Verdict::Because(reason) => removed.push((slot, Some(reason))),
                }
            }
        }
        self.remove(removed)
    }

    /// Keeps the servers that have a flag, or that don't.
    pub(crate) fn filter_flag(
        &mut self,
        bit: u32,
        wanted: bool,
        removed: impl Fn() -> Verdict,
    ) -> Reasons {
        if self.bits.agree(bit, wanted) {
            return Reasons::None;
        }
        let because = |slot| match removed() {
            Verdict::Because(reason) => (slot, Some(reason)),
            Verdict::Keep | Verdict::Drop => (slot, None),
        };
        let left = self.remaining.set();
        let differ = |word: usize| {
            let flagged = self.snapshot.flagged(word, bit);
            slots_of(word, left.word(word) & if wanted { !flagged } else { flagged })
        };
        let removed = (0..left.words()).flat_map(differ).map(because).collect();
        self.remove(removed)
    }

    /// Removes servers that are left.
    pub(crate) fn without(&mut self, gone: impl Iterator<Item = u32>) {
        self.remaining = Arc::new(self.remaining.without(gone));
    }

    /// [`Run::filter`] for algorithms that give no reasons.
    pub(crate) fn keep(&mut self, mut keep: impl FnMut(&Snapshot, u32) -> bool) -> Reasons {
        self.filter(|run, slot| Verdict::keep_if(keep(run.snapshot, slot)))
    }

    /// Removes every server, with one reason for all.
    pub(crate) fn clear(&mut self, text: String) -> Reasons {
        self.leave(Vec::new());
        Reasons::all(text)
    }

    /// Whether what the snapshot counted beforehand is what algorithms see.
    pub(crate) fn is_fast(&self) -> bool {
        self.uses_sums() && self.found.sees() == Vms::Promised && !self.found.has_extra()
    }

    /// The server's VMs as far as they are loaded.
    pub(crate) fn vms(&self, slot: u32) -> impl Iterator<Item = &Vm> {
        let server = self.snapshot.server(slot);
        let extra = self.found.extra_of(slot).map_or(&[][..], |extra| extra.vms.as_slice());
        let loaded = (self.found.sees() >= Vms::Loaded).then(|| server.loaded());
        let promised = (self.found.sees() == Vms::Promised).then_some(server.promised.vms.iter());
        loaded
            .into_iter()
            .flatten()
            .chain(promised.into_iter().flatten().map(AsRef::as_ref))
            .chain(extra.iter().map(AsRef::as_ref))
    }

    pub(crate) fn vm_count(&self, slot: u32) -> u32 {
        if self.is_fast() {
            return self.snapshot.fast_vm_count(slot);
        }
        u32::try_from(self.vms(slot).count()).unwrap_or(u32::MAX)
    }

    /// Whether no server has a VM with the property whose flag is given.
    pub(crate) fn flags_decide(&self, bit: u32) -> bool {
        self.is_fast() && self.bits.agree(bit, false)
    }

    /// Whether one of the server's VMs has the property whose flag is given.
    pub(crate) fn any_vm(&self, slot: u32, bit: u32, property: impl Fn(&Vm) -> bool) -> bool {
        if self.is_fast() {
            return self.snapshot.has(slot, bit);
        }
        self.vms(slot).any(property)
    }

    pub(crate) fn ratios(&self, slot: u32) -> Ratios {
        self.snapshot.ratios(slot, self.found.policy())
    }

    /// Computes what servers have left, or takes the snapshot's sums if they fit.
    pub(crate) fn compute_left(&mut self) {
        if self.is_fast() && self.found.policy() == self.snapshot.policy {
            self.found.set_left(Left::Fast);
            return;
        }
        // Others keep what an earlier step, or another branch of an `or`, found for them.
        let slots = 0..u32::try_from(self.snapshot.capacity()).unwrap_or(u32::MAX);
        let mut left: Vec<_> = slots.map(|slot| self.left(slot)).collect();
        for slot in self.remaining.set().iter() {
            left[slot as usize] = self.left_of(slot);
        }
        self.found.set_left(Left::Computed(Arc::new(left)));
    }

    /// Whether the sums that the snapshot has of a server are what is left of it here.
    fn sums_fit(&self, slot: u32) -> bool {
        if !self.uses_sums() {
            return false;
        }
        let no_promises = || !self.snapshot.has(slot, flag::PROMISED);
        let all_seen =
            self.found.sees() == Vms::Promised || self.found.sees() == Vms::Loaded && no_promises();
        all_seen
            && self.found.policy() == self.snapshot.policy
            && self.found.extra_of(slot).is_none()
    }

    fn left_of(&self, slot: u32) -> Unreserved {
        if self.sums_fit(slot) {
            return self.snapshot.fast_unreserved(slot);
        }
        let server = self.snapshot.server(slot);
        let all = self.found.sees() == Vms::Promised;
        // A pipeline without `calculate-ticketed-vms` must still not promise the same room twice.
        let reserved = !all && self.always_promised;
        let mut disk = self.found.extra_of(slot).map(|extra| extra.disk).unwrap_or_default();
        for (counts, more) in
            [(all, server.promised.disk), (reserved, server.promised.reserved_disk)]
        {
            if counts {
                disk.zone_quota += more.zone_quota;
                disk.zvol += more.zvol;
            }
        }
        let late = reserved.then(|| server.promised.vms.iter().skip(server.promised.ticketed));
        let vms = self.vms(slot).chain(late.into_iter().flatten().map(AsRef::as_ref));
        server.unreserved(self.ratios(slot), vms, disk)
    }

    /// What a server has left; not numbers before `calculate-server-unreserved`.
    #[inline]
    pub(crate) fn left(&self, slot: u32) -> Unreserved {
        match self.found.left() {
            Left::Fast => self.snapshot.fast_unreserved(slot),
            Left::Computed(left) => left[slot as usize],
            Left::Unknown => Unreserved { cpu: f64::NAN, ram: f64::NAN, disk: f64::NAN },
        }
    }

    /// How many VMs of the requested owner each slot shows, for slots with any, in their order.
    pub(crate) fn owner_counts(&self) -> Vec<(u32, u32)> {
        let owner = self.request.vm.owner;
        let slots = self.snapshot.owner_slots(owner);
        if self.is_fast() {
            return slots.filter(|(_, n)| *n > 0).collect();
        }
        let candidates: std::collections::BTreeSet<u32> =
            slots.map(|(slot, _)| slot).chain(self.found.extra_slots()).collect();
        candidates
            .into_iter()
            .map(|slot| {
                let n = self.vms(slot).filter(|vm| vm.owner == owner).count();
                (slot, u32::try_from(n).unwrap_or(u32::MAX))
            })
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// [`Run::owner_counts`] by slot, for all slots.
    pub(crate) fn owner_counts_by_slot(&self) -> Vec<u32> {
        let mut counts = vec![0; self.snapshot.capacity()];
        for (slot, n) in self.owner_counts() {
            counts[slot as usize] = n;
        }
        counts
    }

    /// For each listed VM, where it is, if it belongs to the requested owner: `(slot, index)`,
    /// the indices of a slot in list order.
    pub(crate) fn owned_hosts(&self, vms: &[String]) -> BTreeMap<u32, Vec<usize>> {
        let mut wanted: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (i, vm) in vms.iter().enumerate() {
            if let Ok(vm) = Uuid::parse_str(vm) {
                wanted.entry(vm).or_default().push(i);
            }
        }
        let owner = self.request.vm.owner;
        let mut hosts: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        if vms.is_empty() {
            return hosts;
        }
        for (slot, _) in self.owner_counts() {
            let here = self.vms(slot).filter(|vm| vm.owner == owner);
            let mut found: Vec<usize> =
                here.filter_map(|vm| wanted.get(&vm.uuid)).flatten().copied().collect();
            // A VM that is promised and reported is there once.
            found.sort_unstable();
            found.dedup();
            if !found.is_empty() {
                hosts.insert(slot, found);
            }
        }
        hosts
    }

    /// How many VMs of the requested owner a server shows.
    pub(crate) fn owner_vms(&self, slot: u32) -> usize {
        let owner = self.request.vm.owner;
        self.vms(slot).filter(|vm| vm.owner == owner).count()
    }

    /// Which of the VMs to be near to and far from a server has, for an explanation.
    pub(crate) fn wishes(&self, slot: u32) -> Vec<(&'static str, Value)> {
        let Some(locality) = self.found.locality() else { return Vec::new() };
        let owner = self.request.vm.owner;
        let has = |wanted: &&String| {
            let wanted = Uuid::parse_str(wanted).ok();
            self.vms(slot).any(|vm| vm.owner == owner && Some(vm.uuid) == wanted)
        };
        let here = |vms: &[String]| json!(vms.iter().filter(has).collect::<Vec<_>>());
        let (near, far) = (&locality.near, &locality.far);
        vec![
            ("near", json!(near.len())),
            ("near_here", here(near)),
            ("far", json!(far.len())),
            ("far_here", here(far)),
        ]
    }

    /// How servers are to be spread, if anything says so.
    pub(crate) fn spread(&self) -> Option<&str> {
        let package = self.found.package().and_then(|package| package.spread.as_deref());
        package.or(self.settings.server_spread.as_deref())
    }
}
