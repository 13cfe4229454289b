//! `machine_boot`: starts a stopped VM and lets it start with the host from now on.

use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::machine::{self, refuse};
use super::{Handler, Kind, Lock, Params, Plan, Step, TaskContext, TaskFailure};
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.start";

/// The kind; parameters `uuid`, `idempotent`, `update`.
#[derive(Debug)]
pub struct MachineBoot;

#[async_trait]
impl Handler for MachineBoot {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_boot", machine::MACHINE_TASKS, Duration::from_secs(300))
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("update".to_owned(), json!({ "set_internal_metadata": { "a": "b" } }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let idempotent = machine::flag(params, "idempotent")?;
        let update = machine::metadata_update(params)?;
        let part = |part| -> Box<dyn Step> { Box::new(BootStep { vm, part }) };
        let mut steps = vec![part(Part::Check { idempotent })];
        steps.extend(update.map(|set| part(Part::Update(set))));
        steps.push(part(Part::Start));
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps })
    }
}

#[derive(Debug)]
enum Part {
    Check { idempotent: bool },
    Update(Map<String, Value>),
    Start,
}

#[derive(Debug)]
struct BootStep {
    vm: VmUuid,
    part: Part,
}

#[async_trait]
impl Step for BootStep {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Check { .. } => "check",
            Part::Update(_) => "update",
            Part::Start => "start",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match &self.part {
            // A step of its own: when the start is repeated after a crash, the VM may run because
            // of this very task.
            Part::Check { idempotent } => {
                machine::usable(OPERATION, &machine::record(ctx, OPERATION, self.vm)?)?;
                if machine::runs(ctx, self.vm).await? && !idempotent {
                    let text = format!("{OPERATION} error: VM {} is already 'running'", self.vm);
                    return Err(refuse(Code::AlreadyRunning, text));
                }
                Ok(())
            }
            Part::Update(set) => machine::apply_metadata(ctx, self.vm, set).await,
            Part::Start => {
                machine::start(ctx, OPERATION, self.vm).await?;
                let autoboot = |record: &mut VmRecord| {
                    record.properties.insert("autoboot".to_owned(), json!(true));
                };
                ctx.drivers.vms.update(self.vm, autoboot).await?;
                ctx.finish_with(ctx.drivers.vms.result(self.vm));
                Ok(())
            }
        }
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Check { .. } => 10,
            Part::Update(_) => 20,
            Part::Start => 100,
        }
    }
}
