//! `server_orphans`: what lies on the host under a VM's name without a record.

use std::time::Duration;

use muster_shared::api::orphan::Orphans;
use serde_json::json;

use super::machine::MACHINE_QUERY;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::node::orphans;

/// The kind; no parameters. Its result: [`Orphans`].
#[derive(Debug)]
pub struct ServerOrphans;

impl Handler for ServerOrphans {
    fn kind(&self) -> Kind {
        Kind::query("server_orphans", MACHINE_QUERY, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        Params::new()
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), List, STEPS))
    }
}

const STEPS: &[Row<List>] = steps![("list", 100, list)];

#[derive(Debug)]
struct List;

impl List {
    async fn list(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let found = orphans::find(&ctx.drivers).await?;
        let orphans = found.iter().map(|(vm, orphan)| orphan.describe(*vm)).collect();
        ctx.finish_with(json!(Orphans { orphans }));
        Ok(())
    }
}
