//! Changes whose client or agent goes away in the middle: they happen or they do not, and the
//! coordinator knows which. Connections end after drawn times, of which some hit the moment
//! between a commit and what is made of it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::{Answer, Client};
use muster_tests::scripted_agent::ScriptedAgent;
use muster_tests::sim_agent::SimAgent;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(10);
/// How long after its last message a client or an agent goes away, µs.
const DELAYS: [u64; 8] = [0, 0, 200, 200, 500, 1_000, 2_000, 4_000];

async fn moment(turn: usize) {
    tokio::time::sleep(Duration::from_micros(DELAYS[turn % DELAYS.len()])).await;
}

/// Sends a request and goes away without waiting for the answer.
async fn post_and_leave(address: &str, path: &str, body: &Value, turn: usize) {
    let mut stream = TcpStream::connect(address).await.expect("the coordinator listens");
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len(),
    );
    stream.write_all(request.as_bytes()).await.expect("the coordinator reads");
    moment(turn).await;
}

fn new_vm() -> Value {
    json!({ "uuid": fresh_uuid(), "image_uuid": fresh_uuid(), "ram": 256, "quota": 1,
        "networks": ["admin"] })
}

async fn room(client: &Client) -> u64 {
    let body = json!({ "vm": { "ram": 256, "quota": 1 }, "image": {}, "nic_tags": [],
        "package": { "max_physical_memory": 256 } });
    let plan = client.post("/capacity/plan", &body).await.expect(200);
    plan["fleet"]["fits"].as_u64().expect("a number")
}

async fn wait_room(client: &Client, wanted: u64) {
    wait_for("all room is back", SOON, || async {
        let left = room(client).await;
        if left == wanted { Ok(()) } else { Err(left) }
    })
    .await;
}

/// The tasks that are active, by the list of all and by that of the active ones.
async fn active(client: &Client) -> (Vec<Value>, Vec<Value>) {
    let ids = |answer: Value| -> Vec<Value> {
        let all = answer.as_array().cloned().expect("a list");
        all.into_iter().filter(|task| task["status"] == "active").map(|t| t["id"].clone()).collect()
    };
    let all = ids(client.get("/tasks").await.expect(200));
    (all, ids(client.get("/tasks?status=active").await.expect(200)))
}

#[tokio::test]
async fn a_task_whose_client_goes_away_is_known_and_sent() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = SimAgent::connect(&coordinator).await;
    agent.wait_running(&client).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    for turn in 0..40 {
        post_and_leave(coordinator.address(), &path, &json!({}), turn).await;
    }
    let made = settled(&client).await;
    coordinator.restart();
    let client = coordinator.client();
    assert_eq!(client.get("/tasks").await.expect(200), made, "after a restart nothing more runs");
}

/// The tasks once all have ended and no more are made. On a busy machine a request whose client has
/// gone may be handled after others that came later.
async fn settled(client: &Client) -> Value {
    const LOOKS: usize = 50;
    let (mut made, mut same) = (Value::Null, 0);
    while same < LOOKS {
        // The agent ends what it is sent at once: what stays active was not sent.
        wait_for("every task ends", Duration::from_secs(30), || async {
            let seen = active(client).await;
            if seen == (Vec::new(), Vec::new()) { Ok(()) } else { Err(seen) }
        })
        .await;
        let now = client.get("/tasks").await.expect(200);
        same = if now == made { same + 1 } else { 0 };
        made = now;
    }
    made
}

/// By id: whether the task is active.
async fn listed(client: &Client, query: &str) -> BTreeMap<String, bool> {
    let answer = client.get(&format!("/tasks{query}")).await.expect(200);
    let entry =
        |task: &Value| (task["id"].as_str().expect("an id").to_owned(), task["status"] == "active");
    answer.as_array().expect("a list").iter().map(entry).collect()
}

/// Compares the two lists. Both are asked one after the other, so the first is asked again: what
/// only one of them has must have ended, or been made, in between.
async fn lists_agree(client: &Client) {
    let before = listed(client, "").await;
    let active = listed(client, "?status=active").await;
    let after = listed(client, "").await;
    for id in active.keys() {
        assert!(after.contains_key(id), "{id} is active, and in no list of all");
        assert_ne!(before.get(id), Some(&false), "{id} had ended, and is active again");
    }
    for (id, _) in before.iter().filter(|(_, active)| **active) {
        let ended = after.get(id) == Some(&false);
        assert!(ended || active.contains_key(id), "{id} is active, and not among the active ones");
    }
}

/// Of 64 clients every second one goes away without waiting for an answer. The tasks of one server
/// end at once, those of the other are still open when the coordinator is killed.
#[tokio::test]
async fn all_that_runs_was_answered_or_listed() {
    const CLIENTS: usize = 64;
    const EACH: usize = 8;
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let quick = SimAgent::connect(&coordinator).await;
    quick.wait_running(&client).await;
    let mut slow = ScriptedAgent::register(&coordinator).await;
    let paths = [&quick.server_uuid, &slow.server_uuid].map(|s| format!("/servers/{s}/nop"));
    let address = coordinator.address().to_owned();
    let of_client = |number: usize| {
        let (paths, address, client) = (&paths, &address, coordinator.client());
        async move {
            let mut answered = Vec::new();
            for turn in 0..EACH {
                let path = &paths[(number / 2 + turn) % 2];
                if number.is_multiple_of(2) {
                    post_and_leave(address, path, &json!({}), number + turn).await;
                } else {
                    let answer = client.post(path, &json!({})).await;
                    // A server has room for 256 open tasks, and is not running while a busy machine
                    // keeps its agent from beating.
                    let refused = answer.status == 503 || answer.json["code"] == "ServerNotRunning";
                    assert!(answer.status == 200 || refused, "{}", answer.text);
                    answered.extend(answer.json["id"].as_str().map(str::to_owned));
                }
            }
            answered
        }
    };
    let mut load = pin!(futures_util::future::join_all((0..CLIENTS).map(of_client)));
    let mut looks = 0;
    let answered = {
        // Stays alive and takes what it is sent, without a word about it.
        let mut silent = pin!(slow.expect("nothing", None, Duration::from_secs(600)));
        let mut look = Box::pin(lists_agree(&client));
        loop {
            tokio::select! {
                answered = &mut load => break answered.concat(),
                _ = &mut silent => panic!("the connection is gone"),
                () = &mut look => {
                    looks += 1;
                    look = Box::pin(lists_agree(&client));
                }
            }
        }
    };
    // Who went away may have left work behind, which comes to its end.
    let known = wait_for("the quick tasks end", SOON, || async {
        lists_agree(&client).await;
        let query = format!("?status=active&server_uuid={}", quick.server_uuid);
        let open = listed(&client, &query).await;
        if open.is_empty() { Ok(listed(&client, "").await) } else { Err(open.len()) }
    })
    .await;
    println!("{} answered, {} made, lists compared {looks} times", answered.len(), known.len());
    for id in &answered {
        assert!(known.contains_key(id), "{id} was answered, and is not listed");
    }

    coordinator.kill9();
    coordinator.restart();
    let client = coordinator.client();
    let after = listed(&client, "").await;
    for (id, active) in &known {
        assert_eq!(after.get(id), Some(active), "{id} is another after a restart");
    }
    // Requests of clients that went away may have been served after the last look.
    let of_slow = format!("?status=active&server_uuid={}", slow.server_uuid);
    let open = listed(&client, &of_slow).await;
    let mut slow = slow.reconnected().await;
    let asked = slow.welcome["open_task_ids"].as_array().cloned().expect("a list");
    assert_eq!(asked.len(), open.len(), "what the agent is asked for is what was listed");
    for id in &asked {
        slow.refuse(id.as_str().expect("an id"), "UnknownTask").await;
    }
    let mut sent = BTreeMap::new();
    let quiet = Duration::from_secs(1);
    loop {
        let limit = if sent.len() < open.len() { SOON } else { quiet };
        let Some(dispatch) = slow.expect("dispatch", None, limit).await else { break };
        let id = dispatch["id"].as_str().expect("an id").to_owned();
        slow.accept(&id).await;
        slow.end(&id, None).await;
        sent.insert(id, true);
    }
    assert_eq!(sent, open, "what is sent after the restart is what was listed");
    wait_for("every task of it ends", SOON, || async {
        let seen = listed(&client, &of_slow).await;
        if seen.is_empty() { Ok(()) } else { Err(seen) }
    })
    .await;
}

#[tokio::test]
async fn room_for_a_vm_whose_client_goes_away_is_not_lost() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let before = room(&client).await;
    let bodies: Vec<Value> = (0..12).map(|_| new_vm()).collect();
    for (turn, body) in bodies.iter().enumerate() {
        post_and_leave(coordinator.address(), "/vms", body, turn).await;
    }
    // Whatever was made fails at the agent.
    while let Some(dispatch) = agent.expect("dispatch", None, Duration::from_secs(2)).await {
        let task = dispatch["id"].as_str().expect("an id");
        agent.accept(task).await;
        agent.end(task, Some("StorageFailed")).await;
    }
    wait_room(&client, before).await;
    for body in &bodies {
        let again = client.post("/vms", body).await.expect(202);
        let task = again["id"].as_str().expect("an id").to_owned();
        agent.expect("dispatch", Some(&task), SOON).await.expect("the create is sent");
        agent.accept(&task).await;
        agent.end(&task, Some("StorageFailed")).await;
        agent.expect("acknowledge", Some(&task), SOON).await.expect("the result is stored");
    }
    wait_room(&client, before).await;
}

#[tokio::test]
async fn a_refused_task_that_has_ended_is_not_sent_again() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    for turn in 0..40 {
        // Right after its connection ended the server is not running for a moment.
        let task = wait_for("a task", SOON, || async {
            let answer = client.post(&path, &json!({})).await;
            if answer.status == 200 { Ok(answer.json["id"].clone()) } else { Err(answer.text) }
        })
        .await;
        let task = task.as_str().expect("an id");
        agent.expect("dispatch", Some(task), SOON).await.expect("the task is sent");
        agent.refuse(task, "Draining").await;
        moment(turn).await;
        agent = agent.reconnected().await;
        agent.wait_running(&client).await;
        let open =
            agent.welcome["open_task_ids"].as_array().is_some_and(|all| all.contains(&json!(task)));
        if open {
            agent.refuse(task, "UnknownTask").await;
        }
        if open && agent.expect("dispatch", Some(task), Duration::from_secs(1)).await.is_some() {
            agent.accept(task).await;
            agent.end(task, None).await;
            let ended = client.wait_task(task, 10).await;
            assert_eq!(ended["status"], "complete", "it ran after it had ended: {ended:#}");
        } else {
            let ended = client.wait_task(task, 10).await;
            assert_eq!(ended["status"], "failure", "{ended:#}");
        }
    }
}

#[tokio::test]
async fn a_vm_is_made_where_its_record_says() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agents = BTreeMap::new();
    for _ in 0..2 {
        let agent = ScriptedAgent::register(&coordinator).await;
        agents.insert(agent.server_uuid.clone(), agent);
    }
    for turn in 0..12 {
        let placed = client.post("/vms", &new_vm()).await.expect(202);
        let task = placed["id"].as_str().expect("an id");
        let first = placed["server_uuid"].as_str().expect("a uuid").to_owned();
        let mut refusing = agents.remove(&first).expect("one of the two");
        refusing.expect("dispatch", Some(task), SOON).await.expect("the create is sent");
        refusing.refuse(task, "Draining").await;
        moment(turn).await;
        let mut refusing = refusing.reconnected().await;
        refusing.wait_running(&client).await;
        let open = refusing.welcome["open_task_ids"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(task)));
        let mut made = Vec::new();
        if open {
            refusing.refuse(task, "UnknownTask").await;
            made.extend(make(&mut refusing, task, Duration::from_secs(1)).await);
        }
        let (_, other) = agents.iter_mut().next().expect("the other one");
        let limit = if made.is_empty() { SOON } else { Duration::from_millis(500) };
        made.extend(make(other, task, limit).await);
        let ended = client.wait_task(task, 10).await;
        assert_eq!(ended["status"], "complete", "{ended:#}");
        assert_eq!(made, [ended["server_uuid"].as_str().expect("a uuid")], "{ended:#}");
        agents.insert(first, refusing);
    }
}

/// Makes the VM if the agent is sent its task in time; the server then.
async fn make(agent: &mut ScriptedAgent, task: &str, limit: Duration) -> Option<String> {
    agent.expect("dispatch", Some(task), limit).await?;
    agent.accept(task).await;
    agent.end(task, None).await;
    Some(agent.server_uuid.clone())
}

#[tokio::test]
async fn a_create_that_failed_gives_its_room_and_uuid_back() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let before = room(&client).await;
    for turn in 0..15 {
        let body = new_vm();
        agent.wait_running(&client).await;
        let task = client.post("/vms", &body).await.expect(202)["id"].clone();
        let task = task.as_str().expect("an id");
        agent.expect("dispatch", Some(task), SOON).await.expect("the create is sent");
        agent.accept(task).await;
        agent.end(task, Some("StorageFailed")).await;
        moment(turn).await;
        agent = agent.reconnected().await;
        agent.wait_running(&client).await;
        agent.end(task, Some("StorageFailed")).await;
        agent.expect("acknowledge", Some(task), SOON).await.expect("the result is stored");
        // A busy machine may have kept this agent from beating.
        agent.wait_running(&client).await;
        let again = client.post("/vms", &body).await.expect(202)["id"].clone();
        let again = again.as_str().expect("an id");
        agent.expect("dispatch", Some(again), SOON).await.expect("the create is sent");
        agent.accept(again).await;
        agent.end(again, Some("StorageFailed")).await;
        agent.expect("acknowledge", Some(again), SOON).await.expect("the result is stored");
    }
    wait_room(&client, before).await;
}

#[tokio::test]
async fn a_task_that_was_cancelled_before_it_was_sent_is_never_sent() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let server = agent.server_uuid.clone();
    let mut cancelled = 0;
    for turn in 0..40 {
        let away = agent.leave(&client).await;
        // A server that POSTs its heartbeats gets tasks that nobody can be sent yet.
        let task = wait_for("a task for an agent that is away", SOON, || async {
            client.post(&format!("/servers/{server}/events/heartbeat"), &json!({})).await;
            let answer = client.post(&format!("/servers/{server}/nop"), &json!({})).await;
            if answer.status == 200 { Ok(answer.json["id"].clone()) } else { Err(answer.text) }
        })
        .await;
        agent = away.back().await;
        let task = task.as_str().expect("an id");
        agent.refuse(task, "UnknownTask").await;
        moment(turn).await;
        let (answer, asked) = cancel(&client, &mut agent, task).await;
        let ended = client.get(&format!("/tasks/{task}")).await.expect(200);
        if ended["error"]["code"] == "Cancelled" {
            cancelled += 1;
            assert_eq!(answer.status, 202, "{}", answer.text);
            let sent = agent.expect("dispatch", Some(task), Duration::from_millis(300)).await;
            assert!(sent.is_none(), "it was sent although it was cancelled before: {ended:#}");
        } else {
            assert!(asked || answer.status != 202, "{}", answer.text);
            agent.expect("dispatch", Some(task), SOON).await.expect("the task is sent");
            agent.accept(task).await;
            agent.end(task, None).await;
            assert_eq!(client.wait_task(task, 10).await["status"], "complete");
        }
    }
    println!("{cancelled} of 40 were cancelled before they were sent");
}

/// Cancels a task of an agent that can't stop it; the answer, and whether the agent was asked.
async fn cancel(client: &Client, agent: &mut ScriptedAgent, task: &str) -> (Answer, bool) {
    let path = format!("/tasks/{task}/cancel");
    let nothing = json!({});
    let mut answer = pin!(client.post(&path, &nothing));
    let mut asked = false;
    loop {
        tokio::select! {
            answer = &mut answer => return (answer, asked),
            message = agent.expect("cancel", Some(task), Duration::from_secs(1)) => {
                if message.is_some() {
                    asked = true;
                    agent.refuse(task, "NotCancellable").await;
                }
            }
        }
    }
}
