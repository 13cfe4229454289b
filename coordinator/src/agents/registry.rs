//! Which server's agent is on which connection, and the bounded queue to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::ServerUuid;
use muster_shared::wire::{FromCoordinator, Intake, close};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::roster::ConnectionId;

/// Messages that may wait for one agent: dispatches of a burst; a full queue is "busy".
pub(crate) const QUEUE: usize = 128;

/// A message that waits. A queue has room for some of these from its start, so they are small.
pub(crate) type Queued = Box<FromCoordinator>;

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The agent is not connected (on that connection).
    #[error("the agent is not connected")]
    NotConnected,
    /// Its queue is full.
    #[error("the agent's queue is full")]
    Busy,
}

/// What an agent can do; agents of one release share it.
pub(crate) type Capabilities = Arc<[String]>;

/// What a connected agent said of itself.
#[derive(Clone, Debug, Serialize)]
pub struct AgentInfo {
    /// Its release.
    pub version: String,
    /// Its capabilities.
    #[serde(skip)]
    pub capabilities: Capabilities,
    /// Boot of its host.
    pub boot_id: String,
    /// Start of the agent.
    pub agent_instance_id: Uuid,
    /// Whether it accepts new tasks, as it last said.
    pub intake: Intake,
    /// When it connected, ISO 8601.
    pub connected_at: String,
}

/// Close code and reason for the session to end with.
pub(crate) type Ending = Option<(u16, &'static str)>;

/// One connected agent.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) connection: ConnectionId,
    pub(crate) queue: mpsc::Sender<Queued>,
    pub(crate) end: watch::Sender<Ending>,
    pub(crate) info: AgentInfo,
}

impl Handle {
    fn replaced(&self) {
        self.end.send_replace(Some((close::REPLACED, "replaced by a newer connection")));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    agents: Mutex<BTreeMap<ServerUuid, Handle>>,
    /// Those of the agent that connected last.
    capabilities: Mutex<Capabilities>,
}

impl Registry {
    /// These capabilities, shared with the last agent that has the same.
    pub(crate) fn share(&self, capabilities: Vec<String>) -> Capabilities {
        let mut last = self.capabilities.lock();
        if **last != *capabilities {
            *last = capabilities.into();
        }
        Arc::clone(&last)
    }

    /// Registers a connection. An older one of the same server is told to end.
    pub(crate) fn insert(&self, server: ServerUuid, handle: Handle) {
        let older = self.agents.lock().insert(server, handle);
        older.as_ref().map(Handle::replaced);
    }

    /// Registers a connection of a server that has none; `false` when it has one.
    pub(crate) fn insert_first(&self, server: ServerUuid, handle: Handle) -> bool {
        let mut agents = self.agents.lock();
        let first = !agents.contains_key(&server);
        if first {
            agents.insert(server, handle);
        }
        first
    }

    /// Tells a server's connection that a newer one takes its place; nothing more is sent on it.
    pub(crate) fn end(&self, server: ServerUuid) {
        let older = self.agents.lock().remove(&server);
        older.as_ref().map(Handle::replaced);
    }

    /// Removes a connection, unless a newer one took its place.
    pub(crate) fn remove(&self, server: ServerUuid, connection: ConnectionId) {
        let mut agents = self.agents.lock();
        if agents.get(&server).is_some_and(|handle| handle.connection == connection) {
            agents.remove(&server);
        }
    }

    pub(crate) fn connection(&self, server: ServerUuid) -> Option<ConnectionId> {
        self.agents.lock().get(&server).map(|handle| handle.connection)
    }

    pub(crate) fn connected(&self, server: ServerUuid) -> Option<(ConnectionId, AgentInfo)> {
        let agents = self.agents.lock();
        agents.get(&server).map(|handle| (handle.connection, handle.info.clone()))
    }

    pub(crate) fn info(&self, server: ServerUuid) -> Option<AgentInfo> {
        self.agents.lock().get(&server).map(|handle| handle.info.clone())
    }

    pub(crate) fn set_intake(&self, server: ServerUuid, intake: Intake) {
        if let Some(handle) = self.agents.lock().get_mut(&server) {
            handle.info.intake = intake;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.agents.lock().len()
    }

    pub(crate) fn send(
        &self,
        server: ServerUuid,
        only: Option<ConnectionId>,
        message: FromCoordinator,
    ) -> Result<(), SendError> {
        let agents = self.agents.lock();
        let handle = agents
            .get(&server)
            .filter(|handle| only.is_none_or(|only| handle.connection == only))
            .ok_or(SendError::NotConnected)?;
        handle.queue.try_send(Box::new(message)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SendError::Busy,
            mpsc::error::TrySendError::Closed(_) => SendError::NotConnected,
        })
    }
}
