//! `calculate-recent-vms`: lets the later steps see VMs that were placed but are not reported yet.

use std::sync::Arc;

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::Run;
use crate::server::GIB;
use crate::vm::Brand;

pub(super) static RECENT_VMS: Algorithm = Algorithm {
    name: "calculate-recent-vms",
    title: "Add VMs which have been allocated to recently",
    kind: Kind::Calculator,
    run,
    remembers: true,
    ..Algorithm::PLAIN
};

/// A VM is remembered for less than this.
const MEMORY_MS: f64 = 600_000.0;

fn run(run: &mut Run<'_>) -> Reasons {
    let mut each: Vec<(u32, String)> = Vec::new();
    for recent in run.recent.vms.iter().filter(|recent| recent.age_ms < MEMORY_MS) {
        let Some(slot) = run.snapshot.slot_of(&recent.server_uuid) else { continue };
        let known = run.vms(slot).any(|vm| vm.uuid == recent.vm.uuid);
        if known || !run.remaining().has(slot) {
            continue;
        }
        let extra = run.found.extra(slot);
        extra.disk.zvol += recent.image_size;
        if recent.vm.brand == Brand::Kvm {
            extra.disk.zvol += recent.vm.quota * GIB;
        } else {
            extra.disk.zone_quota += recent.vm.quota * GIB;
        }
        extra.vms.push(Arc::new(recent.vm.clone()));
        let text = format!("Adding VM {}.", recent.vm.uuid);
        match each.iter_mut().find(|(noted, _)| *noted == slot) {
            Some((_, texts)) => *texts = format!("{texts} {text}"),
            None => each.push((slot, text)),
        }
    }
    let reason = |(slot, text): (u32, String)| (slot, Reason::Owned(text.into()));
    Reasons::each(each.into_iter().map(reason).collect())
}
