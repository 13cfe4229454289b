//! A snapshot as a document: what algorithms read of every server, so that a decision can be
//! replayed when the fleet has long changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::config::Config;
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::promises::Promised;
use crate::server::{MUSTER, OCI_RUNTIME, Server};
use crate::server_name::ServerName;
use crate::slot_set::CHUNK;
use crate::snapshot::{Chunk, Snapshot};
use crate::vm::Vm;

/// A server as it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedServer {
    /// Its place: the order in which servers came into the fleet, from which shuffles start.
    place: u32,
    record: Map<String, Value>,
    status: Option<String>,
    figures: Figures,
    vms: Vec<Arc<Vm>>,
    promised: Arc<Promised>,
}

/// Members of sysinfo that algorithms read.
const SYSINFO: [&str; 15] = [
    "Live Image",
    "SDC Version",
    "System Type",
    "Zpool Encrypted",
    "HVM API",
    "Bhyve Capable",
    "Bhyve Max Vcpus",
    "CPU Total Cores",
    "CPU Online Count",
    "CPU Socket Count",
    "CPU Core Count",
    "CPU Count",
    "Admin NIC Tag",
    "Admin IP",
    "Virtual Network Interfaces",
];

/// What differs between two snapshots, by the servers' places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Servers that are new or not the same.
    pub changed: Vec<u32>,
    /// Places that are empty now.
    pub gone: Vec<u32>,
}

impl Snapshot {
    /// What is not as it was in an earlier snapshot; without one, all there is. Costs little where
    /// both share their memory.
    #[must_use]
    pub fn changes_since(&self, earlier: Option<&Self>) -> Changes {
        let none = Vec::new();
        let old = earlier.map_or(&none, |earlier| &earlier.chunks);
        let mut changes = Changes::default();
        for place in 0..self.chunks.len().max(old.len()) {
            let (now, before) = (self.chunks.get(place), old.get(place));
            if let (Some(now), Some(before)) = (now, before)
                && Arc::ptr_eq(now, before)
            {
                continue;
            }
            for i in 0..CHUNK {
                let server = |chunk: Option<&Arc<Chunk>>| chunk.and_then(|c| c.servers[i].clone());
                let slot = u32::try_from(place * CHUNK + i).unwrap_or(u32::MAX);
                match (server(now), server(before)) {
                    (Some(now), Some(before)) if Arc::ptr_eq(&now, &before) => {}
                    (Some(_), _) => changes.changed.push(slot),
                    (None, Some(_)) => changes.gone.push(slot),
                    (None, None) => {}
                }
            }
        }
        changes
    }

    /// What algorithms read of the servers at some places, under policies that look at `members`
    /// of records beside what algorithms do.
    #[must_use]
    pub fn save(&self, places: &[u32], members: &BTreeSet<String>) -> Vec<SavedServer> {
        let save = |place: &u32| {
            let server = self.server(*place);
            SavedServer {
                place: *place,
                record: record(&server.record, members),
                status: server.status.as_deref().map(str::to_owned),
                figures: server.figures.clone(),
                vms: server.vms.to_vec(),
                promised: Arc::clone(&server.promised),
            }
        };
        places.iter().map(save).collect()
    }

    /// The server that counts as home of each VM that several show.
    #[must_use]
    pub fn homes(&self) -> Vec<(Uuid, ServerName)> {
        let home = |vm: &Uuid| Some((*vm, self.server(*self.vms.get(*vm)?).name.clone()));
        self.shown_twice.keys().filter_map(home).collect()
    }
}

/// A snapshot that is put together from what was saved.
#[derive(Debug, Default)]
pub struct Restored(BTreeMap<u32, SavedServer>);

impl Restored {
    /// Lays what was saved later over what was saved before.
    pub fn lay(&mut self, servers: Vec<SavedServer>) {
        self.0.extend(servers.into_iter().map(|server| (server.place, server)));
    }

    /// The servers at these places were gone.
    pub fn remove(&mut self, places: &[u32]) {
        for place in places {
            self.0.remove(place);
        }
    }

    /// The snapshot, ready for requests under the policy.
    #[must_use]
    pub fn snapshot(self, homes: &[(Uuid, ServerName)], config: &Config) -> Arc<Snapshot> {
        let mut fleet = Fleet::new(config);
        for saved in self.0.into_values() {
            let uuid = saved.record.get("uuid").and_then(Value::as_str).unwrap_or_default();
            let mut server = Server::new(ServerName::of(uuid), Arc::new(saved.record));
            server.status = saved.status.map(Into::into);
            server.figures = saved.figures;
            server.vms = Arc::new(saved.vms);
            server.promised = saved.promised;
            fleet.insert(server);
        }
        for (vm, server) in homes {
            fleet.set_home(*vm, server);
        }
        fleet.snapshot()
    }
}

/// Small members, traits and ratios whole, and of sysinfo what is read.
fn record(record: &Map<String, Value>, predicates: &BTreeSet<String>) -> Map<String, Value> {
    let keep = |name: &str, value: &Value| {
        predicates.contains(name)
            || matches!(name, "traits" | "overprovision_ratios")
            || !(value.is_object() || value.is_array())
    };
    let mut kept: Map<String, Value> = record
        .iter()
        .filter(|(name, value)| keep(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    match record.get("sysinfo") {
        Some(Value::Object(sysinfo)) if !predicates.contains("sysinfo") => {
            let mut small: Map<String, Value> = SYSINFO
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), sysinfo.get(*name)?.clone())))
                .collect();
            if let Some(nics) = sysinfo.get("Network Interfaces") {
                small.insert("Network Interfaces".to_owned(), interfaces(nics));
            }
            if let Some(runtime) = sysinfo.get(MUSTER).and_then(|block| block.get(OCI_RUNTIME)) {
                small.insert(MUSTER.to_owned(), json!({ OCI_RUNTIME: runtime }));
            }
            kept.insert("sysinfo".to_owned(), Value::Object(small));
        }
        Some(other) => drop(kept.insert("sysinfo".to_owned(), other.clone())),
        None => {}
    }
    kept
}

fn interfaces(value: &Value) -> Value {
    let Value::Object(nics) = value else { return value.clone() };
    let nic = |(name, nic): (&String, &Value)| {
        let Value::Object(members) = nic else { return (name.clone(), nic.clone()) };
        let read = |name: &str| matches!(name, "Link Status" | "NIC Names");
        let members = members.iter().filter(|(name, _)| read(name));
        let members = members.map(|(name, value)| (name.clone(), value.clone())).collect();
        (name.clone(), Value::Object(members))
    };
    Value::Object(nics.iter().map(nic).collect())
}
