//! ZFS as the agent uses it: datasets, snapshots, properties, streams and pools, behind one trait.
//!
//! [`CommandZfs`] runs the programs `zfs` and `zpool`, and hands what has to be atomic to `muster-zfs`
//! where that is there (see `helper`); [`sim::SimZfs`] keeps a tree in memory. What the agent stores in
//! datasets is decided elsewhere (`storage`); here nothing has a meaning beyond ZFS's own.

mod arguments;
mod command;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod delegated;
mod error;
mod health;
mod helper;
mod name;
mod patience;
mod programs;
pub mod sim;
mod streams;
mod table;

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use muster_shared::wire::Code;
use serde::Serialize;
use tokio::io::AsyncRead;

pub use self::command::{CommandZfs, ZfsConfig};
pub use self::delegated::Delegated;
pub use self::health::{Leaf, PoolHealth, Scan, ScanState};
pub use self::name::{
    BadName, BadProperty, Dataset, MAX_NAME_BYTES, Name, Snapshot, check_property, check_setting,
    is_user_property,
};
pub(crate) use self::patience::patiently;
pub use self::streams::{SendStream, Sender};

use super::DriverError;

/// Names and values of properties, as the programs spell them.
pub type Properties = BTreeMap<String, String>;

/// The user property that holds the task which made a dataset or snapshot; set in the same operation
/// that makes it, so that after a crash a task knows what is its own.
pub const TASK_PROPERTY: &str = "muster:create_task";

/// Whether ZFS works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It does.
    Works {
        /// Release of OpenZFS, e.g. `zfs-2.1.11-1`; none when the programs do not tell.
        version: Option<String>,
        /// Atomic operations go through `libzfs_core`.
        atomic: bool,
    },
    /// It does not, for this reason.
    Missing(String),
}

impl Availability {
    /// Whether it works.
    #[must_use]
    pub fn works(&self) -> bool {
        matches!(self, Self::Works { .. })
    }
}

/// What a new dataset is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system; it is mounted if its properties say so.
    Filesystem,
    /// A volume. Its device and the name of that come some time later, see udev.
    Volume {
        /// Its size, bytes; a multiple of its block size.
        size_bytes: u64,
        /// No space is reserved for it.
        sparse: bool,
    },
}

/// What a question is about.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// This alone, or with `below` all that lies there too; `None`: everything on the host.
    pub root: Option<Name>,
    /// Also what lies below `root`.
    pub below: bool,
    /// File systems and volumes.
    pub datasets: bool,
    /// Snapshots.
    pub snapshots: bool,
    /// Properties to tell, in this order.
    pub properties: &'a [&'a str],
    /// Numbers as numbers, not as `1.2G`.
    pub parseable: bool,
    /// Only what was set at the dataset itself: neither inherited nor by default.
    pub only_local: bool,
}

impl<'a> Wanted<'a> {
    /// Of one dataset or snapshot, exact.
    #[must_use]
    pub fn of(name: impl Into<Name>, properties: &'a [&'a str]) -> Self {
        Self {
            root: Some(name.into()),
            datasets: true,
            snapshots: true,
            properties,
            parseable: true,
            ..Self::default()
        }
    }

    /// Of a dataset and all file systems and volumes below it, exact.
    #[must_use]
    pub fn below(root: &Dataset, properties: &'a [&'a str]) -> Self {
        Self { below: true, snapshots: false, ..Self::of(root, properties) }
    }

    /// Of all snapshots of a dataset and of those below it, exact.
    #[must_use]
    pub fn snapshots(root: &Dataset, properties: &'a [&'a str]) -> Self {
        Self { below: true, datasets: false, ..Self::of(root, properties) }
    }
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamOf {
    /// A snapshot, whole.
    Whole(Snapshot),
    /// What changed from one snapshot to a later one of the same dataset.
    Changes {
        /// The earlier one; only its name counts.
        since: Snapshot,
        /// The later one.
        until: Snapshot,
    },
    /// The rest of a stream that was cut, see `receive_resume_token`.
    Rest(String),
}

/// How a stream is received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// Properties of the received dataset.
    pub properties: Properties,
    /// Properties of the stream that are left out.
    pub without: Vec<String>,
    /// What is there is rolled back to its newest snapshot first.
    pub force: bool,
}

/// What is to become of a pool's scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrub {
    /// It begins, or goes on where it was paused.
    Start,
    /// It waits.
    Pause,
    /// It is given up.
    Stop,
}

/// The way an operation took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// `libzfs_core`, in one call.
    LibzfsCore,
    /// The programs.
    Command,
}

impl Way {
    /// As a label of a metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LibzfsCore => "libzfs_core",
            Self::Command => "command",
        }
    }
}

/// How often each operation was done, by the way that it took.
pub type Calls = BTreeMap<(&'static str, Way), u64>;

/// ZFS of this host.
///
/// Every operation is atomic: after an error nothing, or all of it, was done. Where the answer never
/// came (`Timeout`, or the programs were killed) either may be the case. None is idempotent: making
/// what is there is `DatasetExists`, removing what is not is `DatasetNotFound`.
///
/// # Errors
/// All: `DatasetNotFound`, `DatasetBusy`, `PoolUnavailable`, `PermissionDenied`, `NoSpace`, `Timeout`,
/// and `ZfsUnavailable` where ZFS does not work.
#[async_trait]
pub trait Zfs: fmt::Debug + Send + Sync + 'static {
    /// Whether it works here, as of the last operation.
    fn availability(&self) -> Availability;

    /// How often each operation was done since the agent started.
    fn calls(&self) -> Calls;

    /// Makes a dataset whose parent is there.
    ///
    /// # Errors
    /// `DatasetExists`, `InvalidProperty`.
    async fn create(
        &self,
        dataset: &Dataset,
        kind: Kind,
        properties: &Properties,
    ) -> Result<(), DriverError>;

    /// Makes a dataset of a snapshot in the same pool. A file system may not be mounted yet, see
    /// [`Self::mount`]. A volume may be larger than the snapshot (`volsize`).
    ///
    /// # Errors
    /// `DatasetExists`, `InvalidProperty`.
    async fn clone_snapshot(
        &self,
        from: &Snapshot,
        to: &Dataset,
        properties: &Properties,
    ) -> Result<(), DriverError>;

    /// Mounts a file system, unless its properties say otherwise or it is mounted; a volume is not.
    /// [Making](Self::create) one does this as well; it may be missing only after a crash in between.
    ///
    /// # Errors
    /// See the trait.
    async fn mount(&self, dataset: &Dataset) -> Result<(), DriverError>;

    /// Makes a clone independent of what it was cloned from: that becomes a clone of it.
    ///
    /// # Errors
    /// `DatasetExists`: both have a snapshot of the same name.
    async fn promote(&self, dataset: &Dataset) -> Result<(), DriverError>;

    /// Gives a dataset another place in its pool, with all below it.
    ///
    /// # Errors
    /// `DatasetExists`.
    async fn rename(&self, from: &Dataset, to: &Dataset) -> Result<(), DriverError>;

    /// Removes a dataset that has neither snapshots nor datasets below it. The space may come back
    /// later.
    ///
    /// # Errors
    /// `DatasetHasChildren`, `DatasetHasClones`.
    async fn destroy(&self, dataset: &Dataset) -> Result<(), DriverError>;

    /// Makes snapshots of several datasets of one pool at the same moment: all or none.
    ///
    /// # Errors
    /// `DatasetExists`: one of the names is taken.
    async fn snapshot(
        &self,
        snapshots: &[Snapshot],
        properties: &Properties,
    ) -> Result<(), DriverError>;

    /// Removes snapshots of one pool, all or none where `libzfs_core` is there, else those of each
    /// dataset in turn. Those that are missing are no error.
    ///
    /// # Errors
    /// `SnapshotHeld`, `DatasetHasClones`; neither with `deferred`: the snapshot then goes with its
    /// last hold or clone.
    async fn destroy_snapshots(
        &self,
        snapshots: &[Snapshot],
        deferred: bool,
    ) -> Result<(), DriverError>;

    /// Brings a dataset back to a snapshot. `newer` names all snapshots of it that are newer, which are
    /// destroyed first; one that is not named is not destroyed, and the dataset stays as it is. The two
    /// are one operation each: it may fail with the newer ones gone.
    ///
    /// # Errors
    /// `SnapshotNotFound`; `DatasetBusy`: there are newer ones; `SnapshotHeld`, `DatasetHasClones`.
    async fn rollback(&self, to: &Snapshot, newer: &[Snapshot]) -> Result<(), DriverError>;

    /// Keeps snapshots from being removed until `tag` is released again; one that is held so already
    /// is no error.
    ///
    /// # Errors
    /// `SnapshotNotFound`; those that are there may be held all the same.
    async fn hold(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError>;

    /// Ends what [`Self::hold`] began; one that is not held so is no error.
    ///
    /// # Errors
    /// See the trait.
    async fn release(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError>;

    /// Whether a dataset or snapshot is there.
    ///
    /// # Errors
    /// See the trait; that it can't be told is never `false`.
    async fn exists(&self, name: &Name) -> Result<bool, DriverError>;

    /// Whether a pool is imported.
    ///
    /// # Errors
    /// See the trait; that it can't be told is never `false`.
    async fn has_pool(&self, pool: &Dataset) -> Result<bool, DriverError> {
        self.exists(&Name::Dataset(pool.clone())).await
    }

    /// The size of a volume, or of a snapshot of one, bytes; `None` when there is none of this name.
    ///
    /// # Errors
    /// See the trait; that it can't be told is never `None`.
    async fn volume_bytes(&self, name: &Name) -> Result<Option<u64>, DriverError> {
        volume_bytes(self, name).await
    }

    /// Properties by dataset and snapshot. One that does not apply, or is not set, is left out where
    /// only local ones are wanted, and else has the value `-`.
    ///
    /// # Errors
    /// `InvalidProperty`: there is none of this name.
    async fn get(&self, wanted: &Wanted<'_>) -> Result<BTreeMap<String, Properties>, DriverError>;

    /// Datasets and snapshots in ZFS's order, each with the properties wanted.
    ///
    /// # Errors
    /// `InvalidProperty`: there is none of this name.
    async fn list(&self, wanted: &Wanted<'_>) -> Result<Vec<Properties>, DriverError>;

    /// Sets properties: all or none.
    ///
    /// # Errors
    /// `InvalidProperty`.
    async fn set(&self, name: &Name, properties: &Properties) -> Result<(), DriverError>;

    /// Unsets a property, so that it is inherited or has its default again.
    ///
    /// # Errors
    /// `InvalidProperty`.
    async fn inherit(&self, name: &Name, property: &str) -> Result<(), DriverError>;

    /// Begins to send. What was sent is good only if the end of it said so, see [`Sender::end`].
    ///
    /// # Errors
    /// See the trait. What goes wrong later is told at the end of the stream.
    async fn send(&self, what: &StreamOf) -> Result<SendStream, DriverError>;

    /// About how much a stream will have, bytes.
    ///
    /// # Errors
    /// See the trait.
    async fn send_size(&self, what: &StreamOf) -> Result<u64, DriverError>;

    /// Receives a stream as the snapshot `into`, to its end. What was received when it was cut short is
    /// kept, and the dataset's property `receive_resume_token` says how to go on.
    ///
    /// # Errors
    /// `DatasetExists`; the stream is damaged or was cut short.
    async fn receive(
        &self,
        into: &Snapshot,
        how: &Receive,
        from: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<(), DriverError>;

    /// Forgets what was received of a stream that was cut short.
    ///
    /// # Errors
    /// See the trait.
    async fn abort_receive(&self, dataset: &Dataset) -> Result<(), DriverError>;

    /// The pools, each with the properties wanted, e.g. `name`, `size`, `health`.
    ///
    /// # Errors
    /// See the trait.
    async fn pools(
        &self,
        properties: &[&str],
        parseable: bool,
    ) -> Result<Vec<Properties>, DriverError>;

    /// How the pools are.
    ///
    /// # Errors
    /// See the trait.
    async fn health(&self) -> Result<Vec<PoolHealth>, DriverError>;

    /// Differs when the pools should be asked for their [health](Zfs::health); asks no process, and does
    /// not hang with a pool.
    async fn signs(&self) -> String;

    /// Checks all that a pool holds, in the background.
    ///
    /// # Errors
    /// `DatasetBusy`: it is being checked already, or is not.
    async fn scrub(&self, pool: &Dataset, what: Scrub) -> Result<(), DriverError>;
}

/// [`Zfs::volume_bytes`], by its properties.
async fn volume_bytes(zfs: &(impl Zfs + ?Sized), name: &Name) -> Result<Option<u64>, DriverError> {
    match zfs.list(&Wanted::of(name.clone(), &["volsize"])).await {
        Ok(found) => Ok(found.first().and_then(|of| of.get("volsize")?.parse().ok())),
        Err(DriverError::Refused {
            code: Code::DatasetNotFound | Code::SnapshotNotFound, ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}
