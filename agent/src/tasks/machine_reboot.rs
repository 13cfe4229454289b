//! `machine_reboot`: stops a running VM and starts it again.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::machine::{self, Stop, refuse};
use super::{Handler, Kind, Lock, Params, Plan, Step, TaskContext, TaskFailure};

const OPERATION: &str = "vmadm.reboot";
/// Member of the task's result that says that there was nothing to do.
const SKIP: &str = "was_stopped";

/// For what is around the wait for the guest.
const AROUND: Duration = Duration::from_secs(180);

/// The kind; parameters `uuid`, `force`, `timeout`, `idempotent`, `update`.
#[derive(Debug)]
pub struct MachineReboot;

#[async_trait]
impl Handler for MachineReboot {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "machine_reboot",
            machine::MACHINE_TASKS,
            machine::STOP_TIMEOUT.saturating_add(AROUND),
        )
    }

    fn deadline(&self, params: &Params) -> Duration {
        machine::timeout(params).map_or(self.kind().limit, |timeout| timeout + AROUND)
    }

    fn preemptible(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("update".to_owned(), json!({ "set_internal_metadata": { "a": "b" } }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let idempotent = machine::flag(params, "idempotent")?;
        let force = machine::flag(params, "force")?;
        let timeout = machine::timeout(params)?;
        let update = machine::metadata_update(params)?;
        let part = |part| -> Box<dyn Step> { Box::new(RebootStep { vm, part }) };
        let mut steps = vec![part(Part::Check { idempotent })];
        steps.extend(update.map(|set| part(Part::Update(set))));
        steps.push(part(Part::Stop { force, timeout }));
        steps.push(part(Part::Start));
        Ok(Plan { locks: vec![Lock::Vm(vm)], steps })
    }
}

#[derive(Debug)]
enum Part {
    Check { idempotent: bool },
    Update(Map<String, Value>),
    Stop { force: bool, timeout: Duration },
    Start,
}

#[derive(Debug)]
struct RebootStep {
    vm: VmUuid,
    part: Part,
}

impl RebootStep {
    async fn check(&self, ctx: &TaskContext, idempotent: bool) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        if machine::runs(ctx, self.vm).await? {
            // Or it would be stopped and could not be started again.
            return machine::disks(ctx, OPERATION, &record).await.map(drop);
        }
        if idempotent {
            ctx.finish_with(json!({ SKIP: true }));
            return Ok(());
        }
        let state = machine::state(ctx, self.vm);
        let text = format!("{OPERATION} error: Cannot reboot vm from state \"{state}\"");
        Err(refuse(Code::NotRunning, text))
    }

    async fn stop(
        &self,
        ctx: &TaskContext,
        force: bool,
        timeout: Duration,
    ) -> Result<(), TaskFailure> {
        let until = ctx.started_at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
        let mark = Some(iso(until));
        ctx.drivers.vms.update(self.vm, |record| record.stopping_until = mark).await?;
        let how = Stop { force, until, at_most: timeout };
        let stopped = machine::stop(ctx, OPERATION, self.vm, how).await;
        ctx.drivers.vms.update(self.vm, |record| record.stopping_until = None).await?;
        stopped
    }
}

#[async_trait]
impl Step for RebootStep {
    fn name(&self) -> &'static str {
        match self.part {
            Part::Check { .. } => "check",
            Part::Update(_) => "update",
            Part::Stop { .. } => "stop",
            Part::Start => "start",
        }
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let skip = ctx.result.lock().get(SKIP).is_some();
        match &self.part {
            Part::Check { idempotent } => self.check(ctx, *idempotent).await?,
            Part::Update(set) => machine::apply_metadata(ctx, self.vm, set).await?,
            Part::Stop { .. } if skip => {}
            Part::Stop { force, timeout } => self.stop(ctx, *force, *timeout).await?,
            Part::Start => {
                if !skip {
                    machine::start(ctx, OPERATION, self.vm).await?;
                }
                let mut result = ctx.drivers.vms.result(self.vm);
                if skip {
                    result[SKIP] = json!(true);
                }
                ctx.finish_with(result);
            }
        }
        Ok(())
    }

    fn progress(&self) -> u8 {
        match self.part {
            Part::Check { .. } => 10,
            Part::Update(_) => 20,
            Part::Stop { .. } => 60,
            Part::Start => 100,
        }
    }
}
