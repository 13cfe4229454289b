//! What agents bring, taken over by the application: the only way from a session to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::api::task::TaskStatus;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::status::{Report, VmReport};
use muster_shared::wire::{Code, Progress, Sysinfo, TaskResult};
use uuid::Uuid;

use super::context::Context;
use super::events::Events;
use super::fleet::Fleet;
use super::reports::Reports;
use super::roster::Roster;
use super::tasks::Tasks;
use crate::agents::{Incoming, Known};
use crate::roster::ConnectionId;

/// Where what agents bring goes.
#[derive(Debug)]
pub(super) struct FromAgents {
    pub(super) ctx: Arc<Context>,
    pub(super) events: Arc<Events>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) reports: Arc<Reports>,
    pub(super) roster: Arc<Roster>,
    pub(super) tasks: Arc<Tasks>,
}

#[async_trait]
impl Incoming for FromAgents {
    fn connected(&self, server: ServerUuid, connection: ConnectionId) {
        let (now, wall) = (self.ctx.now(), self.ctx.wall());
        let mut roster = self.roster.lock();
        roster.connected(server, connection, now);
        roster.beat(server, wall);
        drop(roster);
        self.roster.wake.notify_one();
    }

    fn closed(&self, server: ServerUuid, connection: ConnectionId) {
        // A coordinator that stops says nothing of its agents.
        if !self.ctx.cancel.is_cancelled() {
            let now = self.ctx.now();
            self.roster.lock().closed(server, connection, now);
            self.roster.wake.notify_one();
        }
    }

    fn heard(&self, server: ServerUuid, connection: ConnectionId) {
        let now = self.ctx.now();
        let changed = self.roster.lock().heard(server, connection, now);
        if changed {
            self.roster.wake.notify_one();
        }
    }

    fn cluster(&self) -> Option<Uuid> {
        self.ctx.cluster()
    }

    fn hears(&self, server: ServerUuid, connection: ConnectionId) -> bool {
        self.roster.lock().hears(server, connection, self.ctx.now())
    }

    fn silence(&self, server: ServerUuid, connection: ConnectionId) -> Option<Duration> {
        self.roster.lock().silence(server, connection, self.ctx.now())
    }

    fn heartbeat(&self, server: ServerUuid, clock_skew_ms: Option<i64>) {
        let now = self.ctx.wall();
        let mut roster = self.roster.lock();
        roster.beat(server, now);
        roster.skewed(server, clock_skew_ms);
    }

    fn known(&self, server: ServerUuid) -> Known {
        let hash = self.fleet.with(server, |entry| entry.sysinfo_hash.clone());
        Known {
            open_task_ids: self.tasks.table.of_server(server),
            sysinfo_hash: hash.unwrap_or_default(),
        }
    }

    fn share(&self, server: ServerUuid, vms: &mut BTreeMap<VmUuid, Option<Arc<VmReport>>>) {
        self.fleet.share(server, vms);
    }

    fn status(&self, server: ServerUuid, report: Report) {
        self.reports.status(server, report);
    }

    fn accepted(&self, server: ServerUuid, id: &TaskId) {
        self.tasks.accepted(server, id);
    }

    fn progress(&self, server: ServerUuid, progress: &Progress) {
        self.events.progress(server, progress);
    }

    async fn sysinfo(self: Arc<Self>, server: ServerUuid, sysinfo: Sysinfo) -> Result<(), String> {
        self.reports.sysinfo(server, sysinfo).await.map_err(|error| Chain(&error).to_string())
    }

    async fn result(self: Arc<Self>, server: ServerUuid, result: TaskResult, answered: bool) {
        // The answer to a query belongs to whoever asked, and to nobody else.
        if !answered || self.tasks.table.get(&result.id).is_some() {
            self.tasks.result(server, result).await;
        }
    }

    async fn claim(self: Arc<Self>, server: ServerUuid, id: &TaskId) -> bool {
        self.tasks.claim(server, id).await
    }

    async fn ended(self: Arc<Self>, server: ServerUuid, result: TaskResult) {
        self.tasks.called(server, result).await;
    }

    async fn refused(
        self: Arc<Self>,
        (server, connection): (ServerUuid, ConnectionId),
        id: TaskId,
        code: &Code,
        message: &str,
    ) -> bool {
        // About some message that names the task, not about the task itself.
        let accepted = || self.tasks.table.get(&id).is_some_and(|open| open.accepted());
        if *code == Code::UnknownKind || (*code == Code::Malformed && accepted()) {
            return false;
        }
        self.tasks.refused((server, connection), &id, code, message).await;
        match self.tasks.table.get(&id) {
            // Moved to another server or not. Memory knows what is durable; who reads the store
            // may see a commit that a power cut takes back.
            Some(open) => open.record.server_uuid != server,
            None => {
                let stored = self.tasks.record_of(&id).await;
                stored.is_ok_and(|task| task.status != TaskStatus::Active)
            }
        }
    }
}
