//! `zfs_clone_dataset`: makes a dataset of a snapshot.

use serde_json::json;

use super::{change, dataset, failing, flag, made, protection, snapshot, stamp};
use crate::drivers::zfs::{Dataset, Name, Snapshot};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameters `snapshot`, `dataset`, `idempotent`.
#[derive(Debug)]
pub struct ZfsCloneDataset;

impl Handler for ZfsCloneDataset {
    fn kind(&self) -> Kind {
        change("zfs_clone_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        let params = [("snapshot", json!("zones/one@before")), ("dataset", json!("zones/new"))];
        params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = Clone {
            from: snapshot(params, "snapshot")?,
            to: dataset(params, "dataset")?,
            idempotent: flag(params, "idempotent")?,
        };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Clone>] = steps![("clone", 100, make)];

#[derive(Debug)]
struct Clone {
    from: Snapshot,
    to: Dataset,
    idempotent: bool,
}

impl Clone {
    async fn make(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let (from, to) = (Name::from(&self.from), Name::from(&self.to));
        // A clone keeps what it is of from being destroyed.
        protection::check(ctx, &[&from, &to]).await?;
        let zfs = &ctx.drivers.zfs.zfs;
        let cloned = zfs.clone_snapshot(&self.from, &self.to, &stamp(&ctx.task_id)).await;
        let done = match cloned {
            Ok(()) => zfs.mount(&self.to).await,
            refused => refused,
        };
        let attempt = format!("clone ZFS snapshot \"{}\" into dataset \"{}\"", self.from, self.to);
        made(ctx, &to, self.idempotent, done).await.map_err(failing(&attempt))
    }
}
