//! `server_factory_reset`: leaves a note that the node is to be wiped at its next boot, and
//! restarts it.

use std::time::Duration;

use muster_shared::wire::Code;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::server_reboot;
use super::server_setup::{self, SETUP_TASKS};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::host::HostAction;
use crate::drivers::host::reset::{Reset as Wanted, Wipe};
use crate::drivers::node::Document;

/// The kind; parameters `confirm` (the server's uuid), `wipe`, `reboot`.
#[derive(Debug)]
pub struct ServerFactoryReset;

impl Handler for ServerFactoryReset {
    fn kind(&self) -> Kind {
        Kind::mutate("server_factory_reset", SETUP_TASKS, Duration::from_secs(120))
    }

    fn example(&self) -> Params {
        Params::from_iter([("confirm".to_owned(), json!("the server's uuid"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let confirm = params.get("confirm").and_then(Value::as_str);
        let confirm = confirm
            .ok_or_else(|| TaskFailure::bad_param("confirm", "must be the server's uuid"))?
            .to_ascii_lowercase();
        let wipe = match params.get("wipe") {
            None | Some(Value::Null) => Wipe::default(),
            Some(wipe) => Wipe::deserialize(wipe)
                .map_err(|_| TaskFailure::bad_param("wipe", "must be labels, discard or none"))?,
        };
        let reboot = match params.get("reboot") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(reboot)) => *reboot,
            Some(_) => return Err(TaskFailure::bad_param("reboot", "must be true or false")),
        };
        let job = Reset { confirm, wipe, reboot };
        Ok(Plan::of(vec![Lock::ServerExclusive], job, STEPS).only_if(reboot, "reboot"))
    }
}

const STEPS: &[Row<Reset>] =
    steps![("check", 20, check), ("mark", 80, mark), ("reboot", 100, reboot)];

#[derive(Debug)]
struct Reset {
    confirm: String,
    wipe: Wipe,
    reboot: bool,
}

impl Reset {
    /// With the pool that the setup has made, if it has made one.
    async fn wanted(&self, ctx: &TaskContext) -> Result<Wanted, TaskFailure> {
        let setup = server_setup::record(ctx).await?.filter(|setup| setup.pool_begun);
        let pool = setup.and_then(|setup| setup.pool_plan);
        let (task, wipe) = (ctx.task_id.clone(), self.wipe);
        Ok(Wanted { task, wipe, pool, devices: None, done: false })
    }

    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let report = ctx.drivers.report.sysinfo_within(Duration::MAX).await;
        let uuid = report.sysinfo.get("UUID").and_then(Value::as_str).unwrap_or_default();
        if self.confirm != uuid {
            return Err(TaskFailure::bad_param("confirm", "is not this server's uuid"));
        }
        let action = HostAction::FactoryReset(Box::new(self.wanted(ctx).await?));
        ctx.drivers.host.ready(&action).await?;
        if self.reboot {
            ctx.drivers.host.ready(&HostAction::Reboot).await?;
        }
        let vms = ctx.drivers.vms.which(|_| true).len();
        if vms > 0 {
            let text = format!("the server has {vms} VMs, which a reset would destroy");
            return Err(TaskFailure::new(Code::VmsPresent, text));
        }
        Ok(())
    }

    /// From here on the reset happens at the next boot, whatever becomes of this task.
    async fn mark(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.finish_with(json!({ "setup_state": "factory_reset_pending" }));
        let noted = ctx.drivers.node.read(Document::FactoryReset).await?;
        let own = noted.filter(|noted| noted["task"] == json!(ctx.task_id));
        if own.is_some_and(|noted| noted["done"] == true) {
            // The node went down before the journal knew.
            return Ok(());
        }
        let wanted = self.wanted(ctx).await?;
        ctx.drivers.node.write(Document::FactoryReset, &json!(wanted)).await?;
        ctx.drivers.host.act(&HostAction::FactoryReset(Box::new(wanted))).await?;
        Ok(())
    }

    async fn reboot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        server_reboot::reboot(ctx).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_must_be_confirmed() {
        let plan = |params: Value| ServerFactoryReset.plan(params.as_object().unwrap());
        assert_eq!(plan(json!({ "confirm": "u" })).unwrap().steps.len(), 3);
        assert_eq!(plan(json!({ "confirm": "u", "reboot": false })).unwrap().steps.len(), 2);
        for bad in [json!({}), json!({ "confirm": 1 }), json!({ "confirm": "u", "wipe": "all" })] {
            assert_eq!(plan(bad).unwrap_err().code, "InvalidParameters");
        }
    }
}
