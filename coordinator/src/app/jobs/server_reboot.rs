//! `server-reboot`: restarts a server, once its tasks have ended if asked.

use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_shared::api::Object;
use muster_shared::api::server::ServerRecord;

use super::kind::{Kind, Step, StepContext, StepFailure, always};
use super::record::JobRecord;
use super::validate_params;

/// Between two looks at whether the agent's tasks have ended.
const DRAIN_POLL: Duration = Duration::from_secs(1);

pub(super) static KIND: Kind = Kind {
    name: "server-reboot-1.2.0",
    chain: &[
        Step { name: "cnapi.validate_params", timeout_s: 10, when: always, run: validate_params },
        Step { name: "cnapi.pause_cn_agent_task_handler", timeout_s: 30, when: drains, run: drain },
        Step {
            name: "cnapi.wait_for_cn_agent_drained",
            timeout_s: 900,
            when: drains,
            run: wait_drained,
        },
        // Before the reboot itself: a fast one could be over before the mark.
        Step { name: "cnapi.mark_server_as_rebooting", timeout_s: 10, when: always, run: mark },
        // The reference's 10 s are for a POST; these cover the task's own deadline.
        Step { name: "cnapi.send_reboot_message", timeout_s: 60, when: always, run: reboot },
    ],
    on_error: &[
        Step { name: "cnapi.unmark_server_as_rebooting", timeout_s: 10, when: always, run: unmark },
        Step {
            name: "cnapi.resume_cn_agent_task_handler",
            timeout_s: 30,
            when: drains,
            run: resume,
        },
    ],
};

fn drains(job: &JobRecord) -> bool {
    job.params.drain == Some(true)
}

fn drain(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        ctx.connected().await;
        let token = muster_shared::ids::TaskId::from(ctx.job.uuid);
        Ok(ctx.jobs.nodes.drain(ctx.server(), "a reboot is to come", token).await?)
    })
}

fn wait_drained(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let drained = || {
            let said = |entry: &crate::app::fleet::Entry| entry.remarks["intake"] == "drained";
            ctx.jobs.fleet.with(ctx.server(), said).unwrap_or(false)
        };
        while !drained() {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        Ok(())
    })
}

fn mark(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let rebooting = |record: &mut ServerRecord| {
            record.transitional_status = Some("rebooting".to_owned());
        };
        ctx.server_update(rebooting).await
    })
}

pub(super) fn reboot(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move { ctx.task("server_reboot", Object::new()).await.map(drop) })
}

fn unmark(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move { ctx.server_update(|record| record.transitional_status = None).await })
}

fn resume(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        ctx.connected().await;
        Ok(ctx.jobs.nodes.undrain(ctx.server(), &ctx.job.uuid.into()).await?)
    })
}
