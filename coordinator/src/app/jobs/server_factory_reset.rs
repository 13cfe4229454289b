//! `server-factory-reset`: wipes a server that has no VMs.

use futures_util::future::BoxFuture;
use muster_shared::api::Object;

use super::kind::{Kind, Step, StepContext, StepFailure, always};
use super::validate_params;

pub(super) static KIND: Kind = Kind {
    name: "server-factory-reset-1.0.0",
    chain: &[
        Step { name: "cnapi.validate_params", timeout_s: 10, when: always, run: validate_params },
        // The reference's 10 s are for a script that only leaves a note; these are the task's.
        Step {
            name: "cnapi.execute_factory_reset_script",
            timeout_s: 120,
            when: always,
            run: reset,
        },
    ],
    on_error: &[],
};

fn reset(ctx: &mut StepContext) -> BoxFuture<'_, Result<(), StepFailure>> {
    Box::pin(async move {
        let params = Object::from_iter([("confirm", ctx.server().to_string())]);
        ctx.task("server_factory_reset", params).await.map(drop)
    })
}
