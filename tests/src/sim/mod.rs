//! The simulated cluster: the real coordinator with its API and real agents in one process, on a
//! simulated network, simulated disks and simulated hosts. A seed decides everything that happens,
//! so a run that fails is repeated by its seed.
//!
//! Each node has a runtime with a paused clock. [`Sim::tick`] moves all of them, one after the
//! other, then checks the [`invariants`].

pub mod ask;
pub mod client;
pub mod clock;
pub mod coordinator;
pub mod faults;
pub mod invariants;
pub mod kill;
pub mod kv;
pub mod mix;
pub mod net;
pub mod node;
pub mod plant;
pub mod poster;
pub mod reader;
pub mod requests;
pub mod scenario;
pub mod settled;
pub mod store;
pub mod trace;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use muster_agent::drivers::host::HostAction;
use muster_agent::drivers::images::sim::SimRepository;
use muster_agent::drivers::storage::sim::SimImage;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use serde_json::json;

use self::ask::Ask;
use self::client::{Client, Patience};
use self::coordinator::CoordinatorNode;
use self::invariants::{Conditions, Verdict, Violation, Witness};
use self::mix::Mix;
use self::net::Net;
use self::node::{AgentNode, Hardware};
use self::plant::Plant;
use self::poster::Poster;
use self::reader::Reader;
use self::store::Mood;
use self::trace::Trace;

/// How far time moves at once in a steady run. Frames arrive on the borders of ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// Lengths of the ticks of other runs, ms.
const TICKS_MS: [u64; 5] = [10, 25, 50, 60, 90];
/// How long a host takes to boot, at least.
const BOOT: Duration = Duration::from_secs(1);
/// After the coordinator's machine was disturbed, its answers may show that for so long.
const CALM: Duration = Duration::from_secs(2);
/// The image that every node can install.
pub const IMAGE: &str = "11111111-2222-4333-8444-555555555555";

/// The wall-clock time at which simulations start.
#[must_use]
pub fn origin() -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

/// How time moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// In ticks of one length, the nodes in one order.
    Steady,
    /// Both as the seed decides.
    Random,
}

/// A cluster of one coordinator and some agents.
#[derive(Debug)]
pub struct Sim {
    /// Time since the start.
    pub now: Duration,
    /// How it moves.
    pub pace: Pace,
    /// What the run is made of.
    pub mix: Mix,
    /// The network.
    pub net: Net,
    /// The coordinator's machine.
    pub coordinator: CoordinatorNode,
    /// Its disk is full.
    pub is_full: bool,
    /// The compute nodes.
    pub agents: Vec<AgentNode>,
    /// Whether a host that is told to reboot does.
    pub reboots: bool,
    /// Those that ask the coordinator.
    pub client: Client,
    /// Who reads events.
    pub reader: Reader,
    /// A server without a connection, if the run has one.
    pub poster: Option<Poster>,
    /// What happened.
    pub trace: Trace,
    /// Who saw it.
    pub witness: Witness,
    /// Decides what happens next.
    pub entropy: SeededEntropy,
    conditions: Conditions,
    ignored: Option<String>,
    /// Nodes that die in the middle of their next tick; the coordinator is the last.
    doomed: BTreeSet<usize>,
    booting: Vec<Booting>,
}

/// What a host was told.
#[derive(Clone, Copy, Debug, Default)]
struct Booting {
    /// How many of its actions were seen.
    acts: usize,
    /// When it comes up again.
    up_at: Option<Duration>,
}

impl Sim {
    /// A cluster in which nothing runs yet, of equal nodes.
    #[must_use]
    pub fn new(seed: u64, agents: usize) -> Self {
        Self::with(SeededEntropy::new(seed), agents, Mix::plain(), |_| Hardware::default())
    }

    /// A cluster in which nothing runs yet.
    #[must_use]
    pub fn with(
        entropy: SeededEntropy,
        agents: usize,
        mix: Mix,
        hardware: impl Fn(usize) -> Hardware,
    ) -> Self {
        let trace = Trace::default();
        let witness = Witness::new(trace.clone());
        let repository = SimRepository::default();
        let image = SimImage { manifest: json!({ "state": "active" }), size_bytes: 1 << 20 };
        repository.publish(IMAGE.parse().expect("a constant"), image);
        let node = |number| {
            let (seed, seen) = (entropy.u64(), witness.clone());
            AgentNode::new(number, seed, hardware(number), repository.clone(), seen)
        };
        let agents: Vec<_> = (0..agents).map(node).collect();
        witness.servers(agents.iter().map(|agent| agent.server).collect());
        Self {
            now: Duration::ZERO,
            pace: Pace::Steady,
            mix,
            net: Net::new(entropy.u64(), trace.clone(), witness.clone()),
            coordinator: CoordinatorNode::new(entropy.u64(), witness.clone()),
            is_full: false,
            reboots: false,
            client: Client::new(witness.clone()),
            reader: Reader::default(),
            poster: None,
            conditions: Conditions::default(),
            ignored: std::env::var("MUSTER_SIM_IGNORE").ok(),
            doomed: BTreeSet::new(),
            booting: vec![Booting::default(); agents.len()],
            agents,
            trace,
            witness,
            entropy,
        }
    }

    /// Starts the coordinator.
    pub fn start_coordinator(&mut self) {
        self.trace.event("coordinator starts");
        self.coordinator.start(&self.net, self.now);
        self.conditions.up_since = Some(self.now);
    }

    /// Kills the coordinator.
    pub fn crash_coordinator(&mut self) {
        self.trace.event("coordinator crashes");
        self.reader.leave(&self.trace);
        self.coordinator.crash(&self.net, &self.entropy);
        self.coordinator.kv.set_full(self.is_full);
        self.conditions.up_since = None;
        self.client.forget();
    }

    /// Starts an agent.
    pub fn start_agent(&mut self, agent: usize) {
        self.trace.event(format_args!("agent {agent} starts"));
        self.agents[agent].start(&self.net, self.now);
    }

    /// Kills an agent.
    pub fn crash_agent(&mut self, agent: usize) {
        self.trace.event(format_args!("agent {agent} crashes"));
        self.agents[agent].crash(&self.entropy);
    }

    /// Switches a host off.
    pub fn power_off(&mut self, agent: usize) {
        self.trace.event(format_args!("host {agent} loses power"));
        self.agents[agent].power_off(&self.entropy, self.now);
    }

    /// A node (`None`: the coordinator) is told to stop, and ends.
    pub fn stop(&mut self, agent: Option<usize>) {
        match agent {
            Some(agent) => {
                self.trace.event(format_args!("agent {agent} is stopped"));
                self.agents[agent].stop();
            }
            None => {
                self.trace.event("the coordinator is stopped");
                self.coordinator.stop();
            }
        }
    }

    /// A node (`None`: the coordinator) dies in the middle of what it does next.
    pub fn dies_next(&mut self, agent: Option<usize>) {
        self.doomed.insert(agent.unwrap_or(self.agents.len()));
    }

    /// Starts everything.
    pub fn start(&mut self) {
        self.start_coordinator();
        for agent in 0..self.agents.len() {
            self.start_agent(agent);
        }
    }

    /// Plants a defect, before anything has started.
    pub fn plant(&mut self, plant: Plant) {
        self.coordinator.plant = Some(plant);
        for agent in &mut self.agents {
            agent.plant = Some(plant);
        }
    }

    /// Sends a request, if there is a coordinator.
    pub fn ask(&mut self, ask: Ask, patience: Patience) -> Option<u64> {
        // At any moment of the tick: nothing else begins with one.
        let delay = TICK.mul_f64(self.entropy.fraction());
        self.client.send(&self.coordinator, ask, patience, (&self.trace, self.now, delay))
    }

    /// One tick of every node, then a check of the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn tick(&mut self) -> Verdict {
        let mut nodes: Vec<usize> = (0..=self.agents.len()).collect();
        let length = match self.pace {
            Pace::Steady => {
                nodes.rotate_right(1);
                TICK
            }
            Pace::Random => {
                for last in (1..nodes.len()).rev() {
                    nodes.swap(last, self.pick(last + 1));
                }
                Duration::from_millis(TICKS_MS[self.pick(TICKS_MS.len())])
            }
        };
        self.now += length;
        self.trace.at(self.now);
        self.witness.model().at(self.now);
        self.net.advance(self.now);
        poster::post(self);
        for node in nodes {
            match node == self.agents.len() {
                true => self.step_coordinator(length),
                false => self.step_agent(node, length),
            }
        }
        self.judge(length)
    }

    fn step_coordinator(&mut self, length: Duration) {
        if self.doomed.remove(&self.agents.len()) {
            self.coordinator.step(length.mul_f64(self.entropy.fraction()));
            return self.crash_coordinator();
        }
        self.coordinator.step(length);
        if self.coordinator.has_stopped() {
            return self.crash_coordinator();
        }
        if self.coordinator.has_failed() {
            self.crash_coordinator();
            self.start_coordinator();
        }
    }

    fn step_agent(&mut self, agent: usize, length: Duration) {
        if self.doomed.remove(&agent) {
            let part = length.mul_f64(self.entropy.fraction());
            self.agents[agent].step(part);
            return self.crash_agent(agent);
        }
        self.agents[agent].step(length);
        if self.agents[agent].has_stopped() {
            self.crash_agent(agent);
        } else if self.agents[agent].is_broken() {
            self.crash_agent(agent);
            self.start_agent(agent);
        }
        self.reboot(agent);
    }

    /// A host does what it was told.
    fn reboot(&mut self, agent: usize) {
        let Booting { acts, up_at } = &mut self.booting[agent];
        let asked = self.agents[agent].log.actions();
        let orders = asked.get(*acts..).unwrap_or_default();
        for action in orders {
            self.trace.event(format_args!("host {agent} is told {action:?}"));
        }
        *acts = asked.len();
        if !self.reboots {
            return;
        }
        if orders.contains(&HostAction::Reboot) {
            *up_at = Some(self.now + BOOT);
            if self.agents[agent].is_up() {
                return self.power_off(agent);
            }
        }
        if up_at.is_some_and(|at| at <= self.now) {
            *up_at = None;
            if !self.agents[agent].is_up() {
                self.start_agent(agent);
            }
        }
    }

    fn judge(&mut self, length: Duration) -> Verdict {
        let store_fails = self.is_full || self.coordinator.mood.get() != Mood::Fine;
        if store_fails {
            self.conditions.store_failed = self.now;
        } else if self.coordinator.is_paused() {
            // It can't write yet what the store kept it from writing.
            self.conditions.store_failed += length;
        }
        if store_fails || self.coordinator.is_paused() {
            self.conditions.disturbed = self.now;
        }
        self.conditions.ran = self.coordinator.ran();
        let failed = self.conditions.store_failed;
        let calm_since = (failed + CALM < self.now).then_some(failed);
        let verdict = self.client.collect(&self.trace, calm_since);
        self.tolerate(verdict)?;
        let verdict = self.reader.collect(&self.witness.model(), &self.trace);
        self.tolerate(verdict)?;
        let verdict = self.witness.tick(self.now, &self.conditions, &self.agents);
        self.tolerate(verdict)
    }

    /// `MUSTER_SIM_IGNORE` names an invariant that need not hold, to see what else does not.
    fn tolerate(&self, verdict: Verdict) -> Verdict {
        verdict.or_else(|violation| match &self.ignored {
            Some(name) if name == violation.invariant => Ok(()),
            _ => Err(violation),
        })
    }

    /// Ticks for a time.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn run_for(&mut self, time: Duration) -> Verdict {
        let end = self.now + time;
        while self.now < end {
            self.tick()?;
        }
        Ok(())
    }

    /// Ticks until something is so.
    ///
    /// # Errors
    /// The invariant that does not hold: `what`, if it did not become so within `limit`.
    pub fn run_until(
        &mut self,
        what: &'static str,
        limit: Duration,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Verdict {
        let end = self.now + limit;
        while !is_so(self) {
            if self.now >= end {
                let model = self.witness.model();
                let (tasks, jobs) = (model.tasks.report_open(), model.open_jobs());
                let detail = format!("not within {limit:?}: tasks {tasks}, jobs {jobs:?}");
                return Err(Violation::new(what, detail));
            }
            self.tick()?;
        }
        Ok(())
    }

    /// Whether all tasks and jobs in the store have ended, and no request is under way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let model = self.witness.model();
        let idle = model.tasks.open().is_empty() && model.open_jobs().is_empty();
        idle && self.client.is_idle() && self.booting.iter().all(|host| host.up_at.is_none())
    }

    /// How a run failed, for people.
    #[must_use]
    pub fn report(&self, seed: u64, violation: &Violation) -> String {
        let mix = &self.mix;
        let recent = self.trace.recent();
        format!(
            "seed {seed} violates {violation}\nthe run has {mix:?}; again: MUSTER_SIM_FIRST={seed} \
             MUSTER_SIM_SEEDS=1 cargo nextest run -p muster-tests --test sim sim_seeds \
             --no-capture\nthe last events:\n{recent}"
        )
    }

    /// A number below `limit`.
    #[must_use]
    pub fn pick(&self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).expect("a small number");
        usize::try_from(self.entropy.u64() % limit).expect("a small number")
    }
}
