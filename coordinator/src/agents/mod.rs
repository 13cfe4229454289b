//! The agents that are connected: one session per websocket, a registry of their queues, byte
//! streams beside them.

mod registry;
mod session;
mod streams;
mod waiting;

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::link::Connection;
use muster_shared::wire::{Dispatch, FromCoordinator};
use serde_json::{Map, Value};

pub use registry::{AgentInfo, SendError};
pub use streams::StreamError;
pub(crate) use streams::pipe;
pub use waiting::{Answer, Reply};

use crate::app::App;
use crate::app::{AppError, Caller};
use crate::roster::ConnectionId;
use registry::Registry;
use streams::Streams;
use waiting::Waiting;

/// What the application knows of its agents' connections.
#[derive(Debug)]
pub struct Agents {
    app: Weak<App>,
    next: AtomicU64,
    pub(crate) registry: Registry,
    pub(crate) waiting: Waiting,
    pub(crate) streams: Streams,
}

impl Agents {
    pub(crate) fn new(app: Weak<App>) -> Self {
        Self {
            app,
            next: AtomicU64::new(1),
            registry: Registry::default(),
            waiting: Waiting::default(),
            streams: Streams::default(),
        }
    }

    /// Takes over a control connection; the session runs until it ends or the application stops.
    pub fn accept(&self, connection: Connection) {
        let Some(app) = self.app.upgrade() else { return };
        let tracker = app.tracker.clone();
        let id = self.next_id();
        tracker.spawn(session::run(app, connection, id));
    }

    /// As [`Agents::accept`], on the caller's task.
    pub async fn serve(&self, connection: Connection) {
        let Some(app) = self.app.upgrade() else { return };
        session::run(app, connection, self.next_id()).await;
    }

    fn next_id(&self) -> ConnectionId {
        ConnectionId(self.next.fetch_add(1, Ordering::Relaxed))
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
            return Answer::failed(AppError::NotConnected(server));
        };
        let answer = self.waiting.register(server, connection, id, query);
        match self.send_on(server, connection, message) {
            Ok(()) => answer,
            Err(SendError::NotConnected) => Answer::failed(AppError::NotConnected(server)),
            Err(SendError::Busy) => {
                Answer::failed(AppError::Busy(format!("the queue to server {server} is full")))
            }
        }
    }

    /// Runs a task that nobody stores and returns what it returns.
    ///
    /// # Errors
    /// [`AppError::NotSupported`], [`AppError::NotConnected`], [`AppError::Busy`],
    /// [`AppError::Timeout`], [`AppError::TicketNotActive`], [`AppError::Agent`].
    pub async fn query(&self, query: Query<'_>) -> Result<Value, AppError> {
        let Some(app) = self.app.upgrade() else { return Err(AppError::Stopping) };
        let fence = app.fence(query.caller).await?;
        app.require_capability(query.server, query.task)?;
        let id: TaskId = app.parts.entropy.uuid().into();
        let deadline_ms = u64::try_from(query.timeout.as_millis()).ok();
        let dispatch = Dispatch {
            id: id.clone(),
            req_id: query.caller.req_id.clone(),
            task: query.task.to_owned(),
            params: query.params,
            deadline_ms,
            ticket: fence.map(|fence| fence.ticket),
            volatile: true,
        };
        let answer = self.expect(query.server, id, true, Box::new(dispatch).into());
        match answer.wait(query.timeout, query.label.unwrap_or(query.task)).await? {
            Reply::Accepted => Ok(Value::Null),
            Reply::Error { code, message } => Err(AppError::Agent { code, message, details: None }),
            Reply::Result(result) => match result.error {
                Some(error) => Err(AppError::Agent {
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
    pub params: Map<String, Value>,
    /// Who asks.
    pub caller: &'a Caller,
    /// Longest wait.
    pub timeout: Duration,
}
