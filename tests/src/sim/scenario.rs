//! Runs: a fleet under random requests, crashes and faults, decided by a seed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use muster_shared::entropy::{Entropy as _, SeededEntropy};

use super::ask::Ask;
use super::client::Patience;
use super::clock::Skew;
use super::faults::{Repair, harm, mend};
use super::invariants::{Verdict, Violation};
use super::mix::{Mix, Part};
use super::node::Hardware;
use super::plant::Plant;
use super::poster::Poster;
use super::requests::{ask, ask_again, cancel_late};
use super::{Pace, Sim};

const AGENTS: usize = 5;
/// Time in which agents connect undisturbed, at most.
const CONNECT: Duration = Duration::from_secs(20);
/// Time of requests and faults.
const CHAOS: Duration = Duration::from_secs(14);
/// After it everything works again. As long as tasks are open one must end within this time: a slow
/// host takes up to a minute for each. Then all jobs.
const HEAL: Duration = Duration::from_secs(180);
/// An agent reports its status at least this often (and a little).
const STATUS_PERIOD: Duration = Duration::from_secs(65);
/// After it every promise of room has been kept or has ended.
const PROMISES: Duration = Duration::from_secs(200);
/// How often clients look at lists.
const LOOK: Duration = Duration::from_secs(2);
/// Memory of a host in a tight run, MiB: room for three VMs.
const TIGHT_MIB: u64 = 4096;
/// How long an allocation keeps room in a run.
const RESERVATION: Duration = Duration::from_secs(10);
/// How long, and how many, ended tasks are kept in a run with a short history.
const HISTORY: Duration = Duration::from_secs(2);
const HISTORY_COUNT: u64 = 5;

/// What a run showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Events, and a hash of all of them.
    pub digest: (u64, u64),
    /// Tasks that ended well and badly.
    pub ended: (usize, usize),
    /// Answers to clients by status.
    pub answers: BTreeMap<u16, u64>,
    /// Requests whose client went away.
    pub given_up: u64,
    /// Changes that a reader of events was told of, and how often some were missed.
    pub delivered: (usize, usize),
}

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// What did not hold.
    pub violation: Violation,
    /// How to run it again, and the last events.
    pub report: String,
}

/// Runs a seed to its end.
///
/// # Errors
/// What did not hold.
pub fn run(seed: u64) -> Result<Summary, Failure> {
    run_with(seed, None)
}

/// Runs a seed with a defect in it.
///
/// # Errors
/// What did not hold, which is what should be.
pub fn run_with(seed: u64, plant: Option<Plant>) -> Result<Summary, Failure> {
    let entropy = SeededEntropy::new(seed);
    let mix = Mix::of(&entropy).and(plant.map_or(&[], Plant::parts));
    let memory_mib = if mix.has(Part::Tight) { TIGHT_MIB } else { Hardware::default().memory_mib };
    let slow = mix.has(Part::SlowHosts).then(|| entropy.u64() % 5);
    let hardware = |number: usize| {
        let normal = Hardware { memory_mib, ..Hardware::default() };
        let is_slow = slow == u64::try_from(number).ok();
        let delay = if is_slow { Duration::from_secs(2) } else { normal.delay };
        Hardware { delay, ..normal }
    };
    let mut sim = Sim::with(entropy, AGENTS, mix, hardware);
    if let Some(plant) = plant {
        sim.plant(plant);
    }
    match play(&mut sim) {
        Ok(()) => {
            let (answers, given_up) = sim.client.tally();
            Ok(Summary {
                digest: sim.trace.digest(),
                ended: sim.witness.model().tasks.ended(),
                answers: answers.clone(),
                given_up,
                delivered: sim.reader.count(),
            })
        }
        Err(violation) => {
            let report = sim.report(seed, &violation);
            Err(Failure { seed, violation, report })
        }
    }
}

fn play(sim: &mut Sim) -> Verdict {
    prepare(sim);
    sim.start();
    sim.run_until("heard-server-is-running", CONNECT, |sim| {
        sim.witness.model().statuses.all_running(AGENTS)
    })?;
    chaos(sim)?;
    sim.reboots = true;
    heal(sim)?;
    let open = |sim: &Sim| sim.witness.model().tasks.open().len();
    let mut left = open(sim);
    while left > 0 {
        sim.run_until("every-task-ends", HEAL, |sim| open(sim) < left)?;
        left = open(sim);
    }
    sim.run_until("every-job-ends", HEAL, Sim::is_settled)?;
    sim.reader.leave(&sim.trace);
    // Reports of the last changes arrive.
    sim.check_quiet(Duration::from_secs(15), Duration::from_secs(10))?;
    sim.witness.check_settled(&sim.agents)?;
    // A result that comes late can bring a VM back into the index until the next status.
    settle(sim, STATUS_PERIOD, Sim::check_index)?;
    settle(sim, PROMISES, Sim::check_room)
}

/// Waits until a check passes.
fn settle(sim: &mut Sim, limit: Duration, check: fn(&mut Sim) -> Verdict) -> Verdict {
    let end = sim.now + limit;
    loop {
        match check(sim) {
            Err(_) if sim.now < end => sim.run_for(Duration::from_secs(5))?,
            verdict => return verdict,
        }
    }
}

fn prepare(sim: &mut Sim) {
    sim.coordinator.config.allocation.reservation_ttl = RESERVATION;
    sim.witness.model().capacity.is_strict = sim.mix.has(Part::Tight);
    sim.reboots = true;
    if sim.mix.has(Part::ShortHistory) {
        let config = &mut sim.coordinator.config;
        config.task_retention = HISTORY;
        config.task_history.count = HISTORY_COUNT;
        sim.witness.model().tasks.retains_nothing = true;
    }
    if sim.mix.has(Part::Posts) {
        let server = sim.entropy.uuid().into();
        sim.witness.model().statuses.posts(server);
        sim.poster = Some(Poster::new(server));
    }
    if sim.mix.has(Part::Skew) {
        let skew = |entropy: &SeededEntropy| Skew {
            offset: SignedDuration::from_millis(i64::try_from(entropy.u64() % 10_000).unwrap_or(0)),
            gain_ppm: i32::try_from(entropy.u64() % 2_000).unwrap_or(0) - 1_000,
        };
        sim.coordinator.wall.skew(skew(&sim.entropy));
        for agent in &sim.agents {
            agent.wall.skew(skew(&sim.entropy));
        }
    }
    if sim.mix.has(Part::Order) {
        sim.pace = Pace::Random;
    }
}

fn chaos(sim: &mut Sim) -> Verdict {
    let mut repairs: Vec<(Duration, Repair)> = Vec::new();
    let end = sim.now + CHAOS;
    while sim.now < end {
        let now = sim.now;
        let (due, later): (Vec<_>, Vec<_>) = repairs.into_iter().partition(|(at, _)| *at <= now);
        repairs = later;
        for (_, repair) in due {
            mend(sim, repair);
        }
        // About three requests and two faults per second.
        if sim.pick(8) == 0 {
            ask(sim);
        }
        if sim.pick(8) == 0 {
            ask_again(sim);
        }
        cancel_late(sim);
        if sim.pick(15) == 0
            && let Some((after, repair)) = harm(sim)
        {
            repairs.push((sim.now + after, repair));
        }
        look(sim);
        sim.tick()?;
    }
    for (_, repair) in repairs {
        mend(sim, repair);
    }
    Ok(())
}

/// Everything works; for a while clients only look.
fn heal(sim: &mut Sim) -> Verdict {
    sim.pace = Pace::Steady;
    if let Some(poster) = &mut sim.poster {
        poster.is_silent = false;
    }
    for _ in 0..3 {
        look_now(sim);
        sim.run_for(LOOK)?;
    }
    Ok(())
}

/// Now and then a client looks at lists, and a reader of events comes or goes.
fn look(sim: &mut Sim) {
    if sim.pick(40) == 0 {
        look_now(sim);
    }
    // For about six seconds: that is too short at times to be noticed, and at times long enough.
    if sim.pick(120) == 0
        && let Some(poster) = &mut sim.poster
    {
        poster.is_silent = !poster.is_silent;
    }
    if sim.mix.has(Part::Events) && sim.pick(30) == 0 {
        match sim.pick(3) {
            0 => sim.reader.leave(&sim.trace),
            _ => sim.reader.come(&sim.coordinator, &sim.trace),
        }
    }
}

fn look_now(sim: &mut Sim) {
    sim.ask(Ask::ListActive, Patience::Endless);
}
