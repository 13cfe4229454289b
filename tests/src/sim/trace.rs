//! What happened in a run, as a number: two runs of one seed must have the same.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Events that are kept for a failure's report.
const KEPT: usize = 80;

#[derive(Debug)]
struct State {
    now: Duration,
    events: u64,
    hasher: DefaultHasher,
    recent: VecDeque<String>,
    /// Lines with this text are printed as they come.
    show: Option<String>,
}

/// The trace of one run; clones share it.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Mutex<State>>);

impl Default for Trace {
    fn default() -> Self {
        let hasher = DefaultHasher::new();
        let (now, events, recent) = (Duration::ZERO, 0, VecDeque::new());
        let show = std::env::var("MUSTER_SIM_SHOW").ok();
        Self(Arc::new(Mutex::new(State { now, events, hasher, recent, show })))
    }
}

impl Trace {
    /// Sets the time of the events that follow.
    pub fn at(&self, now: Duration) {
        self.0.lock().now = now;
    }

    /// Something happened.
    pub fn event(&self, text: impl fmt::Display) {
        let mut state = self.0.lock();
        let line = format!("{:>7} ms {text}", state.now.as_millis());
        line.hash(&mut state.hasher);
        state.events += 1;
        if state.show.as_ref().is_some_and(|text| line.contains(text.as_str())) {
            eprintln!("{line}");
        }
        // There are too many of these to be worth showing.
        if line.contains("\\\"heartbeat\\\"") || line.contains("\\\"progress\\\"") {
            return;
        }
        if state.recent.len() == KEPT {
            state.recent.pop_front();
        }
        let mut shown: String = line.chars().take(300).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        state.recent.push_back(shown);
    }

    /// Number of events and a hash of all of them.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.events, state.hasher.finish())
    }

    /// The latest events, oldest first.
    #[must_use]
    pub fn recent(&self) -> String {
        self.0.lock().recent.iter().map(|line| format!("{line}\n")).collect()
    }
}
