//! The datasets and snapshots of a simulated host.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::wire::Code;

use super::super::{Dataset, Kind, Properties, Scrub, Snapshot, is_user_property};
use crate::drivers::DriverError;

/// A pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) size_bytes: u64,
    pub(super) health: String,
    pub(super) scrubs: u64,
    pub(super) scrubbing: bool,
}

/// A file system or volume.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) guid: u64,
    pub(super) local: Properties,
    pub(super) origin: Option<Snapshot>,
    pub(super) content: Vec<u8>,
    /// Oldest first.
    pub(super) snapshots: Vec<Taken>,
    /// What was received of a stream that was cut.
    pub(super) partial: Option<(u64, Vec<u8>)>,
    pub(super) busy: bool,
}

/// A snapshot.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) local: Properties,
    pub(super) content: Vec<u8>,
    pub(super) volume_bytes: Option<u64>,
    pub(super) holds: BTreeSet<String>,
    pub(super) deferred: bool,
}

impl Taken {
    /// Its size if it is of a volume, bytes.
    fn kind(&self) -> Kind {
        self.volume_bytes
            .map_or(Kind::Filesystem, |size_bytes| Kind::Volume { size_bytes, sparse: true })
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) pools: BTreeMap<String, Pool>,
    pub(super) nodes: BTreeMap<Dataset, Node>,
    guids: u64,
}

type Done = Result<(), DriverError>;

pub(super) fn refuse<T>(code: Code, text: impl Into<String>) -> Result<T, DriverError> {
    Err(DriverError::refused(code, text))
}

pub(super) fn no_dataset(name: &Dataset) -> DriverError {
    let text = format!("cannot open '{name}': dataset does not exist");
    DriverError::refused(Code::DatasetNotFound, text)
}

pub(super) fn no_snapshot(name: &Snapshot) -> DriverError {
    let text = format!("could not find any snapshots: {name}");
    DriverError::refused(Code::SnapshotNotFound, text)
}

impl Tree {
    pub(super) fn guid(&mut self) -> u64 {
        self.guids += 1;
        self.guids
    }

    pub(super) fn add_pool(&mut self, name: &str, size_bytes: u64) {
        let root: Dataset = name.parse().expect("a pool has a plain name");
        let pool = Pool { size_bytes, health: "ONLINE".to_owned(), scrubs: 0, scrubbing: false };
        self.pools.insert(name.to_owned(), pool);
        let guid = self.guid();
        self.nodes.insert(root, node(Kind::Filesystem, guid, Properties::new(), None));
    }

    pub(super) fn node(&self, name: &Dataset) -> Result<&Node, DriverError> {
        self.check_pool(name)?;
        self.nodes.get(name).ok_or_else(|| no_dataset(name))
    }

    pub(super) fn node_mut(&mut self, name: &Dataset) -> Result<&mut Node, DriverError> {
        self.check_pool(name)?;
        self.nodes.get_mut(name).ok_or_else(|| no_dataset(name))
    }

    pub(super) fn taken(&self, name: &Snapshot) -> Result<&Taken, DriverError> {
        let of = self.node(name.dataset())?;
        of.snapshots.iter().find(|taken| taken.name == name.name()).ok_or_else(|| no_snapshot(name))
    }

    fn check_pool(&self, name: &Dataset) -> Done {
        match self.pools.get(name.pool()) {
            Some(pool) if pool.health == "SUSPENDED" => {
                let text =
                    format!("cannot open '{}': pool I/O is currently suspended", name.pool());
                refuse(Code::PoolUnavailable, text)
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a pool that are in use.
    pub(super) fn used(&self, pool: &str) -> u64 {
        let of_pool = self.nodes.iter().filter(|(name, _)| name.pool() == pool);
        let bytes = of_pool.map(|(_, node)| {
            let snapshots: usize = node.snapshots.iter().map(|taken| taken.content.len()).sum();
            let reserved = match node.kind {
                Kind::Volume { size_bytes, sparse: false } => size_bytes,
                _ => 0,
            };
            reserved + u64::try_from(node.content.len() + snapshots).unwrap_or(u64::MAX)
        });
        bytes.sum()
    }

    fn check_room(&self, pool: &str, wanted: u64) -> Done {
        let size = self.pools.get(pool).map_or(0, |pool| pool.size_bytes);
        if self.used(pool).saturating_add(wanted) > size {
            return refuse(Code::NoSpace, format!("cannot create in '{pool}': out of space"));
        }
        Ok(())
    }

    fn check_new(&self, name: &Dataset) -> Done {
        self.check_pool(name)?;
        if self.nodes.contains_key(name) {
            let text = format!("cannot create '{name}': dataset already exists");
            return refuse(Code::DatasetExists, text);
        }
        if name.parent().is_none_or(|parent| !self.nodes.contains_key(&parent)) {
            let text = format!("cannot create '{name}': parent does not exist");
            return refuse(Code::DatasetNotFound, text);
        }
        Ok(())
    }

    pub(super) fn create(&mut self, name: &Dataset, kind: Kind, properties: &Properties) -> Done {
        self.check_new(name)?;
        check_known(properties)?;
        if let Kind::Volume { size_bytes, sparse: false } = kind {
            self.check_room(name.pool(), size_bytes)?;
        }
        let guid = self.guid();
        self.nodes.insert(name.clone(), node(kind, guid, properties.clone(), None));
        Ok(())
    }

    pub(super) fn clone_of(
        &mut self,
        from: &Snapshot,
        to: &Dataset,
        properties: &Properties,
    ) -> Done {
        // ZFS does not say which of the two is missing.
        if !self.node(from.dataset())?.snapshots.iter().any(|taken| taken.name == from.name()) {
            let text = format!("cannot open '{from}': dataset does not exist");
            return refuse(Code::DatasetNotFound, text);
        }
        let taken = self.taken(from)?.clone();
        if from.dataset().pool() != to.pool() {
            let text = format!("cannot create '{to}': source and target pools differ");
            return refuse(Code::InvalidName, text);
        }
        self.check_new(to)?;
        check_known(properties)?;
        let guid = self.guid();
        let mut made = node(taken.kind(), guid, properties.clone(), Some(from.clone()));
        made.content = taken.content;
        self.nodes.insert(to.clone(), made);
        let done = self.set(to, properties);
        if done.is_err() {
            self.nodes.remove(to);
        }
        done
    }

    /// Properties of a dataset, which are known.
    pub(super) fn set(&mut self, dataset: &Dataset, properties: &Properties) -> Done {
        let aside = properties.get("refreservation").and_then(|bytes| bytes.parse::<u64>().ok());
        let pool_bytes = self.pools.get(dataset.pool()).map_or(0, |pool| pool.size_bytes);
        if aside.is_some_and(|bytes| bytes > pool_bytes) {
            return refuse(
                Code::NoSpace,
                format!("cannot set property for '{dataset}': out of space"),
            );
        }
        let node = self.node_mut(dataset)?;
        if let (Kind::Volume { sparse, .. }, Some(size)) = (node.kind, properties.get("volsize")) {
            let Ok(size_bytes) = size.parse() else {
                let text = format!("bad numeric value '{size}'");
                return refuse(Code::InvalidProperty, text);
            };
            node.kind = Kind::Volume { size_bytes, sparse };
        }
        node.local.extend(properties.clone());
        Ok(())
    }

    pub(super) fn clones(&self, of: &Snapshot) -> Vec<Dataset> {
        let clones = self.nodes.iter().filter(|(_, node)| node.origin.as_ref() == Some(of));
        clones.map(|(name, _)| name.clone()).collect()
    }

    /// The clone takes over the snapshots up to its origin, and the clones of these.
    pub(super) fn promote(&mut self, clone: &Dataset) -> Done {
        let Some(origin) = self.node(clone)?.origin.clone() else {
            let text = format!("cannot promote '{clone}': not a cloned filesystem");
            return refuse(Code::InvalidArgument, text);
        };
        let above = origin.dataset().clone();
        let parent = self.node(&above)?;
        let upto = parent.snapshots.iter().position(|taken| taken.name == origin.name());
        let count = upto.map_or(0, |at| at + 1);
        let own: BTreeSet<_> =
            self.node(clone)?.snapshots.iter().map(|taken| taken.name.clone()).collect();
        if parent.snapshots[..count].iter().any(|taken| own.contains(&taken.name)) {
            let text = format!(
                "cannot promote '{clone}': snapshot name conflicts, dataset already exists"
            );
            return refuse(Code::DatasetExists, text);
        }
        let theirs = parent.origin.clone();
        let parent = self.node_mut(&above)?;
        let moved: Vec<_> = parent.snapshots.drain(..count).collect();
        let now = clone.at(origin.name())?;
        parent.origin = Some(now);
        let names: BTreeSet<_> = moved.iter().map(|taken| taken.name.clone()).collect();
        let node = self.node_mut(clone)?;
        node.snapshots.splice(0..0, moved);
        node.origin = theirs;
        for (name, node) in &mut self.nodes {
            let of = node.origin.as_ref().filter(|of| *of.dataset() == above && name != clone);
            if let Some(of) = of.filter(|of| names.contains(of.name())) {
                node.origin = Some(clone.at(of.name())?);
            }
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Dataset, to: &Dataset) -> Done {
        self.node(from)?;
        if from.is_pool() || from.pool() != to.pool() || to.is_within(from) {
            let text = format!("cannot rename to '{to}': invalid dataset name");
            return refuse(Code::InvalidName, text);
        }
        self.check_new(to)?;
        let moved = |name: &Dataset| -> Result<Dataset, DriverError> {
            let rest = &name.as_str()[from.as_str().len()..];
            Ok(format!("{to}{rest}").parse()?)
        };
        let mut nodes = BTreeMap::new();
        for (name, mut node) in std::mem::take(&mut self.nodes) {
            if let Some(origin) = node.origin.clone().filter(|of| of.dataset().is_within(from)) {
                node.origin = Some(moved(origin.dataset())?.at(origin.name())?);
            }
            let name = if name.is_within(from) { moved(&name)? } else { name };
            nodes.insert(name, node);
        }
        self.nodes = nodes;
        Ok(())
    }

    pub(super) fn destroy(&mut self, name: &Dataset) -> Done {
        let node = self.node(name)?;
        if node.busy {
            return refuse(Code::DatasetBusy, format!("cannot destroy '{name}': dataset is busy"));
        }
        for taken in &node.snapshots {
            if !self.clones(&name.at(&taken.name)?).is_empty() {
                let text = format!("cannot destroy '{name}': filesystem has dependent clones");
                return refuse(Code::DatasetHasClones, text);
            }
        }
        let below = self.nodes.keys().any(|other| other != name && other.is_within(name));
        if below || !node.snapshots.is_empty() {
            let text = format!("cannot destroy '{name}': filesystem has children");
            return refuse(Code::DatasetHasChildren, text);
        }
        let origin = node.origin.clone();
        self.nodes.remove(name);
        if let Some(origin) = origin {
            self.forget_if_unused(&origin);
        }
        Ok(())
    }

    pub(super) fn snapshot(&mut self, names: &[Snapshot], properties: &Properties) -> Done {
        for name in names {
            if self.node(name.dataset())?.snapshots.iter().any(|taken| taken.name == name.name()) {
                let text = format!("cannot create snapshot '{name}': dataset already exists");
                return refuse(Code::DatasetExists, text);
            }
        }
        for name in names {
            let guid = self.guid();
            let node = self.node_mut(name.dataset())?;
            node.snapshots.push(Taken {
                name: name.name().to_owned(),
                guid,
                local: properties.clone(),
                content: node.content.clone(),
                volume_bytes: match node.kind {
                    Kind::Volume { size_bytes, .. } => Some(size_bytes),
                    Kind::Filesystem => None,
                },
                holds: BTreeSet::new(),
                deferred: false,
            });
        }
        Ok(())
    }

    pub(super) fn destroy_snapshots(&mut self, names: &[Snapshot], deferred: bool) -> Done {
        let there: Vec<_> = names.iter().filter(|name| self.taken(name).is_ok()).collect();
        for name in &there {
            self.check_pool(name.dataset())?;
            if !deferred && !self.taken(name)?.holds.is_empty() {
                let text = format!("cannot destroy snapshot {name}: it's being held");
                return refuse(Code::SnapshotHeld, text);
            }
            if !deferred && !self.clones(name).is_empty() {
                let text = format!("cannot destroy '{name}': snapshot has dependent clones");
                return refuse(Code::DatasetHasClones, text);
            }
        }
        for name in there {
            self.change_taken(name, |taken| taken.deferred = true)?;
            self.forget_if_unused(name);
        }
        Ok(())
    }

    fn change_taken(&mut self, name: &Snapshot, change: impl FnOnce(&mut Taken)) -> Done {
        let node = self.node_mut(name.dataset())?;
        let taken = node.snapshots.iter_mut().find(|taken| taken.name == name.name());
        taken.map(change).ok_or_else(|| no_snapshot(name))
    }

    /// Removes a snapshot that was to go as soon as nobody needs it.
    fn forget_if_unused(&mut self, name: &Snapshot) {
        let unused = self.taken(name).is_ok_and(|taken| taken.deferred && taken.holds.is_empty());
        if unused
            && self.clones(name).is_empty()
            && let Some(node) = self.nodes.get_mut(name.dataset())
        {
            node.snapshots.retain(|taken| taken.name != name.name());
        }
    }

    pub(super) fn rollback(&mut self, to: &Snapshot) -> Done {
        let taken = self.taken(to)?.clone();
        let node = self.node_mut(to.dataset())?;
        if node.snapshots.last().is_some_and(|last| last.name != to.name()) {
            let text =
                format!("cannot rollback to '{to}': more recent snapshots or bookmarks exist");
            return refuse(Code::DatasetBusy, text);
        }
        node.kind = match (node.kind, taken.volume_bytes) {
            (Kind::Volume { sparse, .. }, Some(size_bytes)) => Kind::Volume { size_bytes, sparse },
            (kind, _) => kind,
        };
        node.content = taken.content;
        Ok(())
    }

    pub(super) fn hold(&mut self, tag: &str, names: &[Snapshot]) -> Done {
        names.iter().try_for_each(|name| self.taken(name).map(|_| ()))?;
        names.iter().try_for_each(|name| {
            self.change_taken(name, |taken| {
                taken.holds.insert(tag.to_owned());
            })
        })
    }

    pub(super) fn release(&mut self, tag: &str, names: &[Snapshot]) -> Done {
        names.iter().try_for_each(|name| self.taken(name).map(|_| ()))?;
        for name in names {
            self.change_taken(name, |taken| {
                taken.holds.remove(tag);
            })?;
            self.forget_if_unused(name);
        }
        Ok(())
    }

    pub(super) fn scrub(&mut self, pool: &str, what: Scrub) -> Done {
        let Some(of) = self.pools.get_mut(pool) else {
            return refuse(Code::PoolUnavailable, format!("cannot open '{pool}': no such pool"));
        };
        if of.scrubbing == (what == Scrub::Start) {
            let text =
                format!("cannot scrub {pool}: currently scrubbing, or no scrub is in progress");
            return refuse(Code::DatasetBusy, text);
        }
        of.scrubbing = what == Scrub::Start;
        of.scrubs += u64::from(of.scrubbing);
        Ok(())
    }
}

pub(super) fn node(kind: Kind, guid: u64, local: Properties, origin: Option<Snapshot>) -> Node {
    Node {
        kind,
        guid,
        local,
        origin,
        content: Vec::new(),
        snapshots: Vec::new(),
        partial: None,
        busy: false,
    }
}

/// Properties of ZFS's own that datasets here can have.
pub(super) const SETTABLE: &[&str] = &[
    "atime",
    "canmount",
    "compression",
    "encryption",
    "filesystem_limit",
    "keyformat",
    "keylocation",
    "mountpoint",
    "quota",
    "readonly",
    "recordsize",
    "refquota",
    "refreservation",
    "reservation",
    "snapdev",
    "snapdir",
    "snapshot_limit",
    "sync",
    "volblocksize",
    "volmode",
    "volsize",
];

pub(super) fn check_known(properties: &Properties) -> Done {
    let known = |name: &str| is_user_property(name) || SETTABLE.contains(&name);
    match properties.keys().find(|name| !known(name)) {
        Some(name) => {
            let text = format!("bad property list: invalid property '{name}'");
            refuse(Code::InvalidProperty, text)
        }
        None => Ok(()),
    }
}
