//! The task path: durable before the answer, sent when the agent is there, ended exactly once.
//!
//! ```text
//! create ──► stored ──► sent ──► accepted ──► result stored ──► acknowledged
//!              │          ▲         the agent is the authority from here on
//!              │          └── again when the agent says UnknownTask, or on a new connection
//!              └──► failure, if no agent was ever sent it within the accept timeout
//! ```
//!
//! The record says `sent` before the first byte of it leaves, so that after a crash a task that an
//! agent may hold is never ended or moved behind that agent's back.

mod blobs;
mod called;
mod ending;
mod list;
mod record;
mod retention;
mod run;
mod table;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::api::Object;
use muster_shared::api::task::{Task, TaskStatus};
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::{Code, Dispatch, TaskError};

use ending::When;
pub use list::TaskFilter;
pub use record::{Ending, Params, TaskRecord};
use table::Turn;
pub use table::{Open, Table};

use super::context::Context;
use super::error::AppError;
use super::records::Records;
use super::tickets::{Fence, Tickets};
use super::{Caller, keys};
use crate::agents::{Agents, SendError};
use crate::planted::Defect;
use crate::store::{Expect, Follow, Held, Revision, Write};

pub(super) const TASKS: Records<TaskRecord> = Records::under(keys::TASKS);
/// A task sent but not accepted is sent again after this long.
const RESEND: Duration = Duration::from_secs(10);
/// A task accepted for this long is marked so in the store.
const MARK_ACCEPTED: Duration = Duration::from_secs(1);
/// Open tasks looked at side by side.
const TICK_PART: usize = 64;
/// Longest `GET /tasks/:id/wait`.
pub const MAX_WAIT: Duration = Duration::from_hours(1);

/// A task to be made.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// Where it is to run.
    pub server: ServerUuid,
    /// Its kind.
    pub task: String,
    /// Its parameters.
    pub params: Object,
    /// Who asks for it.
    pub caller: Caller,
    /// The VM it is about.
    pub vm: Option<VmUuid>,
}

/// What else changes when a task ends. Asked by the task path, answered by whoever made the task
/// for a purpose.
#[async_trait]
pub(crate) trait AtEnd: fmt::Debug + Send + Sync {
    /// A task that may run elsewhere was refused before anything was made: `true` when it has been
    /// moved to another server instead of ending.
    ///
    /// # Errors
    /// As a commit; a conflict means that the task is to be looked at again.
    async fn move_refused(
        self: Arc<Self>,
        open: &Open,
        error: &TaskError,
    ) -> Result<bool, AppError>;

    /// What belongs into the commit that ends the task.
    fn writes(&self, ended: &TaskRecord) -> Vec<Write>;
}

/// The task path; see the module.
#[derive(Debug)]
pub struct Tasks {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    tickets: Arc<Tickets>,
    pub(crate) table: Arc<Table>,
    at_end: OnceLock<Weak<dyn AtEnd>>,
}

impl Tasks {
    /// Without tasks.
    pub(crate) fn new(ctx: Arc<Context>, agents: Arc<Agents>, tickets: Arc<Tickets>) -> Self {
        let table = Arc::new(Table::new(Arc::clone(&ctx.parts.clock)));
        Self { ctx, agents, tickets, table, at_end: OnceLock::new() }
    }

    /// Says who is asked when a task ends.
    pub(crate) fn at_end(&self, asked: Weak<dyn AtEnd>) {
        self.at_end.set(asked).ok();
    }

    /// What the store's feed tells of tasks.
    pub(crate) fn follower(&self) -> Arc<dyn Follow> {
        Arc::clone(&self.table) as Arc<dyn Follow>
    }

    /// Makes a task and sends it if the agent is connected. When this returns, the task survives
    /// any crash.
    ///
    /// # Errors
    /// [`AppError::NotSupported`]; [`AppError::Busy`] when the server has too many open tasks;
    /// [`AppError::TicketNotActive`] when the request names such a ticket; [`AppError::Store`],
    /// [`AppError::Blob`].
    pub async fn create(
        self: &Arc<Self>,
        server: ServerUuid,
        task: &str,
        params: Object,
        caller: &Caller,
    ) -> Result<TaskId, AppError> {
        let vm = params.text("uuid").and_then(|text| text.parse().ok());
        let new = NewTask { server, task: task.to_owned(), params, caller: caller.clone(), vm };
        self.create_new(new).await
    }

    /// As [`Tasks::create`], with everything said.
    ///
    /// # Errors
    /// As [`Tasks::create`].
    pub async fn create_new(self: &Arc<Self>, new: NewTask) -> Result<TaskId, AppError> {
        let server = new.server;
        self.require_capability(server, &new.task)?;
        let _place = self.reserve(server)?;
        let record = self.record(new).await?;
        let writes = self.writes(&record);
        self.commit(&record, writes).await?;
        Ok(record.id)
    }

    /// Makes a new task durable, if the ticket it runs under is still active.
    pub(super) async fn commit(
        &self,
        record: &TaskRecord,
        writes: Vec<Write>,
    ) -> Result<Revision, AppError> {
        let fence = record.ticket_uuid.zip(record.ticket.clone());
        let fence = fence.map(|(uuid, ticket)| Fence { uuid, ticket });
        let stored = self.tickets.commit_under(fence.as_ref(), writes);
        let (key, planted) = (TASKS.key(&record.id), &self.ctx.config.planted);
        let revision = planted.tells_memory(Defect::ChangeOfConnection, key, stored).await?;
        self.ctx.counters.tasks_created.inc();
        Ok(revision)
    }

    /// Takes one of a server's places for open tasks until the guard is dropped.
    pub(super) fn reserve(&self, server: ServerUuid) -> Result<Place, AppError> {
        let max = self.ctx.config.max_open_tasks;
        if !self.table.reserve(server, max) {
            return Err(AppError::Busy(format!("server {server} has {max} open tasks")));
        }
        Ok(Place { table: Arc::clone(&self.table), server })
    }

    /// The record of a new task; large parameters are in a blob when this returns.
    pub(super) async fn record(&self, new: NewTask) -> Result<TaskRecord, AppError> {
        let fence = self.tickets.fence(&new.caller).await?;
        let id: TaskId = self.ctx.mint_id().into();
        let params = self.store_params(&id, new.params).await?;
        Ok(TaskRecord {
            id,
            req_id: new.caller.req_id,
            task: new.task,
            server_uuid: new.server,
            status: TaskStatus::Active,
            timestamp: iso(self.ctx.parts.clock.wall()),
            history: Vec::new(),
            finished_at: None,
            error: None,
            result: None,
            vm_uuid: new.vm,
            params,
            sent: self.agents.is_connected(new.server),
            accepted: false,
            caller: None,
            ticket_uuid: fence.as_ref().map(|fence| fence.uuid),
            ticket: fence.map(|fence| fence.ticket),
            refusals: None,
            package: None,
            unknown: Object::new(),
        })
    }

    /// The writes that make a new task.
    pub(super) fn writes(&self, record: &TaskRecord) -> Vec<Write> {
        vec![
            TASKS.put(&record.id, Expect::Absent, record),
            Write::put(keys::open(record.server_uuid, &record.id), Expect::Absent, "{}"),
        ]
    }

    /// Sends an open task if its agent is connected, unless the task is being changed. What fails
    /// here is tried again by [`Tasks::tick`].
    pub(crate) fn dispatch(self: &Arc<Self>, id: &TaskId) {
        let Some((open, turn)) = self.table.try_turn(id) else { return };
        if open.accepted() || self.agents.connection(open.record.server_uuid).is_none() {
            return;
        }
        if open.record.sent
            && let Params::Inline(params) = &open.record.params
        {
            return self.send(&open, params.clone());
        }
        let tasks = Arc::clone(self);
        drop(self.ctx.spawn(async move { tasks.send_stored(open, turn).await }));
    }

    /// Sends a task that has to be marked as sent first, or whose parameters are in a blob.
    async fn send_stored(&self, open: Open, _turn: Turn) {
        let id = &open.record.id;
        if !open.record.sent {
            let sent = TaskRecord { sent: true, ..(*open.record).clone() };
            if !self.rewrite(&open, &sent).await {
                return;
            }
        }
        match self.load_params(&open.record.params).await {
            Ok(params) => self.send(&open, params),
            Err(error) => tracing::warn!(task_id = %id, %error, "cannot read a task's parameters"),
        }
    }

    /// Puts a task on the queue to its agent.
    fn send(&self, open: &Open, params: Object) {
        let record = &open.record;
        let (id, server) = (&record.id, record.server_uuid);
        let Some(connection) = self.agents.connection(server) else { return };
        let dispatch = Dispatch {
            id: id.clone(),
            req_id: record.req_id.clone(),
            task: record.task.clone(),
            params: params.into(),
            deadline_ms: None,
            ticket: record.ticket.clone(),
            volatile: false,
        };
        match self.agents.send_on(server, connection, Box::new(dispatch)) {
            Ok(()) => self.table.sending(id, connection, self.ctx.parts.clock.monotonic()),
            Err(SendError::NotConnected | SendError::Busy) => {
                tracing::debug!(task_id = %id, server_uuid = %server, "task waits to be sent");
            }
        }
    }

    /// Rewrites the record of an open task, whose turn the caller has; `false` when it changed
    /// meanwhile or the store failed.
    async fn rewrite(&self, open: &Open, record: &TaskRecord) -> bool {
        let write = TASKS.put(&record.id, Expect::At(open.revision), record);
        let committed = self.ctx.feed.commit(vec![write]).await;
        if let Err(error) = &committed {
            tracing::warn!(task_id = %record.id, %error, "cannot update a task");
        }
        committed.is_ok()
    }

    /// The agent has the task.
    pub(crate) fn accepted(&self, server: ServerUuid, id: &TaskId) {
        if self.table.get(id).is_some_and(|open| open.record.server_uuid == server) {
            self.table.accepted(id, self.ctx.parts.clock.monotonic());
        }
    }

    /// Regular work on open tasks: send what waits, mark what was accepted, store what could not
    /// be stored, end what no agent was ever sent. What needs the store runs side by side, so that
    /// it shares syncs.
    pub(crate) async fn tick(self: &Arc<Self>) {
        let ids = self.table.ids();
        for part in ids.chunks(TICK_PART) {
            futures_util::future::join_all(part.iter().map(|id| self.tick_one(id))).await;
        }
    }

    async fn tick_one(self: &Arc<Self>, id: &TaskId) {
        let now = self.ctx.parts.clock.monotonic();
        let Some(open) = self.table.get(id) else { return };
        if let Some((ending, when)) = open.unstored {
            return self.end_surely(id, ending, when).await;
        }
        if let Some(caller) = &open.record.caller {
            return self.look_after_call(&open, caller).await;
        }
        if let Some(at) = open.accepted_at {
            if !open.record.accepted && now.saturating_sub(at) >= MARK_ACCEPTED {
                self.mark_accepted(id).await;
            }
            return;
        }
        let connection = self.agents.connection(open.record.server_uuid);
        match (connection, open.sent_on) {
            (Some(_), None) if !open.record.accepted => self.dispatch(id),
            (Some(now_on), Some((sent_on, at)))
                if !open.record.accepted
                    && (now_on != sent_on || now.saturating_sub(at) >= RESEND) =>
            {
                self.dispatch(id);
            }
            (None, _) if self.is_expired(&open, now) => {
                let seconds = self.ctx.config.task_accept_timeout.as_secs();
                let reason = format!("no agent took the task within {seconds} s");
                self.end(id, Ending::failure(Code::NotAccepted, reason), When::Unsent).await;
            }
            _ => {}
        }
    }

    async fn mark_accepted(self: &Arc<Self>, id: &TaskId) {
        let Some((open, turn)) = self.table.try_turn(id) else { return };
        let accepted = TaskRecord { accepted: true, ..(*open.record).clone() };
        self.rewrite(&open, &accepted).await;
        drop(turn);
    }

    /// Sends new tasks as the store's feed tells of them, for ever.
    pub(crate) async fn dispatch_news(self: &Arc<Self>) {
        loop {
            for id in self.table.take_news() {
                self.dispatch(&id);
            }
            self.table.wake.notified().await;
        }
    }

    fn is_expired(&self, open: &Open, now: Duration) -> bool {
        let waited = now.saturating_sub(open.since);
        !open.record.sent && !open.accepted() && waited >= self.ctx.config.task_accept_timeout
    }

    /// One task as CNAPI shows it, with progress and what it waits for.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Store`].
    pub async fn get(&self, id: &TaskId) -> Result<Task, AppError> {
        if let Some(open) = self.table.get(id) {
            let waiting_for = Some(self.waits_for(&open));
            return Ok(Task { waiting_for, ..open.public() });
        }
        Ok(self.record_of(id).await?.public())
    }

    /// Version of a task's record, for `ETag`.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Store`].
    pub async fn version(&self, id: &TaskId) -> Result<Revision, AppError> {
        match self.table.get(id) {
            Some(open) => Ok(open.revision),
            None => Ok(self.held(id).await?.revision),
        }
    }

    /// The stored record of a task, open or ended.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Store`].
    pub async fn record_of(&self, id: &TaskId) -> Result<TaskRecord, AppError> {
        Ok(self.held(id).await?.value)
    }

    async fn held(&self, id: &TaskId) -> Result<Held<TaskRecord>, AppError> {
        TASKS.get(&self.ctx, id).await?.ok_or(AppError::TaskNotFound)
    }

    /// Waits for a task's end, at most `timeout`; then shows it as it is.
    ///
    /// # Errors
    /// As [`Tasks::ended`].
    pub async fn wait(&self, id: &TaskId, timeout: Duration) -> Result<Task, AppError> {
        match self.ended(id, timeout).await? {
            Some(record) => Ok(record.public()),
            None => self.get(id).await,
        }
    }

    /// The record of a task that has ended, once it has; `None` when it has not after `timeout`.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Store`]; [`AppError::Stopping`].
    pub async fn ended(
        &self,
        id: &TaskId,
        timeout: Duration,
    ) -> Result<Option<Arc<TaskRecord>>, AppError> {
        let ended = async {
            // Registered before the record is looked at: an end in between is not missed.
            if let Some(mut done) = self.table.subscribe(id)
                && let Ok(record) = done.wait_for(Option::is_some).await
                && let Some(record) = record.as_ref()
            {
                return Ok(Arc::clone(record));
            }
            self.ended_elsewhere(id).await.map(Arc::new)
        };
        tokio::select! {
            biased;
            () = self.ctx.cancel.cancelled() => Err(AppError::Stopping),
            ended = tokio::time::timeout(timeout.min(MAX_WAIT), ended) => ended.ok().transpose(),
        }
    }

    /// The record of a task that another coordinator follows, once it says that it has ended.
    async fn ended_elsewhere(&self, id: &TaskId) -> Result<TaskRecord, AppError> {
        loop {
            let mut changes = self.ctx.feed.watch(&TASKS.key(id), self.ctx.feed.revision());
            let record = self.record_of(id).await?;
            if record.status != TaskStatus::Active {
                return Ok(record);
            }
            // It changed, or the watch ended: both are a reason to look again.
            drop(changes.recv().await);
        }
    }

    /// What an open task waits for, in plain words.
    pub(crate) fn waits_for(&self, open: &Open) -> String {
        let server = open.record.server_uuid;
        let connected = self.agents.is_connected(server);
        match (open.accepted(), connected, open.record.sent) {
            (true, true, _) => format!("server {server} to finish it"),
            (true, false, _) => format!("server {server}, which has it, to connect and report"),
            (false, true, _) => format!("server {server} to accept it"),
            (false, false, true) => {
                format!("server {server} to connect and say whether it has the task")
            }
            (false, false, false) => format!("server {server} to connect"),
        }
    }
}

/// One of a server's places for open tasks; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<Table>,
    server: ServerUuid,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.release(self.server);
    }
}
