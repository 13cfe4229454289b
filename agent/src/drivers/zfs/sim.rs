//! Simulated ZFS: a tree of datasets in memory that outlives the simulated agent.

mod content;
mod stream;
mod tree;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use self::tree::{Tree, check_known, refuse};
use super::{
    Availability, Calls, Dataset, Kind, Leaf, Name, PoolHealth, Properties, Receive, Scrub,
    SendStream, Snapshot, StreamOf, Wanted, Way, Zfs, check_property, check_setting,
};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// What is said of one dataset alone.
const LIMITS: [&str; 2] = ["quota", "refquota"];
/// Size of a pool unless a test says otherwise, bytes.
const POOL_BYTES: u64 = 64 << 30;

/// The pools of a simulated host; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SimPools(Arc<Mutex<Tree>>);

impl SimPools {
    /// A host with one pool.
    #[must_use]
    pub fn new(pool: &str) -> Self {
        let pools = Self::default();
        pools.add(pool, POOL_BYTES);
        pools
    }

    /// Adds a pool of this size, bytes.
    pub fn add(&self, pool: &str, size_bytes: u64) {
        self.0.lock().add_pool(pool, size_bytes);
    }

    /// Makes a file system or a snapshot that nobody asked for.
    ///
    /// # Errors
    /// As [`Zfs::create`] and [`Zfs::snapshot`].
    pub fn make(&self, name: &Name) -> Result<(), DriverError> {
        let (mut tree, none) = (self.0.lock(), Properties::new());
        match name {
            Name::Dataset(dataset) => tree.create(dataset, Kind::Filesystem, &none),
            Name::Snapshot(snapshot) => tree.snapshot(std::slice::from_ref(snapshot), &none),
        }
    }

    /// The pool is as told from now on, e.g. `DEGRADED`, `SUSPENDED`.
    pub fn set_health(&self, pool: &str, health: &str) {
        if let Some(pool) = self.0.lock().pools.get_mut(pool) {
            health.clone_into(&mut pool.health);
        }
    }

    /// Something has a dataset open, or not any more.
    pub fn set_busy(&self, dataset: &Dataset, busy: bool) {
        if let Some(node) = self.0.lock().nodes.get_mut(dataset) {
            node.busy = busy;
        }
    }

    /// Writes what a dataset holds.
    pub fn write(&self, dataset: &Dataset, content: &[u8]) {
        if let Some(node) = self.0.lock().nodes.get_mut(dataset) {
            node.content = content.to_vec();
        }
    }

    /// What a dataset holds; `None` when there is none.
    #[must_use]
    pub fn read(&self, dataset: &Dataset) -> Option<Vec<u8>> {
        self.0.lock().nodes.get(dataset).map(|node| node.content.clone())
    }

    /// All datasets and snapshots with what was set at them, by name.
    #[must_use]
    pub fn content(&self) -> BTreeMap<String, Properties> {
        let tree = self.0.lock();
        let mut all = BTreeMap::new();
        for (name, node) in &tree.nodes {
            all.insert(name.to_string(), node.local.clone());
            for taken in &node.snapshots {
                all.insert(format!("{name}@{}", taken.name), taken.local.clone());
            }
        }
        all
    }
}

/// The ZFS of one simulated agent.
#[derive(Debug)]
pub struct SimZfs {
    pools: SimPools,
    faults: Faults,
    calls: Mutex<Calls>,
}

impl SimZfs {
    /// Operations in `faults`: `zfs.create`, `.clone`, `.mount`, `.promote`, `.rename`, `.destroy`, `.snapshot`,
    /// `.destroy_snapshots`, `.rollback`, `.hold`, `.release`, `.exists`, `.get`, `.list`, `.set`,
    /// `.inherit`, `.send`, `.receive`, `.abort_receive`, `.pools`, `.health`, `.scrub`.
    #[must_use]
    pub fn new(pools: SimPools, faults: Faults) -> Self {
        Self { pools, faults, calls: Mutex::default() }
    }

    async fn run<T>(
        &self,
        operation: &'static str,
        effect: impl FnOnce(&mut Tree) -> Result<T, DriverError> + Send,
    ) -> Result<T, DriverError> {
        let name = operation.strip_prefix("zfs.").unwrap_or(operation);
        *self.calls.lock().entry((name, Way::LibzfsCore)).or_default() += 1;
        self.faults.call(operation, || effect(&mut self.pools.0.lock())).await
    }
}

fn checked(properties: &Properties) -> Result<(), DriverError> {
    for (name, value) in properties {
        check_setting(name, value)?;
    }
    Ok(())
}

/// The names of what is wanted, in ZFS's order.
fn found(tree: &Tree, wanted: &Wanted<'_>) -> Result<Vec<Name>, DriverError> {
    match &wanted.root {
        Some(Name::Snapshot(snapshot)) => {
            tree.taken(snapshot)?;
            return Ok(vec![Name::Snapshot(snapshot.clone())]);
        }
        Some(Name::Dataset(dataset)) => drop(tree.node(dataset)?),
        None => {}
    }
    let within = |name: &Dataset| match &wanted.root {
        None => true,
        Some(root) if wanted.below => name.is_within(root.dataset()),
        Some(root) => name == root.dataset(),
    };
    let mut names = Vec::new();
    for (name, node) in tree.nodes.iter().filter(|(name, _)| within(name)) {
        if wanted.datasets || !wanted.snapshots {
            names.push(Name::Dataset(name.clone()));
        }
        // Those of one dataset that is wanted alone are not asked for with it.
        let alone = wanted.root.is_some() && !wanted.below && wanted.datasets;
        if wanted.snapshots && !alone {
            for taken in &node.snapshots {
                names.push(Name::Snapshot(name.at(&taken.name)?));
            }
        }
    }
    Ok(names)
}

fn value(tree: &Tree, name: &Name, property: &str, wanted: &Wanted<'_>) -> Option<String> {
    match name {
        Name::Dataset(dataset) => {
            let node = tree.nodes.get(dataset)?;
            if wanted.only_local {
                return node.local.get(property).cloned();
            }
            tree.value(dataset, node, property, wanted.parseable)
        }
        Name::Snapshot(snapshot) => {
            let taken = tree.taken(snapshot).ok()?;
            if wanted.only_local {
                return taken.local.get(property).cloned();
            }
            tree.value_of_taken(snapshot, taken, property, wanted.parseable)
        }
    }
}

fn local<'a>(tree: &'a Tree, name: &Name) -> Option<&'a Properties> {
    match name {
        Name::Dataset(dataset) => tree.nodes.get(dataset).map(|node| &node.local),
        Name::Snapshot(snapshot) => tree.taken(snapshot).ok().map(|taken| &taken.local),
    }
}

#[async_trait]
impl Zfs for SimZfs {
    fn availability(&self) -> Availability {
        Availability::Works { version: Some("zfs-sim".to_owned()), atomic: true }
    }

    fn calls(&self) -> Calls {
        self.calls.lock().clone()
    }

    async fn create(
        &self,
        dataset: &Dataset,
        kind: Kind,
        properties: &Properties,
    ) -> Result<(), DriverError> {
        checked(properties)?;
        self.run("zfs.create", |tree| tree.create(dataset, kind, properties)).await
    }

    async fn clone_snapshot(
        &self,
        from: &Snapshot,
        to: &Dataset,
        properties: &Properties,
    ) -> Result<(), DriverError> {
        checked(properties)?;
        self.run("zfs.clone", |tree| tree.clone_of(from, to, properties)).await
    }

    /// Here all that is there is mounted.
    async fn mount(&self, dataset: &Dataset) -> Result<(), DriverError> {
        self.run("zfs.mount", |tree| tree.node(dataset).map(|_| ())).await
    }

    async fn promote(&self, dataset: &Dataset) -> Result<(), DriverError> {
        self.run("zfs.promote", |tree| tree.promote(dataset)).await
    }

    async fn rename(&self, from: &Dataset, to: &Dataset) -> Result<(), DriverError> {
        self.run("zfs.rename", |tree| tree.rename(from, to)).await
    }

    async fn destroy(&self, dataset: &Dataset) -> Result<(), DriverError> {
        self.run("zfs.destroy", |tree| tree.destroy(dataset)).await
    }

    async fn snapshot(
        &self,
        snapshots: &[Snapshot],
        properties: &Properties,
    ) -> Result<(), DriverError> {
        checked(properties)?;
        self.run("zfs.snapshot", |tree| tree.snapshot(snapshots, properties)).await
    }

    async fn destroy_snapshots(
        &self,
        snapshots: &[Snapshot],
        deferred: bool,
    ) -> Result<(), DriverError> {
        if snapshots.is_empty() {
            return Ok(());
        }
        let destroy = |tree: &mut Tree| tree.destroy_snapshots(snapshots, deferred);
        self.run("zfs.destroy_snapshots", destroy).await
    }

    async fn rollback(&self, to: &Snapshot, newer: &[Snapshot]) -> Result<(), DriverError> {
        self.destroy_snapshots(newer, false).await?;
        self.run("zfs.rollback", |tree| tree.rollback(to)).await
    }

    async fn hold(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError> {
        self.run("zfs.hold", |tree| tree.hold(tag, snapshots)).await
    }

    async fn release(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError> {
        self.run("zfs.release", |tree| tree.release(tag, snapshots)).await
    }

    async fn exists(&self, name: &Name) -> Result<bool, DriverError> {
        let look = |tree: &mut Tree| {
            let there = match name {
                Name::Dataset(dataset) => tree.node(dataset).map(|_| ()),
                Name::Snapshot(snapshot) => tree.taken(snapshot).map(|_| ()),
            };
            match there {
                Ok(()) => Ok(true),
                Err(DriverError::Refused {
                    code: Code::DatasetNotFound | Code::SnapshotNotFound,
                    ..
                }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        self.run("zfs.exists", look).await
    }

    async fn get(&self, wanted: &Wanted<'_>) -> Result<BTreeMap<String, Properties>, DriverError> {
        for property in wanted.properties {
            check_property(property)?;
        }
        let get = |tree: &mut Tree| {
            let mut all = BTreeMap::new();
            for name in found(tree, wanted)? {
                let whole = wanted.properties.is_empty() || wanted.properties.contains(&"all");
                let properties = match local(tree, &name) {
                    Some(local) if whole => values::all(local),
                    _ => wanted.properties.iter().map(|name| (*name).to_owned()).collect(),
                };
                let mut of = Properties::new();
                for property in properties {
                    match value(tree, &name, &property, wanted) {
                        Some(value) => drop(of.insert(property, value)),
                        None if wanted.only_local || whole => {}
                        None => drop(of.insert(property, "-".to_owned())),
                    }
                }
                if !of.is_empty() {
                    all.insert(name.to_string(), of);
                }
            }
            Ok(all)
        };
        self.run("zfs.get", get).await
    }

    async fn list(&self, wanted: &Wanted<'_>) -> Result<Vec<Properties>, DriverError> {
        for property in wanted.properties {
            check_property(property)?;
        }
        let list = |tree: &mut Tree| {
            let row = |name: &Name| {
                let field = |property: &&str| {
                    let value = value(tree, name, property, wanted);
                    ((*property).to_owned(), value.unwrap_or_else(|| "-".to_owned()))
                };
                wanted.properties.iter().map(field).collect()
            };
            Ok(found(tree, wanted)?.iter().map(row).collect())
        };
        self.run("zfs.list", list).await
    }

    async fn set(&self, name: &Name, properties: &Properties) -> Result<(), DriverError> {
        checked(properties)?;
        let set = |tree: &mut Tree| {
            check_known(properties)?;
            match name {
                Name::Dataset(dataset) => tree.set(dataset, properties)?,
                Name::Snapshot(snapshot) => {
                    tree.taken(snapshot)?;
                    let node = tree.node_mut(snapshot.dataset())?;
                    let of = node.snapshots.iter_mut().find(|taken| taken.name == snapshot.name());
                    if let Some(taken) = of {
                        taken.local.extend(properties.clone());
                    }
                }
            }
            Ok(())
        };
        self.run("zfs.set", set).await
    }

    async fn inherit(&self, name: &Name, property: &str) -> Result<(), DriverError> {
        check_setting(property, "")?;
        if LIMITS.contains(&property) {
            let text = format!("'{property}' property cannot be inherited");
            return refuse(Code::InternalError, text);
        }
        let inherit = |tree: &mut Tree| {
            let node = tree.node_mut(name.dataset())?;
            match name {
                Name::Dataset(_) => drop(node.local.remove(property)),
                Name::Snapshot(snapshot) => {
                    let of = node.snapshots.iter_mut().find(|taken| taken.name == snapshot.name());
                    of.and_then(|taken| taken.local.remove(property));
                }
            }
            Ok(())
        };
        self.run("zfs.inherit", inherit).await
    }

    async fn send(&self, what: &StreamOf) -> Result<SendStream, DriverError> {
        let sent = self.run("zfs.send", |tree| stream::of(tree, what)).await?;
        Ok(SendStream::whole(std::io::Cursor::new(sent)))
    }

    async fn send_size(&self, what: &StreamOf) -> Result<u64, DriverError> {
        let sent = self.run("zfs.send_size", |tree| stream::of(tree, what)).await?;
        Ok(u64::try_from(sent.len()).unwrap_or(u64::MAX))
    }

    async fn receive(
        &self,
        into: &Snapshot,
        how: &Receive,
        mut from: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<(), DriverError> {
        checked(&how.properties)?;
        let mut data = Vec::new();
        let read = from.read_to_end(&mut data).await;
        read.map_err(|error| DriverError::failed("read a stream", error))?;
        self.run("zfs.receive", |tree| stream::receive(tree, into, how, &data)).await
    }

    async fn abort_receive(&self, dataset: &Dataset) -> Result<(), DriverError> {
        let abort = |tree: &mut Tree| {
            let node = tree.node_mut(dataset)?;
            if node.partial.take().is_none() {
                let text =
                    format!("'{dataset}' does not have any resumable receive state to abort");
                return refuse(Code::InvalidArgument, text);
            }
            if node.snapshots.is_empty() {
                tree.nodes.remove(dataset);
            }
            Ok(())
        };
        self.run("zfs.abort_receive", abort).await
    }

    async fn pools(
        &self,
        properties: &[&str],
        parseable: bool,
    ) -> Result<Vec<Properties>, DriverError> {
        let list = |tree: &mut Tree| {
            let row = |(name, pool): (&String, &tree::Pool)| {
                let used = tree.used(name);
                let percent = |count: u64| {
                    if parseable { count.to_string() } else { format!("{count}%") }
                };
                let field = |property: &&str| {
                    let value = match *property {
                        "name" => name.clone(),
                        "size" => values::bytes(pool.size_bytes, parseable),
                        "allocated" | "alloc" => values::bytes(used, parseable),
                        "free" => values::bytes(pool.size_bytes.saturating_sub(used), parseable),
                        "cap" | "capacity" => {
                            percent((used * 100).checked_div(pool.size_bytes).unwrap_or(0))
                        }
                        "frag" | "fragmentation" => percent(0),
                        "health" => pool.health.clone(),
                        _ => "-".to_owned(),
                    };
                    ((*property).to_owned(), value)
                };
                properties.iter().map(field).collect()
            };
            Ok(tree.pools.iter().map(row).collect())
        };
        self.run("zfs.pools", list).await
    }

    async fn health(&self) -> Result<Vec<PoolHealth>, DriverError> {
        let look = |tree: &mut Tree| {
            let pool = |(name, pool): (&String, &tree::Pool)| {
                let alloc_bytes = tree.used(name);
                let disk = |number| Leaf {
                    name: format!("/dev/sim{number}"),
                    state: if number == 1 { pool.health.clone() } else { "ONLINE".to_owned() },
                    role: "data".to_owned(),
                    ..Leaf::default()
                };
                PoolHealth {
                    name: name.clone(),
                    health: pool.health.clone(),
                    size_bytes: pool.size_bytes,
                    alloc_bytes,
                    capacity: (alloc_bytes * 100).checked_div(pool.size_bytes).unwrap_or(0),
                    fragmentation: Some(0),
                    leaves: vec![disk(0), disk(1)],
                    profile: "mirror",
                    ..PoolHealth::default()
                }
            };
            Ok(tree.pools.iter().map(pool).collect())
        };
        self.run("zfs.health", look).await
    }

    async fn signs(&self) -> String {
        let tree = self.pools.0.lock();
        tree.pools.iter().map(|(name, pool)| format!("{name}={} ", pool.health)).collect()
    }

    async fn scrub(&self, pool: &Dataset, what: Scrub) -> Result<(), DriverError> {
        self.run("zfs.scrub", |tree| tree.scrub(pool.pool(), what)).await
    }
}
