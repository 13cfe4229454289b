//! What waits to be sent on one connection, in lanes: control, then results, status, sysinfo,
//! progress. Heartbeats are no part of it; the session sends them before anything here.
//!
//! Everything is bounded: of status and sysinfo only the latest is kept, progress loses its
//! oldest, results wait in the journal until there is room, and a peer that lets the control lane
//! fill up loses its connection.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_shared::wire::{FromAgent, Progress, Sysinfo, TaskResult};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::report::feed::Sample;

/// Control messages that may wait.
const MAX_CONTROL: usize = 1024;
/// Results that may wait; the others stay in the journal.
const MAX_RESULTS: usize = 8;
/// Progress events that may wait.
const MAX_PROGRESS: usize = 256;

/// The next thing to send.
#[derive(Debug, PartialEq)]
pub enum Outgoing {
    /// A message as it is.
    Message(Box<FromAgent>),
    /// A sample; what of it is sent depends on what was sent before.
    Status {
        /// The sample.
        sample: Arc<Sample>,
        /// All of it, whatever was sent before.
        full: bool,
    },
}

#[derive(Debug, Default)]
struct Lanes {
    control: VecDeque<FromAgent>,
    results: VecDeque<TaskResult>,
    status: Option<(Arc<Sample>, bool)>,
    sysinfo: Option<Sysinfo>,
    progress: VecDeque<Progress>,
    overflowed: bool,
}

/// The waiting messages of one connection.
#[derive(Debug, Default)]
pub struct Outbox {
    lanes: Mutex<Lanes>,
    ready: Notify,
    room: Notify,
}

impl Outbox {
    /// Queues a small message that somebody waits for.
    pub fn control(&self, message: impl Into<FromAgent>) {
        let mut lanes = self.lanes.lock();
        if lanes.control.len() >= MAX_CONTROL {
            lanes.overflowed = true;
        } else {
            lanes.control.push_back(message.into());
        }
        drop(lanes);
        self.ready.notify_one();
    }

    /// Queues a result if there is room.
    #[must_use]
    pub fn try_result(&self, result: TaskResult) -> bool {
        let mut lanes = self.lanes.lock();
        if lanes.results.len() >= MAX_RESULTS {
            return false;
        }
        lanes.results.push_back(result);
        drop(lanes);
        self.ready.notify_one();
        true
    }

    /// Whether [`Self::try_result`] would take one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.lanes.lock().results.len() < MAX_RESULTS
    }

    /// Waits until a result was sent.
    pub async fn room(&self) {
        self.room.notified().await;
    }

    /// Queues a sample in place of one that waits.
    pub fn status(&self, sample: Arc<Sample>, full: bool) {
        let mut lanes = self.lanes.lock();
        let full = full || lanes.status.as_ref().is_some_and(|(_, full)| *full);
        lanes.status = Some((sample, full));
        drop(lanes);
        self.ready.notify_one();
    }

    /// Queues a sysinfo in place of one that waits.
    pub fn sysinfo(&self, sysinfo: Sysinfo) {
        self.lanes.lock().sysinfo = Some(sysinfo);
        self.ready.notify_one();
    }

    /// Queues progress; the oldest goes when there is too much.
    pub fn progress(&self, progress: Progress) {
        let mut lanes = self.lanes.lock();
        if lanes.progress.len() >= MAX_PROGRESS {
            lanes.progress.pop_front();
        }
        lanes.progress.push_back(progress);
        drop(lanes);
        self.ready.notify_one();
    }

    /// The peer does not read what it asked for: the connection is to be closed.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.lanes.lock().overflowed
    }

    /// Takes what is to be sent next.
    pub fn take(&self) -> Option<Outgoing> {
        let message = |m: FromAgent| Outgoing::Message(Box::new(m));
        let mut lanes = self.lanes.lock();
        if let Some(control) = lanes.control.pop_front() {
            return Some(message(control));
        }
        if let Some(result) = lanes.results.pop_front() {
            drop(lanes);
            self.room.notify_one();
            return Some(message(result.into()));
        }
        if let Some((sample, full)) = lanes.status.take() {
            return Some(Outgoing::Status { sample, full });
        }
        if let Some(sysinfo) = lanes.sysinfo.take() {
            return Some(message(sysinfo.into()));
        }
        lanes.progress.pop_front().map(|progress| message(progress.into()))
    }

    /// Waits for the next thing to send. Cancel-safe: nothing is taken before it returns.
    pub async fn next(&self) -> Outgoing {
        loop {
            if let Some(outgoing) = self.take() {
                return outgoing;
            }
            self.ready.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::wire::{Accepted, Message as _, Outcome};
    use serde_json::Value;

    fn result(n: usize) -> TaskResult {
        TaskResult {
            id: format!("r{n}").parse().unwrap(),
            status: Outcome::Complete,
            result: Value::Null,
            error: None,
            finished_at: String::new(),
        }
    }

    fn progress(seq: u64) -> Progress {
        Progress {
            id: "t".parse().unwrap(),
            seq,
            name: "progress".into(),
            event: Value::Null,
            ts: String::new(),
        }
    }

    fn kinds(outbox: &Outbox) -> Vec<String> {
        std::iter::from_fn(|| outbox.take())
            .map(|outgoing| match outgoing {
                Outgoing::Message(message) => message.kind().to_owned(),
                Outgoing::Status { full, .. } => format!("status full={full}"),
            })
            .collect()
    }

    #[test]
    fn lanes_are_emptied_in_order() {
        let outbox = Outbox::default();
        outbox.progress(progress(1));
        outbox.sysinfo(Sysinfo { sysinfo: None, agents: None, hash: String::new() });
        outbox.status(Arc::default(), true);
        assert!(outbox.try_result(result(0)));
        outbox.control(Accepted { id: "t".parse().unwrap(), intake: None });
        assert_eq!(
            kinds(&outbox),
            ["accepted", "result", "status full=true", "sysinfo", "progress"]
        );
    }

    #[test]
    fn every_lane_is_bounded() {
        let outbox = Outbox::default();
        for n in 0..2 * MAX_RESULTS {
            assert_eq!(outbox.try_result(result(n)), n < MAX_RESULTS);
        }
        outbox.status(Arc::default(), true);
        outbox.status(Arc::default(), false);
        for seq in 0..1000 {
            outbox.progress(progress(seq));
        }
        let kinds = kinds(&outbox);
        assert_eq!(kinds.len(), MAX_RESULTS + 1 + MAX_PROGRESS);
        assert!(kinds.contains(&"status full=true".to_owned()), "a wanted full report stays full");
        for _ in 0..=MAX_CONTROL {
            outbox.control(Accepted { id: "t".parse().unwrap(), intake: None });
        }
        assert!(outbox.overflowed());
    }
}
