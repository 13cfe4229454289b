//! Network interfaces that come, change and go while their guest runs, on a simulated host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::TaskFailure;
use super::machine_tests::{Host, act, one_vm, params, run_with_crash, uuid};
use crate::drivers::faults::Fault;
use crate::drivers::network::Nic;
use crate::node::Drivers;
use crate::vms::reconcile::{self, Action};

const NEW: &str = "02:00:00:00:00:77";

async fn update(host: &Host, drivers: &Arc<Drivers>, change: Value) -> Result<Value, TaskFailure> {
    act(host, drivers, "machine_update", change).await
}

fn nic(mac: &str) -> Value {
    json!({ "nic_tag": "external", "mac": mac })
}

/// Addresses by number, as the record has them.
fn recorded(drivers: &Drivers) -> BTreeMap<usize, String> {
    let nics = Nic::all(&drivers.vms.get(uuid()).unwrap()).unwrap();
    nics.into_iter().map(|nic| (nic.number, nic.mac)).collect()
}

fn first_mac(drivers: &Drivers) -> String {
    recorded(drivers)[&0].clone()
}

#[tokio::test(start_paused = true)]
async fn they_come_and_go_without_a_restart() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let first = first_mac(&drivers);
    let result = update(&host, &drivers, json!({ "add_nics": [nic(NEW)] })).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert!(result["vm"].get("running_with").is_none());
    let both = BTreeMap::from([(0, first.clone()), (1, NEW.to_owned())]);
    assert_eq!((host.guests.nics(uuid()), recorded(&drivers)), (both.clone(), both));

    // The other one keeps its place, and its name on the host.
    let result = update(&host, &drivers, json!({ "remove_nics": [first] })).await.unwrap();
    assert_eq!(result["vm"]["nics"][0]["interface"], "net1");
    let left = BTreeMap::from([(1, NEW.to_owned())]);
    assert_eq!((host.guests.nics(uuid()), recorded(&drivers)), (left.clone(), left));

    // One in place of the other, in the same slot.
    let change = json!({ "remove_nics": [NEW], "add_nics": [{
        "nic_tag": "external", "mac": "02:00:00:00:00:78", "interface": "net1",
    }] });
    update(&host, &drivers, change).await.unwrap();
    let other = BTreeMap::from([(1, "02:00:00:00:00:78".to_owned())]);
    assert_eq!((host.guests.nics(uuid()), recorded(&drivers)), (other.clone(), other));
    update(&host, &drivers, json!({ "remove_nics": ["02:00:00:00:00:78"] })).await.unwrap();
    assert_eq!(host.guests.nics(uuid()), BTreeMap::new());
    assert!(host.networks.vms().is_empty(), "nothing is left on the host");
    assert_eq!(host.guests.starts(uuid()), 1);
}

/// What its slots can't take needs a restart, and waits for one if there is to be none.
#[tokio::test(start_paused = true)]
async fn an_address_that_another_vm_has_is_refused_and_changes_nothing() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let theirs = "02:00:00:00:00:99";
    let nic = |mac: &str, ip: &str| json!({ "nic_tag": "external", "mac": mac, "ips": [ip] });
    let mut other = crate::vms::sim::record(9);
    other.properties.insert("nics".to_owned(), json!([nic(theirs, "192.0.2.9/24")]));
    drivers.vms.create(other).await.unwrap();
    let before = drivers.vms.get(uuid());
    for (added, named) in [
        (nic(theirs, "192.0.2.8/24"), "nics.1.mac: MAC 02:00:00:00:00:99 is in use"),
        (nic(NEW, "192.0.2.9/28"), "nics.1.ips: 192.0.2.9 is in use on nic tag external"),
    ] {
        let change = json!({ "alias": "other", "add_nics": [added] });
        let refused = update(&host, &drivers, change).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidParameters);
        assert!(refused.message.contains(named), "{refused}");
        assert_eq!(drivers.vms.get(uuid()), before);
    }
    update(&host, &drivers, json!({ "add_nics": [nic(NEW, "192.0.2.8/24")] })).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_plugged_in_restarts_the_guest_or_waits() {
    let card = json!({ "nic_tag": "external", "mac": NEW, "model": "e1000" });
    for (reboot, starts, pending) in
        [("if_needed", 2, json!([])), ("always", 2, json!([])), ("never", 1, json!(["nics"]))]
    {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let change = json!({ "add_nics": [card], "reboot": reboot });
        let result = update(&host, &drivers, change).await.unwrap();
        assert_eq!(host.guests.starts(uuid()), starts, "{reboot}");
        assert_eq!(result["pending_reboot"], pending, "{reboot}");
        assert_eq!(host.guests.nics(uuid()).len(), starts.min(2) as usize, "{reboot}");
        assert_eq!(recorded(&drivers).len(), 2, "{reboot}");
        if reboot == "never" {
            // What waits still waits beside what does not.
            let other = json!({ "add_nics": [nic("02:00:00:00:00:79")], "reboot": "never" });
            let result = update(&host, &drivers, other).await.unwrap();
            assert_eq!(result["pending_reboot"], json!(["nics"]));
            update(&host, &drivers, json!({ "remove_nics": [NEW] })).await.unwrap();
            let vm = drivers.vms.object(uuid(), true).unwrap();
            assert!(vm.get("running_with").is_none(), "{vm:#}");
            assert_eq!(host.guests.nics(uuid()), recorded(&drivers));
            assert_eq!(host.guests.starts(uuid()), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn always_restarts_for_what_could_be_plugged_in() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let change = json!({ "add_nics": [nic(NEW)], "reboot": "always" });
    update(&host, &drivers, change).await.unwrap();
    assert_eq!((host.guests.starts(uuid()), host.guests.nics(uuid()).len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_firewall_changes_while_its_guest_runs() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let rule = json!([{ "rule": "FROM any TO tag web ALLOW tcp PORT 80", "enabled": true }]);
    for (change, attaches) in [
        (json!({ "set_tags": { "db": "1" } }), false),
        (json!({ "firewall_enabled": true }), true),
        (json!({ "firewall_rules": rule }), true),
        (json!({ "set_tags": { "web": "1" } }), true),
        (json!({ "remove_tags": ["web"] }), true),
        (json!({ "alias": "other" }), false),
        (json!({ "firewall_enabled": false }), true),
    ] {
        let attached = host.faults.calls("networks.attach");
        let result = update(&host, &drivers, change.clone()).await.unwrap();
        assert_eq!(result["pending_reboot"], json!([]), "{change}");
        assert_eq!(host.faults.calls("networks.attach") > attached, attaches, "{change}");
    }
    assert_eq!(host.guests.starts(uuid()), 1);
    let bad = json!({ "firewall_rules": [{ "rule": "FROM any TO any ALLOW tcp PORT 80" }] });
    let refused = update(&host, &drivers, bad).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidParameters);
    assert!(refused.message.contains("firewall_rules.0: one side must name VMs"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_other_device_takes_effect_at_once() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let first = first_mac(&drivers);
    let change = |member: &str, value: Value| json!({ "update_nics": [{ "mac": first, member: value }], "reboot": "never" });
    for (member, value, pending) in [
        ("allow_ip_spoofing", json!(true), json!([])),
        ("allowed_ips", json!(["10.9.0.0/16"]), json!([])),
        ("blocked_outgoing_ports", json!([25]), json!([])),
        // Its host lets them through; the guest is told when it starts.
        ("ips", json!(["10.0.0.9/24"]), json!(["nics"])),
        ("nic_tag", json!("other"), json!(["nics"])),
    ] {
        let attached = host.faults.calls("networks.attach");
        let result = update(&host, &drivers, change(member, value)).await.unwrap();
        assert_eq!(result["pending_reboot"], pending, "{member}");
        assert!(host.faults.calls("networks.attach") > attached, "{member}");
    }
    assert_eq!(host.guests.starts(uuid()), 1);
    let attached = host.faults.calls("networks.attach");
    update(&host, &drivers, json!({ "alias": "two" })).await.unwrap();
    assert_eq!(host.faults.calls("networks.attach"), attached, "others leave them alone");
    // As it was started: nothing waits.
    let back = json!({ "update_nics": [{ "mac": first, "nic_tag": "admin", "ips": null }] });
    let result = update(&host, &drivers, back).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert!(result["vm"].get("running_with").is_none(), "{result:#}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_one_keeps_all_and_the_failure_says_so() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    update(&host, &drivers, json!({ "add_nics": [nic(NEW)] })).await.unwrap();
    let (before, record) = (host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap());
    host.guests.keep_nic(uuid(), 1, true);
    let change = json!({
        "alias": "two", "remove_nics": [first_mac(&drivers), NEW],
        "add_nics": [nic("02:00:00:00:00:79")],
    });
    let failure = update(&host, &drivers, change.clone()).await.unwrap_err();
    assert_eq!(failure.code, Code::GuestRefused);
    assert!(failure.message.contains(NEW), "{failure}");
    assert_eq!(host.guests.nics(uuid()), before, "what it had given up is back");
    assert_eq!(drivers.vms.get(uuid()).unwrap(), record);
    host.guests.keep_nic(uuid(), 1, false);
    update(&host, &drivers, change).await.unwrap();
    assert_eq!(host.guests.nics(uuid()), recorded(&drivers));
    assert_eq!((recorded(&drivers).len(), host.guests.starts(uuid())), (1, 1));
}

fn change(first: &str) -> Value {
    json!({ "remove_nics": [first], "add_nics": [nic(NEW)], "alias": "two" })
}

#[tokio::test(start_paused = true)]
async fn changes_go_on_after_a_crash_at_any_step() {
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let change = params(change(&first_mac(&drivers)));
        if !run_with_crash(&host, "machine_update", &change, step, done).await {
            break;
        }
        let drivers = host.agent("boot-1").await;
        let case = format!("step {step}, done {done}");
        assert_eq!(host.guests.nics(uuid()), recorded(&drivers), "{case}");
        assert_eq!(recorded(&drivers), BTreeMap::from([(0, NEW.to_owned())]), "{case}");
        assert_eq!(host.guests.starts(uuid()), 1, "{case}");
        let vm = drivers.vms.object(uuid(), true).unwrap();
        assert!(vm.get("running_with").is_none(), "{case}: {vm:#}");
    }
}

/// Lets each call fail in turn: the guest has what its record says, and the same again does the rest.
#[tokio::test(start_paused = true)]
async fn changes_that_fail_anywhere_leave_guest_and_record_agreed() {
    let operations = [
        "compute.nics",
        "compute.observe",
        "compute.plug_nic",
        "compute.set_link",
        "compute.unplug_nic",
        "networks.attach",
        "vms.put",
    ];
    let mut failed = 0;
    for (operation, nth) in
        operations.into_iter().flat_map(|name| [(name, 1), (name, 2), (name, 3)])
    {
        for fault in [Fault::before(), Fault::after()] {
            let host = Host::new();
            let drivers = one_vm(&host).await;
            let change = change(&first_mac(&drivers));
            let case = format!("{operation} {nth} {fault:?}");
            host.faults.fail_nth(operation, nth, fault);
            if let Err(failure) = update(&host, &drivers, change.clone()).await {
                failed += 1;
                assert_eq!(host.guests.nics(uuid()), recorded(&drivers), "{case}: {failure}");
            }
            // The fault may strike here, if it did not strike before.
            if update(&host, &drivers, change.clone()).await.is_err() {
                update(&host, &drivers, change).await.unwrap();
            }
            assert_eq!(host.guests.nics(uuid()), recorded(&drivers), "{case}: again");
            assert_eq!(recorded(&drivers), BTreeMap::from([(0, NEW.to_owned())]), "{case}");
            assert_eq!(host.guests.starts(uuid()), 1, "{case}");
        }
    }
    assert!(failed > 10, "only {failed} changes failed");
}

/// It waited for the next start, and is given by a change that fails in the end.
#[tokio::test(start_paused = true)]
async fn what_waited_before_a_change_that_failed_goes_on_waiting() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let card = json!({ "nic_tag": "external", "mac": NEW, "model": "e1000" });
    update(&host, &drivers, json!({ "add_nics": [card], "reboot": "never" })).await.unwrap();
    let (has, record) = (host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap());
    host.faults.fail_nth("vms.put", 1, Fault::before());
    let change = json!({ "update_nics": [{ "mac": NEW, "model": "virtio" }] });
    update(&host, &drivers, change.clone()).await.unwrap_err();
    assert!(host.faults.calls("compute.plug_nic") > 0 && has.len() == 1);
    assert_eq!((host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap()), (has, record));
    let result = update(&host, &drivers, change).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!(host.guests.nics(uuid()), recorded(&drivers));
    assert_eq!(host.guests.starts(uuid()), 1);
}

/// It has nothing that could be changed, and starts with what its record says.
#[tokio::test(start_paused = true)]
async fn a_guest_that_ends_meanwhile_is_no_failure() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let wanted = params(change(&first_mac(&drivers)));
    let ctx = host.context(&drivers, &wanted);
    let plan = super::Handler::plan(&super::machine_update::MachineUpdate, &wanted).unwrap();
    for step in &plan.steps {
        if step.name() == "nics" {
            host.guests.exit(uuid(), 0);
        }
        step.apply(&ctx).await.unwrap();
    }
    assert_eq!(recorded(&drivers), BTreeMap::from([(0, NEW.to_owned())]));
    act(&host, &drivers, "machine_boot", json!({})).await.unwrap();
    assert_eq!(host.guests.nics(uuid()), recorded(&drivers));
}

async fn needed(drivers: &Drivers) -> Vec<Action> {
    drivers.vms.observe(drivers.compute.as_ref(), uuid()).await.unwrap();
    let plan = drivers.vms.plan(&BTreeSet::new());
    plan.actions.into_iter().map(|(_, action)| action).collect()
}

async fn settle(host: &Host, drivers: &Arc<Drivers>) -> Result<Value, TaskFailure> {
    let record = drivers.vms.get(uuid());
    let wanted = reconcile::params(uuid(), Action::SettleNics, record.as_ref());
    update(host, drivers, Value::Object(wanted)).await
}

#[tokio::test(start_paused = true)]
async fn a_cable_is_pulled_and_put_in_and_stays_so() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let first = first_mac(&drivers);
    let down = |down: bool| json!({ "update_nics": [{ "mac": first, "link_down": down }] });
    let result = update(&host, &drivers, down(true)).await.unwrap();
    assert_eq!(result["pending_reboot"], json!([]));
    assert_eq!(result["vm"]["nics"][0]["link_down"], true);
    assert_eq!(host.guests.links_down(uuid()), BTreeSet::from([0]));
    act(&host, &drivers, "machine_reboot", json!({})).await.unwrap();
    assert_eq!(host.guests.links_down(uuid()), BTreeSet::from([0]), "its next start has it");
    // One that fails later leaves it as it was.
    host.faults.fail_nth("vms.put", 1, Fault::before());
    update(&host, &drivers, down(false)).await.unwrap_err();
    assert_eq!(host.guests.links_down(uuid()), BTreeSet::from([0]));
    update(&host, &drivers, down(false)).await.unwrap();
    assert_eq!(host.guests.links_down(uuid()), BTreeSet::new());
    // One that comes with its cable out.
    let new = json!({ "nic_tag": "external", "mac": NEW, "link_down": true });
    update(&host, &drivers, json!({ "add_nics": [new] })).await.unwrap();
    assert_eq!(host.guests.links_down(uuid()), BTreeSet::from([1]));
    assert_eq!(host.guests.starts(uuid()), 2);
    let bad = update(&host, &drivers, json!({ "update_nics": [{ "mac": NEW, "link_down": "x" }] }));
    assert_eq!(bad.await.unwrap_err().code, Code::InvalidVmPayload);
}

#[tokio::test(start_paused = true)]
async fn a_cable_is_as_wanted_after_a_crash_at_any_step() {
    for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let nic = json!({ "mac": first_mac(&drivers), "link_down": true });
        let change = params(json!({ "update_nics": [nic], "alias": "two" }));
        if !run_with_crash(&host, "machine_update", &change, step, done).await {
            break;
        }
        let recorded = host.agent("boot-1").await.vms.get(uuid()).unwrap();
        let case = format!("step {step}, done {done}");
        assert_eq!(recorded.list("nics")[0]["link_down"], true, "{case}");
        assert_eq!(host.guests.links_down(uuid()), BTreeSet::from([0]), "{case}");
    }
}

/// As after an unplug that nobody waits for any more.
#[tokio::test(start_paused = true)]
async fn what_a_guest_gives_up_too_late_it_gets_again() {
    // Whether or not something else waits for its next start.
    for waits in [false, true] {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        update(&host, &drivers, json!({ "add_nics": [nic(NEW)] })).await.unwrap();
        if waits {
            let card = json!({ "nic_tag": "b", "mac": "02:00:00:00:00:80", "model": "e1000" });
            update(&host, &drivers, json!({ "add_nics": [card], "reboot": "never" }))
                .await
                .unwrap();
        }
        assert_eq!(needed(&drivers).await, []);
        let (has, record) = (host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap());
        host.guests.lose_nic(uuid(), 0);
        assert_eq!(needed(&drivers).await, [Action::SettleNics]);
        settle(&host, &drivers).await.unwrap();
        assert_eq!(
            (host.guests.nics(uuid()), needed(&drivers).await),
            (has, Vec::new()),
            "{waits}"
        );
        assert_eq!(drivers.vms.get(uuid()).unwrap(), record, "{waits}");
        assert_eq!(host.guests.starts(uuid()), 1);
    }
}

/// The guest keeps what it was given by a change that failed then.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_undone_is_undone_later() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let (has, record) = (host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap());
    host.guests.keep_nic(uuid(), 1, true);
    host.faults.fail_nth("vms.put", 1, Fault::before());
    update(&host, &drivers, json!({ "add_nics": [nic(NEW)] })).await.unwrap_err();
    assert_eq!(host.guests.nics(uuid()).len(), 2);
    assert_eq!(settle(&host, &drivers).await.unwrap_err().code, Code::GuestRefused);
    assert_eq!(needed(&drivers).await, [Action::SettleNics]);
    host.guests.keep_nic(uuid(), 1, false);
    settle(&host, &drivers).await.unwrap();
    assert_eq!((host.guests.nics(uuid()), drivers.vms.get(uuid()).unwrap()), (has, record));
    assert_eq!(needed(&drivers).await, []);
}
