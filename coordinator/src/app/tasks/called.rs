//! Tasks of agents that are called and would run a task twice. Such a task is claimed before its
//! call: from then on only the claimer can end it well, and it is never sent again. When the claimer
//! is gone, nobody knows what became of the task.

use std::sync::Arc;

use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::wire::{Code, TaskResult};

use super::ending::When;
use super::record::{Ending, TaskCaller, TaskRecord};
use super::{Open, Tasks};
use crate::agents::TASK_TIMEOUT;

impl Tasks {
    /// Takes a task for a call; `false` when it must not be made.
    pub(crate) async fn claim(&self, server: ServerUuid, id: &TaskId) -> bool {
        let Some((open, _turn)) = self.table.turn(id).await else { return false };
        if open.record.server_uuid != server || open.record.caller.is_some() {
            return false;
        }
        let caller = TaskCaller { who: self.ctx.authority(), since: self.ctx.wall() };
        let claimed = TaskRecord {
            sent: true,
            accepted: true,
            caller: Some(caller),
            ..(*open.record).clone()
        };
        if !self.rewrite(&open, &claimed).await {
            return false;
        }
        self.table.accepted(id, self.ctx.now());
        true
    }

    /// The answer to a call.
    pub(crate) async fn called(self: &Arc<Self>, server: ServerUuid, result: TaskResult) {
        let TaskResult { id, status, result, error, .. } = result;
        let ending = Ending { outcome: status, result, error };
        self.end_surely(&id, ending, When::On(server)).await;
    }

    /// Ends a claimed task whose answer nobody waits for any more.
    pub(super) async fn look_after_call(self: &Arc<Self>, open: &Open, caller: &TaskCaller) {
        let id = &open.record.id;
        let own = self.ctx.parts.instance == caller.who.instance;
        let waits = if own {
            self.agents.is_posting(id)
        } else {
            // Another coordinator's; it has ended by then, if it lives.
            let late = caller.since.checked_add(TASK_TIMEOUT * 2).ok();
            late.is_none_or(|late| self.ctx.wall() < late)
        };
        if waits {
            return;
        }
        let reason = "the coordinator that had sent the task was restarted: outcome unknown";
        let ending = Ending::failure(Code::TaskLost, reason);
        self.end_surely(id, ending, When::On(open.record.server_uuid)).await;
    }
}
