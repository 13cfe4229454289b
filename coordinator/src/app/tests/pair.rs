//! Two coordinators on one store: what one is told, the other knows.

use super::tickets::create;
use super::*;
use crate::app::fields::Extras;

const BEAT: Duration = Duration::from_secs(5);

fn status(app: &App) -> &'static str {
    let view = app.servers.get(server(1), Extras::default());
    view.map(|view| view.status.as_str()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_wait_here_ends_with_a_release_there() {
    let disk = Disk::new();
    let store = disk.store().await;
    let a = disk.join(&store, "a").await;
    let b = disk.join(&store, "b").await;
    let first = create(&a, "x").await;
    let second = create(&b, "x").await;
    let release = async {
        eventually(|| a.tickets.waits().len() == 1).await;
        b.tickets.release(first, Expected::ANY).await
    };
    let (waited, released) = tokio::join!(a.tickets.wait(second, None), release);
    waited.unwrap();
    released.unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_here_ends_with_a_task_that_the_other_dispatched() {
    let disk = Disk::new();
    let store = disk.store().await;
    let b = disk.join(&store, "b").await;
    let mut agent = Agent::connect(&b, server(1)).await;
    let a = disk.join(&store, "a").await;
    let id = nop(&b).await;
    let dispatch = agent.dispatched().await;
    assert_eq!(dispatch.id, id);
    let short = a.tasks.wait(&id, Duration::from_secs(2)).await.unwrap();
    assert_eq!(short.status, TaskStatus::Active, "the time is over, the task is not");
    let work = async {
        tokio::time::sleep(SOON).await;
        agent.finish(&id, json!({ "x": 1 })).await;
    };
    let (task, other, ()) = tokio::join!(ended(&a, &id), ended(&b, &id), work);
    assert_eq!(task["status"], "complete");
    assert_eq!(task["history"][0]["event"], json!({ "x": 1 }));
    assert_eq!(task["history"], other["history"]);
    let nowhere = TaskId::from(Uuid::from_u128(7));
    assert!(matches!(a.tasks.wait(&nowhere, SOON).await, Err(AppError::TaskNotFound)));
    a.shutdown().await;
    b.shutdown().await;
}

/// What the store says of the server.
async fn stored(app: &App) -> Value {
    let record =
        app.ctx.parts.store.get(&crate::app::keys::roster(server(1))).await.unwrap().unwrap();
    let record: Value = serde_json::from_slice(&record.value).unwrap();
    record["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn heartbeats_there_keep_a_server_running_here() {
    let disk = Disk::new();
    let store = disk.store().await;
    let a = disk.join(&store, "a").await;
    a.reports.register(server(1), sysinfo(server(1))).await.unwrap();
    a.reports.heartbeat_posted(server(1));
    eventually(|| status(&a) == "running").await;
    let b = disk.join(&store, "b").await;
    for beat in 0..60 {
        // Together many times as long as any silence or grace that ends in `unknown`.
        tokio::time::sleep(BEAT).await;
        a.reports.heartbeat_posted(server(1));
        assert_eq!((status(&a), status(&b)), ("running", "running"), "{beat}");
        assert_eq!(stored(&b).await, "running", "after beat {beat}");
    }
    a.shutdown().await;
    b.shutdown().await;
}
