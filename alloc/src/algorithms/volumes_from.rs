//! `hard-filter-volumes-from`: the server that has the VMs of `docker:volumesfrom`.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::algorithm::{Algorithm, Kind};
use crate::reason::{Reason, Reasons};
use crate::run::Run;

pub(crate) static VOLUMES_FROM: Algorithm = Algorithm {
    name: "hard-filter-volumes-from",
    title: "Servers containing VMs required for volumesfrom",
    kind: Kind::Set,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let required = &run.request.vm.volumes_from;
    let is_here = |vm: &&String| {
        let home = Uuid::parse_str(vm).ok().and_then(|vm| run.snapshot.vms.get(vm).copied());
        home == Some(slot)
    };
    let here: Vec<&String> = required.iter().filter(is_here).collect();
    vec![("required", json!(required)), ("here", json!(here))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let vm = &run.request.vm;
    if !vm.docker || !vm.has_metadata {
        return Reasons::skip(
            "Requested VM is not a Docker container and/or has no internal_metadata",
        );
    }
    if vm.volumes_from.is_empty() {
        return Reasons::skip("Requested VM has no VMs listed in internal_data docker:volumesfrom");
    }
    let mut each = Vec::new();
    let mut texts = Vec::new();
    for (required, text) in vm.volumes_from.iter().zip(0u32..) {
        if run.remaining().is_empty() {
            break;
        }
        let found = Uuid::parse_str(required).ok().and_then(|vm| run.snapshot.vms.get(vm).copied());
        let Some(home) = found else {
            run.leave(Vec::new());
            let all = Some(format!("Error loading VM {required}: VM not found"));
            return Reasons::Each { each, shared: texts, all, in_order: true };
        };
        texts.push(format!("VM needs volumes from {required}, which was not found on server"));
        let removed = run.list().iter().filter(|slot| **slot != home);
        each.extend(removed.map(|slot| (*slot, Reason::Shared(text))));
        run.keep(|_, slot| slot == home);
    }
    run.leave(run.list().iter().copied().take(1).collect());
    Reasons::each(each).sharing(texts)
}
