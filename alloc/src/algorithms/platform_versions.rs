//! `hard-filter-platform-versions`: servers on a platform that package and image allow.

use serde_json::Value;

use crate::algorithm::{Algorithm, Kind};
use crate::platform::{self, Limit};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static PLATFORM_VERSIONS: Algorithm = Algorithm {
    name: "hard-filter-platform-versions",
    title: "Servers which meet image manifest and package platform requirements",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies: platform::remedies,
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    run.snapshot.server(slot).parsed.platform.figures()
}

fn run(run: &mut Run<'_>) -> Reasons {
    let (image, package) = (&run.request.image, run.found.package());
    // The package's max_platform is checked on arrival and then ignored, as in the reference.
    let limits: Vec<Limit> = [
        Limit::least(package.and_then(|p| p.min_platform.as_ref()), "Package"),
        Limit::least(image.min_platform.as_ref(), "Image"),
        Limit::most(image.max_platform.as_ref(), "Image"),
    ]
    .into_iter()
    .flatten()
    .collect();
    platform::filter(run, &limits)
}
