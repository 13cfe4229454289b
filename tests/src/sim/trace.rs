//! What happened in a run, as a number: two runs of one seed must have the same.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Events that are kept for a failure's report.
const KEPT: usize = 80;
/// Of each so many bytes.
const SHOWN_BYTES: usize = 300;

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
        self.data(text, b"");
    }

    /// Something happened with these bytes: all of them count, the first are shown.
    pub fn data(&self, text: impl fmt::Display, bytes: &[u8]) {
        let mut state = self.0.lock();
        let mut line = format!("{:>7} ms {text}", state.now.as_millis());
        line.hash(&mut state.hasher);
        bytes.hash(&mut state.hasher);
        state.events += 1;
        // There are too many of these to be worth keeping.
        let dull = |kind: &[u8]| bytes.windows(kind.len()).take(64).any(|part| part == kind);
        let dull = dull(b"\"heartbeat\"") || dull(b"\"progress\"");
        let show = state.show.is_some();
        if dull && !show {
            return;
        }
        if !bytes.is_empty() {
            let most = if show { bytes.len() } else { bytes.len().min(SHOWN_BYTES) };
            line.push_str(": ");
            line.push_str(&String::from_utf8_lossy(&bytes[..most]));
        }
        if state.show.as_ref().is_some_and(|text| line.contains(text.as_str())) {
            eprintln!("{line}");
        }
        if dull {
            return;
        }
        if state.recent.len() == KEPT {
            state.recent.pop_front();
        }
        state.recent.push_back(line);
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
