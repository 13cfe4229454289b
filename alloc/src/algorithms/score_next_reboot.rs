//! `score-next-reboot`: favours servers that stay up longer.

use crate::algorithm::{Algorithm, Kind};
use crate::order::stable_order;
use crate::reason::Reasons;
use crate::run::Run;
use crate::score;
use crate::server::flag;
use crate::slot_set::SlotSet;

/// Reboots closer together than this count as equally soon.
const WEEK_MS: f64 = 7.0 * 24.0 * 3_600_000.0;

pub(super) static SCORE_NEXT_REBOOT: Algorithm = Algorithm {
    name: "score-next-reboot",
    title: "Score servers that will not be rebooted soon more highly",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.remaining().len() < 2 {
        return Reasons::skip("One or fewer servers");
    }
    let snapshot = run.snapshot;
    let left = run.remaining().set();
    let set = SlotSet::by_word(left.words(), |word| {
        left.word(word) & snapshot.flagged(word, flag::REBOOT)
    });
    let (planned, unplanned) = parted(run.list(), &set);
    let planned = stable_order(&planned, &set, |slot| -snapshot.reboot_ms(slot));
    let mut buckets = Vec::new();
    if !unplanned.is_empty() {
        buckets.push(unplanned.as_slice());
    }
    let mut rest = planned.as_slice();
    while let Some(last) = rest.first() {
        let limit = snapshot.reboot_ms(*last) - WEEK_MS;
        let same = rest[1..].partition_point(|slot| snapshot.reboot_ms(*slot) > limit);
        let (bucket, earlier) = rest.split_at(1 + same);
        buckets.push(bucket);
        rest = earlier;
    }
    let weight = run.settings.weights.next_reboot;
    if weight < 0.0 {
        buckets.reverse();
    }
    score::buckets(run, &buckets, weight.abs())
}

/// The slots that are in a set, and those that aren't, both in order. There is no telling for a
/// processor which of them comes next, so nothing here depends on a guess.
fn parted(slots: &[u32], set: &SlotSet) -> (Vec<u32>, Vec<u32>) {
    let mut parts = [vec![0; slots.len()], vec![0; slots.len()]];
    let mut ends = [0, 0];
    for slot in slots {
        let part = usize::from(set.has(*slot));
        parts[part][ends[part]] = *slot;
        ends[part] += 1;
    }
    parts.iter_mut().zip(ends).for_each(|(part, end)| part.truncate(end));
    let [others, members] = parts;
    (members, others)
}
