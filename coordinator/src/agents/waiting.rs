//! Who waits for an agent's answer to one message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::wire::{Code, TaskResult};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::CallError;
use crate::roster::ConnectionId;

/// An agent's answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// It will be done.
    Accepted,
    /// It is done.
    Result(Box<TaskResult>),
    /// It will not be done.
    Error {
        /// For programs.
        code: Code,
        /// For people.
        message: String,
    },
}

#[derive(Debug)]
struct Waiter {
    connection: ConnectionId,
    /// Only a result or an error is an answer.
    query: bool,
    answer: oneshot::Sender<Reply>,
}

type Waiters = BTreeMap<(ServerUuid, TaskId, u64), Waiter>;

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waiters: Arc<Mutex<Waiters>>,
    next: Mutex<u64>,
}

impl Waiting {
    pub(crate) fn register(
        &self,
        server: ServerUuid,
        connection: ConnectionId,
        id: TaskId,
        query: bool,
    ) -> Answer {
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let (tx, rx) = oneshot::channel();
        let key = (server, id, number);
        self.waiters.lock().insert(key.clone(), Waiter { connection, query, answer: tx });
        let registration = Registration { waiters: Arc::clone(&self.waiters), key };
        Answer(Ok(Pending { rx, server, _registration: registration }))
    }

    /// Whether somebody waits for an answer.
    pub(crate) fn is_awaited(&self, server: ServerUuid, id: &TaskId) -> bool {
        let from = (server, id.clone(), 0);
        let to = (server, id.clone(), u64::MAX);
        self.waiters.lock().range(from..=to).next().is_some()
    }

    /// Gives an answer to everybody who waits for it; `false` when nobody does.
    pub(crate) fn resolve(&self, server: ServerUuid, id: &TaskId, reply: &Reply) -> bool {
        let mut waiters = self.waiters.lock();
        let from = (server, id.clone(), 0);
        let to = (server, id.clone(), u64::MAX);
        let accepted = matches!(reply, Reply::Accepted);
        let keys: Vec<_> = waiters
            .range(from..=to)
            .filter(|(_, waiter)| !(accepted && waiter.query))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            if let Some(waiter) = waiters.remove(key) {
                // Whoever waited has given up meanwhile, which is fine.
                waiter.answer.send(reply.clone()).ok();
            }
        }
        !keys.is_empty()
    }

    /// A connection is gone, and with it the answers that would have come on it.
    pub(crate) fn disconnect(&self, server: ServerUuid, connection: ConnectionId) {
        self.waiters.lock().retain(|key, w| key.0 != server || w.connection != connection);
    }
}

#[derive(Debug)]
struct Registration {
    waiters: Arc<Mutex<Waiters>>,
    key: (ServerUuid, TaskId, u64),
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.waiters.lock().remove(&self.key);
    }
}

#[derive(Debug)]
struct Pending {
    rx: oneshot::Receiver<Reply>,
    server: ServerUuid,
    _registration: Registration,
}

/// An answer to come.
#[derive(Debug)]
pub struct Answer(Result<Pending, CallError>);

impl Answer {
    pub(crate) fn failed(error: CallError) -> Self {
        Self(Err(error))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`CallError::Timeout`] naming `what`, [`CallError::NotConnected`], [`CallError::Busy`].
    pub async fn wait(self, timeout: Duration, what: &str) -> Result<Reply, CallError> {
        let mut pending = self.0?;
        match tokio::time::timeout(timeout, &mut pending.rx).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(CallError::NotConnected(pending.server)),
            Err(_) => Err(CallError::Timeout(what.to_owned())),
        }
    }
}
