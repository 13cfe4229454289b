//! Memory and disk of the servers. They move all the time, so reads are answered from memory and
//! the store gets them seldom: it is there for servers that are away when a coordinator starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::api::server::{DiskFigures, MemoryFigures};
use muster_shared::ids::ServerUuid;
use muster_shared::wire::status::{Diskinfo, Meminfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Fleet;
use crate::app::error::AppError;
use crate::app::keys;
use crate::store::{Expect, Held, Revision, Write};

/// Shortest time between two writes of one server's figures.
const INTERVAL: Duration = Duration::from_mins(10);
/// Servers whose figures are written in one commit; each needs two of its places.
const BATCH: usize = 50;

/// The names of the figures, in the order in which they are held.
const NAMES: [&str; 15] = [
    "memory_arc_bytes",
    "memory_available_bytes",
    "memory_total_bytes",
    "disk_cores_quota_bytes",
    "disk_cores_quota_used_bytes",
    "disk_installed_images_used_bytes",
    "disk_kvm_quota_bytes",
    "disk_kvm_quota_used_bytes",
    "disk_kvm_zvol_used_bytes",
    "disk_kvm_zvol_volsize_bytes",
    "disk_pool_alloc_bytes",
    "disk_pool_size_bytes",
    "disk_system_used_bytes",
    "disk_zone_quota_bytes",
    "disk_zone_quota_used_bytes",
];

/// The disk figures by the names of a report.
pub fn disk_figures() -> impl Iterator<Item = &'static str> {
    NAMES.iter().filter_map(|name| name.strip_prefix("disk_"))
}

/// Figures that a status report brings: `memory_*` and `disk_*` by CNAPI's names, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, i64>", into = "BTreeMap<String, i64>")]
pub struct Figures {
    /// In the order of [`NAMES`]: every server has them, and they are compared with every report.
    known: [Option<i64>; NAMES.len()],
    /// What another version keeps.
    others: BTreeMap<String, i64>,
}

impl From<BTreeMap<String, i64>> for Figures {
    fn from(map: BTreeMap<String, i64>) -> Self {
        let mut figures = Self::default();
        for (name, bytes) in map {
            figures.set(&name, bytes);
        }
        figures
    }
}

impl From<Figures> for BTreeMap<String, i64> {
    fn from(figures: Figures) -> Self {
        let known = NAMES.iter().zip(figures.known);
        let known = known.filter_map(|(name, bytes)| Some(((*name).to_owned(), bytes?)));
        known.chain(figures.others).collect()
    }
}

impl Figures {
    /// One figure.
    #[must_use]
    pub fn exact(&self, name: &str) -> Option<i64> {
        let place = NAMES.iter().position(|known| *known == name)?;
        self.known[place]
    }

    /// Sets one figure.
    pub fn set(&mut self, name: &str, bytes: i64) {
        match NAMES.iter().position(|known| *known == name) {
            Some(place) => self.known[place] = Some(bytes),
            None => drop(self.others.insert(name.to_owned(), bytes)),
        }
    }

    /// Whether no figure is known.
    fn is_empty(&self) -> bool {
        self.known.iter().all(Option::is_none)
    }

    /// Whether an allocation could come out differently than with others: one of the figures that
    /// are read moved, or one came that was missing or useless.
    pub(super) fn differ(&self, others: &Self, read: &BTreeSet<String>) -> bool {
        let usable = |bytes: Option<i64>| bytes.is_some_and(|bytes| bytes >= 0);
        NAMES
            .iter()
            .zip(self.known.iter().zip(&others.known))
            .any(|(name, (a, b))| a != b && (read.contains(*name) || usable(*a) != usable(*b)))
    }

    /// The memory figures as they are shown.
    #[must_use]
    pub fn memory(&self) -> MemoryFigures {
        MemoryFigures {
            memory_arc_bytes: self.exact("memory_arc_bytes"),
            memory_available_bytes: self.exact("memory_available_bytes"),
            memory_total_bytes: self.exact("memory_total_bytes"),
        }
    }

    /// The disk figures as they are shown.
    #[must_use]
    pub fn disk(&self) -> DiskFigures {
        DiskFigures {
            disk_cores_quota_bytes: self.exact("disk_cores_quota_bytes"),
            disk_cores_quota_used_bytes: self.exact("disk_cores_quota_used_bytes"),
            disk_installed_images_used_bytes: self.exact("disk_installed_images_used_bytes"),
            disk_kvm_quota_bytes: self.exact("disk_kvm_quota_bytes"),
            disk_kvm_quota_used_bytes: self.exact("disk_kvm_quota_used_bytes"),
            disk_kvm_zvol_used_bytes: self.exact("disk_kvm_zvol_used_bytes"),
            disk_kvm_zvol_volsize_bytes: self.exact("disk_kvm_zvol_volsize_bytes"),
            disk_pool_alloc_bytes: self.exact("disk_pool_alloc_bytes"),
            disk_pool_size_bytes: self.exact("disk_pool_size_bytes"),
            disk_system_used_bytes: self.exact("disk_system_used_bytes"),
            disk_zone_quota_bytes: self.exact("disk_zone_quota_bytes"),
            disk_zone_quota_used_bytes: self.exact("disk_zone_quota_used_bytes"),
        }
    }

    /// Takes over some figures that follow one another in [`NAMES`].
    fn set_sizes(&mut self, first: usize, sizes: impl IntoIterator<Item = u64>) {
        for (held, bytes) in self.known[first..].iter_mut().zip(sizes) {
            if let Ok(bytes) = i64::try_from(bytes) {
                *held = Some(bytes);
            }
        }
    }

    /// Takes over a report's memory figures.
    pub fn set_memory(&mut self, info: &Meminfo) {
        self.set_sizes(0, [info.arcsize_bytes, info.availrmem_bytes, info.total_bytes]);
    }

    /// Takes over a report's disk figures.
    pub fn set_disk(&mut self, info: &Diskinfo) {
        let sizes = [
            info.cores_quota_bytes,
            info.cores_quota_used_bytes,
            info.installed_images_used_bytes,
            info.kvm_quota_bytes,
            info.kvm_quota_used_bytes,
            info.kvm_zvol_used_bytes,
            info.kvm_zvol_volsize_bytes,
            info.pool_alloc_bytes,
            info.pool_size_bytes,
            info.system_used_bytes,
            info.zone_quota_bytes,
            info.zone_quota_used_bytes,
        ];
        self.set_sizes(NAMES.len() - sizes.len(), sizes);
    }

    /// Takes over disk figures by the report's names; absent ones keep their value.
    pub fn set_disk_members(&mut self, members: &Object) {
        for name in NAMES {
            let member = name.strip_prefix("disk_").and_then(|name| members.get(name));
            if let Some(bytes) = member.and_then(Value::as_i64) {
                self.set(name, bytes);
            }
        }
    }

    /// Takes over memory figures by the report's names; absent ones keep their value.
    pub fn set_memory_members(&mut self, members: &Object) {
        for (from, to) in [
            ("availrmem_bytes", "memory_available_bytes"),
            ("arcsize_bytes", "memory_arc_bytes"),
            ("total_bytes", "memory_total_bytes"),
        ] {
            if let Some(bytes) = members.get(from).and_then(Value::as_i64) {
                self.set(to, bytes);
            }
        }
    }
}

/// What the store holds of a server's figures.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The record.
    pub(super) record: Held<Figures>,
    /// When this process learned of it, monotonic.
    pub(super) at: Duration,
}

/// Figures to be written.
struct Due {
    server: ServerUuid,
    figures: Figures,
    expect: Expect,
    /// Of the server's own record: figures of a server that was deleted meanwhile are not written.
    registered: Revision,
}

impl Fleet {
    /// Writes figures that moved and were not written for a while, one batch; `true` when more may
    /// be due.
    ///
    /// # Errors
    /// [`AppError::Store`]; nothing of the batch was written and it is tried again.
    pub(crate) async fn save_figures(&self) -> Result<bool, AppError> {
        let now = self.ctx.parts.clock.monotonic();
        let batch = self.figures_due(now);
        if batch.is_empty() {
            return Ok(false);
        }
        let mut writes = Vec::new();
        for due in &batch {
            let bytes = keys::encode(&due.figures);
            writes.push(Write::check(keys::server(due.server), Expect::At(due.registered)));
            writes.push(Write::put(keys::figures(due.server), due.expect, bytes));
        }
        let full = batch.len() == BATCH;
        match self.ctx.feed.commit(writes).await {
            Ok(_) => Ok(full),
            // Another coordinator wrote a server's figures or its record.
            Err(error) if error.is_conflict() => {
                self.ctx.feed.catch_up().await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn figures_due(&self, now: Duration) -> Vec<Due> {
        let mut batch = Vec::new();
        self.for_each(|server, entry| {
            let Some(record) = entry.record.as_ref().filter(|_| batch.len() < BATCH) else {
                return;
            };
            let kept = entry.kept_figures.as_ref();
            let rests = kept.is_some_and(|kept| now.saturating_sub(kept.at) < INTERVAL);
            let stored = kept.map(|kept| &kept.record.value);
            if rests || entry.figures.is_empty() || stored == Some(&entry.figures) {
                return;
            }
            let expect = kept.map_or(Expect::Absent, |kept| Expect::At(kept.record.revision));
            let (figures, registered) = (entry.figures.clone(), record.revision);
            batch.push(Due { server, figures, expect, registered });
        });
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_shared::clock::TokioClock;
    use muster_shared::entropy::SeededEntropy;
    use muster_shared::kv::MemKv;
    use muster_shared::threads::SameRuntime;
    use object_store::memory::InMemory;
    use serde_json::json;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::app::fields::Extras;
    use crate::app::{App, AppConfig, Expected, Parts};
    use crate::store::{KvStore, Store};

    #[test]
    fn figures_are_the_same_by_place_and_by_name() {
        let memory = Meminfo { availrmem_bytes: 1, arcsize_bytes: 2, total_bytes: 3 };
        let names = disk_figures().zip(4..);
        let disk: serde_json::Map<_, _> =
            names.map(|(name, bytes)| (name.to_owned(), json!(bytes))).collect();
        let read: Diskinfo = serde_json::from_value(json!(disk)).unwrap();
        let (mut by_place, mut by_name) = (Figures::default(), Figures::default());
        by_place.set_memory(&memory);
        by_place.set_disk(&read);
        by_name.set_memory_members(&Object::of(&memory));
        by_name.set_disk_members(&disk.into());
        assert_eq!(by_place, by_name);
        assert!(by_place.known.iter().all(Option::is_some));
    }

    fn server() -> ServerUuid {
        ServerUuid(uuid::Uuid::from_u128(1))
    }

    struct Disk(Arc<MemKv>, Arc<TokioClock>);

    impl Disk {
        fn new() -> Self {
            let origin = "2026-01-01T00:00:00Z".parse().unwrap();
            Self(Arc::new(MemKv::default()), Arc::new(TokioClock::new(origin)))
        }

        async fn start(&self, instance: &str) -> Arc<App> {
            let tracker = TaskTracker::new();
            let store = KvStore::open(self.0.clone(), self.1.clone(), &tracker);
            self.start_on(instance, Arc::new(store.await.unwrap())).await
        }

        async fn start_on(&self, instance: &str, store: Arc<dyn Store>) -> Arc<App> {
            let parts = Parts {
                clock: self.1.clone(),
                entropy: Arc::new(SeededEntropy::new(7)),
                threads: Arc::new(SameRuntime),
                store,
                blobs: Arc::new(InMemory::new()),
                instance: instance.to_owned(),
            };
            crate::start(AppConfig::default(), parts).await.unwrap()
        }
    }

    async fn register(app: &Arc<App>) {
        let sysinfo = json!({ "UUID": server() });
        app.reports.register(server(), Object::of(&sysinfo)).await.unwrap();
    }

    fn report(app: &App, free: i64) {
        let body = json!({ "meminfo": { "availrmem_bytes": free, "total_bytes": 1000 } });
        app.reports.status_posted(server(), &Object::of(&body));
    }

    async fn stored(app: &App) -> Option<i64> {
        let record = app.ctx.parts.store.get(&keys::figures(server())).await.unwrap()?;
        keys::decode::<Figures>(&record).unwrap().exact("memory_available_bytes")
    }

    async fn minutes(minutes: u64) {
        tokio::time::sleep(Duration::from_mins(minutes) + Duration::from_secs(5)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn figures_are_written_seldom_and_shown_after_a_restart() {
        let disk = Disk::new();
        let app = disk.start("a").await;
        register(&app).await;
        minutes(0).await;
        assert_eq!(stored(&app).await, None, "nothing was reported yet");
        report(&app, 500);
        minutes(0).await;
        assert_eq!(stored(&app).await, Some(500));
        for free in 501..510 {
            report(&app, free);
            minutes(1).await;
            assert_eq!(stored(&app).await, Some(500), "written too soon");
        }
        minutes(1).await;
        assert_eq!(stored(&app).await, Some(509));
        let before = app.ctx.parts.store.get(&keys::figures(server())).await.unwrap();
        minutes(30).await;
        report(&app, 509);
        minutes(30).await;
        assert_eq!(app.ctx.parts.store.get(&keys::figures(server())).await.unwrap(), before);
        app.shutdown().await;

        let app = disk.start("a").await;
        let extras = Extras::parse("memory");
        let view = app.servers.get(server(), extras).unwrap();
        assert_eq!(view.memory.memory_available_bytes, Some(509));
        report(&app, 600);
        minutes(1).await;
        assert_eq!(stored(&app).await, Some(509), "a restart is no reason to write");
        minutes(10).await;
        assert_eq!(stored(&app).await, Some(600));
        app.servers.delete(server(), &Expected::ANY).await.unwrap();
        minutes(20).await;
        assert_eq!(stored(&app).await, None, "the figures go with their server");
        app.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn two_coordinators_keep_the_interval_together() {
        let disk = Disk::new();
        let store = KvStore::open(disk.0.clone(), disk.1.clone(), &TaskTracker::new()).await;
        let store: Arc<dyn Store> = Arc::new(store.unwrap());
        let one = disk.start_on("a", Arc::clone(&store)).await;
        register(&one).await;
        let other = disk.start_on("b", store).await;
        report(&one, 1);
        minutes(0).await;
        report(&other, 2);
        minutes(0).await;
        assert_eq!(stored(&one).await, Some(1), "the other one wrote a moment ago");
        minutes(10).await;
        assert_eq!(stored(&one).await, Some(2));
        one.shutdown().await;
        other.shutdown().await;
    }
}
