//! The one way from a question to a promise, for `POST /allocate` and for creating VMs:
//!
//! ```text
//! turn ─► snapshot ─► decision ─► promise in memory ─► commit ─► the store's feed ─► promise ends
//!         off the async threads when the fleet is large
//! ```
//!
//! Decisions take [turns](super::turns), so no two take the same room; a promise counts from the
//! moment a server is chosen until the commit has come back by the feed, or has failed. When another coordinator was
//! faster, everything is done again.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::clock::Clock;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde_json::Value;

use super::Placement;
use super::allocator::Allocator;
use super::ask::Ask;
use super::peers::ATTEMPTS;
use super::peers::is_overtaken;
use super::promises::{Guard, Promised, Promises};
use crate::alloc::{self, Config, Detail, Options, Outcome, Request, Snapshot, allocate_within};
use crate::app::error::AppError;

/// Fleets of more servers are decided on off the async threads, and so are wishes about other VMs.
const INLINE_SERVERS: usize = 256;
/// Longest decision: all others wait for it. One of a single VM on 20,000 servers takes some
/// milliseconds.
const DECISION: Duration = Duration::from_secs(10);

/// A VM to be placed.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) vm: VmUuid,
    /// The request as it is kept.
    pub(super) body: Object,
    pub(super) request: Request,
    /// What it will take of its server.
    pub(super) extra: Arc<alloc::Extra>,
}

/// What is asked, checked.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) ask: Ask,
    pub(super) policy: Arc<Config>,
    pub(super) vms: Vec<Wanted>,
    /// The VMs are made, not only reserved.
    pub(super) making: bool,
}

impl Question {
    fn shows_steps(&self) -> bool {
        !self.making && self.ask.steps != Detail::None
    }

    /// Whether it may take long on a small fleet too: several VMs, a fleet or a policy of its own,
    /// or wishes about other VMs, whose patterns are compiled for each VM.
    fn is_large(&self) -> bool {
        let wishes =
            |wanted: &Wanted| wanted.body.get("vm").is_some_and(|vm| vm.get("affinity").is_some());
        self.vms.len() > 1 || self.ask.what_if.is_some() || self.vms.iter().any(wishes)
    }
}

/// What came out.
#[derive(Debug)]
pub(super) struct Decision {
    /// Of each VM, up to the first that failed.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) recent: Value,
    /// The fleet as it was asked, if it is to be looked at again.
    pub(super) asked: Option<alloc::Fleet>,
    /// What is promised until this is dropped: none, or one per VM that was asked for.
    pub(super) promises: Vec<(Promised, ServerUuid, Arc<alloc::Extra>)>,
    /// What the commit must find and leave in the store.
    pub(super) guard: Guard,
}

/// What a decision is made on.
struct View {
    /// The fleet as it is, or the one that the question imagines.
    fleet: Fleets,
    options: Vec<Options>,
    recent: Value,
}

enum Fleets {
    Real(Arc<Snapshot>),
    /// Without what is promised to the VMs of the question, and changed as `what_if` says; each VM
    /// counts for those after it.
    Imagined(Box<alloc::Fleet>),
}

/// The fleet that a question is about: without what is promised to its VMs, and changed as
/// `what_if` says.
fn imagine(allocator: &Allocator, question: &Question) -> alloc::Fleet {
    let mut fleet = allocator.fleet.clone();
    for wanted in &question.vms {
        fleet.release(wanted.vm.0);
    }
    if let Some(what_if) = &question.ask.what_if {
        what_if.apply(&mut fleet);
    }
    fleet
}

/// Decides for each VM on top of what was decided before, up to the first that fits nowhere; `None`
/// if it takes too long.
fn decide(view: View, question: &Question, clock: &dyn Clock) -> Option<(Vec<Outcome>, Value)> {
    let end = clock.monotonic() + DECISION;
    let is_over = || clock.monotonic() >= end;
    let View { mut fleet, options, recent } = view;
    let mut outcomes = Vec::with_capacity(question.vms.len());
    for (wanted, options) in question.vms.iter().zip(&options) {
        let snapshot = match &mut fleet {
            Fleets::Real(snapshot) => Arc::clone(snapshot),
            Fleets::Imagined(fleet) => fleet.snapshot(),
        };
        let mut outcome =
            allocate_within(&snapshot, &wanted.request, &question.policy, options, &is_over)?;
        // Here, where its memory is in the processor's cache, and where the next one takes it again.
        outcome.settle(question.shows_steps());
        let server = outcome.server.as_ref().map(|server| server.server_uuid.clone());
        outcomes.push(outcome);
        let Some(server) = server else { break };
        if let Fleets::Imagined(fleet) = &mut fleet {
            fleet.reserve(wanted.vm.0, &server, wanted.extra.clone());
        }
    }
    Some((outcomes, recent))
}

/// One question on its way to a commit.
pub(super) struct Flow<'a> {
    placement: &'a Arc<Placement>,
    pub(super) question: Arc<Question>,
    attempts: usize,
}

impl<'a> Flow<'a> {
    pub(super) fn new(placement: &'a Arc<Placement>, question: Question) -> Self {
        Self { placement, question: Arc::new(question), attempts: 0 }
    }

    /// Asks something else instead; the attempts go on.
    pub(super) fn ask(&mut self, question: Question) {
        self.question = Arc::new(question);
    }

    /// Decides and promises. What is promised is the caller's to commit, together with the guard.
    ///
    /// # Errors
    /// [`AppError::Busy`] when other coordinators were faster too often, or it took too long.
    pub(super) async fn decide(&mut self) -> Result<Decision, AppError> {
        self.attempts += 1;
        if self.attempts > ATTEMPTS {
            let text = "other coordinators place too much at a time".to_owned();
            return Err(AppError::Busy(text));
        }
        self.placement.decision(&self.question).await
    }

    /// After a commit that failed: returns once it is worth deciding again.
    ///
    /// # Errors
    /// The error, if it was not that another coordinator was faster; [`AppError::Store`].
    pub(super) async fn again(&self, error: AppError) -> Result<(), AppError> {
        match error {
            AppError::Store(error) if is_overtaken(&error) => {
                Ok(self.placement.ctx.feed.catch_up().await?)
            }
            error => Err(error),
        }
    }
}

impl Placement {
    /// Whether a decision belongs off the async threads.
    pub(super) fn is_large(&self, question: &Question) -> bool {
        self.fleet.len() > INLINE_SERVERS || question.is_large()
    }

    /// Decides on the fleet as it is now, and promises. No other decision is made meanwhile: see
    /// [`super::turns`].
    pub(super) fn decide(&self, question: &Question) -> Result<Decision, AppError> {
        let decided = decide(self.view(question), question, &*self.ctx.parts.clock);
        let Some((outcomes, recent)) = decided else {
            let text = format!("no decision within {} s; ask for less", DECISION.as_secs());
            return Err(AppError::Busy(text));
        };
        Ok(self.promise_decided(question, outcomes, recent))
    }

    fn view(&self, question: &Question) -> View {
        let Question { ask, policy, vms, making } = question;
        let mut placing = self.current();
        if *making {
            for wanted in vms {
                placing.end_reservation(wanted.vm);
            }
        }
        let snapshot = placing.allocator.fleet.snapshot();
        let recent = placing.allocator.recent(policy, self.ctx.parts.clock.monotonic());
        // A repeated request for a VM does not compete with itself, nor does one of several count
        // for the rest before all are placed.
        let repeated = vms.iter().any(|wanted| placing.is_promised(wanted.vm));
        let fleet = if ask.what_if.is_some() || vms.len() > 1 || repeated {
            Fleets::Imagined(Box::new(imagine(&placing.allocator, question)))
        } else {
            Fleets::Real(snapshot)
        };
        drop(placing);
        // Of several, each has a seed of its own.
        let seed = |place: usize| ask.seed.map(|seed| seed.wrapping_add(place as u64));
        let options =
            (0..vms.len()).map(|place| self.decisions.options(seed(place), &recent)).collect();
        View { fleet, options, recent }
    }

    fn promise_decided(
        &self,
        question: &Question,
        outcomes: Vec<Outcome>,
        recent: Value,
    ) -> Decision {
        let Question { ask, vms, making, .. } = question;
        let now = self.ctx.parts.clock.monotonic();
        let servers: Vec<ServerUuid> = outcomes
            .iter()
            .filter_map(|outcome| outcome.server.as_ref()?.server_uuid.uuid())
            .collect();
        let all = servers.len() == vms.len();
        let mut promises = Vec::new();
        for (wanted, server) in vms.iter().zip(&servers).filter(|_| all && ask.reserve) {
            let mut placing = self.promises.lock();
            placing.allocator.remember(&wanted.request, *server, now);
            let counts = *making || placing.is_reservable(wanted.vm);
            drop(placing);
            if counts {
                let promised = Promises::promise(
                    &self.promises,
                    wanted.vm,
                    *server,
                    wanted.extra.clone(),
                    *making,
                );
                promises.push((promised, *server, wanted.extra.clone()));
            }
        }
        let placing = self.promises.lock();
        let helpless = all || !ask.least_changes || vms.len() > 1;
        let asked = (!helpless).then(|| imagine(&placing.allocator, question));
        let guard = if promises.is_empty() { Vec::new() } else { placing.peers.guard() };
        Decision { outcomes, recent, asked, promises, guard }
    }
}
