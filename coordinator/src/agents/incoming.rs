//! What agents bring, and what a session needs to know: all that it sees of the application.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::status::{Report, VmReport};
use muster_shared::wire::{Code, Progress, Sysinfo, TaskResult};

use uuid::Uuid;

use crate::roster::ConnectionId;

/// What the store holds of a server, for its agent's welcome.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Its tasks that have not ended.
    pub open_task_ids: Vec<TaskId>,
    /// Hash of its sysinfo; empty when there is none.
    pub sysinfo_hash: String,
}

/// Takes what agents say. Messages of one server come one after the other, in the order in which
/// the agent sent them, also over several connections; only results may overtake each other.
///
/// What is asynchronous may write to the store. It is never dropped half-way because a connection
/// ends, only when the process does.
#[async_trait]
pub trait Incoming: fmt::Debug + Send + Sync + 'static {
    /// A connection opened.
    fn connected(&self, server: ServerUuid, connection: ConnectionId);

    /// A connection ended. What came on it may still be handled.
    fn closed(&self, server: ServerUuid, connection: ConnectionId);

    /// Something arrived on a connection, or the coordinator itself kept it from arriving.
    fn heard(&self, server: ServerUuid, connection: ConnectionId);

    /// Names the store that all this goes to.
    fn cluster(&self) -> Option<Uuid>;

    /// Whether a connection still gives its signs of life.
    fn hears(&self, server: ServerUuid, connection: ConnectionId) -> bool;

    /// How long nothing has arrived on a connection; `None` when it is not open.
    fn silence(&self, server: ServerUuid, connection: ConnectionId) -> Option<Duration>;

    /// A heartbeat; the skew is the agent's wall clock less ours, ms, if it told its time.
    fn heartbeat(&self, server: ServerUuid, clock_skew_ms: Option<i64>);

    /// What is known of a server now.
    fn known(&self, server: ServerUuid) -> Known;

    /// Puts what is in memory already in the place of what is the same.
    fn share(&self, server: ServerUuid, vms: &mut BTreeMap<VmUuid, Option<Arc<VmReport>>>);

    /// A status report that fits those before it.
    fn status(&self, server: ServerUuid, report: Report);

    /// The agent has a task.
    fn accepted(&self, server: ServerUuid, id: &TaskId);

    /// A task gets on.
    fn progress(&self, server: ServerUuid, progress: &Progress);

    /// The node's description.
    ///
    /// # Errors
    /// Why it was not taken over, for people.
    async fn sysinfo(self: Arc<Self>, server: ServerUuid, sysinfo: Sysinfo) -> Result<(), String>;

    /// A task ended. `answered`: somebody waited for exactly this, so it may be nobody's else.
    async fn result(self: Arc<Self>, server: ServerUuid, result: TaskResult, answered: bool);

    /// Takes a task for an agent that must not be asked twice; `false` when somebody else has it or
    /// that is not durable.
    async fn claim(self: Arc<Self>, server: ServerUuid, id: &TaskId) -> bool;

    /// A claimed task ended, which nobody will say again.
    async fn ended(self: Arc<Self>, server: ServerUuid, result: TaskResult);

    /// The agent will not run a task, or does not know it, as it said on this connection. `true`: that
    /// is stored, and the agent need not say it again.
    async fn refused(
        self: Arc<Self>,
        from: (ServerUuid, ConnectionId),
        id: TaskId,
        code: &Code,
        message: &str,
    ) -> bool;
}
