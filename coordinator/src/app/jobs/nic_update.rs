//! `server-update-nics`: changes which NIC tags a server's interfaces carry.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::kind::{Kind, Step, StepContext, StepFailure, always};
use super::{nics, validate_params};
use crate::agents::Query;

/// Longest wait for the agent's new sysinfo.
const SYSINFO_TIMEOUT: Duration = Duration::from_secs(60);

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
        let server = ctx.server();
        let caller = ctx.caller();
        let query = Query {
            server,
            task: "server_sysinfo",
            label: None,
            params: Map::new(),
            req_id: &caller.req_id,
            timeout: SYSINFO_TIMEOUT,
        };
        let result = ctx.jobs.nodes.query(&caller, query).await?;
        let Some(sysinfo) = result.get("sysinfo").and_then(Value::as_object) else {
            return Err(StepFailure::fatal("Unable to gather latest sysinfo"));
        };
        Ok(ctx.jobs.reports.register(server, sysinfo.clone()).await?)
    })
}
