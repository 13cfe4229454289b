//! ZFS of this host, through `zfs` and `zpool`; what has to be atomic through `libzfs_core`, where
//! `muster-zfs` is there.

mod making;
mod snapshots;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio::io::AsyncRead;

use super::arguments::{
    check_tag, checked, for_library, name_of, of_snapshot, options, says, scope, texts, words,
};
use super::error::About;
use super::helper::{Call, Helper};
use super::programs::{CHANGE, FOLDERS, LOOK, Program, Programs};
use super::{
    Availability, Calls, Dataset, Kind, Name, PoolHealth, Properties, Receive, Scrub, SendStream,
    Snapshot, StreamOf, Wanted, Way, Zfs, check_setting, health, streams, table, volume_bytes,
};
use crate::drivers::DriverError;
use crate::host::SharedExec;

/// The kernel's figures of pools, a folder for each.
const KSTAT: &str = "/proc/spl/kstat/zfs";
/// The host's disks.
const DISKS: &str = "/sys/block";
/// How the names of those begin that are volumes of ZFS.
const VOLUMES: &str = "zd";
/// The state of a device of which ZFS has not noticed yet that it was removed.
const GONE: &str = "GONE";

/// Where things are.
#[derive(Clone, Debug)]
pub struct ZfsConfig {
    /// Folders of `zfs` and `zpool`; the first that has one counts.
    pub folders: Vec<PathBuf>,
    /// The kernel's door to ZFS.
    pub device: PathBuf,
    /// The program that links `libzfs_core`; without one everything goes through `zfs`.
    pub helper: Option<PathBuf>,
}

impl Default for ZfsConfig {
    fn default() -> Self {
        Self {
            folders: FOLDERS.iter().map(PathBuf::from).collect(),
            device: PathBuf::from("/dev/zfs"),
            helper: None,
        }
    }
}

/// ZFS of this host.
#[derive(Debug)]
pub struct CommandZfs {
    programs: Result<Programs, String>,
    helper: Option<Helper>,
    version: Option<String>,
    calls: Mutex<Calls>,
}

impl CommandZfs {
    /// Looks whether ZFS works, and how. Never fails: a host without it is a host without it.
    pub async fn open(config: &ZfsConfig, exec: SharedExec) -> Self {
        let programs = Self::find(config, &exec).await;
        let (mut helper, mut version) = (None, None);
        match &programs {
            Ok(programs) => {
                version = release(programs).await;
                if let Some(path) = &config.helper {
                    helper = Helper::open(path, exec).await;
                }
                let atomic = helper.is_some();
                tracing::info!(
                    version = version.as_deref().unwrap_or("unknown"),
                    atomic,
                    "ZFS works"
                );
            }
            Err(reason) => tracing::info!(reason, "this node has no ZFS"),
        }
        Self { programs, helper, version, calls: Mutex::default() }
    }

    /// That of a host without ZFS, for this reason.
    #[must_use]
    pub fn missing(reason: &str) -> Self {
        let programs = Err(reason.to_owned());
        Self { programs, helper: None, version: None, calls: Mutex::default() }
    }

    async fn find(config: &ZfsConfig, exec: &SharedExec) -> Result<Programs, String> {
        if !config.device.exists() {
            let device = config.device.display();
            return Err(format!("there is no {device}: its kernel module is not loaded"));
        }
        let programs = Programs::find(exec.clone(), &config.folders)
            .map_err(|name| format!("there is no program {name}"))?;
        let works = programs.run(Program::Zpool, &["list", "-H", "-o", "name"], LOOK).await;
        works.map(|_| programs).map_err(|error| error.to_string())
    }

    fn programs(&self) -> Result<&Programs, DriverError> {
        let missing = |reason: &String| {
            DriverError::refused(Code::ZfsUnavailable, format!("this node has no ZFS: {reason}"))
        };
        self.programs.as_ref().map_err(missing)
    }

    fn count(&self, operation: &'static str, way: Way) {
        *self.calls.lock().entry((operation, way)).or_default() += 1;
    }

    /// A change by `zfs`.
    async fn change(&self, operation: &'static str, arguments: &[&str]) -> Result<(), DriverError> {
        let programs = self.programs()?;
        self.count(operation, Way::Command);
        programs.run(Program::Zfs, arguments, CHANGE).await.map(|_| ())
    }

    /// A change by `libzfs_core`; `None` where that is not to be had and nothing was done.
    async fn atomic(&self, call: Call, about: About) -> Option<Result<(), DriverError>> {
        self.asked(call, about).await.map(|answer| answer.map(|_| ()))
    }

    /// A call of `libzfs_core`, and the size that it tells, if it is about one.
    async fn asked(&self, call: Call, about: About) -> Option<Result<Option<u64>, DriverError>> {
        let helper = self.helper.as_ref()?;
        let operation = call.name();
        let done = helper.call(call, about).await?;
        self.count(operation, Way::LibzfsCore);
        Some(done)
    }
}

/// Old userlands do not know `zfs version`: that is an unknown version, not a missing ZFS.
async fn release(programs: &Programs) -> Option<String> {
    let told = programs.run(Program::Zfs, &["version"], LOOK).await.ok()?;
    let line = told.lines().next()?.trim();
    line.starts_with("zfs-").then(|| line.to_owned())
}

#[async_trait]
impl Zfs for CommandZfs {
    fn availability(&self) -> Availability {
        match &self.programs {
            Ok(_) => Availability::Works {
                version: self.version.clone(),
                atomic: self.helper.as_ref().is_some_and(Helper::works),
            },
            Err(reason) => Availability::Missing(reason.clone()),
        }
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
        self.make(dataset, kind, properties).await
    }

    async fn clone_snapshot(
        &self,
        from: &Snapshot,
        to: &Dataset,
        properties: &Properties,
    ) -> Result<(), DriverError> {
        checked(properties)?;
        self.make_clone(from, to, properties).await
    }

    /// As `zfs create` does by itself; `libzfs_core` mounts nothing.
    async fn mount(&self, dataset: &Dataset) -> Result<(), DriverError> {
        let of =
            self.get(&Wanted::of(dataset, &["type", "mounted", "canmount", "mountpoint"])).await?;
        let value = |name: &str| {
            of.get(dataset.as_str()).and_then(|of| of.get(name)).map_or("", String::as_str)
        };
        let wanted = value("type") == "filesystem"
            && value("mounted") == "no"
            && value("canmount") == "on"
            && value("mountpoint").starts_with('/');
        if !wanted {
            return Ok(());
        }
        self.change("mount", &["mount", dataset.as_str()]).await
    }

    async fn promote(&self, dataset: &Dataset) -> Result<(), DriverError> {
        let call = Call::Promote { dataset: dataset.to_string() };
        match self.atomic(call, About::Other).await {
            Some(done) => done,
            None => self.change("promote", &["promote", dataset.as_str()]).await,
        }
    }

    /// By `zfs` alone, which mounts all below at its new place.
    async fn rename(&self, from: &Dataset, to: &Dataset) -> Result<(), DriverError> {
        self.change("rename", &["rename", from.as_str(), to.as_str()]).await
    }

    async fn destroy(&self, dataset: &Dataset) -> Result<(), DriverError> {
        let call = Call::Destroy { dataset: dataset.to_string() };
        match self.atomic(call, About::Removing).await {
            // It may only be mounted, which `zfs` ends first; and what is below has names there.
            Some(Err(DriverError::Refused {
                code: Code::DatasetBusy | Code::DatasetHasChildren,
                ..
            }))
            | None => self.change("destroy", &["destroy", dataset.as_str()]).await,
            Some(done) => done,
        }
    }

    async fn snapshot(
        &self,
        snapshots: &[Snapshot],
        properties: &Properties,
    ) -> Result<(), DriverError> {
        checked(properties)?;
        if snapshots.is_empty() {
            return Ok(());
        }
        let names = texts(snapshots);
        if let Some((properties, _)) = for_library(properties) {
            let call = Call::Snapshot { snapshots: names.clone(), properties };
            if let Some(done) = self.atomic(call, About::Making).await {
                return done;
            }
        }
        let mut arguments = vec!["snapshot".to_owned()];
        arguments.extend(options(properties));
        arguments.extend(names);
        self.change("snapshot", &words(&arguments)).await
    }

    async fn destroy_snapshots(
        &self,
        snapshots: &[Snapshot],
        deferred: bool,
    ) -> Result<(), DriverError> {
        if snapshots.is_empty() {
            return Ok(());
        }
        self.destroy_all(snapshots, deferred).await
    }

    async fn rollback(&self, to: &Snapshot, newer: &[Snapshot]) -> Result<(), DriverError> {
        self.destroy_snapshots(newer, false).await?;
        let (dataset, snapshot) = (to.dataset().to_string(), to.to_string());
        let call = Call::Rollback { dataset, snapshot: snapshot.clone() };
        match self.atomic(call, About::Rollback).await {
            Some(done) => done,
            None => of_snapshot(self.change("rollback", &["rollback", &snapshot]).await),
        }
    }

    async fn hold(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError> {
        check_tag(tag)?;
        if snapshots.is_empty() {
            return Ok(());
        }
        let names = texts(snapshots);
        let call = Call::Hold { tag: tag.to_owned(), snapshots: names.clone() };
        let held = match self.atomic(call, About::Holds).await {
            Some(done) => done,
            None => {
                let arguments: Vec<_> = ["hold", tag].into_iter().chain(words(&names)).collect();
                of_snapshot(self.change("hold", &arguments).await)
            }
        };
        match held {
            Err(error) if says(&error, "tag already exists") => Ok(()),
            held => held,
        }
    }

    async fn release(&self, tag: &str, snapshots: &[Snapshot]) -> Result<(), DriverError> {
        check_tag(tag)?;
        if snapshots.is_empty() {
            return Ok(());
        }
        let names = texts(snapshots);
        let call = Call::Release { tag: tag.to_owned(), snapshots: names.clone() };
        let released = match self.atomic(call, About::Holds).await {
            Some(done) => done,
            None => {
                let arguments: Vec<_> = ["release", tag].into_iter().chain(words(&names)).collect();
                of_snapshot(self.change("release", &arguments).await)
            }
        };
        match released {
            Err(error) if says(&error, "no such tag") => Ok(()),
            released => released,
        }
    }

    async fn exists(&self, name: &Name) -> Result<bool, DriverError> {
        let call = Call::Exists { name: name.to_string() };
        match self.atomic(call, About::Other).await {
            Some(Ok(())) => return Ok(true),
            Some(Err(DriverError::Refused { code: Code::DatasetNotFound, .. })) => {
                return Ok(false);
            }
            // It can't tell; `zfs` can, or says why not.
            Some(Err(_)) | None => {}
        }
        let wanted = Wanted::of(name.clone(), &["name"]);
        match self.list(&wanted).await {
            Ok(found) => Ok(!found.is_empty()),
            Err(DriverError::Refused {
                code: Code::DatasetNotFound | Code::SnapshotNotFound,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The kernel shows those that it has, which takes no program.
    async fn has_pool(&self, pool: &Dataset) -> Result<bool, DriverError> {
        let shown = Path::new(KSTAT).join(pool.pool());
        if tokio::fs::try_exists(shown).await.is_ok_and(|shown| shown) {
            return Ok(true);
        }
        self.exists(&Name::Dataset(pool.clone())).await
    }

    async fn volume_bytes(&self, name: &Name) -> Result<Option<u64>, DriverError> {
        let (pool, name_text) = (name.dataset().pool().to_owned(), name.to_string());
        let call = Call::VolumeSize { pool, name: name_text };
        if let Some(Ok(Some(bytes))) = self.asked(call, About::Other).await {
            return Ok(Some(bytes));
        }
        volume_bytes(self, name).await
    }

    async fn get(&self, wanted: &Wanted<'_>) -> Result<BTreeMap<String, Properties>, DriverError> {
        let scope = scope(wanted)?;
        let (properties, root) = (wanted.properties.join(","), name_of(wanted));
        let mut arguments = vec!["get", "-o", "name,property,value"];
        if wanted.only_local {
            // Of a dataset that was received, what came with it is its own as well.
            arguments.extend(["-s", "local,received"]);
        }
        arguments.extend(words(&scope));
        arguments.push(if properties.is_empty() { "all" } else { &properties });
        arguments.extend(root.as_deref());
        table::properties(&self.programs()?.run(Program::Zfs, &arguments, LOOK).await?)
    }

    async fn list(&self, wanted: &Wanted<'_>) -> Result<Vec<Properties>, DriverError> {
        let scope = scope(wanted)?;
        let (columns, root) = (wanted.properties.join(","), name_of(wanted));
        let mut arguments = vec!["list", "-o", &columns];
        arguments.extend(words(&scope));
        arguments.extend(root.as_deref());
        let text = self.programs()?.run(Program::Zfs, &arguments, LOOK).await?;
        table::rows(&text, wanted.properties)
    }

    async fn set(&self, name: &Name, properties: &Properties) -> Result<(), DriverError> {
        checked(properties)?;
        if properties.is_empty() {
            return Ok(());
        }
        let mut arguments = vec!["set".to_owned()];
        arguments.extend(properties.iter().map(|(name, value)| format!("{name}={value}")));
        arguments.push(name.to_string());
        self.change("set", &words(&arguments)).await
    }

    async fn inherit(&self, name: &Name, property: &str) -> Result<(), DriverError> {
        check_setting(property, "")?;
        self.change("inherit", &["inherit", property, &name.to_string()]).await
    }

    async fn send(&self, what: &StreamOf) -> Result<SendStream, DriverError> {
        let programs = self.programs()?;
        self.count("send", Way::Command);
        streams::send(programs, what).await
    }

    async fn send_size(&self, what: &StreamOf) -> Result<u64, DriverError> {
        streams::size(self.programs()?, what).await
    }

    async fn receive(
        &self,
        into: &Snapshot,
        how: &Receive,
        from: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Result<(), DriverError> {
        let programs = self.programs()?;
        self.count("receive", Way::Command);
        streams::receive(programs, into, how, from).await
    }

    async fn abort_receive(&self, dataset: &Dataset) -> Result<(), DriverError> {
        self.change("abort_receive", &["receive", "-A", dataset.as_str()]).await
    }

    async fn pools(
        &self,
        properties: &[&str],
        parseable: bool,
    ) -> Result<Vec<Properties>, DriverError> {
        let columns = properties.join(",");
        let mut arguments = vec!["list", "-H"];
        arguments.extend(parseable.then_some("-p"));
        arguments.extend(["-o", &columns]);
        let text = self.programs()?.run(Program::Zpool, &arguments, LOOK).await?;
        table::rows(&text, properties)
    }

    async fn health(&self) -> Result<Vec<PoolHealth>, DriverError> {
        let programs = self.programs()?;
        let listed = self.pools(health::COLUMNS, true).await?;
        let status = programs.run(Program::Zpool, &["status", "-p", "-P"], LOOK).await?;
        let mut pools = health::of(&listed, &status);
        let leaves = pools.iter_mut().flat_map(|pool| &mut pool.leaves);
        for leaf in leaves.filter(|leaf| leaf.state == "ONLINE" && leaf.name.starts_with("/dev/")) {
            // ZFS finds out when it next uses it, which may be long after.
            if tokio::fs::try_exists(&leaf.name).await.is_ok_and(|there| !there) {
                GONE.clone_into(&mut leaf.state);
            }
        }
        Ok(pools)
    }

    async fn signs(&self) -> String {
        let mut signs = String::new();
        for pool in names_in(Path::new(KSTAT)).await {
            let state = Path::new(KSTAT).join(&pool).join("state");
            let state = tokio::fs::read_to_string(state).await.unwrap_or_default();
            signs.push_str(&format!("{pool}={} ", state.trim()));
        }
        let mut disks = names_in(Path::new(DISKS)).await;
        // Volumes of the pools themselves come and go with every VM.
        disks.retain(|disk| !disk.starts_with(VOLUMES));
        signs.push_str(&disks.join(" "));
        signs
    }

    async fn scrub(&self, pool: &Dataset, what: Scrub) -> Result<(), DriverError> {
        let mut arguments = vec!["scrub"];
        arguments.extend(match what {
            Scrub::Start => None,
            Scrub::Pause => Some("-p"),
            Scrub::Stop => Some("-s"),
        });
        arguments.push(pool.pool());
        let programs = self.programs()?;
        self.count("scrub", Way::Command);
        match programs.run(Program::Zpool, &arguments, CHANGE).await {
            Err(error) if says(&error, "scrub") && says(&error, "ress") => {
                Err(DriverError::refused(Code::DatasetBusy, error.to_string()))
            }
            ran => ran.map(|_| ()),
        }
    }
}

/// The names in a folder, sorted; none when it can't be read.
async fn names_in(folder: &Path) -> Vec<String> {
    let paths = crate::drivers::files::list(folder).await.unwrap_or_default();
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
    names.collect()
}

#[cfg(test)]
mod tests;
