//! `server_sysinfo`: what the node is.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::{Handler, Kind, Params, Plan, Step, TaskContext, TaskFailure};

/// An older document is collected anew.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The kind; without parameters.
#[derive(Debug)]
pub struct ServerSysinfo;

#[async_trait]
impl Handler for ServerSysinfo {
    fn kind(&self) -> Kind {
        Kind::query("server_sysinfo", super::server_reboot::SERVER_TASKS, Duration::from_secs(60))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan { locks: Vec::new(), steps: vec![Box::new(Collect)] })
    }
}

#[derive(Debug)]
struct Collect;

#[async_trait]
impl Step for Collect {
    fn name(&self) -> &'static str {
        "collect"
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let report = ctx.drivers.report.sysinfo_within(MAX_AGE).await;
        ctx.finish_with(json!({ "sysinfo": report.sysinfo }));
        Ok(())
    }

    fn progress(&self) -> u8 {
        100
    }
}
