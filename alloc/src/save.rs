//! A snapshot as a document: what algorithms read of every server, so that a decision can be
//! replayed when the fleet has long changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::config::Config;
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::promises::Promised;
use crate::server::Server;
use crate::server_name::ServerName;
use crate::snapshot::Snapshot;
use crate::vm::Vm;

/// A saved snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saved {
    /// In the order in which servers came into the fleet, because shuffles start from it.
    servers: Vec<SavedServer>,
    /// Where VMs are that several servers show.
    homes: Vec<(Uuid, ServerName)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedServer {
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

impl Snapshot {
    /// What algorithms read of a range of the servers (`from` the n-th, at most `count`), as long
    /// as there are any. In parts, because a large fleet takes long.
    #[must_use]
    pub fn save(&self, config: &Config, from: usize, count: usize) -> Saved {
        let members: BTreeSet<&str> = config.settings.predicate_members().collect();
        let mut homes = Vec::new();
        let mut servers = Vec::new();
        for slot in self.slots().skip(from).take(count) {
            let server = self.server(slot);
            for vm in server.vms.iter() {
                if let Some(home) = self.vms.get(vm.uuid).filter(|home| **home != slot) {
                    homes.push((vm.uuid, self.server(*home).name.clone()));
                }
            }
            servers.push(SavedServer {
                record: record(&server.record, &members),
                status: server.status.as_deref().map(str::to_owned),
                figures: server.figures.clone(),
                vms: server.vms.to_vec(),
                promised: Arc::clone(&server.promised),
            });
        }
        Saved { servers, homes }
    }
}

impl Saved {
    /// How many servers it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.servers.len()
    }

    /// Whether it holds no server.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// The snapshot that was saved in these parts, ready for requests under the policy.
    #[must_use]
    pub fn restore(parts: impl IntoIterator<Item = Self>, config: &Config) -> Arc<Snapshot> {
        let mut fleet = Fleet::new(config);
        let mut homes = Vec::new();
        for part in parts {
            homes.extend(part.homes);
            for saved in part.servers {
                let uuid = saved.record.get("uuid").and_then(Value::as_str).unwrap_or_default();
                let mut server = Server::new(ServerName::of(uuid), Arc::new(saved.record));
                server.status = saved.status.map(Into::into);
                server.figures = saved.figures;
                server.vms = Arc::new(saved.vms);
                server.promised = saved.promised;
                fleet.insert(server);
            }
        }
        for (vm, server) in homes {
            fleet.set_home(vm, &server);
        }
        fleet.snapshot()
    }
}

/// Small members, traits and ratios whole, and of sysinfo what is read.
fn record(record: &Map<String, Value>, predicates: &BTreeSet<&str>) -> Map<String, Value> {
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
