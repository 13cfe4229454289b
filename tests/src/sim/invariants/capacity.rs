//! Room: what VMs take and what is promised to others never exceeds what a server has.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, VmUuid};
use serde_json::Value;

use super::tasks::Tasks;
use super::{Verdict, Violation, text};
use crate::sim::node::AgentNode;

/// This part of a server's memory is never promised.
const KEPT_BACK_PERCENT: u64 = 15;

#[derive(Clone, Debug)]
struct Promise {
    server: ServerUuid,
    mib: u64,
    done: bool,
    at: Duration,
}

/// Promises of room in the store.
#[derive(Debug, Default)]
pub struct Capacity {
    /// Whether clients ask for nothing that may take more than there is.
    pub is_strict: bool,
    places: BTreeMap<VmUuid, Promise>,
    reservations: BTreeMap<VmUuid, Promise>,
    changed: bool,
}

/// Memory that can be promised, MiB.
#[must_use]
pub fn usable_mib(agent: &AgentNode) -> u64 {
    agent.memory_mib() * (100 - KEPT_BACK_PERCENT) / 100
}

/// Memory that the VMs of a host take, MiB.
#[must_use]
pub fn taken_mib(agent: &AgentNode) -> BTreeMap<VmUuid, u64> {
    let records = agent.records.records();
    let ram = |record: &muster_agent::vms::VmRecord| record.number("ram").unwrap_or(0);
    records.iter().map(|(vm, record)| (*vm, ram(record))).collect()
}

impl Capacity {
    pub(super) fn put(&mut self, kind: &str, vm: &str, value: &Value, now: Duration) {
        let (Ok(vm), Ok(server)) = (vm.parse(), text(value, "server_uuid").parse()) else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "MiB")]
        let mib = value["promise"]["max_physical_memory"].as_f64().map_or(0, |mib| mib as u64);
        let done = value["state"] == "done";
        let promise = Promise { server, mib, done, at: now };
        let all = if kind == "place" { &mut self.places } else { &mut self.reservations };
        all.insert(vm, promise);
        self.changed = true;
    }

    pub(super) fn deleted(&mut self, kind: &str, vm: &str) {
        let Ok(vm) = vm.parse::<VmUuid>() else { return };
        let all = if kind == "place" { &mut self.places } else { &mut self.reservations };
        all.remove(&vm);
    }

    /// Looks at all servers if a promise was made.
    pub(super) fn check(&mut self, agents: &[AgentNode], tasks: &Tasks) -> Verdict {
        if !std::mem::take(&mut self.changed) || !self.is_strict {
            return Ok(());
        }
        let newest = self.reservations.values().map(|promise| promise.at).max();
        for agent in agents {
            let mut taken = taken_mib(agent);
            let mut add = |vm: VmUuid, server: ServerUuid, mib: u64| {
                if server == agent.server {
                    taken.entry(vm).or_insert(mib);
                }
            };
            for task in tasks.open().iter().filter_map(|id| tasks.get(id)) {
                if let (Some(vm), Some(mib)) = (task.vm_uuid, task.makes_mib()) {
                    add(vm, task.server_uuid, mib);
                }
            }
            for (vm, promise) in self.places.iter().filter(|(_, promise)| !promise.done) {
                add(*vm, promise.server, promise.mib);
            }
            // Older ones may have ended, and their records be about to go.
            for (vm, promise) in self.reservations.iter().filter(|(_, p)| Some(p.at) == newest) {
                if !self.places.contains_key(vm) {
                    add(*vm, promise.server, promise.mib);
                }
            }
            let (sum, usable) = (taken.values().sum::<u64>(), usable_mib(agent));
            if sum > usable {
                let server = agent.server;
                let detail = format!("{server}: {sum} MiB of {usable} MiB: {taken:?}");
                return Err(Violation::new("room-is-promised-once", detail));
            }
        }
        Ok(())
    }
}
