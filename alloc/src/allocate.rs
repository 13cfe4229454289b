//! Evaluates an expression: the allocator's two entries.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::algorithms::{self, Algorithm};
use crate::config::Config;
use crate::explain::Notes;
use crate::expr::Expr;
use crate::outcome::{Choice, Outcome, Reasons, Step};
use crate::recent::Recent;
use crate::request::Request;
use crate::rng::Rng;
use crate::run::{Bits, Left, Run};
use crate::server::{Unreserved, flag};
use crate::snapshot::Snapshot;

/// In which order servers are looked at. The order decides ties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Shuffled with the request's seed, so that equal servers fill evenly.
    #[default]
    Shuffled,
    /// By uuid: the same answer every time.
    Uuid,
    /// In the order in which the servers came into the fleet.
    Arrival,
}

/// What an allocation depends on beside snapshot, request and policy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The order of servers.
    pub order: Order,
    /// Leave out servers that are not set up or are reserved before the first step, as the
    /// reference's HTTP layer does.
    pub only_ready: bool,
    /// Decides shuffles; returned with the outcome.
    pub seed: u64,
    /// What earlier requests chose.
    pub recent: Recent,
}

/// Finds a server for a VM. Pure: the same arguments give the same outcome.
#[must_use]
pub fn allocate(
    snapshot: &Arc<Snapshot>,
    request: &Request,
    config: &Config,
    options: &Options,
) -> Outcome {
    decide(snapshot, request, config, options, None).0
}

/// As [`allocate`], and what every algorithm made of every server: `{"<uuid>": [{"algorithm",
/// "verdict": "kept"|"removed"|"scored", "compared"?, "delta"?, "score"?, "skipped"?}]}`.
#[must_use]
pub fn explain(
    snapshot: &Arc<Snapshot>,
    request: &Request,
    config: &Config,
    options: &Options,
) -> (Outcome, Value) {
    decide(snapshot, request, config, options, Some(Notes::default()))
}

fn decide(
    snapshot: &Arc<Snapshot>,
    request: &Request,
    config: &Config,
    options: &Options,
    notes: Option<Notes>,
) -> (Outcome, Value) {
    let mut run = Run::new(snapshot, request, config, &options.recent, options.seed);
    run.notes = notes;
    run.list = Arc::new(candidates(snapshot, request.servers(), options, &mut run.rng));
    run.bits = Bits::of(snapshot, &run.list);
    let mut steps =
        vec![Step { algorithm: None, remaining: Arc::clone(&run.list), reasons: Reasons::None }];
    evaluate(&mut run, &config.expr, &mut steps);
    let chosen = if config.first_wins { run.list.first().copied() } else { best(&run) };
    let server = chosen.map(|slot| Choice {
        server_uuid: snapshot.server(slot).uuid.to_string(),
        score: run.score[slot as usize],
        unreserved: (!matches!(run.left, Left::Unknown)).then(|| run.left(slot)),
        ratios: run.ratios(slot),
    });
    let notes = run.notes.take();
    let notes = notes.map_or(Value::Null, |notes| notes.into_json(&run, &steps[0].remaining));
    (Outcome { snapshot: Arc::clone(snapshot), server, steps, seed: options.seed }, notes)
}

fn candidates(
    snapshot: &Snapshot,
    only: Option<&[String]>,
    options: &Options,
    rng: &mut Rng,
) -> Vec<u32> {
    let ready = |slot: &u32| {
        let flags = snapshot.flags(*slot);
        !options.only_ready || (flags & flag::SETUP != 0 && flags & flag::RESERVED == 0)
    };
    let mut list: Vec<u32> = match options.order {
        Order::Uuid => snapshot.by_uuid.values().copied().filter(ready).collect(),
        Order::Arrival | Order::Shuffled => snapshot.slots().filter(ready).collect(),
    };
    if let Some(only) = only {
        let mut wanted: Vec<u32> =
            only.iter().filter_map(|uuid| snapshot.slot_of(&uuid.to_ascii_lowercase())).collect();
        wanted.sort_unstable();
        list.retain(|slot| wanted.binary_search(slot).is_ok());
    }
    if options.order == Order::Shuffled {
        rng.shuffle(&mut list);
    }
    list
}

fn evaluate(run: &mut Run<'_>, expr: &Expr, steps: &mut Vec<Step>) {
    match expr {
        Expr::Run(algorithm) => execute(run, algorithm, steps),
        Expr::Pipe(elements) => {
            for element in elements {
                if run.list.is_empty() {
                    return;
                }
                evaluate(run, element, steps);
            }
        }
        Expr::Or(elements) => {
            let entered = Arc::clone(&run.list);
            for element in elements {
                run.list = Arc::clone(&entered);
                evaluate(run, element, steps);
                if !run.list.is_empty() {
                    return;
                }
            }
        }
    }
}

fn execute(run: &mut Run<'_>, algorithm: &'static Algorithm, steps: &mut Vec<Step>) {
    let before = Arc::clone(&run.list);
    let reasons = (algorithm.run)(run);
    if let Some(mut notes) = run.notes.take() {
        notes.note(run, algorithm, &before, &reasons);
        run.notes = Some(notes);
    }
    steps.push(Step { algorithm: Some(algorithm), remaining: Arc::clone(&run.list), reasons });
}

/// The highest score; on a tie the later server.
fn best(run: &Run<'_>) -> Option<u32> {
    let score = |slot: u32| run.score[slot as usize];
    run.list
        .iter()
        .copied()
        .reduce(|best, slot| if score(best) > score(slot) { best } else { slot })
}

/// What servers have left, for planners.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Per server, in the order looked at.
    pub capacities: Vec<(String, Unreserved)>,
    /// Why a server was left out.
    pub errors: Map<String, Value>,
}

impl Capacity {
    /// `{"<uuid>": {"cpu": n, "ram": n, "disk": n}}`, as in the HTTP answer.
    #[must_use]
    pub fn capacities_json(&self) -> Value {
        let entry = |(uuid, left): &(String, Unreserved)| (uuid.clone(), left.to_json());
        Value::Object(self.capacities.iter().map(entry).collect())
    }
}

const CAPACITY: [&str; 6] = [
    "hard-filter-setup",
    "hard-filter-running",
    "hard-filter-invalid-servers",
    "load-server-vms",
    "override-overprovisioning",
    "calculate-server-unreserved",
];

/// What each server has left beside its VMs; promises are not counted, as in the reference.
/// `servers` restricts it. Servers that are not set up are left out without an error.
#[must_use]
pub fn capacity(snapshot: &Arc<Snapshot>, servers: Option<&[String]>, config: &Config) -> Capacity {
    let request = Request::for_capacity();
    let recent = Recent::default();
    let mut run = Run::new(snapshot, &request, config, &recent, 0);
    run.always_promised = false;
    let options = Options { order: Order::Arrival, ..Options::default() };
    let list = candidates(snapshot, servers, &options, &mut Rng::new(0));
    run.bits = Bits::of(snapshot, &list);
    let all = Arc::new(list);
    run.list = Arc::clone(&all);
    let mut steps = Vec::new();
    for name in CAPACITY {
        let algorithm = algorithms::find(name).expect("the capacity steps are built in");
        execute(&mut run, algorithm, &mut steps);
    }
    let uuid = |slot: &u32| snapshot.server(*slot).uuid.to_string();
    let capacities = run.list.iter().map(|slot| (uuid(slot), run.left(*slot))).collect();
    let kept: BTreeSet<u32> = run.list.iter().copied().collect();
    let left_out: BTreeSet<_> = all.iter().filter(|s| !kept.contains(s)).map(uuid).collect();
    let outcome = Outcome { snapshot: Arc::clone(snapshot), server: None, steps, seed: 0 };
    let reasons = (0..outcome.steps.len()).flat_map(|place| outcome.reasons(place));
    let errors = reasons.filter(|(uuid, _)| left_out.contains(uuid)).collect();
    Capacity { capacities, errors }
}
