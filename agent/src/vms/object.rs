//! A VM as others see it: the full object of `machine_load`, and the line of the status report.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::vm::NOBODY;
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use serde_json::{Value, json};

use super::{Entry, Node, SnapshotRecord, VmRecord, at_start};
use crate::drivers::compute::{Observed, RunningGuest};

/// Addresses in a report; who wants all of them loads the VM.
const MAX_IPS: usize = 16;

/// The VM object.
#[must_use]
pub fn of(entry: &Entry, node: &Node) -> Value {
    let record = &entry.record;
    let state = entry.state();
    let mut vm = record.properties.clone();
    let mut set = |name: &str, value: Value| drop(vm.insert(name.to_owned(), value));
    let time = |ms: u64| Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok().map(iso);
    set("uuid", json!(record.uuid));
    set("v", json!(1));
    set("hvm", json!(!record.is_container()));
    set("type", json!(kind(record)));
    set("state", json!(state.state));
    set("zone_state", json!(state.zone_state));
    set("last_modified", json!(last_modified(entry)));
    set("zonepath", json!(format!("/zones/{}", record.uuid)));
    match &entry.observed {
        Observed::Running(live) => {
            set("pid", json!(live.pid));
            set("reboots", json!(live.reboots));
            if let Some(booted) = time(live.booted_at_ms) {
                set("boot_timestamp", json!(booted));
            }
        }
        Observed::Stopped(ended) => {
            if let Some(status) = ended.exit_status {
                set("exit_status", json!(status));
            }
            if let Some(exited) = ended.exited_at_ms.and_then(time) {
                set("exit_timestamp", json!(exited));
            }
        }
    }
    let running_with = running_with(entry);
    if !running_with.is_empty() {
        set("running_with", json!(running_with));
    }
    if let Some(guest) = &entry.guest {
        set("guest", json!(**guest));
    }
    if record.restarts.count > 0 {
        set("restarts", json!(record.restarts.count));
    }
    if let Some(machine) = &record.machine_type {
        set("machine_type", json!(machine));
    }
    if let Some(reason) = reason(entry) {
        set("state_reason", json!(reason));
    }
    let snapshots = record.snapshots.iter().rev().filter(|snapshot| snapshot.complete);
    // Inside a disk they have no size of their own.
    let shown =
        |s: &SnapshotRecord| json!({ "name": s.name, "size": 0, "created_at": s.created_at });
    set("snapshots", snapshots.map(shown).collect());
    if let (Some(until), "stopping") = (&record.stopping_until, state.state) {
        set("transition_to", json!("stopped"));
        if let Ok(until) = until.parse::<Timestamp>() {
            set("transition_expire", json!(until.as_millisecond()));
        }
    }
    if let Some(server) = node.server_uuid {
        set("server_uuid", json!(server));
    }
    if let Some(name) = &node.datacenter_name {
        set("datacenter_name", json!(name));
    }
    for absent_when_false in ["do_not_inventory", "firewall_enabled", "indestructible_zoneroot"] {
        if !record.flag(absent_when_false) {
            vm.shift_remove(absent_when_false);
        }
    }
    Value::Object(vm)
}

/// The VM's line of the status report.
#[must_use]
pub fn report(entry: &Entry) -> VmReport {
    let record = &entry.record;
    let state = entry.state();
    let text = |name: &str| record.text(name).map(str::to_owned);
    let vm = VmStatus {
        uuid: record.uuid,
        owner_uuid: text("owner_uuid").unwrap_or_else(|| NOBODY.to_owned()),
        brand: text("brand").unwrap_or_default(),
        cpu_cap: record.number("cpu_cap").filter(|cap| *cap > 0),
        quota: record.number("quota"),
        max_physical_memory: record.number("max_physical_memory").unwrap_or(0),
        state: state.state.to_owned(),
        zone_state: state.zone_state.to_owned(),
        last_modified: last_modified(entry),
    };
    let tags = record.properties.get("tags").and_then(Value::as_object);
    let docker_id = record.internal_metadata("docker:id").and_then(Value::as_str);
    let index = VmIndex {
        alias: text("alias"),
        tags: tags.into_iter().flatten().map(|(key, tag)| (key.clone(), tag.clone())).collect(),
        vcpus: record.number("vcpus"),
        ram: record.number("ram"),
        disk_mib: disks_mib(record),
        created_at: text("create_timestamp"),
        docker_id: docker_id.map(str::to_owned),
        flexible_disk_size: record.number("flexible_disk_size"),
        image_uuid: boot_image(record),
        package_name: text("package_name"),
        ips: addresses(record),
        state_reason: reason(entry).map(str::to_owned),
        running_with: running_with(entry),
        guest: entry.guest.as_deref().cloned(),
    };
    VmReport { vm, index }
}

/// What a guest that runs has of the properties that wait for its next start.
fn running_with(entry: &Entry) -> BTreeMap<String, Value> {
    match entry.observed.live() {
        Some(live) => at_start::running_with(&entry.record, live.memory_mib),
        None => BTreeMap::new(),
    }
}

/// Addresses of all network interfaces, at most [`MAX_IPS`].
fn addresses(record: &VmRecord) -> Vec<String> {
    let nics = record.list("nics").iter();
    let ips = nics.filter_map(|nic| nic.get("ips")?.as_array()).flatten().filter_map(Value::as_str);
    ips.map(|ip| ip.split('/').next().unwrap_or(ip).to_owned()).take(MAX_IPS).collect()
}

/// Sizes of all disks together; `None` of one that has none.
fn disks_mib(record: &VmRecord) -> Option<u64> {
    let sizes = record.list("disks").iter().filter_map(|disk| disk.get("size")?.as_u64());
    sizes.reduce(u64::saturating_add)
}

/// The line of a guest that runs without a record. Its memory is that of the guest alone: what its
/// hypervisor takes beside it is not known.
#[must_use]
pub fn report_orphan(guest: &RunningGuest) -> VmReport {
    let vm = VmStatus {
        uuid: guest.vm,
        owner_uuid: NOBODY.to_owned(),
        brand: "kvm".to_owned(),
        cpu_cap: None,
        quota: None,
        max_physical_memory: guest.ram_mib.unwrap_or(0),
        state: "running".to_owned(),
        zone_state: "running".to_owned(),
        last_modified: iso(Timestamp::UNIX_EPOCH),
    };
    let reason = "orphan: it runs without a record".to_owned();
    VmReport { vm, index: VmIndex { state_reason: Some(reason), ..VmIndex::default() } }
}

/// Why the VM is in its state, for people.
fn reason(entry: &Entry) -> Option<&str> {
    match &entry.observed {
        Observed::Running(live) => live.reason.as_deref(),
        Observed::Stopped(ended) => ended.reason.as_deref(),
    }
}

fn kind(record: &VmRecord) -> &'static str {
    match record.text("brand") {
        Some("kvm") => "KVM",
        Some("lx") => "LX",
        _ if record.is_container() => "OS",
        _ => "BHYVE",
    }
}

fn boot_image(record: &VmRecord) -> Option<String> {
    let of_disk = |disk: &Value| disk.get("image_uuid")?.as_str().map(str::to_owned);
    let of_boot_disk = record.list("disks").iter().find(|disk| disk["boot"] == true);
    of_boot_disk.and_then(of_disk).or_else(|| record.text("image_uuid").map(str::to_owned))
}

/// The later of the record's last change and the state's: both have the same format, so the
/// texts compare as the times do.
fn last_modified(entry: &Entry) -> String {
    iso(entry.state_since).max(entry.record.last_modified.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::compute::{Activity, Ended, Live};
    use crate::vms::payload;
    use crate::vms::sim::record;

    fn entry(params: Value) -> Entry {
        let mut record = record(7);
        let Value::Object(params) = params else { panic!("an object is needed") };
        record.properties = payload::create(&params).unwrap();
        record.provisioning = false;
        record.last_modified = "2026-01-01T00:00:00.000Z".to_owned();
        let observed = Observed::Running(Live {
            pid: 42,
            started_at_ms: 1_800_000_000_000,
            booted_at_ms: 1_800_000_000_000,
            reboots: 0,
            activity: Activity::Running,
            reason: None,
            nics_unsettled: false,
            disks_unsettled: false,
            memory_mib: None,
        });
        let state_since = Timestamp::from_millisecond(1_800_000_000_000).unwrap();
        Entry { record, observed, state_since, guest: None }
    }

    #[test]
    fn the_report_counts_the_hypervisor_and_leaves_out_what_is_unset() {
        let report = report(&entry(json!({
            "brand": "bhyve", "ram": 512, "alias": "web", "cpu_cap": 0, "vcpus": 2,
            "tags": {"role": "web"}, "disks": [{"size": 10, "model": "virtio"}],
            "nics": [{ "nic_tag": "a", "ips": ["10.0.0.5/24", "fd00::5/64"] },
                     { "nic_tag": "b", "ips": ["dhcp"] }],
        })));
        assert_eq!(report.index.ips, ["10.0.0.5", "fd00::5", "dhcp"]);
        assert_eq!(report.vm.max_physical_memory, 512 + 1280);
        assert_eq!(report.vm.quota, Some(1));
        assert_eq!(report.vm.cpu_cap, None);
        assert_eq!(report.vm.state, "running");
        assert_eq!(report.vm.last_modified, "2027-01-15T08:00:00.000Z");
        assert_eq!(report.index.alias.as_deref(), Some("web"));
        assert_eq!(report.index.tags["role"], "web");
    }

    #[test]
    fn the_object_holds_properties_state_and_process() {
        let object = of(&entry(json!({ "brand": "kvm", "ram": 128 })), &Node::default());
        assert_eq!(object["type"], "KVM");
        assert_eq!(object["max_physical_memory"], 128 + 1024);
        assert_eq!(object["pid"], 42);
        assert_eq!(object["zonename"], Value::Null);
        assert_eq!(object["boot_timestamp"], "2027-01-15T08:00:00.000Z");
        assert!(object.get("do_not_inventory").is_none());
    }

    #[test]
    fn what_waits_for_the_next_start_is_told_while_the_guest_runs() {
        let mut entry = entry(json!({ "brand": "kvm", "ram": 128 }));
        assert!(of(&entry, &Node::default()).get("running_with").is_none());
        entry.record.started_with = serde_json::Map::from_iter([("ram".to_owned(), json!(64))]);
        assert_eq!(of(&entry, &Node::default())["running_with"], json!({ "ram": 64 }));
        assert_eq!(report(&entry).index.running_with["ram"], 64);
        entry.observed = Observed::stopped();
        assert!(of(&entry, &Node::default()).get("running_with").is_none());
        assert!(report(&entry).index.running_with.is_empty());
    }

    #[test]
    fn the_object_tells_how_and_when_the_process_ended() {
        let mut entry = entry(json!({ "brand": "kvm", "ram": 128 }));
        entry.observed = Observed::stopped();
        let object = of(&entry, &Node::default());
        assert!(object.get("exit_status").is_none() && object.get("exit_timestamp").is_none());
        let exited_at_ms = Some(1_800_000_000_000);
        let reason = Some("killed".into());
        entry.observed = Observed::Stopped(Ended { exit_status: Some(137), exited_at_ms, reason });
        let object = of(&entry, &Node::default());
        assert_eq!(
            (&object["exit_status"], &object["state_reason"]),
            (&json!(137), &json!("killed"))
        );
        assert_eq!(object["exit_timestamp"], "2027-01-15T08:00:00.000Z");
    }
}
