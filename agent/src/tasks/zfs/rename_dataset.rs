//! `zfs_rename_dataset`: gives a dataset another place in its pool.

use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{change, dataset, failing, guid, protection};
use crate::drivers::DriverError;
use crate::drivers::zfs::{Dataset, Name};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameters `dataset`, `newname`.
#[derive(Debug)]
pub struct ZfsRenameDataset;

impl Handler for ZfsRenameDataset {
    fn kind(&self) -> Kind {
        change("zfs_rename_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        let params = [("dataset", json!("zones/one")), ("newname", json!("zones/new"))];
        params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = Rename { from: dataset(params, "dataset")?, to: dataset(params, "newname")? };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Rename>] = steps![("look", 10, look), ("rename", 100, rename)];

/// What is to be renamed, for the step that does it.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    guid: String,
}

#[derive(Debug)]
struct Rename {
    from: Dataset,
    to: Dataset,
}

impl Rename {
    fn failing(&self) -> impl Fn(DriverError) -> TaskFailure {
        failing(&format!("rename ZFS dataset \"{}\" to \"{}\"", self.from, self.to))
    }

    fn missing(&self) -> TaskFailure {
        let text = format!("cannot open '{}': dataset does not exist", self.from);
        self.failing()(DriverError::refused(Code::DatasetNotFound, text))
    }

    async fn look(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let (from, to) = (Name::from(&self.from), Name::from(&self.to));
        protection::check(ctx, &[&from, &to]).await?;
        let guid = guid(ctx, &from).await.map_err(self.failing())?;
        let guid = guid.ok_or_else(|| self.missing())?;
        protection::check_below(ctx, &self.from).await?;
        ctx.note(&Seen { guid })
    }

    async fn rename(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let seen: Seen = ctx.notes()?;
        let at =
            async |dataset: &Dataset| guid(ctx, &Name::from(dataset)).await.map_err(self.failing());
        if at(&self.from).await?.as_ref() == Some(&seen.guid) {
            return ctx.drivers.zfs.zfs.rename(&self.from, &self.to).await.map_err(self.failing());
        }
        if at(&self.to).await?.as_ref() == Some(&seen.guid) {
            return Ok(());
        }
        Err(self.missing())
    }
}
