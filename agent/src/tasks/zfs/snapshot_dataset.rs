//! `zfs_snapshot_dataset`: makes a snapshot.

use serde_json::json;

use super::{change, failing, flag, made, protection, snapshot, stamp};
use crate::drivers::zfs::{Name, Snapshot};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameters `dataset` (with `@` and the snapshot's name), `idempotent`.
#[derive(Debug)]
pub struct ZfsSnapshotDataset;

impl Handler for ZfsSnapshotDataset {
    fn kind(&self) -> Kind {
        change("zfs_snapshot_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        Params::from_iter([("dataset".to_owned(), json!("zones/one@new"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = Take {
            snapshot: snapshot(params, "dataset")?,
            idempotent: flag(params, "idempotent")?,
        };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Take>] = steps![("snapshot", 100, take)];

#[derive(Debug)]
struct Take {
    snapshot: Snapshot,
    idempotent: bool,
}

impl Take {
    async fn take(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let name = Name::from(&self.snapshot);
        protection::check(ctx, &[&name]).await?;
        let zfs = &ctx.drivers.zfs.zfs;
        let done = zfs.snapshot(std::slice::from_ref(&self.snapshot), &stamp(&ctx.task_id)).await;
        let attempt = format!("snapshot ZFS dataset \"{}\"", self.snapshot);
        made(ctx, &name, self.idempotent, done).await.map_err(failing(&attempt))
    }
}
