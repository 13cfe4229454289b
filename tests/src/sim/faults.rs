//! What breaks in a run, and what mends it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use muster_agent::drivers::faults::Fault;
use muster_shared::entropy::Entropy as _;

use super::Sim;
use super::mix::Part;
use super::net::Way;
use super::store::Mood;

/// Calls of simulated drivers that may fail: those that make something.
const FALLIBLE: [&str; 7] = [
    "storage.create_disk",
    "storage.create_snapshot",
    "storage.stash_disk",
    "compute.prepare",
    "compute.start",
    "images.install",
    "networks.attach",
];
/// Shortest time after which something is mended.
const SOON: Duration = Duration::from_millis(50);

/// What comes back at a given time.
#[derive(Clone, Copy, Debug)]
pub enum Repair {
    /// The coordinator's process.
    Coordinator,
    /// An agent's process.
    Agent(usize),
    /// An agent's way to the coordinator and back.
    Connect(usize),
    /// Room on an agent's disk.
    Room(usize),
    /// Room on the coordinator's disk.
    CoordinatorRoom,
    /// A store that answers.
    Store,
}

/// Mends something.
pub fn mend(sim: &mut Sim, repair: Repair) {
    match repair {
        Repair::Coordinator => {
            // What takes too long to stop is killed.
            if sim.coordinator.is_stopping() {
                sim.crash_coordinator();
            }
            if !sim.coordinator.is_up() {
                sim.start_coordinator();
            }
        }
        Repair::Agent(agent) => {
            if sim.agents[agent].is_stopping() {
                sim.crash_agent(agent);
            }
            if !sim.agents[agent].is_up() {
                sim.start_agent(agent);
            }
        }
        Repair::Connect(agent) => {
            sim.trace.event(format_args!("agent {agent} is connected again"));
            sim.net.mend(agent);
        }
        Repair::Room(agent) => sim.agents[agent].kv.set_full(false),
        Repair::CoordinatorRoom => {
            sim.coordinator.kv.set_full(false);
            sim.is_full = false;
        }
        Repair::Store => {
            sim.trace.event("the store works again");
            sim.coordinator.mood.set(Mood::Fine);
        }
    }
}

fn some_time(sim: &Sim, longest_s: u64) -> Duration {
    SOON + Duration::from_secs(longest_s).mul_f64(sim.entropy.fraction())
}

/// Breaks something; says what mends it and when.
pub fn harm(sim: &mut Sim) -> Option<(Duration, Repair)> {
    let agent = sim.pick(sim.agents.len());
    // Trouble comes in company: agents lose their connections while what they said is being stored.
    if sim.coordinator.mood.get() != Mood::Fine
        && sim.pick(2) == 0
        && let Some(busy) = some_busy(sim)
    {
        break_links(sim, busy);
        return None;
    }
    match sim.pick(16) {
        0..=6 => crash(sim, agent),
        7..=9 => disturb_links(sim, agent),
        10 => {
            let operation = FALLIBLE[sim.pick(FALLIBLE.len())];
            let fault = if sim.pick(2) == 0 { Fault::before() } else { Fault::after() };
            sim.trace.event(format_args!("agent {agent}: {operation} will fail: {fault:?}"));
            sim.agents[agent].faults.fail_nth(operation, 1, fault);
            None
        }
        11 if sim.pick(2) == 0 => {
            sim.trace.event(format_args!("the disk of agent {agent} is full"));
            sim.agents[agent].kv.set_full(true);
            Some((some_time(sim, 2), Repair::Room(agent)))
        }
        11 => {
            sim.trace.event("the coordinator's disk is full");
            sim.coordinator.kv.set_full(true);
            sim.is_full = true;
            Some((some_time(sim, 2), Repair::CoordinatorRoom))
        }
        12 | 13 => disturb_store(sim),
        14 if sim.mix.has(Part::Pauses) => {
            pause(sim, agent);
            None
        }
        15 if sim.mix.has(Part::Skew) => {
            step_a_clock(sim, agent);
            None
        }
        _ => None,
    }
}

/// An agent with tasks that have not ended.
fn some_busy(sim: &Sim) -> Option<usize> {
    let model = sim.witness.model();
    let open = model.tasks.open().iter().filter_map(|id| model.tasks.get(id));
    let servers: BTreeSet<_> = open.map(|task| task.server_uuid).collect();
    drop(model);
    let busy = sim.agents.iter().filter(|agent| servers.contains(&agent.server));
    let busy: Vec<usize> = busy.map(|agent| agent.number).collect();
    (!busy.is_empty()).then(|| busy[sim.pick(busy.len())])
}

fn break_links(sim: &mut Sim, agent: usize) {
    sim.trace.event(format_args!("links of agent {agent} break"));
    sim.net.break_links(agent);
}

/// A process dies now, or in the middle of what it does next, or is told to stop.
fn crash(sim: &mut Sim, agent: usize) -> Option<(Duration, Repair)> {
    let in_the_middle = sim.mix.has(Part::Order) && sim.pick(2) == 0;
    let in_order = sim.mix.has(Part::Stops) && sim.pick(2) == 0;
    match sim.pick(4) {
        0 | 1 if sim.agents[agent].is_up() => {
            match (in_order, in_the_middle) {
                (true, _) => sim.stop(Some(agent)),
                (false, true) => sim.dies_next(Some(agent)),
                (false, false) => sim.crash_agent(agent),
            }
            Some((some_time(sim, 3), Repair::Agent(agent)))
        }
        2 if sim.coordinator.is_up() => {
            match (in_order, in_the_middle) {
                (true, _) => sim.stop(None),
                (false, true) => sim.dies_next(None),
                (false, false) => sim.crash_coordinator(),
            }
            Some((some_time(sim, 3), Repair::Coordinator))
        }
        3 if sim.agents[agent].is_up() => {
            sim.power_off(agent);
            Some((some_time(sim, 5), Repair::Agent(agent)))
        }
        _ => None,
    }
}

fn disturb_links(sim: &mut Sim, agent: usize) -> Option<(Duration, Repair)> {
    match sim.pick(3) {
        0 => {
            let time = some_time(sim, 4);
            sim.trace.event(format_args!("links of agent {agent} stall for {time:?}"));
            sim.net.stall(agent, time);
            None
        }
        1 => {
            break_links(sim, agent);
            None
        }
        _ if !sim.net.is_cut(agent) => {
            let one_way = sim.mix.has(Part::OneWay) && sim.pick(2) == 0;
            let ways = match (one_way, sim.pick(2)) {
                (false, _) => &[Way::ToAgent, Way::ToCoordinator][..],
                (true, 0) => &[Way::ToAgent],
                (true, _) => &[Way::ToCoordinator],
            };
            sim.trace.event(format_args!("agent {agent} is cut off: {ways:?}"));
            for way in ways {
                sim.net.cut(agent, *way);
            }
            Some((some_time(sim, 6), Repair::Connect(agent)))
        }
        _ => None,
    }
}

fn disturb_store(sim: &mut Sim) -> Option<(Duration, Repair)> {
    let stalls = sim.mix.has(Part::StoreStalls);
    let mood = match (stalls, sim.mix.has(Part::StoreUnsure), sim.pick(2)) {
        (true, false, _) | (true, true, 0) => Mood::Stalled,
        (_, true, _) => Mood::Unsure,
        (false, false, _) => return None,
    };
    sim.trace.event(format_args!("the store is {mood:?}"));
    sim.coordinator.mood.set(mood);
    Some((some_time(sim, 3), Repair::Store))
}

fn pause(sim: &mut Sim, agent: usize) {
    // Half of the pauses are the coordinator's, and some outlast its lease.
    let longest_s = if sim.pick(4) == 0 { 20 } else { 4 };
    let time = some_time(sim, longest_s);
    if sim.pick(2) == 0 {
        sim.trace.event(format_args!("the coordinator is paused for {time:?}"));
        sim.coordinator.pause(time);
    } else {
        sim.trace.event(format_args!("agent {agent} is paused for {time:?}"));
        sim.agents[agent].pause(time);
    }
}

fn step_a_clock(sim: &mut Sim, agent: usize) {
    let by = SignedDuration::from_millis(i64::try_from(sim.pick(20_000)).unwrap_or(0) - 10_000);
    if sim.pick(2) == 0 {
        sim.trace.event(format_args!("the coordinator's wall clock steps by {by:?}"));
        sim.coordinator.wall.step(by);
    } else {
        sim.trace.event(format_args!("the wall clock of agent {agent} steps by {by:?}"));
        sim.agents[agent].wall.step(by);
    }
}
