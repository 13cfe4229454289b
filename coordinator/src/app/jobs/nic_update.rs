//! `server-update-nics`: changes which NIC tags a server's interfaces carry.

use futures_util::future::BoxFuture;
use muster_shared::api::Object;

use super::kind::{Kind, Step, StepContext, StepFailure, always};
use super::{nics, validate_params};

pub(super) static KIND: Kind = Kind {
    name: "server-update-nics-1.0.1",
    chain: &[
        Step { name: "cnapi.validate_params", timeout_s: 10, when: always, run: validate_params },
        Step { name: "cnapi.update_nics", timeout_s: 120, when: always, run: nics::update },
        Step { name: "cnapi.refresh_server_sysinfo", timeout_s: 1000, when: always, run: refresh },
    ],
    on_error: &[],
};

fn refresh(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        ctx.connected().await;
        let (server, caller) = (ctx.server(), ctx.caller());
        let sysinfo = ctx.jobs.nodes.gather_sysinfo(server, Object::new(), &caller).await?;
        Ok(ctx.jobs.reports.register(server, sysinfo).await?)
    })
}
