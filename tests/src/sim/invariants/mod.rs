//! What must hold at every moment, whatever crashed, each under a name.
//!
//! The [`Witness`] sees, in their order, every change that becomes durable at the coordinator and
//! at the agents, every frame that is sent or arrives, and every answer to a client. Each file here
//! judges one kind of thing by what it sees.

mod capacity;
mod hosts;
mod journals;
mod status;
mod tasks;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_coordinator::store::{Record, Revision, records_of};
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid};
use muster_shared::kv::Change;
use muster_shared::wire::{FromCoordinator, decode};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use super::kv::Owner;
use super::net::Way;
use super::node::AgentNode;
use super::trace::Trace;

pub use capacity::{Capacity, taken_mib, usable_mib};
pub use journals::Journals;
pub use status::{Conditions, Statuses};
pub use tasks::{StoredTask, Tasks};
pub use tickets::Tickets;

/// Something that must hold did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's name.
    pub invariant: &'static str,
    /// What was seen.
    pub detail: String,
}

impl Violation {
    /// An invariant that does not hold, and why.
    pub fn new(invariant: &'static str, detail: impl fmt::Display) -> Self {
        Self { invariant, detail: detail.to_string() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// Whether an invariant holds.
pub type Verdict = Result<(), Violation>;

/// What readers of events must be told: the commit, the kind, what it is about, its status.
pub type EventSeen = (Revision, &'static str, String, String);

/// Everything that was seen in a run.
#[derive(Debug)]
pub struct Model {
    now: Duration,
    trace: Trace,
    violations: Vec<Violation>,
    servers: Vec<ServerUuid>,
    /// The record keys of map keys.
    keys: BTreeMap<Bytes, String>,
    revisions: BTreeMap<String, Revision>,
    history: Vec<EventSeen>,
    open_jobs: BTreeSet<String>,
    draining_jobs: BTreeSet<String>,
    /// Tasks and their ends.
    pub tasks: Tasks,
    /// What agents do.
    pub journals: Journals,
    /// Who is heard.
    pub statuses: Statuses,
    /// The waitlist.
    pub tickets: Tickets,
    /// Promises of room.
    pub capacity: Capacity,
}

/// Sees everything; clones share what was seen.
#[derive(Clone)]
pub struct Witness(Arc<Mutex<Model>>);

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Witness").finish_non_exhaustive()
    }
}

impl Witness {
    /// Nothing was seen yet.
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        Self(Arc::new(Mutex::new(Model {
            now: Duration::ZERO,
            trace,
            violations: Vec::new(),
            servers: Vec::new(),
            keys: BTreeMap::new(),
            revisions: BTreeMap::new(),
            history: Vec::new(),
            open_jobs: BTreeSet::new(),
            draining_jobs: BTreeSet::new(),
            tasks: Tasks::default(),
            journals: Journals::default(),
            statuses: Statuses::default(),
            tickets: Tickets::default(),
            capacity: Capacity::default(),
        })))
    }

    /// What was seen.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock()
    }

    /// The agents' servers, in the order of the agents.
    pub fn servers(&self, servers: Vec<ServerUuid>) {
        self.model().servers = servers;
    }

    /// Changes became durable.
    pub fn durable(&self, owner: Owner, changes: &[Change]) {
        let mut model = self.model();
        match owner {
            Owner::Coordinator => model.stored(changes),
            Owner::Agent(agent) => model.journaled(agent, changes),
        }
    }

    /// A process of the coordinator begins.
    pub fn coordinator_started(&self) {
        let mut model = self.model();
        let now = model.now;
        model.statuses.coordinator_started(now);
        model.tasks.coordinator_started();
    }

    /// The coordinator died; this is what its disk holds: maybe more than was acknowledged.
    pub fn coordinator_died(&self, entries: &[(Bytes, Bytes)]) {
        let mut model = self.model();
        let kept: BTreeSet<_> = entries.iter().map(|(key, _)| key).collect();
        let gone = model.keys.keys().filter(|key| !kept.contains(key)).cloned();
        let gone = gone.map(Change::Delete);
        let there = entries.iter().map(|(key, value)| Change::Put(key.clone(), value.clone()));
        // One batch: a commit whose end nobody saw is there as a whole.
        let changes: Vec<_> = there.chain(gone).collect();
        model.stored(&changes);
    }

    /// An agent died; this is what its disk holds.
    pub fn agent_died(&self, agent: usize, entries: &[(Bytes, Bytes)]) {
        let changes: Vec<_> =
            entries.iter().map(|(key, value)| Change::Put(key.clone(), value.clone())).collect();
        let mut model = self.model();
        model.journaled(agent, &changes);
        model.journals.died(agent);
        let server = model.servers[agent];
        model.statuses.link_ended(server);
    }

    /// A frame was put on its way.
    pub fn sent(&self, agent: usize, way: Way, text: &str) {
        if way != Way::ToAgent || text.contains("\"kind\":\"status\"") {
            return;
        }
        let mut model = self.model();
        let Ok(message) = decode::<FromCoordinator>(text) else { return };
        let server = model.servers[agent];
        let Model { tasks, journals, .. } = &mut *model;
        let verdict = match message {
            FromCoordinator::Dispatch(dispatch) if !dispatch.volatile => {
                tasks.dispatched(server, &dispatch.id, journals.holds(agent, &dispatch.id))
            }
            FromCoordinator::Acknowledge(acknowledge) => {
                tasks.acknowledged(server, &acknowledge.id)
            }
            _ => Ok(()),
        };
        model.judge(verdict);
    }

    /// A frame arrived.
    pub fn arrived(&self, agent: usize, way: Way, _text: &str) {
        if way == Way::ToCoordinator {
            let mut model = self.model();
            let (now, server) = (model.now, model.servers[agent]);
            model.statuses.heard(server, now);
        }
    }

    /// A sign of life of a server without a connection was taken.
    pub fn posted(&self, server: ServerUuid) {
        let mut model = self.model();
        let now = model.now;
        model.statuses.heard(server, now);
    }

    /// A connection of an agent ended.
    pub fn link_ended(&self, agent: usize) {
        let mut model = self.model();
        let server = model.servers[agent];
        model.statuses.link_ended(server);
    }

    /// A client was told that its task is made.
    pub fn task_answered(&self, id: &TaskId) {
        let mut model = self.model();
        let verdict = model.tasks.answered(id);
        model.judge(verdict);
    }

    /// A client was told that its ticket is made.
    pub fn ticket_answered(&self, uuid: TicketUuid) {
        let mut model = self.model();
        let verdict = model.tickets.answered(uuid);
        model.judge(verdict);
    }

    /// Time has passed. Checks what is about time, and returns the first thing that did not hold.
    ///
    /// # Errors
    /// That.
    pub fn tick(&self, now: Duration, conditions: &Conditions, agents: &[AgentNode]) -> Verdict {
        let model = &mut *self.model();
        model.statuses.conditions = *conditions;
        model.tasks.store_failed = conditions.store_failed;
        if !model.violations.is_empty() {
            return Err(model.violations.remove(0));
        }
        model.statuses.check(now)?;
        model.capacity.check(agents, &model.tasks)?;
        if !model.journals.has_changed() {
            return Ok(());
        }
        hosts::check_homes(agents)?;
        hosts::check_effects(agents, &model.journals)
    }

    /// What must hold when everything is up, connected and settled.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check_settled(&self, agents: &[AgentNode]) -> Verdict {
        let model = self.model();
        hosts::check_homes(agents)?;
        hosts::check_effects(agents, &model.journals)?;
        model.journals.check_settled(&model.tasks)?;
        hosts::check_settled(agents, &model.journals)
    }
}

impl Model {
    /// It is now.
    pub fn at(&mut self, now: Duration) {
        self.now = now;
        self.tasks.now = now;
    }

    fn judge(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.trace.event(format_args!("VIOLATED {violation}"));
            self.violations.push(violation);
        }
    }

    /// A store's map changed.
    fn stored(&mut self, changes: &[Change]) {
        for change in changes {
            let verdict = match change {
                Change::Put(key, value) => {
                    let entry = [(key.clone(), value.clone())];
                    match records_of(&entry) {
                        // Not a record.
                        Ok(records) => records.into_iter().try_for_each(|r| self.put(key, &r)),
                        Err(error) => Err(Violation::new("records-are-readable", error)),
                    }
                }
                Change::Delete(key) => match self.keys.remove(key) {
                    Some(key) => self.deleted(&key),
                    None => Ok(()),
                },
            };
            self.judge(verdict);
        }
        // Only whole batches: a ticket ends and the next one begins in one commit.
        let verdict = self.tickets.check();
        self.judge(verdict);
    }

    fn put(&mut self, raw: &Bytes, record: &Record) -> Verdict {
        let Record { key, value, revision } = record;
        self.keys.insert(raw.clone(), key.clone());
        let known = self.revisions.insert(key.clone(), *revision);
        if known == Some(*revision) {
            return Ok(());
        }
        self.trace.data(format_args!("stored {key} at {revision}"), value);
        if known.is_some_and(|known| known > *revision) {
            let detail = format!("{key} went back from {known:?} to {revision:?}");
            return Err(Violation::new("revisions-grow", detail));
        }
        let Some((kind, rest)) = key.split_once('/') else { return Ok(()) };
        let json = || -> Result<Value, Violation> {
            serde_json::from_slice(value)
                .map_err(|error| Violation::new("records-are-readable", format!("{key}: {error}")))
        };
        match kind {
            "task" => {
                let value = json()?;
                self.history.push((*revision, "task", rest.to_owned(), text(&value, "status")));
                let ended = self.tasks.put(&value, &self.tickets)?;
                match ended {
                    Some(ended) => self.journals.ended_in_store(&ended, &self.servers),
                    None => Ok(()),
                }
            }
            "ticket" => {
                let value = json()?;
                self.history.push((*revision, "ticket", rest.to_owned(), text(&value, "status")));
                self.tickets.put(&value)
            }
            "roster" => {
                let value = json()?;
                self.history.push((*revision, "server", rest.to_owned(), text(&value, "status")));
                self.statuses.written(rest, &value, self.now)
            }
            "server" => {
                self.statuses.registered(rest, self.now);
                Ok(())
            }
            "job" => {
                let job = json()?;
                let ended = matches!(text(&job, "execution").as_str(), "succeeded" | "failed");
                // A drain that a reboot has undone is waited for much longer than a run lasts.
                let steps = job["chain"].as_array().into_iter().flatten();
                let mut steps = steps.filter(|step| step["state"] == "running");
                let drains = steps.any(|step| step["name"] == "cnapi.wait_for_cn_agent_drained");
                self.open_jobs.remove(rest);
                self.draining_jobs.remove(rest);
                if drains {
                    self.draining_jobs.insert(rest.to_owned());
                } else if !ended {
                    self.open_jobs.insert(rest.to_owned());
                }
                Ok(())
            }
            "place" | "reserve" => {
                self.capacity.put(kind, rest, &json()?, self.now);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn deleted(&mut self, key: &str) -> Verdict {
        self.revisions.remove(key);
        self.trace.event(format_args!("deleted {key}"));
        match key.split_once('/') {
            Some(("task", id)) => self.tasks.deleted(id),
            Some(("ticket", uuid)) => {
                self.tickets.deleted(uuid);
                Ok(())
            }
            Some((kind @ ("place" | "reserve"), vm)) => {
                self.capacity.deleted(kind, vm);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn journaled(&mut self, agent: usize, changes: &[Change]) {
        for change in changes {
            let key = change.key().clone();
            let (name, value) = match change {
                Change::Put(_, value) => ("put", &value[..]),
                Change::Delete(_) => ("deleted", &b""[..]),
            };
            let key = String::from_utf8_lossy(&key);
            self.trace.data(format_args!("agent {agent} {name} {key}"), value);
            let put = matches!(change, Change::Put(..));
            let (tasks, server) = (&self.tasks, self.servers[agent]);
            let verdict = self.journals.changed((agent, server), &key, put.then_some(value), tasks);
            self.judge(verdict);
        }
    }

    /// What readers of events must be told, after `from` up to `to`; of what changed twice at
    /// once the last.
    #[must_use]
    pub fn events_between(&self, from: Revision, to: Revision) -> Vec<EventSeen> {
        let between = |event: &&EventSeen| event.0 > from && event.0 <= to;
        let mut events: Vec<_> = self.history.iter().filter(between).cloned().collect();
        // What a crash made durable was found in the order of keys.
        events.sort_by_key(|event| event.0);
        events
    }

    /// Whether jobs wait for a drain, which may end at any time.
    #[must_use]
    pub fn drains(&self) -> bool {
        !self.draining_jobs.is_empty()
    }

    /// Jobs that have not ended and do not wait for a drain.
    #[must_use]
    pub fn open_jobs(&self) -> &BTreeSet<String> {
        &self.open_jobs
    }

    /// The revision of every record.
    #[must_use]
    pub fn revisions(&self) -> BTreeMap<String, Revision> {
        self.revisions.clone()
    }

    /// Keys that were written or removed since.
    #[must_use]
    pub fn changed_since(&self, before: &BTreeMap<String, Revision>) -> Vec<String> {
        let keys: BTreeSet<_> = before.keys().chain(self.revisions.keys()).collect();
        let changed = |key: &&String| before.get(*key) != self.revisions.get(*key);
        keys.into_iter().filter(|key| changed(key)).cloned().collect()
    }
}

/// A text member; empty if there is none.
fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}
