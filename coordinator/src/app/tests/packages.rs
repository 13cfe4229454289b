//! Packages: whose a name is, and what VMs get of them.

use muster_shared::api::package::Package;

use super::*;
use crate::app::ServerUpdate;
use crate::store::Held;

fn members(name: &str, more: &Value) -> Object {
    let mut members = Object::of(&json!({ "name": name, "max_physical_memory": 512 }));
    members.extend(Object::of(more));
    members
}

async fn make(app: &Arc<App>, name: &str, more: &Value) -> Held<Package> {
    app.packages.create(&members(name, more)).await.unwrap()
}

/// A VM whose sizes are its package's.
fn of_package(number: u128, package: &str) -> Object {
    let mut body = body(vm(number));
    body.remove("ram");
    body.remove("quota");
    body.set("package", package);
    body
}

async fn names(app: &Arc<App>) -> Vec<String> {
    app.packages.list().await.unwrap().into_iter().map(|package| package.name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_name_and_a_uuid_are_one_package_s() {
    let disk = Disk::new();
    let app = disk.start().await;
    let (one, other) = (members("small", &json!({})), members("small", &json!({ "vcpus": 2 })));
    let (one, other) = tokio::join!(app.packages.create(&one), app.packages.create(&other));
    let [made, refused] = if one.is_ok() { [one, other] } else { [other, one] };
    let made = made.unwrap().value;
    assert!(matches!(refused, Err(AppError::PackageExists(name)) if name == "small"));
    let same_uuid = members("large", &json!({ "uuid": made.uuid }));
    let refused = app.packages.create(&same_uuid).await;
    assert!(matches!(refused, Err(AppError::PackageExists(uuid)) if uuid == made.uuid.to_string()));
    assert_eq!(names(&app).await, ["small"], "a refusal leaves nothing");
    app.shutdown().await;

    // They outlive a coordinator, and are found by both.
    let app = disk.start().await;
    for named in ["small", &made.uuid.to_string(), &made.uuid.to_string().to_uppercase()] {
        assert_eq!(app.packages.get(named).await.unwrap().value, made);
    }
    for none in ["large", "a b", &Uuid::from_u128(1).to_string(), &"x".repeat(1000)] {
        let missing = app.packages.get(none).await;
        assert!(matches!(missing, Err(AppError::PackageNotFound(_))), "{missing:?}");
    }
    app.packages.delete(&made.uuid.to_string(), &Expected::ANY).await.unwrap();
    let again = app.packages.delete("small", &Expected::ANY).await;
    assert!(matches!(again, Err(AppError::PackageNotFound(_))));
    // Name and uuid are free again.
    make(&app, "small", &json!({ "uuid": made.uuid })).await;
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn changes_are_of_the_version_that_was_read() {
    let app = Disk::new().start().await;
    let first = make(&app, "small", &json!({ "vcpus": 2 })).await;
    let of_first = Expected::one_of(vec![first.revision.to_string()]);
    let change = |vcpus: Value| Object::from_iter([("vcpus", vcpus)]);
    let same = app.packages.change("small", &change(json!(2)), &of_first).await.unwrap();
    assert_eq!(same.revision, first.revision, "what changes nothing is not written");
    let changed = app.packages.change("small", &change(Value::Null), &of_first).await.unwrap();
    assert_eq!((changed.value.vcpus, changed.value.uuid), (None, first.value.uuid));
    assert_eq!(app.packages.get("small").await.unwrap().revision, changed.revision);
    let stale = app.packages.change("small", &change(json!(4)), &of_first).await;
    assert!(matches!(stale, Err(AppError::Changed)));
    assert!(matches!(app.packages.delete("small", &of_first).await, Err(AppError::Changed)));
    let bad = app.packages.change("small", &change(json!(0)), &Expected::ANY).await;
    assert!(matches!(bad, Err(AppError::Invalid(errors)) if errors[0].field == "vcpus"));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_gets_the_sizes_that_it_does_not_name() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let more = json!({ "quota": 2048, "vcpus": 2, "max_swap": 9000, "overprovision_cpu": 3 });
    let small = make(&app, "small", &more).await.value;
    let mut asked = of_package(5, "small");
    asked.set("vcpus", 1);
    app.placement.create(&asked, caller()).await.unwrap();
    let params = agent.dispatched().await.params;
    for (name, value) in [
        ("ram", json!(512)),
        ("quota", json!(2)),
        ("vcpus", json!(1)),
        ("cpu_cap", json!(100)),
        ("max_swap", json!(9000)),
        ("package_name", json!("small")),
        ("billing_id", json!(small.uuid)),
    ] {
        assert_eq!(params[name], value, "{name}: {params:?}");
    }
    assert_eq!(params.get("package"), None);
    let decision = app.decisions.list(1, None)[0].id;
    let request = app.decisions.get(decision).await.unwrap().request.unwrap();
    let package = request.get("package").unwrap();
    assert_eq!((&package["name"], &package["uuid"]), (&json!("small"), &json!(small.uuid)));
    assert_eq!((&package["overprovision_cpu"], package.get("quota")), (&json!(3), None));

    // On a server of the client's choice, by uuid; the package is gone before the VM is made.
    let mut asked = of_package(6, &small.uuid.to_string());
    asked.set("ram", 256);
    let id = app.placement.create_on(server(1), vm(6), asked, caller()).await.unwrap();
    app.packages.delete("small", &Expected::ANY).await.unwrap();
    let made = agent.dispatched().await;
    assert_eq!(made.id, id);
    assert_eq!((&made.params["ram"], &made.params["vcpus"]), (&json!(256), &json!(2)));
    assert_eq!((&made.params["quota"], made.params.get("package")), (&json!(2), None));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_package_that_there_is_not_is_refused_by_name() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    make(&app, "small", &json!({})).await;
    let asked = of_package(5, "smal");
    let dry = Object::of(&json!({
        "vm": { "vm_uuid": vm(5), "owner_uuid": Uuid::nil() }, "image": {}, "nic_tags": [],
        "package": "smal",
    }));
    let on = app.placement.create_on(server(1), vm(5), asked.clone(), caller()).await.map(drop);
    for refused in [
        app.placement.create(&asked, caller()).await.map(drop),
        on,
        app.placement.allocate(&dry).await.map(drop),
        app.placement.plan(&dry).await.map(drop),
    ] {
        let Err(AppError::Invalid(errors)) = refused else { panic!("{refused:?}") };
        assert_eq!(errors[0].field, "package");
        assert!(errors[0].message.contains("did you mean small?"), "{errors:?}");
    }
    assert_eq!(app.decisions.list(10, None), []);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn dry_runs_and_plans_ask_what_a_create_of_the_package_does() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    make(&app, "small", &json!({ "quota": 1024 })).await;
    make(&app, "large", &json!({ "quota": 1 << 30 })).await;
    let ask = |package: &str, create: bool| {
        Object::of(&json!({
            "vm": { "vm_uuid": vm(9), "owner_uuid": Uuid::nil() }, "image": {}, "nic_tags": [],
            "package": package, "create": create, "reserve": false,
        }))
    };
    for create in [true, false] {
        let fits = app.placement.allocate(&ask("small", create)).await.unwrap();
        assert!(fits.failure().is_none(), "create: {create}");
        let decision = app.decisions.list(1, None)[0].id;
        let request = app.decisions.get(decision).await.unwrap().request.unwrap();
        assert_eq!(request.get("package").unwrap()["name"], "small", "create: {create}");
    }
    assert!(app.placement.allocate(&ask("large", true)).await.unwrap().failure().is_some());
    let plan = app.placement.plan(&ask("small", true)).await.unwrap();
    // As many as are made of it.
    let fits = plan["fleet"]["fits"].as_u64().unwrap();
    for number in 0..fits {
        app.placement
            .create(&of_package(100 + u128::from(number), "small"), caller())
            .await
            .unwrap();
    }
    let full = app.placement.create(&of_package(99, "small"), caller()).await;
    assert!(fits > 0 && matches!(full, Err(AppError::NoServer { .. })), "{fits}: {full:?}");
    app.shutdown().await;
}

/// Also where it is placed again, when nobody knows the package any more.
#[tokio::test(start_paused = true)]
async fn the_traits_of_a_package_choose_the_servers() {
    let app = Disk::new().start().await;
    let mut agents = [
        Agent::connect(&app, server(1)).await,
        Agent::connect(&app, server(2)).await,
        Agent::connect(&app, server(3)).await,
    ];
    for with_ssd in [server(1), server(2)] {
        let traits = Some(Object::from_iter([("ssd", true)]));
        let update = ServerUpdate { traits, ..ServerUpdate::default() };
        app.servers.modify(with_ssd, &update, &Expected::ANY, caller()).await.unwrap();
    }
    make(&app, "fast", &json!({ "traits": { "ssd": true } })).await;
    let placed = app.placement.create(&of_package(5, "fast"), caller()).await.unwrap();
    let first = usize::from(placed.server_uuid == server(2));
    assert_eq!(placed.server_uuid, agents[first].server);
    app.packages.delete("fast", &Expected::ANY).await.unwrap();
    agents[first].dispatched().await;
    agents[first].refuse(&placed.id, "Draining").await;
    assert_eq!(agents[1 - first].dispatched().await.id, placed.id);
    agents[1 - first].refuse(&placed.id, "Draining").await;
    let ended = ended(&app, &placed.id).await;
    assert_eq!(ended["error"]["code"], "Draining", "the third has no ssd: {ended}");
    app.shutdown().await;
}
