//! What holds for any decisions of the application: several at once are as many one by one, and a
//! replay is the original, whatever the configuration is by then.

use futures_util::TryStreamExt as _;
use object_store::ObjectStore as _;
use proptest::prelude::*;

use super::allocate::{allocate, ask, refused, register, reservations, room};
use super::slow_blobs::SlowBlobs;
use super::*;
use crate::alloc::{Config, Detail, HostOs, Order, default_expression};
use crate::app::AllocationConfig;

/// Decisions whose snapshots are kept unasked.
const SNAPSHOTS: usize = 100;

fn allocation(order: Order, changes: &Value) -> AppConfig {
    let policy = Config::new(&default_expression(false), changes, HostOs::Any).unwrap();
    let allocation =
        AllocationConfig { policy: Arc::new(policy), order, ..AllocationConfig::default() };
    AppConfig { allocation, ..AppConfig::default() }
}

async fn with_servers(order: Order, fits: &[u64]) -> Arc<App> {
    let app = Disk::new().start_with(allocation(order, &json!({}))).await;
    for (n, fits) in (1..).zip(fits) {
        register(&app, server(n), *fits).await;
    }
    app
}

/// Asks for `count` VMs at once, and for as many one by one with the seeds of the answer.
async fn several_and_one_by_one(order: Order, fits: Vec<u64>, count: u64, seed: u32) {
    let at_once = with_servers(order, &fits).await;
    let vms: Vec<VmUuid> = (1..=u128::from(count)).map(|n| vm(100 + n)).collect();
    let mut body = ask(vms[0]);
    (body["count"], body["seed"], body["vm_uuids"]) = (json!(count), json!(seed), json!(vms));
    let free = room(&at_once).await;
    let answer = allocate(&at_once, &body).await;
    assert_eq!(answer.is_some(), count <= free, "all fit or none is placed");
    let one_by_one = with_servers(order, &fits).await;
    let Some(answer) = answer else {
        assert_eq!((room(&at_once).await, reservations(&at_once).await), (free, 0));
        // One by one as many go as there is room for; it is the next that fails.
        for n in 0..free {
            let mut body = ask(vms[usize::try_from(n).unwrap()]);
            body["seed"] = json!(u64::from(seed) + n);
            assert!(allocate(&one_by_one, &body).await.is_some());
        }
        let mut next = ask(vms[usize::try_from(free).unwrap()]);
        next["seed"] = json!(u64::from(seed) + free);
        refused(&one_by_one, &next).await;
        at_once.shutdown().await;
        return one_by_one.shutdown().await;
    };
    // An answer for one VM has no list.
    let several = answer["allocations"].as_array().cloned().unwrap_or_else(|| {
        let (server, score) = (&answer["server"]["uuid"], &answer["server"]["score"]);
        vec![json!({ "id": answer["id"], "vm_uuid": vms[0], "server_uuid": server,
            "score": score, "seed": answer["seed"] })]
    });
    assert_eq!(several.len(), vms.len());
    for one in &several {
        let mut body = ask(one["vm_uuid"].as_str().unwrap().parse().unwrap());
        body["seed"] = one["seed"].clone();
        let alone = allocate(&one_by_one, &body).await.unwrap();
        assert_eq!(alone["server"]["uuid"], one["server_uuid"]);
        assert_eq!(alone["server"]["score"], one["score"]);
        let get = async |app: &App, id: &Value| {
            app.decisions.get(id.as_str().unwrap().parse().unwrap()).await.unwrap().fingerprint
        };
        let same = get(&one_by_one, &alone["id"]).await == get(&at_once, &one["id"]).await;
        assert!(same, "every verdict is the same");
    }
    assert_eq!(room(&at_once).await, room(&one_by_one).await);
    at_once.shutdown().await;
    one_by_one.shutdown().await;
}

fn on_paused_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn several_at_once_are_as_many_one_by_one(
        fits in prop::collection::vec(1..4u64, 1..8), count in 1..9u64, seed in any::<u32>(),
        shuffle in any::<bool>(),
    ) {
        let order = if shuffle { Order::Shuffled } else { Order::Uuid };
        on_paused_time(several_and_one_by_one(order, fits, count, seed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_the_original_under_whatever_configuration() {
    for (then, now) in [(Order::Shuffled, Order::Uuid), (Order::Uuid, Order::Shuffled)] {
        let disk = Disk::new();
        let old = json!({ "weight_uniform_random": "0.5", "filter_vm_limit": "100" });
        let app = disk.start_with(allocation(then, &old)).await;
        for n in 1..=9 {
            register(&app, server(n), 20).await;
        }
        let mut ids = Vec::new();
        for n in 1..=5 {
            let mut body = ask(vm(n));
            if n == 1 {
                body["keep"] = json!(true);
            }
            ids.push(allocate(&app, &body).await.unwrap()["id"].clone());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        app.shutdown().await;
        let new = json!({ "weight_uniform_random": "0", "filter_vm_limit": "1" });
        let app = disk.start_with(allocation(now, &new)).await;
        let first = ids[0].as_str().unwrap().parse().unwrap();
        let misspelt = json!({ "changeDefault": {} });
        let refused = app.decisions.replay(first, Some(&misspelt), Detail::None).await;
        let Err(AppError::Invalid(errors)) = refused else { panic!("{refused:?}") };
        assert_eq!(errors[0].field, "config.changeDefault");
        for id in ids {
            let id = id.as_str().unwrap().parse().unwrap();
            // A clean stop loses nothing.
            let replay = app.decisions.replay(id, None, Detail::Full).await.unwrap();
            assert_eq!(replay["identical"], true, "{then:?} {replay:#}");
        }
        app.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_burst_only_the_last_snapshots_are_left_and_those_to_keep() {
    let app = with_servers(Order::Shuffled, &[1]).await;
    let mut first = ask(vm(1));
    (first["reserve"], first["keep"]) = (json!(false), json!(true));
    let kept = allocate(&app, &first).await.unwrap()["id"].as_str().unwrap().parse().unwrap();
    // Ids are in the order of the clock.
    tokio::time::sleep(Duration::from_millis(10)).await;
    first.as_object_mut().unwrap().remove("keep");
    let lost = allocate(&app, &first).await.unwrap()["id"].as_str().unwrap().parse().unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    // The background job has no chance to write while these are decided.
    let body = &Object::of(&first);
    let burst = (0..120).map(|_| app.placement.allocate(body));
    for answer in futures_util::future::join_all(burst).await {
        assert!(answer.unwrap().failure().is_none());
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let replay = app.decisions.replay(kept, None, Detail::None).await.unwrap();
    assert_eq!(replay["identical"], true);
    let gone = app.decisions.replay(lost, None, Detail::None).await.unwrap_err();
    assert!(matches!(gone, AppError::SnapshotNotKept(_)), "{gone}");
    assert!(gone.to_string().ends_with("is no longer kept"));
    assert_eq!(app.decisions.get(lost).await.unwrap().decision.vm_uuid, vm(1).to_string());
    app.shutdown().await;
}

/// What is in the blobs of saved snapshots.
async fn saved_parts(app: &App) -> Vec<String> {
    let prefix = object_store::path::Path::from("snapshots");
    let found: Vec<_> = app.ctx.parts.blobs.list(Some(&prefix)).try_collect().await.unwrap();
    let names = found.iter().map(|blob| blob.location.to_string());
    names.filter(|name| name.ends_with(".zst")).collect()
}

#[tokio::test(start_paused = true)]
async fn decisions_on_the_same_fleet_share_a_saved_snapshot() {
    let app = with_servers(Order::Shuffled, &[1, 1, 1]).await;
    let mut body = ask(vm(1));
    body["reserve"] = json!(false);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(allocate(&app, &body).await.unwrap()["id"].clone());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(saved_parts(&app).await.len(), 1);
    // What is not to be kept leaves nothing behind.
    body["keep"] = json!(false);
    let answer = allocate(&app, &body).await.unwrap();
    assert!(answer.get("id").is_none(), "nothing can be asked of it");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!((saved_parts(&app).await.len(), app.decisions.list(100, None).len()), (1, 5));
    // The first of these is made on the same fleet. Another one is another part, which holds what
    // changed.
    for n in 1..=3 {
        let id = allocate(&app, &ask(vm(n))).await.unwrap()["id"].clone();
        tokio::time::sleep(Duration::from_secs(10)).await;
        ids.push(id);
    }
    let parts = saved_parts(&app).await;
    let chain = parts[0].rsplit_once('/').unwrap().0.to_owned();
    assert!(parts.len() == 3 && parts.iter().all(|part| part.starts_with(&chain)), "{parts:?}");
    for id in &ids {
        let id = id.as_str().unwrap().parse().unwrap();
        let replay = app.decisions.replay(id, None, Detail::None).await.unwrap();
        assert_eq!(replay["identical"], true);
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_stop_every_kept_decision_can_be_replayed() {
    let disk = Disk::new();
    let app = disk.start().await;
    for n in 1..=5 {
        register(&app, server(n), 1000).await;
    }
    let mut ids = Vec::new();
    for n in 1..=130 {
        ids.push(allocate(&app, &ask(vm(n))).await.unwrap()["id"].clone());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    app.shutdown().await;
    let app = disk.start().await;
    for (place, id) in ids.iter().rev().enumerate() {
        let replay =
            app.decisions.replay(id.as_str().unwrap().parse().unwrap(), None, Detail::None);
        match replay.await {
            Ok(replay) => assert!(place < SNAPSHOTS && replay["identical"] == true),
            Err(AppError::SnapshotNotKept(_)) => assert!(place >= SNAPSHOTS, "{place}"),
            Err(error) => panic!("{error}"),
        }
    }
    // What nobody can ask for any more goes.
    let old = saved_parts(&app).await;
    for n in 1..=5 {
        register(&app, server(n), 1000).await;
    }
    let mut body = ask(vm(200));
    body["reserve"] = json!(false);
    for _ in 0..=SNAPSHOTS {
        allocate(&app, &body).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let parts = saved_parts(&app).await;
    assert!(!old.is_empty() && !parts.iter().any(|part| old.contains(part)), "{parts:?}");
    app.shutdown().await;
}

/// How many of two decisions can be replayed after a stop some time after them, on blobs that take
/// seconds for each write.
async fn replayed_after_a_stop(after: Duration) -> usize {
    let disk = Disk::new();
    let store = disk.store().await;
    let blobs = Arc::new(SlowBlobs(Arc::clone(&disk.blobs)));
    let parts = Parts { blobs, ..disk.parts(&store, "a", 7) };
    let app = crate::start(AppConfig::default(), parts).await.unwrap();
    register(&app, server(1), 1000).await;
    let mut ids: Vec<Uuid> = Vec::new();
    for n in 1..=2 {
        let answer = allocate(&app, &ask(vm(n))).await.unwrap();
        ids.push(answer["id"].as_str().unwrap().parse().unwrap());
    }
    tokio::time::sleep(after).await;
    app.shutdown().await;
    let app = disk.start().await;
    let mut replayed = 0;
    for id in ids {
        let replay = app.decisions.replay(id, None, Detail::None).await;
        replayed += usize::from(replay.is_ok_and(|replay| replay["identical"] == true));
    }
    app.shutdown().await;
    replayed
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_a_snapshot_is_written_loses_none() {
    // The second is saved after a rest, which is several times as long as it took to save the first.
    let moments = (0..160).map(|step| Duration::from_millis(step * 200 + 50));
    let mut lost = Vec::new();
    for after in moments {
        if replayed_after_a_stop(after).await < 2 {
            lost.push(after);
        }
    }
    assert!(lost.is_empty(), "stopped {lost:?} after the decisions");
}

#[tokio::test(start_paused = true)]
async fn a_history_that_is_too_long_is_cut_at_the_start() {
    let disk = Disk::new();
    let app = disk.start().await;
    register(&app, server(1), 1000).await;
    let mut body = ask(vm(1));
    body["reserve"] = json!(false);
    for _ in 0..350 {
        allocate(&app, &body).await.unwrap();
    }
    assert_eq!(app.decisions.list(1000, None).len(), 350);
    app.shutdown().await;
    let allocation = AllocationConfig { history: 7, ..AllocationConfig::default() };
    let app = disk.start_with(AppConfig { allocation, ..AppConfig::default() }).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(app.decisions.list(1000, None).len(), 7);
    app.shutdown().await;
}
