//! What agents report of VMs: which server a VM is on, and what of it is to be saved.
//!
//! A VM's home is the server on which it is made, or that reported it first, for as long as it has
//! it. Another server that reports it changes nothing: a server proves who it is, not which VMs are
//! its.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use uuid::Uuid;

use super::{Fleet, Inner};
use crate::app::keys;
use crate::store::{Action, Write};

/// VM records of one commit, bytes; a commit takes 1 MiB.
const BATCH_BYTES: usize = 768 * 1024;
/// Largest record of a VM, bytes; honest ones have tags of 16 KiB at most.
const MAX_RECORD_BYTES: usize = 64 * 1024;
/// Most claims that are remembered; further ones change nothing either.
const MAX_CLAIMS: usize = 10_000;

/// A server reports a VM of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The VM.
    pub vm: VmUuid,
    /// Who says that it has it.
    pub by: ServerUuid,
    /// Where it is.
    pub home: ServerUuid,
}

impl Inner {
    /// Whether a server has a VM, by what it reported last.
    fn has(&self, server: ServerUuid, vm: VmUuid) -> bool {
        match self.unsaved.get(&(server, vm)) {
            Some(report) => report.is_some(),
            None => self.homes.contains(&(vm, server)),
        }
    }

    /// What was reported last of a VM on a server, stored or not.
    fn reported(&self, server: ServerUuid, vm: VmUuid) -> Option<&Arc<VmReport>> {
        match self.unsaved.get(&(server, vm)) {
            Some(report) => report.as_ref(),
            None => self.servers.get(&server)?.vms.get(&vm),
        }
    }

    /// Whether this very report of a VM is stored, and nothing later was said of it.
    fn has_stored(&self, server: ServerUuid, vm: VmUuid, report: &Arc<VmReport>) -> bool {
        let stored = self.servers.get(&server).and_then(|entry| entry.vms.get(&vm));
        stored.is_some_and(|stored| Arc::ptr_eq(stored, report))
            && !self.unsaved.contains_key(&(server, vm))
            && !self.claims.contains_key(&(vm, server))
    }

    /// Where a VM is, if not on this server.
    fn elsewhere(&self, server: ServerUuid, vm: VmUuid) -> Option<ServerUuid> {
        let has_it = self.home.get(&vm).filter(|home| self.has(**home, vm));
        let home = *has_it.or_else(|| self.making.get(&vm))?;
        (home != server).then_some(home)
    }

    /// The store has a VM's record; the first one says where it is.
    pub(super) fn move_in(&mut self, server: ServerUuid, vm: VmUuid) {
        if self.elsewhere(server, vm).is_none() {
            self.home.insert(vm, server);
            self.making.remove(&vm);
        }
    }

    /// A VM's record is gone; who claimed it may have it.
    pub(super) fn move_out(&mut self, server: ServerUuid, vm: VmUuid) {
        if self.home.get(&vm) != Some(&server) || self.has(server, vm) {
            return;
        }
        self.home.remove(&vm);
        if !self.making.contains_key(&vm) {
            self.leave_to_others(vm);
        }
    }

    /// A VM that has no home is where another record or a claim says that it is.
    pub(super) fn leave_to_others(&mut self, vm: VmUuid) {
        if let Some((_, other)) = self.homes.range(everywhere(vm)).next() {
            self.home.insert(vm, *other);
            return;
        }
        let claimed = self.claims.range(everywhere(vm)).next().map(|(claim, _)| *claim);
        let report = claimed.and_then(|claim| self.claims.remove(&claim));
        if let Some(((_, by), report)) = claimed.zip(report) {
            self.home.insert(vm, by);
            self.unsaved.insert((by, vm), Some(report));
        }
    }

    /// Takes over what a server says of one VM; a claim that is new.
    fn report(
        &mut self,
        server: ServerUuid,
        vm: VmUuid,
        report: Option<Arc<VmReport>>,
    ) -> Option<Claim> {
        if let Some((home, report)) = self.elsewhere(server, vm).zip(report.clone())
            && !self.homes.contains(&(vm, server))
        {
            let known = self.claims.contains_key(&(vm, server));
            if known || self.claims.len() < MAX_CLAIMS {
                self.claims.insert((vm, server), report);
            }
            return (!known).then_some(Claim { vm, by: server, home });
        }
        self.claims.remove(&(vm, server));
        if report.is_some() {
            self.move_in(server, vm);
        }
        let stored = self.servers.get(&server).and_then(|entry| entry.vms.get(&vm));
        // What is unsaved may be on its way to the store and change what is there.
        if stored != report.as_ref() || self.unsaved.contains_key(&(server, vm)) {
            self.unsaved.insert((server, vm), report);
        }
        None
    }
}

/// A report that fits a record: what no honest agent sends is left out. `None` if nothing helps.
fn to_size(vm: VmUuid, report: Arc<VmReport>) -> Option<Arc<VmReport>> {
    if keys::encode(&*report).len() <= MAX_RECORD_BYTES {
        return Some(report);
    }
    let mut report = VmReport::clone(&report);
    report.index.tags.clear();
    report.index.ips.clear();
    report.index.alias = None;
    report.index.state_reason = Some("its report was too large: name and tags are left out".into());
    let fits = keys::encode(&report).len() <= MAX_RECORD_BYTES;
    tracing::warn!(vm_uuid = %vm, kept = fits, "the report of a VM is too large");
    fits.then(|| Arc::new(report))
}

impl Fleet {
    /// Puts what is in memory of a server's VMs in the place of what is the same, so that it is in
    /// memory once.
    pub fn share(&self, server: ServerUuid, vms: &mut BTreeMap<VmUuid, Option<Arc<VmReport>>>) {
        if vms.is_empty() {
            return;
        }
        let inner = self.read();
        for (vm, said) in vms {
            let held = inner.reported(server, *vm);
            if held.is_some() && held == said.as_ref() {
                *said = held.cloned();
            }
        }
    }

    /// Takes over what an agent says of some of its VMs (`None`: gone); what differs from the
    /// store is to be saved, and is seen by others once it is. Returns claims that are new: those
    /// of VMs of other servers, which change nothing.
    pub fn report_vms(
        &self,
        server: ServerUuid,
        mut changes: BTreeMap<VmUuid, Option<Arc<VmReport>>>,
    ) -> Vec<Claim> {
        {
            let inner = self.read();
            changes.retain(|vm, said| {
                !said.as_ref().is_some_and(|s| inner.has_stored(server, *vm, s))
            });
        }
        if changes.is_empty() {
            return Vec::new();
        }
        let fitting = |(vm, report)| match report {
            Some(report) => Some((vm, Some(to_size(vm, report)?))),
            None => Some((vm, None)),
        };
        let changes: Vec<_> = changes.into_iter().filter_map(fitting).collect();
        let mut inner = self.inner.write();
        let claims = changes.into_iter().filter_map(|(vm, said)| inner.report(server, vm, said));
        claims.collect()
    }

    /// Servers that report a VM that is another one's.
    #[must_use]
    pub fn claimants(&self, vm: VmUuid) -> Vec<ServerUuid> {
        self.inner.read().claims.range(everywhere(vm)).map(|((_, by), _)| *by).collect()
    }

    /// The VMs that a server's agent reported, stored or not.
    #[must_use]
    pub fn reported_vms(&self, server: ServerUuid) -> BTreeSet<VmUuid> {
        let inner = self.inner.read();
        let stored = inner.servers.get(&server).into_iter().flat_map(|entry| entry.vms.keys());
        let mut vms: BTreeSet<VmUuid> = stored.copied().collect();
        let claimed = inner.claims.keys().filter(|(_, by)| *by == server);
        vms.extend(claimed.map(|(vm, _)| *vm));
        for ((_, vm), report) in inner.unsaved.range(of_server(server)) {
            match report {
                Some(_) => vms.insert(*vm),
                None => vms.remove(vm),
            };
        }
        vms
    }

    /// What was reported last of a VM on a server, stored or not.
    #[must_use]
    pub fn reported_vm(&self, server: ServerUuid, vm: VmUuid) -> Option<Arc<VmReport>> {
        self.inner.read().reported(server, vm).cloned()
    }

    /// VM records to write, at most `max` and no more than a commit takes; they stay unsaved until
    /// the store shows them. A write that comes late does not replace a newer one.
    #[must_use]
    pub(crate) fn unsaved(&self, max: usize) -> Vec<Write> {
        let inner = self.inner.read();
        let mut bytes = 0;
        let mut writes = Vec::new();
        for (vm, report) in inner.unsaved.iter().take(max) {
            let write = inner.write_of(*vm, report);
            let value = match &write.action {
                Action::Put(value, _) => value.len(),
                Action::Delete | Action::Check => 0,
            };
            bytes += write.key.len() + value;
            if bytes > BATCH_BYTES && !writes.is_empty() {
                break;
            }
            writes.push(write);
        }
        writes
    }

    /// How many records are unsaved.
    #[must_use]
    pub(crate) fn unsaved_count(&self) -> usize {
        self.inner.read().unsaved.len()
    }

    /// As [`Fleet::unsaved`], of one VM; `None` when the store has what was reported.
    #[must_use]
    pub(crate) fn unsaved_vm(&self, server: ServerUuid, vm: VmUuid) -> Option<Write> {
        let inner = self.inner.read();
        let report = inner.unsaved.get(&(server, vm))?;
        Some(inner.write_of((server, vm), report))
    }

    /// Whether a VM's record is not in the store as it is here.
    #[must_use]
    pub fn is_unsaved(&self, server: ServerUuid, vm: VmUuid) -> bool {
        self.inner.read().unsaved.contains_key(&(server, vm))
    }

    /// Forgets what a server reported and is not stored.
    pub fn forget_reported(&self, server: ServerUuid) {
        let mut inner = self.inner.write();
        inner.unsaved.retain(|(at, _), _| *at != server);
        inner.claims.retain(|(_, by), _| *by != server);
    }
}

/// All VMs of a server.
fn of_server(server: ServerUuid) -> RangeInclusive<(ServerUuid, VmUuid)> {
    (server, VmUuid(Uuid::nil()))..=(server, VmUuid(Uuid::max()))
}

/// Everything about one VM, on any server.
fn everywhere(vm: VmUuid) -> RangeInclusive<(VmUuid, ServerUuid)> {
    (vm, ServerUuid(Uuid::nil()))..=(vm, ServerUuid(Uuid::max()))
}
