//! What this coordinator holds of every server in memory: the records as the store's feed tells of
//! them, and what agents report that is not stored.

mod feed;
mod figures;
mod making;
mod records;
mod reported;
mod stale;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_shared::api::Object;
use muster_shared::api::server::ServerRecord;
use muster_shared::api::vm::{Heard, Vm};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

pub use figures::{Figures, disk_figures};

use super::context::Context;
use super::keys;
use crate::roster::{RosterRecord, Status};
use crate::store::{Expect, Held, Revision, Write};
use figures::Kept;
pub(super) use making::PlaceState;
pub(super) use records::SERVERS;
pub use reported::Claim;
pub use stale::Stale;
pub use usage::ServerUsage;

/// The record `sysinfo/<uuid>`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SysinfoRecord {
    /// The document.
    pub sysinfo: Object,
    /// The agent's hash of it; empty when it came over HTTP.
    #[serde(default)]
    pub hash: String,
}

/// One server.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// `server/<uuid>`; `None` while the server is not registered.
    pub record: Option<Held<Arc<ServerRecord>>>,
    /// `sysinfo/<uuid>`, unparsed: it is large and seldom read.
    pub sysinfo: Option<Held<Bytes>>,
    /// Hash of the sysinfo.
    pub sysinfo_hash: String,
    /// `roster/<uuid>`.
    pub roster: Option<Held<RosterRecord>>,
    /// Its VMs, as last reported.
    pub vms: BTreeMap<VmUuid, Arc<VmReport>>,
    /// Memory and disk.
    pub figures: Figures,
    /// `figures/<uuid>`, which may be ten minutes behind.
    pub kept_figures: Option<Kept>,
    /// What its VMs use, as it told last.
    pub usage: Option<Arc<ServerUsage>>,
    /// The agent's own remarks: load, pressure, pools.
    pub remarks: Value,
    /// When the agent looked for its last report, ISO 8601 by its own clock; empty before that.
    pub reported_at: String,
    /// Status writes by this process.
    pub status_writes: u64,
}

impl Entry {
    /// The parsed sysinfo; empty when there is none.
    #[must_use]
    pub fn sysinfo(&self) -> Object {
        let parse = |held: &Held<Bytes>| serde_json::from_slice::<SysinfoRecord>(&held.value).ok();
        self.sysinfo.as_ref().and_then(parse).unwrap_or_default().sysinfo
    }

    /// CNAPI's `vms`: nine members each.
    #[must_use]
    pub fn cnapi_vms(&self) -> BTreeMap<VmUuid, Vm> {
        self.vms.iter().map(|(uuid, report)| (*uuid, Vm::from(&report.vm))).collect()
    }

    /// Whether it is heard, by what is stored.
    #[must_use]
    pub fn heard(&self) -> Heard {
        match self.roster.as_ref().map(|held| held.value.status) {
            Some(Status::Running) => Heard::Running,
            Some(Status::Unknown) | None => Heard::Unknown,
        }
    }

    /// MiB of all VMs.
    #[must_use]
    pub fn vms_mib(&self) -> u64 {
        let sizes = self.vms.values().map(|vm| vm.vm.max_physical_memory);
        sizes.fold(0, u64::saturating_add)
    }

    /// The stored status, `unknown` if there is none.
    #[must_use]
    pub fn stored_status(&self) -> &'static str {
        self.roster.as_ref().map_or("unknown", |held| held.value.status.as_str())
    }
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// In boxes: each message of an agent looks its server up, and a search among uuids that lie
    /// together waits for less memory than one among entries.
    pub(super) servers: BTreeMap<ServerUuid, Box<Entry>>,
    /// The VMs' records, by VM.
    homes: BTreeSet<(VmUuid, ServerUuid)>,
    /// The commits that wrote the VMs' records.
    revisions: BTreeMap<(ServerUuid, VmUuid), Revision>,
    /// VMs that were reported otherwise than the store has them; `None`: gone.
    unsaved: BTreeMap<(ServerUuid, VmUuid), Option<Arc<VmReport>>>,
    /// The server of each VM: on which it was made or which reported it first, and which still has
    /// it.
    home: BTreeMap<VmUuid, ServerUuid>,
    /// Where VMs are being made that their server has not reported.
    making: BTreeMap<VmUuid, ServerUuid>,
    /// VMs that were reported by a server that is not their home.
    claims: BTreeMap<(VmUuid, ServerUuid), Arc<VmReport>>,
    /// What the allocator has not taken over since it changed.
    stale: stale::Stales,
}

impl Inner {
    /// The store has this of a VM now; `None`: nothing.
    pub(super) fn stored_vm(
        &mut self,
        server: ServerUuid,
        vm: VmUuid,
        mut report: Option<Arc<VmReport>>,
        at: Revision,
    ) {
        if self.unsaved.get(&(server, vm)) == Some(&report) {
            // The connection that said so holds it, too.
            report = self.unsaved.remove(&(server, vm)).flatten();
        }
        match report {
            Some(report) => {
                self.servers.entry(server).or_default().vms.insert(vm, report);
                self.homes.insert((vm, server));
                self.revisions.insert((server, vm), at);
                self.move_in(server, vm);
            }
            None => {
                self.revisions.remove(&(server, vm));
                if let Some(entry) = self.servers.get_mut(&server) {
                    entry.vms.remove(&vm);
                }
                self.homes.remove(&(vm, server));
                self.move_out(server, vm);
            }
        }
        self.stale(server).vms.insert(vm);
    }

    fn write_of(&self, at: (ServerUuid, VmUuid), report: &Option<Arc<VmReport>>) -> Write {
        let key = keys::vm(at.0, at.1);
        let expect = self.revisions.get(&at).map_or(Expect::Absent, |at| Expect::At(*at));
        match report {
            Some(report) => Write::put(key, expect, keys::encode(&**report)),
            None => Write::delete(key, expect),
        }
    }

    /// Forgets what came from the store; what agents reported stays.
    pub(super) fn forget_stored(&mut self) {
        self.homes.clear();
        self.revisions.clear();
        self.making.clear();
        for (server, entry) in &mut self.servers {
            self.stale.entry(*server).or_default().whole = true;
            entry.record = None;
            entry.sysinfo = None;
            entry.sysinfo_hash.clear();
            entry.roster = None;
            entry.vms.clear();
        }
    }
}

/// All servers, as the store's feed tells of them, and what agents reported that is not stored.
#[derive(Debug)]
pub struct Fleet {
    ctx: Arc<Context>,
    inner: RwLock<Inner>,
    /// Figures that count in an allocation.
    figures_read: BTreeSet<String>,
    /// A VM's record may have to be written.
    pub(crate) vms_wake: Notify,
    /// The allocator has something to take over.
    pub(crate) stale_wake: Notify,
}

impl Fleet {
    /// No servers.
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        let figures_read = ctx.config.allocation.policy.figures_read();
        let (vms_wake, stale_wake) = (Notify::new(), Notify::new());
        Self { ctx, inner: RwLock::default(), figures_read, vms_wake, stale_wake }
    }

    pub(super) fn inner(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    pub(super) fn now(&self) -> Duration {
        self.ctx.now()
    }

    /// A copy of one server (cheap: large parts are shared).
    #[must_use]
    pub fn get(&self, server: ServerUuid) -> Option<Entry> {
        self.inner.read().servers.get(&server).map(|entry| Entry::clone(entry))
    }

    /// Looks at one server without copying it.
    pub fn with<R>(&self, server: ServerUuid, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.inner.read().servers.get(&server).map(|entry| look(entry))
    }

    /// Changes what does not matter to an allocation, if the server is known.
    pub fn note(&self, server: ServerUuid, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.inner.write().servers.get_mut(&server) {
            change(entry);
        }
    }

    /// All servers that are registered, in uuid order.
    #[must_use]
    pub fn registered(&self) -> Vec<ServerUuid> {
        let inner = self.inner.read();
        inner.servers.iter().filter(|(_, e)| e.record.is_some()).map(|(s, _)| *s).collect()
    }

    /// Whether a registered server's record is such.
    pub fn any_record(&self, fits: impl Fn(&ServerRecord) -> bool) -> bool {
        let inner = self.inner.read();
        inner.servers.values().any(|entry| entry.record.as_ref().is_some_and(|r| fits(&r.value)))
    }

    /// Looks at every registered server in uuid order.
    pub fn for_each(&self, mut look: impl FnMut(ServerUuid, &Entry)) {
        for (server, entry) in &self.inner.read().servers {
            if entry.record.is_some() {
                look(*server, entry);
            }
        }
    }

    /// The server a VM is on, and its report.
    #[must_use]
    pub fn vm(&self, vm: VmUuid) -> Option<(ServerUuid, Arc<VmReport>)> {
        let inner = self.inner.read();
        let everywhere = (vm, ServerUuid(Uuid::nil()))..=(vm, ServerUuid(Uuid::max()));
        // A store of an earlier version may hold records of several servers.
        let home = inner.home.get(&vm).filter(|home| inner.homes.contains(&(vm, **home)));
        let server = match home {
            Some(home) => *home,
            None => inner.homes.range(everywhere).next()?.1,
        };
        let report = inner.servers.get(&server)?.vms.get(&vm)?;
        Some((server, Arc::clone(report)))
    }

    /// Looks at every VM, in uuid order, until `look` says stop (`false`).
    pub fn for_each_vm(
        &self,
        after: Option<VmUuid>,
        mut look: impl FnMut(VmUuid, ServerUuid, &Entry, &VmReport) -> bool,
    ) {
        use std::ops::Bound;
        let inner = self.inner.read();
        let last = |vm| Bound::Excluded((vm, ServerUuid(Uuid::max())));
        let from = after.map_or(Bound::Unbounded, last);
        for (vm, server) in inner.homes.range((from, Bound::Unbounded)) {
            let Some(entry) = inner.servers.get(server) else { continue };
            let Some(report) = entry.vms.get(vm) else { continue };
            if !look(*vm, *server, entry, report) {
                return;
            }
        }
    }

    /// Number of servers, registered or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.read().servers.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of VMs, those with the same uuid counted each.
    #[must_use]
    pub fn vm_count(&self) -> usize {
        self.inner.read().homes.len()
    }
}

#[cfg(test)]
mod tests;
