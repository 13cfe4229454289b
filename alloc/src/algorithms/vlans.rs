//! `hard-filter-vlans`: servers with the NIC tags, on links that are up.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::Run;
use crate::server::{Nics, Server};

pub(super) static VLANS: Algorithm = Algorithm {
    name: "hard-filter-vlans",
    title: "Servers supporting required NIC Tags",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let tag = missing_tag(refused.server.as_ref(), refused.request.vm.nic_groups.as_deref());
    let change = |tag: &String| {
        let interfaces = with_tag(&refused.server, tag);
        refused.set_sysinfo("Network Interfaces", interfaces, &format!("NIC tag {tag}"))
    };
    tag.map(change).into_iter().collect()
}

/// The first tag of the first group that the server lacks.
fn missing_tag<'a>(server: &Server, groups: Option<&'a [Vec<String>]>) -> Option<&'a String> {
    let online = &server.parsed.nics.online;
    let unmet = |group: &&Vec<String>| !group.iter().any(|tag| online.contains(tag));
    groups?.iter().find(unmet)?.first()
}

/// The server's interfaces and one more with a tag.
fn with_tag(server: &Server, tag: &str) -> Value {
    let known = server.record.get("sysinfo").and_then(|s| s.get("Network Interfaces"));
    let mut interfaces = known.and_then(Value::as_object).cloned().unwrap_or_default();
    interfaces.insert(format!("for-{tag}"), json!({ "Link Status": "up", "NIC Names": [tag] }));
    Value::Object(interfaces)
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let nics = &run.snapshot.server(slot).parsed.nics;
    let offline: Vec<_> = nics.offline.keys().collect();
    vec![
        ("wanted", json!(run.request.vm.nic_groups)),
        ("online", json!(nics.online)),
        ("offline", json!(offline)),
    ]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let request = run.request;
    let Some(groups) = &request.vm.nic_groups else {
        return Reasons::skip("No NIC Tag requirements to filter on");
    };
    let snapshot = run.snapshot;
    let fault = |nics: &Option<Arc<Nics>>| fault(nics.as_deref()?, groups);
    let faults: Vec<Option<String>> = snapshot.nics.iter().map(fault).collect();
    if faults.iter().all(Option::is_none) {
        return Reasons::None;
    }
    let is_refused = |class: u32| faults[class as usize].is_some();
    let gone = run.sweep(|word| word.refused(&word.chunk.nics, is_refused));
    // Texts are numbered as they come up in the order of slots.
    let (mut shared, mut numbers) = (Vec::new(), BTreeMap::new());
    for class in gone.iter().map(|slot| snapshot.nic_class(*slot)) {
        numbers.entry(class).or_insert_with(|| {
            shared.extend(faults[class as usize].clone());
            u32::try_from(shared.len() - 1).unwrap_or(u32::MAX)
        });
    }
    let text = |slot| Reason::Shared(numbers[&snapshot.nic_class(slot)]);
    run.remove_because(gone, text).sharing(shared)
}

/// Why these interfaces don't do, if they don't.
fn fault(nics: &Nics, groups: &[Vec<String>]) -> Option<String> {
    if !nics.known {
        return Some("Server missing interfaces in sysinfo".to_owned());
    }
    // A group without tags can't be satisfied by one.
    let unmet = |group: &&Vec<String>| !group.iter().any(|tag| nics.online.contains(tag));
    let group = groups.iter().find(unmet)?;
    let offline = group.iter().rev().find_map(|tag| Some((tag, nics.offline.get(tag)?)));
    Some(match offline {
        Some((tag, (nic, status))) => format!("NIC {nic} for tag \"{tag}\" is {status}"),
        None => format!("Server must have one of the NIC Tags: {}", group.join(", ")),
    })
}
