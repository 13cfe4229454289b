//! For a request that no server can take: the least changes of fleet, policy or request that
//! would make it fit.
//!
//! Every suggestion is tried before it is made: the same request succeeds with it, and fails when
//! any part of it is left out or any figure in it is one smaller. How algorithms judge is known
//! here only as far as to guess what could help.

use std::cell::Cell;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::algorithm::Remedies;
use crate::allocate::{Options, Order, allocate};
use crate::change::Change;
use crate::config::Config;
use crate::fit::alone;
use crate::fleet::Fleet;
use crate::num::truthy;
use crate::outcome::Outcome;
use crate::reason::{Reason, Reasons};
use crate::relax::relaxations;
use crate::remedy::Refused;
use crate::request::Request;
use crate::server::Server;
use crate::snapshot::Snapshot;
use crate::what_if::WhatIf;

/// Servers that are looked at closely.
const MAX_SERVERS: usize = 8;
/// Parts of one suggestion.
const MAX_CHANGES: usize = 12;
/// Suggestions in an answer.
const MAX_SUGGESTIONS: usize = 12;
/// Relaxations of the request of which pairs are tried.
const MAX_PAIRED: usize = 10;
/// Servers looked at in all trials on the whole fleet together, and the trials that are allowed
/// all the same: on a large fleet the search takes as long as a hundred allocations.
const MAX_WORK: usize = 500_000;
const TRIALS: std::ops::RangeInclusive<usize> = 100..=2_000;
/// Largest figure that is tried: far more than any machine has.
const MAX_AMOUNT: u64 = 1 << 32;

/// Changes that together make the request fit.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// For people.
    pub text: String,
    /// How many servers the request could then use.
    pub servers: usize,
    /// The changes of fleet and policy: a merge patch (RFC 7396) of the request's `what_if`.
    #[serde(skip_serializing_if = "WhatIf::is_nothing")]
    pub what_if: WhatIf,
    /// The changes of the request's body, a merge patch of it.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub request: Map<String, Value>,
    #[serde(skip)]
    changes: usize,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct LeastChanges {
    /// Each of them helps; empty if nothing does, or if the request fits.
    pub suggestions: Vec<Suggestion>,
    /// The search ended before everything was tried.
    pub cut: bool,
}

/// A request that no server can take.
#[derive(Clone, Copy, Debug)]
pub struct Helpless<'a> {
    /// The fleet as it was asked: with what the body's own `what_if` imagines.
    pub fleet: &'a Fleet,
    /// What was asked.
    pub body: &'a Map<String, Value>,
    /// The policy.
    pub config: &'a Config,
    /// How it was decided.
    pub options: &'a Options,
}

/// Suggests for a request body that was refused, until `is_over` says that it takes too long.
#[must_use]
pub fn least_changes(helpless: Helpless<'_>, is_over: &dyn Fn() -> bool) -> LeastChanges {
    let Helpless { fleet, body, config, options } = helpless;
    let Ok(request) = Request::parse(body) else { return LeastChanges::default() };
    let snapshot = fleet.clone().snapshot();
    let refused = allocate(&snapshot, &request, config, options);
    if refused.server.is_some() {
        return LeastChanges::default();
    }
    let trials = (MAX_WORK / snapshot.len().max(1)).clamp(*TRIALS.start(), *TRIALS.end());
    let alone = Options { order: Order::Arrival, ..options.clone() };
    let promising = promising(&snapshot, &request, &refused);
    let trials = Cell::new(trials);
    let imagined = body.get("what_if").and_then(|what_if| WhatIf::parse(what_if).ok());
    let imagined = imagined.unwrap_or_default();
    let search = Search {
        snapshot: &snapshot,
        fleet,
        body,
        request,
        imagined,
        config,
        options,
        alone,
        trials,
        is_over,
    };
    // Servers first: they are tried by themselves, and cost the fleet only a last look.
    let of_servers: Vec<Suggestion> =
        promising.into_iter().filter_map(|slot| search.of_server(snapshot.server(slot))).collect();
    let mut found = search.of_request();
    found.extend(of_servers);
    let least = found.iter().map(|suggestion| suggestion.changes).min().unwrap_or(0);
    found.retain(|suggestion| suggestion.changes == least);
    found.truncate(MAX_SUGGESTIONS);
    LeastChanges { suggestions: found, cut: search.is_spent() }
}

/// The servers that came furthest, those with most room first.
fn promising(snapshot: &Snapshot, request: &Request, refused: &Outcome) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::new();
    for pair in refused.steps.windows(2).rev() {
        let mut gone: Vec<(f64, u32)> = pair[0]
            .remaining
            .iter()
            .filter(|slot| !pair[1].remaining.has(*slot))
            .map(|slot| (spare(&pair[1].reasons, slot), slot))
            .collect();
        gone.sort_by(|a, b| b.0.total_cmp(&a.0));
        chosen.extend(gone.into_iter().map(|(_, slot)| slot));
        if chosen.len() >= MAX_SERVERS {
            break;
        }
    }
    if chosen.is_empty() {
        // None was even looked at: none is ready.
        let wanted = |slot: &u32| {
            let uuid = snapshot.server(*slot).name.uuid();
            request.servers().is_none_or(|only| uuid.is_some_and(|uuid| only.contains(&uuid)))
        };
        chosen.extend(snapshot.slots().filter(wanted).take(MAX_SERVERS));
    }
    chosen.truncate(MAX_SERVERS);
    chosen
}

fn spare(reasons: &Reasons, slot: u32) -> f64 {
    let Reasons::Each { each, .. } = reasons else { return 0.0 };
    let of = each.iter().find(|(of, _)| *of == slot);
    match of {
        Some((_, Reason::Spare(spare))) => *spare,
        _ => 0.0,
    }
}

/// Where a set of changes is tried.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// On the whole fleet.
    Fleet,
    /// On one server by itself, which is quick.
    Alone(&'a Server),
}

struct Search<'a> {
    fleet: &'a Fleet,
    /// Of the fleet as it is.
    snapshot: &'a Arc<Snapshot>,
    body: &'a Map<String, Value>,
    /// What the body asks for.
    request: Request,
    /// What the body imagines already.
    imagined: WhatIf,
    config: &'a Config,
    options: &'a Options,
    /// For trials on one server by itself.
    alone: Options,
    /// Trials on the whole fleet that are left.
    trials: Cell<usize>,
    is_over: &'a dyn Fn() -> bool,
}

impl Search<'_> {
    fn is_spent(&self) -> bool {
        self.trials.get() == 0 || (self.is_over)()
    }

    /// The body with the changes that concern it.
    fn patched(&self, changes: &[Change]) -> Map<String, Value> {
        let mut body = self.body.clone();
        for change in changes {
            change.patch(&mut body);
        }
        body
    }

    fn run(&self, changes: &[Change], place: Place<'_>) -> Option<Outcome> {
        if (self.is_over)() {
            return None;
        }
        let patched = if changes.iter().any(Change::is_of_request) {
            Some(Request::parse(&self.patched(changes)).ok()?)
        } else {
            None
        };
        let request = patched.as_ref().unwrap_or(&self.request);
        let what_if = WhatIf::of(changes)?;
        let policy = what_if.policy(self.config).ok()?;
        let config = policy.as_ref().unwrap_or(self.config);
        let (mut fleet, options) = match place {
            // Copying what is promised to a large fleet takes longer than deciding on it.
            Place::Fleet if what_if.leaves_fleet() => {
                return Some(allocate(self.snapshot, request, config, self.options));
            }
            Place::Fleet => (self.fleet.clone(), self.options),
            Place::Alone(server) => (alone(server, config), &self.alone),
        };
        what_if.apply(&mut fleet);
        Some(allocate(&fleet.snapshot(), request, config, options))
    }

    /// How many servers the request can use with the changes; `None` if it fails.
    fn works(&self, changes: &[Change], place: Place<'_>) -> Option<usize> {
        if let Place::Fleet = place {
            self.trials.set(self.trials.get().saturating_sub(1));
            if self.is_spent() {
                return None;
            }
        }
        let outcome = self.run(changes, place)?;
        outcome.server.as_ref()?;
        Some(outcome.steps.last().map_or(0, |step| step.remaining.len()))
    }

    /// Leaves out what is needless and makes figures as small as can be.
    fn minimize(&self, mut changes: Vec<Change>, place: Place<'_>) -> Option<Vec<Change>> {
        self.works(&changes, place)?;
        let mut at = 0;
        while at < changes.len() {
            let mut fewer = changes.clone();
            fewer.remove(at);
            if self.works(&fewer, place).is_some() { changes = fewer } else { at += 1 }
        }
        for at in 0..changes.len() {
            let Some(mut enough) = changes[at].amount() else { continue };
            let mut too_little = 0;
            while enough - too_little > 1 {
                let middle = too_little.midpoint(enough);
                changes[at] = changes[at].with_amount(middle);
                let works = self.works(&changes, place).is_some();
                if works { enough = middle } else { too_little = middle }
            }
            changes[at] = changes[at].with_amount(enough);
        }
        Some(changes)
    }

    /// The suggestion, if it holds on the whole fleet.
    fn checked(&self, changes: &[Change]) -> Option<Suggestion> {
        let servers = self.works(changes, Place::Fleet)?;
        for at in 0..changes.len() {
            let mut less = changes.to_vec();
            match changes[at].amount() {
                Some(amount) if amount > 1 => less[at] = changes[at].with_amount(amount - 1),
                _ => drop(less.remove(at)),
            }
            if self.works(&less, Place::Fleet).is_some() {
                return None;
            }
        }
        // What was not tried any more looks as if it failed.
        if self.is_spent() {
            return None;
        }
        let texts: Vec<String> = changes.iter().map(Change::text).collect();
        let what_if = WhatIf::of(changes)?;
        Some(Suggestion {
            text: texts.join(", and "),
            servers,
            // Lists are replaced whole by a merge patch.
            what_if: if what_if.is_nothing() { what_if } else { self.imagined.and(what_if) },
            request: merge_patch(self.body, &self.patched(changes)),
            changes: changes.len(),
        })
    }

    /// What would have to be different about one server.
    fn of_server(&self, server: &Server) -> Option<Suggestion> {
        if server.promised.bare {
            return None;
        }
        let place = Place::Alone(server);
        let mut changes: Vec<Change> = Vec::new();
        loop {
            let outcome = self.run(&changes, place)?;
            if outcome.server.is_some() {
                break;
            }
            if changes.len() >= MAX_CHANGES {
                return None;
            }
            // Where nothing about the server helps, something about the request may.
            let body = self.patched(&changes);
            let request = Request::parse(&body).ok()?;
            let remedies = self.remedies(&outcome, &request);
            let wishes = relaxations(&body);
            let mut all = remedies.into_iter().chain(wishes.iter().map(most));
            let helps = all.find_map(|change| self.grown(&changes, &change, place))?;
            changes.push(helps);
        }
        let changes = self.minimize(changes, place)?;
        self.checked(&changes)
    }

    /// What could help where a server by itself fails, the likeliest first.
    fn remedies(&self, outcome: &Outcome, request: &Request) -> Vec<Change> {
        let (Some(slot), Some(last)) = (outcome.snapshot.slots().next(), outcome.steps.last())
        else {
            return Vec::new();
        };
        let refused = Refused {
            server: Arc::new(outcome.snapshot.server(slot).clone()),
            slot,
            request,
            settings: &self.config.settings,
            reasons: &last.reasons,
        };
        let remedies = last.algorithm.map_or(made_ready as Remedies, |last| last.remedies);
        remedies(&refused)
    }

    /// The change, large enough that the step that fails does so no longer.
    fn grown(&self, changes: &[Change], change: &Change, place: Place<'_>) -> Option<Change> {
        let failing = |changes: &[Change]| {
            let outcome = self.run(changes, place)?;
            Some((outcome.server.is_none()).then_some(outcome.steps.len()))
        };
        let before = failing(changes)??;
        let mut amount = change.amount().unwrap_or(MAX_AMOUNT);
        loop {
            let change =
                if change.amount().is_some() { change.with_amount(amount) } else { change.clone() };
            let tried: Vec<Change> = changes.iter().cloned().chain([change.clone()]).collect();
            match failing(&tried)? {
                None => return Some(change),
                Some(after) if after > before => return Some(change),
                // One VM less may not be enough, but it is a step.
                Some(_) if change.is_partial() => return Some(change),
                Some(_) if change.most().is_some() || amount >= MAX_AMOUNT => return None,
                Some(_) => amount *= 2,
            }
        }
    }

    /// What would have to be different about the request.
    fn of_request(&self) -> Vec<Suggestion> {
        let all: Vec<Change> = relaxations(self.body).iter().map(most).collect();
        let single = all.iter().filter_map(|change| self.tried(vec![change.clone()]));
        let single: Vec<Suggestion> = single.collect();
        if !single.is_empty() {
            return single;
        }
        let few = &all[..all.len().min(MAX_PAIRED)];
        let pairs = few
            .iter()
            .enumerate()
            .flat_map(|(i, a)| few[i + 1..].iter().map(move |b| vec![a.clone(), b.clone()]));
        pairs.filter_map(|pair| self.tried(pair)).collect()
    }

    fn tried(&self, changes: Vec<Change>) -> Option<Suggestion> {
        let changes = self.minimize(changes, Place::Fleet)?;
        self.checked(&changes)
    }
}

/// A change of the request as far as it can go.
fn most(change: &Change) -> Change {
    match change.most() {
        Some(most) => change.with_amount(most),
        None => change.clone(),
    }
}

/// The merge patch (RFC 7396) from one object to another.
fn merge_patch(from: &Map<String, Value>, to: &Map<String, Value>) -> Map<String, Value> {
    let gone = from.keys().filter(|name| !to.contains_key(*name));
    let mut patch: Map<String, Value> = gone.map(|name| (name.clone(), Value::Null)).collect();
    for (name, value) in to {
        match (from.get(name), value) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(name.clone(), Value::Object(merge_patch(old, new)));
            }
            (_, new) => drop(patch.insert(name.clone(), new.clone())),
        }
    }
    patch
}

/// What a server needs to be looked at, if it was not even that.
fn made_ready(refused: &Refused<'_>) -> Vec<Change> {
    let record = &refused.server.record;
    let set_up = truthy(record.get("setup"));
    let reserved = truthy(record.get("reserved"));
    match (set_up, reserved) {
        (false, false) => vec![refused.set("setup", json!(true), "the setup done")],
        (true, true) => vec![refused.set("reserved", json!(false), "the reservation lifted")],
        (false, true) => {
            let members =
                [("setup".to_owned(), json!(true)), ("reserved".to_owned(), json!(false))];
            let text = "setup done and reservation lifted";
            vec![refused.with_members(members.into_iter().collect(), text)]
        }
        (true, false) => Vec::new(),
    }
}
