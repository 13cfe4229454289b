//! Connections between agents and coordinators: what is kept when they meet the wrong one, and what
//! ends when one stands still.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use muster_tests::proxy::{Mode, Proxy};
use muster_tests::wait::wait_for;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

/// Has a task end while its coordinator hears nothing, and kills that one; returns the task's id.
async fn unheard_task(coordinator: &mut Coordinator, agent: &Agent, between: &Proxy) -> String {
    let client = coordinator.client();
    let path = format!("/servers/{}/nics/update", agent.server_uuid);
    let id = loop {
        agent.wait_status(&client, "running", LONG).await;
        between.set(Mode::ServerOnly);
        let answer = client.post(&path, &json!({ "nics": [] })).await;
        if let Some(id) = answer.json["id"].as_str() {
            break id.to_owned();
        }
        // On a slow machine it is silent for too long already.
        assert_eq!(answer.json["code"], "ServerNotRunning", "{}", answer.text);
        between.set(Mode::Open);
    };
    assert_unheard(&agent.client(), &id).await;
    coordinator.kill9();
    between.set(Mode::Open);
    id
}

async fn assert_unheard(agent: &Client, id: &str) {
    let task: Value = wait_for("the task ends", LONG, || async {
        let task = agent.get(&format!("/tasks/{id}")).await;
        if task.json["finished_at"].is_string() { Ok(task.json) } else { Err(task.text) }
    })
    .await;
    assert_eq!(task["acked"], false, "{task:#}");
}

async fn wait_turned_away(agent: &Client) {
    wait_for("the agent is of another cluster", LONG, || async {
        let ping = agent.get("/ping").await;
        let degraded = ping.json["degraded"].to_string();
        if degraded.contains("another cluster") { Ok(()) } else { Err(ping.text) }
    })
    .await;
}

/// A store that was lost, or the wrong one that was mounted, knows no tasks: that must not make the
/// agents forget how theirs ended.
#[tokio::test]
async fn an_empty_store_destroys_no_results() {
    let mut coordinator = Coordinator::start();
    let between = Proxy::start(coordinator.address()).await;
    let mut agent = Agent::start(&format!("ws://{}", between.address()));
    let id = unheard_task(&mut coordinator, &agent, &between).await;
    let (data, aside) = (coordinator.data_dir(), coordinator.data_dir().with_extension("lost"));
    std::fs::rename(&data, &aside).expect("the store is lost");
    coordinator.restart();
    wait_turned_away(&agent.client()).await;
    assert_unheard(&agent.client(), &id).await;
    let metrics = coordinator.client().get("/metrics").await.text;
    let foreign = metrics.lines().find(|line| line.starts_with("agents_foreign_total"));
    assert!(foreign.is_some_and(|line| !line.ends_with(" 0")), "{foreign:?}");
    agent.restart();
    wait_turned_away(&agent.client()).await;
    assert_unheard(&agent.client(), &id).await;

    // Found again.
    coordinator.kill9();
    std::fs::remove_dir_all(&data).expect("the other store goes");
    std::fs::rename(&aside, &data).expect("the store is back");
    coordinator.restart();
    let task = coordinator.client().wait_task(&id, 120).await;
    assert!(task["status"] == "complete" || task["status"] == "failure", "{task:#}");
    assert_ne!(task["error"]["code"], "TaskLost", "{task:#}");
}

/// The kernel of a stopped coordinator keeps its connections as they are.
#[tokio::test]
async fn an_agent_leaves_a_coordinator_that_stands_still() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", LONG).await;
    let local = agent.client();
    assert_eq!(local.get("/ping").await.json["coordinator"], "connected");
    coordinator.daemon().signal(Signal::SIGSTOP);
    wait_for("the agent notices", LONG, || async {
        let ping = local.get("/ping").await;
        if ping.json["coordinator"] == "connected" { Err(ping.text) } else { Ok(()) }
    })
    .await;
    coordinator.daemon().signal(Signal::SIGCONT);
    wait_for("the agent is back", LONG, || async {
        let ping = local.get("/ping").await;
        if ping.json["coordinator"] == "connected" { Ok(()) } else { Err(ping.text) }
    })
    .await;
    agent.wait_status(&client, "running", LONG).await;
    let nop = client.post(&format!("/servers/{}/nop", agent.server_uuid), &json!({})).await;
    client.complete_task(nop.json["id"].as_str().expect("an id"), 60).await;
}
