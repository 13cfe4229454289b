//! `score-next-reboot`: favours servers that stay up longer.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
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
    let list = run.list();
    let planned = places_of(list, &set);
    let planned = run.sorted_places(&planned, &set, SortKey::NextReboot, true);
    let reboot_ms = |place: &u32| snapshot.value(list[*place as usize], SortKey::NextReboot);
    let mut buckets = Vec::new();
    let mut rest = planned.as_slice();
    while let Some(last) = rest.first() {
        let limit = reboot_ms(last) - WEEK_MS;
        let same = rest[1..].partition_point(|place| reboot_ms(place) > limit);
        let (bucket, earlier) = rest.split_at(1 + same);
        buckets.push(bucket);
        rest = earlier;
    }
    let weight = run.settings.weights.next_reboot;
    if weight < 0.0 {
        buckets.reverse();
    }
    score::buckets(run, &buckets, weight < 0.0, weight.abs())
}

/// The places of the slots that are in a set.
fn places_of(list: &[u32], set: &SlotSet) -> Vec<u32> {
    let mut places = vec![0; set.len() + 1];
    let mut end = 0;
    for (place, slot) in (0..).zip(list) {
        // Without a branch, which a processor would have to guess.
        places[end] = place;
        end += usize::from(set.has(*slot));
    }
    places.truncate(end);
    places
}
