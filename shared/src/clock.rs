//! The door to time. Sleeping is `tokio::time`, which a simulation pauses; reading a clock is only
//! done through [`Clock`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// Reads time. Decisions use [`Clock::monotonic`]; [`Clock::wall`] only labels records.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Wall-clock time.
    fn wall(&self) -> Timestamp;
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the door to the machine's clocks")]
impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the door to the machine's clocks")]
impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that follows tokio's (possibly paused) time from a given wall-clock origin.
#[derive(Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
    origin: Timestamp,
}

#[expect(clippy::disallowed_methods, reason = "tokio's clock is simulated when it is paused")]
impl TokioClock {
    /// Starts at `origin`; call inside a runtime.
    #[must_use]
    pub fn new(origin: Timestamp) -> Self {
        Self { start: tokio::time::Instant::now(), origin }
    }
}

#[expect(clippy::disallowed_methods, reason = "tokio's clock is simulated when it is paused")]
impl Clock for TokioClock {
    fn monotonic(&self) -> Duration {
        tokio::time::Instant::now() - self.start
    }

    fn wall(&self) -> Timestamp {
        self.origin.saturating_add(self.monotonic()).unwrap_or(Timestamp::MAX)
    }
}

/// CNAPI's time format: `YYYY-MM-DDTHH:MM:SS.mmmZ`, always three decimals.
#[must_use]
pub fn iso(at: Timestamp) -> String {
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_always_has_three_decimals() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(iso(at), "2026-01-02T03:04:05.000Z");
    }
}
