//! "What if": a fleet or policy that differs from the real one in named ways.

use muster_shared::ids::ServerUuid;
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::change::Change;
use crate::config::{Config, ConfigError};
use crate::fleet::Fleet;
use crate::request::{FieldError, known_members};
use crate::server_name::ServerName;
use crate::validate::is_uuid;
use crate::vm::Vm;

/// Changes to imagine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WhatIf {
    #[serde(rename = "add_servers", skip_serializing_if = "Vec::is_empty")]
    servers: Vec<Overlay>,
    #[serde(rename = "remove_servers", skip_serializing_if = "Vec::is_empty")]
    removed_servers: Vec<ServerUuid>,
    #[serde(rename = "add_vms", skip_serializing_if = "Vec::is_empty")]
    vms: Vec<AddedVm>,
    #[serde(rename = "remove_vms", skip_serializing_if = "Vec::is_empty")]
    removed_vms: Vec<Uuid>,
    #[serde(rename = "allocationDescription", skip_serializing_if = "Option::is_none")]
    expression: Option<Value>,
    #[serde(rename = "changeDefaults", skip_serializing_if = "Map::is_empty")]
    changes: Map<String, Value>,
}

/// What is laid over a server's record; all of it, if there is no such server.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
struct Overlay {
    #[serde(skip)]
    server: ServerName,
    /// As given: the uuid is among them.
    members: Map<String, Value>,
}

/// A VM to add.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
struct AddedVm {
    #[serde(skip)]
    server: ServerName,
    #[serde(skip)]
    vm: Vm,
    /// As given: uuid and server_uuid are among them.
    members: Value,
}

/// What there is to imagine.
const MEMBERS: [&str; 6] = [
    "add_servers",
    "remove_servers",
    "add_vms",
    "remove_vms",
    "allocationDescription",
    "changeDefaults",
];
/// Most changes in one list.
const MAX_ITEMS: usize = 10_000;

fn list<'a>(body: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], FieldError> {
    match body.get(name) {
        None => Ok(&[]),
        Some(Value::Array(items)) if items.len() <= MAX_ITEMS => Ok(items),
        Some(Value::Array(_)) => Err(bad(name, "value has too many items")),
        Some(_) => Err(bad(name, "value was not an array")),
    }
}

fn bad(name: &str, message: &str) -> FieldError {
    FieldError::new(format!("what_if.{name}"), message)
}

fn uuid(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str).filter(|text| is_uuid(text))
}

impl WhatIf {
    /// Reads `{add_servers?, remove_servers?, add_vms?, remove_vms?, allocationDescription?,
    /// changeDefaults?}`. A server to add that exists is changed in the members given; a VM to add
    /// names its `server_uuid` beside a VM's members.
    ///
    /// # Errors
    /// The first member that can't be used.
    pub fn parse(value: &Value) -> Result<Self, FieldError> {
        let not_object = || FieldError::new("what_if", "value is not an object");
        let body = value.as_object().ok_or_else(not_object)?;
        known_members("what_if", body, &MEMBERS)?;
        let server = |item: &Value| {
            let server = item.as_object().and_then(|m| Some((uuid(m.get("uuid"))?, m)));
            let (server, members) =
                server.ok_or_else(|| bad("add_servers", "a server needs a uuid"))?;
            Ok(Overlay { server: ServerName::of(server), members: members.clone() })
        };
        let vm = |item: &Value| {
            let place = uuid(item.get("server_uuid")).zip(uuid(item.get("uuid")));
            let (server, vm) =
                place.ok_or_else(|| bad("add_vms", "a VM needs a uuid and a server_uuid"))?;
            let (server, vm) = (ServerName::of(server), Vm::from_json(vm, item));
            Ok(AddedVm { server, vm, members: item.clone() })
        };
        let plain = |name: &'static str| {
            move |item: &Value| {
                let uuid = uuid(Some(item)).and_then(|text| Uuid::parse_str(text).ok());
                uuid.ok_or_else(|| bad(name, "not a list of UUIDs"))
            }
        };
        let removed_vms = list(body, "remove_vms")?.iter().map(plain("remove_vms"));
        let removed_vms = removed_vms.collect::<Result<Vec<_>, _>>()?;
        let removed_servers = list(body, "remove_servers")?.iter().map(plain("remove_servers"));
        let changes = match body.get("changeDefaults") {
            None => Map::new(),
            Some(Value::Object(changes)) => changes.clone(),
            Some(_) => return Err(bad("changeDefaults", "value is not an object")),
        };
        Ok(Self {
            servers: list(body, "add_servers")?
                .iter()
                .map(server)
                .collect::<Result<_, FieldError>>()?,
            removed_servers: removed_servers
                .map(|uuid| uuid.map(ServerUuid))
                .collect::<Result<_, _>>()?,
            vms: list(body, "add_vms")?.iter().map(vm).collect::<Result<_, FieldError>>()?,
            removed_vms,
            expression: body.get("allocationDescription").cloned(),
            changes,
        })
    }

    /// This and then another.
    pub(crate) fn and(&self, mut later: Self) -> Self {
        let mut both = self.clone();
        // What was to be added and goes again is not added.
        both.vms.retain(|added| !later.removed_vms.contains(&added.vm.uuid));
        both.servers.append(&mut later.servers);
        both.removed_servers.append(&mut later.removed_servers);
        both.removed_vms.append(&mut later.removed_vms);
        both.vms.append(&mut later.vms);
        both.expression = later.expression.or(both.expression);
        both.changes.extend(later.changes);
        both
    }

    /// The changes of fleet and policy among some; `None` if one can't be made.
    pub(crate) fn of(changes: &[Change]) -> Option<Self> {
        let mut all = Self::default();
        for change in changes {
            match change {
                Change::Server { server, .. } | Change::Grow { server, .. } => {
                    let (server, members) = (server.name.clone(), change.members()?);
                    match all.servers.iter_mut().find(|known| known.server == server) {
                        Some(known) => merge(&mut known.members, members),
                        None => all.servers.push(Overlay { server, members }),
                    }
                }
                Change::RemoveVm { vm, .. } => all.removed_vms.push(*vm),
                Change::Policy { key, value } => {
                    all.changes.insert((*key).to_owned(), value.clone());
                }
                Change::Patch { .. } | Change::Less { .. } => {}
            }
        }
        Some(all)
    }

    /// Whether all stays as it is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.leaves_fleet() && self.expression.is_none() && self.changes.is_empty()
    }

    /// Whether the fleet stays as it is.
    pub(crate) fn leaves_fleet(&self) -> bool {
        self.servers.is_empty()
            && self.removed_servers.is_empty()
            && self.vms.is_empty()
            && self.removed_vms.is_empty()
    }

    /// The policy to imagine; `None` if it is the real one.
    ///
    /// # Errors
    /// It can't be used.
    pub fn policy(&self, config: &Config) -> Result<Option<Config>, ConfigError> {
        if self.expression.is_none() && self.changes.is_empty() {
            return Ok(None);
        }
        config.changed(self.expression.as_ref(), &self.changes).map(Some)
    }

    /// Changes a copy of the real fleet.
    pub fn apply(&self, fleet: &mut Fleet) {
        for server in &self.removed_servers {
            fleet.remove_server(&(*server).into());
        }
        for vm in &self.removed_vms {
            fleet.remove_vm(*vm);
        }
        for server in &self.servers {
            fleet.overlay_server(&server.server, &server.members);
        }
        for added in &self.vms {
            fleet.add_vm(&added.server, added.vm.clone());
        }
    }

    /// What it says of a server that it adds or changes, as given.
    #[must_use]
    pub fn server(&self, server: &ServerName) -> Option<&Map<String, Value>> {
        // The last one counts.
        let overlay = self.servers.iter().rev().find(|overlay| overlay.server == *server);
        overlay.map(|overlay| &overlay.members)
    }
}

/// Puts the second change of a server to the first; members of `sysinfo` add up.
fn merge(server: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (server.get_mut(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) if name == "sysinfo" => merge(old, new),
            (Some(Value::Object(old)), Value::Object(new)) if name == "Network Interfaces" => {
                old.extend(new);
            }
            (_, value) => drop(server.insert(name, value)),
        }
    }
}
