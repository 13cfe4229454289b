//! `zfs_list_pools`: the pools of the host, in units for people unless `parseable`.

use serde_json::Value;

use super::list_datasets::members;
use super::{failing, finish, flag, question};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The members, as the reference has them.
const COLUMNS: &[&str] = &["name", "size", "allocated", "free", "cap", "health", "altroot"];

/// The kind; parameter `parseable`.
#[derive(Debug)]
pub struct ZfsListPools;

impl Handler for ZfsListPools {
    fn kind(&self) -> Kind {
        question("zfs_list_pools")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), List { parseable: flag(params, "parseable")? }, STEPS))
    }
}

const STEPS: &[Row<List>] = steps![("list", 100, list)];

#[derive(Debug)]
struct List {
    parseable: bool,
}

impl List {
    async fn list(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let found = ctx.drivers.zfs.zfs.pools(COLUMNS, self.parseable).await;
        let found = found.map_err(failing("list ZFS pools"))?;
        finish(ctx, Value::Array(found.iter().map(|row| members(row, COLUMNS)).collect()))
    }
}
