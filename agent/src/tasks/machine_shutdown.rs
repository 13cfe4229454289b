//! `machine_shutdown`: asks the guest to shut down and kills it when its time is over.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::json;

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::vms::VmRecord;

const OPERATION: &str = "vmadm.stop";

/// For what is around the wait for the guest.
const AROUND: Duration = Duration::from_secs(120);

/// The kind; parameters `uuid`, `force`, `timeout`, `idempotent`.
#[derive(Debug)]
pub struct MachineShutdown;

impl Handler for MachineShutdown {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "machine_shutdown",
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

    fn preempts(&self, params: &Params) -> bool {
        machine::flag(params, "force").unwrap_or(false)
    }

    fn preemptible(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let job = Shutdown {
            vm,
            force: machine::flag(params, "force")?,
            idempotent: machine::flag(params, "idempotent")?,
            timeout: machine::timeout(params)?,
        };
        Ok(Plan::of(vec![Lock::Vm(vm)], job, STEPS))
    }
}

const STEPS: &[Row<Shutdown>] =
    steps![("mark", 10, mark), ("stop", 90, stop), ("commit", 100, commit)];

#[derive(Debug)]
struct Shutdown {
    vm: VmUuid,
    force: bool,
    idempotent: bool,
    /// `None`: as long as its kind has.
    timeout: Option<Duration>,
}

impl Shutdown {
    fn timeout(&self, ctx: &TaskContext) -> Duration {
        let of_kind = || match ctx.drivers.vms.get(self.vm) {
            Some(record) => machine::stop_timeout(&record),
            None => machine::STOP_TIMEOUT,
        };
        self.timeout.unwrap_or_else(of_kind)
    }

    fn until(&self, ctx: &TaskContext) -> Timestamp {
        ctx.started_at.saturating_add(self.timeout(ctx)).unwrap_or(Timestamp::MAX)
    }

    /// The VM is not to come back with the host, whatever happens next.
    async fn mark(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vm = self.vm;
        machine::usable(OPERATION, &machine::record(ctx, OPERATION, vm)?)?;
        let running = machine::runs(ctx, vm).await?;
        let until = iso(self.until(ctx));
        machine::keep_off(ctx, vm).await?;
        let mark = |record: &mut VmRecord| {
            record.properties.insert("autoboot".to_owned(), json!(false));
            record.stopping_until = running.then_some(until);
        };
        ctx.drivers.vms.update(vm, mark).await?;
        // Whom it hurried may have done its work.
        if running || self.idempotent || ctx.hurries {
            return Ok(());
        }
        let state = machine::state(ctx, vm);
        let text =
            format!("{OPERATION} error: VM {vm} is already not 'running' (currently: {state})");
        Err(refuse(Code::NotRunning, text))
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let how = Stop { force: self.force, until: self.until(ctx), at_most: self.timeout(ctx) };
        let stopped = stopping::stop(ctx, OPERATION, self.vm, how).await;
        if stopped.is_err() {
            // It is not stopping any more.
            ctx.drivers.vms.update(self.vm, |record| record.stopping_until = None).await?;
        }
        stopped
    }

    async fn commit(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vm = self.vm;
        ctx.drivers.vms.update(vm, |record| record.stopping_until = None).await?;
        machine::runs(ctx, vm).await?;
        ctx.finish_with(machine::result(ctx, vm));
        Ok(())
    }
}
