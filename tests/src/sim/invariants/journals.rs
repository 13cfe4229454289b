//! What agents do, by their journals: no task runs twice or on two servers, and the store says of
//! each what its agent says.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::Token;
use serde::Deserialize;

use super::tasks::{StoredTask, Tasks};
use super::{Verdict, Violation};

/// A journal record, as far as invariants are about it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Entry {
    id: TaskId,
    task: String,
    #[serde(default)]
    vm: Option<VmUuid>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Queued,
    Running,
    Finished,
    Failed,
    Interrupted,
    Cancelled,
}

impl State {
    fn has_ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// The journals of all agents.
#[derive(Debug, Default)]
pub struct Journals {
    entries: BTreeMap<TaskId, BTreeMap<usize, Entry>>,
    /// Which VMs there must be, and on which host: created there, and not destroyed since.
    homes: BTreeMap<VmUuid, usize>,
    /// How often a task of a kind was taken, by agent.
    taken: BTreeMap<(usize, String), u64>,
    /// Tasks taken that may start a VM's process once.
    starts: BTreeMap<VmUuid, u64>,
    /// How often an agent died.
    deaths: BTreeMap<usize, u64>,
    /// The newest token that an agent has seen of each queue of tickets.
    tokens: BTreeMap<(usize, String), Token>,
    changed: bool,
}

/// Tasks that may start a VM's process.
const STARTING: &[&str] = &[
    "machine_create",
    "machine_boot",
    "machine_import_end",
    "machine_reboot",
    "machine_reprovision",
    "machine_rollback_snapshot",
    "machine_update",
];

impl Journals {
    /// Whether the agent knows the task.
    #[must_use]
    pub fn holds(&self, agent: usize, id: &TaskId) -> bool {
        self.entries.get(id).is_some_and(|agents| agents.contains_key(&agent))
    }

    /// How many tasks of a kind an agent has taken.
    #[must_use]
    pub fn taken(&self, agent: usize, kind: &str) -> u64 {
        self.taken.get(&(agent, kind.to_owned())).copied().unwrap_or(0)
    }

    /// How many of the tasks that were taken may start a VM's process.
    #[must_use]
    pub fn starts(&self, vm: VmUuid) -> u64 {
        self.starts.get(&vm).copied().unwrap_or(0)
    }

    /// How often an agent died.
    #[must_use]
    pub fn deaths(&self, agent: usize) -> u64 {
        self.deaths.get(&agent).copied().unwrap_or(0)
    }

    /// Whether anything changed since this was asked last.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn died(&mut self, agent: usize) {
        *self.deaths.entry(agent).or_insert(0) += 1;
    }

    /// The host of each VM that there must be.
    #[must_use]
    pub fn homes(&self) -> &BTreeMap<VmUuid, usize> {
        &self.homes
    }

    /// A journal changed.
    pub(super) fn changed(
        &mut self,
        (agent, server): (usize, ServerUuid),
        key: &str,
        value: Option<&[u8]>,
        tasks: &Tasks,
    ) -> Verdict {
        self.changed = true;
        let Some((kind, id)) = key.split_once('/') else { return Ok(()) };
        match (kind, value) {
            ("task", Some(value)) => {
                let entry: Entry = serde_json::from_slice(value)
                    .map_err(|e| Violation::new("records-are-readable", format!("{key}: {e}")))?;
                self.put((agent, server), &entry, tasks)
            }
            ("task", None) => {
                if let Ok(id) = id.parse::<TaskId>()
                    && let Some(agents) = self.entries.get_mut(&id)
                {
                    agents.remove(&agent);
                }
                Ok(())
            }
            ("ticket", Some(value)) => {
                let token: Token = serde_json::from_slice(value)
                    .map_err(|e| Violation::new("records-are-readable", format!("{key}: {e}")))?;
                let before = self.tokens.insert((agent, id.to_owned()), token);
                if before.is_some_and(|before| before > token) {
                    let detail = format!("agent {agent}: {id} had {before:?}, now {token:?}");
                    return Err(Violation::new("fencing-tokens-grow", detail));
                }
                Ok(())
            }
            ("acked", Some(_)) => {
                let Ok(id) = id.parse::<TaskId>() else { return Ok(()) };
                match tasks.get(&id) {
                    Some(task) if task.is_open() && task.server_uuid == server => {
                        let detail = format!("agent {agent} forgets the result of {task:?}");
                        Err(Violation::new("acknowledged-result-is-stored", detail))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn put(
        &mut self,
        (agent, server): (usize, ServerUuid),
        entry: &Entry,
        tasks: &Tasks,
    ) -> Verdict {
        let id = entry.id.clone();
        let agents = self.entries.entry(id.clone()).or_default();
        let before = agents.insert(agent, entry.clone());
        if before.as_ref() == Some(entry) {
            return Ok(());
        }
        if before.is_none() {
            *self.taken.entry((agent, entry.task.clone())).or_insert(0) += 1;
            if let Some(vm) = entry.vm.filter(|_| STARTING.contains(&entry.task.as_str())) {
                *self.starts.entry(vm).or_insert(0) += 1;
            }
        }
        if let Some(before) = before.filter(|before| before.state.has_ended()) {
            let detail =
                format!("{id} was {:?} on agent {agent}, now {:?}", before.state, entry.state);
            return Err(Violation::new("task-runs-once", detail));
        }
        let worked = |state: State| !state.has_ended() || state == State::Finished;
        let others = agents.iter().filter(|(other, _)| **other != agent);
        if let Some((other, theirs)) = others.into_iter().find(|(_, it)| worked(it.state))
            && worked(entry.state)
        {
            let theirs = theirs.state;
            let detail =
                format!("{id} is {:?} on agent {agent}, {theirs:?} on {other}", entry.state);
            return Err(Violation::new("task-runs-on-one-server", detail));
        }
        if entry.state == State::Finished
            && let Some(vm) = entry.vm
        {
            match entry.task.as_str() {
                "machine_create" | "machine_import" => drop(self.homes.insert(vm, agent)),
                "machine_destroy" | "orphan_remove" if self.homes.get(&vm) == Some(&agent) => {
                    self.homes.remove(&vm);
                }
                _ => {}
            }
        }
        match tasks.get(&id) {
            Some(task) if task.server_uuid == server => agree(task, agent, entry.state),
            _ => Ok(()),
        }
    }

    /// The store says that a task has ended.
    pub(super) fn ended_in_store(&self, task: &StoredTask, servers: &[ServerUuid]) -> Verdict {
        let Some(agents) = self.entries.get(&task.id) else { return Ok(()) };
        for (agent, entry) in agents {
            if servers[*agent] == task.server_uuid {
                agree(task, *agent, entry.state)?;
            }
        }
        Ok(())
    }

    /// All has ended, so every journal must agree with the store.
    pub(super) fn check_settled(&self, tasks: &Tasks) -> Verdict {
        for (id, agents) in &self.entries {
            let ended: BTreeSet<_> = agents.values().map(|e| e.state.has_ended()).collect();
            if ended.contains(&false) && tasks.get(id).is_some_and(|task| !task.is_open()) {
                let detail = format!("{id} has ended, and is {agents:?}");
                return Err(Violation::new("ended-task-does-not-run", detail));
            }
        }
        Ok(())
    }
}

/// What the store says of an ended task must be what its agent did.
fn agree(task: &StoredTask, agent: usize, state: State) -> Verdict {
    if task.is_open() {
        return Ok(());
    }
    let name = match (task.status.as_str(), state) {
        ("complete", State::Finished) => return Ok(()),
        (_, State::Queued | State::Running) => "ended-task-does-not-run",
        (_, State::Finished) => "failure-means-not-done",
        ("complete", _) => "complete-means-done",
        _ => return Ok(()),
    };
    let (id, kind, error) = (&task.id, &task.task, &task.error);
    let status = &task.status;
    let detail =
        format!("{kind} {id} is stored as {status} ({error:?}), on agent {agent} {state:?}");
    Err(Violation::new(name, detail))
}
