//! `score-current-platform`: favours newer platforms.

use crate::algorithm::{Algorithm, Kind};
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
    if run.list().len() < 2 {
        return Reasons::skip("One or fewer servers");
    }
    let mut raw: Vec<f64> = run.list().iter().map(|slot| run.snapshot.platform_ms(*slot)).collect();
    let oldest = raw.iter().copied().filter(|ms| !ms.is_nan()).reduce(f64::min).unwrap_or(0.0);
    for ms in &mut raw {
        *ms = if ms.is_nan() { oldest } else { *ms };
    }
    let weight = run.settings.weights.current_platform;
    score::normalize(run, raw, weight)
}
