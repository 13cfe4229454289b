//! `zfs_list_datasets`, `zfs_list_snapshots`: what there is, in units for people unless `parseable`.

use serde_json::{Map, Value};

use super::{dataset, failing, finish, flag, question};
use crate::drivers::zfs::{Dataset, Name, Properties, Wanted};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The members, as the reference has them. The last one may hold anything.
const COLUMNS: &[&str] = &["name", "used", "avail", "refer", "type", "mountpoint"];

/// The kind of all datasets and snapshots; parameter `parseable`.
#[derive(Debug)]
pub struct ZfsListDatasets;

/// The kind of snapshots; parameters `dataset` (else all; also below it), `parseable`.
#[derive(Debug)]
pub struct ZfsListSnapshots;

impl Handler for ZfsListDatasets {
    fn kind(&self) -> Kind {
        question("zfs_list_datasets")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = List { root: None, datasets: true, parseable: flag(params, "parseable")? };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

impl Handler for ZfsListSnapshots {
    fn kind(&self) -> Kind {
        question("zfs_list_snapshots")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let root = match params.get("dataset") {
            None | Some(Value::Null) => None,
            Some(_) => Some(dataset(params, "dataset")?),
        };
        let job = List { root, datasets: false, parseable: flag(params, "parseable")? };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<List>] = steps![("list", 100, list)];

#[derive(Debug)]
struct List {
    root: Option<Dataset>,
    datasets: bool,
    parseable: bool,
}

impl List {
    async fn list(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let delegated = &ctx.drivers.zfs;
        let roots = match &self.root {
            Some(root) => {
                delegated.check(&Name::from(root))?;
                std::slice::from_ref(root)
            }
            None => &delegated.roots,
        };
        let mut all = Vec::new();
        for root in roots {
            let wanted = Wanted {
                datasets: self.datasets,
                parseable: self.parseable,
                ..Wanted::snapshots(root, COLUMNS)
            };
            let found = delegated.zfs.list(&wanted).await;
            let found = found.map_err(failing("list ZFS datasets"))?;
            all.extend(found.iter().map(|row| members(row, COLUMNS)));
        }
        finish(ctx, Value::Array(all))
    }
}

/// A row as an object, with its members in their order.
pub(super) fn members(row: &Properties, columns: &[&str]) -> Value {
    let member = |name: &&str| {
        let value = row.get(*name).map_or("-", String::as_str);
        ((*name).to_owned(), Value::from(value))
    };
    Value::Object(columns.iter().map(member).collect::<Map<_, _>>())
}
