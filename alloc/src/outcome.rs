//! What an allocation decided, step by step.

use std::sync::{Arc, OnceLock};

use crate::algorithm::Algorithm;
use crate::algorithms::VOLUMES_FROM;
use crate::ratios::Ratios;
use crate::reason::Reasons;
use crate::remaining::Remaining;
use crate::scores::Scores;
use crate::server::Unreserved;
use crate::server_name::ServerName;
use crate::slot_set::SlotSet;
use crate::snapshot::Snapshot;

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
    pub(crate) remaining: Arc<Remaining>,
    pub(crate) reasons: Reasons,
}

/// The text that names the first step, which is no algorithm's.
pub const RECEIVED: &str = "Received by DAPI";

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

    /// How many servers were left.
    #[must_use]
    pub fn remaining_count(&self) -> usize {
        self.remaining.len()
    }

    /// The list of which the order is the reasons', if they are not in it yet.
    fn unordered(&self) -> Option<&Arc<Vec<u32>>> {
        let Reasons::Each { in_order: false, .. } = &self.reasons else { return None };
        Some(self.remaining.order())
    }
}

/// Puts the reasons of servers that were removed in the order in which the servers were. Once a decision
/// is made, so that all that were removed from one list are found in one look at it.
pub(crate) fn in_order(steps: &mut [Step]) {
    while let Some(order) = steps.iter().find_map(|step| step.unordered().map(Arc::clone)) {
        let mut servers = SlotSet::none(steps[0].remaining.set().capacity());
        let mut reasons = Vec::new();
        for (place, step) in steps.iter_mut().enumerate() {
            let is_of_list = step.unordered().is_some_and(|list| Arc::ptr_eq(list, &order));
            let Reasons::Each { each, in_order, .. } = &mut step.reasons else { continue };
            // What was removed again, in another branch of an `or`, is for another look.
            if is_of_list && !each.iter().any(|(slot, _)| servers.has(*slot)) {
                *in_order = true;
                each.iter().for_each(|(slot, _)| servers.insert(*slot));
                let taken = std::mem::take(each).into_iter();
                reasons.extend(taken.map(|(slot, reason)| (place, slot, Some(reason))));
            }
        }
        let rank = servers.ranks();
        let mut by_rank = vec![0; reasons.len()];
        for (found, (_, slot, _)) in reasons.iter().enumerate() {
            by_rank[rank(*slot)] = found;
        }
        for slot in servers.of_list(&order) {
            let (place, _, reason) = &mut reasons[by_rank[rank(slot)]];
            if let Reasons::Each { each, .. } = &mut steps[*place].reasons {
                each.extend(reason.take().map(|reason| (slot, reason)));
            }
        }
    }
}

/// The chosen server.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which.
    pub server_uuid: ServerName,
    /// Its score.
    pub score: f64,
    /// What it had left before this VM, if the pipeline computed it.
    pub unreserved: Option<Unreserved>,
    /// The overprovisioning ratios in force for it.
    pub ratios: Ratios,
}

/// How many servers a digest names.
const BEST: usize = 10;

/// What is kept of a decision.
#[derive(Clone, Debug)]
pub struct Digest {
    /// [`Outcome::fingerprint`].
    pub fingerprint: String,
    /// What was run, in order.
    pub steps: Vec<StepCount>,
    /// The best servers, at most ten.
    pub best: Vec<(ServerName, f64)>,
}

/// One algorithm's run, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCount {
    /// The text that names the step.
    pub title: &'static str,
    /// The algorithm's name in expressions; `None` for the first step.
    pub algorithm: Option<&'static str>,
    /// How many servers were left.
    pub remaining: usize,
}

/// The result of an allocation.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The chosen server, if any was left.
    pub server: Option<Choice>,
    /// What was run, in order; none once [`Outcome::settle`] let go of them.
    pub steps: Vec<Step>,
    /// The final scores.
    pub(crate) scores: Scores,
    /// The seed that random algorithms used.
    pub seed: u64,
    /// Taken down once: [`Outcome::settle`] may let go of what it is made of.
    pub(crate) digest: OnceLock<Digest>,
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
        let last = self.steps.last().and_then(|step| step.algorithm);
        self.server.is_none() && last.is_some_and(|last| std::ptr::eq(last, &VOLUMES_FROM))
    }

    /// What it was decided on.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// What is kept of it.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        self.digest.get_or_init(|| self.taken_down())
    }

    fn taken_down(&self) -> Digest {
        let step = |step: &Step| StepCount {
            title: step.title(),
            algorithm: step.algorithm(),
            remaining: step.remaining_count(),
        };
        Digest {
            fingerprint: self.fingerprint(),
            steps: self.steps.iter().map(step).collect(),
            best: self.best(BEST),
        }
    }

    /// Takes down what is kept, which looks at every server of many steps: best where they are in
    /// the processor's cache still. If a server was found and no steps are to be shown, lets go of
    /// them: each step's servers are most of an outcome's memory. The digest still has the fingerprint
    /// and the best servers; [`Outcome::fingerprint`] and [`Outcome::best`] have nothing to look at.
    pub fn settle(&mut self, shows_steps: bool) {
        self.digest.get_or_init(|| self.taken_down());
        if self.server.is_some() && !shows_steps {
            (self.steps, self.scores) = Default::default();
        }
    }

    /// The servers that were left, best first, with their scores; at most `most`.
    #[must_use]
    pub fn best(&self, most: usize) -> Vec<(ServerName, f64)> {
        let Some(last) = self.steps.last() else { return Vec::new() };
        let list = last.remaining.list();
        let is_before =
            |a: &(f64, u32), b: &(f64, u32)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)).is_gt();
        let mut best: Vec<(f64, u32)> = Vec::new();
        for server in self.scores.of(list).iter().copied().zip(list.iter().copied()) {
            // Hardly any of a large fleet is one of the few best so far.
            if best.len() < most || best.last().is_some_and(|last| is_before(&server, last)) {
                let place = best.partition_point(|other| is_before(other, &server));
                best.insert(place, server);
                best.truncate(most);
            }
        }
        let name = |slot| self.snapshot.server(slot).name.clone();
        best.into_iter().map(|(score, slot)| (name(slot), score)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;

    /// A step that removes servers from others, for reasons that come in this order.
    fn without(before: &Remaining, gone: &[u32]) -> Step {
        let reasons = gone.iter().map(|slot| (*slot, Reason::Count(*slot)));
        let reasons = Reasons::removed(reasons.collect());
        let remaining = Arc::new(before.without(gone.iter().copied()));
        Step { algorithm: None, remaining, reasons }
    }

    fn reasons(step: &Step) -> Vec<u32> {
        let Reasons::Each { each, in_order, .. } = &step.reasons else { return Vec::new() };
        let fits = |(slot, why): &(u32, Reason)| matches!(why, Reason::Count(n) if n == slot);
        assert!(*in_order && each.iter().all(fits));
        each.iter().map(|(slot, _)| *slot).collect()
    }

    #[test]
    fn reasons_are_in_the_order_of_the_list() {
        let all = Remaining::new(vec![70, 3, 9, 64, 1, 5], 128);
        let first = without(&all, &[1, 3]);
        let second = without(&first.remaining, &[64]);
        // The other branch of an `or`.
        let other = without(&first.remaining, &[5, 64, 70]);
        let sorted = Remaining::new(vec![5, 9, 70], 128);
        let last = without(&sorted, &[70, 5]);
        let told = Reasons::each(vec![(9, Reason::Count(9)), (5, Reason::Count(5))]);
        let told = Step { algorithm: None, remaining: Arc::new(sorted), reasons: told };
        let none = Step { reasons: Reasons::None, ..first.clone() };
        let mut steps = [none, first, second, other, last, told];
        in_order(&mut steps);
        let found: Vec<Vec<u32>> = steps.iter().map(reasons).collect();
        assert_eq!(found, [vec![], vec![3, 1], vec![64], vec![70, 64, 5], vec![5, 70], vec![9, 5]]);
    }
}
