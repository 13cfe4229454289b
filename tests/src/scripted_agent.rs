//! An agent that says what a test tells it to, when the test tells it to.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_shared::wire::PROTOCOL;
use muster_shared::wire::status::{VmReport, digest};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::daemon::{Coordinator, fresh_uuid};
use crate::http::Client;
use crate::wait::wait_for;

/// A server that is silent for two seconds is `unknown`.
const BEAT: Duration = Duration::from_millis(500);
const MIB: u64 = 1 << 20;

/// An agent without a connection.
#[derive(Debug)]
pub struct Away {
    server_uuid: String,
    url: String,
}

impl Away {
    /// Connects it again.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    pub async fn back(self) -> ScriptedAgent {
        ScriptedAgent::connect(&self.url, &self.server_uuid).await
    }
}

/// A connected agent. Its messages are JSON, so that a test says exactly what goes over the wire.
#[derive(Debug)]
pub struct ScriptedAgent {
    socket: WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>,
    /// The server it speaks for.
    pub server_uuid: String,
    /// What the coordinator said first.
    pub welcome: Value,
    url: String,
    seen: Vec<Value>,
}

impl ScriptedAgent {
    /// Connects one with a fresh uuid, and waits until its server is running.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    pub async fn register(coordinator: &Coordinator) -> Self {
        let server_uuid = fresh_uuid();
        let agent = Self::connect(&coordinator.agent_url(), &server_uuid).await;
        agent.wait_running(&coordinator.client()).await;
        agent
    }

    /// Waits until the server is shown as running, with its memory.
    ///
    /// # Panics
    /// If it is not within half a minute.
    pub async fn wait_running(&self, client: &Client) {
        let path = format!("/servers/{}", self.server_uuid);
        wait_for("the server runs", Duration::from_secs(30), || async {
            let answer = client.get(&path).await;
            let memory = answer.json["memory_total_bytes"].is_u64();
            let running = answer.json["status"] == "running" && memory;
            if running { Ok(()) } else { Err(answer.text) }
        })
        .await;
    }

    /// Ends the connection without a word and makes another one for the same server.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    #[must_use]
    pub async fn reconnected(self) -> Self {
        let Self { socket, server_uuid, url, .. } = self;
        drop(socket);
        Self::connect(&url, &server_uuid).await
    }

    /// Ends the connection and returns once the coordinator has seen that.
    ///
    /// # Panics
    /// If it does not within half a minute.
    pub async fn leave(self, client: &Client) -> Away {
        let Self { socket, server_uuid, url, .. } = self;
        drop(socket);
        let why = format!("/why/server/{server_uuid}");
        wait_for("the coordinator sees the end", Duration::from_secs(30), || async {
            let answer = client.get(&why).await;
            if answer.json["connected"] == false { Ok(()) } else { Err(answer.text) }
        })
        .await;
        Away { server_uuid, url }
    }

    /// Connects one to `ws://ADDR:PORT`; it has told of its host and was welcomed.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    pub async fn connect(url: &str, server_uuid: &str) -> Self {
        // One host and one process, whichever connection it is.
        let mut agent = Self::dial(url, server_uuid, server_uuid).await;
        agent
            .say(json!({ "kind": "sysinfo", "hash": "scripted", "sysinfo": {
                "UUID": server_uuid, "Hostname": format!("s-{}", &server_uuid[..8]),
                "Setup": "true", "System Type": "Linux", "Live Image": "20260101T000000Z",
                "MiB of Memory": "65536", "CPU Total Cores": 16, "CPU Online Count": 16,
                "Network Interfaces": { "eth0": {
                    "MAC Address": "02:00:00:00:00:01", "ip4addr": "", "Link Status": "up",
                    "NIC Names": ["admin"],
                }},
            }}))
            .await;
        agent.report().await;
        agent.welcome =
            agent.expect("welcome", None, Duration::from_secs(10)).await.expect("a welcome");
        agent
    }

    /// Connects one that runs on another host under the same server uuid, as after a copy of its
    /// disk; it has only said who it is.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    pub async fn copy(&self) -> Self {
        Self::dial(&self.url, &self.server_uuid, &fresh_uuid()).await
    }

    /// A connection on which an agent has said who it is, and which start of which host.
    async fn dial(url: &str, server_uuid: &str, boot: &str) -> Self {
        let mut request = format!("{url}/agent").into_client_request().expect("a valid URL");
        let protocol = PROTOCOL.parse().expect("a valid header");
        request.headers_mut().insert("sec-websocket-protocol", protocol);
        let (socket, _) =
            tokio_tungstenite::connect_async(request).await.expect("the coordinator listens");
        let mut agent = Self {
            socket,
            server_uuid: server_uuid.to_owned(),
            welcome: Value::Null,
            url: url.to_owned(),
            seen: Vec::new(),
        };
        agent
            .say(json!({
                "kind": "hello", "server_uuid": server_uuid, "boot_id": boot,
                "agent_instance_id": boot, "version": "0.1.0",
            }))
            .await;
        agent
    }

    /// Says that it has no VMs.
    pub async fn report(&mut self) {
        self.report_vms(&[]).await;
    }

    /// Says that it has these VMs and no others.
    pub async fn report_vms(&mut self, vms: &[VmReport]) {
        let vms: BTreeMap<_, _> = vms.iter().map(|vm| (vm.vm.uuid, vm.clone())).collect();
        let digest = digest(&vms);
        self.say(json!({ "kind": "status", "report": {
            "full": true, "vms": vms, "digest": digest, "timestamp": "2026-01-01T00:00:00.000Z",
            "meminfo": {
                "availrmem_bytes": 60_000 * MIB, "arcsize_bytes": 0, "total_bytes": 65_536 * MIB,
            },
            "diskinfo": { "pool_size_bytes": 1_000_000 * MIB },
        }}))
        .await;
    }

    /// Sends a message.
    pub async fn say(&mut self, message: Value) {
        self.say_text(message.to_string()).await;
    }

    /// Sends a frame, whatever it says.
    pub async fn say_text(&mut self, frame: String) {
        // A connection that has ended is noticed by whoever waits for an answer.
        drop(self.socket.send(Message::text(frame)).await);
    }

    /// Accepts a task.
    pub async fn accept(&mut self, task: &str) {
        self.say(json!({ "kind": "accepted", "id": task })).await;
    }

    /// Refuses a task, or says that it does not know it.
    pub async fn refuse(&mut self, task: &str, code: &str) {
        self.say(json!({ "kind": "error", "id": task, "code": code, "message": code })).await;
    }

    /// A task has ended; badly, when there is a code.
    pub async fn end(&mut self, task: &str, code: Option<&str>) {
        let status = if code.is_some() { "failure" } else { "complete" };
        let mut result = json!({ "kind": "result", "id": task, "status": status, "result": {},
            "finished_at": "2026-01-01T00:00:00.000Z" });
        if let Some(code) = code {
            result["error"] = json!({ "code": code, "message": code });
        }
        self.say(result).await;
    }

    /// Waits for a message of a kind, about a task if one is named; `None` when none comes in
    /// time. What came before it is skipped.
    #[expect(clippy::disallowed_methods, reason = "a limit of the test, not of the product")]
    pub async fn expect(
        &mut self,
        kind: &str,
        task: Option<&str>,
        limit: Duration,
    ) -> Option<Value> {
        let is = |message: &Value| {
            message["kind"] == kind && task.is_none_or(|task| message["id"] == task)
        };
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = self.seen.iter().position(is) {
                return Some(self.seen.swap_remove(at));
            }
            if !self.receive(until).await {
                return None;
            }
        }
    }

    /// Waits for the end of the connection; the code that the coordinator closed it with.
    #[expect(clippy::disallowed_methods, reason = "a limit of the test, not of the product")]
    pub async fn closed(&mut self, limit: Duration) -> Option<u16> {
        let until = Instant::now() + limit;
        loop {
            match timeout_at(until, self.socket.next()).await {
                Ok(Some(Ok(Message::Close(frame)))) => return frame.map(|frame| frame.code.into()),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(_)) | None) | Err(_) => return None,
            }
        }
    }

    /// Takes one message; `false` when none came until then.
    #[expect(clippy::disallowed_methods, reason = "a limit of the test, not of the product")]
    async fn receive(&mut self, until: Instant) -> bool {
        while Instant::now() < until {
            self.say(json!({ "kind": "heartbeat", "seq": 1, "ts": "" })).await;
            let beat = until.min(Instant::now() + BEAT);
            match timeout_at(beat, self.socket.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => {
                    self.seen.push(serde_json::from_str(&text).expect("messages are JSON"));
                    return true;
                }
                Ok(Some(Ok(_))) | Err(_) => {}
                Ok(Some(Err(_)) | None) => return false,
            }
        }
        false
    }
}
