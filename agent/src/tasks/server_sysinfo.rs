//! `server_sysinfo`: what the node is.

use std::time::Duration;

use serde_json::json;

use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

/// An older document is collected anew.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The kind; without parameters.
#[derive(Debug)]
pub struct ServerSysinfo;

impl Handler for ServerSysinfo {
    fn kind(&self) -> Kind {
        Kind::query("server_sysinfo", super::server_reboot::SERVER_TASKS, Duration::from_secs(60))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), Collect, STEPS))
    }
}

const STEPS: &[Row<Collect>] = steps![("collect", 100, collect)];

#[derive(Debug)]
struct Collect;

impl Collect {
    async fn collect(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let report = ctx.drivers.report.sysinfo_within(MAX_AGE).await;
        ctx.finish_with(json!({ "sysinfo": report.sysinfo }));
        Ok(())
    }
}
