//! `GET /why/<kind>/<id>`: what a thing waits for, in plain words and for programs.

mod deadlock;
mod ticket;

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::api::task::{Task, TaskProgress, TaskStatus};
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::Intake;
use muster_shared::wire::status::VmReport;
use serde_json::{Value, json};

use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::roster::Roster;
use super::tasks::Tasks;
use super::tickets::Tickets;
use crate::agents::{Agents, TurnedAway};
use crate::roster::Standing;

/// Answers; it changes nothing.
#[derive(Debug)]
pub(crate) struct Why {
    pub(super) ctx: Arc<Context>,
    pub(super) agents: Arc<Agents>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) roster: Arc<Roster>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) tickets: Arc<Tickets>,
}

impl Why {
    /// Why a task is not done.
    ///
    /// # Errors
    /// [`AppError::TaskNotFound`], [`AppError::Store`].
    pub(crate) async fn task(&self, id: &TaskId) -> Result<Value, AppError> {
        let Some(open) = self.tasks.table.get(id) else {
            let record = self.tasks.record_of(id).await?;
            let text = match (&record.status, &record.error) {
                (TaskStatus::Failure, Some(error)) => format!("it failed: {}", error.message),
                (TaskStatus::Failure, None) => "it failed".to_owned(),
                (TaskStatus::Complete, _) => "it is complete".to_owned(),
                (TaskStatus::Active, _) => "it is not known to this coordinator yet".to_owned(),
            };
            return Ok(json!({
                "kind": "task", "id": id, "status": record.status, "waiting_for": null,
                "text": text, "server_uuid": record.server_uuid, "task": record.task,
                "refusals": record.refusals.unwrap_or_default(), "error": record.error,
            }));
        };
        let server = open.record.server_uuid;
        let waiting_for = self.tasks.waits_for(&open);
        let waited = self.ctx.parts.clock.monotonic().saturating_sub(open.since);
        let subtasks = subtasks(&open.events);
        let under_way = subtasks.iter().rfind(|part| part["status"] == "active");
        let text = match under_way {
            None => format!("{} is waiting for {waiting_for}", open.record.task),
            Some(part) => format!(
                "{} is waiting for {waiting_for}; its subtask {} is under way",
                open.record.task,
                part["task"].as_str().unwrap_or_default()
            ),
        };
        Ok(json!({
            "kind": "task",
            "id": id,
            "status": "active",
            "waiting_for": waiting_for,
            "text": text,
            "subtasks": subtasks,
            "task": open.record.task,
            "server_uuid": server,
            "vm_uuid": open.record.vm_uuid,
            "created_at": open.record.timestamp,
            "known_for_s": waited.as_secs(),
            "sent": open.record.sent,
            "accepted": open.accepted(),
            "progress": open.progress,
            "last_event": open.events.back(),
            "refusals": open.record.refusals,
            "server": self.server(server).unwrap_or(Value::Null),
        }))
    }

    /// Why a server is (or is not) usable.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`].
    pub(crate) fn server(&self, server: ServerUuid) -> Result<Value, AppError> {
        let entry = self.fleet.get(server).filter(|entry| entry.record.is_some());
        let entry = entry.ok_or(AppError::ServerNotFound(server))?;
        let now = self.ctx.parts.clock.monotonic();
        let (standing, last_heartbeat, clock_skew_ms) = {
            let roster = self.roster.lock();
            let standing = roster.standing(server, now);
            (standing, roster.last_heartbeat(server), roster.clock_skew_ms(server))
        };
        let agent = self.agents.info(server);
        let open = self.tasks.table.of_server(server);
        let waiting_for = match (&agent, standing) {
            (Some(agent), _) if agent.intake != Intake::Accepting => {
                Some("its agent to be resumed: it accepts no new tasks".to_owned())
            }
            (_, Some(Standing::Suspect)) => Some("a heartbeat: it is silent".to_owned()),
            (_, Some(Standing::Excused)) => {
                Some("a heartbeat: this coordinator was not listening before".to_owned())
            }
            (_, Some(Standing::Alive)) => None,
            (_, Some(Standing::Silent) | None) => Some("its agent to connect".to_owned()),
        };
        let status = entry.stored_status();
        let mut text = match &waiting_for {
            None => format!("the server is {status}{}", heard(last_heartbeat, self.ctx.wall())),
            Some(what) => format!("the server is {status} and is waiting for {what}"),
        };
        let turned_away = self.agents.turned_away(server);
        if let Some(TurnedAway { reason, at, times, .. }) = &turned_away {
            let why = reason.text();
            text = format!(
                "{text}; an agent of this server was turned away ({why}) {times} times, last at {at}"
            );
        }
        let roster = entry.roster.as_ref().map(|held| &held.value);
        Ok(json!({
            "kind": "server",
            "id": server,
            "status": status,
            "waiting_for": waiting_for,
            "text": text,
            "connected": agent.is_some(),
            "standing": standing.map(standing_text),
            "since": roster.map(|r| iso(r.since)),
            "via": roster.map(|r| r.via),
            "authority": roster.map(|r| &r.authority),
            "status_writes_total": entry.status_writes,
            "clock_skew_ms": clock_skew_ms,
            "agent": agent,
            "turned_away": turned_away,
            "remarks": entry.remarks,
            "open_tasks": open,
            "coordinator_late_ticks": self.roster.lock().late_ticks(),
        }))
    }

    /// Which records of the store can't be read.
    #[must_use]
    pub(crate) fn records(&self) -> Value {
        let damaged = self.ctx.feed.damaged().list();
        let text = match damaged.len() {
            0 => "every record that was read is intact".to_owned(),
            1 => "1 record can't be read; it is left in the store as it is".to_owned(),
            count => {
                format!("{count} records can't be read; they are left in the store as they are")
            }
        };
        let name = |(key, error): (String, String)| json!({ "key": key, "error": error });
        json!({
            "kind": "store",
            "id": "records",
            "waiting_for": null,
            "text": text,
            "damaged": damaged.into_iter().map(name).collect::<Vec<_>>(),
        })
    }

    /// Why a VM is as it is.
    ///
    /// # Errors
    /// [`AppError::VmNotFound`].
    pub(crate) fn vm(&self, vm: VmUuid) -> Result<Value, AppError> {
        let open: Vec<_> = self
            .tasks
            .table
            .ids()
            .into_iter()
            .filter_map(|id| self.tasks.table.get(&id))
            .filter(|open| open.record.vm_uuid == Some(vm))
            .collect();
        let known = self.fleet.vm(vm);
        let server = match (&known, open.first()) {
            (Some((server, _)), _) => *server,
            (None, Some(open)) => open.record.server_uuid,
            (None, None) => return Err(AppError::VmNotFound(vm)),
        };
        let waiting_for = open.first().map(|open| {
            format!(
                "task {} ({}): {}",
                open.record.id,
                open.record.task,
                self.tasks.waits_for(open)
            )
        });
        let state = known.as_ref().map(|(_, report)| report.vm.state.clone());
        let reason = known.as_ref().and_then(|(_, report)| report.index.state_reason.clone());
        let shown = match (&state, &reason) {
            (Some(state), Some(reason)) => format!("{state} ({reason})"),
            (Some(state), None) => state.clone(),
            (None, _) => "not made yet".to_owned(),
        };
        let entry = self.fleet.get(server);
        let away = entry.filter(|entry| entry.stored_status() != "running");
        let is_away = away.is_some();
        // What an agent that is away said of the VM may be long over.
        let shown = match away {
            None => format!("the VM is {shown}{}", at_next_start(known.as_ref())),
            Some(entry) => {
                let status = entry.stored_status();
                let since = entry.roster.as_ref().map(|held| iso(held.value.since));
                let since = since.map(|since| format!(" since {since}")).unwrap_or_default();
                format!(
                    "the VM's server is {status}{since}; the VM was {shown} when it was heard last"
                )
            }
        };
        let text = match &waiting_for {
            None if is_away => shown,
            None => format!("{shown}; nothing is pending"),
            Some(what) => format!("{shown}; it is waiting for {what}"),
        };
        let claimants = self.fleet.claimants(vm);
        let text = match claimants.first() {
            None => text,
            Some(first) => format!(
                "{text}; {} other server(s) report it as well, which changes nothing: {first}",
                claimants.len()
            ),
        };
        let tasks: Vec<Task> = open.iter().map(|open| open.public()).collect();
        Ok(json!({
            "kind": "vm",
            "id": vm,
            "state": state,
            "state_reason": reason,
            "waiting_for": waiting_for,
            "text": text,
            "server_uuid": server,
            "claimed_by": claimants,
            "open_tasks": tasks,
            "server": self.server(server).unwrap_or(Value::Null),
        }))
    }
}

/// What waits for a VM's next start, as the end of a sentence.
fn at_next_start(known: Option<&(ServerUuid, Arc<VmReport>)>) -> String {
    let names = known.into_iter().flat_map(|(_, report)| report.index.running_with.keys());
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(", and has a new {} from its next start on", names.join(", "))
}

/// The subtasks that an agent told of, among its newest events, the oldest first. One that was begun
/// before a restart of the agent is told of again.
fn subtasks(events: &VecDeque<TaskProgress>) -> Vec<Value> {
    let mut subtasks: Vec<Value> = Vec::new();
    for TaskProgress { name, event, .. } in events {
        let known = subtasks.iter().position(|part| part["id"] == event["id"]);
        match (name.as_str(), known) {
            ("subtask", None) => subtasks.push(json!({
                "id": event["id"], "task": event["task"], "name": event["name"], "status": "active",
            })),
            ("subtask:end", Some(at)) => subtasks[at]["status"] = event["status"].clone(),
            _ => {}
        }
    }
    subtasks
}

/// How long ago a server was heard, within a sentence.
fn heard(last_heartbeat: Option<Timestamp>, now: Timestamp) -> String {
    let age = last_heartbeat.map(|at| now.duration_since(at).as_secs_f64().max(0.0));
    age.map(|age| format!("; its last heartbeat was {age:.1} s ago")).unwrap_or_default()
}

fn standing_text(standing: Standing) -> &'static str {
    match standing {
        Standing::Alive => "alive",
        Standing::Suspect => "suspect",
        Standing::Excused => "excused",
        Standing::Silent => "silent",
    }
}
