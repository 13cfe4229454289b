//! `zfs_create_dataset`: makes a file system.

use serde_json::json;

use super::{change, dataset, failing, flag, made, protection, stamp};
use crate::drivers::zfs::{self, Dataset, Name};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameters `dataset`, `idempotent`.
#[derive(Debug)]
pub struct ZfsCreateDataset;

impl Handler for ZfsCreateDataset {
    fn kind(&self) -> Kind {
        change("zfs_create_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        Params::from_iter([("dataset".to_owned(), json!("zones/new"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = Create {
            dataset: dataset(params, "dataset")?,
            idempotent: flag(params, "idempotent")?,
        };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Create>] = steps![("create", 100, create)];

#[derive(Debug)]
struct Create {
    dataset: Dataset,
    idempotent: bool,
}

impl Create {
    async fn create(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let (zfs, name) = (&ctx.drivers.zfs.zfs, Name::from(&self.dataset));
        protection::check(ctx, &[&name]).await?;
        let done = zfs.create(&self.dataset, zfs::Kind::Filesystem, &stamp(&ctx.task_id)).await;
        let attempt = format!("create ZFS dataset \"{}\"", self.dataset);
        made(ctx, &name, self.idempotent, done).await.map_err(failing(&attempt))
    }
}
