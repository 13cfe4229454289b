//! The waitlist over HTTP: turns of many clients while the coordinator is killed, thousands of
//! tickets, waits, expiry, and tasks that are started under a ticket.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::{Answer, Client};
use muster_tests::wait::wait_for;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

const TICKETS: &str = "/servers/default/tickets";
const LONG: Duration = Duration::from_secs(120);

fn wanted(id: &str) -> Value {
    json!({ "scope": "test", "id": id, "expires_at": "3000" })
}

fn uuid(answer: &Value) -> String {
    answer["uuid"].as_str().expect("a uuid").to_owned()
}

async fn create(client: &Client, body: &Value) -> String {
    uuid(&client.post(TICKETS, body).await.expect(202))
}

/// Sends a request until it is answered as it should be; the coordinator may be away.
async fn until(client: &Client, method: Method, path: &str, status: u16) -> Answer {
    wait_for(&format!("{method} {path} gives {status}"), LONG, || async {
        match client.try_send(method.clone(), path, None).await {
            Ok(answer) if answer.status == status => Ok(answer),
            Ok(answer) => Err(format!("{} {}", answer.status, answer.text)),
            Err(error) => Err(format!("{error:?}")),
        }
    })
    .await
}

/// Creates a ticket although the coordinator may die before it answers: then the request's id
/// tells whether the ticket exists.
async fn create_surely(client: &Client, body: &Value) -> String {
    let req_id = fresh_uuid();
    let header = ("x-request-id", req_id.as_str());
    match client.try_send_with(Method::POST, TICKETS, header, Some(body)).await {
        Ok(answer) => return uuid(&answer.expect(202)),
        Err(error) => eprintln!("not answered: {error}"),
    }
    let all = until(client, Method::GET, TICKETS, 200).await.json;
    let made = all.as_array().into_iter().flatten().find(|ticket| ticket["reqid"] == *req_id);
    match made {
        Some(ticket) => uuid(ticket),
        None => Box::pin(create_surely(client, body)).await,
    }
}

fn uuids(tickets: &Value) -> Vec<String> {
    tickets.as_array().into_iter().flatten().map(uuid).collect()
}

/// What the clients of one queue see together.
#[derive(Debug, Default)]
struct Seen {
    holder: Mutex<Option<String>>,
    turns: Mutex<Vec<String>>,
}

async fn take_a_turn(client: &Client, seen: &Seen) {
    let ticket = create_surely(client, &wanted("queue")).await;
    until(client, Method::GET, &format!("/tickets/{ticket}/wait"), 204).await;
    assert_eq!(seen.holder.lock().replace(ticket.clone()), None, "two have the turn");
    let all = until(client, Method::GET, TICKETS, 200).await.json;
    let active = all.as_array().into_iter().flatten().filter(|t| t["status"] == "active");
    assert_eq!(active.map(uuid).collect::<Vec<_>>(), std::slice::from_ref(&ticket));
    seen.turns.lock().push(ticket.clone());
    assert_eq!(seen.holder.lock().take().as_ref(), Some(&ticket), "two have the turn");
    until(client, Method::PUT, &format!("/tickets/{ticket}/release"), 204).await;
}

#[tokio::test]
async fn turns_survive_a_coordinator_that_is_killed_among_64_clients() {
    const CLIENTS: usize = 64;
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (client, seen) = (client.clone(), Arc::clone(&seen));
            tokio::spawn(async move { take_a_turn(&client, &seen).await })
        })
        .collect();
    for turns in [CLIENTS / 4, CLIENTS / 2] {
        wait_for("some had their turn", LONG, || async {
            let had = seen.turns.lock().len();
            if had >= turns { Ok(()) } else { Err(had) }
        })
        .await;
        coordinator.kill9();
        coordinator.restart();
    }
    for client in clients {
        client.await.expect("a client gets its turn");
    }
    let all = client.get(TICKETS).await.expect(200);
    assert!(all.as_array().into_iter().flatten().all(|t| t["status"] == "finished"), "{all:#}");
    let turns = seen.turns.lock().clone();
    assert_eq!(turns.len(), CLIENTS, "no ticket is lost");
    assert_eq!(uuids(&all), turns, "turns come in the order of creation");
}

#[tokio::test]
async fn eleven_hundred_tickets_are_paged_and_deleted_in_one_call() {
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let client = &client;
    let made: Vec<_> = stream::iter(0..1_100)
        .map(|n| async move { create(client, &wanted(&(n % 11).to_string())).await })
        .buffered(64)
        .collect()
        .await;
    let page = |query: &'static str| async move { client.get(&format!("{TICKETS}?{query}")).await };
    let first = uuids(&page("").await.expect(200));
    assert_eq!(first.len(), 1_000);
    let rest = uuids(&page("offset=1000").await.expect(200));
    assert_eq!(rest.len(), 100);
    let mut all: Vec<_> = first.iter().chain(&rest).cloned().collect();
    assert_eq!(uuids(&page("limit=3&offset=2").await.expect(200)), all[2..5]);
    let newest = uuids(&page("limit=2&order=DESC&attribute=created_at").await.expect(200));
    assert_eq!(newest, [all[1_099].clone(), all[1_098].clone()]);
    assert_eq!(page("offset=5000").await.expect(200), json!([]));
    assert_eq!(page("limit=0").await.expect(409)["code"], "InvalidParameters");
    let refused = page("limit=1001").await.expect(409);
    assert_eq!(refused["message"], "limit must be less than 1000");
    let mut wanted = made.clone();
    wanted.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, wanted);

    let last = format!("/tickets/{}/wait", made[1_099]);
    let waiting = tokio::spawn({
        let (client, path) = (client.clone(), last.clone());
        async move { client.get(&path).await }
    });
    let why = format!("/why/ticket/{}", made[1_099]);
    wait_for("somebody waits", LONG, || async {
        let why = client.get(&why).await;
        if why.json["waiters"] == 1 { Ok(()) } else { Err(why.text) }
    })
    .await;
    let refused = client.delete(TICKETS).await.expect(412);
    assert_eq!(refused["message"], "Will not delete all tickets without ?force=true");
    client.delete(&format!("{TICKETS}?force=true")).await.expect(204);
    assert_eq!(page("").await.expect(200), json!([]));
    let gone = waiting.await.expect("the wait ends").expect(404);
    assert_eq!(gone["message"], format!("no such ticket {}", made[1_099]));
}

#[tokio::test]
async fn the_contract_s_answers() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let body = json!({ "scope": "vm", "id": "x", "expires_at": "3000", "action": "provision",
        "extra": { "a": 1 }, "workflow_job_uuid": "dropped" });
    let answer = client.post(TICKETS, &body).await.expect(202);
    let first = uuid(&answer);
    let ticket = answer["queue"][0].clone();
    assert_eq!(ticket["status"], "active");
    let members: Vec<_> = ticket.as_object().expect("a ticket").keys().cloned().collect();
    for member in ["uuid", "server_uuid", "scope", "id", "expires_at", "created_at", "updated_at"] {
        assert!(members.iter().any(|name| name == member), "{member}: {ticket:#}");
    }
    assert_eq!((&ticket["server_uuid"], &ticket["extra"]), (&json!("default"), &json!({ "a": 1 })));
    assert!(ticket.get("workflow_job_uuid").is_none() && ticket.get("seq").is_none());
    let second = create(&client, &wanted("x")).await;
    assert_eq!(client.get(&format!("/tickets/{second}")).await.expect(200)["status"], "active");
    let third = create(&client, &wanted("x")).await;
    assert_eq!(client.get(&format!("/tickets/{third}")).await.expect(200)["status"], "queued");
    assert!(client.get(&format!("/tickets/{first}")).await.expect(200).get("action").is_some());
    assert!(client.get(&format!("/tickets/{third}")).await.expect(200).get("action").is_none());

    // The seed's verbs.
    assert_eq!(client.post(&format!("/tickets/{first}"), &json!({})).await.expect(200), ticket);
    client.get(&format!("/tickets/{second}/release")).await.expect(204);
    client.get(&format!("/tickets/{third}/wait")).await.expect(204);
    client.get(&format!("/tickets/{second}/wait")).await.expect(204);
    client.delete(&format!("/tickets/{third}")).await.expect(204);

    let nobody = fresh_uuid();
    for name in [third.as_str(), nobody.as_str(), "nonsense"] {
        for (method, suffix, text) in [
            (Method::GET, "", format!("ticket {name} not found")),
            (Method::DELETE, "", format!("ticket {name} not found")),
            (Method::PUT, "/release", format!("ticket {name} not found")),
            (Method::GET, "/wait", format!("no such ticket {name}")),
        ] {
            let path = format!("/tickets/{name}{suffix}");
            let answer = client.try_send(method, &path, None).await.expect("an answer");
            let body = answer.expect(404);
            assert_eq!(
                (&body["code"], &body["message"]),
                (&json!("ResourceNotFound"), &json!(text))
            );
        }
    }
    let refused = client.post(TICKETS, &json!({ "extra": [], "id": 7 })).await.expect(409);
    assert_eq!(refused["code"], "InvalidParameters");
    let fields: Vec<_> = refused["errors"].as_array().into_iter().flatten().collect();
    let fields: Vec<_> = fields.iter().filter_map(|error| error["field"].as_str()).collect();
    assert_eq!(fields, ["scope", "id", "expires_at", "extra"]);
    let large = json!({ "scope": "x".repeat(65), "id": "y", "expires_at": "3000",
        "extra": { "a": "z".repeat(40_000) } });
    assert_eq!(client.post(TICKETS, &large).await.expect(409)["errors"][1]["field"], "extra");
    let path = format!("/servers/{nobody}/tickets");
    client.post(&path, &wanted("x")).await.expect(404);
    let refused = client.get(&format!("{TICKETS}?colour=red")).await.expect(409);
    assert_eq!(refused["message"], "colour is not an explicitly defined parameter");
}

#[tokio::test]
async fn tickets_expire_within_two_seconds() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    #[expect(clippy::disallowed_methods, reason = "the coordinator expires by the real time")]
    let soon = jiff::Timestamp::now() + Duration::from_millis(1_500);
    let body = json!({ "scope": "test", "id": "e", "expires_at": soon.to_string() });
    let first = create(&client, &body).await;
    let second = create(&client, &body).await;
    let third = create(&client, &wanted("e")).await;
    let (expired, turn) = tokio::join!(
        async { client.get(&format!("/tickets/{second}/wait")).await.expect(409) },
        async { client.get(&format!("/tickets/{third}/wait")).await.expect(204) },
    );
    assert_eq!(expired, json!({ "code": "InvalidArgument", "message": "ticket has expired" }));
    assert_eq!(turn, Value::Null);
    assert_eq!(client.get(&format!("/tickets/{first}")).await.expect(200)["status"], "expired");
    let again = client.get(&format!("/tickets/{second}/wait")).await.expect(409);
    assert_eq!(again["message"], format!("ticket {second} is expired"));
    // A ticket that has expired can be released, and its queue goes on undisturbed.
    client.put(&format!("/tickets/{first}/release"), &json!({})).await.expect(204);
    assert_eq!(client.get(&format!("/tickets/{first}")).await.expect(200)["status"], "finished");
    assert_eq!(client.get(&format!("/tickets/{third}")).await.expect(200)["status"], "active");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_s_command_does_all_of_it() {
    let coordinator = Coordinator::start();
    let run = |args: &[&str]| cli::json(&coordinator, args);
    let create = ["ticket", "create", "--scope", "vm", "--id", "x", "--action", "reboot"];
    let (first, second) = (uuid(&run(&create)), uuid(&run(&create)));
    run(&["ticket", "wait", &first]);
    let why = run(&["why", "ticket", &second]);
    assert_eq!((&why["holder"]["uuid"], &why["place"]), (&json!(first), &json!(1)));
    run(&["ticket", "release", &first]);
    assert_eq!(run(&["ticket", "get", &second])["status"], "active");
    let active = run(&["ticket", "list", "--status", "active"]);
    assert_eq!(uuids(&active), std::slice::from_ref(&second));
    run(&["ticket", "delete", &second]);
    assert_eq!(uuids(&run(&["ticket", "list"])), [first]);
    run(&["ticket", "delete", "--all"]);
    assert_eq!(run(&["ticket", "list"]), json!([]));
}

async fn under(client: &Client, ticket: &str, method: Method, path: &str) -> Answer {
    let header = ("x-muster-ticket", ticket);
    let body = json!({});
    client.try_send_with(method, path, header, Some(&body)).await.expect("an answer")
}

#[tokio::test]
async fn a_client_that_slept_past_its_ticket_s_expiry_starts_nothing() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", LONG).await;
    let nop = format!("/servers/{}/nop", agent.server_uuid);
    let load = format!("/servers/{}/vms/{}", agent.server_uuid, fresh_uuid());
    #[expect(clippy::disallowed_methods, reason = "the coordinator expires by the real time")]
    let soon = jiff::Timestamp::now() + Duration::from_secs(2);
    let body = json!({ "scope": "vm", "id": "x", "expires_at": soon.to_string() });
    let sleeper = create(&client, &body).await;
    let next = create(&client, &json!({ "scope": "vm", "id": "x", "expires_at": "3000" })).await;
    let id = under(&client, &sleeper, Method::POST, &nop).await.expect(200)["id"].clone();
    client.complete_task(id.as_str().expect("an id"), 60).await;
    let early = under(&client, &next, Method::POST, &nop).await.expect(409);
    assert_eq!(early["code"], "TicketNotActive");

    // The sleeper sleeps; the next one's turn comes.
    client.get(&format!("/tickets/{next}/wait")).await.expect(204);
    let id = under(&client, &next, Method::POST, &nop).await.expect(200)["id"].clone();
    client.complete_task(id.as_str().expect("an id"), 60).await;
    for (method, path) in [(Method::POST, &nop), (Method::GET, &load)] {
        let refused = under(&client, &sleeper, method, path).await.expect(409);
        assert_eq!(refused["code"], "TicketNotActive", "{path}");
        assert_eq!(refused["message"], format!("ticket {sleeper} is not active"));
    }
    // A ticket does not matter to what starts no task.
    under(&client, &sleeper, Method::GET, "/servers").await.expect(200);
}

/// Two coordinators on copies of one store stand for one whose dispatch is late: the agent sees the
/// greater token first. Neither knows the other's tasks, so one is paused while the other works.
#[tokio::test]
async fn the_agent_refuses_a_token_older_than_one_it_saw() {
    let mut one = Coordinator::start();
    one.daemon().terminate().await;
    let mut other = one.start_copy();
    one.restart();
    let (newer, older) = (one.client(), other.client());
    let mut agent = Agent::with(&[&one.agent_url(), &other.agent_url()], &[], &[]);
    agent.wait_status(&newer, "running", LONG).await;
    agent.wait_status(&older, "running", LONG).await;
    let stale = create(&older, &wanted("x")).await;
    // The other's store is further on.
    for _ in 0..200 {
        create(&newer, &wanted("y")).await;
    }
    let fresh = create(&newer, &wanted("x")).await;
    other.daemon().signal(Signal::SIGSTOP);
    let nop = format!("/servers/{}/nop", agent.server_uuid);
    let id = under(&newer, &fresh, Method::POST, &nop).await.expect(200)["id"].clone();
    newer.complete_task(id.as_str().expect("an id"), 60).await;
    other.daemon().signal(Signal::SIGCONT);
    one.daemon().signal(Signal::SIGSTOP);
    // The newest token is on the agent's disk.
    let why = format!("/why/server/{}", agent.server_uuid);
    let killed = agent.client().get("/sysinfo").await.json["Muster"]["agent_instance_id"].clone();
    assert!(killed.is_string());
    agent.kill9();
    agent.restart();
    // Connected and running: by the new agent's connection, not by what is left of the old one's,
    // and a connection counts only once its status is written.
    wait_for("the agent is back", LONG, || async {
        let why = older.get(&why).await;
        let instance = &why.json["agent"]["agent_instance_id"];
        let back = instance.is_string() && *instance != killed && why.json["status"] == "running";
        if back { Ok(()) } else { Err(why.text) }
    })
    .await;
    let id = under(&older, &stale, Method::POST, &nop).await.expect(200)["id"].clone();
    let task = older.wait_task(id.as_str().expect("an id"), 60).await;
    assert_eq!(task["status"], "failure", "{task:#}");
    assert_eq!(task["error"]["code"], "StaleTicket", "{task:#}");
    let load = format!("/servers/{}/vms/{}", agent.server_uuid, fresh_uuid());
    let refused = under(&older, &stale, Method::GET, &load).await.expect(409);
    assert_eq!(refused["code"], "StaleTicket", "{refused:#}");
}
