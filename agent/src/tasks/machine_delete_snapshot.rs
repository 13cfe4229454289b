//! `machine_delete_snapshot`: removes a snapshot; a missing one is a success.

use std::time::Duration;

use muster_shared::ids::VmUuid;

use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure, machine, snapshot};

const OPERATION: &str = "vmadm.delete_snapshot";

/// The kind; parameters `uuid`, `snapshot_name`.
#[derive(Debug)]
pub struct MachineDeleteSnapshot;

impl Handler for MachineDeleteSnapshot {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_delete_snapshot", machine::MACHINE_TASKS, Duration::from_secs(600))
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        snapshot::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let name = snapshot::name(params)?;
        Ok(Plan::of(vec![Lock::Vm(vm)], Delete { vm, name }, STEPS))
    }
}

const STEPS: &[Row<Delete>] = steps![("disks", 80, delete), ("forget", 100, forget)];

#[derive(Debug)]
struct Delete {
    vm: VmUuid,
    name: String,
}

impl Delete {
    async fn delete(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::usable(OPERATION, &machine::record(ctx, OPERATION, self.vm)?)?;
        let removed = snapshot::remove(ctx, self.vm, &self.name).await;
        removed.map_err(snapshot::in_words_of(OPERATION))
    }

    async fn forget(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        snapshot::forget(ctx, self.vm, &self.name).await?;
        snapshot::finish(ctx, OPERATION, self.vm).await
    }
}
