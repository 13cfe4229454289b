//! `soft-filter-locality-hints`: wishes to be near or far from other VMs, where they can be met.

use serde_json::{Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::findings::RackLocality;
use crate::reason::{Reason, Reasons};
use crate::run::Run;

pub(super) static SOFT_LOCALITY: Algorithm = Algorithm {
    name: "soft-filter-locality-hints",
    title: "Servers with requested soft locality considered",
    kind: Kind::Set,
    run,
    compares: Some(compares),
    ..Algorithm::PLAIN
};

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let mut figures = run.wishes(slot);
    figures.push(("owner_vms", json!(run.owner_vms(slot))));
    figures.extend(run.rack(slot).map(|rack| ("rack", json!(rack))));
    figures
}

fn run(run: &mut Run<'_>) -> Reasons {
    if let Some(racks) = run.found.racks().cloned() {
        by_rack(run, &racks);
        return Reasons::None;
    }
    let locality = run.found.locality().cloned().unwrap_or_default();
    if locality.near.is_empty() && locality.far.is_empty() {
        return spread_by_owner(run);
    }
    if locality.strict {
        return Reasons::skip("Strict locality requested and no spreading needed");
    }
    let mut each = Vec::new();
    far(run, &locality.far, &mut each);
    let all = near(run, &locality.near, &mut each);
    if each.is_empty() && all.is_none() {
        return Reasons::None;
    }
    Reasons::Each { each, shared: Vec::new(), all, in_order: true }
}

const IGNORED: &str = "(ignored b/c non-strict)";

fn spread_by_owner(run: &mut Run<'_>) -> Reasons {
    let mut used = run.owner_counts();
    used.retain(|(slot, _)| run.remaining().has(*slot));
    if !used.is_empty() && used.len() == run.remaining().len() {
        return Reasons::all(format!("exclude: spread by owner {IGNORED}"));
    }
    let used = used.iter().map(|(slot, _)| *slot);
    run.remove_because(used, |_| Reason::Text("exclude: spread by owner"))
}

fn far(run: &mut Run<'_>, far: &[String], each: &mut Vec<(u32, Reason)>) {
    let hosts = run.owned_hosts(far);
    let none_left = run.list().iter().all(|slot| hosts.contains_key(slot));
    for slot in run.list().iter() {
        let Some(first) = hosts.get(slot).and_then(|found| found.first()) else { continue };
        let mut text = format!("exclude: inst!={}", far[*first]);
        if none_left {
            text = format!("{text} {IGNORED}");
        }
        each.push((*slot, Reason::Owned(text.into())));
    }
    if !none_left {
        run.keep(|_, slot| !hosts.contains_key(&slot));
    }
}

fn near(run: &mut Run<'_>, near: &[String], each: &mut Vec<(u32, Reason)>) -> Option<String> {
    if near.is_empty() {
        return None;
    }
    let hosts = run.owned_hosts(near);
    if !run.list().iter().any(|slot| hosts.contains_key(slot)) {
        let more = if near.len() > 2 { ",..." } else { "" };
        let first = near.iter().take(2).map(String::as_str).collect::<Vec<_>>().join(",");
        return Some(format!("exclude: inst==~{first}{more} {IGNORED}"));
    }
    for slot in run.list().iter() {
        if let Some(first) = hosts.get(slot).and_then(|found| found.first()) {
            let text = format!("include: inst==~{}", near[*first]);
            // A server that was noted as too near is kept only if none was left without.
            each.retain(|(noted, _)| noted != slot);
            each.push((*slot, Reason::Owned(text.into())));
        }
    }
    run.keep(|_, slot| hosts.contains_key(&slot));
    None
}

/// The older algorithm, which knows racks; `calculate-locality` asks for it.
fn by_rack(run: &mut Run<'_>, locality: &RackLocality) {
    let strict = locality.strict;
    if !locality.far.is_empty() {
        narrow(run, strict, |run, slot| !run.contains(&locality.far, slot));
        narrow(run, false, |run, slot| {
            run.rack(slot).is_some_and(|rack| !locality.far_racks.contains(rack))
        });
    }
    if !locality.near.is_empty() {
        narrow(run, strict, |run, slot| {
            run.rack(slot).is_some_and(|rack| locality.near_racks.contains(rack))
        });
        narrow(run, false, |run, slot| !run.contains(&locality.near, slot));
    }
}

/// Keeps the servers that fit; if none does, all of them unless it is strict.
fn narrow(run: &mut Run<'_>, strict: bool, fits: impl Fn(&Run<'_>, u32) -> bool) {
    let kept: Vec<u32> = run.list().iter().copied().filter(|slot| fits(run, *slot)).collect();
    if strict || !kept.is_empty() {
        run.leave(kept);
    }
}

impl Run<'_> {
    fn contains(&self, slots: &[u32], slot: u32) -> bool {
        slots.binary_search(&slot).is_ok()
    }

    fn rack(&self, slot: u32) -> Option<&String> {
        self.snapshot.server(slot).parsed.rack.as_ref()
    }
}
