//! What hostile clients and broken nodes can do to a coordinator: nothing lasting. Each test is one
//! attack with its bound. `MUSTER_ABUSE=full` makes those larger that take long.

use std::time::Duration;

use futures_util::future::join_all;
use muster_shared::wire::status::VmReport;
use muster_shared::wire::{MAX_FRAME_BYTES, close};
use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::process::{cpu, resident};
use muster_tests::scripted_agent::ScriptedAgent;
use muster_tests::wait::wait_for;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MIB: u64 = 1 << 20;
/// Bodies of a MiB that the coordinator holds at a time, at most.
const HELD: usize = 80;
const LIMIT: Duration = Duration::from_secs(60);

/// So many in `make test-full`, and fewer else.
fn number(full: usize, quick: usize) -> usize {
    if std::env::var("MUSTER_ABUSE").is_ok_and(|size| size == "full") { full } else { quick }
}

/// Asks for as long as `attack` runs; returns what it returned, the most memory seen, and how long
/// the slowest answer took, which depends on the machine and is only shown.
async fn under<T>(coordinator: &mut Coordinator, attack: impl Future<Output = T>) -> (T, u64) {
    let pid = coordinator.daemon().pid();
    let client = Client::pooled(format!("http://{}", coordinator.address()));
    let mut most = resident(pid);
    let mut slowest = Duration::ZERO;
    tokio::pin!(attack);
    let done = loop {
        #[expect(clippy::disallowed_methods, reason = "shown, and nothing depends on it")]
        let began = std::time::Instant::now();
        let ping = client.get("/ping");
        tokio::select! {
            biased;
            done = &mut attack => break done,
            answer = ping => assert_eq!(answer.status, 200, "{}", answer.text),
        }
        slowest = slowest.max(began.elapsed());
        most = most.max(resident(pid));
    };
    println!("most memory {} MiB, slowest ping {slowest:?}", most / MIB);
    (done, most.max(resident(pid)))
}

/// A coordinator that waits for heads of requests: the attacker and whoever asks beside it share a
/// thread, and so the time in which they are sent.
fn patient_with_heads() -> Coordinator {
    Coordinator::with_settings(&["api.head_timeout_ms=120000"])
}

async fn connect(coordinator: &Coordinator) -> TcpStream {
    TcpStream::connect(coordinator.address()).await.expect("the coordinator listens")
}

#[tokio::test]
async fn unfinished_bodies_hold_a_bounded_amount_of_memory() {
    let mut coordinator = patient_with_heads();
    let idle = resident(coordinator.daemon().pid());
    let address = coordinator.address().to_owned();
    let count = number(2_000, 400);
    let attack = async {
        let one = |address: String| async move {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let head = format!(
                "POST /vms HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {MIB}\r\n\r\n"
            );
            let body = vec![b' '; usize::try_from(MIB).expect("small") - 10];
            // Those who are refused are closed while they send.
            drop(stream.write_all(head.as_bytes()).await);
            drop(stream.write_all(&body).await);
            stream
        };
        let all = (0..count).map(|_| tokio::spawn(one(address.clone())));
        let streams = join_all(all).await.into_iter().map(|one| one.expect("no panic"));
        // What is sent lies in the kernel until the coordinator reads it.
        let mut streams: Vec<TcpStream> = streams.collect();
        let mut refused = 0;
        wait_for("all but a few are refused", LIMIT, || {
            streams.retain(|stream| {
                let answered = stream.try_read(&mut [0; 64]).is_ok();
                refused += usize::from(answered);
                !answered
            });
            let seen = if refused + HELD >= count { Ok(()) } else { Err(refused) };
            async move { seen }
        })
        .await;
        streams
    };
    let (streams, most) = under(&mut coordinator, attack).await;
    assert!(most < idle + 256 * MIB, "{} MiB over idle", (most - idle) / MIB);
    // An ordinary request is served meanwhile.
    let refused = coordinator.client().post("/vms", &json!({})).await;
    assert_eq!(refused.json["code"], "InvalidParameters", "{}", refused.text);
    drop(streams);
}

#[tokio::test]
async fn an_agent_that_floods_holds_a_bounded_amount_of_memory() {
    let mut coordinator = Coordinator::start();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let idle = resident(coordinator.daemon().pid());
    let frames = number(130, 60);
    let attack = async {
        for frame in 0..frames {
            // Half of them as many values as are let in, half as much text.
            let zeros = if frame % 2 == 0 { 240_000 } else { 1_000_000 };
            let result = format!(
                r#"{{"kind":"result","id":"{}","status":"complete","result":{{"a":[{}0]}},"finished_at":""}}"#,
                fresh_uuid(),
                "0,".repeat(zeros - 1),
            );
            agent.say_text(result).await;
        }
        // Whoever answers this has handled what came before.
        agent.say(json!({ "kind": "x", "id": "the-last" })).await;
        agent.expect("error", Some("the-last"), LIMIT).await.expect("it is answered")
    };
    let (_, most) = under(&mut coordinator, attack).await;
    assert!(most < idle + 128 * MIB, "{} MiB over idle", (most - idle) / MIB);
}

#[tokio::test]
async fn patterns_of_clients_are_refused_or_cheap() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let _agent = ScriptedAgent::register(&coordinator).await;
    let wish = json!({
        "key": "k", "operator": "==", "value": "/\\w{450}/", "valueType": "re", "isSoft": true,
    });
    let ask = |wishes: usize| {
        json!({
            "image": {}, "nic_tags": ["admin"], "vm": {
                "vm_uuid": fresh_uuid(), "owner_uuid": fresh_uuid(), "ram": 128,
                "affinity": vec![wish.clone(); wishes],
            },
        })
    };
    let attack = async {
        let many = client.post("/allocate", &ask(200)).await;
        assert_eq!(many.status, 409, "{}", many.text);
        assert_eq!(many.json["code"], "InvalidParameters", "{}", many.text);
        let large = client.post("/allocate", &ask(16)).await;
        assert_eq!(large.status, 409, "{}", large.text);
        assert!(large.text.contains("too large"), "{}", large.text);
        let tags = json!({
            "image": {}, "nic_tags": vec!["admin"; 80_000],
            "vm": { "vm_uuid": fresh_uuid(), "owner_uuid": fresh_uuid(), "ram": 128 },
        });
        let tags = client.post("/allocate", &tags).await;
        assert_eq!(tags.status, 409, "{}", tags.text);
    };
    under(&mut coordinator, attack).await;
}

#[tokio::test]
async fn readers_of_the_document_keep_nobody_waiting() {
    const READERS: u32 = 50;
    const READS: u32 = 20;
    let mut coordinator = patient_with_heads();
    let base = format!("http://{}", coordinator.address());
    let pid = coordinator.daemon().pid();
    let before = cpu(pid);
    coordinator.client().get("/openapi.json").await.expect(200);
    let to_make_it = cpu(pid).saturating_sub(before);
    let reader = |base: String| async move {
        let client = Client::pooled(base);
        let mut lengths = Vec::new();
        for _ in 0..READS {
            lengths.push(client.get_length("/openapi.json").await);
        }
        lengths.dedup();
        lengths
    };
    let before = cpu(pid);
    let attack = join_all((0..READERS).map(|_| tokio::spawn(reader(base.clone()))));
    let (read, _) = under(&mut coordinator, attack).await;
    let to_tell_it = (cpu(pid) - before) / (READERS * READS);
    for lengths in read {
        let lengths = lengths.expect("every reader gets its answers");
        assert!(lengths.len() == 1 && lengths[0] > 100_000, "{lengths:?}");
    }
    // Processor time, which does not depend on what else this machine does: it is made once. Pings
    // are in what telling it takes.
    println!("to make it {to_make_it:?}, to tell it {to_tell_it:?}");
    assert!(to_tell_it * 4 < to_make_it, "{to_tell_it:?} each, {to_make_it:?} to make it");
}

#[tokio::test]
async fn idle_connections_lock_no_agent_out() {
    let places = number(12_000, 400);
    let all = format!("api.connections={places}");
    let of_peer = format!("api.connections_per_peer={places}");
    let coordinator = Coordinator::with_settings(&[&all, &of_peer]);
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let mut idle = Vec::new();
    for _ in 0..places {
        let mut stream = connect(&coordinator).await;
        assert_eq!(&ask(&mut stream).await.expect("an answer"), b"HTTP/1.1 200");
        idle.push(stream);
    }
    let agent = ScriptedAgent::register(&coordinator).await;
    drop((idle, agent));
}

#[tokio::test]
async fn pages_of_other_sites_get_nothing() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let with = |name, value| {
        let client = client.clone();
        async move {
            let sent = client.try_send_with(Method::GET, "/servers", (name, value), None).await;
            sent.expect("an answer").status.as_u16()
        }
    };
    assert_eq!(with("origin", "http://evil.example").await, 403);
    assert_eq!(with("sec-fetch-site", "cross-site").await, 403);
    assert_eq!(with("host", "evil.example").await, 421);
    let own = format!("http://{}", coordinator.address());
    assert_eq!(with("origin", &own).await, 200);
}

#[tokio::test]
async fn an_agent_is_told_that_its_frame_was_too_large() {
    let coordinator = Coordinator::start();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    agent.say_text("x".repeat(MAX_FRAME_BYTES + 1)).await;
    assert_eq!(agent.closed(LIMIT).await, Some(1009));
}

#[tokio::test]
async fn what_no_record_can_hold_is_refused_by_its_size() {
    let coordinator = Coordinator::start();
    let agent = ScriptedAgent::register(&coordinator).await;
    let traits = json!({ "traits": { "a": vec!["x".repeat(60_000); 14] } });
    let path = format!("/servers/{}", agent.server_uuid);
    let refused = coordinator.client().post(&path, &traits).await;
    assert_eq!(refused.status, 413, "{}", refused.text);
    assert_eq!(refused.json["code"], "RequestEntityTooLarge", "{}", refused.text);
    assert!(refused.text.contains("262144 bytes"), "{}", refused.text);
    let kept = coordinator.client().get(&path).await.expect(200);
    assert_eq!(kept["traits"], json!({}), "nothing changed");
}

#[tokio::test]
async fn http_2_is_refused() {
    let coordinator = Coordinator::start();
    for _ in 0..5 {
        let mut stream = connect(&coordinator).await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.expect("the connection is open");
        let mut answer = Vec::new();
        // An error is a reset, which refuses as well.
        drop(tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("an end"));
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    }
}

/// What an agent says of a VM.
fn vm(uuid: &str, tag: &str) -> VmReport {
    let report = json!({
        "uuid": uuid, "owner_uuid": fresh_uuid(), "brand": "kvm", "max_physical_memory": 128,
        "state": "running", "zone_state": "running", "last_modified": "2026-01-01T00:00:00.000Z",
        "index": { "alias": uuid, "tags": { "t": tag } },
    });
    serde_json::from_value(report).expect("a report")
}

async fn wait_vms(client: &Client, count: usize) {
    wait_for("all VMs are there", LIMIT, || async {
        let vms = client.get("/vms").await;
        let found = vms.json.as_array().map_or(0, Vec::len);
        if found == count { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn vms_with_many_tags_are_all_stored() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let large = "x".repeat(11_000);
    let vms: Vec<VmReport> = (0..100).map(|_| vm(&fresh_uuid(), &large)).collect();
    agent.report_vms(&vms).await;
    wait_vms(&client, 100).await;
    coordinator.kill9();
    drop(agent);
    coordinator.restart();
    wait_vms(&client, 100).await;
    // At the API, more is refused before anything is made.
    let tags = json!({ "a": "x".repeat(600_000) });
    let refused =
        client.post("/vms", &json!({ "image_uuid": fresh_uuid(), "ram": 128, "tags": tags })).await;
    assert!(refused.status.is_client_error(), "{}", refused.text);
}

#[tokio::test]
async fn a_vm_stays_at_home_whoever_claims_it() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut home = ScriptedAgent::register(&coordinator).await;
    let mut rogue = ScriptedAgent::register(&coordinator).await;
    let uuid = fresh_uuid();
    let mine = vm(&uuid, "mine");
    home.report_vms(std::slice::from_ref(&mine)).await;
    wait_vms(&client, 1).await;
    let mut events = connect(&coordinator).await;
    let head = b"GET /events?kind=alarm HTTP/1.1\r\nhost: localhost\r\n\r\n";
    events.write_all(head).await.expect("the connection is open");
    read_until(&mut events, "id:").await;
    rogue.report_vms(&[vm(&uuid, "theirs")]).await;
    let alarm = read_until(&mut events, "vm_claimed").await;
    assert!(alarm.contains("event: alarm") && alarm.contains(&rogue.server_uuid), "{alarm}");
    let shown = client.get(&format!("/vms/{uuid}")).await.expect(200);
    assert_eq!(shown["server_uuid"], json!(home.server_uuid));
    let why = client.get(&format!("/why/vm/{uuid}")).await.expect(200);
    assert_eq!(why["claimed_by"], json!([rogue.server_uuid]));
    // What is asked of the VM goes to its home, and so does whoever looks at its console.
    let console = format!("{}/vms/{uuid}/console", coordinator.agent_url());
    let looking = tokio::spawn(tokio_tungstenite::connect_async(console));
    let stream = home.expect("stream_open", None, LIMIT).await.expect("its home has the console");
    assert_eq!(stream["vm_uuid"], json!(uuid), "{stream}");
    looking.abort();
    client.post(&format!("/servers/{}/vms/{uuid}/stop", home.server_uuid), &json!({})).await;
    let stop = home.expect("dispatch", None, LIMIT).await.expect("its home is asked");
    assert_eq!(stop["task"], "machine_shutdown", "{stop}");
}

/// Whoever reports a VM while it is made elsewhere was not first.
#[tokio::test]
async fn a_vm_is_made_where_it_is_asked_for_whoever_claims_it() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut home = ScriptedAgent::register(&coordinator).await;
    let mut rogue = ScriptedAgent::register(&coordinator).await;
    let uuid = fresh_uuid();
    let body = json!({
        "uuid": uuid, "image_uuid": fresh_uuid(), "ram": 256, "quota": 1, "networks": ["admin"],
    });
    let placed = client.post("/vms", &body).await.expect(202);
    if placed["server_uuid"] == json!(rogue.server_uuid) {
        std::mem::swap(&mut home, &mut rogue);
    }
    let dispatch = home.expect("dispatch", None, LIMIT).await.expect("its home is asked");
    assert_eq!(dispatch["task"], "machine_create", "{dispatch}");
    rogue.report_vms(&[vm(&uuid, "theirs")]).await;
    wait_for("the claim is seen", LIMIT, || async {
        let why = client.get(&format!("/why/vm/{uuid}")).await;
        let seen = why.json["claimed_by"] == json!([rogue.server_uuid]);
        if seen { Ok(()) } else { Err(why.text) }
    })
    .await;
    // It is still made at home, and its uuid is taken.
    let again = client.post("/vms", &body).await;
    assert_eq!(again.json["code"], "VmExists", "{}", again.text);
    home.end(dispatch["id"].as_str().expect("an id"), None).await;
    home.report_vms(&[vm(&uuid, "mine")]).await;
    wait_vms(&client, 1).await;
    let shown = client.get(&format!("/vms/{uuid}")).await.expect(200);
    assert_eq!(shown["server_uuid"], json!(home.server_uuid), "{shown}");
    let again = client.post("/vms", &body).await;
    assert_eq!(again.json["code"], "VmExists", "{}", again.text);
}

/// Of two hosts with one server uuid, as after a copy of a disk, the one that is there stays.
#[tokio::test]
async fn a_copy_of_an_agent_is_turned_away_and_named() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut first = ScriptedAgent::register(&coordinator).await;
    let nop = client.post(&format!("/servers/{}/nop", first.server_uuid), &json!({})).await;
    let nop = nop.json["id"].as_str().expect("a task").to_owned();
    first.expect("dispatch", Some(&nop), LIMIT).await.expect("it is asked");
    first.accept(&nop).await;
    let mut copy = first.copy().await;
    // What it does not know the other one may do.
    copy.refuse(&nop, "UnknownTask").await;
    assert_eq!(copy.closed(LIMIT).await, Some(close::DUPLICATE));
    let why = client.get(&format!("/why/server/{}", first.server_uuid)).await.expect(200);
    assert_eq!(why["turned_away"]["reason"], "duplicate", "{why}");
    assert_eq!(why["connected"], true, "{why}");
    first.end(&nop, None).await;
    let ended = client.get(&format!("/tasks/{nop}/wait?timeout=30")).await.expect(200);
    assert_eq!(ended["status"], "complete", "{ended}");
}

async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            let mut chunk = [0; 4096];
            let length = stream.read(&mut chunk).await.expect("the stream goes on");
            assert!(length > 0, "the stream ended: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&chunk[..length]);
        }
    };
    tokio::time::timeout(LIMIT, reading).await.unwrap_or_else(|_| panic!("no {text}"));
    String::from_utf8_lossy(&read).into_owned()
}
