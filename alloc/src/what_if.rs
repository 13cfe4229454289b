//! "What if": a fleet or policy that differs from the real one in named ways.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::config::{Config, ConfigError};
use crate::fleet::Fleet;
use crate::request::{FieldError, known_members};
use crate::validate::is_uuid;
use crate::vm::Vm;

/// Changes to imagine.
#[derive(Clone, Debug, Default)]
pub struct WhatIf {
    servers: Vec<Map<String, Value>>,
    removed_servers: Vec<String>,
    vms: Vec<(String, Vm)>,
    removed_vms: Vec<Uuid>,
    expression: Option<Value>,
    changes: Map<String, Value>,
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
    FieldError::new(&format!("what_if.{name}"), message)
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
            let members = item.as_object().filter(|members| uuid(members.get("uuid")).is_some());
            members.cloned().ok_or_else(|| bad("add_servers", "a server needs a uuid"))
        };
        let vm = |item: &Value| {
            let place = uuid(item.get("server_uuid")).zip(uuid(item.get("uuid")));
            let (server, vm) =
                place.ok_or_else(|| bad("add_vms", "a VM needs a uuid and a server_uuid"))?;
            Ok((server.to_owned(), Vm::from_json(vm, item)))
        };
        let plain = |name: &'static str| {
            move |item: &Value| {
                let text = uuid(Some(item)).ok_or_else(|| bad(name, "not a list of UUIDs"))?;
                Ok(text.to_owned())
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
            servers: list(body, "add_servers")?.iter().map(server).collect::<Result<_, _>>()?,
            removed_servers: removed_servers.collect::<Result<_, _>>()?,
            vms: list(body, "add_vms")?.iter().map(vm).collect::<Result<_, FieldError>>()?,
            removed_vms: removed_vms.iter().filter_map(|vm| Uuid::parse_str(vm).ok()).collect(),
            expression: body.get("allocationDescription").cloned(),
            changes,
        })
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
            fleet.remove_server(server);
        }
        for vm in &self.removed_vms {
            fleet.remove_vm(*vm);
        }
        for server in &self.servers {
            fleet.overlay_server(server).expect("checked: it has a uuid");
        }
        for (server, vm) in &self.vms {
            fleet.add_vm(server, vm.clone());
        }
    }

    /// The servers that it adds or changes, by uuid, as given.
    #[must_use]
    pub fn servers(&self) -> BTreeMap<&str, &Map<String, Value>> {
        self.servers
            .iter()
            .filter_map(|server| Some((server.get("uuid")?.as_str()?, server)))
            .collect()
    }
}
