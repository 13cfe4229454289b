//! `machine_delete_snapshot`: removes a snapshot; a missing one is a success.

use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;

use super::{Handler, Kind, Lock, Params, Plan, Step, TaskContext, TaskFailure, machine, snapshot};

const OPERATION: &str = "vmadm.delete_snapshot";

/// The kind; parameters `uuid`, `snapshot_name`.
#[derive(Debug)]
pub struct MachineDeleteSnapshot;

#[async_trait]
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
        let step = |part| -> Box<dyn Step> { Box::new(Delete { vm, name: name.clone(), part }) };
        let steps = [Part::Disks, Part::Forget].into_iter().map(step).collect();
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps })
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Disks,
    Forget,
}

#[derive(Debug)]
struct Delete {
    vm: VmUuid,
    name: String,
    part: Part,
}

#[async_trait]
impl Step for Delete {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Disks => "disks",
            Part::Forget => "forget",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match self.part {
            Part::Disks => {
                machine::usable(OPERATION, &machine::record(ctx, OPERATION, self.vm)?)?;
                let removed = snapshot::remove(ctx, self.vm, &self.name).await;
                removed.map_err(snapshot::told(OPERATION))
            }
            Part::Forget => {
                snapshot::forget(ctx, self.vm, &self.name).await?;
                snapshot::finish(ctx, OPERATION, self.vm).await
            }
        }
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Disks => 80,
            Part::Forget => 100,
        }
    }
}
