//! How tasks ended since the agent started, for monitoring.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::record::State;

/// Counts by kind and outcome. Kinds are those of the registry, so there are only a few.
#[derive(Debug, Default)]
pub(super) struct Finished(Mutex<BTreeMap<(String, &'static str), u64>>);

impl Finished {
    pub(super) fn count(&self, kind: &str, state: State) {
        let outcome = match state {
            State::Finished => "complete",
            State::Cancelled => "cancelled",
            State::Queued | State::Running | State::Failed | State::Interrupted => "failure",
        };
        *self.0.lock().entry((kind.to_owned(), outcome)).or_default() += 1;
    }

    pub(super) fn counts(&self) -> BTreeMap<(String, &'static str), u64> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_outcomes_are_counted_apart() {
        let finished = Finished::default();
        for state in [State::Finished, State::Finished, State::Interrupted, State::Cancelled] {
            finished.count("nop", state);
        }
        let outcomes = [("cancelled", 1), ("complete", 2), ("failure", 1)];
        let expected = outcomes.map(|(outcome, count)| (("nop".to_owned(), outcome), count));
        assert_eq!(finished.counts(), BTreeMap::from(expected));
    }
}
