//! `hard-filter-feature-min-platform`: servers on a platform that has the features the request uses.

use serde_json::Value;

use crate::algorithm::{Algorithm, Kind};
use crate::platform::{self, Limit};
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static FEATURE_MIN_PLATFORM: Algorithm = Algorithm {
    name: "hard-filter-feature-min-platform",
    title: "Servers which meet various features' platform requirements",
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
    let (vm, platforms) = (&run.request.vm, &run.settings.platforms);
    let features = [
        (vm.docker, &platforms.docker, "Docker support"),
        (vm.docker && vm.volumes, &platforms.docker_volumes, "Docker volume automount support"),
        (!vm.docker && vm.volumes, &platforms.other_volumes, "Non-docker volume automount support"),
        (vm.nfs_v2, &platforms.volapi_nfs_v2, "volapi nfs v2 support"),
        (vm.flexible_disk, &platforms.flexible_disk, "Flexible disk size support"),
    ];
    let limits: Vec<Limit> = features
        .into_iter()
        .filter(|(used, ..)| *used)
        .filter_map(|(_, stamp, who)| Limit::from_stamp(stamp.as_deref()?, who))
        .collect();
    platform::filter(run, &limits)
}
