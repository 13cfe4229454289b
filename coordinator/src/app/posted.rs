//! VMs as agents of other kinds POST them: whatever is odd about one, it is there and counts.
//!
//! What is missing stays empty, is not shown again, and makes the allocator leave its server out
//! (CNAPI's server validation), as it must: nobody knows how much room that VM takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::ids::VmUuid;
use muster_shared::lenient::if_fits;
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::alloc::num;

/// What an agent POSTs of its server; what is no object counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Posted {
    #[serde(deserialize_with = "if_fits")]
    pub(super) meminfo: Option<Object>,
    #[serde(deserialize_with = "if_fits")]
    pub(super) diskinfo: Option<Object>,
    /// By uuid; without them the old ones stay.
    #[serde(deserialize_with = "if_fits")]
    pub(super) vms: Option<Object>,
    /// What Muster's agents add of each VM.
    #[serde(deserialize_with = "if_fits")]
    pub(super) vm_index: Option<Object>,
    /// The agent's own remarks.
    pub(super) muster: Option<Value>,
}

impl Posted {
    /// The VMs that can be read.
    pub(super) fn reports(&self) -> Option<BTreeMap<VmUuid, Option<Arc<VmReport>>>> {
        let index = |uuid: &str| self.vm_index.as_ref()?.get(uuid);
        let report = |(uuid, one): (&String, &Value)| {
            let report = vm(uuid, one, index(uuid))?;
            Some((report.vm.uuid, Some(Arc::new(report))))
        };
        Some(self.vms.as_ref()?.iter().filter_map(report).collect())
    }
}

/// The VM that stands under a key; `None` if the key is no UUID or the value no object.
fn vm(key: &str, vm: &Value, index: Option<&Value>) -> Option<VmReport> {
    let members = vm.as_object()?;
    let uuid: VmUuid = key.parse().ok()?;
    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let vm = VmStatus {
        uuid,
        owner_uuid: text("owner_uuid"),
        brand: text("brand"),
        cpu_cap: members.get("cpu_cap").and_then(size),
        quota: members.get("quota").and_then(size),
        max_physical_memory: members.get("max_physical_memory").and_then(size).unwrap_or(0),
        state: text("state"),
        zone_state: text("zone_state"),
        last_modified: text("last_modified"),
    };
    Some(VmReport { vm, index: index.map(index_of).unwrap_or_default() })
}

/// A number or its text, rounded up: half a GiB takes room, too.
fn size(value: &Value) -> Option<u64> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        value => value.as_f64()?,
    };
    u64::try_from(num::trunc(number.ceil())).ok()
}

/// The members that can be read.
fn index_of(index: &Value) -> VmIndex {
    let Some(members) = index.as_object() else { return VmIndex::default() };
    let fits = |name: &str, value: &Value| {
        serde_json::from_value::<VmIndex>(json!({ name: value })).is_ok()
    };
    let kept: Object = members
        .iter()
        .filter(|(name, value)| fits(name, value))
        .map(|(name, value)| (name, value.clone()))
        .collect();
    kept.read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use muster_shared::api::vm::Vm;

    use super::*;

    const KEY: &str = "01234567-89ab-4cde-8f01-23456789abcd";

    fn shown(report: &VmReport) -> Value {
        json!(Vm::from(&report.vm))
    }

    #[test]
    fn whatever_is_odd_about_a_vm_it_is_there() {
        let full = json!({
            "uuid": KEY, "owner_uuid": "o", "brand": "kvm", "max_physical_memory": 128,
            "quota": 25, "cpu_cap": 100, "state": "running", "zone_state": "running",
            "last_modified": "2026-01-01T00:00:00.000Z",
        });
        assert_eq!(shown(&vm(KEY, &full, None).unwrap()), full);
        for (posted, index, expected) in [
            (json!({}), json!({}), json!({ "uuid": KEY })),
            (json!({ "owner_uuid": null, "state": 7 }), json!(3), json!({ "uuid": KEY })),
            (
                json!({ "uuid": "x", "max_physical_memory": "128", "quota": "0.5" }),
                json!({ "alias": 5, "unheard_of": 1 }),
                json!({ "uuid": KEY, "max_physical_memory": 128, "quota": 1 }),
            ),
        ] {
            let report = vm(KEY, &posted, Some(&index)).unwrap();
            assert_eq!(shown(&report), expected);
            assert_eq!(report.index, VmIndex::default());
        }
        let index = json!({ "alias": "web", "tags": 7, "vcpus": 2 });
        let report = vm(KEY, &full, Some(&index)).unwrap();
        assert_eq!((report.index.alias.as_deref(), report.index.vcpus), (Some("web"), Some(2)));
        assert_eq!(vm("web", &full, None), None);
        assert_eq!(vm(KEY, &json!("web"), None), None);
    }
}
