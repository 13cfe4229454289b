//! `calculate-locality`: finds the servers and racks for the rack-aware soft locality.

use crate::algorithm::{Algorithm, Kind};
use crate::findings::RackLocality;
use crate::reason::Reasons;
use crate::run::Run;

pub(super) static LOCALITY: Algorithm = Algorithm {
    name: "calculate-locality",
    title: "Calculate localities of owner's VMs",
    kind: Kind::Calculator,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let locality = run.request.vm.locality.clone().unwrap_or_default();
    let (near, far) = if locality.near.is_empty() && locality.far.is_empty() {
        (Vec::new(), run.owner_counts().into_iter().map(|(slot, _)| slot).collect())
    } else {
        let hosts = |vms: &[String]| run.owned_hosts(vms).into_keys().collect();
        (hosts(&locality.near), hosts(&locality.far))
    };
    let mut listed = run.list().to_vec();
    listed.sort_unstable();
    let here = |slots: Vec<u32>| -> Vec<u32> {
        slots.into_iter().filter(|slot| listed.binary_search(slot).is_ok()).collect()
    };
    let (near, far) = (here(near), here(far));
    let racks = |slots: &[u32]| {
        let rack = |slot: &u32| run.snapshot.server(*slot).parsed.rack.clone();
        slots.iter().filter_map(rack).collect()
    };
    run.found.set_racks(RackLocality {
        strict: locality.strict,
        near_racks: racks(&near),
        far_racks: racks(&far),
        near,
        far,
    });
    Reasons::None
}
