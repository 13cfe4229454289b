//! Disks that fail under a daemon: it ends and says so, its supervisor starts it again, and
//! nothing that it acknowledged is lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::dying_disk::DyingDisk;
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use nix::errno::Errno;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const TICKETS: &str = "/servers/default/tickets";
const WRITERS: usize = 8;
const LONG: Duration = Duration::from_secs(60);

/// Clients that make tickets until the coordinator is gone.
struct Load {
    writers: Vec<JoinHandle<Vec<String>>>,
    refused: Arc<AtomicBool>,
}

impl Load {
    fn start(coordinator: &Coordinator) -> Self {
        let refused = Arc::new(AtomicBool::new(false));
        let writer = |n: usize| {
            let client = Client::pooled(format!("http://{}", coordinator.address()));
            tokio::spawn(make_tickets(client, n, Arc::clone(&refused)))
        };
        let writers = (0..WRITERS).map(writer).collect();
        Self { writers, refused }
    }

    async fn wait_refused(&self) {
        wait_for("a write is refused", LONG, || async {
            if self.refused.load(Ordering::Relaxed) { Ok(()) } else { Err("all are accepted") }
        })
        .await;
    }

    /// The tickets that were acknowledged.
    async fn end(self) -> BTreeSet<String> {
        let mut acknowledged = BTreeSet::new();
        for writer in self.writers {
            acknowledged.extend(writer.await.expect("writers do not panic"));
        }
        acknowledged
    }
}

async fn make_tickets(client: Client, writer: usize, refused: Arc<AtomicBool>) -> Vec<String> {
    let mut made = Vec::new();
    loop {
        let id = format!("{writer}-{}", made.len());
        let body = json!({ "scope": "test", "id": id, "expires_at": "3000" });
        match client.try_send(Method::POST, TICKETS, Some(&body)).await {
            Ok(answer) if answer.status == 202 => {
                made.push(answer.json["uuid"].as_str().expect("a uuid").to_owned());
            }
            Ok(answer) => {
                assert!(answer.status.is_server_error(), "{}", answer.text);
                refused.store(true, Ordering::Relaxed);
            }
            // The process has ended.
            Err(_) => return made,
        }
    }
}

async fn acknowledge_some(client: &Client) {
    wait_for("tickets are there", LONG, || async {
        let all = client.get(TICKETS).await;
        let count = all.json.as_array().map_or(0, Vec::len);
        if count > 20 { Ok(()) } else { Err(count) }
    })
    .await;
}

/// It is about to end; until then it must not say that all is well.
async fn says_not_ready(client: &Client) {
    if let Ok(answer) = client.try_send(Method::GET, "/ping", None).await {
        assert_eq!(answer.json["ready"], false, "{}", answer.text);
        assert_eq!(answer.json["services"]["moray"], "offline", "{}", answer.text);
    }
}

async fn all_there(client: &Client, acknowledged: &BTreeSet<String>) {
    let all = client.get(TICKETS).await.expect(200);
    let uuid = |ticket: &Value| ticket["uuid"].as_str().map(str::to_owned);
    let found: BTreeSet<String> = all.as_array().into_iter().flatten().filter_map(uuid).collect();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost {} of {}: {lost:?}", lost.len(), acknowledged.len());
}

#[tokio::test]
async fn a_coordinator_ends_with_its_disk_and_loses_nothing() {
    for error in [Errno::EIO, Errno::EROFS] {
        for engine in ["redb", "sled"] {
            let dir = temp_dir();
            let disk = DyingDisk::new(dir.path());
            let mut coordinator = Coordinator::with_settings(&[&format!("store.engine={engine}")]);
            coordinator.restart_with_env(&disk.environment(&coordinator.data_dir()));
            let client = coordinator.client();
            let load = Load::start(&coordinator);
            acknowledge_some(&client).await;

            disk.fail(error);
            load.wait_refused().await;
            says_not_ready(&client).await;
            let code = coordinator.daemon().wait_exit(LONG).await;
            assert_eq!(code, Some(70), "{engine} {error}: {}", coordinator.log());

            disk.mend();
            let acknowledged = load.end().await;
            coordinator.restart();
            all_there(&coordinator.client(), &acknowledged).await;
            println!("{engine}, {error}: {} acknowledged, 0 lost", acknowledged.len());
        }
    }
}

#[tokio::test]
async fn a_store_that_is_moved_away_and_back_loses_nothing() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let load = Load::start(&coordinator);
    acknowledge_some(&client).await;

    let (store, aside) =
        (coordinator.data_dir().join("store"), coordinator.data_dir().join("aside"));
    std::fs::rename(&store, &aside).expect("it can be moved");
    load.wait_refused().await;
    std::fs::rename(&aside, &store).expect("it can be moved back");
    says_not_ready(&client).await;
    let code = coordinator.daemon().wait_exit(LONG).await;
    assert_eq!(code, Some(70), "{}", coordinator.log());

    let acknowledged = load.end().await;
    coordinator.restart();
    all_there(&coordinator.client(), &acknowledged).await;
}

#[tokio::test]
async fn an_agent_ends_with_the_disk_of_its_journal() {
    let dir = temp_dir();
    let disk = DyingDisk::new(dir.path());
    let coordinator = Coordinator::start();
    let mut agent = Agent::start(&coordinator.agent_url());
    let client = coordinator.client();
    agent.wait_status(&client, "running", LONG).await;
    let environment = disk.environment(&agent.data_dir());
    let environment: Vec<_> = environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    agent.restart_with_env(&environment);
    agent.wait_status(&client, "running", LONG).await;

    disk.fail(Errno::EIO);
    let answer = agent.ask_task("machine_boot", &json!({ "uuid": fresh_uuid() })).await;
    assert!(answer.status.is_server_error(), "not accepted: {}", answer.text);
    let code = agent.daemon().wait_exit(LONG).await;
    assert_eq!(code, Some(70), "{}", agent.daemon().log());

    disk.mend();
    agent.restart();
    agent.wait_status(&client, "running", LONG).await;
    let answer = agent.ask_task("machine_boot", &json!({ "uuid": fresh_uuid() })).await;
    assert!(answer.text.contains("No such VM"), "not accepted: {}", answer.text);
}
