//! What holds for any decisions of the application: several at once are as many one by one, and a
//! replay is the original, whatever the configuration is by then.

use proptest::prelude::*;

use super::allocate::{allocate, ask, refused, register, reservations, room};
use super::*;
use crate::alloc::{Config, Detail, HostOs, Order, default_expression};
use crate::app::AllocationConfig;

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
            body["keep"] = json!(n == 1);
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
            let replay = app.decisions.replay(id, None, Detail::Full).await;
            match replay {
                Ok(replay) => assert_eq!(replay["identical"], true, "{then:?} {replay:#}"),
                // Only what nobody asked to keep may have been lost with the process.
                Err(AppError::SnapshotNotKept(_)) => {
                    assert!(!app.decisions.get(id).await.unwrap().decision.keep);
                }
                Err(error) => panic!("{error}"),
            }
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
    first["keep"] = json!(false);
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
