//! One pool, in the words of this driver: datasets by name, with the few properties that it looks at.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;

use super::fill::{FILLING, SNAPDEV};
use super::stamp::{IMAGE, TASK};
use crate::drivers::DriverError;
use crate::drivers::storage::store_full;
use crate::drivers::zfs::{Dataset, Kind, Properties, Snapshot, Wanted, Zfs, patiently};

/// What is asked of each dataset and snapshot.
const ASKED: [&str; 18] = [
    "name",
    "type",
    "used",
    "available",
    "volsize",
    "refreservation",
    "quota",
    "recordsize",
    "compression",
    "origin",
    "clones",
    "createtxg",
    "guid",
    "mountpoint",
    SNAPDEV,
    FILLING,
    TASK,
    IMAGE,
];
/// Said of what does not apply.
const NOTHING: &str = "-";
/// A pool.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    name: String,
    zfs: Arc<dyn Zfs>,
}

/// A dataset or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    values: BTreeMap<String, String>,
}

impl Row {
    /// What ZFS says of it, if it says something.
    pub(crate) fn text(&self, property: &str) -> Option<&str> {
        self.values.get(property).map(String::as_str).filter(|value| *value != NOTHING)
    }

    /// A figure, bytes or a count.
    pub(crate) fn number(&self, property: &str) -> Option<u64> {
        self.text(property)?.parse().ok()
    }

    pub(crate) fn is_volume(&self) -> bool {
        self.text("type") == Some("volume")
    }

    pub(crate) fn is_filesystem(&self) -> bool {
        self.text("type") == Some("filesystem")
    }

    /// The image that its stamp names.
    pub(crate) fn image(&self) -> Option<ImageUuid> {
        self.text(IMAGE)?.parse().ok()
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        self.text("type") == Some("snapshot")
    }
}

impl Pool {
    pub(crate) fn new(name: &str, zfs: Arc<dyn Zfs>) -> Self {
        Self { name: name.to_owned(), zfs }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A dataset with all below it, and all their snapshots; none is nothing.
    ///
    /// # Errors
    /// `DatasetNotFound`: the pool itself is not there, and who knows what it holds.
    pub(crate) async fn rows(&self, root: &str) -> Result<Vec<Row>, DriverError> {
        self.ask(root, true).await
    }

    /// A dataset by itself.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(crate) async fn row(&self, name: &str) -> Result<Option<Row>, DriverError> {
        Ok(self.ask(name, false).await?.pop())
    }

    async fn ask(&self, root: &str, below: bool) -> Result<Vec<Row>, DriverError> {
        match self.list(root, below).await {
            Err(DriverError::Refused { code: Code::DatasetNotFound, .. }) if root != self.name => {
                self.check_there().await.map(|()| Vec::new())
            }
            told => told,
        }
    }

    /// # Errors
    /// `DatasetNotFound`: the pool itself is not there.
    async fn check_there(&self) -> Result<(), DriverError> {
        match self.zfs.has_pool(&self.name.parse()?).await? {
            true => Ok(()),
            false => self.list(&self.name, false).await.map(|_| ()),
        }
    }

    /// Whether a dataset or snapshot is there.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(crate) async fn exists(&self, name: &str) -> Result<bool, DriverError> {
        if self.zfs.exists(&name.parse()?).await? {
            return Ok(true);
        }
        self.check_there().await.map(|()| false)
    }

    /// The size of a volume, or of a snapshot of one, bytes; `None` when there is none of this name.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(crate) async fn volume_bytes(&self, name: &str) -> Result<Option<u64>, DriverError> {
        match self.zfs.volume_bytes(&name.parse()?).await? {
            None => self.check_there().await.map(|()| None),
            told => Ok(told),
        }
    }

    async fn list(&self, root: &str, below: bool) -> Result<Vec<Row>, DriverError> {
        let root: Dataset = root.parse()?;
        let mut wanted = Wanted::below(&root, &ASKED);
        (wanted.below, wanted.snapshots) = (below, below);
        let row = |values: Properties| {
            let name = values.get("name")?.clone();
            Some(Row { name, values })
        };
        Ok(self.zfs.list(&wanted).await?.into_iter().filter_map(row).collect())
    }

    /// All that was set at a dataset itself.
    pub(crate) async fn local(&self, name: &str) -> Result<Properties, DriverError> {
        let dataset: Dataset = name.parse()?;
        let wanted = Wanted { only_local: true, ..Wanted::of(&dataset, &[]) };
        Ok(self.zfs.get(&wanted).await?.remove(name).unwrap_or_default())
    }

    pub(crate) async fn create_filesystem(
        &self,
        name: &str,
        properties: Properties,
    ) -> Result<(), DriverError> {
        self.zfs.create(&name.parse()?, Kind::Filesystem, &properties).await.map_err(full)
    }

    /// Nothing is set aside for it but what its properties say.
    pub(crate) async fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        properties: Properties,
    ) -> Result<(), DriverError> {
        let kind = Kind::Volume { size_bytes, sparse: true };
        self.zfs.create(&name.parse()?, kind, &properties).await.map_err(full)
    }

    pub(crate) async fn clone_of(
        &self,
        snapshot: &str,
        name: &str,
        properties: Properties,
    ) -> Result<(), DriverError> {
        let (snapshot, name) = (snapshot.parse()?, name.parse()?);
        self.zfs.clone_snapshot(&snapshot, &name, &properties).await.map_err(full)
    }

    pub(crate) async fn set(&self, name: &str, properties: Properties) -> Result<(), DriverError> {
        if properties.is_empty() {
            return Ok(());
        }
        self.zfs.set(&name.parse()?, &properties).await.map_err(full)
    }

    /// Unsets a property.
    pub(crate) async fn inherit(&self, name: &str, property: &str) -> Result<(), DriverError> {
        self.zfs.inherit(&name.parse()?, property).await
    }

    /// Of all of them at one moment.
    pub(crate) async fn snapshot(&self, names: &[String]) -> Result<(), DriverError> {
        self.zfs.snapshot(&snapshots(names)?, &Properties::new()).await.map_err(full)
    }

    /// Those that are missing are no error.
    ///
    /// # Errors
    /// `DatasetBusy`: something still has one of their devices open.
    pub(crate) async fn destroy_snapshots(&self, names: &[String]) -> Result<(), DriverError> {
        if names.is_empty() {
            return Ok(());
        }
        let snapshots = snapshots(names)?;
        let destroyed = patiently(|| self.zfs.destroy_snapshots(&snapshots, false)).await;
        match destroyed {
            Err(DriverError::Refused { code: Code::SnapshotNotFound, .. }) => Ok(()),
            done => done,
        }
    }

    pub(crate) async fn rename(&self, from: &str, to: &str) -> Result<(), DriverError> {
        self.zfs.rename(&from.parse()?, &to.parse()?).await
    }

    pub(crate) async fn destroy(&self, name: &str) -> Result<(), DriverError> {
        self.zfs.destroy(&name.parse()?).await
    }

    /// Destroys a volume or file system with its snapshots; none is no error.
    ///
    /// # Errors
    /// `DatasetBusy`: something still has it open; the snapshots are gone then.
    pub(crate) async fn remove(&self, volume: &str) -> Result<(), DriverError> {
        let rows = self.rows(volume).await?;
        if !rows.iter().any(|row| row.name == volume) {
            return Ok(());
        }
        let snapshots = rows.iter().filter(|row| row.is_snapshot()).map(|row| row.name.clone());
        self.destroy_snapshots(&snapshots.collect::<Vec<_>>()).await?;
        match patiently(|| self.destroy(volume)).await {
            Err(DriverError::Refused { code: Code::DatasetNotFound, .. }) => Ok(()),
            done => done,
        }
    }

    /// Brings a volume back to a snapshot; those that are newer, which are all named, are destroyed.
    pub(crate) async fn roll_back(
        &self,
        snapshot: &str,
        newer: &[String],
    ) -> Result<(), DriverError> {
        self.zfs.rollback(&snapshot.parse()?, &snapshots(newer)?).await
    }

    /// Whether a file system is mounted, and where.
    pub(crate) async fn mounted_at(&self, name: &str) -> Result<Option<String>, DriverError> {
        let dataset: Dataset = name.parse()?;
        let told =
            self.zfs.list(&Wanted::below(&dataset, &["name", "mounted", "mountpoint"])).await?;
        let row = told.into_iter().find(|row| row.get("name").is_some_and(|told| told == name));
        let mounted = row.filter(|row| row.get("mounted").is_some_and(|told| told == "yes"));
        Ok(mounted.and_then(|mut row| row.remove("mountpoint")))
    }
}

fn snapshots(names: &[String]) -> Result<Vec<Snapshot>, DriverError> {
    names.iter().map(|name| name.parse().map_err(DriverError::from)).collect()
}

/// In the words of storage.
fn full(error: DriverError) -> DriverError {
    match error {
        DriverError::Refused { code: Code::NoSpace, message, .. } => store_full(message),
        other => other,
    }
}
