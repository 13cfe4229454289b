//! `server_reboot`: restarts the node, if host actions are enabled.
//!
//! Ends before the reboot happens. The node is never rebooted twice: a task that finds itself in
//! another boot than it started in has been carried out. An agent that goes down between asking
//! for the reboot and its journal asks again in the same boot, for the same reboot.

use std::time::Duration;

use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::host::HostAction;

/// The queue of what concerns the server as a whole.
pub(super) const SERVER_TASKS: Queue =
    Queue { name: "server_tasks", max_concurrent: 8, max_wait: Duration::from_secs(60) };

/// The kind; without parameters. Draining the node first is the caller's business.
#[derive(Debug)]
pub struct ServerReboot;

impl Handler for ServerReboot {
    fn kind(&self) -> Kind {
        Kind::mutate("server_reboot", SERVER_TASKS, Duration::from_secs(60))
    }

    fn follows_drain(&self) -> bool {
        true
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(vec![Lock::ServerExclusive], Reboot, STEPS))
    }
}

const STEPS: &[Row<Reboot>] = steps![("reboot", 100, reboot)];

#[derive(Debug)]
struct Reboot;

impl Reboot {
    async fn reboot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        reboot(ctx).await
    }
}

/// Restarts the node, unless it was restarted since the task began.
pub(super) async fn reboot(ctx: &TaskContext) -> Result<(), TaskFailure> {
    if !ctx.rebooted {
        ctx.drivers.host.act(&HostAction::Reboot).await?;
    }
    Ok(())
}
