//! Faults and delays for simulated drivers: which call fails, before or after it took effect.
//!
//! The plan is shared by everything that holds a clone, so a test can add faults while an agent
//! runs, and an agent that is started again goes on counting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::entropy::SharedEntropy;
use muster_shared::wire::Code;
use parking_lot::Mutex;

use super::DriverError;

/// When a planned fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing was done.
    Before,
    /// It was done, but the caller is told that it failed.
    After,
    /// Nothing was done for longer than any task may run; then it fails.
    Hangs,
}

/// How long a call hangs.
pub const HANG: Duration = Duration::from_secs(3 * 3600);

/// A planned failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Before or after the effect.
    pub when: When,
    /// `None`: the host failed; else a refusal with this code, e.g. `StoreFull`.
    pub code: Option<Code>,
}

impl Fault {
    /// The host fails before anything was done.
    #[must_use]
    pub fn before() -> Self {
        Self { when: When::Before, code: None }
    }

    /// The host fails although all was done.
    #[must_use]
    pub fn after() -> Self {
        Self { when: When::After, code: None }
    }

    /// The host hangs.
    #[must_use]
    pub fn hangs() -> Self {
        Self { when: When::Hangs, code: None }
    }

    /// A refusal before anything was done.
    #[must_use]
    pub fn refusal(code: Code) -> Self {
        Self { when: When::Before, code: Some(code) }
    }

    fn error(&self, operation: &str) -> DriverError {
        match &self.code {
            Some(code) => {
                let text = format!("{operation}: {code} (injected)");
                DriverError::refused(code.clone(), text)
            }
            None => DriverError::failed(operation.to_owned(), "injected fault"),
        }
    }
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<&'static str, u64>,
    faults: BTreeMap<(&'static str, u64), Fault>,
}

/// The plan of one simulated host; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// Source of delays, and the longest one.
    delays: Option<(SharedEntropy, Duration)>,
}

impl Faults {
    /// No fault is planned and nothing takes time.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Every call takes up to `longest` before and again after its effect, in tokio's (paused)
    /// time; that is where a simulated crash can strike.
    #[must_use]
    pub fn with_delays(entropy: SharedEntropy, longest: Duration) -> Self {
        Self { plan: Arc::default(), delays: Some((entropy, longest)) }
    }

    /// Lets the `nth` call from now (1 = the next one) of `operation` fail.
    pub fn fail_nth(&self, operation: &'static str, nth: u64, fault: Fault) {
        let mut plan = self.plan.lock();
        let made = plan.calls.get(operation).copied().unwrap_or(0);
        plan.faults.insert((operation, made.saturating_add(nth)), fault);
    }

    /// How often `operation` was called so far.
    #[must_use]
    pub fn calls(&self, operation: &'static str) -> u64 {
        self.plan.lock().calls.get(operation).copied().unwrap_or(0)
    }

    /// Every operation that was called, with how often.
    #[must_use]
    pub fn called(&self) -> BTreeMap<&'static str, u64> {
        self.plan.lock().calls.clone()
    }

    /// Makes one simulated call: delay, planned fault, effect, planned fault, delay.
    ///
    /// # Errors
    /// The planned fault, or what `effect` returns.
    pub async fn call<T>(
        &self,
        operation: &'static str,
        effect: impl FnOnce() -> Result<T, DriverError> + Send,
    ) -> Result<T, DriverError> {
        let fault = {
            let mut plan = self.plan.lock();
            let count = plan.calls.entry(operation).or_insert(0);
            *count += 1;
            let key = (operation, *count);
            plan.faults.remove(&key)
        };
        self.delay().await;
        match fault {
            Some(fault) if fault.when == When::Before => Err(fault.error(operation)),
            Some(fault) if fault.when == When::Hangs => {
                tokio::time::sleep(HANG).await;
                Err(fault.error(operation))
            }
            Some(fault) => {
                effect()?;
                self.delay().await;
                Err(fault.error(operation))
            }
            None => {
                let value = effect()?;
                self.delay().await;
                Ok(value)
            }
        }
    }

    async fn delay(&self) {
        if let Some((entropy, longest)) = &self.delays {
            tokio::time::sleep(longest.mul_f64(entropy.fraction())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn the_planned_call_fails_before_or_after_its_effect() {
        let faults = Faults::none();
        let done = AtomicU32::new(0);
        let call = || {
            faults.call("write", || {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        call().await.unwrap();
        faults.fail_nth("write", 1, Fault::before());
        faults.fail_nth("write", 2, Fault::after());
        faults.fail_nth("write", 3, Fault::refusal(Code::StoreFull));
        call().await.unwrap_err();
        assert_eq!(done.load(Ordering::Relaxed), 1);
        call().await.unwrap_err();
        assert_eq!(done.load(Ordering::Relaxed), 2);
        let refused = call().await.unwrap_err();
        assert!(matches!(refused, DriverError::Refused { code: Code::StoreFull, .. }));
        call().await.unwrap();
        assert_eq!((done.load(Ordering::Relaxed), faults.calls("write")), (3, 5));
    }
}
