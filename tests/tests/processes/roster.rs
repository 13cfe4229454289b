//! Who is alive: what a client sees when an agent falls silent, and how often it is written.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use muster_tests::proxy::{Mode, Proxy};
use muster_tests::wait::wait_for;
use nix::sys::signal::Signal;
use serde_json::json;

async fn status_writes(client: &Client, server: &str) -> i64 {
    let why = client.get(&format!("/why/server/{server}")).await.expect(200);
    why["status_writes_total"].as_i64().unwrap_or_else(|| panic!("no count in {why:#}"))
}

#[tokio::test]
async fn a_silent_agent_is_unknown_within_3_s_and_back_within_3_s() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let before = status_writes(&client, &agent.server_uuid).await;

    agent.daemon().signal(Signal::SIGSTOP);
    agent.wait_status(&client, "unknown", Duration::from_secs(3)).await;
    agent.daemon().signal(Signal::SIGCONT);
    agent.wait_status(&client, "running", Duration::from_secs(3)).await;

    assert_eq!(status_writes(&client, &agent.server_uuid).await - before, 2);
}

#[tokio::test]
async fn a_partition_is_noticed_and_heals() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let proxy = Proxy::start(coordinator.address()).await;
    let agent = Agent::start(&format!("ws://{}", proxy.address()));
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;

    proxy.set(Mode::Silent);
    agent.wait_status(&client, "unknown", Duration::from_secs(4)).await;
    let refused = client.post(&format!("/servers/{}/nop", agent.server_uuid), &json!({})).await;
    assert_eq!(refused.status, 409);
    assert_eq!(refused.json["code"], "ServerNotRunning");
    proxy.set(Mode::Open);
    agent.wait_status(&client, "running", Duration::from_secs(12)).await;

    proxy.set(Mode::Closed);
    agent.wait_status(&client, "unknown", Duration::from_secs(3)).await;
    proxy.set(Mode::Open);
    agent.wait_status(&client, "running", Duration::from_secs(12)).await;
}

#[tokio::test]
async fn a_paused_coordinator_blames_itself() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let before = status_writes(&client, &agent.server_uuid).await;

    coordinator.daemon().signal(Signal::SIGSTOP);
    // The pause itself: longer than the time after which a silent agent is lost.
    tokio::time::sleep(Duration::from_secs(4)).await;
    coordinator.daemon().signal(Signal::SIGCONT);

    let seen = client.get(&format!("/servers/{}", agent.server_uuid)).await.expect(200);
    assert_eq!(seen["status"], "running", "the coordinator's own pause is not the agent's");
    wait_for("the agent is heard again", Duration::from_secs(15), || async {
        let why = client.get(&format!("/why/server/{}", agent.server_uuid)).await;
        if why.json["connected"] == true { Ok(()) } else { Err(why.text) }
    })
    .await;
    assert_eq!(status_writes(&client, &agent.server_uuid).await, before);
}

#[tokio::test]
async fn an_agent_that_posts_is_served() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let uuid = muster_tests::daemon::fresh_uuid();
    let sysinfo = json!({ "sysinfo": {
        "UUID": uuid, "Hostname": "old-node", "Live Image": "20260101T000000Z", "Setup": "true",
        "System Type": "SunOS", "Boot Time": "1700000000", "MiB of Memory": "8182",
        "SDC Version": "7.0", "CPU Total Cores": 8,
    }});
    client.post(&format!("/servers/{uuid}/sysinfo"), &sysinfo).await.expect(200);
    client.post(&format!("/servers/{uuid}/events/heartbeat"), &json!({})).await.expect(204);
    wait_for("the POSTing server runs", Duration::from_secs(7), || async {
        let answer = client.get(&format!("/servers/{uuid}")).await;
        if answer.json["status"] == "running" { Ok(()) } else { Err(answer.text) }
    })
    .await;
    wait_for("silence makes it unknown", Duration::from_secs(18), || async {
        let answer = client.get(&format!("/servers/{uuid}")).await;
        if answer.json["status"] == "unknown" { Ok(()) } else { Err(answer.text) }
    })
    .await;
}
