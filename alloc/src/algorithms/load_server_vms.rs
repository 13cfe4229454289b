//! `load-server-vms`: lets the later steps see the VMs of each server.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::reason::Reasons;
use crate::run::{Run, Vms};

pub(super) static LOAD_SERVER_VMS: Algorithm = Algorithm {
    name: "load-server-vms",
    title: "Load info about all VMs for each server",
    kind: Kind::Calculator,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("vms", json!(run.snapshot.server(slot).loaded().count()))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    run.vms = run.vms.max(Vms::Loaded);
    // What is loaded replaces the VMs that were remembered; the disk they were counted for stays.
    for slot in run.list.iter() {
        if let Some(extra) = run.extra.get_mut(slot) {
            extra.vms.clear();
        }
    }
    Reasons::Loaded
}
