//! What each VM uses, looked at regularly and when somebody wants to know it now; never for a
//! scrape of the metrics. A hypervisor that hangs costs its own VM's disk figures, nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::usage::{DiskUsage, NetUsage, Usages, VmUsage};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::drivers::compute::GuestFacts;
use crate::drivers::network::{Counters, Networks};
use crate::vms::VmTable;

/// Time between two looks by itself.
pub const PERIOD: Duration = Duration::from_secs(30);
/// Longest wait for what one hypervisor says of its disks.
const DISK_LIMIT: Duration = Duration::from_secs(1);
/// VMs looked at at the same time.
const AT_ONCE: usize = 16;
/// Pause before a hypervisor that did not answer is asked again; doubled up to [`MAX_PAUSE`], since
/// each question stays in its socket.
const MIN_PAUSE: Duration = Duration::from_secs(10);
/// Longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(300);

/// Looks at what the VMs use.
#[derive(Debug)]
pub struct UsageSampler {
    clock: SharedClock,
    vms: Arc<VmTable>,
    facts: Arc<dyn GuestFacts>,
    networks: Arc<dyn Networks>,
    latest: Mutex<Latest>,
    // One look at a time; who waits takes its result.
    looking: tokio::sync::Mutex<BTreeMap<VmUuid, Hypervisor>>,
}

#[derive(Debug, Default)]
struct Latest {
    began: Option<Duration>,
    usages: Arc<Usages>,
}

/// How a hypervisor answers.
#[derive(Clone, Copy, Debug)]
struct Hypervisor {
    /// Names its process.
    started_at_ms: u64,
    /// When it answered last, or was asked first; monotonic.
    answered: Duration,
    /// When it may be asked again, monotonic.
    ask_at: Duration,
    /// Questions without an answer, one after the other.
    unanswered: u32,
}

impl Hypervisor {
    fn new(started_at_ms: u64, now: Duration) -> Self {
        Self { started_at_ms, answered: now, ask_at: now, unanswered: 0 }
    }

    fn has_answered(&mut self, now: Duration) {
        *self = Self::new(self.started_at_ms, now);
    }

    fn has_not_answered(&mut self, now: Duration) {
        let pause = MIN_PAUSE.saturating_mul(1 << self.unanswered.min(8)).min(MAX_PAUSE);
        self.ask_at = now.saturating_add(pause);
        self.unanswered = self.unanswered.saturating_add(1);
    }
}

impl UsageSampler {
    /// Has seen nothing yet.
    #[must_use]
    pub fn new(
        clock: SharedClock,
        vms: Arc<VmTable>,
        facts: Arc<dyn GuestFacts>,
        networks: Arc<dyn Networks>,
    ) -> Self {
        let (latest, looking) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { clock, vms, facts, networks, latest, looking }
    }

    /// What was seen last, of the VMs that run.
    #[must_use]
    pub fn latest(&self) -> Arc<Usages> {
        Arc::clone(&self.latest.lock().usages)
    }

    /// What the VMs use, looked at anew if that is older than `max_age`.
    pub async fn within(&self, max_age: Duration) -> Arc<Usages> {
        let asked_at = self.clock.monotonic();
        let is_fresh = || {
            let began = self.latest.lock().began;
            began.is_some_and(|at| at >= asked_at || asked_at.saturating_sub(at) <= max_age)
        };
        if !is_fresh() {
            let mut hypervisors = self.looking.lock().await;
            if !is_fresh() {
                self.look(&mut hypervisors).await;
            }
        }
        self.latest()
    }

    /// Looks regularly until cancelled.
    pub async fn run(&self, cancelled: CancellationToken) {
        let mut due = interval(PERIOD);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looks = async {
            loop {
                due.tick().await;
                self.within(Duration::ZERO).await;
            }
        };
        cancelled.run_until_cancelled(looks).await;
    }

    async fn look(&self, hypervisors: &mut BTreeMap<VmUuid, Hypervisor>) {
        let began = self.clock.monotonic();
        let running = self.vms.which(|entry| entry.observed.is_running()).into_iter();
        let known: Vec<_> = running.map(|vm| (vm, hypervisors.remove(&vm))).collect();
        hypervisors.clear();
        let looks = known.into_iter().map(|(vm, known)| self.look_at(vm, known));
        let mut looks = futures_util::stream::iter(looks).buffer_unordered(AT_ONCE);
        let mut usages = Usages::new();
        let mut net = self.net().await;
        while let Some((vm, seen)) = looks.next().await {
            if let Some((mut usage, hypervisor)) = seen {
                usage.net = net.remove(&vm);
                usages.insert(vm, usage);
                hypervisors.insert(vm, hypervisor);
            }
        }
        *self.latest.lock() = Latest { began: Some(began), usages: Arc::new(usages) };
    }

    /// What went over the interfaces of all VMs, as far as anybody can tell.
    async fn net(&self) -> BTreeMap<VmUuid, NetUsage> {
        let counters = self.networks.counters().await.unwrap_or_else(|error| {
            let error = Chain(&error).to_string();
            tracing::warn!(error, "it is not known what went over the interfaces of VMs");
            BTreeMap::new()
        });
        let at_ms = u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0);
        let usage = |counted: Counters| NetUsage {
            at_ms,
            received_bytes: counted.received_bytes,
            sent_bytes: counted.sent_bytes,
            received_packets: counted.received_packets,
            sent_packets: counted.sent_packets,
        };
        counters.into_iter().map(|(vm, counted)| (vm, usage(counted))).collect()
    }

    async fn look_at(
        &self,
        vm: VmUuid,
        known: Option<Hypervisor>,
    ) -> (VmUuid, Option<(VmUsage, Hypervisor)>) {
        let mut usage = match self.facts.process_usage(vm).await {
            Ok(Some(usage)) => usage,
            // It has ended since.
            Ok(None) => return (vm, None),
            Err(error) => {
                warn(vm, &Chain(&error).to_string());
                return (vm, None);
            }
        };
        let now = self.clock.monotonic();
        let known = known.filter(|known| known.started_at_ms == usage.started_at_ms);
        let mut hypervisor = known.unwrap_or_else(|| Hypervisor::new(usage.started_at_ms, now));
        if hypervisor.ask_at <= now {
            usage.disk = self.ask(vm, &mut hypervisor).await;
        }
        if usage.disk.is_none() {
            let age = self.clock.monotonic().saturating_sub(hypervisor.answered);
            usage.disk_age_ms = Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        }
        (vm, Some((usage, hypervisor)))
    }

    async fn ask(&self, vm: VmUuid, hypervisor: &mut Hypervisor) -> Option<DiskUsage> {
        let answer = tokio::time::timeout(DISK_LIMIT, self.facts.disk_usage(vm)).await;
        let now = self.clock.monotonic();
        let why = match answer {
            Ok(Ok(disk)) => {
                hypervisor.has_answered(now);
                return Some(disk);
            }
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => format!("its hypervisor did not answer in {} ms", DISK_LIMIT.as_millis()),
        };
        if hypervisor.unanswered == 0 {
            warn(vm, &why);
        }
        hypervisor.has_not_answered(now);
        None
    }
}

fn warn(vm: VmUuid, error: &str) {
    tracing::warn!(vm_uuid = %vm, error, "it is not known what a VM uses");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use async_trait::async_trait;
    use jiff::Timestamp;
    use muster_shared::clock::TokioClock;
    use serde_json::Value;

    use super::*;
    use crate::drivers::DriverError;
    use crate::drivers::compute::sim::{SimCompute, SimGuests};
    use crate::drivers::compute::{Compute as _, Resources};
    use crate::drivers::faults::Faults;
    use crate::drivers::network::Nic;
    use crate::drivers::network::sim::{SimHolders, SimNetworks};
    use crate::vms::Node;
    use crate::vms::sim::{SimVmRecords, record};

    /// A driver of whose hypervisors one can be made to hang.
    #[derive(Debug)]
    struct Hanging {
        sim: SimCompute,
        victim: VmUuid,
        hangs: AtomicBool,
        asked: AtomicU64,
    }

    #[async_trait]
    impl GuestFacts for Hanging {
        async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
            self.sim.process_usage(vm).await
        }

        async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError> {
            if vm == self.victim {
                self.asked.fetch_add(1, Ordering::Relaxed);
                if self.hangs.load(Ordering::Relaxed) {
                    std::future::pending::<()>().await;
                }
            }
            self.sim.disk_usage(vm).await
        }

        async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
            self.sim.processes(vm).await
        }
    }

    /// A sampler over VMs number 0 to `count`, of which 0 can hang.
    async fn bench(count: u128) -> (Arc<UsageSampler>, Arc<Hanging>, SimGuests) {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let guests = SimGuests::default();
        let sim = SimCompute::new(guests.clone(), clock.clone(), Faults::none());
        let records = Arc::new(SimVmRecords::default());
        let vms = Arc::new(VmTable::new(records, clock.clone(), Node::default()));
        for number in 0..count {
            vms.create(record(number)).await.unwrap();
            sim.start(&record(number), &Resources::default()).await.unwrap();
        }
        vms.observe_all(&sim).await;
        let (hangs, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let driver = Arc::new(Hanging { sim, victim: record(0).uuid, hangs, asked });
        let networks = Arc::new(SimNetworks::new(SimHolders::default(), Faults::none()));
        networks.attach(record(0).uuid, &[Nic::default()]).await.unwrap();
        let sampler = Arc::new(UsageSampler::new(clock, vms, driver.clone(), networks));
        (sampler, driver, guests)
    }

    #[tokio::test(start_paused = true)]
    async fn counters_grow_and_who_ends_is_gone() {
        let (sampler, _, guests) = bench(2).await;
        let [one, other] = [record(0).uuid, record(1).uuid];
        let first = sampler.within(Duration::ZERO).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let second = sampler.within(Duration::ZERO).await;
        assert_eq!(second[&one].cpu_ms.unwrap() - first[&one].cpu_ms.unwrap(), 2000);
        let read = |usages: &Usages| usages[&one].disk.as_ref().unwrap().read_bytes;
        assert_eq!(read(&second) - read(&first), 20 * 4096);
        assert_eq!(second[&one].disk_age_ms, None);
        let packets = |vm| Some(second[vm].net.as_ref()?.received_packets);
        assert_eq!((packets(&one), packets(&other)), (Some(1), None));
        assert!(Arc::ptr_eq(&second, &sampler.within(PERIOD).await), "it is young enough");
        guests.exit(other, 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let third = sampler.within(Duration::ZERO).await;
        assert_eq!(third.keys().collect::<Vec<_>>(), [&one]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hypervisor_that_hangs_costs_only_its_own_disk_figures() {
        let (sampler, driver, _) = bench(40).await;
        let victim = record(0).uuid;
        sampler.within(Duration::ZERO).await;
        driver.hangs.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(30)).await;
        let before = sampler.clock.monotonic();
        let usages = sampler.within(Duration::ZERO).await;
        assert_eq!(sampler.clock.monotonic() - before, DISK_LIMIT);
        assert_eq!(usages.values().filter(|usage| usage.disk.is_some()).count(), 39);
        let usage = &usages[&victim];
        assert!(usage.disk.is_none() && usage.cpu_ms.is_some() && usage.net.is_some());
        assert_eq!(usage.disk_age_ms, Some(31_000));

        // It is not asked each time, and comes back by itself.
        let asked = driver.asked.load(Ordering::Relaxed);
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let (sampler, stop) = (sampler.clone(), stop.clone());
            async move { sampler.run(stop).await }
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let more = driver.asked.load(Ordering::Relaxed) - asked;
        assert!((12..20).contains(&more), "{more} in an hour");
        assert!(sampler.latest()[&victim].disk_age_ms > Some(3_600_000));
        driver.hangs.store(false, Ordering::Relaxed);
        tokio::time::sleep(MAX_PAUSE + PERIOD).await;
        assert!(sampler.latest()[&victim].disk.is_some());
        stop.cancel();
        running.await.unwrap();
    }
}
