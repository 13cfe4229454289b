//! What an allocation decided and why: recorded as numbers, rendered on demand.

use std::sync::Arc;

use uuid::Uuid;

use crate::algorithms::{Algorithm, Kind};
use crate::config::Ratios;
use crate::server::Unreserved;
use crate::snapshot::Snapshot;

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
    pub(crate) order: Vec<u32>,
    pub(crate) deltas: Deltas,
    /// The owner's VMs on each, if the scorer counted them.
    pub(crate) zones: Option<Vec<u32>>,
}

/// The changes of the score, in the same order.
#[derive(Clone, Debug)]
pub(crate) enum Deltas {
    /// By place: all of the weight for the first, nothing for the last.
    Linear(f64),
    /// One by one.
    Each(Vec<f64>),
}

/// The `reasons` of a step.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reasons {
    #[default]
    None,
    /// The algorithm did not apply.
    Skip(std::borrow::Cow<'static, str>),
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
}

/// How much of the steps to render.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// No steps at all.
    None,
    /// Per step, the number of servers left.
    Counts,
    /// Everything.
    #[default]
    Full,
}

/// One algorithm's run.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) algorithm: Option<&'static Algorithm>,
    pub(crate) remaining: Arc<Vec<u32>>,
    pub(crate) reasons: Reasons,
}

const RECEIVED: &str = "Received by DAPI";

impl Step {
    /// The text that names the step.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.algorithm.map_or(RECEIVED, |algorithm| algorithm.title)
    }

    /// The algorithm's name in expressions; `None` for the first step.
    #[must_use]
    pub fn algorithm(&self) -> Option<&'static str> {
        self.algorithm.map(|algorithm| algorithm.name)
    }

    /// Whether the step judged each server by itself: a server it removed could as well not have
    /// been there.
    #[must_use]
    pub fn judges_singly(&self) -> bool {
        self.algorithm.is_some_and(|algorithm| algorithm.kind == Kind::Filter)
    }

    /// How many servers were left.
    #[must_use]
    pub fn remaining_count(&self) -> usize {
        self.remaining.len()
    }
}

/// The chosen server.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which.
    pub server_uuid: String,
    /// Its score.
    pub score: f64,
    /// What it had left before this VM, if the pipeline computed it.
    pub unreserved: Option<Unreserved>,
    /// The overprovisioning ratios in force for it.
    pub ratios: Ratios,
}

/// The result of an allocation.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The chosen server, if any was left.
    pub server: Option<Choice>,
    /// What was run, in order.
    pub steps: Vec<Step>,
    /// The seed that random algorithms used.
    pub seed: u64,
}

impl Outcome {
    /// Why there is no server, in the words of `NoAllocatableServersError`.
    #[must_use]
    pub fn failure(&self) -> String {
        let Some(step) = self.steps.last() else { return String::new() };
        if let Reasons::Each { all: Some(text), .. } = &step.reasons {
            return text.clone();
        }
        let title = step.title();
        let mut chars = title.chars();
        let lower: String =
            chars.next().into_iter().flat_map(char::to_lowercase).chain(chars).collect();
        if lower.starts_with("servers ") { format!("no {lower}") } else { lower }
    }

    /// Whether the last step was the one that wants the VMs of `docker:volumesfrom`, so that the
    /// answer is `VolumeServerNoResourcesError`.
    #[must_use]
    pub fn failed_for_volumes(&self) -> bool {
        self.server.is_none()
            && self.steps.last().and_then(Step::algorithm) == Some("hard-filter-volumes-from")
    }

    /// What it was decided on.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The servers that were left, best first, with their scores; at most `most`.
    #[must_use]
    pub fn best(&self, most: usize) -> Vec<(String, f64)> {
        let Some(last) = self.steps.last() else { return Vec::new() };
        let scores = self.scores();
        let mut order: Vec<(f64, u32)> =
            last.remaining.iter().map(|slot| (scores[*slot as usize], *slot)).collect();
        if order.len() > most {
            // Only the best need to be in order.
            order.select_nth_unstable_by(most, |a, b| b.0.total_cmp(&a.0));
            order.truncate(most);
        }
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order.into_iter().map(|(score, slot)| (self.uuid(slot).to_owned(), score)).collect()
    }

    pub(crate) fn uuid(&self, slot: u32) -> &str {
        &self.snapshot.server(slot).uuid
    }
}
