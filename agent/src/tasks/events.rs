//! Progress of one task: at most four events a second leave it. The newest is never lost, nor is the
//! step that began last, which says what the task does; the last ones are kept for whoever asks.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_shared::clock::{SharedClock, iso};
use muster_shared::ids::TaskId;
use muster_shared::wire::Progress;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::broadcast;

use super::EventSink;

/// Events of one task that leave within [`WINDOW`].
const PER_WINDOW: usize = 4;
/// See [`PER_WINDOW`].
const WINDOW: Duration = Duration::from_secs(1);
/// Events kept per task.
const KEPT: usize = 256;

/// The events of one task.
#[derive(Debug)]
pub(super) struct TaskEvents {
    this: Weak<Self>,
    id: TaskId,
    clock: SharedClock,
    runtime: Handle,
    out: broadcast::Sender<Arc<Progress>>,
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    seq: u64,
    sent: VecDeque<Duration>,
    /// Held back: the newest event, and before it the step that began last.
    pending: Option<Progress>,
    step: Option<Progress>,
    /// Somebody waits to send what is held back.
    timer: bool,
    kept: VecDeque<Progress>,
    percent: u64,
}

impl TaskEvents {
    /// Events of `id`, sent to `out`; `runtime` runs the timer of held-back events.
    #[must_use]
    pub(super) fn new(
        id: TaskId,
        clock: SharedClock,
        runtime: Handle,
        out: broadcast::Sender<Arc<Progress>>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            id,
            clock,
            runtime,
            out,
            state: Mutex::default(),
        })
    }

    /// The newest event, for a connection that has just come up.
    #[must_use]
    pub(super) fn latest(&self) -> Option<Progress> {
        self.state.lock().kept.back().cloned()
    }

    /// The kept events as history messages.
    #[must_use]
    pub(super) fn messages(&self) -> Vec<Value> {
        let state = self.state.lock();
        let message = |event: &Progress| {
            json!({
                "type": "event", "name": event.name, "event": event.event,
                "timestamp": event.ts,
            })
        };
        state.kept.iter().map(message).collect()
    }

    /// Reports `percent` unless more was reported already.
    pub(super) fn at_least(&self, percent: u8) {
        if self.state.lock().percent < u64::from(percent) {
            self.event("progress", json!({ "value": percent }));
        }
    }

    /// Sends what is held back, at the end of the task.
    pub(super) fn flush(&self) {
        let held = self.state.lock().take();
        held.for_each(|event| self.send(event));
    }

    fn send(&self, event: Progress) {
        // Nobody listening is no error: events are lossy.
        self.out.send(Arc::new(event)).ok();
    }

    /// Sends the held-back event once the window allows.
    fn later(&self, mut wait: Duration) {
        let this = self.this.clone();
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(wait).await;
                let Some(this) = this.upgrade() else { return };
                let due = this.state.lock().take_due(this.clock.monotonic());
                match due {
                    Ok(held) => return held.into_iter().for_each(|event| this.send(event)),
                    Err(more) => wait = more,
                }
            }
        });
    }
}

impl EventState {
    /// Room in the window now, or the time until there is some.
    fn room(&mut self, now: Duration) -> Result<(), Duration> {
        while self.sent.front().is_some_and(|at| now.saturating_sub(*at) >= WINDOW) {
            self.sent.pop_front();
        }
        match self.sent.front() {
            Some(first) if self.sent.len() >= PER_WINDOW => {
                Err((*first + WINDOW).saturating_sub(now))
            }
            _ => Ok(()),
        }
    }

    /// For the timer: the events that are held back, or how long they have to wait on.
    fn take_due(&mut self, now: Duration) -> Result<Vec<Progress>, Duration> {
        if self.pending.is_some() {
            self.room(now)?;
        }
        self.timer = false;
        let held: Vec<Progress> = self.take().collect();
        self.sent.extend(held.iter().map(|_| now));
        Ok(held)
    }

    /// What is held back, in its order.
    fn take(&mut self) -> impl Iterator<Item = Progress> + use<> {
        self.step.take().into_iter().chain(self.pending.take())
    }

    /// Holds an event back; it takes the place of the one before, unless a step began with that.
    fn hold(&mut self, event: Progress) {
        let before = self.pending.replace(event);
        if let Some(begun) = before.filter(|event| event.name.starts_with("start:")) {
            self.step = Some(begun);
        }
    }
}

impl EventSink for TaskEvents {
    fn event(&self, name: &str, event: Value) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.seq += 1;
        if let ("progress", Some(value)) = (name, event["value"].as_u64()) {
            state.percent = value;
        }
        let progress = Progress {
            id: self.id.clone(),
            seq: state.seq,
            name: name.to_owned(),
            event,
            ts: iso(self.clock.wall()),
        };
        state.kept.push_back(progress.clone());
        if state.kept.len() > KEPT {
            state.kept.pop_front();
        }
        match state.room(now) {
            Ok(()) => {
                // Only the step: the newer event makes the other one old.
                let step = state.take().find(|event| event.name.starts_with("start:"));
                let leaving: Vec<Progress> = step.into_iter().chain([progress]).collect();
                state.sent.extend(leaving.iter().map(|_| now));
                drop(state);
                leaving.into_iter().for_each(|event| self.send(event));
            }
            Err(wait) => {
                state.hold(progress);
                let timer_runs = std::mem::replace(&mut state.timer, true);
                drop(state);
                if !timer_runs {
                    self.later(wait);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::clock::TokioClock;

    #[tokio::test(start_paused = true)]
    async fn a_flood_becomes_four_a_second_and_ends_with_the_newest() {
        let clock: SharedClock = Arc::new(TokioClock::new(jiff::Timestamp::UNIX_EPOCH));
        let (out, mut events) = broadcast::channel(1000);
        let id: TaskId = "t".parse().unwrap();
        let task = TaskEvents::new(id, clock, Handle::current(), out);
        for n in 0..300u64 {
            task.event("progress", json!({ "value": n / 3 }));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(WINDOW).await;
        let mut got = Vec::new();
        while let Ok(event) = events.try_recv() {
            got.push(event.event["value"].as_u64().unwrap());
        }
        assert!((12..=20).contains(&got.len()), "{got:?}");
        assert_eq!(got.last(), Some(&99));
        assert_eq!(task.messages().len(), KEPT);
    }

    #[tokio::test(start_paused = true)]
    async fn the_step_that_began_last_is_told_whatever_comes_after_it() {
        let clock: SharedClock = Arc::new(TokioClock::new(jiff::Timestamp::UNIX_EPOCH));
        let (out, mut events) = broadcast::channel(1000);
        let id: TaskId = "t".parse().unwrap();
        let task = TaskEvents::new(id, clock, Handle::current(), out);
        for step in ["a", "b", "c"] {
            task.event(&format!("start:{step}"), json!({}));
            task.event(&format!("end:{step}"), json!({}));
        }
        task.event("start:image", json!({}));
        for value in 0..50 {
            task.event("progress", json!({ "value": value }));
        }
        tokio::time::sleep(2 * WINDOW).await;
        let mut got = Vec::new();
        while let Ok(event) = events.try_recv() {
            got.push(event.name.clone());
        }
        assert_eq!(got, ["start:a", "end:a", "start:b", "end:b", "start:image", "progress"]);
    }
}
