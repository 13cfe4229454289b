//! How tasks end: results, refusals, cancellation, deletion of their server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_shared::api::task::TaskStatus;
use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::wire::{
    Acknowledge, Cancel, Code, Error as WireError, Outcome, TaskError, TaskResult,
};

use super::record::Ending;
use super::{Open, TASKS, Tasks};
use crate::agents::{Reply, SendError};
use crate::app::error::AppError;
use crate::app::{Expected, keys};
use crate::planted::Defect;
use crate::roster::ConnectionId;
use crate::store::{Expect, Write};

/// Longest wait for the agent's answer to `cancel`.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Races with other writers of one record before giving up until the next delivery.
const ATTEMPTS: usize = 5;

/// Which open tasks may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Any.
    Always,
    /// Only one that no agent can have.
    Unsent,
    /// Only one that is still on this server, whose end it is.
    On(ServerUuid),
    /// Only one that is still on this server, and was not sent again on a newer connection.
    Refused(ServerUuid, ConnectionId),
}

impl Tasks {
    /// An agent reports how a task ended. Stored before it is acknowledged; a repetition is only
    /// acknowledged.
    pub(crate) async fn result(self: &Arc<Self>, server: ServerUuid, result: TaskResult) {
        let id = result.id.clone();
        let ending = Ending { outcome: result.status, result: result.result, error: result.error };
        let known = match self.table.get(&id) {
            // The task has moved on to another server; this one need not keep its refusal.
            Some(open) if open.record.server_uuid != server => true,
            Some(open) => {
                // Who brings a result has had the task.
                self.table.accepted(&id, self.ctx.parts.clock.monotonic());
                let place = open.record.vm_uuid.map(keys::place).unwrap_or_default();
                let end = self.end(&id, ending, When::On(server));
                let planted = &self.ctx.config.planted;
                planted.tells_memory(Defect::RoomOfConnection, place, end).await
            }
            None => match self.record_of(&id).await {
                Ok(record) => record.status != TaskStatus::Active,
                // A store that lacks a task may be a lost or a wrong one. The agent keeps the
                // result, and forgets it when no store can have the task any more.
                Err(AppError::TaskNotFound) => {
                    let message = "this store has no such task".to_owned();
                    let id = Some(id.to_string());
                    let unknown = WireError { id, code: Code::UnknownTask, message };
                    if let Err(error) = self.agents.send(server, unknown) {
                        tracing::debug!(%error, "the agent asks again");
                    }
                    return;
                }
                Err(error) => {
                    tracing::warn!(task_id = %id, %error, "cannot look up a result's task");
                    false
                }
            },
        };
        if known
            && let Err(SendError::Busy) = self.agents.send(server, Acknowledge { id: id.clone() })
        {
            tracing::debug!(task_id = %id, "acknowledgement dropped; the agent sends it again");
        }
    }

    /// An agent refused a task or does not know it. What was said on an older connection than the
    /// task was last sent on says nothing: another start of the agent may have it by now.
    pub(crate) async fn refused(
        self: &Arc<Self>,
        (server, connection): (ServerUuid, ConnectionId),
        id: &TaskId,
        code: &Code,
        message: &str,
    ) {
        let Some(open) = self.table.get(id) else { return };
        // The late answer to a cancel that nobody waits for any more: the task goes on.
        let stale = open.record.server_uuid != server || open.was_sent_after(connection);
        if stale || *code == Code::NotCancellable {
            return;
        }
        if *code == Code::UnknownTask {
            if !open.accepted() {
                return self.dispatch(id);
            }
            let reason = "the agent no longer knows this task, which it had accepted";
            let ending = Ending::failure(Code::TaskLost, reason);
            return self.end_surely(id, ending, When::Refused(server, connection)).await;
        }
        let ending = Ending::failure(code.clone(), message);
        let end = self.end_surely(id, ending, When::Refused(server, connection));
        let planted = &self.ctx.config.planted;
        planted.tells_memory(Defect::RefusalOfConnection, keys::task(id), end).await;
    }

    /// Ends a task of whose end nobody will tell again: what can't be stored now is tried again.
    pub(super) async fn end_surely(self: &Arc<Self>, id: &TaskId, ending: Ending, when: When) {
        let stored = self.end(id, ending.clone(), when).await;
        self.table.set_unstored(id, (!stored).then_some((ending, when)));
    }

    /// Ends an open task; `true` once the end is durable or is of a server that the task has left,
    /// `false` when it is not durable, or the task was sent and must not be. A task that places a VM and was refused before anything was made goes
    /// to another server instead. It comes to its end also when the caller is dropped.
    pub(crate) async fn end(self: &Arc<Self>, id: &TaskId, ending: Ending, when: When) -> bool {
        let (tasks, id, ending) = (Arc::clone(self), id.clone(), ending.cut());
        let ended = self.ctx.spawn(async move { tasks.end_attached(&id, ending, when).await });
        ended.await.unwrap_or(false)
    }

    async fn end_attached(self: &Arc<Self>, id: &TaskId, ending: Ending, when: When) -> bool {
        for _ in 0..ATTEMPTS {
            let Some((open, turn)) = self.table.turn(id).await else { return true };
            match when {
                When::Unsent if open.record.sent => return false,
                // This may be what moved it: a commit whose outcome is unknown is tried again.
                When::On(server) | When::Refused(server, _)
                    if open.record.server_uuid != server =>
                {
                    return true;
                }
                When::Refused(_, connection) if open.was_sent_after(connection) => return true,
                When::Always | When::Unsent | When::On(_) | When::Refused(..) => {}
            }
            match self.try_end(&open, ending.clone()).await {
                Ok(moved) => {
                    drop(turn);
                    if moved {
                        self.dispatch(id);
                    }
                    return true;
                }
                Err(AppError::Store(error)) if error.is_conflict() => {
                    // Another coordinator changed it.
                    if let Err(error) = self.ctx.feed.catch_up().await {
                        tracing::warn!(task_id = %id, %error, "cannot read a task again");
                        return false;
                    }
                }
                Err(error) => {
                    tracing::warn!(task_id = %id, %error, "cannot store how a task ended");
                    return false;
                }
            }
        }
        false
    }

    /// Ends a task whose turn the caller has; `true` when it was moved to another server instead.
    async fn try_end(self: &Arc<Self>, open: &Open, ending: Ending) -> Result<bool, AppError> {
        let asked = self.at_end.get().and_then(Weak::upgrade);
        if open.record.refusals.is_some()
            && let Some(error) = refusal(&ending)
            && let Some(asked) = &asked
            && Arc::clone(asked).move_refused(open, error).await?
        {
            return Ok(true);
        }
        let mut ended = open.record.ended(ending, self.ctx.parts.clock.wall());
        ended.accepted = open.accepted();
        self.shrink(&mut ended).await?;
        let mut writes = vec![
            TASKS.put(&ended.id, Expect::At(open.revision), &ended),
            Write::delete(keys::open(ended.server_uuid, &ended.id), Expect::Any),
        ];
        writes.extend(asked.iter().flat_map(|asked| asked.writes(&ended)));
        self.ctx.feed.commit(writes).await?;
        self.ctx.counters.tasks_ended.inc();
        self.ctx.metrics.count_task(&ended.task, ended.status.as_str());
        self.drop_params(&open.record.params).await;
        Ok(false)
    }

    /// Stops a task if that is possible: one that never left is ended here, else its agent
    /// decides.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Changed`], [`AppError::NotCancellable`],
    /// [`AppError::NotConnected`], [`AppError::Busy`], [`AppError::Timeout`].
    pub async fn cancel(
        self: &Arc<Self>,
        id: &TaskId,
        expected: &Expected,
    ) -> Result<(), AppError> {
        expected.check(self.version(id).await?)?;
        let Some(open) = self.table.get(id) else {
            let record = self.record_of(id).await?;
            let status = record.status.as_str();
            return Err(AppError::NotCancellable(format!("the task has ended: {status}")));
        };
        let ending = Ending::failure(Code::Cancelled, "cancelled before it was sent");
        let late = self.ctx.config.planted.has(Defect::CancelBeforeTurn) && !open.record.sent;
        let when = if late { When::Always } else { When::Unsent };
        if self.end(id, ending, when).await {
            return Ok(());
        }
        let server = open.record.server_uuid;
        let answer = self.agents.ask(server, id.clone(), Cancel { id: id.clone() });
        match answer.wait(CANCEL_TIMEOUT, "cancel").await? {
            Reply::Accepted | Reply::Result(_) => Ok(()),
            Reply::Error { code: Code::NotCancellable, message } => {
                Err(AppError::NotCancellable(message))
            }
            // On its way to the agent, or ended and on its way back.
            Reply::Error { code: Code::UnknownTask, .. } => {
                let text = "its agent does not have the task now; try again";
                Err(AppError::NotCancellable(text.to_owned()))
            }
            Reply::Error { code, message } => Err(AppError::Agent { code, message, details: None }),
        }
    }

    /// Ends all tasks of a server that is being deleted.
    pub(crate) async fn end_all_of(self: &Arc<Self>, server: ServerUuid) {
        for id in self.table.of_server(server) {
            let ending = Ending::failure(Code::ServerDeleted, "the server was deleted");
            self.end_surely(&id, ending, When::On(server)).await;
        }
    }
}

fn refusal(ending: &Ending) -> Option<&TaskError> {
    let error = ending.error.as_ref().filter(|_| ending.outcome == Outcome::Failure)?;
    error.code.try_elsewhere().then_some(error)
}
