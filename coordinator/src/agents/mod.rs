//! The agents that are connected: one session per websocket, a registry of their queues, byte
//! streams beside them, and those that are called by HTTP instead. What agents say goes to an
//! [`Incoming`]; nothing here knows more of the application.

mod backlog;
mod door;
mod error;
mod incoming;
mod legacy;
mod reader;
mod registry;
mod reports;
mod session;
mod streams;
mod turns;
mod waiting;
mod worker;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::link::Connection;
use muster_shared::wire::{Dispatch, FromCoordinator, Ticket};
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use door::{Reason, TurnedAway};
pub use error::CallError;
pub use incoming::{Incoming, Known};
pub(crate) use legacy::{TASK_TIMEOUT, address_of};
pub use registry::{AgentInfo, SendError};
pub use streams::StreamError;
pub(crate) use streams::pipe;
pub use waiting::{Answer, Reply};

use crate::planted::Planted;
use crate::roster::ConnectionId;
use backlog::Frames;
use door::Door;
use legacy::Legacy;
use registry::Registry;
use streams::Streams;
use turns::Turns;
use waiting::Waiting;

/// What sessions are made of.
#[derive(Clone, Debug)]
pub struct AgentsParts {
    /// Time.
    pub clock: SharedClock,
    /// Randomness, for ids.
    pub entropy: SharedEntropy,
    /// Tracks the sessions and their work; who stops waits for it.
    pub tracker: TaskTracker,
    /// Ends every session.
    pub cancel: CancellationToken,
    /// This coordinator's name among its peers.
    pub instance: String,
    /// URLs under which agents reach this coordinator.
    pub advertised_urls: Vec<String>,
    /// Longest wait for a hello.
    pub hello_timeout: Duration,
    /// What is wrong with sessions; nothing but in a test.
    pub planted: Planted,
    /// Longest wait for the second websocket of a byte stream.
    pub stream_timeout: Duration,
}

/// What the application knows of its agents' connections.
#[derive(Debug)]
pub struct Agents {
    incoming: OnceLock<Weak<dyn Incoming>>,
    parts: AgentsParts,
    next: AtomicU64,
    pub(crate) registry: Registry,
    waiting: Waiting,
    streams: Streams,
    turns: Arc<Turns>,
    door: Door,
    frames: Frames,
    legacy: Legacy,
}

impl Agents {
    /// Without connections.
    #[must_use]
    pub fn new(parts: AgentsParts) -> Self {
        Self {
            incoming: OnceLock::new(),
            parts,
            next: AtomicU64::new(1),
            registry: Registry::default(),
            waiting: Waiting::default(),
            streams: Streams::default(),
            turns: Arc::default(),
            door: Door::default(),
            frames: Frames::default(),
            legacy: Legacy::default(),
        }
    }

    /// Says who takes what agents bring; connections end while there is nobody.
    pub fn give_to(&self, incoming: Weak<dyn Incoming>) {
        self.incoming.set(incoming).ok();
    }

    /// Takes over a control connection; the session runs until it ends or the application stops.
    pub fn accept(self: &Arc<Self>, connection: Connection) {
        let agents = Arc::clone(self);
        self.parts.tracker.spawn(async move { agents.serve(connection).await });
    }

    /// As [`Agents::accept`], on the caller's task. What the agent said is handled to its end
    /// also when that task is dropped.
    pub async fn serve(self: &Arc<Self>, connection: Connection) {
        session::run(Arc::clone(self), connection, self.next_connection()).await;
    }

    fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes a server's turn, as a connection does whose work is not done.
    #[cfg(test)]
    pub(crate) async fn hold_turn_of(&self, server: ServerUuid) -> impl Sized + use<> {
        self.turns.take(server).await
    }

    /// Whether a server's agent is connected.
    #[must_use]
    pub fn is_connected(&self, server: ServerUuid) -> bool {
        self.registry.connection(server).is_some()
    }

    /// The connection of a server's agent.
    #[must_use]
    pub fn connection(&self, server: ServerUuid) -> Option<ConnectionId> {
        self.registry.connection(server)
    }

    /// What a connected agent said of itself.
    #[must_use]
    pub fn info(&self, server: ServerUuid) -> Option<AgentInfo> {
        self.registry.info(server)
    }

    /// The last agent of a server that was not let in.
    #[must_use]
    pub fn turned_away(&self, server: ServerUuid) -> Option<TurnedAway> {
        self.door.turned_away(server)
    }

    /// How many agents were turned away for this reason.
    #[must_use]
    pub fn turned_away_total(&self, reason: Reason) -> &Counter {
        self.door.total(reason)
    }

    /// Whether a server's agent may have a kind of task: unless it is connected and told what it
    /// has, only it can say.
    #[must_use]
    pub fn supports(&self, server: ServerUuid, task: &str) -> bool {
        let Some(info) = self.registry.info(server) else { return true };
        let mut kinds = info.capabilities.iter().filter_map(|one| one.strip_prefix("task:"));
        let says = kinds.clone().next().is_some();
        !says || kinds.any(|kind| kind == task)
    }

    /// Number of connected agents.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.registry.len()
    }

    /// Puts a message on a server's queue.
    ///
    /// # Errors
    /// [`SendError`]: the message was not sent.
    pub fn send(
        &self,
        server: ServerUuid,
        message: impl Into<FromCoordinator>,
    ) -> Result<(), SendError> {
        self.registry.send(server, None, message.into())
    }

    /// As [`Agents::send`], but only on this connection.
    ///
    /// # Errors
    /// [`SendError`]: the message was not sent.
    pub fn send_on(
        &self,
        server: ServerUuid,
        connection: ConnectionId,
        message: impl Into<FromCoordinator>,
    ) -> Result<(), SendError> {
        self.registry.send(server, Some(connection), message.into())
    }

    /// Sends a request that the agent answers with `accepted` or `error` of this id.
    pub fn ask(
        &self,
        server: ServerUuid,
        id: TaskId,
        message: impl Into<FromCoordinator>,
    ) -> Answer {
        self.expect(server, id, false, message.into())
    }

    fn expect(
        &self,
        server: ServerUuid,
        id: TaskId,
        query: bool,
        message: FromCoordinator,
    ) -> Answer {
        let Some(connection) = self.connection(server) else {
            return Answer::failed(CallError::NotConnected(server));
        };
        let answer = self.waiting.register(server, connection, id, query);
        match self.send_on(server, connection, message) {
            Ok(()) => answer,
            Err(SendError::NotConnected) => Answer::failed(CallError::NotConnected(server)),
            Err(SendError::Busy) => Answer::failed(CallError::Busy(server)),
        }
    }

    /// Runs a task that nobody stores and returns what it returns.
    ///
    /// # Errors
    /// [`CallError`]; of a task that failed, its code, text and details.
    pub async fn query(
        &self,
        query: Query<'_>,
        ticket: Option<Ticket>,
    ) -> Result<Value, CallError> {
        let id: TaskId = self.parts.entropy.uuid().into();
        let deadline_ms = u64::try_from(query.timeout.as_millis()).ok();
        let dispatch = Dispatch {
            id: id.clone(),
            req_id: query.req_id.to_owned(),
            task: query.task.to_owned(),
            params: query.params.into(),
            deadline_ms,
            ticket,
            volatile: true,
        };
        let answer = self.expect(query.server, id, true, Box::new(dispatch).into());
        match answer.wait(query.timeout, query.label.unwrap_or(query.task)).await? {
            Reply::Accepted => Ok(Value::Null),
            Reply::Error { code, message } => {
                Err(CallError::Agent { code, message, details: None })
            }
            Reply::Result(result) => match result.error {
                Some(error) => Err(CallError::Agent {
                    code: error.code,
                    message: error.message,
                    details: error.details,
                }),
                None => Ok(result.result),
            },
        }
    }
}

/// A task that nobody stores.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// Where.
    pub server: ServerUuid,
    /// Its kind.
    pub task: &'a str,
    /// Its name in the text of a timeout, if another than the kind.
    pub label: Option<&'a str>,
    /// Its parameters.
    pub params: Object,
    /// The request that asks.
    pub req_id: &'a str,
    /// Longest wait.
    pub timeout: Duration,
}

impl<'a> Query<'a> {
    /// A task for a request.
    pub fn new(
        server: ServerUuid,
        task: &'a str,
        params: Object,
        req_id: &'a str,
        timeout: Duration,
    ) -> Self {
        Self { server, task, label: None, params, req_id, timeout }
    }
}
