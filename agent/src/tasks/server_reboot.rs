//! `server_reboot`: restarts the node, if host actions are enabled.
//!
//! Ends before the reboot happens. The node is never rebooted twice: a task that finds itself in
//! another boot than it started in has been carried out. An agent that goes down between asking
//! for the reboot and its journal asks again in the same boot, for the same reboot.

use std::time::Duration;

use async_trait::async_trait;

use super::{Handler, Kind, Lock, Params, Plan, Queue, Step, TaskContext, TaskFailure};
use crate::drivers::host::HostAction;

/// The queue of what concerns the server as a whole.
pub(super) const SERVER_TASKS: Queue =
    Queue { name: "server_tasks", max_concurrent: 8, max_wait: Duration::from_secs(60) };

/// The kind; without parameters. Draining the node first is the caller's business.
#[derive(Debug)]
pub struct ServerReboot;

#[async_trait]
impl Handler for ServerReboot {
    fn kind(&self) -> Kind {
        Kind::mutate("server_reboot", SERVER_TASKS, Duration::from_secs(60))
    }

    fn follows_drain(&self) -> bool {
        true
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan { locks: vec![Lock::ServerExclusive], steps: vec![Box::new(Reboot)] })
    }
}

/// Restarts the node, unless it was restarted since the task began.
#[derive(Debug)]
pub(super) struct Reboot;

#[async_trait]
impl Step for Reboot {
    fn name(&self) -> &'static str {
        "reboot"
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.rebooted {
            ctx.drivers.host.act(&HostAction::Reboot).await?;
        }
        Ok(())
    }

    fn progress(&self) -> u8 {
        100
    }
}
