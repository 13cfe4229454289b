//! What flows to one coordinator by itself: results until acknowledged, status, sysinfo, progress.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::ids::TaskId;
use muster_shared::wire::{Intake, Sysinfo};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::bounded::{self, MAX_VMS_BYTES};
use super::desk;
use super::outbox::Outbox;
use crate::report::feed::{Feed, PoolAge, Sample, SysinfoDocument};
use crate::tasks::{Engine, Refused};

/// A result that was not acknowledged for so long is sent again on the same connection.
const RESEND: Duration = Duration::from_secs(5);
/// The same of a result of which the coordinator said that it lacks the task.
const RESEND_DISOWNED: Duration = Duration::from_secs(600);
/// Refusals looked at in one go.
const REFUSALS: usize = 128;
/// Results looked at in one go; the others follow as these are acknowledged.
const WINDOW: usize = 512;
/// Changes of VMs within this time make one report.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How long after a change of a VM the pools are listed, for what it changed of them. A task that
/// changes one thing after the other has them listed once, and does not wait for the processor that
/// this takes.
const SETTLED: Duration = Duration::from_secs(2);
/// A report without any change, for the figures.
const PERIOD: Duration = Duration::from_secs(60);
/// Before a failed sample is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Why a sample is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// A VM has changed.
    Changed,
    /// What it changed of the pools is to be told.
    Settled,
    /// All figures are, whatever has changed.
    Due,
}

/// Takes samples when something has changed, for all connections.
#[derive(Debug)]
pub(super) struct Samples {
    engine: Arc<Engine>,
    feed: Arc<dyn Feed>,
    latest: watch::Sender<Option<Arc<Sample>>>,
    now: Notify,
}

impl Samples {
    pub(super) fn new(engine: Arc<Engine>, feed: Arc<dyn Feed>) -> Arc<Self> {
        let latest = watch::Sender::new(None);
        Arc::new(Self { engine, feed, latest, now: Notify::new() })
    }

    /// Queues a full report on one connection; a fresh one follows if there is none yet.
    pub(super) fn full(&self, outbox: &Outbox) {
        match self.latest.borrow().clone() {
            Some(sample) => outbox.status(sample, true),
            None => self.now.notify_one(),
        }
    }

    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut changed = self.feed.changed();
        let mut intake = self.engine.intake();
        let mut engine = self.engine.watch();
        let mut due = pin!(sleep(Duration::ZERO));
        let (mut settled, mut unsettled) = (pin!(sleep(SETTLED)), false);
        loop {
            let why = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.now.notified() => Why::Due,
                Ok(()) = changed.changed() => {
                    sleep(DEBOUNCE).await;
                    changed.mark_unchanged();
                    Why::Changed
                }
                Ok(()) = engine.changed() => {
                    // Only a change of intake is worth a report before its time.
                    let old = std::mem::replace(&mut intake, self.engine.intake());
                    if old == intake {
                        continue;
                    }
                    Why::Due
                }
                () = settled.as_mut(), if unsettled => Why::Settled,
                () = due.as_mut() => Why::Due,
            };
            let pools = if why == Why::Changed { PoolAge::Known } else { PoolAge::Fresh };
            match self.feed.sample(pools).await {
                Ok(sample) => self.publish(sample, why),
                Err(error) => {
                    let error = muster_shared::error_chain::Chain(&error).to_string();
                    tracing::warn!(error, "no status sample");
                    unsettled = false;
                    due.set(sleep(RETRY));
                    continue;
                }
            }
            match why {
                // At most so long after the first of several changes.
                Why::Changed if !unsettled => settled.set(sleep(SETTLED)),
                Why::Changed | Why::Settled => {}
                Why::Due => due.set(sleep(PERIOD)),
            }
            unsettled = why == Why::Changed;
        }
    }

    fn publish(&self, mut sample: Sample, why: Why) {
        let reduced = bounded::fit(&mut sample.vms, MAX_VMS_BYTES);
        let news = match self.latest.borrow().as_ref() {
            None => true,
            Some(latest) => match why {
                Why::Changed => latest.vms != sample.vms,
                Why::Settled => latest.vms != sample.vms || pools_differ(latest, &sample),
                Why::Due => true,
            },
        };
        if !news {
            return;
        }
        if reduced > 0 {
            let note = format!("the tags of {reduced} VMs are too large to be reported");
            tracing::warn!(note);
            sample.degraded.push(note);
        }
        if why == Why::Due
            && let Some(usage) = &mut sample.figures.usage
        {
            let left_out = bounded::fit_usage(usage, &sample.vms);
            if left_out > 0 {
                let note = format!("there is no room to report what {left_out} VMs use");
                tracing::warn!(note);
                sample.degraded.push(note);
            }
        } else {
            // A change of one VM is no reason to tell the figures of all.
            sample.figures.usage = None;
        }
        remark(&mut sample, &self.engine);
        self.latest.send_replace(Some(Arc::new(sample)));
    }
}

fn pools_differ(a: &Sample, b: &Sample) -> bool {
    let of =
        |sample: &Sample| (sample.figures.zpool_status.clone(), sample.figures.diskinfo.clone());
    of(a) != of(b)
}

/// Adds to a sample what the agent says of itself.
pub(crate) fn remark(sample: &mut Sample, engine: &Engine) {
    let (counts, intake) = (engine.counts(), engine.intake());
    let mut muster = match sample.figures.muster.take() {
        Value::Object(muster) => muster,
        _ => serde_json::Map::new(),
    };
    muster.insert("agent_version".into(), json!(env!("CARGO_PKG_VERSION")));
    muster.insert("draining".into(), json!(intake != Intake::Accepting));
    muster.insert("intake".into(), json!(intake));
    muster.insert("paused_by".into(), json!(engine.paused_by()));
    muster.insert("active_tasks".into(), json!(counts.active));
    muster.insert("queued_tasks".into(), json!(counts.queued));
    if !sample.degraded.is_empty() {
        muster.insert("degraded".into(), json!(sample.degraded));
    }
    sample.figures.muster = Value::Object(muster);
}

/// The sysinfo message of a document.
pub(super) fn sysinfo_message(document: &SysinfoDocument) -> Sysinfo {
    Sysinfo {
        sysinfo: Some(document.sysinfo.clone()),
        agents: Some(document.agents.clone()),
        hash: document.hash.clone(),
    }
}

/// Feeds one connection's outbox until the connection is gone.
#[derive(Debug)]
pub(super) struct Pump {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: SharedClock,
    pub(super) sysinfo: watch::Receiver<Arc<SysinfoDocument>>,
    /// Hash of what the coordinator has.
    pub(super) known_hash: String,
    pub(super) samples: Arc<Samples>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) gone: CancellationToken,
    /// When the connection began, monotonic.
    pub(super) began: Duration,
    /// The coordinator acknowledges refusals, so they are repeated until it does.
    pub(super) repeats: bool,
}

impl Pump {
    pub(super) async fn run(mut self) {
        let mut progress = self.engine.progress();
        let mut results = self.engine.watch();
        let mut samples = self.samples.latest.subscribe();
        let (mut sent, mut refused) = (BTreeMap::new(), BTreeMap::new());
        samples.mark_unchanged();
        self.samples.full(&self.outbox);
        self.sysinfo.mark_changed();
        for event in self.engine.latest_progress() {
            self.outbox.progress(event);
        }
        loop {
            let due = self.send_results(&mut sent).await.min(self.send_refusals(&mut refused));
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return,
                Ok(()) = samples.changed() => {
                    if let Some(sample) = samples.borrow_and_update().clone() {
                        self.outbox.status(sample, false);
                    }
                }
                Ok(()) = self.sysinfo.changed() => self.send_sysinfo(),
                Ok(()) = results.changed() => {}
                () = self.outbox.room() => {}
                event = progress.recv() => if let Ok(event) = event {
                    self.outbox.progress((*event).clone());
                },
                () = sleep(due) => {}
            }
        }
    }

    /// Queues results that are due, as far as there is room; returns when to look again.
    async fn send_results(&self, sent: &mut BTreeMap<TaskId, Duration>) -> Duration {
        let ids = self.engine.unacked_ids(WINDOW);
        sent.retain(|id, _| ids.contains(id));
        let mut next = RESEND;
        for id in ids {
            let now = self.clock.monotonic();
            let resend = if self.engine.is_disowned(&id) { RESEND_DISOWNED } else { RESEND };
            if let Some(at) = sent.get(&id)
                && now.saturating_sub(*at) < resend
            {
                next = next.min((*at + resend).saturating_sub(now));
                continue;
            }
            if !self.outbox.has_room() {
                break;
            }
            let Some(result) = self.engine.result(&id).await else { continue };
            if !self.outbox.try_result(result) {
                break;
            }
            sent.insert(id, now);
        }
        next
    }

    fn send_sysinfo(&mut self) {
        let document = self.sysinfo.borrow_and_update().clone();
        if document.hash != self.known_hash && !document.hash.is_empty() {
            self.known_hash.clone_from(&document.hash);
            self.outbox.sysinfo(sysinfo_message(&document));
        }
    }

    /// Says again what will not run; returns when to look again.
    fn send_refusals(&self, sent: &mut BTreeMap<TaskId, Duration>) -> Duration {
        let now = self.clock.monotonic();
        let refusals: BTreeMap<_, _> = self.engine.refusals(REFUSALS).into_iter().collect();
        sent.retain(|id, _| refusals.contains_key(id));
        let mut next = RESEND;
        for (id, Refused { refusal, refused_at }) in refusals {
            let refused_at = refused_at.filter(|refused_at| *refused_at >= self.began);
            match sent.get(&id).copied().or(refused_at) {
                Some(_) if !self.repeats => {}
                Some(at) if now.saturating_sub(at) < RESEND => {
                    next = next.min((at + RESEND).saturating_sub(now));
                }
                Some(_) | None => {
                    self.outbox.control(desk::error(&id, &refusal));
                    sent.insert(id, now);
                }
            }
        }
        next
    }
}
