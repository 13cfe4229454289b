//! `hard-filter-invalid-servers`: servers whose record has what the arithmetic needs.

use crate::algorithm::{Algorithm, Kind};
use crate::findings::Vms;
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static INVALID_SERVERS: Algorithm = Algorithm {
    name: "hard-filter-invalid-servers",
    title: "Servers objects which are valid",
    kind: Kind::Filter,
    run,
    ..Algorithm::PLAIN
};

fn run(run: &mut Run<'_>) -> Reasons {
    let with_vms = run.found.sees() >= Vms::Loaded;
    if !with_vms {
        return run.filter_flag(flag::VALID, true, || Verdict::Because(Reason::Fault));
    }
    run.filter(|run, slot| {
        if !run.snapshot.has(slot, flag::VALID) {
            return Verdict::Because(Reason::Fault);
        }
        // The reference checks VMs only where an earlier step has loaded them.
        match run.vms(slot).find_map(|vm| vm.fault.as_deref()) {
            None => Verdict::Keep,
            Some(fault) => Verdict::Because(Reason::Owned(fault.into())),
        }
    })
}
