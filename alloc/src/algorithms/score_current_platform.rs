//! `score-current-platform`: favours newer platforms.

use crate::algorithm::{Algorithm, Kind};
use crate::order::SortKey;
use crate::reason::Reasons;
use crate::run::Run;
use crate::score;

pub(super) static SCORE_CURRENT_PLATFORM: Algorithm = Algorithm {
    name: "score-current-platform",
    title: "Score servers running newer platforms more highly",
    kind: Kind::Scorer,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.remaining().len() < 2 {
        return Reasons::skip("One or fewer servers");
    }
    let weight = run.settings.weights.current_platform;
    score::normalize(run, SortKey::Platform, weight)
}
