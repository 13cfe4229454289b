//! `/events` of a real coordinator: what happens is told once, in order, and can be resumed.

use std::time::Duration;

use futures_util::StreamExt as _;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: Value,
}

/// A reader of the stream.
struct Reader {
    response: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
    last_id: Option<String>,
}

impl Reader {
    async fn open(client: &Client, query: &str, after: Option<&str>) -> Self {
        let mut request = reqwest::Client::new().get(format!("{}/events?{query}", client.base()));
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let response = response.bytes_stream().boxed();
        let mut reader = Self { response, text: String::new(), last_id: None };
        // The first block only tells where the reader is: from here on nothing is missed.
        assert_eq!(reader.block().await.name, "");
        reader
    }

    /// The next block; `None` at the end of the stream.
    async fn try_block(&mut self) -> Option<Event> {
        let block = loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                break block;
            }
            let chunk = tokio::time::timeout(SOON, self.response.next()).await.expect("a block");
            let chunk = chunk?.ok()?;
            self.text.push_str(&String::from_utf8_lossy(&chunk));
        };
        let mut event = Event::default();
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => event.id = Some(id.to_owned()),
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).expect("JSON"),
                _ => {}
            }
        }
        if event.id.is_some() {
            self.last_id.clone_from(&event.id);
        }
        Some(event)
    }

    async fn block(&mut self) -> Event {
        self.try_block().await.expect("the stream goes on")
    }

    /// The next event of a kind that fits.
    async fn next(&mut self, name: &str, fits: impl Fn(&Value) -> bool) -> Event {
        loop {
            let event = self.block().await;
            assert_ne!(event.name, "reset", "{event:?}");
            if event.name == name && fits(&event.data) {
                return event;
            }
        }
    }
}

async fn nop(client: &Client, agent: &Agent, body: &Value) -> String {
    let path = format!("/servers/{}/nop", agent.server_uuid);
    let id = client.post(&path, body).await.expect(200)["id"].clone();
    id.as_str().expect("a task id").to_owned()
}

#[tokio::test]
async fn servers_tasks_jobs_and_tickets_are_told_and_a_reader_can_come_back() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut all = Reader::open(&client, "", None).await;
    let agent = Agent::start(&coordinator.agent_url());
    let server = &agent.server_uuid;
    let up = all.next("server", |data| data["server_uuid"] == **server).await;
    assert_eq!(up.data["status"], "running");
    assert!(up.data["revision"].as_str().is_some_and(|revision| revision.contains('.')));

    agent.wait_status(&client, "running", SOON).await;
    let id = nop(&client, &agent, &json!({ "sleep": 1 })).await;
    let made = all.next("task", |data| data["id"] == *id).await;
    assert_eq!((&made.data["status"], &made.data["task"]), (&json!("active"), &json!("nop")));
    all.next("progress", |data| data["task_id"] == *id).await;
    let done = all.next("task", |data| data["id"] == *id && data["status"] != "active").await;
    assert_eq!(done.data["status"], "complete");

    let body = json!({ "scope": "vm", "id": "x", "expires_at": "2999-01-01T00:00:00.000Z" });
    client.post(&format!("/servers/{server}/tickets"), &body).await.expect(202);
    let ticket = all.next("ticket", |data| data["id"] == "x").await;
    assert_eq!((&ticket.data["status"], &ticket.data["scope"]), (&json!("active"), &json!("vm")));

    client.post(&format!("/servers/{server}/reboot"), &json!({})).await.expect(202);
    let ended = all.next("job", |data| data["execution"] == "succeeded").await;
    assert_eq!(
        ended.data["steps"][4],
        json!({ "name": "cnapi.send_reboot_message", "state": "ok" })
    );

    // Everything after the task was made, again and in the same order.
    let mut again = Reader::open(&client, "kind=task,ticket,job", made.id.as_deref()).await;
    let first = again.block().await;
    assert_eq!((&first.name[..], &first.data["id"]), ("task", &json!(id)));
    assert_ne!(first.id, made.id, "what was seen is not repeated");
    let repeated = again.next("ticket", |_| true).await;
    assert_eq!(repeated, ticket);
    assert_eq!(again.next("job", |data| data["execution"] == "succeeded").await, ended);

    let filter = format!("task={id}&server_uuid={server}");
    let mut about = Reader::open(&client, &filter, made.id.as_deref()).await;
    let other = nop(&client, &agent, &json!({})).await;
    all.next("task", |data| data["id"] == *other && data["status"] == "complete").await;
    let done_again = about.next("task", |data| data["status"] == "complete").await;
    assert_eq!(done_again, done);
}

#[tokio::test]
async fn what_is_no_longer_known_is_a_reset_and_a_stop_ends_the_stream() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let mut reader = Reader::open(&client, "kind=task", None).await;
    let id = nop(&client, &agent, &json!({})).await;
    let made = reader.next("task", |data| data["id"] == *id).await;
    let last = made.id.expect("an id");

    let exit = coordinator.daemon().terminate().await;
    assert_eq!(exit, Some(0));
    while reader.try_block().await.is_some() {}
    coordinator.restart();

    // The history of changes is in memory: after a restart it begins anew.
    let mut request = reqwest::Client::new().get(format!("{}/events", client.base()));
    request = request.header("last-event-id", &last);
    let mut response = request.send().await.expect("an answer").bytes_stream().boxed();
    let mut text = String::new();
    while !text.contains("event: reset\n") {
        let chunk = tokio::time::timeout(SOON, response.next()).await.expect("a block");
        text.push_str(&String::from_utf8_lossy(&chunk.expect("more").expect("bytes")));
    }
    let mut request = reqwest::Client::new().get(format!("{}/events", client.base()));
    request = request.header("last-event-id", "999.1");
    let first = request.send().await.expect("an answer").bytes_stream().boxed().next().await;
    let first = String::from_utf8_lossy(&first.expect("a block").expect("bytes")).into_owned();
    assert!(first.contains("event: reset\n"), "{first}");
}

#[tokio::test]
async fn bad_input_names_the_field() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    for (query, field) in [
        ("kind=x", "kind"),
        ("server_uuid=x", "server_uuid"),
        ("vm_uuid=1", "vm_uuid"),
        ("task=a%2Fb", "task"),
        ("last_event_id=x", "last_event_id"),
    ] {
        let answer = client.get(&format!("/events?{query}")).await;
        assert_eq!(answer.status, 409, "{query}: {}", answer.text);
        assert_eq!(answer.json["errors"][0]["field"], field, "{query}");
    }
}
