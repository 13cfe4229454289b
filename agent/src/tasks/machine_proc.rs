//! `machine_proc`: the processes of a VM; of a hardware VM there is one, its hypervisor.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameter `uuid`.
#[derive(Debug)]
pub struct MachineProc;

impl Handler for MachineProc {
    fn kind(&self) -> Kind {
        Kind::query("machine_proc", machine::MACHINE_QUERY, Duration::from_secs(30))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        if !params.contains_key("uuid") {
            return Err(TaskFailure::bad_param("uuid", "missing uuid for machine_proc"));
        }
        let vm = machine::vm(params)?;
        Ok(Plan::of(Vec::new(), List { vm }, STEPS))
    }
}

const STEPS: &[Row<List>] = steps![("list", 100, list)];

#[derive(Debug)]
struct List {
    vm: VmUuid,
}

impl List {
    async fn list(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::record(ctx, "machine_proc", self.vm)?;
        if !machine::runs(ctx, self.vm).await? {
            return Err(refuse(Code::VmNotRunning, "VM is not running"));
        }
        ctx.finish_with(ctx.drivers.compute.processes(self.vm).await?);
        Ok(())
    }
}
