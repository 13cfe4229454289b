//! What every service is given: the doors to the outside, the settings, the store's feed, and how
//! work is begun and stopped.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;
use uuid::Uuid;

use super::age::Age;
use super::config::{AppConfig, Parts};
use super::error::AppError;
use super::keys;
use crate::metrics::{Metrics, StaticLabels};
use crate::roster::authority::Authority;
use crate::store::{Counted, Feed, LeaseId, StoreError, list_all};

/// Lost races with other writers of a record before a request fails.
const ATTEMPTS: usize = 10;

/// What the application counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) status_writes: Counter,
    pub(crate) tasks_created: Counter,
    pub(crate) tasks_ended: Counter,
    pub(crate) status_reports: Counter,
    pub(crate) store_commits: Counter,
    /// VMs that were reported by another server than theirs.
    pub(crate) vm_claims: Counter,
}

/// The ground that all services stand on; see the module.
pub struct Context {
    pub(crate) parts: Parts,
    pub(crate) config: AppConfig,
    pub(crate) metrics: Metrics,
    pub(crate) counters: Counters,
    /// What feeds the indices in memory.
    pub(crate) feed: Feed,
    /// This coordinator's lease, to which its membership is bound.
    pub(crate) lease: Mutex<LeaseId>,
    /// Work that a shutdown waits for.
    pub(crate) tracker: TaskTracker,
    /// The application stops.
    pub(crate) cancel: CancellationToken,
    /// All that was under way has ended.
    pub(crate) stopped: CancellationToken,
    /// A background job has ended on its own.
    pub(crate) failed: CancellationToken,
    /// By which records are old.
    age: Age,
    /// Names the store; known once the application runs.
    pub(super) cluster: OnceLock<Uuid>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.parts.instance)
    }
}

impl Context {
    /// Nothing is read yet.
    pub(crate) fn new(config: AppConfig, mut parts: Parts) -> Arc<Self> {
        let metrics = Metrics::new(&StaticLabels {
            datacenter: config.datacenter.clone(),
            instance: parts.instance.clone(),
            server: config.hostname.clone(),
        });
        let counters = Counters::default();
        for (name, help, counter) in [
            ("status_writes", "Writes of a server's status", &counters.status_writes),
            ("tasks_created", "Tasks made", &counters.tasks_created),
            ("tasks_ended", "Tasks ended", &counters.tasks_ended),
            ("status_reports", "Status reports taken over", &counters.status_reports),
            ("store_commits", "Commits to the store", &counters.store_commits),
            (
                "vm_claims_refused",
                "VMs that were reported by another server than theirs",
                &counters.vm_claims,
            ),
        ] {
            metrics.register(name, help, counter.clone());
        }
        parts.store = Arc::new(Counted::new(parts.store, counters.store_commits.clone()));
        let feed = Feed::new(Arc::clone(&parts.store));
        let damaged = feed.damaged().count.clone();
        metrics.register("damaged_records", "Records of the store that can't be read", damaged);
        let age = Age::new(parts.clock.wall(), parts.clock.monotonic());
        Arc::new(Self {
            parts,
            config,
            age,
            metrics,
            counters,
            feed,
            lease: Mutex::new(LeaseId(0)),
            tracker: TaskTracker::new(),
            cancel: CancellationToken::new(),
            stopped: CancellationToken::new(),
            failed: CancellationToken::new(),
            cluster: OnceLock::new(),
        })
    }

    /// Monotonic time.
    pub(crate) fn now(&self) -> Duration {
        self.parts.clock.monotonic()
    }

    /// The wall clock, a label.
    pub(crate) fn wall(&self) -> Timestamp {
        self.parts.clock.wall()
    }

    /// The wall clock, as far as it is believed where it makes records old.
    pub(crate) fn believed(&self) -> Timestamp {
        self.age.now(self.wall(), self.now())
    }

    /// Runs work that must come to its end whatever becomes of who asked for it; a shutdown waits
    /// for it.
    pub(crate) fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.tracker.spawn(work.in_current_span())
    }

    /// A new id; ids sort by the time they were made, so that lists need no index.
    pub(super) fn mint_id(&self) -> Uuid {
        let millis = u64::try_from(self.wall().as_millisecond()).unwrap_or(0);
        let random =
            (u128::from(self.parts.entropy.u64()) << 64) | u128::from(self.parts.entropy.u64());
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&random.to_be_bytes()[..10]);
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    /// This coordinator as a roster authority.
    pub(crate) fn authority(&self) -> Authority {
        Authority { instance: self.parts.instance.clone(), lease: *self.lease.lock() }
    }

    /// Runs an attempt again while it loses races with other writers; in between, memory catches up
    /// with the store. `what` is named to a client whose request has lost [`ATTEMPTS`] times.
    ///
    /// # Errors
    /// Those of the attempt; [`AppError::Busy`], [`AppError::Store`].
    pub(super) async fn retry<R, F: Future<Output = Result<R, AppError>>>(
        &self,
        what: impl fmt::Display,
        attempt: impl Fn() -> F,
    ) -> Result<R, AppError> {
        for _ in 0..ATTEMPTS {
            match attempt().await {
                Err(AppError::Store(error)) if error.is_conflict() => self.feed.catch_up().await?,
                other => return other,
            }
        }
        Err(AppError::Busy(format!("{what} changes too fast")))
    }

    /// The coordinators that are alive, by their leases.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub(crate) async fn members(&self) -> Result<BTreeSet<String>, StoreError> {
        let (records, _) = list_all(&*self.parts.store, keys::MEMBERS).await?;
        let names = records.iter().filter_map(|record| record.key.strip_prefix(keys::MEMBERS));
        Ok(names.map(str::to_owned).collect())
    }
}
