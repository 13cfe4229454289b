//! `server-setup`: makes a new node ready for VMs.

use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::job::SetupParams;
use muster_shared::api::server::ServerRecord;

use super::kind::{Kind, Step, StepContext, StepFailure, always};
use super::record::JobRecord;
use super::{nics, server_reboot, validate_params};

/// Between two looks at whether the server is back.
const REBOOT_POLL: Duration = Duration::from_secs(5);

pub(super) static KIND: Kind = Kind {
    name: "server-setup-1.1.0",
    chain: &[
        Step { name: "cnapi.validate_params", timeout_s: 10, when: always, run: validate_params },
        Step { name: "cnapi.mark_as_setting_up", timeout_s: 10, when: always, run: mark },
        Step { name: "cnapi.execute_joysetup_script", timeout_s: 3600, when: always, run: set_up },
        Step { name: "cnapi.update_nics", timeout_s: 3600, when: has_nics, run: nics::update },
        Step {
            name: "cnapi.reboot_server",
            timeout_s: 600,
            when: reboots,
            run: server_reboot::reboot,
        },
        Step { name: "cnapi.wait_for_reboot", timeout_s: 1200, when: reboots, run: wait_reboot },
        Step { name: "cnapi.mark_server_as_setup", timeout_s: 1000, when: always, run: done },
    ],
    on_error: &[Step { name: "cnapi.mark_setup_failed", timeout_s: 10, when: always, run: failed }],
};

fn has_nics(job: &JobRecord) -> bool {
    job.params.nics.as_ref().is_some_and(|nics| !nics.is_empty())
}

/// Only where the platform has to take over what was set up; Linux goes on as it is.
fn reboots(job: &JobRecord) -> bool {
    job.params.setup.reboot == Some(true)
}

fn mark(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move { ctx.server_update(|record| record.setting_up = Some(true)).await })
}

fn set_up(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        // The job has steps of its own for the restart.
        let params = SetupParams { reboot: Some(false), ..ctx.job.params.setup.clone() };
        ctx.task("server_setup", Object::of(&params)).await.map(drop)
    })
}

fn wait_reboot(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let time = |text: &str| text.parse::<Timestamp>().ok();
        let started = ctx.job.started.as_deref().and_then(time);
        let back = |entry: &crate::app::fleet::Entry| {
            let record = entry.record.as_ref();
            let booted = record.and_then(|r| r.value.last_boot.as_deref().and_then(time));
            entry.stored_status() == "running" && booted > started
        };
        while !ctx.jobs.fleet.with(ctx.server(), back).unwrap_or(false) {
            tokio::time::sleep(REBOOT_POLL).await;
        }
        Ok(())
    })
}

fn done(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let set_up = |record: &mut ServerRecord| {
            record.setup = true;
            record.setting_up = Some(false);
        };
        ctx.server_update(set_up).await
    })
}

fn failed(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move { ctx.server_update(|record| record.setting_up = Some(false)).await })
}
