//! What algorithms look at when they say what could help a server that they refused.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::change::{Change, Resource};
use crate::reason::{Reason, Reasons};
use crate::request::Request;
use crate::server::Server;
use crate::settings::Settings;
use crate::vm::Vm;

/// A server that was looked at by itself and refused.
#[derive(Debug)]
pub(crate) struct Refused<'a> {
    pub(crate) server: Arc<Server>,
    /// Its slot.
    pub(crate) slot: u32,
    pub(crate) request: &'a Request,
    pub(crate) settings: &'a Settings,
    /// The reasons of the step that refused it.
    pub(crate) reasons: &'a Reasons,
}

impl Refused<'_> {
    /// The server with another member in its record.
    pub(crate) fn set(&self, name: &str, value: Value, text: &str) -> Change {
        self.with_members([(name.to_owned(), value)].into_iter().collect(), text)
    }

    /// The server with other members in its record.
    pub(crate) fn with_members(&self, members: Map<String, Value>, text: &str) -> Change {
        let text = format!("{text} on server {}", self.server.name);
        Change::Server { server: Arc::clone(&self.server), members, text }
    }

    /// The server with another member in its `sysinfo`.
    pub(crate) fn set_sysinfo(&self, name: &str, value: Value, text: &str) -> Change {
        let members: Map<String, Value> = [(name.to_owned(), value)].into_iter().collect();
        self.set("sysinfo", Value::Object(members), text)
    }

    /// The server with more of a resource: how much has to be tried.
    pub(crate) fn more(&self, what: Resource) -> Change {
        Change::Grow { server: Arc::clone(&self.server), what, amount: 1 }
    }

    /// The server without one of its VMs, promised ones included: the first that is chosen.
    pub(crate) fn without(&self, chosen: impl Fn(&Vm) -> bool) -> Option<Change> {
        let vm = self.server.counted().find(|vm| chosen(vm))?;
        let owned = vm.owner == self.request.vm.owner;
        let of = if owned { " of this owner" } else { "" };
        let text = format!("one VM less{of} ({}) on server {}", vm.uuid, self.server.name);
        Some(Change::RemoveVm { vm: vm.uuid, text })
    }

    /// The text that the step gave, if it is one of its own.
    pub(crate) fn reason(&self) -> Option<&str> {
        let Reasons::Each { each, .. } = self.reasons else { return None };
        match each.iter().find(|(slot, _)| *slot == self.slot) {
            Some((_, Reason::Owned(text))) => Some(text),
            _ => None,
        }
    }
}
