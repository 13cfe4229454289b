//! `server_orphans`: what lies on the host under a VM's name without a record.

use std::time::Duration;

use async_trait::async_trait;
use muster_shared::api::orphan::Orphans;
use serde_json::json;

use super::machine::MACHINE_QUERY;
use super::{Handler, Kind, Params, Plan, Step, TaskContext, TaskFailure};
use crate::vms::orphans;

/// The kind; no parameters. Its result: [`Orphans`].
#[derive(Debug)]
pub struct ServerOrphans;

#[async_trait]
impl Handler for ServerOrphans {
    fn kind(&self) -> Kind {
        Kind::query("server_orphans", MACHINE_QUERY, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        Params::new()
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan { locks: Vec::new(), steps: vec![Box::new(List)] })
    }
}

#[derive(Debug)]
struct List;

#[async_trait]
impl Step for List {
    fn name(&self) -> &'static str {
        "list"
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let found = orphans::find(&ctx.drivers).await?;
        let orphans = found.iter().map(|(vm, orphan)| orphan.told(*vm)).collect();
        ctx.finish_with(json!(Orphans { orphans }));
        Ok(())
    }

    fn progress(&self) -> u8 {
        100
    }
}
