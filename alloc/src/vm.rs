//! A VM as the allocator sees it.

use muster_shared::vm::full_cpu_cap;
use muster_shared::wire::status::VmReport;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::num::{float, num, some_truthy, truthy};
use crate::schema;

/// Hypervisor brands, as far as the arithmetic tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Brand {
    Kvm,
    Bhyve,
    #[default]
    Other,
}

impl Brand {
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "kvm" => Self::Kvm,
            "bhyve" => Self::Bhyve,
            _ => Self::Other,
        }
    }

    pub(crate) fn is_hvm(self) -> bool {
        self != Self::Other
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Bhyve => "bhyve",
            Self::Other => "other",
        }
    }
}

/// States, as far as they matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// Takes room: running, stopped, …
    #[default]
    Up,
    /// Not counted by `load-server-vms`, but found by affinity.
    Provisioning,
    /// Neither.
    Gone,
}

impl State {
    fn of(text: &str) -> Self {
        match text {
            "destroyed" | "failed" => Self::Gone,
            "provisioning" => Self::Provisioning,
            _ => Self::Up,
        }
    }
}

/// One VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Vm {
    pub(crate) uuid: Uuid,
    pub(crate) owner: Uuid,
    pub(crate) brand: Brand,
    pub(crate) state: State,
    /// MiB; NaN if nobody says how much, so that no server beside it has room.
    #[serde(with = "unknown_as_null")]
    pub(crate) max_physical_memory: f64,
    /// Percent of one core; never `Some(0.0)`.
    pub(crate) cpu_cap: Option<f64>,
    /// GiB.
    pub(crate) quota: f64,
    pub(crate) alias: Option<Box<str>>,
    pub(crate) docker_id: Option<Box<str>>,
    pub(crate) tags: Option<Box<Map<String, Value>>>,
    /// Why the record is no valid one.
    pub(crate) fault: Option<Box<str>>,
}

impl Vm {
    /// Whether `load-server-vms` counts it.
    pub(crate) fn is_loaded(&self) -> bool {
        self.state == State::Up
    }

    /// Reads a VM of a server's `vms`. What is missing is remembered as a fault; beside memory, it
    /// counts as nothing.
    pub(crate) fn from_json(key: &str, value: &Value) -> Self {
        let empty = Map::new();
        let map = value.as_object().unwrap_or(&empty);
        let text = |name: &str| map.get(name).and_then(Value::as_str);
        let number = |name: &str| some_truthy(map.get(name)).map(num).filter(|x| x.is_finite());
        // The id of what is no docker container names nobody.
        let docker = truthy(map.get("docker"));
        let metadata = map.get("internal_metadata").filter(|_| docker);
        let docker_id = metadata
            .and_then(|metadata| metadata.get("docker:id"))
            .and_then(Value::as_str)
            .or(text("docker_id"));
        Self {
            uuid: Uuid::parse_str(text("uuid").unwrap_or(key)).unwrap_or_default(),
            owner: text("owner_uuid").and_then(|u| Uuid::parse_str(u).ok()).unwrap_or_default(),
            brand: Brand::of(text("brand").unwrap_or_default()),
            state: State::of(text("state").unwrap_or_default()),
            max_physical_memory: memory(map.get("max_physical_memory")),
            cpu_cap: number("cpu_cap"),
            quota: number("quota").unwrap_or(0.0),
            alias: text("alias").map(Into::into),
            docker_id: docker_id.map(Into::into),
            tags: map.get("tags").and_then(Value::as_object).cloned().map(Box::new),
            fault: schema::check_vm(key, map).err().map(Into::into),
        }
    }

    /// Takes a VM over from an agent's report.
    pub(crate) fn from_report(report: &VmReport) -> Self {
        let (vm, index) = (&report.vm, &report.index);
        let tags: Map<_, _> = index.tags.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let owner = Uuid::parse_str(&vm.owner_uuid);
        let odd = owner.is_err() || vm.max_physical_memory == 0 || vm.state.is_empty();
        let fault = if odd { fault_of(report) } else { None };
        Self {
            uuid: vm.uuid.0,
            owner: owner.unwrap_or_default(),
            brand: Brand::of(&vm.brand),
            state: State::of(&vm.state),
            max_physical_memory: float(vm.max_physical_memory),
            cpu_cap: vm.cpu_cap.filter(|cap| *cap != 0).or(all_vcpus(index.vcpus)).map(float),
            quota: vm.quota.map_or(0.0, float),
            alias: index.alias.as_deref().map(Into::into),
            docker_id: index.docker_id.as_deref().map(Into::into),
            tags: (!tags.is_empty()).then(|| Box::new(tags)),
            fault,
        }
    }
}

/// What a VM without a cap can take: a guest has no more than its virtual CPUs. One that does not say
/// how many it has counts as the reference counts it, and takes all.
fn all_vcpus(count: Option<u64>) -> Option<u64> {
    count.filter(|count| *count > 0).map(full_cpu_cap)
}

/// A size of memory; NaN if none is said.
pub(crate) fn memory(value: Option<&Value>) -> f64 {
    value.filter(|value| !value.is_null()).map_or(f64::NAN, num)
}

/// JSON has no NaN.
pub(crate) mod unknown_as_null {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        (!x.is_nan()).then_some(*x).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// Why a reported VM is no valid one. What a report leaves empty was not there.
fn fault_of(report: &VmReport) -> Option<Box<str>> {
    let Ok(Value::Object(mut members)) = serde_json::to_value(&report.vm) else { return None };
    members.retain(|_, value| *value != "");
    schema::check_vm(&report.vm.uuid.to_string(), &members).err().map(Into::into)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vm_without_a_cap_takes_its_virtual_cpus_and_not_the_whole_server() {
        let cap = |cap: Value, vcpus: Value| {
            let report = json!({
                "uuid": Uuid::nil(), "owner_uuid": Uuid::nil(), "brand": "kvm", "state": "running",
                "max_physical_memory": 1280, "zone_state": "running", "last_modified": "",
                "cpu_cap": cap, "index": { "vcpus": vcpus },
            });
            Vm::from_report(&serde_json::from_value(report).unwrap()).cpu_cap
        };
        assert_eq!(cap(json!(null), json!(2)), Some(200.0));
        assert_eq!(cap(json!(0), json!(2)), Some(200.0));
        assert_eq!(cap(json!(50), json!(2)), Some(50.0));
        // The reference's agents do not tell.
        assert_eq!(cap(json!(null), json!(null)), None);
        assert_eq!(cap(json!(0), json!(0)), None);
    }
}
