//! `override-overprovisioning`: the same overprovisioning ratios for all servers and the package.

use super::{Algorithm, Kind};
use crate::config::RatioPolicy;
use crate::outcome::Reasons;
use crate::run::Run;

pub(super) static OVERRIDE_OVERPROVISIONING: Algorithm = Algorithm {
    name: "override-overprovisioning",
    title: "Force overprovisioning to fixed values",
    kind: Kind::Calculator,
    run,
    compares: None,
};

fn run(run: &mut Run<'_>) -> Reasons {
    if run.config.disable_override_overprovisioning {
        return Reasons::skip("Do not override overprovisioning numbers");
    }
    run.policy = RatioPolicy::Forced(run.config.forced);
    if let Some(package) = &mut run.package {
        package.ratios = run.config.forced;
    }
    Reasons::None
}
