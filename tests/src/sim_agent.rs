//! An agent that speaks the protocol and does nothing else: for figures at many agents.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_shared::ids::ServerUuid;
use muster_shared::wire::status::{Diskinfo, Meminfo, Report, Status, digest};
use muster_shared::wire::{
    Accepted, FromAgent, FromCoordinator, Heartbeat, Hello, Intake, Outcome, PROTOCOL, Sysinfo,
    TaskResult, decode, encode,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::daemon::{Coordinator, fresh_uuid};
use crate::http::Client;
use crate::wait::wait_for;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// A connected simulated agent; disconnects when dropped.
#[derive(Debug)]
pub struct SimAgent {
    /// The server it speaks for.
    pub server_uuid: String,
    session: JoinHandle<()>,
    reports: mpsc::Sender<u64>,
}

impl Drop for SimAgent {
    fn drop(&mut self) {
        self.session.abort();
    }
}

impl SimAgent {
    /// Connects one with a fresh uuid, registers its sysinfo and reports its status.
    ///
    /// # Panics
    /// If the coordinator can't be reached.
    pub async fn connect(coordinator: &Coordinator) -> Self {
        let server_uuid = fresh_uuid();
        let url = format!("{}/agent", coordinator.agent_url());
        let mut request = url.into_client_request().expect("a valid URL");
        let protocol = PROTOCOL.parse().expect("a valid header");
        request.headers_mut().insert("sec-websocket-protocol", protocol);
        let (mut socket, _) =
            tokio_tungstenite::connect_async(request).await.expect("the coordinator listens");
        for message in greeting(&server_uuid) {
            send(&mut socket, &message).await.expect("the coordinator reads");
        }
        let (reports, orders) = mpsc::channel(1);
        let session = tokio::spawn(serve(socket, orders));
        Self { server_uuid, session, reports }
    }

    /// Sends so many reports that nothing has changed, as fast as the coordinator reads.
    ///
    /// # Panics
    /// If the connection is gone.
    pub async fn report(&self, count: u64) {
        self.reports.send(count).await.expect("the session runs");
    }

    /// Waits until the coordinator shows it running.
    ///
    /// # Panics
    /// If it does not within a minute.
    pub async fn wait_running(&self, client: &Client) {
        let path = format!("/servers/{}", self.server_uuid);
        wait_for("simulated agent runs", Duration::from_secs(60), || async {
            let answer = client.get(&path).await;
            if answer.json["status"] == "running" { Ok(()) } else { Err(answer.text) }
        })
        .await;
    }
}

fn greeting(server_uuid: &str) -> Vec<FromAgent> {
    let hello = Hello {
        server_uuid: server_uuid.parse::<ServerUuid>().expect("a uuid"),
        boot_id: fresh_uuid(),
        agent_instance_id: fresh_uuid().parse().expect("a uuid"),
        version: "0.1.0".to_owned(),
        capabilities: vec!["task:nop".to_owned()],
        sysinfo_hash: "simulated".to_owned(),
        running_task_ids: Vec::new(),
        unacked_result_ids: Vec::new(),
        intake: Intake::Accepting,
        cluster: None,
    };
    let sysinfo = Sysinfo {
        sysinfo: Some(sysinfo(server_uuid)),
        agents: Some(vec![json!({ "name": "cn-agent", "version": "2.14.0" })]),
        hash: "simulated".to_owned(),
    };
    vec![hello.into(), sysinfo.into(), Box::new(Status { report: Some(report()) }).into()]
}

fn sysinfo(server_uuid: &str) -> Map<String, Value> {
    let document = json!({
        "UUID": server_uuid, "Hostname": format!("sim-{}", &server_uuid[..8]), "Setup": "true",
        "Live Image": "20260101T000000Z", "System Type": "Linux", "Boot Time": "1700000000",
        "SDC Version": "7.0", "MiB of Memory": "65536", "CPU Total Cores": 16,
        "CPU Online Count": 16,
        "Network Interfaces": { "eth0": {
            "MAC Address": "02:00:00:00:00:01", "ip4addr": "", "Link Status": "up",
            "NIC Names": ["admin"],
        }},
    });
    document.as_object().cloned().expect("an object")
}

fn report() -> Report {
    Report {
        full: true,
        digest: digest(&BTreeMap::new()),
        meminfo: Some(Meminfo {
            availrmem_bytes: 60 << 30,
            arcsize_bytes: 0,
            total_bytes: 64 << 30,
        }),
        diskinfo: Some(Diskinfo {
            pool_size_bytes: 1 << 40,
            pool_alloc_bytes: 1 << 30,
            system_used_bytes: 1 << 30,
            ..Diskinfo::default()
        }),
        ..Report::default()
    }
}

/// Heartbeats every second; every dispatched task is accepted and complete at once.
async fn serve(mut socket: Socket, mut orders: mpsc::Receiver<u64>) {
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    let mut seq = 0;
    loop {
        let sent = tokio::select! {
            biased;
            _ = beat.tick() => {
                seq += 1;
                send(&mut socket, &Heartbeat { seq, ts: String::new() }.into()).await
            }
            Some(count) = orders.recv() => repeat_report(&mut socket, count).await,
            received = socket.next() => match received {
                Some(Ok(Message::Text(text))) => answer(&mut socket, text.as_str()).await,
                Some(Ok(_)) => Ok(()),
                Some(Err(_)) | None => return,
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn repeat_report(
    socket: &mut Socket,
    count: u64,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let unchanged: FromAgent =
        Box::new(Status { report: Some(Report { full: false, ..report() }) }).into();
    let text = encode(&unchanged);
    for _ in 0..count {
        socket.feed(Message::text(text.clone())).await?;
    }
    socket.flush().await
}

async fn answer(
    socket: &mut Socket,
    text: &str,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let Ok(FromCoordinator::Dispatch(dispatch)) = decode::<FromCoordinator>(text) else {
        return Ok(());
    };
    send(socket, &Accepted { id: dispatch.id.clone(), intake: None }.into()).await?;
    let result = TaskResult {
        id: dispatch.id,
        status: Outcome::Complete,
        result: json!({}),
        error: None,
        finished_at: String::new(),
    };
    send(socket, &result.into()).await
}

async fn send(
    socket: &mut Socket,
    message: &FromAgent,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    socket.send(Message::text(encode(message))).await
}
