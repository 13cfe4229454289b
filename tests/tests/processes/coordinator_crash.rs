//! A coordinator that is killed: what it acknowledged is kept, and tasks end.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::wait::wait_for;
use serde_json::json;

#[tokio::test]
async fn a_task_under_way_completes_after_the_restart() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    let id = client.post(&path, &json!({ "sleep": 3 })).await.expect(200)["id"].clone();
    let id = id.as_str().expect("a task id").to_owned();

    coordinator.kill9();
    coordinator.restart();

    let task = client.wait_task(&id, 60).await;
    assert_eq!(task["status"], "complete", "{task:#}");
    assert_eq!(task["history"][0]["name"], "finish");
}

#[tokio::test]
async fn a_task_that_ends_while_the_coordinator_is_away_is_delivered_once() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    let id = client.post(&path, &json!({ "sleep": 1 })).await.expect(200)["id"].clone();
    let id = id.as_str().expect("a task id").to_owned();
    // The task must be at the agent before its coordinator goes away.
    let local = agent.client();
    wait_for("the agent has the task", Duration::from_secs(60), || async {
        let history = local.get("/history").await;
        if history.text.contains("nop") { Ok(()) } else { Err(history.text) }
    })
    .await;

    coordinator.kill9();
    wait_for("the task ends at the agent", Duration::from_secs(20), || async {
        let history = local.get("/history").await;
        let ended = history
            .json
            .as_array()
            .is_some_and(|all| all.iter().any(|t| t["task"] == "nop" && t["status"] == "finished"));
        if ended { Ok(()) } else { Err(history.text) }
    })
    .await;
    coordinator.restart();

    let task = client.wait_task(&id, 60).await;
    assert_eq!(task["status"], "complete", "{task:#}");
    assert_eq!(task["history"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_restart_changes_no_status() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    let before = agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let writes = |why: serde_json::Value| why["status_writes_total"].clone();
    let why = format!("/why/server/{}", agent.server_uuid);

    coordinator.kill9();
    coordinator.restart();

    let first = client.get(&format!("/servers/{}", agent.server_uuid)).await.expect(200);
    assert_eq!(first["status"], "running", "right after the restart");
    wait_for("the agent is back", Duration::from_secs(60), || async {
        let seen = client.get(&why).await;
        if seen.json["connected"] == true { Ok(()) } else { Err(seen.text) }
    })
    .await;
    let after = client.get(&format!("/servers/{}", agent.server_uuid)).await.expect(200);
    assert_eq!(after["status"], "running");
    assert_eq!(after["created"], before["created"]);
    assert_eq!(writes(client.get(&why).await.expect(200)), 0, "the restart wrote a status");
}

#[tokio::test]
async fn acknowledged_tasks_survive_many_kills() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    let mut acknowledged = Vec::new();
    for _round in 0..3 {
        let bodies = json!({});
        let posts = (0..20).map(|_| client.try_send(reqwest::Method::POST, &path, Some(&bodies)));
        let answers = futures_util::future::join_all(posts);
        let (answers, ()) = tokio::join!(answers, async { coordinator.kill9() });
        acknowledged.extend(
            answers
                .into_iter()
                .flatten()
                .filter(|a| a.status == 200)
                .map(|a| a.json["id"].as_str().expect("an acknowledged task has an id").to_owned()),
        );
        coordinator.restart();
        agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    }
    for id in &acknowledged {
        let task = client.wait_task(id, 60).await;
        assert_eq!(task["status"], "complete", "{task:#}");
    }
}
