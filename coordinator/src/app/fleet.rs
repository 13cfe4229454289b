//! What this coordinator holds of every server in memory: the stored records as last read or
//! written, and the volatile figures.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::figures::{Figures, Kept};
use super::posted;
use crate::roster::RosterRecord;
use crate::store::Revision;

/// A stored record and the commit that wrote it.
#[derive(Clone, Debug)]
pub struct Held<T> {
    /// The record.
    pub value: T,
    /// Its revision.
    pub revision: Revision,
}

/// The record `sysinfo/<uuid>`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SysinfoRecord {
    /// The document.
    pub sysinfo: Map<String, Value>,
    /// The agent's hash of it; empty when it came over HTTP.
    #[serde(default)]
    pub hash: String,
}

/// One server.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// `server/<uuid>`; `None` while the server is not registered.
    pub record: Option<Held<Arc<Map<String, Value>>>>,
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
    /// When it was last heard, by this coordinator's wall clock.
    pub last_heartbeat: Option<Timestamp>,
    /// The agent's wall clock minus ours, ms.
    pub clock_skew_ms: Option<i64>,
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
    pub fn sysinfo(&self) -> Map<String, Value> {
        let parse = |held: &Held<Bytes>| serde_json::from_slice::<SysinfoRecord>(&held.value).ok();
        self.sysinfo.as_ref().and_then(parse).unwrap_or_default().sysinfo
    }

    /// CNAPI's `vms`: nine members each.
    #[must_use]
    pub fn cnapi_vms(&self) -> Map<String, Value> {
        self.vms
            .iter()
            .map(|(uuid, vm)| (uuid.to_string(), Value::Object(posted::shown(&vm.vm))))
            .collect()
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
struct Inner {
    servers: BTreeMap<ServerUuid, Entry>,
    /// Where each VM is; nobody keeps two servers from having VMs of one uuid.
    homes: BTreeSet<(VmUuid, ServerUuid)>,
    /// VM records that are not in the store as they are here.
    unsaved: BTreeSet<(ServerUuid, VmUuid)>,
    /// Servers that the allocator has not taken over since they changed.
    stale: BTreeSet<ServerUuid>,
}

/// All servers.
#[derive(Debug, Default)]
pub struct Fleet(RwLock<Inner>);

impl Fleet {
    /// A copy of one server (cheap: large parts are shared).
    #[must_use]
    pub fn get(&self, server: ServerUuid) -> Option<Entry> {
        self.0.read().servers.get(&server).cloned()
    }

    /// Looks at one server without copying it.
    pub fn with<R>(&self, server: ServerUuid, look: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.0.read().servers.get(&server).map(look)
    }

    /// Changes one server, making room for it if it is new.
    pub fn update<R>(&self, server: ServerUuid, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut inner = self.0.write();
        inner.stale.insert(server);
        change(inner.servers.entry(server).or_default())
    }

    /// Changes what does not matter to an allocation, if the server is known.
    pub fn note(&self, server: ServerUuid, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.write().servers.get_mut(&server) {
            change(entry);
        }
    }

    /// Servers that changed since the last call so that an allocation could come out differently.
    #[must_use]
    pub fn take_stale(&self) -> BTreeSet<ServerUuid> {
        std::mem::take(&mut self.0.write().stale)
    }

    /// All servers that are registered, in uuid order.
    #[must_use]
    pub fn registered(&self) -> Vec<ServerUuid> {
        let inner = self.0.read();
        inner.servers.iter().filter(|(_, e)| e.record.is_some()).map(|(s, _)| *s).collect()
    }

    /// Whether a server is registered.
    #[must_use]
    pub fn has(&self, server: ServerUuid) -> bool {
        self.0.read().servers.get(&server).is_some_and(|entry| entry.record.is_some())
    }

    /// Whether a registered server's record is such.
    pub fn any_record(&self, fits: impl Fn(&Map<String, Value>) -> bool) -> bool {
        let inner = self.0.read();
        inner.servers.values().any(|entry| entry.record.as_ref().is_some_and(|r| fits(&r.value)))
    }

    /// Looks at every registered server in uuid order.
    pub fn for_each(&self, mut look: impl FnMut(ServerUuid, &Entry)) {
        for (server, entry) in &self.0.read().servers {
            if entry.record.is_some() {
                look(*server, entry);
            }
        }
    }

    /// The server a VM is on, and its report.
    #[must_use]
    pub fn vm(&self, vm: VmUuid) -> Option<(ServerUuid, Arc<VmReport>)> {
        let inner = self.0.read();
        let everywhere = (vm, ServerUuid(Uuid::nil()))..=(vm, ServerUuid(Uuid::max()));
        let (_, server) = *inner.homes.range(everywhere).next()?;
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
        let inner = self.0.read();
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

    /// Number of VMs, those with the same uuid counted each.
    #[must_use]
    pub fn vm_count(&self) -> usize {
        self.0.read().homes.len()
    }

    /// Takes over VM records from the store.
    pub fn load_vm(&self, server: ServerUuid, vm: VmUuid, report: VmReport) {
        let mut inner = self.0.write();
        inner.servers.entry(server).or_default().vms.insert(vm, Arc::new(report));
        inner.homes.insert((vm, server));
        inner.stale.insert(server);
    }

    /// Applies changed VMs (`None`: gone); what differs is to be saved. Returns the VMs that are
    /// gone.
    pub fn set_vms(
        &self,
        server: ServerUuid,
        changes: BTreeMap<VmUuid, Option<VmReport>>,
    ) -> Vec<VmUuid> {
        let mut guard = self.0.write();
        let inner = &mut *guard;
        let entry = inner.servers.entry(server).or_default();
        let mut gone = Vec::new();
        let mut changed = false;
        for (vm, report) in changes {
            match report {
                Some(report) if entry.vms.get(&vm).is_some_and(|old| **old == report) => continue,
                Some(report) => {
                    entry.vms.insert(vm, Arc::new(report));
                    inner.homes.insert((vm, server));
                }
                None => {
                    if entry.vms.remove(&vm).is_none() {
                        continue;
                    }
                    gone.push(vm);
                    inner.homes.remove(&(vm, server));
                }
            }
            changed = true;
            inner.unsaved.insert((server, vm));
        }
        if changed {
            inner.stale.insert(server);
        }
        gone
    }

    /// VM records to write, at most `max`; they stay unsaved until [`Fleet::saved`].
    #[must_use]
    pub fn unsaved(&self, max: usize) -> Vec<(ServerUuid, VmUuid, Option<Arc<VmReport>>)> {
        let inner = self.0.read();
        let report = |s: &ServerUuid, v: &VmUuid| inner.servers.get(s)?.vms.get(v).cloned();
        inner.unsaved.iter().take(max).map(|(s, v)| (*s, *v, report(s, v))).collect()
    }

    /// Whether a VM's record is not in the store as it is here.
    #[must_use]
    pub fn is_unsaved(&self, server: ServerUuid, vm: VmUuid) -> bool {
        self.0.read().unsaved.contains(&(server, vm))
    }

    /// The store holds these records now; what changed since stays unsaved.
    pub fn saved(&self, written: &[(ServerUuid, VmUuid, Option<Arc<VmReport>>)]) {
        let mut guard = self.0.write();
        let inner = &mut *guard;
        for (server, vm, report) in written {
            let now = inner.servers.get(server).and_then(|entry| entry.vms.get(vm));
            let same = match (now, report) {
                (Some(now), Some(written)) => Arc::ptr_eq(now, written),
                (None, None) => true,
                _ => false,
            };
            if same {
                inner.unsaved.remove(&(*server, *vm));
            }
        }
    }

    /// Forgets a server's stored parts; what is volatile stays while it is connected.
    pub fn remove(&self, server: ServerUuid) -> Vec<VmUuid> {
        let mut guard = self.0.write();
        let inner = &mut *guard;
        inner.stale.insert(server);
        let Some(entry) = inner.servers.remove(&server) else { return Vec::new() };
        let vms: Vec<_> = entry.vms.keys().copied().collect();
        for vm in &vms {
            inner.homes.remove(&(*vm, server));
            inner.unsaved.remove(&(server, *vm));
        }
        vms
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(vm: VmUuid, state: &str) -> VmReport {
        let value = json!({
            "uuid": vm, "owner_uuid": "o", "brand": "kvm", "max_physical_memory": 1, "state": state,
            "zone_state": state, "last_modified": "",
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_unchanged_report_leaves_nothing_to_save() {
        let fleet = Fleet::default();
        let server = ServerUuid(uuid::Uuid::from_u128(1));
        let vm = VmUuid(uuid::Uuid::from_u128(2));
        let running = || BTreeMap::from([(vm, Some(report(vm, "running")))]);
        fleet.set_vms(server, running());
        let unsaved = fleet.unsaved(10);
        assert_eq!(unsaved.len(), 1);
        fleet.saved(&unsaved);
        assert!(fleet.take_stale().contains(&server));
        fleet.set_vms(server, running());
        assert!(fleet.unsaved(10).is_empty());
        assert!(fleet.take_stale().is_empty());
        assert_eq!(fleet.set_vms(server, BTreeMap::from([(vm, None)])), vec![vm]);
        assert_eq!(fleet.unsaved(10).len(), 1);
        assert!(fleet.vm(vm).is_none());
    }

    #[test]
    fn of_two_vms_with_one_uuid_the_other_stays() {
        let fleet = Fleet::default();
        let vm = VmUuid(Uuid::from_u128(2));
        let [one, two] = [1, 3].map(|n| ServerUuid(Uuid::from_u128(n)));
        for server in [one, two] {
            fleet.set_vms(server, BTreeMap::from([(vm, Some(report(vm, "running")))]));
        }
        assert_eq!(fleet.vm_count(), 2);
        fleet.set_vms(two, BTreeMap::from([(vm, None)]));
        assert_eq!(fleet.vm(vm).map(|(server, _)| server), Some(one));
        fleet.remove(one);
        assert_eq!(fleet.vm(vm), None);
    }

    #[test]
    fn a_change_during_the_write_stays_unsaved() {
        let fleet = Fleet::default();
        let server = ServerUuid(uuid::Uuid::from_u128(1));
        let vm = VmUuid(uuid::Uuid::from_u128(2));
        fleet.set_vms(server, BTreeMap::from([(vm, Some(report(vm, "running")))]));
        let written = fleet.unsaved(10);
        fleet.set_vms(server, BTreeMap::from([(vm, Some(report(vm, "stopped")))]));
        fleet.saved(&written);
        assert_eq!(fleet.unsaved(10).len(), 1);
    }
}
