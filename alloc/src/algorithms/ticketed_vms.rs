//! `calculate-ticketed-vms`: lets the later steps see what is promised: tickets and reservations.

use super::{Algorithm, Kind};
use crate::outcome::Reasons;
use crate::run::{Run, Vms};
use crate::server::flag;

pub(super) static TICKETED_VMS: Algorithm = Algorithm {
    name: "calculate-ticketed-vms",
    title: "Add VMs which have open provisioning tickets",
    kind: Kind::Filter,
    run,
};

fn run(run: &mut Run<'_>) -> Reasons {
    run.vms = Vms::Promised;
    run.keep(|snapshot, slot| !snapshot.has(slot, flag::BARE_TICKET))
}
