//! `machine_load`: the full object of one VM.

use std::time::Duration;

use muster_shared::ids::VmUuid;

use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::vms;

/// The kind; parameters `uuid`, `include_dni`.
#[derive(Debug)]
pub struct MachineLoad;

impl Handler for MachineLoad {
    fn kind(&self) -> Kind {
        Kind::query("machine_load", machine::MACHINE_QUERY, Duration::from_secs(30))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let step =
            Load { vm: machine::vm(params)?, include_dni: machine::flag(params, "include_dni")? };
        Ok(Plan::of(Vec::new(), step, STEPS))
    }
}

const STEPS: &[Row<Load>] = steps![("load", 100, load)];

#[derive(Debug)]
struct Load {
    vm: VmUuid,
    include_dni: bool,
}

impl Load {
    async fn load(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::runs(ctx, self.vm).await?;
        match ctx.drivers.vms.object(self.vm, self.include_dni) {
            Some(vm) => {
                ctx.finish_with(vm);
                Ok(())
            }
            None => Err(failed("VM.load")(vms::not_found(self.vm))),
        }
    }
}
