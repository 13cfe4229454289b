//! `calculate-ticketed-vms`: lets the later steps see what is promised: tickets and reservations.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::findings::Vms;
use crate::reason::Reasons;
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static TICKETED_VMS: Algorithm = Algorithm {
    name: "calculate-ticketed-vms",
    title: "Add VMs which have open provisioning tickets",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("promised_vms", json!(run.snapshot.server(slot).promised.vms.len()))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.found.see(Vms::Promised);
    run.filter_flag(flag::BARE_TICKET, false, || Verdict::Drop)
}
