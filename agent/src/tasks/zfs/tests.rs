//! The kinds on a simulated host.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::wire::Outcome;
use serde_json::{Value, json};

use super::*;
use crate::drivers::faults::Fault;
use crate::drivers::zfs::sim::SimPools;
use crate::drivers::zfs::{Delegated, Kind as Sort};
use crate::node::Drivers;
use crate::tasks::machine_tests::{Host, engine, one_vm, run, submission, uuid};
use crate::tasks::record::Origin;
use crate::tasks::{HANDLERS, Need, TaskFailure};

/// `zones/one` with a snapshot `before` and two newer ones, and `zones/empty`.
pub(in crate::tasks) fn prepare(pools: &SimPools) {
    for name in
        ["zones/one", "zones/empty", "zones/one@before", "zones/one@later", "zones/one@last"]
    {
        pools.make(&name.parse().unwrap()).unwrap();
    }
}

fn params(value: Value) -> Params {
    let Value::Object(params) = value else { panic!("an object is needed") };
    params
}

async fn act(
    host: &Host,
    drivers: &Arc<Drivers>,
    kind: &str,
    of: Value,
) -> Result<Value, TaskFailure> {
    run(&host.context(drivers, &params(of)), kind, true).await
}

async fn code(host: &Host, drivers: &Arc<Drivers>, kind: &str, of: Value) -> String {
    act(host, drivers, kind, of).await.unwrap_err().code.to_string()
}

async fn ready() -> (Host, Arc<Drivers>) {
    let host = Host::new();
    prepare(&host.zfs);
    let drivers = host.agent("boot-1").await;
    (host, drivers)
}

fn names(host: &Host) -> Vec<String> {
    host.zfs.content().into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn datasets_come_move_and_go() {
    let (host, drivers) = ready().await;
    act(&host, &drivers, "zfs_create_dataset", json!({ "dataset": "zones/a" })).await.unwrap();
    let again = act(&host, &drivers, "zfs_create_dataset", json!({ "dataset": "zones/a" })).await;
    let again = again.unwrap_err();
    assert_eq!(again.code, "DatasetExists");
    let text =
        "failed to create ZFS dataset \"zones/a\": cannot create 'zones/a': dataset already exists";
    assert_eq!(again.message, text);
    let idempotent = json!({ "dataset": "zones/a", "idempotent": "true" });
    act(&host, &drivers, "zfs_create_dataset", idempotent.clone()).await.unwrap();

    let clone = json!({ "snapshot": "zones/one@before", "dataset": "zones/a/clone" });
    act(&host, &drivers, "zfs_clone_dataset", clone).await.unwrap();
    let rename = json!({ "dataset": "zones/a", "newname": "zones/b" });
    act(&host, &drivers, "zfs_rename_dataset", rename.clone()).await.unwrap();
    assert_eq!(code(&host, &drivers, "zfs_rename_dataset", rename).await, "DatasetNotFound");
    assert!(names(&host).contains(&"zones/b/clone".to_owned()));
    let destroy = json!({ "dataset": "zones/b" });
    assert_eq!(
        code(&host, &drivers, "zfs_destroy_dataset", destroy.clone()).await,
        "DatasetHasChildren"
    );
    for gone in ["zones/b/clone", "zones/b"] {
        act(&host, &drivers, "zfs_destroy_dataset", json!({ "dataset": gone })).await.unwrap();
    }
    assert_eq!(code(&host, &drivers, "zfs_destroy_dataset", destroy).await, "DatasetNotFound");
    let idempotent = json!({ "dataset": "zones/b", "idempotent": true });
    act(&host, &drivers, "zfs_destroy_dataset", idempotent).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_rollback_says_what_it_destroyed() {
    let (host, drivers) = ready().await;
    let one = "zones/one".parse().unwrap();
    host.zfs.write(&one, b"written later");
    let snapshot = json!({ "dataset": "zones/one@now" });
    act(&host, &drivers, "zfs_snapshot_dataset", snapshot.clone()).await.unwrap();
    assert_eq!(code(&host, &drivers, "zfs_snapshot_dataset", snapshot).await, "DatasetExists");
    let back = json!({ "dataset": "zones/one@before" });
    let result = act(&host, &drivers, "zfs_rollback_dataset", back).await.unwrap();
    let destroyed = ["zones/one@later", "zones/one@last", "zones/one@now"];
    assert_eq!(result, json!({ "destroyed_snapshots": destroyed }));
    assert_eq!(host.zfs.read(&one).unwrap(), b"");
    let missing = json!({ "dataset": "zones/one@never" });
    assert_eq!(code(&host, &drivers, "zfs_rollback_dataset", missing).await, "SnapshotNotFound");
    // One snapshot can be destroyed by its name as well.
    let snapshot = json!({ "dataset": "zones/one@before" });
    act(&host, &drivers, "zfs_destroy_dataset", snapshot).await.unwrap();
    assert_eq!(names(&host), ["zones", "zones/empty", "zones/one"]);
}

#[tokio::test(start_paused = true)]
async fn lists_and_properties_have_the_members_of_the_reference() {
    let (host, drivers) = ready().await;
    let list = act(&host, &drivers, "zfs_list_datasets", json!({})).await.unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 6);
    let members: Vec<_> = list[0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(members, ["name", "used", "avail", "refer", "type", "mountpoint"]);
    assert_eq!((&list[0]["name"], &list[0]["avail"]), (&json!("zones"), &json!("64G")));
    let exact = act(&host, &drivers, "zfs_list_datasets", json!({ "parseable": "true" })).await;
    assert_eq!(exact.unwrap()[0]["avail"], (64_u64 << 30).to_string());
    let of_one = json!({ "dataset": "zones/one" });
    let snapshots = act(&host, &drivers, "zfs_list_snapshots", of_one).await.unwrap();
    assert_eq!(snapshots.as_array().unwrap().len(), 3);
    assert_eq!(snapshots[0]["type"], "snapshot");
    let pools = act(&host, &drivers, "zfs_list_pools", json!({})).await.unwrap();
    let members: Vec<_> = pools[0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(members, ["name", "size", "allocated", "free", "cap", "health", "altroot"]);
    assert_eq!((&pools[0]["size"], &pools[0]["cap"]), (&json!("64G"), &json!("0%")));

    let two = json!({ "dataset": "zones/one", "properties": { "quota": 1024, "a:b": "c d" } });
    act(&host, &drivers, "zfs_set_properties", two).await.unwrap();
    let bad = json!({ "dataset": "zones/one", "properties": { "a:b": "new", "nonsense": "1" } });
    assert_eq!(code(&host, &drivers, "zfs_set_properties", bad).await, "InvalidProperty");
    let wanted = json!({ "dataset": "zones/one", "properties": ["quota", "a:b"] });
    let got = act(&host, &drivers, "zfs_get_properties", wanted).await.unwrap();
    assert_eq!(got, json!({ "zones/one": { "quota": "1024", "a:b": "c d" } }));
    let all = act(&host, &drivers, "zfs_get_properties", json!({})).await.unwrap();
    assert_eq!(all.as_object().unwrap().len(), 6);
    assert_eq!(all["zones/one"]["type"], "filesystem");
    let missing = json!({ "dataset": "zones/none" });
    assert_eq!(code(&host, &drivers, "zfs_get_properties", missing).await, "DatasetNotFound");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_name_or_not_the_agents_is_refused_and_changes_nothing() {
    let (host, drivers) = ready().await;
    host.zfs.add("tank", 1 << 30);
    let before = host.zfs.content();
    for (kind, of, expected) in [
        ("zfs_create_dataset", json!({}), "InvalidParameters"),
        ("zfs_create_dataset", json!({ "dataset": 7 }), "InvalidParameters"),
        (
            "zfs_create_dataset",
            json!({ "dataset": "zones/a", "idempotent": "x" }),
            "InvalidParameters",
        ),
        ("zfs_create_dataset", json!({ "dataset": "-r" }), "InvalidName"),
        ("zfs_create_dataset", json!({ "dataset": "zones/a b" }), "InvalidName"),
        ("zfs_create_dataset", json!({ "dataset": "zones//a" }), "InvalidName"),
        ("zfs_create_dataset", json!({ "dataset": "zones/a@b" }), "InvalidName"),
        ("zfs_create_dataset", json!({ "dataset": "tank/a" }), "DatasetProtected"),
        ("zfs_create_dataset", json!({ "dataset": "zones" }), "DatasetProtected"),
        ("zfs_create_dataset", json!({ "dataset": "zones/muster/x" }), "DatasetProtected"),
        ("zfs_create_dataset", json!({ "dataset": "zones/none/x" }), "DatasetNotFound"),
        ("zfs_destroy_dataset", json!({ "dataset": "zones/one@be fore" }), "InvalidName"),
        ("zfs_destroy_dataset", json!({ "dataset": "tank" }), "DatasetProtected"),
        ("zfs_snapshot_dataset", json!({ "dataset": "zones/one" }), "InvalidName"),
        ("zfs_snapshot_dataset", json!({ "dataset": "zones@all" }), "DatasetProtected"),
        ("zfs_rollback_dataset", json!({ "dataset": "zones/one@-r" }), "InvalidName"),
        (
            "zfs_rename_dataset",
            json!({ "dataset": "zones/one", "newname": "tank/one" }),
            "DatasetProtected",
        ),
        (
            "zfs_rename_dataset",
            json!({ "dataset": "zones/one", "newname": "zones/var/x" }),
            "DatasetProtected",
        ),
        (
            "zfs_clone_dataset",
            json!({ "snapshot": "zones/one", "dataset": "zones/x" }),
            "InvalidName",
        ),
        ("zfs_list_snapshots", json!({ "dataset": "tank" }), "DatasetProtected"),
        ("zfs_get_properties", json!({ "dataset": "tank" }), "DatasetProtected"),
        ("zfs_get_properties", json!({ "properties": [] }), "InvalidParameters"),
        ("zfs_get_properties", json!({ "properties": ["-H"] }), "InvalidProperty"),
        ("zfs_list_pools", json!({ "parseable": 7 }), "InvalidParameters"),
    ] {
        assert_eq!(code(&host, &drivers, kind, of.clone()).await, expected, "{kind} {of}");
    }
    assert_eq!(host.zfs.content(), before);
}

#[tokio::test(start_paused = true)]
async fn datasets_of_vms_are_protected_but_for_who_has_the_node_anyway() {
    let host = Host::new();
    let drivers = one_vm(&host).await;
    let (dataset, zfs) = (format!("zones/{}", uuid()), &drivers.zfs.zfs);
    let none = Properties::new();
    for name in ["zones/group", &format!("zones/group/{}", uuid()), &dataset] {
        zfs.create(&name.parse().unwrap(), Sort::Filesystem, &none).await.unwrap();
    }
    let destroy = json!({ "dataset": dataset });
    assert_eq!(
        code(&host, &drivers, "zfs_destroy_dataset", destroy.clone()).await,
        "DatasetProtected"
    );
    let snapshot = json!({ "dataset": format!("{dataset}@x") });
    assert_eq!(code(&host, &drivers, "zfs_snapshot_dataset", snapshot).await, "DatasetProtected");
    // It would move along.
    let rename = json!({ "dataset": "zones/group", "newname": "zones/other" });
    assert_eq!(code(&host, &drivers, "zfs_rename_dataset", rename).await, "DatasetProtected");
    act(&host, &drivers, "zfs_list_snapshots", destroy).await.unwrap();

    let forced = params(json!({ "dataset": dataset, "force_protected": true }));
    for origin in [Origin::Coordinator, Origin::Local] {
        let mut ctx = host.context(&drivers, &forced);
        ctx.origin = origin;
        let refused = run(&ctx, "zfs_destroy_dataset", false).await.unwrap_err();
        assert_eq!(refused.code, "DatasetProtected");
        assert!(refused.message.contains("unix socket"), "{refused}");
    }
    let mut ctx = host.context(&drivers, &forced);
    ctx.origin = Origin::Socket;
    run(&ctx, "zfs_destroy_dataset", false).await.unwrap();
    assert!(!names(&host).contains(&dataset));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_done_when_its_agent_died_is_not_taken_for_anothers() {
    for (kind, of, operation) in [
        ("zfs_create_dataset", json!({ "dataset": "zones/new" }), "zfs.create"),
        ("zfs_snapshot_dataset", json!({ "dataset": "zones/one@new" }), "zfs.snapshot"),
        (
            "zfs_clone_dataset",
            json!({ "dataset": "zones/new", "snapshot": "zones/one@before" }),
            "zfs.clone",
        ),
        ("zfs_destroy_dataset", json!({ "dataset": "zones/empty" }), "zfs.destroy"),
        (
            "zfs_rename_dataset",
            json!({ "dataset": "zones/empty", "newname": "zones/moved" }),
            "zfs.rename",
        ),
        ("zfs_rollback_dataset", json!({ "dataset": "zones/one@before" }), "zfs.rollback"),
        ("zfs_rollback_dataset", json!({ "dataset": "zones/one@before" }), "zfs.destroy_snapshots"),
    ] {
        let (host, drivers) = ready().await;
        let ctx = host.context(&drivers, &params(of));
        // It was done, and nobody was told.
        host.faults.fail_nth(operation, 1, Fault::after());
        let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind).unwrap();
        let plan = handler.plan(&ctx.params).unwrap();
        for step in &plan.steps {
            if step.apply(&ctx).await.is_err() {
                step.apply(&ctx).await.unwrap_or_else(|failure| panic!("{kind}: {failure}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_or_suspended_pool_is_told_by_its_name() {
    let (host, drivers) = ready().await;
    host.zfs.set_health("zones", "SUSPENDED");
    let create = json!({ "dataset": "zones/new" });
    let refused = act(&host, &drivers, "zfs_create_dataset", create).await.unwrap_err();
    assert_eq!(refused.code, "PoolUnavailable");
    assert!(
        refused.message.starts_with("failed to create ZFS dataset \"zones/new\": "),
        "{refused}"
    );
    // That it can't be told is not that it is gone.
    let destroy = json!({ "dataset": "zones/empty", "idempotent": true });
    assert_eq!(code(&host, &drivers, "zfs_destroy_dataset", destroy).await, "PoolUnavailable");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_zfs_offers_none_of_it_and_refuses_it_by_name() {
    let host = Host::new();
    let with = engine(host.agent("boot-1").await, Duration::from_secs(3600)).await;
    let kinds = |engine: &crate::tasks::Engine| {
        engine.offered().iter().filter(|handler| handler.needs() == Some(Need::Zfs)).count()
    };
    assert_eq!(kinds(&with), 11);
    let drivers = Arc::into_inner(host.agent("boot-1").await).unwrap();
    let without = engine(Arc::new(Drivers { zfs: Delegated::none(), ..drivers }), LIMIT).await;
    assert_eq!(kinds(&without), 0);
    let id = "task".parse().unwrap();
    let list = submission(&id, "zfs_create_dataset", params(json!({ "dataset": "zones/a" })));
    without.submit(list).await.unwrap();
    assert!(without.wait(&id, Duration::from_secs(100)).await);
    let result = without.result(&id).await.unwrap();
    let error = result.error.unwrap();
    assert_eq!((result.status, error.code), (Outcome::Failure, Code::NotSupported));
    assert_eq!(error.details.unwrap()["capability"], "zfs");
}
