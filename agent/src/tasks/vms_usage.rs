//! `vms_usage`: what all VMs of the node use now.

use std::time::Duration;

use muster_shared::wire::MAX_INLINE_BYTES;
use muster_shared::wire::usage::{self, UsageAnswer};
use serde_json::json;

use super::machine::MACHINE_QUERY;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

/// Older figures are read anew: many may ask at the same time.
const MAX_AGE: Duration = Duration::from_millis(200);
/// Most figures in an answer, bytes: larger results are stored as files.
const MAX_BYTES: usize = MAX_INLINE_BYTES - 1024;

/// The kind; without parameters.
#[derive(Debug)]
pub struct VmsUsage;

impl Handler for VmsUsage {
    fn kind(&self) -> Kind {
        Kind::query("vms_usage", MACHINE_QUERY, Duration::from_secs(30))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), Look, STEPS))
    }
}

const STEPS: &[Row<Look>] = steps![("look", 100, look)];

#[derive(Debug)]
struct Look;

impl Look {
    async fn look(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let mut usage = (*ctx.drivers.report.usage().within(MAX_AGE).await).clone();
        usage.retain(|vm, _| ctx.drivers.vms.object(*vm, false).is_some());
        let left_out = usage::fit(&mut usage, MAX_BYTES);
        ctx.finish_with(json!(UsageAnswer { usage, left_out }));
        Ok(())
    }
}
