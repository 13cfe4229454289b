//! What the rows need to succeed: an application with servers whose agents do every task at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::kv::MemKv;
use muster_shared::link::memory;
use muster_shared::threads::SameRuntime;
use object_store::memory::InMemory;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::super::{Answer, Api};
use super::agent::{Agent, GHOST, Received, SERVER, VICTIM, VM, uuid};
use super::row::Sent;
use crate::app::{App, Parts};
use crate::config::Config;
use crate::store::{KvStore, Record, list_all};

const AWAY: u128 = 3;
/// Records that change by themselves, and decisions, of which refusals are some too.
const VOLATILE: [&str; 6] =
    ["roster/", "members/", "figures/", "events/", "allocation/", "snapshot/"];

/// A coordinator with its agents.
pub(super) struct Cluster {
    pub(super) api: Api,
    names: BTreeMap<&'static str, String>,
    agents: Vec<JoinHandle<()>>,
    /// The tasks that the agents were sent.
    pub(super) received: Received,
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
        let app = crate::start(config.app("test".to_owned()), parts).await.unwrap();
        let api = Api::over(app, &config).await;
        let mut cluster =
            Self { api, names: BTreeMap::new(), agents: Vec::new(), received: Received::default() };
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
        let agent = Agent {
            address: self.api.address.clone(),
            server: Uuid::from_u128(n),
            received: Arc::clone(&self.received),
        };
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

    pub(super) fn filled(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.names {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }

    /// How many tasks the server got on which no job goes on by itself.
    pub(super) fn received_of_server(&self) -> usize {
        let received = self.received.lock();
        received.iter().filter(|(server, _)| *server == Uuid::from_u128(SERVER)).count()
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
            if app.tasks.table.ids().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What has served is deleted by the clock; not in the middle of a row.
        app.placement.tick().await.unwrap();
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
