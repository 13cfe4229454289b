//! How the host's ZFS pools are, looked at all the time: a disk that was pulled is to be told within
//! seconds, and a pool that hangs must not hang its agent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use parking_lot::Mutex;

use crate::drivers::zfs::{Delegated, PoolHealth, ScanState, Zfs};

/// Between two looks for signs of change, which cost next to nothing.
const LOOK: Duration = Duration::from_secs(2);
/// Between two questions when there is no sign of change.
const ASK: Duration = Duration::from_secs(30);
/// The same while something is wrong, or a scan runs.
const ASK_OFTEN: Duration = Duration::from_secs(10);
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest pause after answers that did not come: each may leave a process that can't be killed.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What is known of the pools.
#[derive(Debug)]
pub struct Zpools {
    zfs: Arc<dyn Zfs>,
    clock: SharedClock,
    latest: Mutex<Latest>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Latest {
    pools: Vec<PoolHealth>,
    /// Names of pools that were there since the agent started.
    seen: BTreeSet<String>,
    /// Why there is no newer answer.
    failure: Option<String>,
    failures: u32,
    asked_at: Option<Duration>,
}

impl Latest {
    /// What is wrong, for people, a line each.
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<_> = self.pools.iter().filter_map(PoolHealth::problem).collect();
        let gone = |name: &&String| !self.pools.iter().any(|pool| pool.name == **name);
        problems.extend(self.seen.iter().filter(gone).map(|name| format!("pool {name} is gone")));
        problems.extend(self.failure.clone());
        problems
    }

    fn is_restless(&self) -> bool {
        let scans = |pool: &PoolHealth| {
            pool.scan.as_ref().is_some_and(|scan| scan.state == ScanState::Running)
        };
        self.failures == 0 && (!self.problems().is_empty() || self.pools.iter().any(scans))
    }

    /// How long the last answer is good enough.
    fn good_for(&self) -> Duration {
        let ask = if self.is_restless() { ASK_OFTEN } else { ASK };
        ask.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE)
    }
}

impl Zpools {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(zfs: Arc<dyn Zfs>, clock: SharedClock) -> Self {
        Self { zfs, clock, latest: Mutex::default() }
    }

    /// Those of a host without ZFS.
    #[must_use]
    pub fn none(clock: SharedClock) -> Self {
        Self::new(Delegated::none().zfs, clock)
    }

    /// ZFS itself.
    #[must_use]
    pub fn zfs(&self) -> &Arc<dyn Zfs> {
        &self.zfs
    }

    /// The pools as of the last answer.
    #[must_use]
    pub fn latest(&self) -> Vec<PoolHealth> {
        self.latest.lock().pools.clone()
    }

    /// What is wrong with them, for people, a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.latest.lock().problems()
    }

    /// Asks now. True when something else is wrong than before.
    pub async fn ask(&self) -> bool {
        let answer = tokio::time::timeout(PATIENCE, self.zfs.health()).await;
        let mut latest = self.latest.lock();
        let before = latest.problems();
        latest.asked_at = Some(self.clock.monotonic());
        match answer {
            Ok(Ok(pools)) => {
                latest.seen.extend(pools.iter().map(|pool| pool.name.clone()));
                latest.pools = pools;
                (latest.failure, latest.failures) = (None, 0);
            }
            Ok(Err(error)) => {
                latest.failure = Some(format!("pools can't be looked at: {}", Chain(&error)));
                latest.failures += 1;
            }
            Err(_) => {
                latest.failure = Some("pools do not answer".to_owned());
                latest.failures += 1;
            }
        }
        let now = latest.problems();
        for problem in now.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!(problem, "a ZFS pool is not as it should be");
        }
        now != before
    }

    /// Looks until it is dropped; `changed` is called when something else is wrong than before.
    pub async fn watch(&self, changed: impl Fn() + Send + Sync) {
        if !self.zfs.availability().works() {
            return std::future::pending().await;
        }
        let mut seen = String::new();
        loop {
            let signs = self.zfs.signs().await;
            let due = {
                let latest = self.latest.lock();
                let age = latest.asked_at.map(|at| self.clock.monotonic().saturating_sub(at));
                // Signs of change are no reason to leave one more process with a pool that hangs.
                let changed = signs != seen && latest.failures == 0;
                changed || age.is_none_or(|age| age >= latest.good_for())
            };
            if due {
                // What changes while it is asked is a sign again.
                seen = signs;
                if self.ask().await {
                    changed();
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use jiff::Timestamp;
    use muster_shared::clock::TokioClock;

    use super::*;
    use crate::drivers::faults::{Fault, Faults};
    use crate::drivers::zfs::sim::{SimPools, SimZfs};

    struct Bench {
        pools: SimPools,
        faults: Faults,
        zpools: Arc<Zpools>,
        changes: Arc<AtomicU32>,
    }

    /// Pools that are watched.
    fn bench() -> Bench {
        let (pools, faults) = (SimPools::new("zones"), Faults::none());
        let zfs = Arc::new(SimZfs::new(pools.clone(), faults.clone()));
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let zpools = Arc::new(Zpools::new(zfs, clock));
        let changes = Arc::new(AtomicU32::new(0));
        let (watched, count) = (zpools.clone(), changes.clone());
        drop(tokio::spawn(async move {
            let changed = || {
                count.fetch_add(1, Ordering::Relaxed);
            };
            watched.watch(changed).await;
        }));
        Bench { pools, faults, zpools, changes }
    }

    async fn seconds(count: u64) {
        tokio::time::sleep(Duration::from_secs(count)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_degrades_is_told_within_seconds_and_so_is_its_repair() {
        let Bench { pools, zpools, changes, .. } = bench();
        seconds(1).await;
        assert_eq!((zpools.latest().len(), zpools.problems()), (1, Vec::new()));
        pools.set_health("zones", "DEGRADED");
        seconds(5).await;
        assert_eq!(zpools.problems(), ["pool zones is DEGRADED, /dev/sim1 is DEGRADED"]);
        assert_eq!(changes.load(Ordering::Relaxed), 1);
        pools.set_health("zones", "ONLINE");
        seconds(5).await;
        assert_eq!(zpools.problems(), Vec::<String>::new());
        assert_eq!(changes.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn pools_that_do_not_answer_are_said_so_and_asked_less_and_less() {
        let Bench { faults, zpools, changes, .. } = bench();
        seconds(1).await;
        for nth in 1..=20 {
            faults.fail_nth("zfs.health", nth, Fault::hangs());
        }
        seconds(60).await;
        assert_eq!(zpools.problems(), ["pools do not answer"]);
        assert_eq!(zpools.latest().len(), 1, "what was known stays");
        let asked = faults.calls("zfs.health");
        seconds(12 * 3600).await;
        assert!(faults.calls("zfs.health") - asked < 20, "{}", faults.calls("zfs.health"));
        seconds(12 * 3600).await;
        assert_eq!(zpools.problems(), Vec::<String>::new(), "it answered in the end");
        assert_eq!(changes.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_not_be_told_is_no_missing_pool() {
        let Bench { faults, zpools, .. } = bench();
        seconds(1).await;
        faults.fail_nth("zfs.health", 1, Fault::before());
        seconds(40).await;
        let problems = zpools.problems();
        assert!(problems[0].starts_with("pools can't be looked at"), "{problems:?}");
        assert_eq!(zpools.latest()[0].health, "ONLINE");
    }
}
