//! Keeps the latest sysinfo and status sample and says when they changed.
//!
//! A change of a VM is sampled at most [`COALESCE`] later, so that several changes share a report
//! and each still reaches the wire within 250 ms. Figures alone cause no report between the
//! periodic ones.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use super::{Activity, Facts, Sample, SysinfoReport, status};
use crate::drivers::DriverError;
use crate::drivers::compute::Compute;
use crate::drivers::storage::Storage;
use crate::vms::VmTable;

/// Changes of VMs within this time share a report; sampling has the rest of the 250 ms.
const COALESCE: Duration = Duration::from_millis(100);
/// Longest time between two reports.
const STATUS_PERIOD: Duration = Duration::from_secs(60);
/// After a sample that failed.
const STATUS_RETRY: Duration = Duration::from_secs(5);
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
}

/// The latest sysinfo and status of this node.
#[derive(Debug)]
pub struct Reporter {
    parts: ReporterParts,
    activity: Mutex<Option<Arc<dyn Activity>>>,
    sysinfo: watch::Sender<Arc<SysinfoReport>>,
    collected_at: Mutex<Option<Duration>>,
    // One collection at a time; who waits takes its result.
    collecting: tokio::sync::Mutex<()>,
    status: watch::Sender<Option<Arc<Sample>>>,
    poke_status: Notify,
    poke_sysinfo: Notify,
}

impl Reporter {
    /// A reporter that has seen nothing yet.
    #[must_use]
    pub fn new(parts: ReporterParts) -> Self {
        Self {
            parts,
            activity: Mutex::default(),
            sysinfo: watch::channel(Arc::default()).0,
            collected_at: Mutex::default(),
            collecting: tokio::sync::Mutex::default(),
            status: watch::channel(None).0,
            poke_status: Notify::new(),
            poke_sysinfo: Notify::new(),
        }
    }

    /// Names the task engine, whose figures then are part of the status.
    pub fn set_activity(&self, activity: Arc<dyn Activity>) {
        *self.activity.lock() = Some(activity);
    }

    /// The sysinfo document; its hash is empty until the first collection. Changes only with the
    /// hash.
    #[must_use]
    pub fn sysinfo(&self) -> watch::Receiver<Arc<SysinfoReport>> {
        self.sysinfo.subscribe()
    }

    /// The latest sample; `None` until the first. Changes when a report is due.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Option<Arc<Sample>>> {
        self.status.subscribe()
    }

    /// Wants a report soon, e.g. because the task engine was paused.
    pub fn poke_status(&self) {
        self.poke_status.notify_one();
    }

    /// Wants sysinfo to be collected anew soon.
    pub fn poke_sysinfo(&self) {
        self.poke_sysinfo.notify_one();
    }

    /// The document, collected anew if it is older than `max_age`.
    pub async fn sysinfo_within(&self, max_age: Duration) -> Arc<SysinfoReport> {
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
        let document = self.parts.facts.sysinfo().await;
        let hash = super::hash(&document);
        let agents = document.get("SDC Agents").and_then(|agents| agents.as_array());
        let agents = agents.cloned().unwrap_or_default();
        let report = Arc::new(SysinfoReport { sysinfo: document, agents, hash });
        *self.collected_at.lock() = Some(self.parts.clock.monotonic());
        self.sysinfo.send_if_modified(|current| {
            let changed = current.hash != report.hash;
            if changed {
                tracing::info!(hash = report.hash, "sysinfo changed");
            }
            *current = report;
            changed
        });
    }

    /// Takes a sample now. It is published if a VM changed since the last one, or if `force`.
    ///
    /// # Errors
    /// A part that every sample must have could not be read; the last sample stays.
    pub async fn sample(&self, force: bool) -> Result<(), DriverError> {
        let parts = &self.parts;
        parts.vms.observe_all(&*parts.compute).await;
        let figures = parts.facts.figures().await?;
        let usage = parts.storage.usage().await?;
        let activity = self.activity.lock().as_ref().map(|a| a.now()).unwrap_or_default();
        let now = parts.clock.wall();
        let sample = status::sample(parts.vms.reports(), figures, &usage, activity, now);
        self.status.send_if_modified(|current| {
            let changed = current.as_ref().is_none_or(|current| current.vms != sample.vms);
            if changed || force {
                *current = Some(Arc::new(sample));
            }
            changed || force
        });
        Ok(())
    }

    /// Keeps both up to date until cancelled.
    pub async fn run(&self, cancelled: CancellationToken) {
        let both = async { tokio::join!(self.run_status(), self.run_sysinfo()) };
        cancelled.run_until_cancelled(both).await;
    }

    async fn run_status(&self) {
        let mut vms = self.parts.vms.subscribe();
        let mut guests = self.parts.compute.changes();
        let mut force = true;
        loop {
            vms.mark_unchanged();
            guests.mark_unchanged();
            let wait = match self.sample(force).await {
                Ok(()) => STATUS_PERIOD,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "cannot take a status sample");
                    STATUS_RETRY
                }
            };
            force = tokio::select! {
                biased;
                () = self.poke_status.notified() => true,
                Ok(()) = vms.changed() => false,
                Ok(()) = guests.changed() => false,
                () = sleep(wait) => true,
            };
            if !force {
                sleep(COALESCE).await;
            }
        }
    }

    async fn run_sysinfo(&self) {
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
                () = self.poke_sysinfo.notified() => {}
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

#[expect(clippy::disallowed_methods, reason = "tokio's intervals count on tokio's own clock")]
fn first_tick() -> Instant {
    Instant::now()
}
