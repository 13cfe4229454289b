//! Tasks in the store: acknowledged ones stay, they end once, and only open ones are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use serde::Deserialize;
use serde_json::Value;

use super::tickets::Tickets;
use super::{Verdict, Violation};

/// A client that asks for tasks may be told what was so at most this long ago.
const LIST_LAG: Duration = Duration::from_secs(1);

/// A task record, as far as invariants are about it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct StoredTask {
    /// Its name.
    pub id: TaskId,
    /// Its kind.
    pub task: String,
    /// Where it runs.
    pub server_uuid: ServerUuid,
    /// `active`, `complete` or `failure`.
    pub status: String,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<Value>,
    /// The VM it is about.
    #[serde(default)]
    pub vm_uuid: Option<VmUuid>,
    /// Whether an agent may have it.
    #[serde(default)]
    pub sent: bool,
    /// The ticket it was started under.
    #[serde(default)]
    pub ticket_uuid: Option<TicketUuid>,
    #[serde(default)]
    history: Vec<Value>,
    #[serde(default)]
    params: Value,
}

impl StoredTask {
    /// Whether it has not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.status == "active"
    }

    /// The memory that it takes of its server while it makes a VM, MiB.
    #[must_use]
    pub fn makes_mib(&self) -> Option<u64> {
        (self.task == "machine_create").then(|| self.params["inline"]["ram"].as_u64())?
    }
}

#[derive(Debug)]
struct Known {
    task: StoredTask,
    value: Value,
    changed_at: Duration,
}

/// Every task that was ever stored.
#[derive(Debug, Default)]
pub struct Tasks {
    /// The time of what is seen.
    pub now: Duration,
    /// When the store last failed to answer: until then lists could not know better.
    pub store_failed: Duration,
    /// Ended tasks may be deleted.
    pub retains_nothing: bool,
    known: BTreeMap<TaskId, Known>,
    answered: BTreeSet<TaskId>,
    open: BTreeSet<TaskId>,
    /// Deleted after they ended: how, and when they were deleted.
    forgotten: BTreeMap<TaskId, (String, Duration)>,
    lives: u64,
}

impl Tasks {
    pub(super) fn coordinator_started(&mut self) {
        self.lives += 1;
    }

    /// A record was written; the task, if it has just ended.
    pub(super) fn put(
        &mut self,
        value: &Value,
        tickets: &Tickets,
    ) -> Result<Option<StoredTask>, Violation> {
        let task = StoredTask::deserialize(value)
            .map_err(|error| Violation::new("records-are-readable", format!("{error}: {value}")))?;
        let known = self.known.get(&task.id);
        if let Some(known) = known
            && !known.task.is_open()
            && known.value != *value
        {
            let detail = format!("{} was {}, then {value}", task.id, known.value);
            return Err(Violation::new("task-ends-once", detail));
        }
        if known.is_none()
            && let Some(ticket) = task.ticket_uuid
            && !tickets.is_active(ticket)
        {
            let detail = format!("{} was made under {ticket}, which is not active", task.id);
            return Err(Violation::new("task-needs-its-ticket", detail));
        }
        let names: Vec<_> = task.history.iter().filter_map(|e| e["name"].as_str()).collect();
        let expected: &[&str] = match task.status.as_str() {
            "active" => &[],
            "complete" => &["finish"],
            _ => &["error", "finish"],
        };
        if names != expected {
            let detail = format!("{} is {} with the history {names:?}", task.id, task.status);
            return Err(Violation::new("task-history-layout", detail));
        }
        let ended =
            (!task.is_open() && known.is_none_or(|k| k.task.is_open())).then(|| task.clone());
        if task.is_open() {
            self.open.insert(task.id.clone());
        } else {
            self.open.remove(&task.id);
        }
        let changed_at = self.now;
        self.known.insert(task.id.clone(), Known { task, value: value.clone(), changed_at });
        Ok(ended)
    }

    pub(super) fn deleted(&mut self, id: &str) -> Verdict {
        let Some((id, known)) = self.known.remove_entry(&id.parse().expect("ids are ids")) else {
            return Ok(());
        };
        self.open.remove(&id);
        if known.task.is_open() || !self.retains_nothing {
            let detail = format!("{id} ({}) is gone", known.task.status);
            return Err(Violation::new("task-stays", detail));
        }
        self.forgotten.insert(id, (known.task.status, self.now));
        Ok(())
    }

    /// A client was told this id.
    pub(super) fn answered(&mut self, id: &TaskId) -> Verdict {
        self.answered.insert(id.clone());
        if self.known.contains_key(id) || self.forgotten.contains_key(id) {
            return Ok(());
        }
        let detail = format!("a client was told of {id}, which is not in the store");
        Err(Violation::new("answered-task-is-stored", detail))
    }

    /// The coordinator sends a task to an agent, which knows it already or not.
    pub(super) fn dispatched(&self, server: ServerUuid, id: &TaskId, known: bool) -> Verdict {
        let problem = match self.known.get(id).map(|known| &known.task) {
            None if self.forgotten.contains_key(id) => "was deleted".to_owned(),
            None => "is not stored".to_owned(),
            // Asking again about what the agent holds starts nothing.
            Some(_) if known => return Ok(()),
            Some(task) if !task.is_open() => format!("has ended: {task:?}"),
            Some(task) if task.server_uuid != server => format!("is of {}", task.server_uuid),
            Some(task) if !task.sent => "is not marked as sent".to_owned(),
            Some(_) => return Ok(()),
        };
        let detail = format!("{id} is sent to {server} although it {problem}");
        Err(Violation::new("only-open-tasks-are-sent", detail))
    }

    /// The coordinator tells an agent that it has a result.
    pub(super) fn acknowledged(&self, server: ServerUuid, id: &TaskId) -> Verdict {
        match self.known.get(id).map(|known| &known.task) {
            Some(task) if task.is_open() && task.server_uuid == server => {
                let detail = format!("the result of {id} is acknowledged, but not stored");
                Err(Violation::new("acknowledged-result-is-stored", detail))
            }
            _ => Ok(()),
        }
    }

    /// One task.
    #[must_use]
    pub fn get(&self, id: &TaskId) -> Option<&StoredTask> {
        self.known.get(id).map(|known| &known.task)
    }

    /// Ids of open tasks.
    #[must_use]
    pub fn open(&self) -> &BTreeSet<TaskId> {
        &self.open
    }

    /// Tasks whose ids were answered to a client.
    #[must_use]
    pub fn known_to_clients(&self) -> &BTreeSet<TaskId> {
        &self.answered
    }

    /// Every task that is stored.
    pub fn all(&self) -> impl Iterator<Item = &StoredTask> {
        self.known.values().map(|known| &known.task)
    }

    /// The open tasks, for a report.
    #[must_use]
    pub fn report_open(&self) -> String {
        let show = |id: &TaskId| {
            let t = &self.known[id].task;
            format!("{id} {} on {} sent {}", t.task, t.server_uuid, t.sent)
        };
        self.open.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// How many tasks ended well and badly.
    #[must_use]
    pub fn ended(&self) -> (usize, usize) {
        let count = |status: &str| {
            let forgotten = self.forgotten.values().filter(|one| one.0 == status).count();
            forgotten + self.all().filter(|task| task.status == status).count()
        };
        (count("complete"), count("failure"))
    }

    /// What lists say must be what the store says: `listed` has the ids that a list of active
    /// tasks had, asked for at `asked`.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check_list(&self, asked: Duration, listed: &BTreeSet<TaskId>) -> Verdict {
        let settled = |known: &Known| known.changed_at.max(self.store_failed) + LIST_LAG <= asked;
        let steady = self.known.iter().filter(|(_, known)| settled(known));
        for (id, known) in steady {
            let open = known.task.is_open();
            if open != listed.contains(id) {
                let (is, list) = if open { ("active", "not") } else { ("ended", "still") };
                let at = known.changed_at;
                let detail = format!("{id} is {is} since {at:?}, and {list} listed as active");
                return Err(Violation::new("active-tasks-are-listed", detail));
            }
        }
        // Deleted so shortly before that the list could not know, or since.
        let just_gone = |id: &TaskId| {
            let gone = self.forgotten.get(id);
            gone.is_some_and(|(_, at)| (*at).max(self.store_failed) + LIST_LAG > asked)
        };
        let is_stored = |id: &TaskId| self.known.contains_key(id) || just_gone(id);
        match listed.iter().find(|id| !is_stored(id)) {
            Some(id) => {
                let detail = format!("{id} is listed, but not stored");
                Err(Violation::new("active-tasks-are-listed", detail))
            }
            None => Ok(()),
        }
    }
}
