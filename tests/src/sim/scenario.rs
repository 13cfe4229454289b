//! Runs: a fleet under random requests, crashes and faults, decided by a seed.

use std::time::Duration;

use muster_agent::drivers::faults::Fault;
use muster_shared::entropy::Entropy as _;
use muster_shared::ids::VmUuid;

use super::client::Request;
use super::{Sim, TICK};

const AGENTS: usize = 5;
/// Time in which agents connect undisturbed.
const CONNECT: Duration = Duration::from_secs(4);
/// Time of requests and faults.
const CHAOS: Duration = Duration::from_secs(14);
/// After it everything works again; all tasks must end within this time.
const HEAL: Duration = Duration::from_secs(180);
/// An agent reports its status at least this often (and a little).
const STATUS_PERIOD: Duration = Duration::from_secs(65);
/// Calls of simulated drivers that may fail: those that make something.
const FALLIBLE: [&str; 6] = [
    "storage.create_disk",
    "storage.create_snapshot",
    "storage.stash_disk",
    "compute.prepare",
    "compute.start",
    "images.install",
];

/// What comes back at a given time.
#[derive(Clone, Copy, Debug)]
enum Repair {
    Coordinator,
    Agent(usize),
    Connect(usize),
    Room(usize),
    CoordinatorRoom,
}

/// What a run showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Events, and a hash of all of them.
    pub digest: (u64, u64),
    /// Tasks that ended well and badly.
    pub ended: (usize, usize),
}

/// Runs a seed to its end.
///
/// # Errors
/// What did not hold, with the seed and the last events.
pub fn run(seed: u64) -> Result<Summary, String> {
    let mut sim = Sim::new(seed, AGENTS);
    match play(&mut sim) {
        Ok(()) => Ok(Summary { digest: sim.trace.digest(), ended: sim.ended() }),
        Err(why) => Err(sim.failure(seed, &why)),
    }
}

fn play(sim: &mut Sim) -> Result<(), String> {
    sim.start();
    sim.run_for(CONNECT)?;
    let mut repairs: Vec<(Duration, Repair)> = Vec::new();
    let end = sim.now + CHAOS;
    while sim.now < end {
        let now = sim.now;
        let (due, later): (Vec<_>, Vec<_>) = repairs.into_iter().partition(|(at, _)| *at <= now);
        repairs = later;
        for (_, repair) in due {
            mend(sim, repair);
        }
        // About two requests and one fault per second.
        if sim.pick(10) == 0 {
            ask(sim);
        }
        if sim.pick(20) == 0
            && let Some((after, repair)) = harm(sim)
        {
            repairs.push((sim.now + after, repair));
        }
        sim.tick()?;
    }
    for (_, repair) in repairs {
        mend(sim, repair);
    }
    sim.run_until("every task ended", HEAL, Sim::is_settled)?;
    // Reports of the last changes arrive.
    sim.check_quiet(Duration::from_secs(15), Duration::from_secs(10))?;
    sim.check_settled()?;
    // A result that comes late can bring a VM back into the index until the next status.
    let stale = |sim: &Sim| sim.check_index().is_ok();
    let settled = sim.run_until("an exact index", STATUS_PERIOD, stale);
    settled.and_then(|()| sim.check_index())
}

fn mend(sim: &mut Sim, repair: Repair) {
    match repair {
        Repair::Coordinator if !sim.coordinator.is_up() => sim.start_coordinator(),
        Repair::Agent(agent) if !sim.agents[agent].is_up() => sim.start_agent(agent),
        Repair::Coordinator | Repair::Agent(_) => {}
        Repair::Connect(agent) => {
            sim.trace.event(format_args!("agent {agent} is connected again"));
            sim.net.cut_off(agent, false);
        }
        Repair::Room(agent) => sim.agents[agent].kv.set_full(false),
        Repair::CoordinatorRoom => sim.coordinator.kv.set_full(false),
    }
}

/// Sends a random request.
fn ask(sim: &mut Sim) {
    let vms = sim.client.placed().to_vec();
    let known = if vms.is_empty() { None } else { Some(vms[sim.pick(vms.len())]) };
    let server_of = |sim: &Sim, vm: VmUuid| {
        let holds = |a: &&super::node::AgentNode| a.records.records().contains_key(&vm);
        sim.agents.iter().find(holds).map(|a| a.server)
    };
    let request = match (sim.pick(10), known) {
        (0..=3, _) | (_, None) => Request::Place(sim.entropy.uuid().into()),
        // A uuid that is taken.
        (4, Some(vm)) => Request::Place(vm),
        (5, _) => {
            let server = sim.agents[sim.pick(AGENTS)].server;
            let params = serde_json::Map::new();
            Request::Task { server, kind: "nop", params }
        }
        (6, _) => {
            let ids: Vec<_> = sim.client.acknowledged().cloned().collect();
            if ids.is_empty() {
                return;
            }
            Request::Cancel(ids[sim.pick(ids.len())].clone())
        }
        (_, Some(vm)) => {
            let Some(server) = server_of(sim, vm) else { return };
            let kinds = [
                "machine_shutdown",
                "machine_boot",
                "machine_reboot",
                "machine_destroy",
                "machine_create_snapshot",
                "machine_rollback_snapshot",
                "machine_delete_snapshot",
                "machine_reprovision",
                "machine_update",
            ];
            Request::vm_task(server, kinds[sim.pick(kinds.len())], vm)
        }
    };
    sim.client.send(&sim.coordinator, request, &sim.trace);
}

fn some_time(sim: &Sim, longest: Duration) -> Duration {
    TICK + longest.mul_f64(sim.entropy.fraction())
}

/// Breaks something; says what mends it and when.
fn harm(sim: &mut Sim) -> Option<(Duration, Repair)> {
    let agent = sim.pick(AGENTS);
    let seconds = |sim: &Sim, most| some_time(sim, Duration::from_secs(most));
    match sim.pick(9) {
        0 | 1 if sim.agents[agent].is_up() => {
            sim.crash_agent(agent);
            Some((seconds(sim, 3), Repair::Agent(agent)))
        }
        2 if sim.coordinator.is_up() => {
            sim.crash_coordinator();
            Some((seconds(sim, 3), Repair::Coordinator))
        }
        3 if sim.agents[agent].is_up() => {
            sim.power_off(agent);
            Some((seconds(sim, 5), Repair::Agent(agent)))
        }
        4 => {
            let time = seconds(sim, 4);
            sim.trace.event(format_args!("links of agent {agent} stall for {time:?}"));
            sim.net.stall(agent, time);
            None
        }
        5 => {
            sim.trace.event(format_args!("links of agent {agent} break"));
            sim.net.break_links(agent);
            None
        }
        6 if !sim.net.is_cut_off(agent) => {
            sim.trace.event(format_args!("agent {agent} is cut off"));
            sim.net.cut_off(agent, true);
            Some((seconds(sim, 6), Repair::Connect(agent)))
        }
        7 => {
            let operation = FALLIBLE[sim.pick(FALLIBLE.len())];
            let fault = if sim.pick(2) == 0 { Fault::before() } else { Fault::after() };
            sim.trace.event(format_args!("agent {agent}: {operation} will fail: {fault:?}"));
            sim.agents[agent].faults.fail_nth(operation, 1, fault);
            None
        }
        8 if sim.pick(2) == 0 => {
            sim.trace.event(format_args!("the disk of agent {agent} is full"));
            sim.agents[agent].kv.set_full(true);
            Some((seconds(sim, 2), Repair::Room(agent)))
        }
        8 => {
            sim.trace.event("the coordinator's disk is full");
            sim.coordinator.kv.set_full(true);
            Some((seconds(sim, 2), Repair::CoordinatorRoom))
        }
        _ => None,
    }
}
