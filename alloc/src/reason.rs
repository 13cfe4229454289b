//! What an algorithm did and why: recorded as numbers, rendered on demand.

use std::borrow::Cow;
use std::sync::Arc;

use uuid::Uuid;

use crate::num::count;

/// Why one server was removed or scored.
#[derive(Clone, Debug)]
pub(crate) enum Reason {
    /// A fixed text.
    Text(&'static str),
    /// The step's n-th shared text.
    Shared(u32),
    /// A text of its own; for rare cases.
    Owned(Box<str>),
    /// Its status.
    Status,
    /// The first fault of its record.
    Fault,
    /// Its traits, where none were asked for.
    Traits,
    /// The number of its VMs.
    VmCount(u32),
    /// A VM that decided: capped or not.
    Capness(Uuid, bool),
    /// What is left, in a text around it.
    Spare(f64),
    /// A count, as a number.
    Count(u32),
}

/// What a scorer did: enough to replay it, in an eighth of the room of its texts' figures.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    /// The servers in the order in which they were scored.
    pub(crate) order: Arc<Vec<u32>>,
    pub(crate) deltas: Deltas,
    /// The owner's VMs on each, if the scorer counted them.
    pub(crate) zones: Option<Vec<u32>>,
}

/// The changes of the score, in the same order.
#[derive(Clone, Debug)]
pub(crate) enum Deltas {
    /// By place: all of the weight for the first, nothing for the last.
    Linear(f64),
    /// So many servers after each other, and the change of each.
    Groups(Vec<(usize, f64)>),
    /// By slot, nothing for others.
    BySlot(Vec<f64>),
}

/// The `reasons` of a step.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reasons {
    #[default]
    None,
    /// The algorithm did not apply.
    Skip(Cow<'static, str>),
    /// The VMs of every remaining server.
    Loaded,
    /// Changes of the scores.
    Scored(Scored),
    /// Server by server, and one for all under `*`.
    Each { each: Vec<(u32, Reason)>, shared: Vec<String>, all: Option<String> },
}

impl Reasons {
    pub(crate) fn skip(text: &'static str) -> Self {
        Self::Skip(text.into())
    }

    pub(crate) fn each(each: Vec<(u32, Reason)>) -> Self {
        Self::with_shared(each, Vec::new())
    }

    pub(crate) fn with_shared(each: Vec<(u32, Reason)>, shared: Vec<String>) -> Self {
        if each.is_empty() { Self::None } else { Self::Each { each, shared, all: None } }
    }

    pub(crate) fn all(text: String) -> Self {
        Self::Each { each: Vec::new(), shared: Vec::new(), all: Some(text) }
    }

    /// With the texts to which its [`Reason::Shared`] and figures refer.
    pub(crate) fn sharing(self, texts: Vec<String>) -> Self {
        match self {
            Self::Each { each, all, .. } => Self::Each { each, shared: texts, all },
            other => other,
        }
    }
}

/// The share of place `i` among `n`: 1 for the first, 0 for the last, in steps written as the
/// reference writes them, because rounding shows in the texts.
pub(crate) fn share(i: usize, n: usize, weight: f64) -> f64 {
    shares(n, weight)(i)
}

/// [`share`] by place.
fn shares(n: usize, weight: f64) -> impl Fn(usize) -> f64 {
    let step = 1.0 / count(n.saturating_sub(1));
    move |i| if n == 1 { weight } else { count(n - 1 - i) * step * weight }
}

impl Scored {
    /// By how much the server at this place changed.
    pub(crate) fn delta(&self, place: usize) -> f64 {
        match &self.deltas {
            Deltas::Linear(weight) => share(place, self.order.len(), *weight),
            Deltas::Groups(groups) => {
                let mut end = 0;
                let group = groups.iter().find(|(len, _)| {
                    end += len;
                    place < end
                });
                group.map_or(0.0, |(_, delta)| *delta)
            }
            Deltas::BySlot(deltas) => deltas[self.order[place] as usize],
        }
    }

    /// Adds the changes to the scores, which are by slot.
    pub(crate) fn apply(&self, score: &mut [f64]) {
        let mut slots = self.order.iter().map(|slot| *slot as usize);
        match &self.deltas {
            Deltas::Linear(weight) => {
                let share = shares(self.order.len(), *weight);
                slots.enumerate().for_each(|(place, slot)| score[slot] += share(place));
            }
            Deltas::Groups(groups) => {
                for (len, delta) in groups {
                    slots.by_ref().take(*len).for_each(|slot| score[slot] += delta);
                }
            }
            // Nothing, for those that were not scored.
            Deltas::BySlot(deltas) => {
                score.iter_mut().zip(deltas).for_each(|(score, delta)| *score += delta);
            }
        }
    }

    /// Adds the changes again, and returns the scores then, in the scorer's order.
    pub(crate) fn replay(&self, score: &mut [f64]) -> Vec<f64> {
        self.apply(score);
        self.order.iter().map(|slot| score[*slot as usize]).collect()
    }
}
