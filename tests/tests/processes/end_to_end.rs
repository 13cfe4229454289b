//! One coordinator, one agent, one real VM: created, shown, stopped, started, destroyed.

use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_tests::binary;
use muster_tests::contract::Contract;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

fn payload(image: &str, alias: &str) -> Value {
    json!({
        "image_uuid": image,
        "brand": "kvm",
        "ram": 192,
        "vcpus": 1,
        "cpu_cap": 100,
        "quota": 1,
        "alias": alias,
        "owner_uuid": fresh_uuid(),
        "tags": { "role": "test" },
        "vnc_password": "secret",
        "customer_metadata": { "hello": "world" },
    })
}

/// A viewer of a serial console.
struct Console {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    seen: String,
}

impl Console {
    async fn open(coordinator: &Coordinator, vm: &str) -> Self {
        let url = format!("{}/vms/{vm}/console", coordinator.agent_url());
        let (socket, _) = tokio_tungstenite::connect_async(url).await.expect("a console");
        Self { socket, seen: String::new() }
    }

    /// Reads until the output, or a notice in angle brackets, holds the text; forgets all up to it.
    async fn until(&mut self, text: &str) {
        let end = self.read(text).await;
        let at = self.seen.find(text);
        let at = at.unwrap_or_else(|| panic!("never {text:?} but {end:?}: {}", self.seen));
        self.seen.drain(..at + text.len());
    }

    /// Reads to the end; the reason.
    async fn end(&mut self) -> String {
        self.read("\u{0}").await.unwrap_or_else(|| panic!("no end: {}", self.seen))
    }

    async fn read(&mut self, text: &str) -> Option<String> {
        let read = async {
            while !self.seen.contains(text) {
                match self.socket.next().await {
                    Some(Ok(Message::Binary(bytes))) => {
                        self.seen.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    Some(Ok(Message::Text(notice))) => self.seen.push_str(&format!("<{notice}>")),
                    Some(Ok(Message::Close(Some(close)))) => {
                        return Some(format!("{} {}", close.code, close.reason));
                    }
                    Some(Ok(_)) => {}
                    other => return Some(format!("{other:?}")),
                }
            }
            None
        };
        tokio::time::timeout(BOOT, read).await.ok().flatten()
    }

    async fn type_line(&mut self, line: &str) {
        let keys = Message::binary(format!("{line}\n").into_bytes());
        self.socket.send(keys).await.expect("the console takes input");
    }
}

/// Two look at one console at the same time, and both may type.
async fn console_is_shared(coordinator: &Coordinator, vm: &str) -> (Console, Console) {
    let (mut first, mut second) =
        tokio::join!(Console::open(coordinator, vm), Console::open(coordinator, vm));
    tokio::join!(first.until("muster-guest up"), second.until("muster-guest up"));
    first.type_line("echo first-$((20 + 1))").await;
    tokio::join!(first.until("first-21"), second.until("first-21"));
    second.type_line("echo second-$((20 + 2))").await;
    tokio::join!(first.until("second-22"), second.until("second-22"));
    // Who comes late sees what was before.
    Console::open(coordinator, vm).await.until("muster-guest up").await;
    (first, second)
}

#[tokio::test]
async fn a_vm_lives_from_create_to_destroy() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;

    let placed = client.post("/vms", &payload(&image, "first")).await.expect(202);
    let vm = placed["vm_uuid"].as_str().expect("a vm uuid").to_owned();
    assert_eq!(placed["server_uuid"], agent.server_uuid);
    let created = client.complete_task(placed["id"].as_str().unwrap(), 120).await;
    assert_eq!(created["vm"]["uuid"], vm);

    wait_for("the fleet index shows it running", Duration::from_secs(60), || async {
        let answer = client.get(&format!("/vms/{vm}")).await;
        if answer.json["state"] == "running" { Ok(()) } else { Err(answer.text) }
    })
    .await;
    let listed = client.get("/vms?alias=first").await.expect(200);
    assert_eq!(listed[0]["uuid"], vm);
    let (mut console, second) = console_is_shared(&coordinator, &vm).await;
    drop(second);

    let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
    let loaded = client.get(&path).await.expect(200);
    assert_eq!(loaded["customer_metadata"]["hello"], "world");
    let info = client.get(&format!("{path}/info?info=status")).await.expect(200);
    assert_eq!(info["status"]["running"], true, "{info}");

    answers_are_as_documented(&client, &agent.server_uuid, &vm, &image).await;

    for (action, state) in [("stop", "stopped"), ("start", "running"), ("reboot", "running")] {
        let task = client.post(&format!("{path}/{action}"), &json!({})).await.expect(200);
        client.complete_task(task["id"].as_str().unwrap(), 240).await;
        wait_for(&format!("{state} after {action}"), Duration::from_secs(60), || async {
            let answer = client.get(&format!("/vms/{vm}")).await;
            if answer.json["state"] == state { Ok(()) } else { Err(answer.text) }
        })
        .await;
        match action {
            "stop" => assert_eq!(console.end().await, "1000 the machine is stopped"),
            "start" => {
                console = Console::open(&coordinator, &vm).await;
                console.until("muster-guest up").await;
            }
            _ => {
                console.until("<the machine runs again>").await;
                console.until("muster-guest up").await;
            }
        }
    }

    let task = client.delete(&path).await.expect(200);
    client.complete_task(task["id"].as_str().unwrap(), 120).await;
    assert_eq!(console.end().await, "1000 the machine is gone");
    wait_for("the index forgets it", Duration::from_secs(60), || async {
        let answer = client.get(&format!("/vms/{vm}")).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    assert_nothing_left(&agent, &vm);
    let history = client.get(&format!("/servers/{}/task-history", agent.server_uuid)).await;
    let tasks: Vec<_> = history.expect(200).as_array().unwrap().clone();
    assert!(tasks.iter().any(|t| t["task"] == "machine_create"), "{tasks:#?}");
}

/// What the real agent tells of a real VM is what the OpenAPI document says.
async fn answers_are_as_documented(client: &Client, server: &str, vm: &str, image: &str) {
    let contract = Contract::of(client).await;
    let path = format!("/servers/{server}/vms/{vm}");
    let snapshot = client.put(&format!("{path}/snapshots"), &json!({ "snapshot_name": "s" })).await;
    let snapshot = snapshot.expect(200)["id"].as_str().expect("an id").to_owned();
    client.complete_task(&snapshot, 60).await;
    let named = "/servers/{server_uuid}/vms/{uuid}";
    let loaded = contract.check(client, named, &path).await;
    assert_eq!(loaded["snapshots"][0]["name"], "s");
    for (part, query) in [("info", ""), ("info", "?info=status,vnc"), ("proc", ""), ("vnc", "")] {
        let template = format!("{named}/{part}");
        contract.check(client, &template, &format!("{path}/{part}{query}")).await;
    }
    for (template, path) in [
        ("/servers/{server_uuid}/images/{uuid}", format!("/servers/{server}/images/{image}")),
        ("/servers/{server_uuid}/vms", format!("/servers/{server}/vms")),
        ("/servers/{server_uuid}/task-history", format!("/servers/{server}/task-history")),
        ("/servers/{server_uuid}", format!("/servers/{server}")),
        ("/servers", "/servers?extras=all".to_owned()),
        ("/vms/{uuid}", format!("/vms/{vm}")),
        ("/images/{uuid}", format!("/images/{image}")),
        ("/tasks/{taskid}", format!("/tasks/{snapshot}")),
        ("/tasks", "/tasks".to_owned()),
        ("/why/{kind}/{id}", format!("/why/vm/{vm}")),
        ("/boot/{server_uuid}", format!("/boot/{server}")),
        ("/allocations", "/allocations".to_owned()),
        ("/ping", "/ping".to_owned()),
        ("/diagnostics", "/diagnostics".to_owned()),
        ("/platforms", "/platforms?os=true".to_owned()),
    ] {
        contract.check(client, template, &path).await;
    }
}

/// No process, disk, record or socket of the VM is on the node.
fn assert_nothing_left(agent: &Agent, vm: &str) {
    assert_eq!(agent.guest_pids(), Vec::<u32>::new());
    let data = agent.data_dir();
    for left in [data.join("vms").join(format!("{vm}.json")), data.join("vols").join(vm)] {
        assert!(!left.exists(), "{} is left", left.display());
    }
    let run = agent.run_dir().join("vm").join(vm);
    assert!(!run.exists(), "{} is left", run.display());
}

#[tokio::test]
async fn a_repeated_create_is_refused_without_harm() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let mut body = payload(&image, "twice");
    body["uuid"] = json!(fresh_uuid());

    let placed = client.post("/vms", &body).await.expect(202);
    client.complete_task(placed["id"].as_str().unwrap(), 120).await;
    let pids = agent.guest_pids();
    assert_eq!(pids.len(), 1);

    let again = client.post("/vms", &body).await;
    assert_eq!(again.status, 409, "{}", again.text);
    let mut direct = body.clone();
    direct["image"] = json!({ "uuid": image, "files": [{ "compression": "none" }] });
    direct["disks"] = json!([{ "image_uuid": image, "boot": true, "model": "virtio" }]);
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let task = client.post(&path, &direct).await.expect(200);
    let ended = client.wait_task(task["id"].as_str().unwrap(), 60).await;
    assert_eq!(ended["status"], "failure");
    let message = ended["history"][0]["event"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("exists"), "{message}");
    assert_eq!(agent.guest_pids(), pids, "the first VM was touched");
    a_lost_agent_ends_a_console(&coordinator, agent, body["uuid"].as_str().unwrap()).await;
}

/// `muster vm console` of a node whose agent dies: neither "not found" nor for ever.
async fn a_lost_agent_ends_a_console(coordinator: &Coordinator, mut agent: Agent, vm: &str) {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = std::process::Command::new(binary("muster"));
    command.args(["--url", &format!("http://{}", coordinator.address()), "vm", "console", vm]);
    let (stdin, stdout) = (Stdio::piped(), Stdio::null());
    let mut console =
        command.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).spawn().expect("muster starts");
    wait_for("the console is attached", BOOT, || {
        let log = agent.daemon().log();
        async move { if log.contains("stream opened") { Ok(()) } else { Err(log) } }
    })
    .await;
    agent.kill9();
    let ended = wait_for("the command ends", Duration::from_secs(30), || {
        let status = console.try_wait().expect("it can be waited for");
        async move { status.ok_or("it runs") }
    })
    .await;
    let output = console.wait_with_output().expect("its output");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(ended.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the agent is gone"), "{stderr}");
}

#[tokio::test]
async fn a_create_whose_hypervisor_fails_leaves_nothing() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let mut body = payload(&image, "broken");
    body["uuid"] = json!(fresh_uuid());
    body["cpu_type"] = json!("no-such-cpu-model");

    let placed = client.post("/vms", &body).await.expect(202);
    let ended = client.wait_task(placed["id"].as_str().unwrap(), 120).await;
    assert_eq!(ended["status"], "failure", "{ended:#}");
    let message = ended["history"][0]["event"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("no-such-cpu-model"), "the reason must say why: {message}");
    assert_nothing_left(&agent, body["uuid"].as_str().unwrap());
}
