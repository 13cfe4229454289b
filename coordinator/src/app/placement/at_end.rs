//! What the end of a task changes about its VM: its place, and its record.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::api::task::TaskStatus;
use muster_shared::ids::ServerUuid;
use muster_shared::wire::TaskError;
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};

use super::Placement;
use super::create::makes_vm;
use super::promises::PLACES;
use crate::app::error::AppError;
use crate::app::tasks::{AtEnd, Open, TaskRecord};
use crate::store::{Expect, Write};

#[async_trait]
impl AtEnd for Placement {
    async fn move_refused(
        self: Arc<Self>,
        open: &Open,
        error: &TaskError,
    ) -> Result<bool, AppError> {
        self.place_again(open, error).await
    }

    fn writes(&self, ended: &TaskRecord) -> Vec<Write> {
        self.place_writes(ended).into_iter().chain(self.vm_of_result(ended)).collect()
    }
}

impl Placement {
    /// What the end of a task changes about the place of its VM; part of the same commit.
    fn place_writes(&self, ended: &TaskRecord) -> Option<Write> {
        let vm = ended.vm_uuid?;
        let placing = self.promises.lock();
        let place = placing.place(vm)?;
        let at = Expect::At(place.revision);
        if is_destroyed(ended) {
            return Some(PLACES.delete(vm, at));
        }
        if place.record.task_id != ended.id {
            return None;
        }
        Some(match ended.status {
            TaskStatus::Failure => PLACES.delete(vm, at),
            TaskStatus::Active | TaskStatus::Complete => {
                let mut record = self.place_record(ended, vm, place.record.promise.clone());
                record.unknown = place.record.unknown.clone();
                PLACES.put(vm, at, &record)
            }
        })
    }

    /// What the end of a task makes of its VM's record: who sees the end sees this, too, and need
    /// not wait for the next report. Part of the same commit.
    fn vm_of_result(&self, ended: &TaskRecord) -> Option<Write> {
        let server = ended.server_uuid;
        if let Some(vm) = ended.vm_uuid.filter(|_| is_destroyed(ended)) {
            self.fleet.report_vms(server, BTreeMap::from([(vm, None)]));
            return self.fleet.unsaved_vm(server, vm);
        }
        let mut report = report_in(ended)?;
        let vm = report.vm.uuid;
        let home = self.fleet.vm(vm).map(|(home, _)| home);
        let is_news = match self.fleet.reported_vm(server, vm) {
            Some(known) => {
                // Not among the members of the object.
                let VmIndex { docker_id, image_uuid, .. } = &known.index;
                report.index.docker_id = report.index.docker_id.or_else(|| docker_id.clone());
                report.index.image_uuid = report.index.image_uuid.or_else(|| image_uuid.clone());
                report.vm.last_modified > known.vm.last_modified
            }
            None if home.is_some() => false,
            None => makes_vm(&ended.task) && self.is_newer_than_reports(server, &report),
        };
        if is_news {
            let reports = BTreeMap::from([(vm, Some(Arc::new(report)))]);
            self.fleet.report_vms(server, reports);
        }
        self.fleet.unsaved_vm(server, vm)
    }

    /// Whether the agent looked at its VMs before this one became what it is. A result that comes
    /// late must not bring back a VM that was destroyed since.
    fn is_newer_than_reports(&self, server: ServerUuid, made: &VmReport) -> bool {
        let reported_at = self.fleet.with(server, |entry| entry.reported_at.clone());
        // Both are of the agent's clock, in one format that sorts.
        reported_at.is_none_or(|reported_at| made.vm.last_modified > reported_at)
    }
}

/// Whether the task has destroyed its VM.
fn is_destroyed(ended: &TaskRecord) -> bool {
    ended.task == "machine_destroy" && ended.status == TaskStatus::Complete
}

/// The VM object that a task returned, as a report; `None` for one that reports leave out.
fn report_in(ended: &TaskRecord) -> Option<VmReport> {
    if ended.status != TaskStatus::Complete {
        return None;
    }
    let vm = ended.history.first()?.event.get("vm")?;
    if vm.get("do_not_inventory").is_some_and(|hidden| *hidden == true) {
        return None;
    }
    let status: VmStatus = serde_json::from_value(vm.clone()).ok()?;
    let index: VmIndex = serde_json::from_value(vm.clone()).unwrap_or_default();
    Some(VmReport { vm: status, index })
}
