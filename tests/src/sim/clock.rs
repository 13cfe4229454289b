//! The clocks of a simulated machine: its monotonic clock follows its runtime, its wall clock is as
//! wrong as the seed wants it to be.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use muster_shared::clock::{Clock, TokioClock};
use parking_lot::Mutex;

use super::origin;

/// How far a machine's wall clock is from the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// Ahead by this much; behind if negative.
    pub offset: SignedDuration,
    /// Gains so many microseconds in a second of its process's life.
    pub gain_ppm: i32,
}

/// The wall clock of a machine; clones share it, so that it can be set while a process runs.
#[derive(Clone, Debug, Default)]
pub struct WallClock(Arc<Mutex<Skew>>);

impl WallClock {
    /// Sets it wrong.
    pub fn skew(&self, skew: Skew) {
        *self.0.lock() = skew;
    }

    /// Moves it all at once.
    pub fn step(&self, by: SignedDuration) {
        let mut skew = self.0.lock();
        skew.offset = skew.offset.saturating_add(by);
    }

    /// The clocks of a process that starts at `now`; call inside its runtime.
    #[must_use]
    pub fn process(&self, now: Duration) -> NodeClock {
        let started = origin().checked_add(now).expect("runs are short");
        NodeClock { truth: TokioClock::new(started), wall: self.clone() }
    }
}

/// The clocks of one process.
#[derive(Debug)]
pub struct NodeClock {
    truth: TokioClock,
    wall: WallClock,
}

impl Clock for NodeClock {
    fn monotonic(&self) -> Duration {
        self.truth.monotonic()
    }

    fn wall(&self) -> Timestamp {
        let Skew { offset, gain_ppm } = *self.wall.0.lock();
        let ran = i64::try_from(self.monotonic().as_micros()).unwrap_or(i64::MAX);
        let gained = ran.saturating_mul(i64::from(gain_ppm)) / 1_000_000;
        let wrong = offset.saturating_add(SignedDuration::from_micros(gained));
        self.truth.wall().saturating_add(wrong).unwrap_or(Timestamp::MAX)
    }
}
