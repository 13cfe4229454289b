//! The link's feed: status samples on demand, and the latest sysinfo document, collected anew
//! when the host has changed, when asked, and every five minutes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::pool::PoolFigures;
use super::{Facts, Interface, UsageSampler, Zpools, status};
use crate::drivers::DriverError;
use crate::drivers::compute::{Compute, GuestFacts};
use crate::drivers::network::Networks;
use crate::drivers::storage::{Storage, Usage};
use crate::report::feed::{Feed, PoolAge, Sample, SysinfoDocument};
use crate::vms::VmTable;

/// Longest time between two collections of sysinfo.
const SYSINFO_PERIOD: Duration = Duration::from_secs(300);
/// How often the host is looked at for changes of links, disks or its name.
const FINGERPRINT_PERIOD: Duration = Duration::from_secs(10);

/// What a reporter works with.
#[derive(Clone, Debug)]
pub struct ReporterParts {
    /// Time.
    pub clock: SharedClock,
    /// Reads the host.
    pub facts: Arc<dyn Facts>,
    /// The VMs.
    pub vms: Arc<VmTable>,
    /// Where they run.
    pub compute: Arc<dyn Compute>,
    /// Where their disks are.
    pub storage: Arc<dyn Storage>,
    /// What connects them.
    pub networks: Arc<dyn Networks>,
    /// ZFS pools of the host.
    pub zpools: Arc<Zpools>,
}

/// What this node tells about itself.
#[derive(Debug)]
pub struct Reporter {
    parts: ReporterParts,
    usage: UsageSampler,
    pool: PoolFigures,
    pool_remark: Mutex<Option<String>>,
    data_remark: Mutex<Option<String>>,
    bridge_remarks: Mutex<Vec<String>>,
    /// As of the last sample.
    storage_problems: Mutex<Vec<String>>,
    sysinfo: watch::Sender<Arc<SysinfoDocument>>,
    collected_at: Mutex<Option<Duration>>,
    // One collection at a time; who waits takes its result.
    collecting: tokio::sync::Mutex<()>,
    poke: Notify,
}

impl Reporter {
    /// A reporter that has seen nothing yet.
    #[must_use]
    pub fn new(parts: ReporterParts) -> Self {
        let facts = Arc::clone(&parts.compute) as Arc<dyn GuestFacts>;
        Self {
            usage: UsageSampler::new(
                parts.clock.clone(),
                parts.vms.clone(),
                facts,
                parts.networks.clone(),
            ),
            pool: PoolFigures::new(parts.storage.clone(), parts.clock.clone()),
            parts,
            pool_remark: Mutex::default(),
            data_remark: Mutex::default(),
            bridge_remarks: Mutex::default(),
            storage_problems: Mutex::default(),
            sysinfo: watch::channel(Arc::default()).0,
            collected_at: Mutex::default(),
            collecting: tokio::sync::Mutex::default(),
            poke: Notify::new(),
        }
    }

    /// What the VMs use.
    #[must_use]
    pub fn usage(&self) -> &UsageSampler {
        &self.usage
    }

    /// Says what is wrong with the pool, for people, in place of what was said before.
    pub fn set_pool_remark(&self, remark: Option<String>) {
        *self.pool_remark.lock() = remark;
    }

    /// Says what is wrong with the data folder, for people.
    pub fn set_data_remark(&self, remark: String) {
        *self.data_remark.lock() = Some(remark);
    }

    /// Says what is wrong with the bridges of nic tags, in place of what was said before.
    pub fn set_bridge_remarks(&self, remarks: Vec<String>) {
        let mut said = self.bridge_remarks.lock();
        for remark in remarks.iter().filter(|remark| !said.contains(remark)) {
            tracing::warn!(problem = remark, "the bridge of a nic tag is not as it should be");
        }
        *said = remarks;
    }

    /// What is wrong that only people can change, a line each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.parts.vms.remarks();
        remarks.extend(self.pool_remark.lock().clone());
        remarks.extend(self.parts.storage.problems());
        remarks.extend(self.parts.zpools.problems());
        remarks.extend(self.data_remark.lock().clone());
        remarks.extend(self.bridge_remarks.lock().iter().cloned());
        remarks
    }

    /// The figures of the pools as of the last sample; empty before the first.
    #[must_use]
    pub fn pool_usages(&self) -> Vec<Usage> {
        self.pool.latest()
    }

    /// The host's ZFS pools.
    #[must_use]
    pub fn zpools(&self) -> &Zpools {
        &self.parts.zpools
    }

    /// Wants sysinfo to be collected anew soon.
    pub fn poke_sysinfo(&self) {
        self.poke.notify_one();
    }

    /// The interfaces of the host, as they are now.
    pub async fn interfaces(&self) -> Vec<Interface> {
        self.parts.facts.interfaces().await
    }

    /// Whether the host has a systemd unit of this name, without `.service`.
    pub async fn has_service(&self, name: &str) -> bool {
        self.parts.facts.has_service(name).await
    }

    /// The document, collected anew if it is older than `max_age`.
    pub async fn sysinfo_within(&self, max_age: Duration) -> Arc<SysinfoDocument> {
        let asked_at = self.parts.clock.monotonic();
        let fresh = |at: Option<Duration>| {
            at.is_some_and(|at| at >= asked_at || asked_at.saturating_sub(at) <= max_age)
        };
        if !fresh(*self.collected_at.lock()) {
            let _alone = self.collecting.lock().await;
            if !fresh(*self.collected_at.lock()) {
                self.collect().await;
            }
        }
        Arc::clone(&self.sysinfo.borrow())
    }

    async fn collect(&self) {
        // What changes meanwhile may be missing: the document is as old as its first look.
        let began = self.parts.clock.monotonic();
        let mut sysinfo = self.parts.facts.sysinfo().await;
        extend_degraded(&mut sysinfo, self.parts.storage.problems());
        let hash = super::hash(&sysinfo);
        let agents = sysinfo.get("SDC Agents").and_then(|agents| agents.as_array());
        let agents = agents.cloned().unwrap_or_default();
        let document = Arc::new(SysinfoDocument { sysinfo, agents, hash });
        *self.collected_at.lock() = Some(began);
        self.sysinfo.send_if_modified(|current| {
            let changed = current.hash != document.hash;
            if changed {
                tracing::info!(hash = document.hash, "sysinfo changed");
            }
            *current = document;
            changed
        });
    }

    /// Has sysinfo say it when a pool can't be used any more, or can again.
    fn look_for_storage_problems(&self) {
        let problems = self.parts.storage.problems();
        let mut known = self.storage_problems.lock();
        if *known != problems {
            *known = problems;
            self.poke_sysinfo();
        }
    }

    /// Keeps the document and the VMs' figures up to date until cancelled.
    pub async fn run(&self, cancelled: CancellationToken) {
        let watching = cancelled.run_until_cancelled(self.watch_host());
        let zpools = self.parts.zpools.watch(|| self.poke_sysinfo());
        let zpools = cancelled.run_until_cancelled(zpools);
        tokio::join!(watching, zpools, self.usage.run(cancelled.clone()));
    }

    async fn watch_host(&self) {
        let start = first_tick();
        let mut rebuild = interval_at(start + SYSINFO_PERIOD, SYSINFO_PERIOD);
        let mut look = interval_at(start + FINGERPRINT_PERIOD, FINGERPRINT_PERIOD);
        rebuild.set_missed_tick_behavior(MissedTickBehavior::Delay);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = self.parts.facts.fingerprint().await;
        // The start-up may have collected it a moment ago.
        self.sysinfo_within(FINGERPRINT_PERIOD).await;
        loop {
            tokio::select! {
                biased;
                () = self.poke.notified() => {}
                _ = rebuild.tick() => {}
                _ = look.tick() => {
                    let now = self.parts.facts.fingerprint().await;
                    if now == seen {
                        continue;
                    }
                    seen = now;
                }
            }
            self.sysinfo_within(Duration::ZERO).await;
        }
    }
}

#[async_trait]
impl Feed for Reporter {
    async fn sample(&self, pools: PoolAge) -> Result<Sample, DriverError> {
        let parts = &self.parts;
        parts.vms.observe_all(&*parts.compute).await;
        let figures = parts.facts.figures().await?;
        let (usages, hangs) = self.pool.get(pools).await?;
        self.look_for_storage_problems();
        let (vms, mut degraded) = (parts.vms.reports(), self.remarks());
        degraded.extend(hangs);
        let zpools = parts.zpools.latest();
        let now = parts.clock.wall();
        let mut sample = status::sample(vms, figures, &usages, &zpools, degraded, now);
        let mut used = (*self.usage.latest()).clone();
        used.retain(|vm, _| sample.vms.contains_key(vm));
        sample.figures.usage = Some(used);
        Ok(sample)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.parts.vms.subscribe()
    }

    fn sysinfo(&self) -> watch::Receiver<Arc<SysinfoDocument>> {
        self.sysinfo.subscribe()
    }

    async fn refresh(&self) -> Arc<SysinfoDocument> {
        self.sysinfo_within(Duration::ZERO).await
    }
}

fn extend_degraded(sysinfo: &mut Map<String, Value>, problems: Vec<String>) {
    let degraded = sysinfo.get_mut("Muster").and_then(|block| block.get_mut("degraded"));
    if let Some(degraded) = degraded.and_then(Value::as_array_mut) {
        degraded.extend(problems.into_iter().map(Value::from));
    }
}

#[expect(clippy::disallowed_methods, reason = "tokio's intervals count on tokio's own clock")]
fn first_tick() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_shared::clock::TokioClock;

    use super::super::Figures;
    use super::*;
    use crate::drivers::compute::Resources;
    use crate::drivers::compute::sim::{SimCompute, SimGuests};
    use crate::drivers::faults::{Fault, Faults};
    use crate::drivers::network::UserNetworks;
    use crate::drivers::storage::sim::{SimPool, SimStorage};
    use crate::report::sim::SimFacts;
    use crate::vms::Node;
    use crate::vms::sim::{SimVmRecords, record};

    struct Bench {
        reporter: Arc<Reporter>,
        facts: Arc<SimFacts>,
        guests: SimGuests,
        faults: Faults,
    }

    fn bench() -> Bench {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let (guests, faults) = (SimGuests::default(), Faults::none());
        let uuid = uuid::Uuid::nil().into();
        let facts = Arc::new(SimFacts::new(uuid, 1, Timestamp::UNIX_EPOCH, "boot-1"));
        let records = Arc::new(SimVmRecords::default());
        let reporter = Arc::new(Reporter::new(ReporterParts {
            facts: facts.clone(),
            vms: Arc::new(VmTable::new(records, clock.clone(), Node::default())),
            compute: Arc::new(SimCompute::new(guests.clone(), clock.clone(), Faults::none())),
            storage: Arc::new(SimStorage::new(SimPool::default(), faults.clone())),
            networks: Arc::new(UserNetworks::restricted()),
            zpools: Arc::new(Zpools::none(clock.clone())),
            clock,
        }));
        Bench { reporter, facts, guests, faults }
    }

    #[tokio::test(start_paused = true)]
    async fn sysinfo_is_kept_until_the_host_changes() {
        let Bench { reporter, facts, .. } = bench();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let (reporter, stop) = (reporter.clone(), stop.clone());
            async move { reporter.run(stop).await }
        });
        let mut sysinfo = reporter.sysinfo();
        sysinfo.changed().await.unwrap();
        let first = sysinfo.borrow_and_update().clone();
        assert_eq!((first.hash.len(), first.agents.len()), (64, 2));
        // Collected again and again, the same document causes no change.
        let quiet = tokio::time::timeout(2 * SYSINFO_PERIOD, sysinfo.changed()).await;
        assert!(quiet.is_err());
        facts.reboot(Timestamp::UNIX_EPOCH, "boot-2");
        let soon = tokio::time::timeout(2 * FINGERPRINT_PERIOD, sysinfo.changed()).await;
        soon.unwrap().unwrap();
        assert_ne!(sysinfo.borrow().hash, first.hash);
        stop.cancel();
        running.await.unwrap();
    }

    /// Tells what it saw a second ago.
    #[derive(Debug)]
    struct SlowFacts(Arc<SimFacts>);

    #[async_trait]
    impl Facts for SlowFacts {
        async fn sysinfo(&self) -> Map<String, Value> {
            let seen = self.0.sysinfo().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            seen
        }

        async fn figures(&self) -> Result<Figures, DriverError> {
            self.0.figures().await
        }

        async fn fingerprint(&self) -> String {
            self.0.fingerprint().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_after_a_change_gets_no_document_that_was_begun_before() {
        let bench = bench();
        let parts = ReporterParts {
            facts: Arc::new(SlowFacts(bench.facts.clone())),
            ..bench.reporter.parts.clone()
        };
        let reporter = Reporter::new(parts);
        let change = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            bench.facts.reboot(Timestamp::UNIX_EPOCH, "boot-2");
            reporter.sysinfo_within(Duration::ZERO).await
        };
        let (before, after) = tokio::join!(reporter.sysinfo_within(Duration::ZERO), change);
        assert_eq!(before.sysinfo["Muster"]["boot_id"], "boot-1");
        assert_eq!(after.sysinfo["Muster"]["boot_id"], "boot-2");
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_ended_by_itself_is_seen_in_the_next_sample() {
        let Bench { reporter, guests, .. } = bench();
        let vm = record(1);
        reporter.parts.vms.create(vm.clone()).await.unwrap();
        reporter.parts.compute.start(&vm, &Resources::default()).await.unwrap();
        assert_eq!(
            reporter.sample(PoolAge::Fresh).await.unwrap().vms[&vm.uuid].vm.zone_state,
            "running"
        );
        guests.exit(vm.uuid, 0);
        let after = reporter.sample(PoolAge::Fresh).await.unwrap();
        assert_ne!(after.vms[&vm.uuid].vm.zone_state, "running");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_hangs_does_not_silence_its_node() {
        let Bench { reporter, guests, faults, .. } = bench();
        let vm = record(1);
        reporter.parts.vms.create(vm.clone()).await.unwrap();
        reporter.parts.compute.start(&vm, &Resources::default()).await.unwrap();
        let before = reporter.sample(PoolAge::Fresh).await.unwrap();
        assert_eq!(before.degraded, Vec::<String>::new());
        faults.fail_nth("storage.usage", 1, Fault::hangs());
        guests.exit(vm.uuid, 0);
        let soon = Duration::from_secs(10);
        for _ in 0..3 {
            let sample =
                tokio::time::timeout(soon, reporter.sample(PoolAge::Fresh)).await.unwrap().unwrap();
            assert_ne!(sample.vms[&vm.uuid].vm.zone_state, "running");
            assert_eq!(sample.figures.zpool_status, before.figures.zpool_status);
            assert!(sample.degraded[0].contains("does not answer"), "{:?}", sample.degraded);
        }
        // Nobody asks again before there is an answer: each question holds a thread.
        assert_eq!(faults.calls("storage.usage"), 2);
        tokio::time::sleep(crate::drivers::faults::HANG).await;
        reporter.sample(PoolAge::Fresh).await.unwrap_err();
        assert_eq!(reporter.sample(PoolAge::Fresh).await.unwrap().degraded, Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sample_is_whole_or_not_at_all() {
        let Bench { reporter, faults, .. } = bench();
        faults.fail_nth("storage.usage", 1, Fault::before());
        reporter.sample(PoolAge::Fresh).await.unwrap_err();
        let sample = reporter.sample(PoolAge::Fresh).await.unwrap();
        let pool = &sample.figures.zpool_status["zones"];
        assert_eq!(pool.bytes_available, 64 << 30);
        assert!(sample.figures.meminfo.unwrap().total_bytes > 0);
    }
}
