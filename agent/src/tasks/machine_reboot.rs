//! `machine_reboot`: stops a running VM and starts it again.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};

const OPERATION: &str = "vmadm.reboot";

/// For what is around the wait for the guest.
const AROUND: Duration = Duration::from_secs(180);

/// The kind; parameters `uuid`, `force`, `timeout`, `idempotent`, `update`.
#[derive(Debug)]
pub struct MachineReboot;

impl Handler for MachineReboot {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "machine_reboot",
            machine::MACHINE_TASKS,
            machine::STOP_TIMEOUT.saturating_add(AROUND),
        )
    }

    fn deadline(&self, params: &Params) -> Duration {
        match machine::timeout(params) {
            Ok(Some(timeout)) => timeout + AROUND,
            Ok(None) | Err(_) => self.kind().limit,
        }
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
        let job = Reboot {
            vm,
            idempotent: machine::flag(params, "idempotent")?,
            force: machine::flag(params, "force")?,
            timeout: machine::timeout(params)?,
            update: machine::metadata_update(params)?,
        };
        let updates = job.update.is_some();
        Ok(Plan::of(vec![Lock::Vm(vm)], job, STEPS).only_if(updates, "update"))
    }
}

const STEPS: &[Row<Reboot>] =
    steps![("check", 10, check), ("update", 20, update), ("stop", 60, stop), ("start", 100, start)];

#[derive(Debug)]
struct Reboot {
    vm: VmUuid,
    idempotent: bool,
    force: bool,
    /// `None`: as long as its kind has.
    timeout: Option<Duration>,
    update: Option<Map<String, Value>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// There is nothing to do.
    was_stopped: bool,
}

impl Reboot {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        let running = machine::runs(ctx, self.vm).await?;
        ctx.note(&Notes { was_stopped: !running })?;
        if running {
            // Or it would be stopped and could not be started again.
            return machine::disks(ctx, OPERATION, &record).await.map(drop);
        }
        if self.idempotent {
            return Ok(());
        }
        let state = machine::state(ctx, self.vm);
        let text = format!("{OPERATION} error: Cannot reboot vm from state \"{state}\"");
        Err(refuse(Code::NotRunning, text))
    }

    async fn update(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match &self.update {
            Some(set) => machine::apply_metadata(ctx, self.vm, set).await,
            None => Ok(()),
        }
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if ctx.notes::<Notes>()?.was_stopped {
            return Ok(());
        }
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let timeout = self.timeout.unwrap_or_else(|| machine::stop_timeout(&record));
        let until = ctx.started_at.saturating_add(timeout).unwrap_or(Timestamp::MAX);
        let mark = Some(iso(until));
        ctx.drivers.vms.update(self.vm, |record| record.stopping_until = mark).await?;
        let how = Stop { force: self.force, until, at_most: timeout };
        let stopped = stopping::stop(ctx, OPERATION, self.vm, how).await;
        ctx.drivers.vms.update(self.vm, |record| record.stopping_until = None).await?;
        stopped
    }

    async fn start(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let skipped = ctx.notes::<Notes>()?.was_stopped;
        if !skipped {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        let mut result = machine::result(ctx, self.vm);
        if skipped {
            result["was_stopped"] = json!(true);
        }
        ctx.finish_with(result);
        Ok(())
    }
}
