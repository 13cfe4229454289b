//! What a change of the store means to readers of events. Pure.

use jiff::Timestamp;
use muster_shared::api::job::{Execution, StepState};
use muster_shared::api::task::TaskStatus;
use muster_shared::api::ticket::{TicketServer, TicketStatus};
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use muster_shared::lenient::if_fits;
use muster_shared::secrets::masked;
use muster_shared::wire::status::VmIndex;
use muster_shared::wire::{Progress, TaskError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use uuid::Uuid;

use super::{Change, EventKind};
use crate::app::fleet::Claim;
use crate::app::tasks::TaskRecord;
use crate::roster::Status;
use crate::store;

/// What an event says. What is read of a record may be missing there, and is null then.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Told {
    /// Of a server's status.
    Server(ToldServer),
    /// Of a VM's state or identity.
    Vm(ToldVm),
    /// Of a task's creation and end.
    Task(ToldTask),
    /// Of a task's progress.
    Progress(ToldProgress),
    /// Of a ticket's status.
    Ticket(ToldTicket),
    /// Of a job and its steps.
    Job(ToldJob),
    /// Of what an operator has to look at.
    Alarm(ToldAlarm),
}

/// A server's status, as `roster/<uuid>` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldServer {
    pub(crate) server_uuid: Option<ServerUuid>,
    pub(crate) status: Option<Status>,
    #[serde(serialize_with = "as_iso", deserialize_with = "if_fits")]
    pub(crate) since: Option<Timestamp>,
    pub(crate) removed: bool,
}

fn as_iso<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(iso).serialize(serializer)
}

/// A VM's state and identity, as `vms/<server>/<vm>` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldVm {
    pub(crate) vm_uuid: Option<VmUuid>,
    pub(crate) server_uuid: Option<ServerUuid>,
    pub(crate) state: Option<String>,
    pub(crate) zone_state: Option<String>,
    pub(crate) owner_uuid: Option<String>,
    pub(crate) alias: Option<String>,
    pub(crate) removed: bool,
    #[serde(skip_serializing)]
    pub(crate) index: VmIndex,
}

/// A task, as its record says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldTask {
    pub(crate) id: Option<TaskId>,
    pub(crate) task: Option<String>,
    pub(crate) server_uuid: Option<ServerUuid>,
    pub(crate) vm_uuid: Option<VmUuid>,
    pub(crate) status: Option<TaskStatus>,
    pub(crate) req_id: Option<String>,
    pub(crate) accepted: Option<bool>,
    pub(crate) timestamp: Option<String>,
    pub(crate) finished_at: Option<String>,
    /// Secrets are masked.
    pub(crate) error: Option<TaskError>,
}

/// What an agent reports of a running task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldProgress {
    pub(crate) task_id: TaskId,
    pub(crate) task: String,
    pub(crate) server_uuid: ServerUuid,
    pub(crate) vm_uuid: Option<VmUuid>,
    pub(crate) seq: u64,
    pub(crate) name: String,
    /// Secrets are masked.
    pub(crate) event: Value,
    pub(crate) timestamp: String,
}

impl ToldProgress {
    /// A report about a task.
    pub(super) fn of(progress: &Progress, task: &TaskRecord) -> Self {
        Self {
            task_id: progress.id.clone(),
            task: task.task.clone(),
            server_uuid: task.server_uuid,
            vm_uuid: task.vm_uuid,
            seq: progress.seq,
            name: progress.name.clone(),
            event: masked(&progress.event),
            timestamp: progress.ts.clone(),
        }
    }
}

/// A server reports a VM of another one, which changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ToldAlarm {
    /// What is wrong, for programs.
    pub(crate) alarm: &'static str,
    pub(crate) vm_uuid: VmUuid,
    /// Who says that it has the VM.
    pub(crate) server_uuid: ServerUuid,
    /// Whose the VM is.
    pub(crate) home: ServerUuid,
}

impl ToldAlarm {
    pub(super) fn of(claim: Claim) -> Self {
        let Claim { vm, by, home } = claim;
        Self { alarm: "vm_claimed", vm_uuid: vm, server_uuid: by, home }
    }
}

/// A ticket, as its record says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldTicket {
    pub(crate) uuid: Option<TicketUuid>,
    pub(crate) server_uuid: Option<TicketServer>,
    pub(crate) scope: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) action: Option<String>,
    pub(crate) status: Option<TicketStatus>,
}

/// A job, as its record says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToldJob {
    pub(crate) uuid: Option<Uuid>,
    pub(crate) name: Option<String>,
    pub(crate) server_uuid: Option<ServerUuid>,
    pub(crate) execution: Option<Execution>,
    #[serde(rename(deserialize = "chain"))]
    pub(crate) steps: Vec<ToldStep>,
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToldStep {
    pub(crate) name: String,
    pub(crate) state: StepState,
}

impl Told {
    /// What it is about.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Server(_) => EventKind::Server,
            Self::Vm(_) => EventKind::Vm,
            Self::Task(_) => EventKind::Task,
            Self::Progress(_) => EventKind::Progress,
            Self::Ticket(_) => EventKind::Ticket,
            Self::Job(_) => EventKind::Job,
            Self::Alarm(_) => EventKind::Alarm,
        }
    }

    /// The server that it is about.
    pub(in crate::app) fn server(&self) -> Option<ServerUuid> {
        match self {
            Self::Server(told) => told.server_uuid,
            Self::Vm(told) => told.server_uuid,
            Self::Task(told) => told.server_uuid,
            Self::Progress(told) => Some(told.server_uuid),
            Self::Ticket(told) => told.server_uuid.and_then(|server| server.0),
            Self::Job(told) => told.server_uuid,
            Self::Alarm(told) => Some(told.server_uuid),
        }
    }

    /// The VM that it is about.
    pub(super) fn vm(&self) -> Option<VmUuid> {
        match self {
            Self::Vm(told) => told.vm_uuid,
            Self::Task(told) => told.vm_uuid,
            Self::Progress(told) => told.vm_uuid,
            Self::Alarm(told) => Some(told.vm_uuid),
            Self::Server(_) | Self::Ticket(_) | Self::Job(_) => None,
        }
    }

    /// The task that it is about.
    pub(super) fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task(told) => told.id.as_ref(),
            Self::Progress(told) => Some(&told.task_id),
            Self::Server(_) | Self::Vm(_) | Self::Ticket(_) | Self::Job(_) | Self::Alarm(_) => None,
        }
    }
}

/// What a change of the store means to readers; `None` for records that are nobody's business.
pub(super) fn change_of(event: &store::Event) -> Option<Change> {
    let (prefix, rest) = event.key.split_once('/')?;
    let removed = event.value.is_none();
    let told = match prefix {
        "roster" => {
            let told: ToldServer = read(event)?;
            Told::Server(ToldServer { server_uuid: rest.parse().ok(), removed, ..told })
        }
        "vms" => {
            let (server, vm) = rest.split_once('/')?;
            let mut told: ToldVm = read(event)?;
            (told.vm_uuid, told.server_uuid) = (vm.parse().ok(), server.parse().ok());
            (told.alias, told.removed) = (told.index.alias.take(), removed);
            Told::Vm(told)
        }
        // Old ones that are deleted are no news.
        "task" | "ticket" | "job" if removed => return None,
        "task" => {
            let mut task: ToldTask = read(event)?;
            let details = task.error.iter_mut().filter_map(|error| error.details.as_mut());
            details.for_each(|details| *details = masked(details));
            Told::Task(task)
        }
        "ticket" => Told::Ticket(read(event)?),
        "job" => Told::Job(read(event)?),
        _ => return None,
    };
    Some(Change { told, revision: Some(event.revision.to_string()) })
}

/// What an event's record says; nothing when it was removed.
fn read<T: DeserializeOwned + Default>(event: &store::Event) -> Option<T> {
    let Some(value) = &event.value else { return Some(T::default()) };
    serde_json::from_slice(value)
        .inspect_err(|error| tracing::error!(key = event.key, %error, "a record can't be told"))
        .ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::store::Revision;

    fn event(key: &str, value: Option<&Value>, counter: u64) -> store::Event {
        let value = value.map(|value| Bytes::from(value.to_string()));
        store::Event { key: key.to_owned(), value, revision: Revision { epoch: 1, counter } }
    }

    #[test]
    fn changes_of_the_store_are_told_in_the_api_s_words() {
        let server = "11111111-1111-4111-8111-111111111111";
        let roster = event(&format!("roster/{server}"), Some(&json!({ "status": "unknown" })), 7);
        let change = change_of(&roster).unwrap();
        assert_eq!(change.told.kind(), EventKind::Server);
        let expected = json!({
            "server_uuid": server, "status": "unknown", "since": null, "removed": false,
            "revision": "1.7",
        });
        assert_eq!(json!(change), expected);
        let gone = change_of(&event(&format!("vms/{server}/{server}"), None, 8)).unwrap();
        assert_eq!((gone.told.kind(), &json!(gone)["removed"]), (EventKind::Vm, &json!(true)));
        assert_eq!(change_of(&event("task/t", None, 9)), None);
        assert_eq!(change_of(&event("sysinfo/x", Some(&json!({})), 9)), None);
        let ticket = json!({ "uuid": server, "scope": "vm", "id": "i", "status": "active" });
        let ticket = json!(change_of(&event("ticket/u", Some(&ticket), 9)).unwrap());
        assert_eq!((&ticket["scope"], &ticket["status"]), (&json!("vm"), &json!("active")));
    }
}
