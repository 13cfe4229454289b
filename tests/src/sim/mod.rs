//! The simulated cluster: the real coordinator application and real agents in one process, on a
//! simulated network, simulated disks and simulated hosts. A seed decides everything that happens,
//! so a run that fails is repeated by its seed.
//!
//! Each node has a runtime with a paused clock. [`Sim::tick`] moves all of them by [`TICK`], one
//! after the other, then checks the invariants.

pub mod ask;
pub mod client;
pub mod clock;
pub mod kill;
pub mod mix;
pub mod model;
pub mod net;
pub mod node;
pub mod scenario;
pub mod store;
pub mod trace;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_agent::drivers::images::sim::SimRepository;
use muster_agent::drivers::storage::sim::SimImage;
use muster_coordinator::app::VmFilter;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use serde_json::{Value, json};

use self::client::Client;
use self::model::Model;
use self::net::Net;
use self::node::{AgentNode, CoordinatorNode};
use self::trace::Trace;

/// How far time moves at once. Frames arrive on the borders of ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// The image that every node can install.
pub const IMAGE: &str = "11111111-2222-4333-8444-555555555555";

/// The wall-clock time at which simulations start.
#[must_use]
pub fn origin() -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

/// A cluster of one coordinator and some agents.
#[derive(Debug)]
pub struct Sim {
    /// Time since the start.
    pub now: Duration,
    /// The network.
    pub net: Net,
    /// The coordinator's machine.
    pub coordinator: CoordinatorNode,
    /// The compute nodes.
    pub agents: Vec<AgentNode>,
    /// What clients asked for.
    pub client: Client,
    /// What happened.
    pub trace: Trace,
    /// Decides what happens next.
    pub entropy: SeededEntropy,
    model: Model,
}

impl Sim {
    /// A cluster in which nothing runs yet.
    #[must_use]
    pub fn new(seed: u64, agents: usize) -> Self {
        let trace = Trace::default();
        let entropy = SeededEntropy::new(seed);
        let repository = SimRepository::default();
        let image = SimImage { manifest: json!({ "state": "active" }), size_bytes: 1 << 20 };
        repository.publish(IMAGE.parse().expect("a constant"), image);
        let node = |number| AgentNode::new(number, entropy.u64(), repository.clone());
        Self {
            now: Duration::ZERO,
            net: Net::new(entropy.u64(), trace.clone()),
            agents: (0..agents).map(node).collect(),
            coordinator: CoordinatorNode::new(entropy.u64()),
            client: Client::default(),
            model: Model::default(),
            trace,
            entropy,
        }
    }

    /// Starts the coordinator.
    pub fn start_coordinator(&mut self) {
        self.trace.event("coordinator starts");
        self.coordinator.start(&self.net, self.now);
    }

    /// Kills the coordinator.
    pub fn crash_coordinator(&mut self) {
        self.trace.event("coordinator crashes");
        self.coordinator.crash(&self.net, &self.entropy);
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

    /// Starts everything.
    pub fn start(&mut self) {
        self.start_coordinator();
        for agent in 0..self.agents.len() {
            self.start_agent(agent);
        }
    }

    /// One tick of every node, then a check of the invariants.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn tick(&mut self) -> Result<(), String> {
        self.now += TICK;
        self.trace.at(self.now);
        self.net.advance(self.now);
        self.coordinator.step();
        if self.coordinator.has_failed() {
            self.crash_coordinator();
            self.start_coordinator();
        }
        for agent in 0..self.agents.len() {
            self.agents[agent].step();
            if self.agents[agent].is_broken() {
                self.crash_agent(agent);
                self.start_agent(agent);
            }
        }
        self.client.collect(&self.trace);
        self.model.check(&self.coordinator.kv, &self.agents, &self.client, &self.trace)
    }

    /// Ticks for a time.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        while self.now < end {
            self.tick()?;
        }
        Ok(())
    }

    /// Ticks until something is so.
    ///
    /// # Errors
    /// The invariant that does not hold, or what did not become so within `limit`.
    pub fn run_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut(&Self) -> bool,
    ) -> Result<(), String> {
        let end = self.now + limit;
        while !is_so(self) {
            if self.now >= end {
                return Err(format!("{what} not within {limit:?}: {}", self.model.open_tasks()));
            }
            self.tick()?;
        }
        Ok(())
    }

    /// Whether all tasks in the store have ended, and no request is under way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.model.all_ended() && self.client.is_idle()
    }

    /// How many tasks ended well and badly.
    #[must_use]
    pub fn ended(&self) -> (usize, usize) {
        self.model.ended()
    }

    /// What must hold when everything is up, connected and settled.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check_settled(&self) -> Result<(), String> {
        self.model.check_settled(&self.agents)
    }

    /// Nothing is asked and nothing changes: nothing may be written.
    ///
    /// # Errors
    /// Who wrote.
    pub fn check_quiet(&mut self, settle: Duration, quiet: Duration) -> Result<(), String> {
        self.run_for(settle)?;
        let written = |sim: &Self| {
            let agents = sim.agents.iter().map(|agent| agent.kv.written());
            (sim.coordinator.kv.written(), agents.collect::<Vec<_>>())
        };
        let (before, revisions) = (written(self), self.model.revisions());
        self.run_for(quiet)?;
        let after = written(self);
        if before != after {
            let changed = self.model.changed_since(&revisions);
            return Err(format!("an unchanged fleet wrote {before:?} → {after:?}: {changed:?}"));
        }
        Ok(())
    }

    /// The VM index of the coordinator agrees with the hosts.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check_index(&self) -> Result<(), String> {
        let app = self.coordinator.app().ok_or("no coordinator")?;
        let listed = app.vm_list(&VmFilter::default());
        let listed = listed.iter().filter_map(|vm| {
            let part = |name: &str| vm.get(name).and_then(Value::as_str).map(str::to_owned);
            Some((part("uuid")?, part("server_uuid")?, part("state")?))
        });
        let listed: BTreeSet<_> = listed.collect();
        let hosts = self.agents.iter().flat_map(|agent| {
            let running = agent.guests.running();
            let server = agent.server.to_string();
            agent.records.records().into_keys().map(move |vm| {
                let state = if running.contains_key(&vm) { "running" } else { "stopped" };
                (vm.to_string(), server.clone(), state.to_owned())
            })
        });
        let hosts: BTreeSet<_> = hosts.collect();
        let more: Vec<_> = listed.difference(&hosts).collect();
        let less: Vec<_> = hosts.difference(&listed).collect();
        if more.is_empty() && less.is_empty() {
            return Ok(());
        }
        Err(format!("the index has {more:?}, which the hosts lack, and lacks {less:?}"))
    }

    /// How a run failed, for the report.
    #[must_use]
    pub fn failure(&self, seed: u64, why: &str) -> String {
        format!("seed {seed}: {why}\nthe last events:\n{}", self.trace.recent())
    }

    /// A number below `limit`.
    #[must_use]
    pub fn pick(&self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).expect("a small number");
        usize::try_from(self.entropy.u64() % limit).expect("a small number")
    }

    /// The application, if it has started.
    #[must_use]
    pub fn app(&self) -> Option<Arc<muster_coordinator::app::App>> {
        self.coordinator.app()
    }
}
