//! What hostile clients and a broken node do to a coordinator: the figures of its abuse, for one
//! build or for several side by side.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use muster_shared::threads::{OsThreads, Threads as _};
use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::process::resident;
use muster_tests::scripted_agent::ScriptedAgent;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{ms, now, percentile, row};

const MIB: u64 = 1 << 20;
const BODIES: usize = 2_000;
const FRAMES: usize = 130;
const SOCKETS: usize = 5;
const WISHES: usize = 200;
const READERS: usize = 50;
const READS: usize = 20;
const IDLE: usize = 12_000;
/// Whatever takes longer is said to.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory that has not grown for so long has stopped to.
const SETTLED: Duration = Duration::from_secs(3);
/// How long what is over at once is repeated.
const ATTACK: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// Measures the binaries of each folder, or those beside this one.
pub(super) async fn run(folders: &[PathBuf]) {
    if folders.is_empty() {
        return measure(&Build { folder: None, shown: String::new() }).await;
    }
    for folder in folders {
        let shown = format!("{}: ", folder.display());
        measure(&Build { folder: Some(folder.clone()), shown }).await;
    }
}

/// What is measured.
struct Build {
    folder: Option<PathBuf>,
    shown: String,
}

impl Build {
    fn coordinator(&self) -> Coordinator {
        match &self.folder {
            Some(folder) => Coordinator::of_build(folder),
            None => Coordinator::start(),
        }
    }

    fn row(&self, figure: &str, measured: &str, goal: &str) {
        row(&format!("{}{figure}", self.shown), measured, goal);
    }
}

async fn measure(build: &Build) {
    bodies(build).await;
    frames(build).await;
    http_2(build).await;
    patterns(build).await;
    documents(build).await;
    idle(build).await;
}

/// Asks a coordinator for `/ping` until it is stopped: on a connection of its own, and on a thread
/// of its own, so that what the attackers here take of one another's time is not counted.
struct Pings {
    stop: CancellationToken,
    took: oneshot::Receiver<Vec<Duration>>,
}

impl Pings {
    fn start(coordinator: &Coordinator) -> Self {
        let (stop, address) = (CancellationToken::new(), coordinator.address().to_owned());
        let over = stop.clone();
        let (done, all) = oneshot::channel();
        let asking = async move {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            let mut took = Vec::new();
            while !over.is_cancelled() {
                let from = now();
                if tokio::time::timeout(PATIENCE, get(&mut stream, "/ping")).await.is_err() {
                    took.push(PATIENCE);
                    break;
                }
                took.push(from.elapsed());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            done.send(took).expect("the figures are waited for");
        };
        OsThreads.run("pings", Box::pin(asking));
        Self { stop, took: all }
    }

    /// The 99th percentile, and the longest.
    async fn stop(self) -> String {
        self.stop.cancel();
        let mut took = self.took.await.expect("pings do not fail");
        took.sort_unstable();
        let [p99, max] = [99, 100].map(|percent| ms(percentile(&took, percent)));
        format!("{p99} (max {max}, {} pings)", took.len())
    }
}

/// Asks on a connection that stays open, and reads the answer away; its status.
async fn get(stream: &mut TcpStream, path: &str) -> u16 {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the connection is open");
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let length = stream.read_buf(&mut read).await.expect("the connection is open");
        assert!(length > 0, "the connection was closed");
    };
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.and_then(|text| text.trim().parse().ok()).expect("a length");
    let mut left = length.saturating_sub(read.len() - end);
    let mut chunk = vec![0; 64 * 1024];
    while left > 0 {
        let most = left.min(chunk.len());
        left -= stream.read(&mut chunk[..most]).await.expect("the connection is open");
    }
    head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// The most memory while something goes on, and until it grows no more.
async fn most_memory(pid: u32, attack: impl Future<Output = ()>) -> u64 {
    let mut most = resident(pid);
    tokio::pin!(attack);
    loop {
        tokio::select! {
            biased;
            () = &mut attack => break,
            () = tokio::time::sleep(LOOK) => most = most.max(resident(pid)),
        }
    }
    let (from, mut grown) = (now(), now());
    while grown.elapsed() < SETTLED && from.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        let seen = resident(pid);
        if seen > most {
            (most, grown) = (seen, now());
        }
    }
    most
}

async fn bodies(build: &Build) {
    let mut coordinator = build.coordinator();
    let pid = coordinator.daemon().pid();
    let address = coordinator.address().to_owned();
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
    let mut held = Vec::new();
    let attack = async {
        let all = (0..BODIES).map(|_| tokio::spawn(one(address.clone())));
        held = join_all(all).await;
    };
    let most = most_memory(pid, attack).await;
    build.row(&format!("RSS, {BODIES} unfinished bodies"), &mib(most), "256 MiB");
    drop(held);
}

async fn frames(build: &Build) {
    let mut coordinator = build.coordinator();
    let pid = coordinator.daemon().pid();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let idle = resident(pid);
    let attack = async {
        for _ in 0..FRAMES {
            let zeros = "0,".repeat(1_000_000);
            let result = format!(
                r#"{{"kind":"result","id":"{}","status":"complete","result":{{"a":[{zeros}0]}},"finished_at":""}}"#,
                fresh_uuid(),
            );
            agent.say_text(result).await;
        }
    };
    let most = most_memory(pid, attack).await;
    let over = mib(most.saturating_sub(idle));
    build.row(&format!("RSS over idle, {FRAMES} frames of 2 MiB of one agent"), &over, "128 MiB");
}

async fn http_2(build: &Build) {
    let coordinator = build.coordinator();
    let mut served = 0;
    for _ in 0..SOCKETS {
        let mut stream = TcpStream::connect(coordinator.address()).await.expect("it listens");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.expect("the connection is open");
        let mut answer = [0; 9];
        // Frames of settings come from whoever speaks it; an error is a reset.
        let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await;
        served += usize::from(matches!(read, Ok(Ok(_))) && answer[3] == 4);
    }
    let verdict = if served == 0 { "refused".to_owned() } else { format!("{served} served") };
    build.row(&format!("HTTP/2 on {SOCKETS} sockets"), &verdict, "refused");
}

async fn patterns(build: &Build) {
    let coordinator = build.coordinator();
    let _agent = ScriptedAgent::register(&coordinator).await;
    let wish = json!({
        "key": "k", "operator": "==", "value": "/\\w{450}/", "valueType": "re", "isSoft": true,
    });
    let ask = json!({
        "image": {}, "nic_tags": ["admin"], "vm": {
            "vm_uuid": fresh_uuid(), "owner_uuid": fresh_uuid(), "ram": 128,
            "affinity": vec![wish; WISHES],
        },
    });
    let pings = Pings::start(&coordinator);
    let (from, mut times) = (now(), 0);
    // Again and again, or few pings would be beside it.
    let answer = loop {
        times += 1;
        let answer = post(&coordinator, "/allocate", &ask).await;
        if from.elapsed() >= ATTACK {
            break answer.unwrap_or_else(|| "no answer".to_owned());
        }
    };
    let (took, p99) = (ms(from.elapsed() / times), pings.stop().await);
    let what = format!("POST /allocate with {WISHES} patterns of 450 repeats");
    build.row(&what, &format!("{answer}, {took}"), "4xx");
    build.row("/ping p99 beside it", &p99, "20 ms");
}

/// The status and code of an answer; `None` when there was none for as long as clients wait.
async fn post(coordinator: &Coordinator, path: &str, body: &Value) -> Option<String> {
    let answer = coordinator.client().try_send(Method::POST, path, Some(body)).await.ok()?;
    Some(format!("{} {}", answer.status.as_u16(), answer.json["code"].as_str().unwrap_or("-")))
}

async fn documents(build: &Build) {
    let coordinator = build.coordinator();
    let pings = Pings::start(&coordinator);
    let reader = |address: String| async move {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        for _ in 0..READS {
            assert_eq!(get(&mut stream, "/openapi.json").await, 200);
        }
    };
    let from = now();
    let readers = (0..READERS).map(|_| tokio::spawn(reader(coordinator.address().to_owned())));
    for reader in join_all(readers).await {
        reader.expect("readers get their answers");
    }
    let took = from.elapsed();
    let what = format!("/ping p99 beside {READERS} readers of /openapi.json");
    build.row(&what, &pings.stop().await, "20 ms");
    build.row(&format!("their {} answers", READERS * READS), &ms(took), "-");
}

async fn idle(build: &Build) {
    let coordinator = build.coordinator();
    let mut held = Vec::new();
    for _ in 0..IDLE {
        let mut stream = TcpStream::connect(coordinator.address()).await.expect("it listens");
        assert_eq!(get(&mut stream, "/ping").await, 200);
        held.push(stream);
    }
    let (url, server_uuid) = (coordinator.agent_url(), fresh_uuid());
    let from = now();
    let connect = ScriptedAgent::connect(&url, &server_uuid);
    let connected = tokio::time::timeout(Duration::from_secs(9), connect).await;
    let took = if connected.is_ok() { ms(from.elapsed()) } else { "not in 9 s".to_owned() };
    build.row(&format!("an agent connects beside {IDLE} idle connections"), &took, "5000 ms");
    drop((held, connected));
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}
