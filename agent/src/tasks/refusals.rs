//! Tasks of coordinators that will not run here: refused, or given back by a drain. The answer stays
//! the same until a coordinator has stored it, so that nothing runs that was refused.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::wire::Code;

use super::journal;
use super::runner::{Engine, Refusal};

/// Refusals that are kept; beyond, the oldest goes.
const MAX_KEPT: usize = 1_024;

/// A refusal that no coordinator has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The answer.
    pub refusal: Refusal,
    /// When the coordinator that asked was told, monotonic; none was told that a task is given
    /// back.
    pub refused_at: Option<Duration>,
}

/// The refusals, oldest first.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    kept: BTreeMap<TaskId, Refused>,
    order: VecDeque<TaskId>,
}

impl Refusals {
    pub(super) fn get(&self, id: &TaskId) -> Option<&Refusal> {
        self.kept.get(id).map(|kept| &kept.refusal)
    }

    /// Keeps one; returns the task of the one that had to go for it.
    pub(super) fn keep(&mut self, id: TaskId, refused: Refused) -> Option<TaskId> {
        if self.kept.insert(id.clone(), refused).is_none() {
            self.order.push_back(id);
        }
        let gone = if self.order.len() > MAX_KEPT { self.order.pop_front() } else { None };
        if let Some(gone) = &gone {
            self.kept.remove(gone);
        }
        gone
    }

    /// Forgets one; false when there was none.
    pub(super) fn forget(&mut self, id: &TaskId) -> bool {
        let known = self.kept.remove(id).is_some();
        if known {
            self.order.retain(|kept| kept != id);
        }
        known
    }
}

/// What is said of a task that a drain gives back.
pub(super) fn given_back() -> Refused {
    let text = "the agent drains and has not started this task";
    Refused { refusal: Refusal::new(Code::Draining, text), refused_at: None }
}

impl Engine {
    /// Refusals that no coordinator has acknowledged, oldest first, at most `limit`.
    #[must_use]
    pub fn refusals(&self, limit: usize) -> Vec<(TaskId, Refused)> {
        let shared = self.shared.lock();
        let refusals = &shared.refusals;
        let found = refusals.order.iter().take(limit);
        found.filter_map(|id| Some((id.clone(), refusals.kept.get(id)?.clone()))).collect()
    }

    /// The coordinator that asked is told that a task will not run.
    pub(super) fn remember_refusal(&self, id: TaskId, refusal: Refusal) {
        let refused_at = Some(self.parts.clock.monotonic());
        self.keep_refusal(id, Refused { refusal, refused_at });
    }

    pub(super) fn keep_refusal(&self, id: TaskId, refused: Refused) {
        let gone = self.shared.lock().refusals.keep(id, refused);
        if let Some(gone) = gone {
            tracing::warn!(task_id = %gone, "a refusal that no coordinator took note of is dropped");
            self.note(journal::forget_returned(&gone));
        }
        self.touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut refusals = Refusals::default();
        let id = |n: usize| -> TaskId { format!("t{n}").parse().unwrap() };
        for n in 0..MAX_KEPT {
            assert_eq!(refusals.keep(id(n), given_back()), None);
        }
        assert_eq!(refusals.keep(id(0), given_back()), None, "it is there already");
        assert!(refusals.forget(&id(5)));
        assert!(!refusals.forget(&id(5)));
        assert_eq!(refusals.keep(id(MAX_KEPT), given_back()), None);
        assert_eq!(refusals.keep(id(MAX_KEPT + 1), given_back()), Some(id(0)));
        assert_eq!((refusals.get(&id(0)), refusals.order.len()), (None, MAX_KEPT));
    }
}
