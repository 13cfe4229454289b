//! An agent that speaks the protocol and does nothing else: for figures at many agents.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::link::websocket::config;
use muster_shared::wire::status::{Diskinfo, Meminfo, Report, Status, VmIndex, VmReport, VmStatus};
use muster_shared::wire::{
    Accepted, FromAgent, FromCoordinator, Heartbeat, Hello, Intake, Outcome, PROTOCOL, Sysinfo,
    TaskResult, decode, encode,
};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
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
    orders: mpsc::Sender<Order>,
}

/// What a simulated agent is to tell.
enum Order {
    /// So many times that nothing has changed.
    Repeat(u64),
    /// These VMs, and no others.
    Show(BTreeMap<VmUuid, VmReport>),
    /// Nothing more: its connection is somebody else's.
    Give(oneshot::Sender<Socket>),
}

/// VMs of a server that run, the first of another size than the rest, which have one GiB each.
#[derive(Clone, Copy, Debug)]
pub struct Vms {
    /// Where.
    pub server: ServerUuid,
    /// How many.
    pub count: u32,
    /// Memory of the first, MiB.
    pub first_mib: u64,
}

impl Vms {
    fn all(self) -> BTreeMap<VmUuid, VmReport> {
        let Self { server, count, first_mib } = self;
        (0..count).map(|n| vm(server, n, if n == 0 { first_mib } else { 1_024 })).collect()
    }

    /// The message that they are all there is.
    #[must_use]
    pub fn whole(self) -> String {
        encode(&FromAgent::from(Box::new(Status { report: Some(report(&self.all())) })))
    }

    /// The message that nothing has changed since they were told.
    #[must_use]
    pub fn unchanged(self) -> String {
        unchanged(&self.all()).as_str().to_owned()
    }
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
        // As real agents: with the library's own buffer, 128 KiB are zeroed for every read, which
        // was most of what a simulated agent costs.
        let config = Some(config(Some(PROTOCOL)));
        let connected = tokio_tungstenite::connect_async_with_config(request, config, true);
        let (mut socket, _) = connected.await.expect("the coordinator listens");
        for message in greeting(&server_uuid) {
            send(&mut socket, &message).await.expect("the coordinator reads");
        }
        let (orders, taken) = mpsc::channel(1);
        let session = tokio::spawn(serve(socket, taken));
        Self { server_uuid, session, orders }
    }

    /// Sends so many reports that nothing has changed, as fast as the coordinator reads.
    ///
    /// # Panics
    /// If the connection is gone.
    pub async fn report(&self, count: u64) {
        self.order(Order::Repeat(count)).await;
    }

    /// Reports so many VMs that run, the first of this size, the others of one GiB.
    ///
    /// # Panics
    /// If the connection is gone.
    pub async fn show_vms(&self, count: u32, first_mib: u64) {
        let server = self.server_uuid.parse::<ServerUuid>().expect("a uuid");
        self.order(Order::Show(Vms { server, count, first_mib }.all())).await;
    }

    /// Gives its connection away, once it has done what it was told.
    ///
    /// # Panics
    /// If the connection is gone.
    pub async fn into_socket(self) -> std::net::TcpStream {
        let (give, taken) = oneshot::channel();
        self.order(Order::Give(give)).await;
        let socket = taken.await.expect("the session gives it");
        let MaybeTlsStream::Plain(socket) = socket.into_inner() else { panic!("it has TLS") };
        let socket = socket.into_std().expect("it is registered");
        // Who writes to it waits for room: what does not fit is not lost.
        socket.set_nonblocking(false).expect("it is a socket");
        socket
    }

    async fn order(&self, order: Order) {
        assert!(self.orders.send(order).await.is_ok(), "the session ended");
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
    vec![
        hello.into(),
        sysinfo.into(),
        Box::new(Status { report: Some(report(&BTreeMap::new())) }).into(),
    ]
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

/// The n-th VM of a server; the same whenever it is asked for.
fn vm(server: ServerUuid, n: u32, memory_mib: u64) -> (VmUuid, VmReport) {
    let uuid = VmUuid(uuid::Uuid::from_u128(server.0.as_u128().rotate_left(n + 1)));
    let status = VmStatus {
        uuid,
        owner_uuid: uuid::Uuid::from_u128(server.0.as_u128() % 1_000).to_string(),
        brand: "joyent".to_owned(),
        cpu_cap: Some(10),
        quota: Some(1),
        max_physical_memory: memory_mib,
        state: "running".to_owned(),
        zone_state: "running".to_owned(),
        last_modified: String::new(),
    };
    (uuid, VmReport { vm: status, index: VmIndex::default() })
}

fn report(vms: &BTreeMap<VmUuid, VmReport>) -> Report {
    Report {
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
        ..Report::whole(vms)
    }
}

/// Heartbeats every second; every dispatched task is accepted and complete at once.
async fn serve(mut socket: Socket, mut orders: mpsc::Receiver<Order>) {
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    let mut seq = 0;
    let mut unchanged = unchanged(&BTreeMap::new());
    loop {
        let sent = tokio::select! {
            biased;
            _ = beat.tick() => {
                seq += 1;
                send(&mut socket, &Heartbeat { seq, ts: String::new() }.into()).await
            }
            Some(order) = orders.recv() => match order {
                Order::Repeat(count) => repeat(&mut socket, &unchanged, count).await,
                Order::Show(shown) => {
                    unchanged = self::unchanged(&shown);
                    let report = Some(report(&shown));
                    send(&mut socket, &Box::new(Status { report }).into()).await
                }
                Order::Give(to) => {
                    drop(to.send(socket));
                    return;
                }
            },
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

/// A report that nothing has changed since these were told.
fn unchanged(shown: &BTreeMap<VmUuid, VmReport>) -> Utf8Bytes {
    let unchanged = Report { full: false, vms: BTreeMap::new(), ..report(shown) };
    let unchanged: FromAgent = Box::new(Status { report: Some(unchanged) }).into();
    encode(&unchanged).into()
}

async fn repeat(
    socket: &mut Socket,
    text: &Utf8Bytes,
    count: u64,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    for _ in 0..count {
        socket.feed(Message::Text(text.clone())).await?;
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
