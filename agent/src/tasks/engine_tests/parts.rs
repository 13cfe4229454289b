//! Tasks that are parts of other tasks.

use super::super::subtask::id_of;
use super::super::{Filter, VmView, machine_update_nics};
use super::*;

/// A task of the kind `urgent` with a part of the kind `script`, both about VM 1.
fn whole(id: &str, steps: Value, part: Value) -> Submission {
    let mut params = json!({ "vm": 1 });
    params["steps"] = steps;
    params["part"] = part;
    submission(id, "urgent", params)
}

fn part(steps: Value) -> Value {
    let mut part = json!({ "vm": 1 });
    part["steps"] = steps;
    part
}

/// The part that the first step begins.
fn id_of_part(whole: &str) -> String {
    id_of(&task(whole), "a").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_part_is_a_task_with_a_history_of_its_own() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let wanted = whole("w-history", json!(["part", "ok"]), part(json!(["ok", "ok"])));
    engine.submit(wanted).await.unwrap();
    // Whoever waits for the VM waits for both.
    let other = submission("w-other", "script", json!({ "steps": ["ok"], "vm": 1 }));
    engine.submit(other).await.unwrap();
    let result = ended(&engine, "w-history").await;
    assert_eq!(result.result, json!({ "a": true, "b": true, "part": { "a": true, "b": true } }));
    let id = id_of_part("w-history");
    assert_eq!(done(&id), ["+a", "+b"]);
    assert_eq!(ended(&engine, "w-other").await.status, Outcome::Complete);

    // Also after a restart.
    node.cut_power();
    let engine = node.start().await;
    let seen = engine.view(&task(&id)).await.unwrap();
    assert_eq!((&seen["parent_id"], &seen["state"]), (&json!("w-history"), &json!("finished")));
    assert_eq!(seen["req_id"], "req");
    assert_eq!(engine.view(&task("w-history")).await.unwrap()["subtasks"], json!([id]));
    let parts = Filter { part_of: Some(task("w-history")), limit: 10, ..Filter::default() };
    assert_eq!(engine.list(&parts).await, [seen]);
    let history: Vec<_> = engine.history().await;
    let ids: Vec<_> = history.iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["w-history", &id, "w-other"]);
    // No coordinator knows it, and none is asked to acknowledge it.
    assert_eq!(engine.unacked_ids(10), [task("w-history"), task("w-other")]);
}

#[tokio::test(start_paused = true)]
async fn a_whole_ends_with_the_failure_of_its_part() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for (id, steps, expected) in [
        ("w-fails", part(json!(["ok", "fail"])), "Scripted"),
        ("w-bad", part(json!(["unplannable"])), "InvalidParameters"),
        // What the whole does not hold is nothing for its part.
        ("w-more", json!({ "steps": ["ok"], "vm": 2 }), "InternalError"),
    ] {
        engine.submit(whole(id, json!(["part", "ok"]), steps)).await.unwrap();
        let result = ended(&engine, id).await;
        assert_eq!((result.status, code(&result)), (Outcome::Failure, expected), "{id}");
        check_log(id, &["+a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_is_not_begun_twice() {
    let node = Node::new(SCRIPTS);
    // The power goes while the part runs: each step takes 10 ms.
    let engine = node.start().await;
    let steps = json!(["ok", "ok", "ok"]);
    engine.submit(whole("w-cut", json!(["part"]), part(steps.clone()))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(15)).await;
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(ended(&engine, "w-cut").await.status, Outcome::Complete);
    assert_eq!(done(&id_of_part("w-cut")), ["+a", "+b", "+b", "+c"]);
    // And when it has ended, and the journal does not hold that yet.
    node.cut_power();
    let cut = CutAt("urgent:a:after".to_owned());
    let engine = node.boot("boot-1", Some(Arc::new(cut))).await;
    engine.submit(whole("w-end", json!(["part"]), part(steps))).await.unwrap();
    assert!(!engine.wait(&task("w-end"), Duration::from_secs(10)).await);
    node.cut_power();
    let engine = node.start().await;
    let result = ended(&engine, "w-end").await;
    assert_eq!(result.result["part"], json!({ "a": true, "b": true, "c": true }));
    assert_eq!(done(&id_of_part("w-end")), ["+a", "+b", "+c"]);
    assert_eq!(done("w-end"), ["+a", "+a"]);
}

#[tokio::test(start_paused = true)]
async fn a_part_is_cancelled_with_its_whole_and_let_in_by_a_drain() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    engine.submit(whole("w-stop", json!(["part"]), part(json!(["wait", "ok"])))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    engine.cancel(&task("w-stop")).unwrap();
    for id in ["w-stop", &id_of_part("w-stop")] {
        assert_eq!(code(&ended(&engine, id).await), "Cancelled", "{id}");
    }
    engine.submit(whole("w-drain", json!(["ok", "part"]), part(json!(["ok"])))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    engine.pause(OPERATOR, "to see").await.unwrap();
    assert_eq!(ended(&engine, "w-drain").await.status, Outcome::Complete);
}

#[tokio::test(start_paused = true)]
async fn networks_that_change_hold_the_vms_that_are_on_them() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    for (number, ip) in [(1, "10.0.0.5"), (2, "10.0.1.5")] {
        let mut record = crate::vms::sim::record(number);
        let nic = json!({ "nic_tag": "admin", "ip": ip, "netmask": "255.255.255.0" });
        record.properties.insert("nics".to_owned(), json!([nic]));
        drivers.vms.create(record).await.unwrap();
    }
    let handler = machine_update_nics::MachineUpdateNics;
    let (params, vms) = (handler.example(), VmView::new(&drivers.vms));
    assert_eq!(handler.locks(&params, &vms), [Lock::Vm(VmUuid(Uuid::from_u128(1)))]);
    assert!(handler.plan(&params).unwrap().locks.is_empty(), "others need not wait for it");
    assert_eq!(handler.locks(&Params::new(), &vms), []);
}
