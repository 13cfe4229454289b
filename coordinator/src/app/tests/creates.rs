//! Creating VMs: what a refusal leaves, what a dry run says, and whose name is whose.

use muster_shared::api::allocation::AskedBy;

use super::*;

/// A VM of so much disk, by name.
fn large(number: u128, disk_gib: u64, alias: &str) -> Object {
    let mut body = body(vm(number));
    body.set("quota", json!(disk_gib));
    body.set("alias", json!(alias));
    body
}

/// What a refused create is told beside the reason.
async fn refusal(app: &Arc<App>, body: &Object) -> Object {
    match app.placement.create(body, caller()).await {
        Err(AppError::NoServer { beside, .. }) => beside,
        other => panic!("{other:?}"),
    }
}

/// What is asked of the allocator for the same VM.
fn dry_run(disk_gib: u64) -> Object {
    let vm = json!({ "vm_uuid": vm(99), "ram": 512, "quota": disk_gib, "brand": "kvm",
                     "owner_uuid": Uuid::nil() });
    Object::of(&json!({ "vm": vm, "image": {}, "nic_tags": [], "create": true, "reserve": false }))
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_is_a_decision_with_what_would_help() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    let beside = refusal(&app, &large(5, 1 << 20, "large")).await;
    assert!(beside.get("steps").is_some_and(Value::is_array), "{beside:?}");
    let least = beside.get("least_changes").and_then(Value::as_array).expect("changes");
    assert!(!least.is_empty());
    let id: Uuid = beside.get("id").and_then(Value::as_str).unwrap().parse().unwrap();
    let kept = app.decisions.get(id).await.unwrap();
    assert_eq!((kept.decision.kind, kept.decision.server_uuid), (AskedBy::Vms, None));
    assert!(kept.decision.failure.unwrap().contains("disk"));
    assert_eq!(app.decisions.list(10, None)[0].id, id);
    // It can be decided again like any other.
    let again = app.decisions.replay(id, None, crate::alloc::Detail::None).await.unwrap();
    assert_eq!(again["identical"], true);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dry_runs_and_plans_say_what_a_create_does() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    let large_disk = dry_run(1 << 20);
    let mut as_reference = large_disk.clone();
    as_reference.set("create", json!(false));
    as_reference.set("package", json!({ "max_physical_memory": 512, "quota": 1 << 30 }));
    let refused = app.placement.allocate(&large_disk).await.unwrap();
    assert!(refused.failure().is_some(), "a create would be refused");
    // Under the reference's policy nobody looks at disks.
    assert!(app.placement.allocate(&as_reference).await.unwrap().failure().is_none());
    assert!(app.placement.allocate(&dry_run(1)).await.unwrap().failure().is_none());

    // As many fit as can be made, and then none.
    let plan = app.placement.plan(&dry_run(1)).await.unwrap();
    let fits = plan["fleet"]["fits"].as_u64().unwrap();
    for number in 0..fits {
        let body = large(number.into(), 1, &format!("vm{number}"));
        app.placement.create(&body, caller()).await.unwrap();
    }
    refusal(&app, &large(50, 1, "one-more")).await;
    let plan = app.placement.plan(&dry_run(1)).await.unwrap();
    assert_eq!((fits > 0, &plan["fleet"]["fits"]), (true, &json!(0)));
    assert!(app.placement.allocate(&dry_run(1)).await.unwrap().failure().is_some());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_has_one_vm_of_a_name() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let refused = async |body: &Object| match app.placement.create(body, caller()).await {
        Err(AppError::Invalid(errors)) => errors[0].field == "alias",
        _ => false,
    };
    // Two at once, one while its task is open, one when it is there.
    let (one, other) = (large(1, 1, "web"), large(2, 1, "web"));
    let (one, other) =
        tokio::join!(app.placement.create(&one, caller()), app.placement.create(&other, caller()));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert!(refused(&large(3, 1, "web")).await);
    let placed = one.or(other).unwrap();
    agent.dispatched().await;
    let mut made = a_vm(placed.vm_uuid, "running");
    made.index.alias = Some("web".to_owned());
    made.vm.owner_uuid = Uuid::nil().to_string();
    let vms = BTreeMap::from([(placed.vm_uuid, made)]);
    agent.report(true, &BTreeMap::new(), &vms).await;
    eventually(|| app.fleet.vm_get(placed.vm_uuid).is_ok()).await;
    agent.finish(&placed.id, Value::Null).await;
    ended(&app, &placed.id).await;
    assert!(refused(&large(3, 1, "web")).await);
    // Of another owner it is another name.
    let mut others = large(4, 1, "web");
    others.set("owner_uuid", json!(Uuid::from_u128(7)));
    app.placement.create(&others, caller()).await.unwrap();
    app.shutdown().await;
}
