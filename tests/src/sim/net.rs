//! The simulated network between agents and the coordinator.
//!
//! Frames arrive in order after a delay, at the start of a tick. Loss is what it is over TCP: a
//! connection stalls, and then goes on or breaks. A partition stalls what is open and lets no new
//! connection through.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::link::{Connection, Dialer, Frame, FrameSink, FrameStream, LinkError};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use url::Url;

use super::TICK;
use super::trace::Trace;

/// Longest delay of a frame, in ticks; the shortest is one.
const DELAY_TICKS: u64 = 3;
/// Frames a receiver may lag behind before its connection breaks.
const RECEIVER_FRAMES: usize = 1_024;
/// Connections that wait to be accepted.
const BACKLOG: usize = 64;
/// What a dialer waits for an answer that does not come.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Frame(Frame),
    Close(u16),
    Broken,
}

/// One direction of a connection.
#[derive(Debug)]
struct Lane {
    waiting: VecDeque<(Duration, Item)>,
    /// `None` once the last item was handed over.
    to: Option<mpsc::Sender<Item>>,
}

#[derive(Debug)]
struct Link {
    agent: usize,
    /// To the coordinator, to the agent.
    lanes: [Lane; 2],
    stalled_until: Duration,
}

#[derive(Debug)]
struct State {
    now: Duration,
    entropy: SeededEntropy,
    next: u64,
    links: BTreeMap<u64, Link>,
    /// Where connections are accepted, while the coordinator is up.
    accept: Option<mpsc::Sender<Connection>>,
    cut_off: BTreeSet<usize>,
    trace: Trace,
}

/// The network; clones share it.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<State>>);

impl Net {
    /// An idle network.
    #[must_use]
    pub fn new(seed: u64, trace: Trace) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            entropy: SeededEntropy::new(seed),
            next: 0,
            links: BTreeMap::new(),
            accept: None,
            cut_off: BTreeSet::new(),
            trace,
        })))
    }

    /// The dialer of one agent.
    #[must_use]
    pub fn dialer(&self, agent: usize) -> Arc<dyn Dialer> {
        Arc::new(SimDialer { net: self.clone(), agent })
    }

    /// The coordinator is up: connections arrive here.
    #[must_use]
    pub fn listen(&self) -> mpsc::Receiver<Connection> {
        let (tx, rx) = mpsc::channel(BACKLOG);
        self.0.lock().accept = Some(tx);
        rx
    }

    /// The coordinator is down.
    pub fn unlisten(&self) {
        self.0.lock().accept = None;
    }

    /// Cuts an agent off, or connects it again.
    pub fn cut_off(&self, agent: usize, cut: bool) {
        let mut state = self.0.lock();
        if cut {
            state.cut_off.insert(agent);
        } else {
            state.cut_off.remove(&agent);
        }
    }

    /// Whether an agent is cut off.
    #[must_use]
    pub fn is_cut_off(&self, agent: usize) -> bool {
        self.0.lock().cut_off.contains(&agent)
    }

    /// Nothing arrives on an agent's connections for a while.
    pub fn stall(&self, agent: usize, time: Duration) {
        let mut state = self.0.lock();
        let until = state.now + time;
        for link in state.links.values_mut().filter(|link| link.agent == agent) {
            link.stalled_until = until;
        }
    }

    /// Breaks an agent's connections; what is under way is lost.
    pub fn break_links(&self, agent: usize) {
        let mut state = self.0.lock();
        for link in state.links.values_mut().filter(|link| link.agent == agent) {
            for lane in &mut link.lanes {
                lane.waiting.clear();
                lane.to = None;
            }
        }
    }

    /// Hands over what is due at `now`.
    pub fn advance(&self, now: Duration) {
        let mut state = self.0.lock();
        let state = &mut *state;
        state.now = now;
        for (id, link) in &mut state.links {
            if link.stalled_until > now || state.cut_off.contains(&link.agent) {
                continue;
            }
            for (direction, lane) in link.lanes.iter_mut().enumerate() {
                lane.deliver(now, |item| {
                    let way = ["to the coordinator", "to the agent"][direction];
                    state.trace.event(format_args!("link {id} {way}: {item:?}"));
                });
            }
        }
        let in_use = |lane: &Lane| lane.to.as_ref().is_some_and(|to| !to.is_closed());
        state.links.retain(|_, link| link.lanes.iter().any(in_use));
    }

    fn push(&self, id: u64, direction: usize, item: Item) -> Result<(), LinkError> {
        let mut state = self.0.lock();
        let ticks = match item {
            // Without a draw: a runtime that dies drops its connections in no certain order.
            Item::Broken => 1,
            _ => 1 + state.entropy.u64() % DELAY_TICKS,
        };
        let at = state.now + TICK * u32::try_from(ticks).expect("a few ticks");
        let lane = state.links.get_mut(&id).map(|link| &mut link.lanes[direction]);
        let lane = lane.filter(|lane| lane.to.as_ref().is_some_and(|to| !to.is_closed()));
        let lane = lane.ok_or_else(|| broken("the connection was reset"))?;
        let last = lane.waiting.back().map_or(Duration::ZERO, |(at, _)| *at);
        lane.waiting.push_back((at.max(last), item));
        Ok(())
    }

    fn connect(&self, agent: usize, url: &Url) -> Result<Option<Connection>, LinkError> {
        let mut state = self.0.lock();
        if state.cut_off.contains(&agent) {
            return Ok(None);
        }
        let refused = |text: &str| LinkError::Connect { url: url.to_string(), source: text.into() };
        let accept = state.accept.clone().ok_or_else(|| refused("connection refused"))?;
        let id = state.next;
        state.next += 1;
        let (to_coordinator, at_coordinator) = mpsc::channel(RECEIVER_FRAMES);
        let (to_agent, at_agent) = mpsc::channel(RECEIVER_FRAMES);
        let end = |direction, rx| Connection {
            sink: Box::new(Sink { net: self.clone(), id, direction, open: true }),
            stream: Box::new(Stream { rx, code: None }),
        };
        let lane = |to| Lane { waiting: VecDeque::new(), to: Some(to) };
        let lanes = [lane(to_coordinator), lane(to_agent)];
        state.links.insert(id, Link { agent, lanes, stalled_until: Duration::ZERO });
        state.trace.event(format_args!("link {id} opened by agent {agent}"));
        // Ends that are dropped tell the network.
        drop(state);
        accept.try_send(end(1, at_coordinator)).map_err(|_| refused("the backlog is full"))?;
        Ok(Some(end(0, at_agent)))
    }
}

impl Lane {
    fn deliver(&mut self, now: Duration, mut tell: impl FnMut(&Item)) {
        while self.waiting.front().is_some_and(|(at, _)| *at <= now) {
            let (Some((_, item)), Some(to)) = (self.waiting.pop_front(), &self.to) else { return };
            tell(&item);
            let last = !matches!(item, Item::Frame(_));
            // A full receiver is a connection that breaks.
            if to.try_send(item).is_err() || last {
                self.to = None;
                self.waiting.clear();
            }
        }
    }
}

fn broken(text: &str) -> LinkError {
    LinkError::Broken(text.into())
}

#[derive(Debug)]
struct SimDialer {
    net: Net,
    agent: usize,
}

#[async_trait]
impl Dialer for SimDialer {
    async fn dial(&self, url: &Url, _protocol: &str) -> Result<Connection, LinkError> {
        tokio::time::sleep(TICK).await;
        match self.net.connect(self.agent, url)? {
            Some(connection) => Ok(connection),
            None => {
                tokio::time::sleep(CONNECT_TIMEOUT).await;
                let ms = u64::try_from(CONNECT_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
                Err(LinkError::Timeout { url: url.to_string(), ms })
            }
        }
    }
}

#[derive(Debug)]
struct Sink {
    net: Net,
    id: u64,
    direction: usize,
    open: bool,
}

#[async_trait]
impl FrameSink for Sink {
    async fn send(&mut self, frame: Frame) -> Result<(), LinkError> {
        self.net.push(self.id, self.direction, Item::Frame(frame))
    }

    async fn close(&mut self, code: u16, _reason: &str) {
        self.open = false;
        // A connection that broke needs no close.
        self.net.push(self.id, self.direction, Item::Close(code)).unwrap_or(());
    }
}

impl Drop for Sink {
    /// A process that dies resets its connections.
    fn drop(&mut self) {
        if self.open {
            self.net.push(self.id, self.direction, Item::Broken).unwrap_or(());
        }
    }
}

#[derive(Debug)]
struct Stream {
    rx: mpsc::Receiver<Item>,
    code: Option<u16>,
}

#[async_trait]
impl FrameStream for Stream {
    async fn next(&mut self) -> Result<Option<Frame>, LinkError> {
        if self.code.is_some() {
            return Ok(None);
        }
        match self.rx.recv().await {
            Some(Item::Frame(frame)) => Ok(Some(frame)),
            Some(Item::Close(code)) => {
                self.code = Some(code);
                Ok(None)
            }
            Some(Item::Broken) | None => Err(broken("the connection was reset")),
        }
    }

    fn close_code(&self) -> Option<u16> {
        self.code
    }
}
