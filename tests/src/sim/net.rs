//! The simulated network between agents and the coordinator.
//!
//! Frames arrive in order after a delay, at the start of a tick. Loss is what it is over TCP: a
//! connection stalls, and then goes on or breaks. A cut, of one direction or both, stalls what is
//! open and lets no new connection through.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::link::{Connection, Dialer, Frame, FrameSink, FrameStream, LinkError};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use url::Url;

use super::invariants::Witness;
use super::trace::Trace;

/// Longest delay of a frame.
const DELAY: Duration = Duration::from_millis(150);
/// What a connection takes to open, or to be refused.
const OPEN: Duration = Duration::from_millis(50);
/// Frames a receiver may lag behind before its connection breaks.
const RECEIVER_FRAMES: usize = 1_024;
/// Connections that wait to be accepted.
const BACKLOG: usize = 64;
/// What a dialer waits for an answer that does not come.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From an agent.
    ToCoordinator,
    /// From the coordinator.
    ToAgent,
}

impl Way {
    const BOTH: [Self; 2] = [Self::ToCoordinator, Self::ToAgent];

    fn name(self) -> &'static str {
        match self {
            Self::ToCoordinator => "to the coordinator",
            Self::ToAgent => "to the agent",
        }
    }

    fn lane(self) -> usize {
        match self {
            Self::ToCoordinator => 0,
            Self::ToAgent => 1,
        }
    }
}

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
    cut: BTreeSet<(usize, Way)>,
    trace: Trace,
    witness: Witness,
}

/// The network; clones share it.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<State>>);

impl Net {
    /// An idle network.
    #[must_use]
    pub fn new(seed: u64, trace: Trace, witness: Witness) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Duration::ZERO,
            entropy: SeededEntropy::new(seed),
            next: 0,
            links: BTreeMap::new(),
            accept: None,
            cut: BTreeSet::new(),
            trace,
            witness,
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

    /// Cuts an agent off one way.
    pub fn cut(&self, agent: usize, way: Way) {
        self.0.lock().cut.insert((agent, way));
    }

    /// Connects an agent again.
    pub fn mend(&self, agent: usize) {
        self.0.lock().cut.retain(|(of, _)| *of != agent);
    }

    /// Whether an agent is cut off, one way at least.
    #[must_use]
    pub fn is_cut(&self, agent: usize) -> bool {
        self.0.lock().is_cut(agent)
    }

    /// Whether an agent has a connection, as far as the network knows.
    #[must_use]
    pub fn is_connected(&self, agent: usize) -> bool {
        self.0.lock().links.values().any(|link| link.agent == agent)
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
        state.witness.link_ended(agent);
    }

    /// Hands over what is due at `now`.
    pub fn advance(&self, now: Duration) {
        let mut state = self.0.lock();
        let State { links, cut, trace, witness, .. } = &mut *state;
        for (id, link) in links.iter_mut() {
            if link.stalled_until > now {
                continue;
            }
            for way in Way::BOTH.into_iter().filter(|way| !cut.contains(&(link.agent, *way))) {
                link.lanes[way.lane()].deliver(now, |item| {
                    let name = way.name();
                    match item {
                        Item::Frame(Frame::Text(text)) => {
                            trace.data(format_args!("link {id} {name}"), text.as_bytes());
                            witness.arrived(link.agent, way, text);
                        }
                        other => {
                            trace.event(format_args!("link {id} {name}: {other:?}"));
                            witness.link_ended(link.agent);
                        }
                    }
                });
            }
        }
        let in_use = |lane: &Lane| lane.to.as_ref().is_some_and(|to| !to.is_closed());
        links.retain(|_, link| {
            let used = link.lanes.iter().any(in_use);
            if !used {
                witness.link_ended(link.agent);
            }
            used
        });
        state.now = now;
    }

    fn push(&self, id: u64, way: Way, item: Item) -> Result<(), LinkError> {
        let mut state = self.0.lock();
        let delay = match item {
            // Without a draw: a runtime that dies drops its connections in no certain order.
            Item::Broken => Duration::ZERO,
            _ => DELAY.mul_f64(state.entropy.fraction()),
        };
        let at = state.now + delay;
        let State { links, witness, .. } = &mut *state;
        let link = links.get_mut(&id).ok_or_else(|| broken("the connection was reset"))?;
        let lane = &mut link.lanes[way.lane()];
        if lane.to.as_ref().is_none_or(mpsc::Sender::is_closed) {
            // Who writes may learn of the end before who reads.
            witness.link_ended(link.agent);
            return Err(broken("the connection was reset"));
        }
        if let Item::Frame(Frame::Text(text)) = &item {
            witness.sent(link.agent, way, text);
        }
        let last = lane.waiting.back().map_or(Duration::ZERO, |(at, _)| *at);
        lane.waiting.push_back((at.max(last), item));
        Ok(())
    }

    fn connect(&self, agent: usize, url: &Url) -> Result<Option<Connection>, LinkError> {
        let mut state = self.0.lock();
        if state.is_cut(agent) {
            return Ok(None);
        }
        let refused = |text: &str| LinkError::Connect { url: url.to_string(), source: text.into() };
        let accept = state.accept.clone().ok_or_else(|| refused("connection refused"))?;
        let id = state.next;
        state.next += 1;
        let (to_coordinator, at_coordinator) = mpsc::channel(RECEIVER_FRAMES);
        let (to_agent, at_agent) = mpsc::channel(RECEIVER_FRAMES);
        let end = |way, rx| Connection {
            sink: Box::new(Sink { net: self.clone(), id, way, open: true }),
            stream: Box::new(Stream { rx, code: None }),
        };
        let lane = |to| Lane { waiting: VecDeque::new(), to: Some(to) };
        let lanes = [lane(to_coordinator), lane(to_agent)];
        state.links.insert(id, Link { agent, lanes, stalled_until: Duration::ZERO });
        state.trace.event(format_args!("link {id} opened by agent {agent}"));
        // Ends that are dropped tell the network.
        drop(state);
        accept
            .try_send(end(Way::ToAgent, at_coordinator))
            .map_err(|_| refused("the backlog is full"))?;
        Ok(Some(end(Way::ToCoordinator, at_agent)))
    }
}

impl State {
    fn is_cut(&self, agent: usize) -> bool {
        Way::BOTH.iter().any(|way| self.cut.contains(&(agent, *way)))
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
        tokio::time::sleep(OPEN).await;
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
    way: Way,
    open: bool,
}

#[async_trait]
impl FrameSink for Sink {
    async fn send(&mut self, frame: Frame) -> Result<(), LinkError> {
        self.net.push(self.id, self.way, Item::Frame(frame))
    }

    async fn close(&mut self, code: u16, _reason: &str) {
        self.open = false;
        // A connection that broke needs no close.
        self.net.push(self.id, self.way, Item::Close(code)).unwrap_or(());
    }
}

impl Drop for Sink {
    /// A process that dies resets its connections.
    fn drop(&mut self) {
        if self.open {
            self.net.push(self.id, self.way, Item::Broken).unwrap_or(());
        }
    }
}

#[derive(Debug)]
struct Stream {
    rx: mpsc::Receiver<Item>,
    code: Option<u16>,
}

impl FrameStream for Stream {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, LinkError>> {
        if self.code.is_some() {
            return Poll::Ready(Ok(None));
        }
        Poll::Ready(match ready!(self.rx.poll_recv(context)) {
            Some(Item::Frame(frame)) => Ok(Some(frame)),
            Some(Item::Close(code)) => {
                self.code = Some(code);
                Ok(None)
            }
            Some(Item::Broken) | None => Err(broken("the connection was reset")),
        })
    }

    fn close_code(&self) -> Option<u16> {
        self.code
    }
}
