//! What earlier allocations chose: the memory of `soft-filter-recent-servers` and
//! `calculate-recent-vms`. The caller keeps it and says how long ago each choice was.

use serde_json::Value;

use crate::num::{num, some_truthy};
use crate::server_name::ServerName;
use crate::vm::Vm;

/// A server chosen not long ago.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentServer {
    /// Which.
    pub server_uuid: ServerName,
    /// How long ago.
    pub age_ms: f64,
}

/// A VM placed not long ago.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentVm {
    /// How long ago.
    pub age_ms: f64,
    /// Where.
    pub server_uuid: ServerName,
    pub(crate) vm: Vm,
    /// Bytes.
    pub(crate) image_size: f64,
}

/// The memory as of one request.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// Servers, in the order of choice.
    pub servers: Vec<RecentServer>,
    /// VMs, in the order of choice.
    pub vms: Vec<RecentVm>,
}

impl Recent {
    /// Reads `{"recent_servers": [{server_uuid, age_ms}], "recent_vms": [{age_ms, vm}]}`; what is
    /// malformed is left out.
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        let list = |name: &str| value.get(name).and_then(Value::as_array).into_iter().flatten();
        let text =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let age = |value: &Value| value.get("age_ms").and_then(Value::as_f64);
        let name = |entry: &Value| text(entry, "server_uuid").map(|name| ServerName::of(&name));
        let server =
            |entry: &Value| Some(RecentServer { server_uuid: name(entry)?, age_ms: age(entry)? });
        let vm = |entry: &Value| {
            let vm = entry.get("vm")?;
            Some(RecentVm {
                age_ms: age(entry)?,
                server_uuid: name(vm).or_else(|| name(entry))?,
                image_size: some_truthy(vm.get("image_size")).map_or(0.0, num),
                vm: Vm::from_json(&text(vm, "uuid")?, vm),
            })
        };
        Self {
            servers: list("recent_servers").filter_map(server).collect(),
            vms: list("recent_vms").filter_map(vm).collect(),
        }
    }
}
