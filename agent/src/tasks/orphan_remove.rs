//! `orphan_remove`: ends and removes what lies on the host under a VM's name without a record.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, Stop, failed, refuse};
use super::{Handler, Kind, Lock, Params, Plan, Step, TaskContext, TaskFailure};
use crate::vms::orphans;

const OPERATION: &str = "remove";

/// The kind; parameters `uuid`, and `confirm` with the same uuid: nothing brings it back.
#[derive(Debug)]
pub struct OrphanRemove;

#[async_trait]
impl Handler for OrphanRemove {
    fn kind(&self) -> Kind {
        Kind::mutate("orphan_remove", machine::MACHINE_TASKS, Duration::from_secs(600))
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("confirm".to_owned(), params["uuid"].clone());
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let confirmed = params.get("confirm").and_then(Value::as_str);
        if confirmed.and_then(|uuid| uuid.parse().ok()) != Some(vm) {
            let problem = format!("must be {vm}: what is removed can't be had back");
            return Err(TaskFailure::bad_param("confirm", problem));
        }
        let step = |part| -> Box<dyn Step> { Box::new(Remove { vm, part }) };
        let parts = [Part::Check, Part::Stop, Part::Storage, Part::Cleanup, Part::Copy];
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps: parts.into_iter().map(step).collect() })
    }
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Check,
    Stop,
    Storage,
    Cleanup,
    Copy,
}

#[derive(Debug)]
struct Remove {
    vm: VmUuid,
    part: Part,
}

#[async_trait]
impl Step for Remove {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Check => "check",
            Part::Stop => "stop",
            Part::Storage => "storage",
            Part::Cleanup => "cleanup",
            Part::Copy => "copy",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        if drivers.vms.knows(self.vm) {
            let text = format!("{OPERATION} error: VM {} has a record: destroy it", self.vm);
            return Err(refuse(Code::VmExists, text));
        }
        match self.part {
            Part::Check => {
                orphans::get(drivers, self.vm).await.map(drop).map_err(failed(OPERATION))?;
            }
            Part::Stop => {
                let stop = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
                machine::stop(ctx, OPERATION, self.vm, stop).await?;
            }
            Part::Storage => {
                let removed = drivers.storage.destroy_disks(self.vm, None).await;
                removed.map_err(failed(OPERATION))?;
            }
            Part::Cleanup => machine::clean_up(ctx, OPERATION, self.vm, true).await?,
            Part::Copy => {
                // Last: until then it tells whose the rest was.
                drivers.storage.remove_copy(self.vm).await.map_err(failed(OPERATION))?;
                drivers.vms.observe_all(drivers.compute.as_ref()).await;
                ctx.finish_with(json!({ "uuid": self.vm }));
            }
        }
        Ok(())
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Check => 10,
            Part::Stop => 40,
            Part::Storage => 80,
            Part::Cleanup => 90,
            Part::Copy => 100,
        }
    }
}
