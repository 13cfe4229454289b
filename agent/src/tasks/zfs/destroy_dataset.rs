//! `zfs_destroy_dataset`: removes a dataset that has nothing below it, or a snapshot.

use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{change, failing, flag, guid, named, protection};
use crate::drivers::DriverError;
use crate::drivers::zfs::Name;
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameters `dataset`, `idempotent`.
#[derive(Debug)]
pub struct ZfsDestroyDataset;

impl Handler for ZfsDestroyDataset {
    fn kind(&self) -> Kind {
        change("zfs_destroy_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        Params::from_iter([("dataset".to_owned(), json!("zones/empty"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job =
            Destroy { name: named(params, "dataset")?, idempotent: flag(params, "idempotent")? };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Destroy>] = steps![("look", 10, look), ("destroy", 100, destroy)];

/// What is to be destroyed, for the step that does it.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    /// Its number; none when there is nothing to be destroyed.
    guid: Option<String>,
}

#[derive(Debug)]
struct Destroy {
    name: Name,
    idempotent: bool,
}

impl Destroy {
    fn failing(&self) -> impl Fn(DriverError) -> TaskFailure {
        failing(&format!("destroy ZFS dataset \"{}\"", self.name))
    }

    async fn look(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        protection::check(ctx, &[&self.name]).await?;
        let guid = guid(ctx, &self.name).await.map_err(self.failing())?;
        if guid.is_none() && !self.idempotent {
            let text = format!("cannot open '{}': dataset does not exist", self.name);
            return Err(self.failing()(DriverError::refused(Code::DatasetNotFound, text)));
        }
        ctx.note(&Seen { guid })
    }

    async fn destroy(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let seen: Seen = ctx.notes()?;
        let now = guid(ctx, &self.name).await.map_err(self.failing())?;
        if seen.guid.is_none() || now != seen.guid {
            // It is gone, also where another one has its name by now.
            return Ok(());
        }
        let zfs = &ctx.drivers.zfs.zfs;
        let done = match &self.name {
            Name::Dataset(dataset) => zfs.destroy(dataset).await,
            Name::Snapshot(snapshot) => {
                zfs.destroy_snapshots(std::slice::from_ref(snapshot), false).await
            }
        };
        match done {
            Err(DriverError::Refused { code: Code::DatasetNotFound, .. }) => Ok(()),
            done => done.map_err(self.failing()),
        }
    }
}
