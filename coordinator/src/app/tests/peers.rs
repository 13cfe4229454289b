//! Two coordinators on one store: each counts what the other promised, and of two that decide at
//! the same moment only one gets the room.

use std::collections::BTreeSet;

use super::allocate::{allocate, ask, register, report, room};
use super::*;
use crate::app::AllocationConfig;

/// Two coordinators that know the same servers, each with room for so many VMs.
async fn pair(servers: u128, fits: u64, ttl_s: u64) -> (Arc<App>, Arc<App>) {
    let disk = Disk::new();
    let store = disk.store().await;
    let reservation_ttl = Duration::from_secs(ttl_s);
    let allocation = AllocationConfig { reservation_ttl, ..AllocationConfig::default() };
    let config = AppConfig { allocation, ..AppConfig::default() };
    let a = disk.start_on(&store, "a", 1, config.clone()).await;
    for n in 1..=servers {
        register(&a, server(n), fits).await;
    }
    let b = disk.start_on(&store, "b", 2, config).await;
    for n in 1..=servers {
        report(&b, server(n), fits, &json!({})).await;
    }
    (a, b)
}

async fn eventually_room(app: &App, wanted: u64) {
    for _ in 0..1_000 {
        if room(app).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("room for {} VMs, not {wanted}", room(app).await);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_counts_on_both_until_it_ends() {
    // Short, because servers that only ever registered are unknown after 90 s.
    let (a, b) = pair(1, 5, 10).await;
    allocate(&b, &ask(vm(1))).await.unwrap();
    eventually_room(&a, 4).await;
    // Repeated on the other: it takes the first one's place on both.
    allocate(&a, &ask(vm(1))).await.unwrap();
    allocate(&a, &ask(vm(2))).await.unwrap();
    eventually_room(&b, 3).await;
    assert_eq!(room(&a).await, 3);
    // The report that shows one of them reaches only one coordinator.
    let shown = json!({ vm(1).to_string(): { "uuid": vm(1), "owner_uuid": Uuid::from_u128(77),
        "brand": "joyent", "cpu_cap": 100, "quota": 1, "max_physical_memory": 1024,
        "state": "running", "zone_state": "running", "last_modified": "" } });
    report(&a, server(1), 5, &shown).await;
    assert_eq!(room(&a).await, 3);
    // There its record goes, and with it the promise of the other, which hears of the VM, too.
    report(&b, server(1), 5, &shown).await;
    assert_eq!(room(&b).await, 3);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((room(&a).await, room(&b).await), (3, 3));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!((room(&a).await, room(&b).await), (4, 4), "the second one's time is over");
    let left = a.ctx.parts.store.list("reserve/", None, 10).await.unwrap();
    assert_eq!(left.records.len(), 0);
    // A coordinator that ends leaves its reservations to the other, which ends them in time.
    allocate(&b, &ask(vm(3))).await.unwrap();
    eventually_room(&a, 3).await;
    b.shutdown().await;
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(room(&a).await, 4);
    a.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_create_counts_on_both_until_it_ends() {
    let (a, b) = pair(1, 8, 60).await;
    let mut agent = Agent::connect_only(&b, server(1)).await;
    let before = room(&a).await;
    let placed = b.placement.create(&body(vm(5)), caller()).await.unwrap();
    // Its 512 MiB and the hypervisor's.
    eventually_room(&a, before - 1).await;
    let taken = try_place(&a, vm(5)).await;
    assert!(matches!(taken, Err(AppError::VmExists(_))), "{taken:?}");
    agent.dispatched().await;
    let error = muster_shared::wire::TaskError {
        message: "no".to_owned(),
        code: "Broken".into(),
        details: None,
    };
    agent.send(Accepted { id: placed.id.clone(), intake: None }).await;
    let failed = TaskResult {
        id: placed.id.clone(),
        status: Outcome::Failure,
        result: Value::Null,
        error: Some(error),
        finished_at: String::new(),
    };
    agent.send(failed).await;
    assert_eq!(ended(&b, &placed.id).await["status"], "failure");
    eventually_room(&a, before).await;
    a.shutdown().await;
    b.shutdown().await;
}

async fn try_place(
    app: &Arc<App>,
    vm: VmUuid,
) -> Result<muster_shared::api::vm::VmPlaced, AppError> {
    app.placement.create(&body(vm), caller()).await
}

#[tokio::test(start_paused = true)]
async fn decisions_at_the_same_moment_never_take_the_same_room() {
    let (a, b) = pair(3, 5, 3600).await;
    let ask = async |n: u128| {
        let app = if n.is_multiple_of(2) { &a } else { &b };
        let mut body = ask(vm(n));
        body["least_changes"] = json!(false);
        allocate(app, &body).await.map(|answer| answer["server"]["uuid"].clone())
    };
    let answers = futures_util::future::join_all((1..=40).map(ask)).await;
    let placed: Vec<Value> = answers.into_iter().flatten().collect();
    assert_eq!(placed.len(), 15, "{placed:?}");
    let servers: BTreeSet<String> = placed.iter().map(Value::to_string).collect();
    assert_eq!(servers.len(), 3);
    for one in servers {
        assert_eq!(placed.iter().filter(|server| server.to_string() == one).count(), 5, "{one}");
    }
    eventually_room(&a, 0).await;
    eventually_room(&b, 0).await;
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_watch_missed_is_read_again() {
    let (a, b) = pair(1, 5, 3600).await;
    allocate(&b, &ask(vm(1))).await.unwrap();
    allocate(&a, &ask(vm(2))).await.unwrap();
    eventually_room(&a, 3).await;
    // As after a watch that fell behind: nothing is lost, nothing counts twice.
    a.ctx.feed.load().await.unwrap();
    assert_eq!(room(&a).await, 3);
    // And what went away meanwhile is forgotten.
    let key = crate::app::keys::reservation(vm(1));
    let gone = crate::store::Write::delete(key, crate::store::Expect::Any);
    a.ctx.parts.store.commit(vec![gone]).await.unwrap();
    a.ctx.feed.load().await.unwrap();
    assert_eq!(room(&a).await, 4);
    a.shutdown().await;
    b.shutdown().await;
}
