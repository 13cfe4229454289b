//! `hard-filter-owner-same-servers`: no two VMs of an owner on one server.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};

pub(super) static OWNER_SAME_SERVERS: Algorithm = Algorithm {
    name: "hard-filter-owner-same-servers",
    title: "Servers which do not contain any of an owner's zones",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let owner = refused.request.vm.owner;
    refused.without(|vm| vm.owner == owner).into_iter().collect()
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    vec![("owner_vms", json!(run.owner_vms(slot)))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let owner = run.request.vm.owner;
    let counts = run.owner_counts_by_slot();
    run.filter(|run, slot| {
        if counts[slot as usize] == 0 {
            return Verdict::Keep;
        }
        match run.vms(slot).find(|vm| vm.owner == owner) {
            None => Verdict::Keep,
            Some(vm) => {
                let text = format!("VM's owner already has VM {} on server", vm.uuid);
                Verdict::Because(Reason::Owned(text.into()))
            }
        }
    })
}
