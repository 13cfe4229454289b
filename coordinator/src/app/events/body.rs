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
pub enum EventBody {
    /// Of a server's status.
    Server(ServerEvent),
    /// Of a VM's state or identity.
    // Boxed: it is by far the largest.
    Vm(Box<VmEvent>),
    /// Of a task's creation and end.
    Task(TaskEvent),
    /// Of a task's progress.
    Progress(ProgressEvent),
    /// Of a ticket's status.
    Ticket(TicketEvent),
    /// Of a job and its steps.
    Job(JobEvent),
    /// Of what an operator has to look at.
    Alarm(AlarmEvent),
}

/// A server's status, as `roster/<uuid>` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerEvent {
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
pub struct VmEvent {
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
pub struct TaskEvent {
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
pub struct ProgressEvent {
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

impl ProgressEvent {
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
pub struct AlarmEvent {
    /// What is wrong, for programs.
    pub(crate) alarm: &'static str,
    pub(crate) vm_uuid: VmUuid,
    /// Who says that it has the VM.
    pub(crate) server_uuid: ServerUuid,
    /// Whose the VM is.
    pub(crate) home: ServerUuid,
}

impl AlarmEvent {
    pub(super) fn of(claim: Claim) -> Self {
        let Claim { vm, by, home } = claim;
        Self { alarm: "vm_claimed", vm_uuid: vm, server_uuid: by, home }
    }
}

/// A ticket, as its record says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TicketEvent {
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
pub struct JobEvent {
    pub(crate) uuid: Option<Uuid>,
    pub(crate) name: Option<String>,
    pub(crate) server_uuid: Option<ServerUuid>,
    pub(crate) execution: Option<Execution>,
    #[serde(rename(deserialize = "chain"))]
    pub(crate) steps: Vec<StepEvent>,
}

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepEvent {
    pub(crate) name: String,
    pub(crate) state: StepState,
}

impl EventBody {
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
            Self::Server(body) => body.server_uuid,
            Self::Vm(body) => body.server_uuid,
            Self::Task(body) => body.server_uuid,
            Self::Progress(body) => Some(body.server_uuid),
            Self::Ticket(body) => body.server_uuid.and_then(|server| server.0),
            Self::Job(body) => body.server_uuid,
            Self::Alarm(body) => Some(body.server_uuid),
        }
    }

    /// The VM that it is about.
    pub(super) fn vm(&self) -> Option<VmUuid> {
        match self {
            Self::Vm(body) => body.vm_uuid,
            Self::Task(body) => body.vm_uuid,
            Self::Progress(body) => body.vm_uuid,
            Self::Alarm(body) => Some(body.vm_uuid),
            Self::Server(_) | Self::Ticket(_) | Self::Job(_) => None,
        }
    }

    /// The task that it is about.
    pub(super) fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task(body) => body.id.as_ref(),
            Self::Progress(body) => Some(&body.task_id),
            Self::Server(_) | Self::Vm(_) | Self::Ticket(_) | Self::Job(_) | Self::Alarm(_) => None,
        }
    }
}

/// What a change of the store means to readers; `None` for records that are nobody's business.
pub(super) fn change_of(event: &store::Event) -> Option<Change> {
    let (prefix, rest) = event.key.split_once('/')?;
    let removed = event.value.is_none();
    let body = match prefix {
        "roster" => {
            let body: ServerEvent = read(event)?;
            EventBody::Server(ServerEvent { server_uuid: rest.parse().ok(), removed, ..body })
        }
        "vms" => {
            let (server, vm) = rest.split_once('/')?;
            let mut body: VmEvent = read(event)?;
            (body.vm_uuid, body.server_uuid) = (vm.parse().ok(), server.parse().ok());
            (body.alias, body.removed) = (body.index.alias.take(), removed);
            EventBody::Vm(Box::new(body))
        }
        // Old ones that are deleted are no news.
        "task" | "ticket" | "job" if removed => return None,
        "task" => {
            let mut task: TaskEvent = read(event)?;
            let details = task.error.iter_mut().filter_map(|error| error.details.as_mut());
            details.for_each(|details| *details = masked(details));
            EventBody::Task(task)
        }
        "ticket" => EventBody::Ticket(read(event)?),
        "job" => EventBody::Job(read(event)?),
        _ => return None,
    };
    Some(Change { body, revision: Some(event.revision.to_string()) })
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
        assert_eq!(change.body.kind(), EventKind::Server);
        let expected = json!({
            "server_uuid": server, "status": "unknown", "since": null, "removed": false,
            "revision": "1.7",
        });
        assert_eq!(json!(change), expected);
        let gone = change_of(&event(&format!("vms/{server}/{server}"), None, 8)).unwrap();
        assert_eq!((gone.body.kind(), &json!(gone)["removed"]), (EventKind::Vm, &json!(true)));
        assert_eq!(change_of(&event("task/t", None, 9)), None);
        assert_eq!(change_of(&event("sysinfo/x", Some(&json!({})), 9)), None);
        let ticket = json!({ "uuid": server, "scope": "vm", "id": "i", "status": "active" });
        let ticket = json!(change_of(&event("ticket/u", Some(&ticket), 9)).unwrap());
        assert_eq!((&ticket["scope"], &ticket["status"]), (&json!("vm"), &json!("active")));
    }
}
