//! What the rows need to succeed: an application with servers whose agents do every task at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::ServerUuid;
use muster_shared::kv::MemKv;
use muster_shared::link::{Connection, Frame, memory};
use muster_shared::threads::SameRuntime;
use muster_shared::wire::status::{Report, Status, VmReport, digest};
use muster_shared::wire::{
    Accepted, Dispatch, Error as WireError, FromAgent, FromCoordinator, Heartbeat, Hello, Intake,
    Outcome, StreamOpen, Sysinfo, TaskError, TaskResult, decode, encode,
};
use object_store::memory::InMemory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::super::{Answer, Api};
use super::row::Sent;
use crate::app::{App, Parts};
use crate::config::Config;
use crate::store::{KvStore, Record, list_all};

const SERVER: u128 = 1;
const VICTIM: u128 = 2;
const AWAY: u128 = 3;
const VM: u128 = 0x10;
const GHOST: u128 = 0x11;
/// Records that change by themselves, and decisions, of which refusals are some too.
const VOLATILE: [&str; 6] =
    ["roster/", "members/", "figures/", "events/", "allocation/", "snapshot/"];

fn uuid(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

/// A coordinator with its agents.
pub(super) struct Cluster {
    pub(super) api: Api,
    names: BTreeMap<&'static str, String>,
    agents: Vec<JoinHandle<()>>,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
        config.security.allow_command_execute = true;
        config.boot.platforms = vec!["20260101T000000Z".to_owned()];
        change(&mut config);
        let clock: SharedClock = Arc::new(SystemClock::new());
        let tracker = TaskTracker::new();
        let store = KvStore::open(Arc::new(MemKv::default()), clock.clone(), &tracker);
        let parts = Parts {
            clock,
            entropy: Arc::new(SeededEntropy::new(1)),
            threads: Arc::new(SameRuntime),
            store: Arc::new(store.await.unwrap()),
            blobs: Arc::new(InMemory::new()),
            instance: "test".to_owned(),
        };
        let app = App::start(config.app("test".to_owned()), parts).await.unwrap();
        let api = Api::over(app, &config).await;
        let mut cluster = Self { api, names: BTreeMap::new(), agents: Vec::new() };
        for n in [SERVER, VICTIM, AWAY] {
            cluster.connect(n);
        }
        for n in [SERVER, VICTIM, AWAY] {
            cluster.until(n, |server| server["memory_total_bytes"].is_u64()).await;
        }
        cluster.agents[2].abort();
        cluster.until(AWAY, |server| server["status"] == "unknown").await;
        cluster.names = BTreeMap::from([
            ("server_uuid", uuid(SERVER)),
            ("victim", uuid(VICTIM)),
            ("away", uuid(AWAY)),
            ("missing", uuid(0x99)),
            ("uuid", uuid(VM)),
            ("ghost", uuid(GHOST)),
        ]);
        cluster
    }

    pub(super) fn app(&self) -> &Arc<App> {
        &self.api.app
    }

    fn connect(&mut self, n: u128) {
        let (ours, theirs) = memory::pair();
        self.app().agents().accept(theirs);
        let agent = Agent { address: self.api.address.clone(), server: Uuid::from_u128(n) };
        self.agents.push(tokio::spawn(agent.run(ours)));
    }

    /// Waits until a server's record is as wanted.
    async fn until(&self, n: u128, wanted: impl Fn(&Value) -> bool) {
        let path = format!("/servers/{}", uuid(n));
        for _ in 0..1_000 {
            let answer = self.send(&Sent::new("GET", path.clone())).await;
            if wanted(&answer.value()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never was as wanted");
    }

    pub(super) async fn stop(self) {
        for agent in &self.agents {
            agent.abort();
        }
        self.api.app.shutdown().await;
    }

    fn filled(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.names {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }

    /// The value of a name.
    pub(super) fn name(&self, name: &str) -> &str {
        &self.names[name]
    }

    /// Sends a request; only the head of an answer without an end is read.
    pub(super) async fn send(&self, sent: &Sent) -> Answer {
        let path = self.filled(&sent.path);
        let mut head = format!("{} {path} HTTP/1.1\r\nhost: x\r\n", sent.method);
        let upgrade = sent.headers.iter().any(|header| header.starts_with("upgrade:"));
        if !upgrade {
            head += "connection: close\r\n";
        }
        for header in &sent.headers {
            head += &format!("{}\r\n", self.filled(header));
        }
        let body = match std::str::from_utf8(&sent.body) {
            Ok(text) => self.filled(text).into_bytes(),
            Err(_) => sent.body.clone(),
        };
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        let mut bytes = (head + "\r\n").into_bytes();
        bytes.extend_from_slice(&body);
        exchange(&self.api.address, &bytes).await
    }

    /// Keeps what a request's answer has to be kept of.
    pub(super) fn remember(&mut self, sent: &Sent, answer: &Answer) {
        if let Some((member, name)) = sent.keeps {
            let value = answer.value()[member].as_str().unwrap_or_default().to_owned();
            self.names.insert(name, value);
        }
    }

    /// All records that only requests change, once what was begun has ended.
    pub(super) async fn records(&self) -> Vec<Record> {
        let app = self.app();
        for _ in 0..1_000 {
            if app.tasks.ids().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (mut records, _) = list_all(&*app.parts().store, "").await.unwrap();
        // Jobs go on by themselves on the server that they have to themselves.
        let victim = uuid(VICTIM);
        records.retain(|record| {
            let busy = record.key.contains(&victim)
                || String::from_utf8_lossy(&record.value).contains(&victim);
            !busy && !VOLATILE.iter().any(|prefix| record.key.starts_with(prefix))
        });
        records
    }
}

/// Sends bytes; reads until the connection closes, or the head of an answer that does not end.
async fn exchange(address: &str, bytes: &[u8]) -> Answer {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let read = async {
        let mut answer = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let n = reader.read(&mut buffer).await.unwrap();
            answer.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&answer[..answer.len().min(2048)]).into_owned();
            let Some(end) = text.find("\r\n\r\n") else {
                if n == 0 {
                    return answer;
                }
                continue;
            };
            let head = text[..end].to_ascii_lowercase();
            let endless = head.contains(" 101 ") || head.contains("text/event-stream");
            let length = head.split("content-length: ").nth(1);
            let length = length.and_then(|rest| rest.lines().next()?.trim().parse::<usize>().ok());
            let whole = length.is_some_and(|length| answer.len() >= end + 4 + length);
            if n == 0 || endless || whole {
                return answer;
            }
        }
    };
    let (sent, answer) = tokio::join!(writer.write_all(bytes), read);
    // The server may refuse a body before it has all of it.
    drop(sent);
    Answer::parse(&answer)
}

/// An agent that does every task at once.
struct Agent {
    address: String,
    server: Uuid,
}

impl Agent {
    async fn run(self, mut connection: Connection) {
        let server = ServerUuid(self.server);
        let vms = self.vms();
        let sysinfo = sysinfo(self.server);
        let report = Report {
            full: true,
            vms: vms.iter().map(|(vm, report)| (*vm, Some(report.clone()))).collect(),
            digest: digest(&vms),
            meminfo: serde_json::from_value(json!({
                "availrmem_bytes": 8u64 << 30, "arcsize_bytes": 0, "total_bytes": 8u64 << 30,
            }))
            .ok(),
            diskinfo: serde_json::from_value(json!({ "pool_size_bytes": 500u64 << 30 })).ok(),
            ..Report::default()
        };
        let hello = Hello {
            server_uuid: server,
            boot_id: "b".to_owned(),
            agent_instance_id: Uuid::nil(),
            version: "1".to_owned(),
            // Without a list of tasks an agent is taken to have them all.
            capabilities: vec![],
            sysinfo_hash: "h".to_owned(),
            running_task_ids: vec![],
            unacked_result_ids: vec![],
            intake: Intake::Accepting,
        };
        let agents = vec![json!({ "name": "cn-agent", "version": "2.14.0" })];
        let described = Sysinfo {
            sysinfo: sysinfo.as_object().cloned(),
            agents: Some(agents),
            hash: "h".to_owned(),
        };
        send(&mut connection, hello.into()).await;
        send(&mut connection, described.into()).await;
        send(&mut connection, Box::new(Status { report: Some(report) }).into()).await;
        let mut beat = tokio::time::interval(Duration::from_millis(300));
        loop {
            tokio::select! {
                biased;
                frame = connection.stream.next() => match frame {
                    Ok(Some(Frame::Text(text))) => self.answer(&mut connection, &text).await,
                    _ => return,
                },
                _ = beat.tick() => {
                    send(&mut connection, Heartbeat { seq: 1, ts: String::new() }.into()).await;
                }
            }
        }
    }

    fn vms(&self) -> BTreeMap<muster_shared::ids::VmUuid, VmReport> {
        if self.server != Uuid::from_u128(SERVER) {
            return BTreeMap::new();
        }
        let report = json!({
            "uuid": uuid(VM), "owner_uuid": Uuid::nil(), "brand": "kvm",
            "max_physical_memory": 1280, "cpu_cap": 100, "quota": 1, "state": "running",
            "zone_state": "running", "last_modified": "2026-01-01T00:00:00.000Z",
            "index": { "alias": "x", "tags": { "role": "test" }, "vcpus": 1 },
        });
        let report: VmReport = serde_json::from_value(report).unwrap();
        BTreeMap::from([(report.vm.uuid, report)])
    }

    async fn answer(&self, connection: &mut Connection, text: &str) {
        match decode::<FromCoordinator>(text).unwrap() {
            FromCoordinator::Dispatch(dispatch) => {
                send(connection, Accepted { id: dispatch.id.clone() }.into()).await;
                send(connection, self.result(*dispatch).into()).await;
            }
            FromCoordinator::Pause(pause) => {
                send(connection, Accepted { id: pause.token }.into()).await;
            }
            FromCoordinator::Resume(resume) => {
                send(connection, Accepted { id: resume.token }.into()).await;
            }
            FromCoordinator::Cancel(cancel) => {
                let code = "NotCancellable".to_owned();
                let message = "the task has ended".to_owned();
                let id = Some(cancel.id.to_string());
                send(connection, WireError { id, code, message }.into()).await;
            }
            FromCoordinator::StreamOpen(open) => self.open(&open).await,
            _ => {}
        }
    }

    /// Dials the byte stream; the coordinator accepts it or the client's request fails.
    async fn open(&self, open: &StreamOpen) {
        let head = format!(
            "GET /agent/streams/{} HTTP/1.1\r\nhost: x\r\n{}\r\n\r\n",
            open.stream_id,
            HANDSHAKE.join("\r\n").replace("PROTOCOL", muster_shared::wire::stream::PROTOCOL),
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 101");
        // It stays open for as long as the test needs it.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(stream);
        });
    }

    fn result(&self, dispatch: Dispatch) -> TaskResult {
        let result = self.work(&dispatch);
        let (status, result, error) = match result {
            Ok(result) => (Outcome::Complete, result, None),
            Err(code) => {
                let message = format!("it failed with {code}");
                (Outcome::Failure, Value::Null, Some(TaskError { code, message, details: None }))
            }
        };
        TaskResult { id: dispatch.id, status, result, error, finished_at: String::new() }
    }

    /// The result of a task, or the code of its failure. A dataset `fail-CODE` asks for one.
    fn work(&self, dispatch: &Dispatch) -> Result<Value, String> {
        let text = |name: &str| dispatch.params.get(name).and_then(Value::as_str);
        if let Some(code) = text("dataset").and_then(|name| name.strip_prefix("fail-")) {
            return Err(code.to_owned());
        }
        let of_ghost = dispatch.task.starts_with("machine_") && text("uuid") == Some(&uuid(GHOST));
        if of_ghost {
            return Err("VmNotFound".to_owned());
        }
        Ok(match dispatch.task.as_str() {
            "task_history" => json!([{ "task": "nop", "status": "finished" }]),
            "server_sysinfo" | "server_update_nics" => json!({ "sysinfo": sysinfo(self.server) }),
            "machine_info" => json!({ "vnc": { "host": "10.0.0.1", "port": 5900 } }),
            "machine_load" => json!({ "uuid": text("uuid"), "state": "running" }),
            "image_get" => json!({ "uuid": text("uuid") }),
            "command_execute" => json!({ "exitCode": 0, "stdout": "hi\n", "stderr": "" }),
            "docker_exec" | "docker_copy" | "docker_stats" | "docker_build" => {
                json!({ "host": "10.0.0.1", "port": 5000 })
            }
            "zfs_list_datasets" | "zfs_list_snapshots" | "zfs_list_pools" => {
                json!([{ "name": "zones" }])
            }
            _ => json!({}),
        })
    }
}

/// A websocket's handshake.
pub(super) const HANDSHAKE: [&str; 5] = [
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol: PROTOCOL",
];

async fn send(connection: &mut Connection, message: FromAgent) {
    // A coordinator that has stopped needs no answer.
    connection.sink.send(Frame::Text(encode(&message))).await.ok();
}

fn sysinfo(server: Uuid) -> Value {
    json!({
        "UUID": server, "Hostname": format!("cn-{server}"), "Live Image": "20260101T000000Z",
        "System Type": "Linux", "Boot Time": "1700000000", "SDC Version": "7.0", "Setup": true,
        "CPU Total Cores": 8, "CPU Online Count": 8, "MiB of Memory": "8192",
        "VM Capable": true, "HVM API": true, "Bhyve Capable": true,
        // The allocator leaves such a server out; recovery configurations need one.
        "Zpool Encrypted": server == Uuid::from_u128(VICTIM),
        "Network Interfaces": { "eth0": {
            "MAC Address": "02:00:00:00:00:01", "Link Status": "up", "NIC Names": ["admin"],
        } },
    })
}
