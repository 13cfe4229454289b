//! Two coordinators on one store (cnapi.md 22): what one is told, the other knows.

use super::tickets::{create, start_on, store};
use super::*;
use crate::app::fields::Extras;

const BEAT: Duration = Duration::from_secs(5);

async fn two() -> [Arc<App>; 2] {
    let disk = Disk::new();
    let store = store(&disk).await;
    [start_on(&disk, &store, "a", 1).await, start_on(&disk, &store, "b", 2).await]
}

fn status(app: &App) -> Value {
    let view = app.server_get(server(1), Extras::default());
    view.map(|view| view["status"].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_wait_here_ends_with_a_release_there() {
    let [a, b] = two().await;
    let first = create(&a, "x").await;
    let second = create(&b, "x").await;
    let release = async {
        eventually(|| a.tickets.waiting() == 1).await;
        b.ticket_release(first, Expected::ANY).await
    };
    let (waited, released) = tokio::join!(a.ticket_wait(second, None), release);
    waited.unwrap();
    released.unwrap();
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_here_ends_with_a_task_that_the_other_dispatched() {
    let [a, b] = two().await;
    let mut agent = Agent::connect(&b, server(1)).await;
    eventually(|| status(&a) == "running").await;
    // Told to the coordinator of the agent, and to the other.
    for told in [&b, &a] {
        let id = nop(told).await;
        let work = async {
            let dispatch = agent.dispatched().await;
            assert_eq!(dispatch.id, id);
            agent.finish(&id, json!({ "x": 1 })).await;
        };
        let (task, other, ()) = tokio::join!(ended(&a, &id), ended(&b, &id), work);
        assert_eq!(task["status"], "complete");
        assert_eq!(task["history"][0]["event"], json!({ "x": 1 }));
        assert_eq!(task["history"], other["history"]);
    }
    a.shutdown().await;
    b.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_there_keep_a_server_running_here() {
    let [a, b] = two().await;
    a.sysinfo_register(server(1), sysinfo(server(1))).await.unwrap();
    a.heartbeat_posted(server(1));
    eventually(|| status(&a) == "running" && status(&b) == "running").await;
    for beat in 0..60 {
        // Ten times as long as a silence that ends in `unknown`.
        tokio::time::sleep(BEAT).await;
        a.heartbeat_posted(server(1));
        let both = (status(&a), status(&b));
        assert_eq!(both, (json!("running"), json!("running")), "after beat {beat}");
    }
    let silent = async {
        while status(&a) != "unknown" || status(&b) != "unknown" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), silent).await.expect("it is silent on both");
    b.heartbeat_posted(server(1));
    eventually(|| status(&a) == "running" && status(&b) == "running").await;
    a.shutdown().await;
    b.shutdown().await;
}
