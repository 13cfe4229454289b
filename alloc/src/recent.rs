//! What earlier allocations chose: the memory of `soft-filter-recent-servers` and
//! `calculate-recent-vms`. The caller keeps it and says how long ago each choice was.

use muster_shared::ids::ServerUuid;
use serde_json::{Value, json};

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

/// A VM that was just placed, to be remembered as a [`RecentVm`]. Thousands are: it is kept small.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedVm {
    pub(crate) uuid: Box<str>,
    pub(crate) owner_uuid: Box<str>,
    /// Where.
    pub server_uuid: ServerUuid,
    pub(crate) is_zvol: bool,
    /// MiB.
    pub(crate) max_physical_memory: f64,
    /// Percent of one core.
    pub(crate) cpu_cap: Option<f64>,
    /// GiB.
    pub(crate) quota: f64,
    /// Bytes.
    pub(crate) image_size: f64,
}

impl PlacedVm {
    /// As [`Recent::from_json`] reads it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "uuid": self.uuid, "owner_uuid": self.owner_uuid, "server_uuid": self.server_uuid,
            "brand": if self.is_zvol { "kvm" } else { "smartos" }, "state": "running",
            "max_physical_memory": self.max_physical_memory, "cpu_cap": self.cpu_cap,
            "quota": self.quota, "image_size": self.image_size,
        })
    }
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
