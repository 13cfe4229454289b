//! Exponential backoff with full jitter.

use std::time::Duration;

/// Delay before attempt `n`: uniform in `0..=min(cap, first × factor^n)`.
///
/// Full jitter (rather than equal jitter) spreads a fleet that lost its coordinator evenly over
/// the whole window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Upper bound of the first delay.
    pub first: Duration,
    /// Growth per attempt, at least 1.
    pub factor: f64,
    /// No delay is longer than this.
    pub cap: Duration,
}

impl Backoff {
    /// Reconnecting to a coordinator: 500 ms × 1.6ⁿ, capped at 5 s.
    pub const RECONNECT: Self =
        Self { first: Duration::from_millis(500), factor: 1.6, cap: Duration::from_secs(5) };

    /// The delay before attempt number `attempt` (from 0); `fraction` is random in `0.0..1.0`.
    #[must_use]
    pub fn delay(&self, attempt: u32, fraction: f64) -> Duration {
        let exponent = i32::try_from(attempt.min(1_000)).unwrap_or(1_000);
        let ceiling = self.first.as_secs_f64() * self.factor.powi(exponent);
        Duration::from_secs_f64(ceiling.min(self.cap.as_secs_f64()) * fraction.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_exceeds_the_cap(attempt in 0u32.., fraction in 0.0f64..1.0) {
            prop_assert!(Backoff::RECONNECT.delay(attempt, fraction) <= Backoff::RECONNECT.cap);
        }

        #[test]
        fn full_jitter_reaches_from_zero_to_the_ceiling(attempt in 0u32..4) {
            let b = Backoff::RECONNECT;
            prop_assert_eq!(b.delay(attempt, 0.0), Duration::ZERO);
            prop_assert!(b.delay(attempt + 1, 1.0) > b.delay(attempt, 1.0));
        }
    }
}
