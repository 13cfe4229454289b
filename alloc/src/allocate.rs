//! Evaluates an expression: the allocator's two entries.

use std::sync::{Arc, OnceLock};

use muster_shared::ids::ServerUuid;
use serde_json::{Map, Value};

use crate::algorithm::Algorithm;
use crate::algorithms::CAPACITY;
use crate::config::Config;
use crate::explain::{Explanation, Inputs, Notes};
use crate::expr::Expr;
use crate::findings::Left;
use crate::outcome::{Choice, Outcome, Step, in_order};
use crate::reason::Reasons;
use crate::recent::Recent;
use crate::remaining::Remaining;
use crate::request::Request;
use crate::rng::Rng;
use crate::run::Run;
use crate::server::{Unreserved, flag};
use crate::server_name::ServerName;
use crate::slot_set::SlotSet;
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
    Evaluation::new(snapshot, request, config, options).decide(snapshot, config, options)
}

/// As [`allocate`], unless `is_over` says before its end that it takes too long; then `None`.
#[must_use]
pub fn allocate_within(
    snapshot: &Arc<Snapshot>,
    request: &Request,
    config: &Config,
    options: &Options,
    is_over: &dyn Fn() -> bool,
) -> Option<Outcome> {
    let mut evaluation = Evaluation::new(snapshot, request, config, options);
    evaluation.run.end_when(is_over);
    let outcome = evaluation.decide(snapshot, config, options);
    (!evaluation.run.is_over()).then_some(outcome)
}

/// As [`allocate`], and what every algorithm made of every server.
#[must_use]
pub fn explain(
    snapshot: &Arc<Snapshot>,
    request: &Request,
    config: &Config,
    options: &Options,
) -> (Outcome, Explanation) {
    let mut evaluation = Evaluation::new(snapshot, request, config, options);
    evaluation.notes = Some(Notes::default());
    let outcome = evaluation.decide(snapshot, config, options);
    let notes = evaluation.notes.take().unwrap_or_default();
    let inputs = Inputs { request, settings: &config.settings, recent: &options.recent };
    let explanation = notes.explanation(snapshot, inputs, outcome.steps[0].remaining.list());
    (outcome, explanation)
}

fn candidates(
    snapshot: &Snapshot,
    only: Option<&[ServerUuid]>,
    options: &Options,
    rng: &mut Rng,
) -> Remaining {
    let wanted = only.map(|only| {
        let slot = |server: &ServerUuid| snapshot.slot_of(&(*server).into());
        SlotSet::of(&only.iter().filter_map(slot).collect::<Vec<_>>(), snapshot.capacity())
    });
    let looked_at = SlotSet::by_word(snapshot.words(), |word| {
        let flagged = |bit| snapshot.flagged(word, bit);
        let wanted = wanted.as_ref().map_or(u64::MAX, |wanted| wanted.word(word));
        let ready = flagged(flag::SETUP) & !flagged(flag::RESERVED);
        flagged(flag::USED) & wanted & if options.only_ready { ready } else { u64::MAX }
    });
    let mut list: Vec<u32> = match options.order {
        Order::Uuid => {
            snapshot.by_name.values().copied().filter(|slot| looked_at.has(*slot)).collect()
        }
        Order::Arrival | Order::Shuffled => looked_at.to_vec(),
    };
    if options.order == Order::Shuffled {
        rng.shuffle(&mut list);
    }
    Remaining::of(list, looked_at)
}

/// One evaluation of an expression.
struct Evaluation<'a> {
    run: Run<'a>,
    steps: Vec<Step>,
    /// What is taken down for an explanation, if somebody wants one.
    notes: Option<Notes>,
}

impl<'a> Evaluation<'a> {
    fn new(
        snapshot: &'a Snapshot,
        request: &'a Request,
        config: &'a Config,
        options: &'a Options,
    ) -> Self {
        let mut run = Run::new(snapshot, request, &config.settings, &options.recent, options.seed);
        let servers = candidates(snapshot, request.servers(), options, &mut run.rng);
        run.start_with(servers);
        Self { run, steps: Vec::new(), notes: None }
    }

    fn decide(&mut self, snapshot: &Arc<Snapshot>, config: &Config, options: &Options) -> Outcome {
        let remaining = Arc::clone(self.run.remaining());
        self.steps = vec![Step { algorithm: None, remaining, reasons: Reasons::None }];
        self.evaluate(&config.expr);
        in_order(&mut self.steps);
        let run = &self.run;
        let chosen = if config.first_wins { first(run) } else { best(run) };
        let server = chosen.map(|(slot, score)| Choice {
            server_uuid: snapshot.server(slot).name.clone(),
            score,
            unreserved: (!matches!(run.found.left(), Left::Unknown)).then(|| run.left(slot)),
            ratios: run.ratios(slot),
        });
        let scores = self.run.take_scores();
        let steps = std::mem::take(&mut self.steps);
        let (snapshot, seed) = (Arc::clone(snapshot), options.seed);
        Outcome { snapshot, server, steps, scores, seed, digest: OnceLock::new() }
    }

    fn evaluate(&mut self, expr: &Expr) {
        if self.run.is_over() {
            return;
        }
        match expr {
            Expr::Run(algorithm) => self.execute(algorithm),
            Expr::Pipe(elements) => {
                for element in elements {
                    if self.run.remaining().is_empty() {
                        return;
                    }
                    self.evaluate(element);
                }
            }
            Expr::Or(elements) => {
                let entered = Arc::clone(self.run.remaining());
                for element in elements {
                    self.run.go_back(&entered);
                    self.evaluate(element);
                    if !self.run.remaining().is_empty() {
                        return;
                    }
                }
            }
        }
    }

    fn execute(&mut self, algorithm: &'static Algorithm) {
        let run = &mut self.run;
        let before = Arc::clone(run.remaining());
        let reasons = (algorithm.run)(run);
        if let Some(notes) = &mut self.notes {
            notes.note(run, algorithm, before, &reasons);
        }
        let remaining = Arc::clone(run.remaining());
        self.steps.push(Step { algorithm: Some(algorithm), remaining, reasons });
    }
}

/// The first server, and its score.
fn first(run: &Run<'_>) -> Option<(u32, f64)> {
    run.list().first().copied().zip(run.scores().of(run.list()).first().copied())
}

/// The server with the highest score; on a tie the later one.
fn best(run: &Run<'_>) -> Option<(u32, f64)> {
    let scores = run.scores().of(run.list());
    let servers = run.list().iter().copied().zip(scores.iter().copied());
    servers.reduce(|best, server| if best.1 > server.1 { best } else { server })
}

/// What servers have left, for planners.
#[derive(Clone, Debug)]
pub struct Capacity {
    /// Per server, in the order looked at.
    pub capacities: Vec<(ServerName, Unreserved)>,
    /// Why a server was left out.
    pub errors: Map<String, Value>,
}

impl Capacity {
    /// `{"<uuid>": {"cpu": n, "ram": n, "disk": n}}`, as in the HTTP answer.
    #[must_use]
    pub fn capacities_json(&self) -> Value {
        let entry = |(name, left): &(ServerName, Unreserved)| (name.to_string(), left.to_json());
        Value::Object(self.capacities.iter().map(entry).collect())
    }
}

/// What each server has left beside its VMs; promises are not counted, as in the reference.
/// `servers` restricts it. Servers that are not set up are left out without an error.
#[must_use]
pub fn capacity(
    snapshot: &Arc<Snapshot>,
    servers: Option<&[ServerUuid]>,
    config: &Config,
) -> Capacity {
    let request = Request::for_capacity(servers);
    let options = Options { order: Order::Arrival, ..Options::default() };
    let mut evaluation = Evaluation::new(snapshot, &request, config, &options);
    evaluation.run.always_promised = false;
    for algorithm in CAPACITY {
        evaluation.execute(algorithm);
    }
    let Evaluation { mut run, mut steps, .. } = evaluation;
    in_order(&mut steps);
    let name = |slot: &u32| snapshot.server(*slot).name.clone();
    let capacities = run.list().iter().map(|slot| (name(slot), run.left(*slot))).collect();
    let (snapshot, scores) = (Arc::clone(snapshot), run.take_scores());
    let digest = OnceLock::new();
    let outcome = Outcome { snapshot, server: None, steps, scores, seed: 0, digest };
    Capacity { capacities, errors: outcome.left_out() }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::fleet::Fleet;
    use crate::settings::HostOs;

    #[test]
    fn a_decision_that_takes_too_long_is_none() {
        let pipe = json!(["pipe", "hard-filter-vm-count"]);
        let config = Config::new(&pipe, &json!({}), HostOs::Any).unwrap();
        let mut fleet = Fleet::new(&config);
        for number in 1..=1_000 {
            let record = json!({ "uuid": Uuid::from_u128(number), "setup": true });
            fleet.upsert_server(Arc::new(record.as_object().unwrap().clone())).unwrap();
        }
        let body = json!({
            "vm": { "vm_uuid": Uuid::from_u128(1), "owner_uuid": Uuid::from_u128(2), "ram": 1 },
            "image": {}, "nic_tags": ["admin"],
        });
        let request = Request::parse(body.as_object().unwrap()).unwrap();
        let (snapshot, options) = (fleet.snapshot(), Options::default());
        let looks = Cell::new(0_usize);
        // How often the time is looked at, and with how much of it.
        let within = |most: usize| {
            looks.set(0);
            let is_over = || {
                looks.set(looks.get() + 1);
                looks.get() > most
            };
            allocate_within(&snapshot, &request, &config, &options, &is_over)
        };
        let whole = within(usize::MAX).unwrap();
        let all = looks.get();
        assert_eq!(whole.failure(), allocate(&snapshot, &request, &config, &options).failure());
        assert!(all > 16, "{all}: also while one algorithm looks at many servers");
        for most in [0, 1, all / 2, all - 1] {
            assert!(within(most).is_none(), "{most} of {all}");
            assert_eq!(looks.get(), most + 1, "it goes on");
        }
    }
}
