//! Allocations: reservations and what ends them, several at once, replays, restarts.

use muster_shared::api::allocation::AskedBy;
use muster_shared::api::ticket::{QueueName, TicketServer};
use muster_shared::ids::TicketUuid;

use super::*;
use crate::alloc::Detail;
use crate::app::tickets::TicketRequest;
use crate::app::{AllocationConfig, Decided};

/// A request for a VM that takes 1 GiB and nothing beside.
pub(super) fn ask(uuid: VmUuid) -> Value {
    json!({
        "vm": { "vm_uuid": uuid, "owner_uuid": Uuid::from_u128(77), "ram": 1024,
                "brand": "joyent", "cpu_cap": 100, "quota": 1 },
        "image": {},
        "package": { "max_physical_memory": 1024, "cpu_cap": 100, "quota": 1024,
                     "overprovision_cpu": 4, "overprovision_memory": 1, "overprovision_storage": 1 },
        "nic_tags": ["admin"],
    })
}

async fn try_allocate(app: &App, body: &Value) -> Result<Decided, AppError> {
    app.placement.allocate(&Object::of(&body)).await
}

/// The answer, if there is a server.
pub(super) async fn allocate(app: &App, body: &Value) -> Option<Value> {
    let decided = try_allocate(app, body).await.unwrap();
    decided.failure().is_none().then(|| serde_json::to_value(&decided).unwrap())
}

pub(super) async fn refused(app: &App, body: &Value) -> Value {
    let mut decided = try_allocate(app, body).await.unwrap();
    assert!(decided.failure().is_some(), "it fits");
    let explanation = decided.take_explanation();
    let mut answer = serde_json::to_value(&decided).unwrap();
    if let Some(explanation) = explanation {
        answer["explain"] = json!(explanation);
    }
    answer
}

/// Registers a server without an agent, with room for so many VMs of [`ask`].
pub(super) async fn register(app: &Arc<App>, server: ServerUuid, fits: u64) {
    app.reports.register(server, sysinfo(server)).await.unwrap();
    report(app, server, fits, &json!({})).await;
}

pub(super) async fn report(app: &App, server: ServerUuid, fits: u64, vms: &Value) {
    // 15 % are never promised; the half keeps rounding away.
    let total = ((fits * 1024 + 512) * 100).div_ceil(85) << 20;
    let body = json!({
        "vms": vms,
        "meminfo": { "availrmem_bytes": total, "arcsize_bytes": 0, "total_bytes": total },
        "diskinfo": { "pool_size_bytes": 4000u64 << 30, "pool_alloc_bytes": 0,
            "system_used_bytes": 0, "installed_images_used_bytes": 0, "cores_quota_used_bytes": 0,
            "zone_quota_bytes": 0, "zone_quota_used_bytes": 0, "kvm_quota_bytes": 0,
            "kvm_zvol_volsize_bytes": 0, "kvm_zvol_used_bytes": 0 },
    });
    app.reports.status_posted(server, &Object::of(&body));
    while app.fleet.save_vms().await.unwrap() {}
}

/// Lays a merge patch (RFC 7396) over a document.
fn merge(target: &mut Value, patch: &Value) {
    for (name, value) in patch.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(name)),
            Value::Object(_) => merge(&mut target[name], value),
            value => target[name] = value.clone(),
        }
    }
}

async fn left_mib(app: &App, server: ServerUuid) -> f64 {
    let body = json!({ "servers": [server] });
    let capacity = app.placement.capacity(&Object::of(&body)).await.unwrap();
    capacity["capacities"][server.to_string()]["ram"].as_f64().unwrap()
}

/// How many more VMs of [`ask`] fit.
pub(super) async fn room(app: &App) -> u64 {
    let body = ask(vm(9_999));
    app.placement.plan(&Object::of(&body)).await.unwrap()["fleet"]["fits"].as_u64().unwrap()
}

pub(super) async fn reservations(app: &App) -> usize {
    app.ctx.parts.store.list("reserve/", None, 1000).await.unwrap().records.len()
}

#[tokio::test(start_paused = true)]
async fn an_allocation_keeps_room_until_its_time_is_over() {
    let disk = Disk::new();
    let app = disk.start().await;
    register(&app, server(1), 3).await;
    assert_eq!(room(&app).await, 3);
    let answer = allocate(&app, &ask(vm(1))).await.unwrap();
    assert_eq!(answer["server"]["uuid"], json!(server(1)));
    assert!(answer["server"]["sysinfo"]["Network Interfaces"].is_object());
    assert!(answer["server"].get("vms").is_none());
    assert_eq!((room(&app).await, reservations(&app).await), (2, 1));
    // Again for the same VM: the one takes the other's place.
    allocate(&app, &ask(vm(1))).await.unwrap();
    assert_eq!((room(&app).await, reservations(&app).await), (2, 1));
    let mut idle = ask(vm(2));
    idle["reserve"] = json!("false");
    allocate(&app, &idle).await.unwrap();
    assert_eq!((room(&app).await, reservations(&app).await), (2, 1));
    // Capacity, as in the reference, knows nothing of promises.
    assert!(left_mib(&app, server(1)).await > 3000.0);
    let extras = crate::app::fields::Extras { capacity: true, ..Default::default() };
    let shown = app.servers.get(server(1), extras).unwrap();
    let unreserved = shown.unreserved_ram.and_then(|mib| mib.as_f64());
    assert_eq!(unreserved, Some(left_mib(&app, server(1)).await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    app.shutdown().await;

    let app = disk.start().await;
    report(&app, server(1), 3, &json!({})).await;
    assert_eq!(room(&app).await, 2, "a restart forgets no reservation");
    tokio::time::sleep(Duration::from_secs(62)).await;
    assert_eq!((room(&app).await, reservations(&app).await), (3, 0));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_report_a_ticket_or_a_task_takes_the_place_of_a_reservation() {
    let app = Disk::new().start().await;
    register(&app, server(1), 5).await;
    for n in 1..=3 {
        allocate(&app, &ask(vm(n))).await.unwrap();
    }
    assert_eq!((room(&app).await, reservations(&app).await), (2, 3));
    // The first shows up.
    let shown = json!({ vm(1).to_string(): { "uuid": vm(1), "owner_uuid": Uuid::from_u128(77),
        "brand": "joyent", "cpu_cap": 100, "quota": 1, "max_physical_memory": 1024,
        "state": "running", "zone_state": "running", "last_modified": "" } });
    report(&app, server(1), 5, &shown).await;
    // A ticket opens for the second.
    let extra = json!({ "owner_uuid": Uuid::from_u128(77), "max_physical_memory": 1024,
        "cpu_cap": 100, "quota": 1, "brand": "joyent" });
    let ticket = TicketRequest {
        queue: QueueName {
            server_uuid: TicketServer(Some(server(1))),
            scope: "vm".to_owned(),
            id: vm(2).to_string(),
        },
        expires_at: "3000".to_owned(),
        action: Some("provision".to_owned()),
        extra: Object::of(&extra),
        req_id: "r".to_owned(),
        client: None,
    };
    let ticket: TicketUuid = app.tickets.create(ticket).await.unwrap().uuid;
    // A task makes the third.
    let params = json!({ "uuid": vm(3), "owner_uuid": Uuid::from_u128(77), "brand": "joyent",
        "ram": 1024, "cpu_cap": 100, "quota": 1, "image_uuid": Uuid::from_u128(99) });
    let params = Object::of(&params);
    let task = app.placement.create_on(server(1), vm(3), params, caller()).await.unwrap();
    assert_eq!(room(&app).await, 2, "no VM counts twice");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((room(&app).await, reservations(&app).await), (2, 0));
    app.tickets.release(ticket, Expected::ANY).await.unwrap();
    assert_eq!(room(&app).await, 3, "the ticket ended");
    app.tasks.cancel(&task, &Expected::ANY).await.unwrap();
    assert_eq!(room(&app).await, 4, "the task ended");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn several_are_placed_at_once_or_none() {
    let app = Disk::new().start().await;
    for n in 1..=3 {
        register(&app, server(n), 2).await;
    }
    let mut body = ask(vm(1));
    (body["count"], body["seed"]) = (json!(7), json!(5));
    let answer = refused(&app, &body).await;
    assert_eq!(answer["least_changes"], Value::Null);
    assert_eq!((room(&app).await, reservations(&app).await), (6, 0), "all or none");
    body["count"] = json!(5);
    body["vm_uuids"] = json!((11..=15).map(vm).collect::<Vec<_>>());
    let mut trial = body.clone();
    trial["reserve"] = json!(false);
    let planned = allocate(&app, &trial).await.unwrap();
    let placed = allocate(&app, &body).await.unwrap();
    assert_eq!((room(&app).await, reservations(&app).await), (1, 5));
    let servers = |answer: &Value| -> Vec<Value> {
        let all = answer["allocations"].as_array().unwrap();
        all.iter().map(|one| one["server_uuid"].clone()).collect()
    };
    assert_eq!(servers(&planned), servers(&placed));
    app.shutdown().await;

    // One after the other, with the seeds of the answer, is the same.
    let app = Disk::new().start().await;
    for n in 1..=3 {
        register(&app, server(n), 2).await;
    }
    for one in placed["allocations"].as_array().unwrap() {
        let mut body = ask(one["vm_uuid"].as_str().unwrap().parse().unwrap());
        body["seed"] = one["seed"].clone();
        let alone = allocate(&app, &body).await.unwrap();
        assert_eq!(alone["server"]["uuid"], one["server_uuid"]);
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_imagined_changes_nothing_and_what_is_suggested_works() {
    let app = Disk::new().start().await;
    register(&app, server(1), 1).await;
    let mut large = ask(vm(1));
    (large["vm"]["ram"], large["seed"]) = (json!(4096), json!(1));
    let answer = refused(&app, &large).await;
    let suggestions = answer["least_changes"].as_array().unwrap().clone();
    assert!(suggestions.len() >= 2, "{suggestions:?}");
    for suggestion in &suggestions {
        let mut body = large.clone();
        merge(&mut body, &suggestion["request"]);
        body["reserve"] = json!(false);
        if suggestion["what_if"].is_object() {
            body["what_if"] = suggestion["what_if"].clone();
        }
        assert!(allocate(&app, &body).await.is_some(), "{suggestion}");
    }
    let mut elsewhere = large.clone();
    elsewhere["what_if"] = json!({ "add_servers": [{ "uuid": server(8), "setup": true,
        "reserved": false, "status": "running", "reservation_ratio": 0.15, "traits": {},
        "sysinfo": sysinfo(server(8)), "memory_available_bytes": 1u64 << 36,
        "memory_total_bytes": 1u64 << 36, "disk_pool_size_bytes": 1u64 << 40,
        "disk_pool_alloc_bytes": 0, "disk_system_used_bytes": 0,
        "disk_installed_images_used_bytes": 0, "disk_cores_quota_used_bytes": 0,
        "disk_zone_quota_bytes": 0, "disk_kvm_quota_bytes": 0, "disk_kvm_zvol_volsize_bytes": 0 }] });
    let answer = allocate(&app, &elsewhere).await.unwrap();
    assert_eq!(answer["server"]["uuid"], json!(server(8)));
    assert_eq!((room(&app).await, reservations(&app).await), (1, 0));
    let bad = json!({ "changeDefaults": { "filter_headnode": "perhaps" } });
    large["what_if"] = bad;
    let error = try_allocate(&app, &large).await.unwrap_err();
    assert!(
        matches!(&error, AppError::Invalid(errors) if errors[0].message.contains("filter_headnode"))
    );
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn decisions_are_kept_and_replay_also_after_a_restart() {
    let disk = Disk::new();
    let allocation = AllocationConfig { history: 4, ..AllocationConfig::default() };
    let config = AppConfig { allocation, ..AppConfig::default() };
    let app = disk.start_with(config.clone()).await;
    for n in 1..=9 {
        register(&app, server(n), u64::try_from(n).unwrap()).await;
    }
    let mut ids = Vec::new();
    for n in 1..=6 {
        let mut body = ask(vm(n));
        if n == 6 {
            body["keep"] = json!(true);
        }
        ids.push(allocate(&app, &body).await.unwrap()["id"].as_str().unwrap().to_owned());
        // Ids are in the order of the clock.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let ids: Vec<Uuid> = ids.iter().map(|id| id.parse().unwrap()).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let list = app.decisions.list(100, None);
    assert_eq!(list.len(), 4, "the history is bounded");
    let page = app.decisions.list(2, Some(list[1].id));
    assert_eq!(page, list[2..], "a page begins after its marker");
    assert_eq!(list[0].id, ids[5]);
    assert!(matches!(app.decisions.get(ids[0]).await, Err(AppError::AllocationNotFound(_))));
    let record = app.decisions.get(ids[5]).await.unwrap();
    assert_eq!(record.request.unwrap().get("vm").unwrap()["vm_uuid"], json!(vm(6)));
    assert_eq!(record.steps[0].remaining, 9);
    assert!(record.decision.reserved);
    let again = app.decisions.replay(ids[5], None, Detail::Full).await.unwrap();
    assert_eq!(again["identical"], true, "{again:#}");
    // The fleet changes; the decision does not.
    for n in 1..=9 {
        report(&app, server(n), 1, &json!({})).await;
    }
    app.shutdown().await;

    let app = disk.start_with(config).await;
    for id in &ids[2..] {
        let restored = app.decisions.replay(*id, None, Detail::Full).await.unwrap();
        assert_eq!(restored["identical"], true, "{restored:#}");
        if *id == ids[5] {
            assert_eq!(restored.to_string(), again.to_string());
        }
    }
    let other = json!({ "changeDefaults": { "filter_vm_limit": -1 } });
    let other = app.decisions.replay(ids[5], Some(&other), Detail::Counts).await.unwrap();
    assert_eq!((&other["identical"], &other["server"]), (&json!(false), &Value::Null));
    let steps = other["difference"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|s| s["step"] == "Servers with more VMs than limit" && s["is"] == 0));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn explanations_name_what_was_compared() {
    let app = Disk::new().start().await;
    register(&app, server(1), 1).await;
    let mut body = ask(vm(1));
    (body["vm"]["ram"], body["explain"]) = (json!(4096), json!("full"));
    let answer = refused(&app, &body).await;
    let notes = answer["explain"][server(1).to_string()].as_array().unwrap();
    let last = notes.last().unwrap();
    assert_eq!(
        (&last["algorithm"], &last["verdict"]),
        (&json!("hard-filter-min-ram"), &json!("removed"))
    );
    assert_eq!(last["compared"]["need_mib"], 4096);
    assert!(last["compared"]["spare_mib"].as_u64().unwrap() < 4096);
    body["steps"] = json!("counts");
    let answer = refused(&app, &body).await;
    assert_eq!(answer["steps"][0], json!({ "step": "Received by DAPI", "remaining": 1 }));
    body["steps"] = json!("none");
    assert_eq!(refused(&app, &body).await["steps"], json!([]));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn affinity_by_alias_and_tag_and_volumes_from_find_live_vms() {
    let app = Disk::new().start().await;
    let mut agents = Vec::new();
    let owner = Uuid::from_u128(77);
    let placed = |uuid: VmUuid, alias: &str, role: &str| {
        let value = json!({
            "uuid": uuid, "owner_uuid": owner, "brand": "joyent", "max_physical_memory": 256,
            "cpu_cap": 100, "quota": 1, "state": "running", "zone_state": "running",
            "last_modified": "2026-01-01T00:00:00.000Z",
            "index": { "alias": alias, "tags": { "role": role } },
        });
        BTreeMap::from([(uuid, serde_json::from_value::<VmReport>(value).unwrap())])
    };
    for (n, alias, role) in [(1, "web1", "web"), (2, "db1", "db"), (3, "web2", "web")] {
        let mut agent = Agent::connect(&app, server(n)).await;
        agent.report(true, &BTreeMap::new(), &placed(vm(100 + n), alias, role)).await;
        eventually(|| app.fleet.vm_get(vm(100 + n)).is_ok()).await;
        agents.push(agent);
    }
    let wish = |key: &str, operator: &str, value: &str, kind: &str| {
        let mut body = ask(vm(1));
        body["reserve"] = json!(false);
        body["vm"]["affinity"] = json!([{ "key": key, "operator": operator, "value": value,
            "valueType": kind, "isSoft": false }]);
        body
    };
    let chosen = async |body: Value| {
        let answer = allocate(&app, &body).await;
        answer.map(|answer| answer["server"]["uuid"].clone())
    };
    assert_eq!(chosen(wish("instance", "==", "db1", "exact")).await, Some(json!(server(2))));
    assert_eq!(chosen(wish("instance", "!=", "web*", "glob")).await, Some(json!(server(2))));
    assert_eq!(chosen(wish("role", "==", "db", "exact")).await, Some(json!(server(2))));
    assert_eq!(chosen(wish("role", "!=", "/^web$/", "re")).await, Some(json!(server(2))));
    assert_eq!(chosen(wish("instance", "==", "nope", "exact")).await, None);
    let mut volumes = ask(vm(1));
    volumes["vm"]["docker"] = json!(true);
    let from = json!([vm(103)]).to_string();
    volumes["vm"]["internal_metadata"] = json!({ "docker:volumesfrom": from });
    assert_eq!(chosen(volumes.clone()).await, Some(json!(server(3))));
    let from = json!([vm(999)]).to_string();
    volumes["vm"]["internal_metadata"] = json!({ "docker:volumesfrom": from });
    let failure = try_allocate(&app, &volumes).await.unwrap().failure();
    assert!(matches!(failure, Some(AppError::NoServer { volumes: true, .. })), "{failure:?}");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn two_hundred_at_once_fill_the_fleet_exactly_across_a_restart() {
    let disk = Disk::new();
    let fits = |n: u128| if n.is_multiple_of(2) { 8 } else { 7 };
    let app = disk.start().await;
    for n in 1..=20 {
        register(&app, server(n), fits(n)).await;
    }
    let mut placed: BTreeMap<u128, ServerUuid> = BTreeMap::new();
    let run = async |app: Arc<App>, vms: Vec<u128>, stop_after: Option<usize>| {
        let one = |n: u128| {
            let app = Arc::clone(&app);
            async move {
                let mut body = ask(vm(n));
                body["least_changes"] = json!(false);
                (n, app.placement.allocate(&Object::of(&body)).await)
            }
        };
        let mut all: futures_util::stream::FuturesUnordered<_> = vms.into_iter().map(one).collect();
        let mut answers = Vec::new();
        while let Some((n, answer)) = futures_util::StreamExt::next(&mut all).await {
            let server = answer.ok().filter(|decided| decided.failure().is_none()).map(|decided| {
                let answer = serde_json::to_value(&decided).unwrap();
                answer["server"]["uuid"].as_str().unwrap().parse::<ServerUuid>().unwrap()
            });
            answers.push((n, server));
            if stop_after.is_some_and(|most| answers.len() >= most) {
                break;
            }
        }
        answers
    };
    let first = run(Arc::clone(&app), (1..=200).collect(), Some(60)).await;
    placed.extend(first.into_iter().filter_map(|(n, server)| Some((n, server?))));
    assert!(placed.len() >= 60, "some were answered before the end");
    // Ends without warning: what was under way is dropped, and what it held in memory with it.
    app.ctx.cancel.cancel();
    drop(app);
    // Time goes on, so that ids made of it and of the same seed differ.
    tokio::time::sleep(Duration::from_millis(10)).await;

    let app = disk.start().await;
    for n in 1..=20 {
        report(&app, server(n), fits(n), &json!({})).await;
    }
    let rest: Vec<u128> = (1..=200).filter(|n| !placed.contains_key(n)).collect();
    let second = run(Arc::clone(&app), rest, None).await;
    placed.extend(second.into_iter().filter_map(|(n, server)| Some((n, server?))));
    assert_eq!(placed.len(), 150);
    let mut on: BTreeMap<ServerUuid, u64> = BTreeMap::new();
    for server in placed.values() {
        *on.entry(*server).or_default() += 1;
    }
    for n in 1..=20 {
        assert_eq!(on.get(&server(n)).copied(), Some(fits(n)), "server {n}");
    }
    assert_eq!((room(&app).await, reservations(&app).await), (0, 150));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn places_of_vms_that_are_there_are_swept() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    agent.dispatched().await;
    agent.finish(&placed.id, json!({ "vm": a_vm(vm(5), "running").vm })).await;
    assert_eq!(ended(&app, &placed.id).await["status"], "complete");
    let now = BTreeMap::from([(vm(5), a_vm(vm(5), "running"))]);
    agent.report(true, &BTreeMap::new(), &now).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let places = app.ctx.parts.store.list("place/", None, 10).await.unwrap();
    assert_eq!(places.records.len(), 0);
    let decisions = app.decisions.list(10, None);
    assert_eq!((decisions[0].kind, decisions.len()), (AskedBy::Vms, 1));
    agent.report(true, &now, &BTreeMap::new()).await;
    eventually(|| app.fleet.vm_get(vm(5)).is_err()).await;
    app.placement.create(&body(vm(5)), caller()).await.unwrap();
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_servers_report_is_taken_over_before_anybody_asks() {
    let app = Disk::new().start().await;
    for n in 1..=40 {
        register(&app, server(n), 2).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(app.fleet.take_stale(usize::MAX).is_empty(), "nothing is left for a decision");
    assert_eq!(room(&app).await, 80);
    app.shutdown().await;
}
