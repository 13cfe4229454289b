use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::app::keys;
use crate::store::{Action, Damaged, Event, Follow};

async fn fleet() -> Fleet {
    Fleet::new(crate::app::tests::context().await)
}

fn report(vm: VmUuid, state: &str) -> Arc<VmReport> {
    let value = json!({
        "uuid": vm, "owner_uuid": "o", "brand": "kvm", "max_physical_memory": 1, "state": state,
        "zone_state": state, "last_modified": "",
    });
    serde_json::from_value(value).unwrap()
}

/// The store takes over what is unsaved.
fn save(fleet: &Fleet, counter: u64) {
    let revision = Revision { epoch: 1, counter };
    let changes: Vec<Event> = fleet
        .unsaved(10)
        .into_iter()
        .map(|write| {
            let value = match write.action {
                Action::Put(value, _) => Some(value),
                Action::Delete | Action::Check => None,
            };
            Event { key: write.key, value, revision }
        })
        .collect();
    fleet.apply(&changes, &Damaged::default());
}

#[tokio::test]
async fn an_unchanged_report_leaves_nothing_to_save() {
    let fleet = fleet().await;
    let server = ServerUuid(uuid::Uuid::from_u128(1));
    let vm = VmUuid(uuid::Uuid::from_u128(2));
    let running = || BTreeMap::from([(vm, Some(report(vm, "running")))]);
    fleet.report_vms(server, running());
    assert_eq!(fleet.unsaved(10).len(), 1);
    assert!(fleet.vm(vm).is_none(), "it is not stored yet");
    save(&fleet, 1);
    assert!(fleet.vm(vm).is_some());
    assert!(fleet.take_stale(9)[&server].vms.contains(&vm));
    fleet.report_vms(server, running());
    assert!(fleet.unsaved(10).is_empty());
    assert!(fleet.take_stale(9).is_empty());
    fleet.report_vms(server, BTreeMap::from([(vm, None)]));
    assert_eq!(fleet.unsaved(10).len(), 1);
    save(&fleet, 2);
    assert!(fleet.vm(vm).is_none());
}

#[tokio::test]
async fn a_vm_is_in_memory_once() {
    let fleet = fleet().await;
    let server = ServerUuid(Uuid::from_u128(1));
    let vm = VmUuid(Uuid::from_u128(2));
    let running = report(vm, "running");
    let held = || fleet.vm(vm).unwrap().1;
    fleet.report_vms(server, BTreeMap::from([(vm, Some(Arc::clone(&running)))]));
    save(&fleet, 1);
    assert!(Arc::ptr_eq(&held(), &running), "what the connection holds");
    // On the next connection it comes again.
    let mut again = BTreeMap::from([(vm, Some(report(vm, "running")))]);
    fleet.share(server, &mut again);
    assert!(Arc::ptr_eq(again[&vm].as_ref().unwrap(), &running));
    fleet.report_vms(server, again);
    assert!(fleet.unsaved(10).is_empty());
    // What differs, or belongs to another server, stays apart.
    let mut others = BTreeMap::from([(vm, Some(report(vm, "stopped")))]);
    fleet.share(server, &mut others);
    assert_eq!(others[&vm].as_ref().unwrap().vm.state, "stopped");
    let mut others = BTreeMap::from([(vm, Some(report(vm, "running")))]);
    fleet.share(ServerUuid(Uuid::from_u128(3)), &mut others);
    assert!(!Arc::ptr_eq(others[&vm].as_ref().unwrap(), &running));
}

#[tokio::test]
async fn a_vm_stays_at_home_whoever_claims_it() {
    let fleet = fleet().await;
    let vm = VmUuid(Uuid::from_u128(2));
    let [one, two] = [1, 3].map(|n| ServerUuid(Uuid::from_u128(n)));
    let say = |server, state| {
        let said = state_of(state).map(|state| report(vm, state));
        fleet.report_vms(server, BTreeMap::from([(vm, said)]))
    };
    fn state_of(state: &str) -> Option<&str> {
        Some(state).filter(|state| !state.is_empty())
    }
    // Not even stored yet.
    assert!(say(two, "running").is_empty());
    let claim = Claim { vm, by: one, home: two };
    assert_eq!(say(one, "running"), [claim]);
    save(&fleet, 1);
    assert_eq!(fleet.vm(vm).map(|(server, _)| server), Some(two));
    assert!(say(one, "stopped").is_empty(), "it is told once");
    assert_eq!(fleet.claimants(vm), [one]);
    assert!(fleet.unsaved(10).is_empty());
    // Its own news are taken over.
    say(two, "stopped");
    save(&fleet, 2);
    assert_eq!(fleet.vm(vm).unwrap().1.vm.state, "stopped");
    // Gone at home: what was claimed is all there is.
    say(two, "");
    save(&fleet, 3);
    save(&fleet, 4);
    assert_eq!(fleet.vm(vm).map(|(server, _)| server), Some(one));
    assert!(fleet.claimants(vm).is_empty());
    say(one, "");
    save(&fleet, 5);
    assert!(fleet.vm(vm).is_none() && fleet.inner().home.is_empty());
}

#[tokio::test]
async fn a_vm_is_at_home_where_it_is_made() {
    let fleet = fleet().await;
    let [made, never, claimed] = [2, 4, 6].map(|n| VmUuid(Uuid::from_u128(n)));
    let [home, rogue] = [1, 3].map(|n| ServerUuid(Uuid::from_u128(n)));
    let place = |vm, value: Option<serde_json::Value>| {
        let revision = Revision { epoch: 1, counter: 1 };
        let value = value.map(|value| value.to_string().into());
        fleet.apply(&[Event { key: keys::place(vm), value, revision }], &Damaged::default());
    };
    let at = |state: &str| Some(json!({ "server_uuid": home, "state": state }));
    let says =
        |server, vm| fleet.report_vms(server, BTreeMap::from([(vm, Some(report(vm, "running")))]));
    place(made, at("creating"));
    assert_eq!(says(rogue, made), [Claim { vm: made, by: rogue, home }]);
    // The task has ended; the report comes later.
    place(made, at("done"));
    assert!(says(rogue, made).is_empty() && fleet.unsaved(10).is_empty());
    assert!(says(home, made).is_empty());
    save(&fleet, 2);
    place(made, None);
    assert_eq!(fleet.vm(made).map(|(server, _)| server), Some(home));
    assert_eq!(fleet.claimants(made), [rogue]);
    // A create that failed leaves the VM to who has it.
    place(never, at("creating"));
    says(rogue, never);
    place(never, None);
    save(&fleet, 3);
    assert_eq!(fleet.vm(never).map(|(server, _)| server), Some(rogue));
    // A place of long ago does not say where a VM is now.
    place(claimed, at("done"));
    assert!(says(rogue, claimed).is_empty());
    assert!(fleet.inner().making.is_empty());
}

#[tokio::test]
async fn a_claim_ends_with_what_its_server_reports() {
    let fleet = fleet().await;
    let vm = VmUuid(Uuid::from_u128(2));
    let [one, two] = [1, 3].map(|n| ServerUuid(Uuid::from_u128(n)));
    let running = || BTreeMap::from([(vm, Some(report(vm, "running")))]);
    fleet.report_vms(one, running());
    save(&fleet, 1);
    fleet.report_vms(two, running());
    // A full report would say that it is gone.
    assert!(fleet.reported_vms(two).contains(&vm));
    fleet.report_vms(two, BTreeMap::from([(vm, None)]));
    assert!(fleet.claimants(vm).is_empty() && fleet.unsaved(10).is_empty());
    fleet.report_vms(two, running());
    fleet.forget_reported(two);
    assert!(fleet.claimants(vm).is_empty());
}

#[tokio::test]
async fn batches_are_cut_by_bytes_and_large_reports_to_size() {
    let fleet = fleet().await;
    let server = ServerUuid(Uuid::from_u128(1));
    let tagged = |n, bytes| {
        let vm = VmUuid(Uuid::from_u128(n));
        let mut report = report(vm, "running");
        let index = &mut Arc::make_mut(&mut report).index;
        index.tags.insert("a".to_owned(), "x".repeat(bytes).into());
        (vm, Some(report))
    };
    fleet.report_vms(server, (1..=100).map(|n| tagged(n, 11_000)).collect());
    let batch = fleet.unsaved(100);
    assert!((40..100).contains(&batch.len()), "{}", batch.len());
    for counter in 1..20 {
        save(&fleet, counter);
    }
    assert_eq!(fleet.vm_count(), 100);
    fleet.report_vms(server, BTreeMap::from([tagged(200, 600_000)]));
    save(&fleet, 20);
    let (_, kept) = fleet.vm(VmUuid(Uuid::from_u128(200))).unwrap();
    assert!(kept.index.tags.is_empty());
    assert!(kept.index.state_reason.as_ref().unwrap().contains("tags"));
    // Nothing can be made of it.
    let vm = VmUuid(Uuid::from_u128(300));
    let mut endless = report(vm, "running");
    Arc::make_mut(&mut endless).vm.owner_uuid = "x".repeat(300_000);
    fleet.report_vms(server, BTreeMap::from([(vm, Some(endless))]));
    assert!(fleet.unsaved(10).is_empty());
}

#[tokio::test]
async fn a_report_that_goes_back_while_it_is_written_is_written_again() {
    let fleet = fleet().await;
    let server = ServerUuid(uuid::Uuid::from_u128(1));
    let vm = VmUuid(uuid::Uuid::from_u128(2));
    let say = |state| fleet.report_vms(server, BTreeMap::from([(vm, Some(report(vm, state)))]));
    say("running");
    save(&fleet, 1);
    say("stopped");
    let on_its_way = fleet.unsaved(1).remove(0);
    say("running");
    let Action::Put(value, _) = on_its_way.action else { panic!("a put") };
    let revision = Revision { epoch: 1, counter: 2 };
    let change = Event { key: on_its_way.key, value: Some(value), revision };
    fleet.apply(&[change], &Damaged::default());
    assert_eq!(fleet.vm(vm).unwrap().1.vm.state, "stopped");
    assert_eq!(fleet.unsaved(1)[0].expect, Expect::At(revision));
    save(&fleet, 3);
    assert_eq!(fleet.vm(vm).unwrap().1.vm.state, "running");
    assert!(fleet.unsaved(1).is_empty());
}

#[tokio::test]
async fn a_change_during_the_write_stays_unsaved() {
    let fleet = fleet().await;
    let server = ServerUuid(uuid::Uuid::from_u128(1));
    let vm = VmUuid(uuid::Uuid::from_u128(2));
    fleet.report_vms(server, BTreeMap::from([(vm, Some(report(vm, "running")))]));
    let written = keys::encode(&*report(vm, "running"));
    fleet.report_vms(server, BTreeMap::from([(vm, Some(report(vm, "stopped")))]));
    let revision = Revision { epoch: 1, counter: 1 };
    let change = Event { key: keys::vm(server, vm), value: Some(written), revision };
    fleet.apply(&[change], &Damaged::default());
    assert_eq!(fleet.unsaved(10).len(), 1);
}
