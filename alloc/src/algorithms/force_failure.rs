//! `hard-filter-force-failure`: fails on request, for tests.

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};

pub(super) static FORCE_FAILURE: Algorithm = Algorithm {
    name: "hard-filter-force-failure",
    title: "Forced failure",
    kind: Kind::Set,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if !run.request.vm.force_failure {
        return Reasons::None;
    }
    run.filter(|_, _| Verdict::Because(Reason::Text("force_designation_failure set, failing")))
}
