//! Records that this version can't read, or not in full.

use super::*;
use crate::app::images::ImageFilter;
use crate::app::jobs::JobFilter;
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
    assert!(app.decisions.list(10, None).await.unwrap().is_empty());
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
