//! `load-server-vms`: lets the later steps see the VMs of each server.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::findings::Vms;
use crate::reason::Reasons;
use crate::run::Run;

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
    run.found.see(run.found.sees().max(Vms::Loaded));
    // What is loaded replaces the VMs that were remembered.
    let left = Arc::clone(run.remaining());
    run.found.drop_extra_vms(&left);
    Reasons::Loaded
}
