//! Clients: requests to the coordinator's application, and what was acknowledged.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_coordinator::app::{App, AppError, Caller, Expected};
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::IMAGE;
use super::node::CoordinatorNode;
use super::trace::Trace;

/// A request.
#[derive(Clone, Debug)]
pub enum Request {
    /// `POST /vms`.
    Place(VmUuid),
    /// Any task.
    Task {
        /// Where.
        server: ServerUuid,
        /// Which.
        kind: &'static str,
        /// With what.
        params: Map<String, Value>,
    },
    /// `POST /tasks/:id/cancel`.
    Cancel(TaskId),
}

/// What a placed VM is.
#[must_use]
pub fn vm_body(vm: VmUuid) -> Map<String, Value> {
    let body = json!({ "uuid": vm, "image_uuid": IMAGE, "ram": 256, "networks": ["admin"] });
    body.as_object().cloned().unwrap_or_default()
}

impl Request {
    /// A task about a VM, with parameters that suit its kind.
    #[must_use]
    pub fn vm_task(server: ServerUuid, kind: &'static str, vm: VmUuid) -> Self {
        let params = match kind {
            "machine_reprovision" => json!({ "uuid": vm, "image_uuid": IMAGE }),
            "machine_update" => json!({
                "uuid": vm, "ram": 300, "set_tags": { "a": 1 }, "add_nics": [{ "nic_tag": "b" }],
            }),
            _ => json!({ "uuid": vm, "timeout": 2, "snapshot_name": "one" }),
        };
        Self::Task { server, kind, params: params.as_object().cloned().unwrap_or_default() }
    }

    fn vm(&self) -> Option<VmUuid> {
        match self {
            Self::Place(vm) => Some(*vm),
            Self::Task { params, .. } => params.get("uuid")?.as_str()?.parse().ok(),
            Self::Cancel(_) => None,
        }
    }

    /// The VM it asks for.
    fn makes(&self) -> Option<VmUuid> {
        match self {
            Self::Task { kind: "machine_create", .. } | Self::Place(_) => self.vm(),
            Self::Task { .. } | Self::Cancel(_) => None,
        }
    }

    /// Whether it may lead to one start of the VM's process.
    fn starts(&self) -> Option<VmUuid> {
        let starting = [
            "machine_create",
            "machine_boot",
            "machine_reboot",
            "machine_reprovision",
            "machine_rollback_snapshot",
            "machine_update",
        ];
        match self {
            Self::Place(vm) => Some(*vm),
            Self::Task { kind, .. } if starting.contains(kind) => self.vm(),
            Self::Task { .. } | Self::Cancel(_) => None,
        }
    }

    async fn send(self, app: &Arc<App>, number: u64) -> Result<Option<TaskId>, AppError> {
        let caller = Caller::new(format!("request-{number}"));
        match self {
            Self::Place(vm) => {
                app.vm_place(&vm_body(vm), &caller).await.map(|placed| Some(placed.id))
            }
            Self::Task { server, kind, params } => {
                app.task_create(server, kind, params, &caller).await.map(Some)
            }
            Self::Cancel(id) => app.task_cancel(&id, &Expected::ANY).await.map(|()| None),
        }
    }
}

#[derive(Debug)]
struct Answer {
    number: u64,
    outcome: Result<Option<TaskId>, String>,
}

/// All clients.
#[derive(Debug, Default)]
pub struct Client {
    answers: Arc<Mutex<Vec<Answer>>>,
    last: u64,
    under_way: BTreeMap<u64, Request>,
    acknowledged: BTreeMap<TaskId, u64>,
    starts: BTreeMap<VmUuid, u64>,
    placed: Vec<VmUuid>,
    errors: BTreeMap<String, u64>,
}

impl Client {
    /// Sends a request if the coordinator is up; the answer comes later, or never.
    pub fn send(&mut self, coordinator: &CoordinatorNode, request: Request, trace: &Trace) {
        let Some(app) = coordinator.app() else { return };
        self.last += 1;
        let number = self.last;
        trace.event(format_args!("request {number}: {request:?}"));
        if let Some(vm) = request.starts() {
            *self.starts.entry(vm).or_insert(0) += 1;
        }
        if let Some(vm) = request.makes()
            && !self.placed.contains(&vm)
        {
            self.placed.push(vm);
        }
        self.under_way.insert(number, request.clone());
        let answers = self.answers.clone();
        coordinator.spawn(async move {
            let outcome = request.send(&app, number).await;
            let outcome = outcome.map_err(|error| Chain(&error).to_string());
            answers.lock().push(Answer { number, outcome });
        });
    }

    /// Takes the answers that have come.
    pub fn collect(&mut self, trace: &Trace) {
        for answer in std::mem::take(&mut *self.answers.lock()) {
            trace.event(format_args!("answer {}: {:?}", answer.number, answer.outcome));
            self.under_way.remove(&answer.number);
            match answer.outcome {
                Ok(Some(id)) => drop(self.acknowledged.insert(id, answer.number)),
                Ok(None) => {}
                Err(error) => *self.errors.entry(error).or_insert(0) += 1,
            }
        }
    }

    /// The coordinator died: what was under way is never answered.
    pub fn forget(&mut self) {
        self.under_way.clear();
    }

    /// Whether no request waits for its answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Every task that was acknowledged.
    pub fn acknowledged(&self) -> impl Iterator<Item = &TaskId> {
        self.acknowledged.keys()
    }

    /// VMs that were asked for.
    #[must_use]
    pub fn placed(&self) -> &[VmUuid] {
        &self.placed
    }

    /// Most starts of a VM's process that were asked for.
    #[must_use]
    pub fn starts(&self, vm: VmUuid) -> u64 {
        self.starts.get(&vm).copied().unwrap_or(0)
    }

    /// Requests that were refused, by error.
    #[must_use]
    pub fn errors(&self) -> &BTreeMap<String, u64> {
        &self.errors
    }
}
