//! The link to the coordinators.
//!
//! One [`dial`] loop per coordinator URL, each on a thread of its own, so that a busy agent is not
//! a dead one; one [`session`] per connection, which carries heartbeats and lanes; one [`desk`] on
//! the agent's own runtime, which knows what messages mean and talks to the task engine. Between
//! them are bounded channels.

mod bounded;
mod desk;
pub mod dial;
pub mod outbox;
mod pump;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::ServerUuid;
use muster_shared::link::Dialer;
use muster_shared::link::websocket::with_endpoint_path;
use muster_shared::threads::SharedThreads;
use muster_shared::wire::{Hello, feature};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use self::desk::{Desk, ToDesk};
use self::dial::{LinkState, Phase};
use crate::consoles::Consoles;
use crate::node::SharedDrivers;
use crate::report::feed::Feed;
use crate::tasks::Engine;

pub(crate) use self::pump::remark;
pub use self::session::HEARTBEAT;

/// Messages of all connections that may wait for the desk.
const DESK_BACKLOG: usize = 256;
/// Coordinators an agent connects to.
const MAX_LINKS: usize = 16;
/// How long two URLs are taken to lead to one coordinator at most; less if its connection ends.
const ALIAS_FOR: Duration = Duration::from_secs(3600);
/// Ids of running tasks, and of unacknowledged results, that fit a hello.
const MAX_HELLO_IDS: usize = 10_000;

/// What links are made of.
#[derive(Debug)]
pub struct LinkParts {
    /// Time.
    pub clock: SharedClock,
    /// Randomness, for the back-off.
    pub entropy: SharedEntropy,
    /// Threads.
    pub threads: SharedThreads,
    /// Opens connections.
    pub dialer: Arc<dyn Dialer>,
    /// Runs tasks.
    pub engine: Arc<Engine>,
    /// Looks at the node.
    pub feed: Arc<dyn Feed>,
    /// For displays.
    pub drivers: SharedDrivers,
    /// Serial consoles.
    pub consoles: Arc<Consoles>,
    /// The server this agent speaks for.
    pub server_uuid: ServerUuid,
    /// This boot of the host.
    pub boot_id: String,
    /// This start of the agent.
    pub instance_id: Uuid,
    /// Numbers sessions.
    pub next_session: AtomicU64,
}

impl LinkParts {
    fn hello(&self) -> Hello {
        let kinds = self.engine.offered().into_iter();
        let mut capabilities: Vec<String> =
            kinds.map(|kind| format!("task:{}", kind.kind().name)).collect();
        capabilities.push(format!("task:{}", desk::TASK_HISTORY));
        capabilities.extend(["streams".to_owned(), feature::HEARTBEAT.to_owned()]);
        let mut running_task_ids = self.engine.running_ids();
        running_task_ids.truncate(MAX_HELLO_IDS);
        Hello {
            server_uuid: self.server_uuid,
            boot_id: self.boot_id.clone(),
            agent_instance_id: self.instance_id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities,
            sysinfo_hash: self.feed.sysinfo().borrow().hash.clone(),
            running_task_ids,
            unacked_result_ids: self.engine.unacked_ids(MAX_HELLO_IDS),
            intake: self.engine.intake(),
            cluster: self.drivers.cluster.id(),
        }
    }
}

/// All links of an agent.
#[derive(Debug)]
pub struct Links {
    parts: Arc<LinkParts>,
    to_desk: mpsc::Sender<ToDesk>,
    links: Mutex<BTreeMap<String, Known>>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

#[derive(Debug)]
struct Known {
    state: Arc<LinkState>,
    configured: bool,
    /// The URL reached a coordinator that the link of this other URL is connected to.
    alias_of: Option<String>,
}

impl Links {
    /// Dials every coordinator and keeps the connections.
    #[must_use]
    pub fn start(parts: LinkParts, urls: &[Url]) -> Arc<Self> {
        let (to_desk, at_desk) = mpsc::channel(DESK_BACKLOG);
        let links = Arc::new(Self {
            parts: Arc::new(parts),
            to_desk,
            links: Mutex::default(),
            stop: CancellationToken::new(),
            tracker: TaskTracker::new(),
        });
        let desk = Desk::new(&links);
        links.tracker.spawn(desk.run(at_desk));
        for url in urls {
            links.add(url, true);
        }
        links
    }

    fn add(&self, url: &Url, configured: bool) {
        let url = with_endpoint_path(url);
        let mut links = self.links.lock();
        if links.contains_key(url.as_str()) || links.len() >= MAX_LINKS {
            return;
        }
        let state = LinkState::new(url.clone(), self.stop.child_token());
        links.insert(url.to_string(), Known { state: state.clone(), configured, alias_of: None });
        let name = format!("link-{}", links.len());
        drop(links);
        tracing::info!(%url, configured, "new coordinator");
        let dialer = self.parts.dialer.clone();
        let work = dial::run(self.parts.clone(), state, self.to_desk.clone(), dialer);
        self.parts.threads.run(&name, Box::pin(work));
    }

    /// Follows the list of coordinators that one of them sent. A list of one names only its
    /// sender, perhaps by another name than ours, and is nothing to follow.
    fn follow(&self, members: &[Url]) {
        if members.len() < 2 {
            return;
        }
        for url in members {
            self.add(url, false);
        }
        let listed: Vec<String> = members.iter().map(|u| with_endpoint_path(u).into()).collect();
        self.links.lock().retain(|url, known| {
            let keep = known.configured
                || known.alias_of.is_some()
                || listed.contains(url)
                || known.state.phase() == Phase::Connected;
            if !keep {
                known.state.stop.cancel();
            }
            keep
        });
    }

    /// Two URLs reach the same coordinator, which keeps only the newer connection: gives up one
    /// of them for a while, a learned one if possible.
    fn same_coordinator(self: &Arc<Self>, older: &Url, newer: &Url) {
        let mut links = self.links.lock();
        let is_configured =
            |url: &Url| links.get(url.as_str()).is_some_and(|known| known.configured);
        let (give_up, keep) = if is_configured(older) && !is_configured(newer) {
            (newer, older)
        } else {
            (older, newer)
        };
        tracing::info!(%give_up, %keep, "two URLs lead to one coordinator");
        if let Some(known) = links.get_mut(give_up.as_str()) {
            known.alias_of = Some(keep.to_string());
            known.state.stop.cancel();
        }
        if let Some(known) = links.get(keep.as_str()) {
            known.state.own_replacement.notify_one();
        }
        drop(links);
        let (links, keep) = (Arc::downgrade(self), keep.clone());
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            let over = stop.run_until_cancelled(tokio::time::sleep(ALIAS_FOR)).await;
            if let (Some(()), Some(links)) = (over, links.upgrade()) {
                links.dial_aliases_of(&keep);
            }
        });
    }

    /// Dials the URLs again that led to the same coordinator as this one: where they lead now,
    /// one of them perhaps to a balancer, nobody knows.
    fn dial_aliases_of(&self, url: &Url) {
        let aliases: Vec<(String, Known)> = {
            let mut links = self.links.lock();
            let is_alias =
                |_: &String, known: &mut Known| known.alias_of.as_deref() == Some(url.as_str());
            links.extract_if(.., is_alias).collect()
        };
        for (_, known) in aliases {
            self.add(&known.state.url, known.configured);
        }
    }

    /// How every link stands.
    #[must_use]
    pub fn states(&self) -> Vec<Arc<LinkState>> {
        let links = self.links.lock();
        links
            .values()
            .filter(|known| known.alias_of.is_none())
            .map(|known| known.state.clone())
            .collect()
    }

    /// `connected`, `connecting` or `disconnected`: the best of all links.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self.states().iter().map(|state| state.phase()).max() {
            Some(Phase::Connected) => "connected",
            Some(Phase::Connecting) => "connecting",
            Some(Phase::Disconnected) | None => "disconnected",
        }
    }

    /// The coordinators that turned this agent away, and why.
    #[must_use]
    pub fn turned_away(&self) -> Vec<(Url, &'static str)> {
        let states = self.states();
        let reason = |state: &Arc<LinkState>| Some((state.url.clone(), state.turned_away()?));
        states.iter().filter_map(reason).collect()
    }

    /// Whether every link's thread has shown itself within `limit`.
    #[must_use]
    pub fn are_alive(&self, limit: Duration) -> bool {
        let now = self.parts.clock.monotonic();
        self.states().iter().all(|state| state.is_alive(now, limit))
    }

    /// Closes every connection in order, waiting at most `patience`.
    pub async fn shut_down(&self, patience: Duration) {
        self.stop.cancel();
        self.tracker.close();
        let closed = async {
            while self.states().iter().any(|state| state.phase() == Phase::Connected) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.tracker.wait().await;
        };
        if tokio::time::timeout(patience, closed).await.is_err() {
            tracing::warn!("not every connection was closed in order");
        }
    }
}
