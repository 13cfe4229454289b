//! Records that this version can't read, or not in full.

use futures_util::StreamExt as _;
use muster_shared::api::job::JobParams;

use super::*;
use crate::app::images::{FileClaim, ImageFilter};
use crate::app::jobs::JobFilter;
use crate::app::{BootChange, BootOwner, Mode, keys};
use crate::store::{Expect, Write};

/// One key of each kind of record.
fn one_of_each() -> Vec<String> {
    let (server, id) = (server(1), Uuid::from_u128(7));
    vec![
        format!("server/{server}"),
        format!("sysinfo/{server}"),
        format!("roster/{server}"),
        format!("figures/{server}"),
        format!("vms/{server}/{id}"),
        format!("place/{id}"),
        format!("reserve/{id}"),
        format!("ticket/{id}"),
        format!("task/{id}"),
        format!("job/{id}"),
        format!("jobrun/{server}/x"),
        format!("allocation/{id}"),
        format!("image/{id}"),
    ]
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_set_aside_and_the_rest_goes_on() {
    let disk = Disk::new();
    let store = disk.store().await;
    let damaged = one_of_each();
    let open = format!("open/{}/{}", server(1), Uuid::from_u128(7));
    let mut writes: Vec<Write> =
        damaged.iter().map(|key| Write::put(key, Expect::Absent, "{")).collect();
    writes.push(Write::put(open, Expect::Absent, "{}"));
    store.commit(writes).await.unwrap();

    let app = disk.start_on(&store, "a", 7, AppConfig::default()).await;
    assert!(app.tasks.list(&TaskFilter::default()).await.unwrap().tasks.is_empty());
    assert!(app.jobs.list(&JobFilter::default()).await.unwrap().is_empty());
    assert!(app.images.list(&ImageFilter::default()).await.unwrap().is_empty());
    assert!(app.decisions.list(10, None).is_empty());
    app.jobs.tick().await.unwrap();
    app.tasks.sweep().await.unwrap();
    let named = app.ctx.feed.damaged().list();
    assert_eq!(
        named.keys().collect::<Vec<_>>(),
        damaged.iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    );
    let why = app.why.records();
    assert_eq!(why["damaged"].as_array().unwrap().len(), damaged.len());

    // What overwrites such a record makes it good again, and the others did not stop the work.
    let mut agent = Agent::connect(&app, server(2)).await;
    let id = app.tasks.create(server(2), "nop", Object::new(), caller()).await.unwrap();
    let dispatched = agent.dispatched().await.id;
    agent.finish(&dispatched, json!({})).await;
    assert_eq!(ended(&app, &id).await["status"], "complete");
    let good = Write::delete(&damaged[0], Expect::Any);
    app.ctx.feed.commit(vec![good]).await.unwrap();
    assert_eq!(app.ctx.feed.damaged().list().len(), damaged.len() - 1);
    app.shutdown().await;
}

/// As a later version would leave the record: with a member that this one doesn't know.
async fn add_member(app: &App, key: &str) {
    let stored = app.ctx.parts.store.get(key).await.unwrap().expect(key);
    let mut record: Object = keys::decode(&stored).unwrap();
    record.set("later", json!({ "kept": [1] }));
    let write = Write::put(key, Expect::At(stored.revision), keys::encode(&record));
    app.ctx.feed.commit(vec![write]).await.unwrap();
}

/// Changes everything that [`add_member`] was done to.
async fn change_all(app: &Arc<App>, agent: &mut Agent, tasks: &[TaskId; 2], made: &Made) {
    let any = &Expected::ANY;
    app.fleet.update_record(server(1), any, |record| record.reserved = true).await.unwrap();
    agent.finish(&tasks[0], json!({ "vm": a_vm(vm(5), "running").vm })).await;
    agent.finish(&tasks[1], Value::Null).await;
    ended(app, &tasks[0]).await;
    app.tickets.release(made.ticket, Expected::ANY).await.unwrap();
    while !app.jobs.get(made.job).await.unwrap().0.execution.has_ended() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let file = futures_util::stream::iter([Ok("content".into())]).boxed();
    app.images.upload(made.image, FileClaim::default(), any, file).await.unwrap();
    let change = BootChange { serial: Some(Some("ttya".to_owned())), ..BootChange::default() };
    app.boot.change(BootOwner::Default, Mode::Merge, &change, any).await.unwrap();
}

struct Made {
    ticket: muster_shared::ids::TicketUuid,
    job: Uuid,
    image: muster_shared::ids::ImageUuid,
}

#[tokio::test(start_paused = true)]
async fn members_of_a_later_version_survive_a_change() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    assert_eq!(agent.dispatched().await.id, placed.id);
    let manifest = json!({ "name": "n", "version": "1", "type": "zvol", "os": "linux" });
    let made = Made {
        ticket: super::tickets::create(&app, "a").await,
        job: app.jobs.server_reboot(server(1), JobParams::default(), caller()).await.unwrap(),
        image: app.images.create(Object::of(&manifest)).await.unwrap().uuid,
    };
    let next = super::tickets::create(&app, "a").await;
    let rebooting = agent.dispatched().await.id;
    let queues = app.ctx.parts.store.list(keys::QUEUES, None, 1).await.unwrap();
    let changed = [
        keys::server(server(1)),
        keys::task(&placed.id),
        keys::place(vm(5)),
        keys::ticket(made.ticket),
        keys::ticket(next),
        queues.records[0].key.clone(),
        format!("job/{}", made.job),
        format!("image/{}", made.image),
        "boot/default".to_owned(),
        keys::roster(server(1)),
    ];
    let mut before = Vec::new();
    for key in &changed {
        add_member(&app, key).await;
        before.push(app.ctx.parts.store.get(key).await.unwrap().unwrap().revision);
    }
    change_all(&app, &mut agent, &[placed.id, rebooting], &made).await;
    drop(agent);
    eventually(|| app.fleet.with(server(1), |e| e.stored_status() == "unknown").unwrap()).await;
    for (key, before) in changed.iter().zip(before) {
        let stored = app.ctx.parts.store.get(key).await.unwrap().expect(key);
        assert!(stored.revision > before, "{key} was not changed");
        let record: Object = keys::decode(&stored).unwrap();
        assert_eq!(record.get("later"), Some(&json!({ "kept": [1] })), "{key}");
    }
    app.shutdown().await;
}
