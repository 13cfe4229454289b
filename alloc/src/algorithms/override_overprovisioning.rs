//! `override-overprovisioning`: the same overprovisioning ratios for all servers and the package.

use crate::algorithm::{Algorithm, Kind};
use crate::ratios::RatioPolicy;
use crate::reason::Reasons;
use crate::run::Run;

pub(crate) static OVERRIDE_OVERPROVISIONING: Algorithm = Algorithm {
    name: "override-overprovisioning",
    title: "Force overprovisioning to fixed values",
    kind: Kind::Calculator,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.settings.disable_override_overprovisioning {
        return Reasons::skip("Do not override overprovisioning numbers");
    }
    let forced = run.settings.forced;
    run.found.set_policy(RatioPolicy::Forced(forced));
    if let Some(package) = run.found.package_mut() {
        package.ratios = forced;
    }
    Reasons::None
}
