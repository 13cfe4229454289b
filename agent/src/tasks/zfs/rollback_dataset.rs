//! `zfs_rollback_dataset`: brings a dataset back to a snapshot and destroys the newer ones.

use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{change, failing, guid, protection, snapshot};
use crate::drivers::DriverError;
use crate::drivers::zfs::{Name, Snapshot, Wanted};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// The kind; parameter `dataset`, with `@` and the snapshot's name.
#[derive(Debug)]
pub struct ZfsRollbackDataset;

impl Handler for ZfsRollbackDataset {
    fn kind(&self) -> Kind {
        change("zfs_rollback_dataset")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        Params::from_iter([("dataset".to_owned(), json!("zones/one@before"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let job = Rollback { to: snapshot(params, "dataset")? };
        Ok(Plan::of(Vec::new(), job, STEPS))
    }
}

const STEPS: &[Row<Rollback>] = steps![("look", 10, look), ("rollback", 100, roll_back)];

/// What there was, for the step that changes it.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    guid: String,
    /// Names of the snapshots that are destroyed, oldest first.
    newer: Vec<String>,
}

#[derive(Debug)]
struct Rollback {
    to: Snapshot,
}

impl Rollback {
    fn failing(&self) -> impl Fn(DriverError) -> TaskFailure {
        failing(&format!("rollback ZFS dataset \"{}\"", self.to))
    }

    fn missing(&self) -> TaskFailure {
        let text = format!("could not find any snapshots: {}", self.to);
        self.failing()(DriverError::refused(Code::SnapshotNotFound, text))
    }

    async fn look(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let name = Name::from(&self.to);
        protection::check(ctx, &[&name]).await?;
        let guid = guid(ctx, &name).await.map_err(self.failing())?;
        let guid = guid.ok_or_else(|| self.missing())?;
        let newer = self.newer(ctx).await.map_err(self.failing())?;
        ctx.note(&Seen { guid, newer })
    }

    /// The snapshots of the same dataset that were taken later.
    async fn newer(&self, ctx: &TaskContext) -> Result<Vec<String>, DriverError> {
        let wanted = Wanted::snapshots(self.to.dataset(), &["createtxg", "name"]);
        let mut found = Vec::new();
        for row in ctx.drivers.zfs.zfs.list(&wanted).await? {
            let (Some(at), Some(name)) = (row.get("createtxg"), row.get("name")) else { continue };
            let at: u64 =
                at.parse().map_err(|error| DriverError::failed(format!("read {name}"), error))?;
            // Those of what lies below are told as well.
            let of = name.split_once('@');
            if let Some((_, name)) = of.filter(|(of, _)| *of == self.to.dataset().as_str()) {
                found.push((at, name.to_owned()));
            }
        }
        let own = found.iter().find(|(_, name)| name == self.to.name()).map(|(at, _)| *at);
        found.retain(|(at, name)| own.is_some_and(|own| *at > own) && name != self.to.name());
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    async fn roll_back(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let seen: Seen = ctx.notes()?;
        let now = guid(ctx, &Name::from(&self.to)).await.map_err(self.failing())?;
        if now.as_ref() != Some(&seen.guid) {
            return Err(self.missing());
        }
        let newer: Result<Vec<_>, _> =
            seen.newer.iter().map(|name| self.to.dataset().at(name)).collect();
        let newer = newer.map_err(|bad| self.failing()(bad.into()))?;
        ctx.drivers.zfs.zfs.rollback(&self.to, &newer).await.map_err(self.failing())?;
        let names: Vec<_> = newer.iter().map(Snapshot::to_string).collect();
        ctx.finish_with(json!({ "destroyed_snapshots": names }));
        Ok(())
    }
}
