//! The time by which records are told to be old. A wall clock that steps must not delete a
//! history: it may have been set wrong, and what is deleted does not come back.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A wall clock that goes this much wrong between two looks is being corrected, not set.
const DRIFT: SignedDuration = SignedDuration::from_hours(1);
/// A step that has lasted so long is believed: somebody would have noticed.
const BELIEVED: Duration = Duration::from_hours(24);

/// What is believed of the wall clock.
#[derive(Debug)]
pub(crate) struct Age(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The wall clock's lead over the monotonic one, as far as it is believed.
    lead: SignedDuration,
    /// Another lead, and when it was seen first.
    stepped: Option<(SignedDuration, Duration)>,
}

impl Age {
    /// Believes the wall clock as it is at the start.
    pub(crate) fn new(wall: Timestamp, now: Duration) -> Self {
        Self(Mutex::new(State { lead: lead(wall, now), stepped: None }))
    }

    /// The time, without steps of the wall clock that are not believed yet.
    pub(crate) fn now(&self, wall: Timestamp, now: Duration) -> Timestamp {
        let mut state = self.0.lock();
        let seen = lead(wall, now);
        let near = |other: SignedDuration| (seen - other).abs() <= DRIFT;
        match state.stepped {
            _ if near(state.lead) => *state = State { lead: seen, stepped: None },
            Some((other, since)) if near(other) => {
                if now.saturating_sub(since) >= BELIEVED {
                    *state = State { lead: seen, stepped: None };
                }
            }
            Some(_) | None => {
                tracing::warn!(
                    step_s = (seen - state.lead).as_secs(),
                    "the wall clock was set: nothing becomes old by that for a day"
                );
                state.stepped = Some((seen, now));
            }
        }
        let believed = state.lead.saturating_add(signed(now));
        Timestamp::from_duration(believed).unwrap_or(wall)
    }
}

fn lead(wall: Timestamp, now: Duration) -> SignedDuration {
    wall.as_duration().saturating_sub(signed(now))
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    /// What is believed each hour of a wall clock that is ahead of the true time by so many hours.
    #[track_caller]
    fn check(ahead: &[i64], believed: &[i64]) {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let age = Age::new(start, Duration::ZERO);
        let mut now = Duration::ZERO;
        for (step, (ahead, believed)) in ahead.iter().zip(believed).enumerate() {
            now += HOUR;
            let truly = start + signed(now);
            let seen = age.now(truly + SignedDuration::from_hours(*ahead), now);
            assert_eq!(seen, truly + SignedDuration::from_hours(*believed), "hour {step}");
        }
    }

    #[test]
    fn a_step_is_believed_after_a_day() {
        let month = 30 * 24;
        check(&[0, month, month, 0], &[0, 0, 0, 0]);
        let (mut ahead, mut believed) = (vec![month; 25], vec![0; 24]);
        believed.push(month);
        check(&ahead, &believed);
        // Another step begins the day again.
        ahead[20] = -month;
        check(&ahead, &[0; 25]);
    }

    #[test]
    fn small_corrections_are_followed() {
        check(&[0, 1, 2, 2, 1], &[0, 1, 2, 2, 1]);
    }
}
