//! The pools' figures, from file systems that may hang: what is to be told of the VMs does not
//! wait for it.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::drivers::DriverError;
use crate::drivers::storage::{Storage, Usage};
use crate::report::feed::PoolAge;

/// Longest wait for fresh figures.
const PATIENCE: Duration = Duration::from_secs(5);
/// Figures are good for so many times as long as it took to get them: a burst of changes of VMs has
/// all of a large pool listed once, and not for each of them.
const GOOD_FOR: u32 = 10;
/// But for no longer than this.
const MAX_AGE: Duration = Duration::from_secs(5);

/// What the storage is asked for.
type Question = JoinHandle<Result<Vec<Usage>, DriverError>>;

/// The figures, and the question that is open.
#[derive(Debug)]
pub(super) struct PoolFigures {
    storage: Arc<dyn Storage>,
    clock: SharedClock,
    // One at a time: each that hangs holds a thread.
    question: tokio::sync::Mutex<Option<Question>>,
    latest: Mutex<Option<Latest>>,
}

/// The newest answer.
#[derive(Clone, Debug)]
struct Latest {
    /// When it came.
    at: Duration,
    good_until: Duration,
    usages: Vec<Usage>,
}

impl PoolFigures {
    pub(super) fn new(storage: Arc<dyn Storage>, clock: SharedClock) -> Self {
        Self { storage, clock, question: tokio::sync::Mutex::default(), latest: Mutex::default() }
    }

    /// Figures as new as wanted; or the latest there are, with a word for people, while nobody
    /// answers.
    ///
    /// # Errors
    /// The figures could not be read, or there never were any.
    pub(super) async fn get(
        &self,
        pools: PoolAge,
    ) -> Result<(Vec<Usage>, Option<String>), DriverError> {
        let mut question = self.question.lock().await;
        if pools == PoolAge::Known && question.as_ref().is_some_and(|asked| !asked.is_finished()) {
            return self.without_answer();
        }
        if let Some(usages) = self.good(pools) {
            let remark = self.untold(&usages);
            return Ok((usages, remark));
        }
        let asked_at = self.clock.monotonic();
        let asked = question.get_or_insert_with(|| {
            let storage = Arc::clone(&self.storage);
            // Ends with its answer, or with the agent's runtime.
            tokio::spawn(async move { storage.usage().await })
        });
        let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
            return self.without_answer();
        };
        *question = None;
        let usages = answer.map_err(|error| DriverError::failed("read the pools", error))??;
        let at = self.clock.monotonic();
        let good_for = at.saturating_sub(asked_at).saturating_mul(GOOD_FOR).min(MAX_AGE);
        let latest = Latest { at, good_until: at + good_for, usages: usages.clone() };
        *self.latest.lock() = Some(latest);
        let remark = self.untold(&usages);
        Ok((usages, remark))
    }

    /// The latest there are; asks nobody.
    pub(super) fn latest(&self) -> Vec<Usage> {
        self.latest.lock().as_ref().map_or_else(Vec::new, |latest| latest.usages.clone())
    }

    fn good(&self, pools: PoolAge) -> Option<Vec<Usage>> {
        // That a pool is back is found out by asking.
        if !self.storage.problems().is_empty() {
            return None;
        }
        let (latest, now) = (self.latest.lock(), self.clock.monotonic());
        let is_good = |latest: &&Latest| pools == PoolAge::Known || now < latest.good_until;
        latest.as_ref().filter(is_good).map(|latest| latest.usages.clone())
    }

    /// Names the pools of which there are no figures.
    fn untold(&self, usages: &[Usage]) -> Option<String> {
        let mut pools = self.storage.pools();
        pools.retain(|pool| !usages.iter().any(|usage| usage.pool == *pool));
        let names = pools.join(", ");
        (!pools.is_empty()).then(|| format!("pool {names}: its figures can't be read"))
    }

    fn without_answer(&self) -> Result<(Vec<Usage>, Option<String>), DriverError> {
        let Some(Latest { at, usages, .. }) = self.latest.lock().clone() else {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(DriverError::failed("read the pools", late));
        };
        let age = self.clock.monotonic().saturating_sub(at).as_secs();
        let pools = self.storage.pools().join(", ");
        let text = format!("pool {pools} does not answer: its figures are {age} s old");
        tracing::warn!(text);
        Ok((usages, Some(text)))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_shared::clock::TokioClock;
    use muster_shared::entropy::SeededEntropy;

    use super::*;
    use crate::drivers::faults::Faults;
    use crate::drivers::storage::sim::{SimPool, SimStorage};

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_answers_slowly_is_asked_less_often() {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let asked_by = async |faults: &Faults, pauses: &[u64]| {
            let storage = Arc::new(SimStorage::new(SimPool::default(), faults.clone()));
            let figures = PoolFigures::new(storage, clock.clone());
            for pause in pauses {
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                figures.get(PoolAge::Fresh).await.unwrap();
            }
            faults.calls("storage.usage")
        };
        assert_eq!(asked_by(&Faults::none(), &[0, 0, 0]).await, 3, "it answers at once");
        let slow = Faults::with_delays(Arc::new(SeededEntropy::new(7)), Duration::from_millis(200));
        assert_eq!(asked_by(&slow, &[0, 0, 0]).await, 1);
        assert_eq!(asked_by(&slow, &[0, 5_000, 0]).await, 1 + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_of_which_something_is_known_need_not_be_asked() {
        let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let faults = Faults::none();
        let storage = Arc::new(SimStorage::new(SimPool::default(), faults.clone()));
        let figures = PoolFigures::new(storage, clock);
        let first = figures.get(PoolAge::Known).await.unwrap();
        assert_eq!(faults.calls("storage.usage"), 1, "nothing was known");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(figures.get(PoolAge::Known).await.unwrap(), first);
        assert_eq!(faults.calls("storage.usage"), 1);
        figures.get(PoolAge::Fresh).await.unwrap();
        assert_eq!(faults.calls("storage.usage"), 2);
    }
}
