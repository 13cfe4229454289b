//! What `docker exec`, `docker cp` and `docker stats` do, over the ports that a coordinator answers
//! with, in a container of the machine's runc.

use std::io::Read as _;
use std::time::Duration;

use muster_tests::container;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::own_network;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(60);

struct World {
    _coordinator: Coordinator,
    client: Client,
    agent: Agent,
    vm: String,
    image: String,
}

impl World {
    /// A container that does nothing; `None`: containers can't run here, which was said.
    async fn new() -> Option<Self> {
        if !container::can_run() || !own_network::enter() {
            return None;
        }
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let named = format!("instance=d{}", &fresh_uuid()[..6]);
        let agent = Agent::with(&[&coordinator.agent_url()], &[&named], &[]);
        agent.wait_allocatable(&client).await;
        let config = json!({ "Entrypoint": ["/bin/sleep", "100000"], "Env": ["COLOUR=blue"] });
        let image = container::import(&client, &config).await;
        let vm = fresh_uuid();
        let payload = json!({
            "uuid": vm, "brand": "joyent-minimal", "ram": 64, "alias": "box",
            "image_uuid": image, "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "owner_uuid": fresh_uuid(),
        });
        let path = format!("/servers/{}/vms", agent.server_uuid);
        let made = client.post(&path, &payload).await.expect(200);
        client.complete_task(made["id"].as_str().expect("a task"), 120).await;
        Some(Self { _coordinator: coordinator, client, agent, vm, image })
    }

    fn path(&self, action: &str) -> String {
        format!("/servers/{}/vms/{}{action}", self.agent.server_uuid, self.vm)
    }

    /// Connects to the port that a request answers with.
    async fn connect(&self, action: &str, body: &Value) -> TcpStream {
        let opened = self.client.post(&self.path(action), body).await.expect(200);
        let port = u16::try_from(opened["port"].as_u64().expect("a port")).expect("a port");
        assert_eq!(opened["host"], "127.0.0.1");
        TcpStream::connect(("127.0.0.1", port)).await.expect("somebody listens")
    }

    /// Runs a command and says these lines to it; what came back.
    async fn exec(&self, command: Value, said: &[Value]) -> Vec<Value> {
        let mut stream = self.connect("/docker-exec", &json!({ "command": command })).await;
        for line in said {
            stream.write_all(format!("{line}\n").as_bytes()).await.expect("it listens");
        }
        let mut text = String::new();
        let read = timeout(LONG, stream.read_to_string(&mut text)).await;
        read.expect("the program ends").expect("the connection holds");
        text.lines().map(|line| line.parse().expect("JSON")).collect()
    }

    async fn copy(&self, path: &str, mode: &str) -> Value {
        let body = json!({ "path": path, "mode": mode });
        self.client.post(&self.path("/docker-copy"), &body).await.expect(200)
    }

    /// The archive that a path is read as.
    async fn archive(&self, path: &str) -> Vec<u8> {
        let mut stream = self.connect("/docker-copy", &json!({ "path": path })).await;
        let mut bytes = Vec::new();
        timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("it ends").expect("it holds");
        bytes
    }

    /// User and group of the first thing in what a path is read as.
    async fn owner(&self, path: &str) -> (u64, u64) {
        let bytes = self.archive(path).await;
        let mut archive = tar::Archive::new(&bytes[..]);
        let first = archive.entries().expect("an archive").next().expect("an entry");
        let first = first.expect("an entry");
        (first.header().uid().expect("a number"), first.header().gid().expect("a number"))
    }

    /// The names and contents that a path is read as.
    async fn read(&self, path: &str) -> Vec<(String, String)> {
        let bytes = self.archive(path).await;
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().expect("an archive").map(|entry| {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a name").display().to_string();
            let mut content = String::new();
            entry.read_to_string(&mut content).expect("text");
            (name, content)
        });
        entries.collect()
    }

    /// Writes one file into a folder, under this name in the stream; what the agent says to that.
    async fn write(&self, folder: &str, name: &str, content: &str) -> String {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(u64::try_from(content.len()).expect("it is short"));
        header.as_gnu_mut().expect("it is one").name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        let mut tar = tar::Builder::new(Vec::new());
        tar.append(&header, content.as_bytes()).expect("memory");
        let bytes = tar.into_inner().expect("memory");
        let body = json!({ "path": folder, "mode": "write" });
        let mut stream = self.connect("/docker-copy", &body).await;
        stream.write_all(&bytes).await.expect("it listens");
        stream.shutdown().await.expect("it listens");
        // It closes its side when it is done, and says why if it is not.
        let mut said = String::new();
        let end = timeout(LONG, stream.read_to_string(&mut said)).await.expect("it ends");
        end.expect("it is no reset");
        said
    }
}

/// All text of one kind.
fn text(heard: &[Value], kind: &str) -> String {
    let of_it = heard.iter().filter(|line| line["type"] == kind);
    of_it.filter_map(|line| line["data"].as_str()).collect()
}

#[tokio::test]
async fn programs_run_with_a_terminal_and_without() {
    let Some(world) = World::new().await else { return };
    let script = "cat; echo $COLOUR $MORE; id -u; echo oops >&2; exit 7";
    let command = json!({
        "Cmd": ["sh", "-c", script], "Env": ["MORE=red"], "User": "web", "AttachStdin": true,
    });
    let said = [json!({ "type": "stdin", "data": "typed\n" }), json!({ "type": "end" })];
    let heard = world.exec(command, &said).await;
    assert_eq!(text(&heard, "stdout"), "typed\nblue red\n33\n", "{heard:?}");
    assert_eq!(text(&heard, "stderr"), "oops\n");
    let end = json!({ "type": "end", "data": { "code": 7, "signal": null } });
    assert_eq!(heard.last(), Some(&end));

    let command = json!({
        "Cmd": ["sh", "-c", "read go; until [ \"$(stty size)\" = '41 123' ]; do :; done; stty size; exit 2"], "Tty": true, "AttachStdin": true,
    });
    let said = [
        json!({ "type": "tty", "resize": { "h": 41, "w": 123 } }),
        json!({ "type": "tty", "data": "go\n" }),
    ];
    let heard = world.exec(command, &said).await;
    assert!(text(&heard, "tty").contains("41 123"), "{heard:?}");
    assert_eq!(heard.last().expect("an end")["data"]["code"], 2);

    let missing = world.exec(json!({ "Cmd": ["/no/such/program"] }), &[]).await;
    assert_ne!(missing.last().expect("an end")["data"]["code"], 0, "{missing:?}");
    let bad = json!({ "command": { "Cmd": [] } });
    let refused = world.client.post(&world.path("/docker-exec"), &bad).await;
    assert!(refused.status.is_client_error() && refused.text.contains("Cmd"), "{}", refused.text);
}

#[tokio::test]
async fn files_go_in_and_out_and_nowhere_else() {
    let Some(world) = World::new().await else { return };
    assert_eq!(world.write("/tmp", "note", "from outside").await, "");
    let heard = world.exec(json!({ "Cmd": ["cat", "/tmp/note"] }), &[]).await;
    assert_eq!(text(&heard, "stdout"), "from outside", "{heard:?}");
    let file = [("note".to_owned(), "from outside".to_owned())];
    assert_eq!(world.read("/tmp/note").await, file);
    assert!(world.read("/www").await.iter().any(|(name, _)| name == "www/index.html"));
    // Whatever the node calls them.
    assert_eq!(world.owner("/tmp/note").await, (0, 0));
    let script = "test -O /tmp/note && chown 33:34 /tmp/note && ls -ln /tmp/note";
    let heard = world.exec(json!({ "Cmd": ["sh", "-c", script] }), &[]).await;
    assert!(text(&heard, "stdout").contains("33"), "{heard:?}");
    assert_eq!(world.owner("/tmp/note").await, (33, 34));
    let stat = world.copy("/tmp/note", "stat").await;
    assert_eq!(stat["containerPathStat"]["size"], 12, "{stat}");
    assert_eq!(stat["port"], Value::Null);

    let outside = world.agent.data_dir().join("attacked");
    let attack = format!("../../../../../../../..{}", outside.display());
    let said = world.write("/tmp", &attack, "attack").await;
    let said: Value = said.parse().expect("a line of JSON");
    assert_eq!(said["type"], "error", "{said}");
    assert!(said["message"].as_str().is_some_and(|text| text.contains("leads out")), "{said}");
    assert!(!outside.exists(), "a copy left the container");
    for (path, mode, status) in
        [("/../etc/passwd", "read", 400), ("/tmp/none", "read", 404), ("/tmp/note", "write", 400)]
    {
        let body = json!({ "path": path, "mode": mode });
        let refused = world.client.post(&world.path("/docker-copy"), &body).await;
        // The agent's refusal of a parameter is the client's fault, whatever its number.
        let is_right =
            refused.status == status || (status == 400 && refused.status.is_client_error());
        assert!(is_right, "{path}: {} {}", refused.status, refused.text);
    }
}

#[tokio::test]
async fn figures_come_every_second() {
    let Some(world) = World::new().await else { return };
    let stream = world.connect("/docker-stats", &json!({ "payload": { "stream": true } })).await;
    let mut lines = BufReader::new(stream).lines();
    let mut next = async || -> Value {
        let line = timeout(LONG, lines.next_line()).await.expect("a line comes");
        line.expect("it holds").expect("a line").parse().expect("JSON")
    };
    let (first, second) = (next().await, next().await);
    assert!(first["memory_stats"]["usage"].as_u64().is_some_and(|bytes| bytes > 0), "{first}");
    assert_eq!(second["precpu_stats"], first["cpu_stats"]);
    assert!(first["pids_stats"]["current"].as_u64() >= Some(1), "{first}");
    let once = world.connect("/docker-stats", &json!({ "payload": { "stream": false } })).await;
    let mut text = String::new();
    BufReader::new(once).read_to_string(&mut text).await.expect("it ends");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[tokio::test]
async fn a_client_that_only_says_nothing_more_still_gets_the_output() {
    let Some(world) = World::new().await else { return };
    let command = json!({ "Cmd": ["sh", "-c", "cat; sleep 5; echo late"], "AttachStdin": true });
    let mut stream = world.connect("/docker-exec", &json!({ "command": command })).await;
    let line = json!({ "type": "stdin", "data": "typed\n" });
    stream.write_all(format!("{line}\n").as_bytes()).await.expect("it listens");
    stream.shutdown().await.expect("it listens");
    let mut said = String::new();
    let read = timeout(LONG, stream.read_to_string(&mut said)).await;
    read.expect("the program ends").expect("the connection holds");
    let heard: Vec<Value> = said.lines().map(|line| line.parse().expect("JSON")).collect();
    assert_eq!(text(&heard, "stdout"), "typed\nlate\n", "{heard:?}");
    assert_eq!(heard.last().expect("an end")["data"]["code"], 0);

    // One that has left altogether ends it, even if it prints nothing.
    let command = json!({ "Cmd": ["sh", "-c", "echo $$ > /tmp/pid; exec sleep 100001"] });
    let mut stream = world.connect("/docker-exec", &json!({ "command": command })).await;
    stream.shutdown().await.expect("it listens");
    let count = || async {
        let heard = world.exec(json!({ "Cmd": ["ps"] }), &[]).await;
        text(&heard, "stdout").matches("sleep 100001").count()
    };
    wait_for("it runs", LONG, || async { if count().await == 1 { Ok(()) } else { Err(()) } }).await;
    drop(stream);
    wait_for("it ends", LONG, || async { if count().await == 0 { Ok(()) } else { Err(()) } }).await;
}

#[tokio::test]
async fn the_container_s_own_program_is_attached_to() {
    let Some(mut world) = World::new().await else { return };
    let script = "echo early; read line; echo got $line; exit 9";
    let vm = fresh_uuid();
    let entrypoint = json!(["/bin/sh", "-c", script]).to_string();
    let payload = json!({
        "uuid": vm, "brand": "joyent-minimal", "ram": 64, "alias": "other", "autoboot": false,
        "image_uuid": world.image,
        "image": { "uuid": world.image, "files": [{ "compression": "none" }] },
        "owner_uuid": fresh_uuid(),
        "internal_metadata": { "docker:entrypoint": entrypoint, "docker:cmd": "[]" },
    });
    let path = format!("/servers/{}/vms", world.agent.server_uuid);
    let made = world.client.post(&path, &payload).await.expect(200);
    world.client.complete_task(made["id"].as_str().expect("a task"), 120).await;
    world.vm = vm;
    // Asked before it runs, it waits for that.
    let console = json!({ "command": { "AttachConsole": true, "AttachStdin": true } });
    let started = async {
        let answer = world.client.post(&world.path("/start"), &json!({})).await.expect(200);
        world.client.complete_task(answer["id"].as_str().expect("a task"), 120).await;
    };
    let (mut stream, ()) = tokio::join!(world.connect("/docker-exec", &console), started);
    let line = json!({ "type": "stdin", "data": "typed\n" });
    stream.write_all(format!("{line}\n").as_bytes()).await.expect("it listens");
    let mut said = String::new();
    let read = timeout(LONG, stream.read_to_string(&mut said)).await;
    read.expect("the program ends").expect("the connection holds");
    let heard: Vec<Value> = said.lines().map(|line| line.parse().expect("JSON")).collect();
    assert_eq!(text(&heard, "stdout"), "early\ngot typed\n", "{heard:?}");
    let end = json!({ "type": "end", "data": { "code": 9, "signal": null } });
    assert_eq!(heard.last(), Some(&end));
}
