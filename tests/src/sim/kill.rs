//! An agent that dies exactly at a journaled step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_agent::drivers::host::HostAction;
use muster_agent::drivers::zfs::sim::SimPools;
use muster_agent::tasks::HANDLERS;
use muster_agent::tasks::registry::{Faults, Moment, Registry};
use muster_shared::ids::VmUuid;
use serde_json::{Map, Value, json};

use super::ask::Ask;
use super::client::Patience;
use super::invariants::{Verdict, Violation};
use super::node::ZFS_POOL;
use super::{IMAGE, Sim};

const SETTLE: Duration = Duration::from_secs(120);

/// What dies at the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The agent; guests go on.
    Agent,
    /// The host, which boots again.
    Host,
}

/// Every point at which an agent can be killed: `<task>:<step>:<before|after>`.
#[must_use]
pub fn points() -> Vec<String> {
    Registry::new(HANDLERS).fault_points(None)
}

#[derive(Debug)]
struct KillPoint {
    point: String,
    armed: AtomicBool,
    reached: AtomicBool,
}

impl Faults for KillPoint {
    fn reached(&self, task: &str, step: &str, moment: Moment) -> bool {
        let here = format!("{task}:{step}:{}", moment.name());
        let dies = here == self.point && self.armed.swap(false, Ordering::Relaxed);
        if dies {
            self.reached.store(true, Ordering::Relaxed);
        }
        dies
    }
}

/// The kind's own example, made to fit the simulated cluster.
fn params(kind: &str) -> Map<String, Value> {
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind);
    let mut params = handler.map(|handler| handler.example()).unwrap_or_default();
    if params.contains_key("image_uuid") {
        params.insert("image_uuid".to_owned(), json!(IMAGE));
    }
    params
}

/// What the kinds of ZFS work on in their examples.
fn pools() -> SimPools {
    let pools = SimPools::new(ZFS_POOL);
    for name in ["zones/one", "zones/empty", "zones/one@before", "zones/one@later"] {
        pools.make(&name.parse().expect("a constant name")).expect("the pool is empty");
    }
    pools
}

fn kind_name(kind: &str) -> &'static str {
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind);
    handler.map(|handler| handler.kind().name).expect("points are of known kinds")
}

/// Lets `victim` die at `point`, starts it again, and checks that the task ends and that there is
/// one whole VM or nothing of it.
///
/// # Errors
/// What did not hold, with the last events.
pub fn run(point: &str, victim: Victim) -> Result<(), String> {
    let mut sim = Sim::new(1, 1);
    let outcome = play(&mut sim, point, victim);
    outcome.map_err(|why| {
        let recent = sim.trace.recent();
        format!("{victim:?} killed at {point}: {why}\nthe last events:\n{recent}")
    })
}

fn play(sim: &mut Sim, point: &str, victim: Victim) -> Verdict {
    let kill = Arc::new(KillPoint {
        point: point.to_owned(),
        armed: AtomicBool::new(false),
        reached: AtomicBool::new(false),
    });
    sim.agents[0].steps = Some(kill.clone());
    let kind = kind_name(point.split(':').next().unwrap_or_default());
    if kind.starts_with("zfs_") {
        sim.agents[0].zfs = Some(pools());
    }
    sim.start();
    sim.run_until("heard-server-is-running", SETTLE, |sim| {
        sim.witness.model().statuses.all_running(1)
    })?;
    let mut wanted = params(kind);
    if kind == "server_factory_reset" {
        wanted.insert("confirm".to_owned(), json!(sim.agents[0].server));
    }
    if kind == "image_delete" {
        ask(sim, "image_ensure_present", params("image_ensure_present"))?;
        wanted.insert("uuid".to_owned(), json!(IMAGE));
    }
    let vm: Option<VmUuid> = wanted.get("uuid").and_then(|v| v.as_str()?.parse().ok());
    if kind == "machine_import_end" {
        ask(sim, "machine_import", params("machine_import"))?;
    } else if vm.is_some() && !["machine_create", "machine_import", "image_delete"].contains(&kind)
    {
        ask(sim, "machine_create", params("machine_create"))?;
        if kind.starts_with("orphan_") {
            sim.crash_agent(0);
            vm.into_iter().for_each(|vm| sim.agents[0].orphan(vm));
            sim.start_agent(0);
            sim.run_for(Duration::from_secs(5))?;
        }
        if ["machine_boot", "machine_create_image"].contains(&kind) {
            ask(sim, "machine_shutdown", params("machine_shutdown"))?;
        }
        if ["machine_rollback_snapshot", "machine_delete_snapshot"].contains(&kind) {
            ask(sim, "machine_create_snapshot", params("machine_create_snapshot"))?;
        }
    }
    kill.armed.store(true, Ordering::Relaxed);
    send(sim, kind, wanted);
    let reached = kill.clone();
    sim.run_until("point-is-reached", SETTLE, |_| reached.reached.load(Ordering::Relaxed))?;
    match victim {
        Victim::Agent => sim.crash_agent(0),
        Victim::Host => sim.power_off(0),
    }
    sim.run_for(Duration::from_millis(700))?;
    sim.start_agent(0);
    sim.run_until("every-task-ends", SETTLE, Sim::is_settled)?;
    sim.run_for(Duration::from_secs(3))?;
    sim.witness.check_settled(&sim.agents)?;
    sim.check_index()?;
    check_actions(sim, point, victim)
}

/// An action on the host is asked for once. Only what dies between the action and the journal asks
/// again, as it can't know; the host takes a repetition for the same request. A reboot can be
/// known, by the boot it led to.
fn check_actions(sim: &Sim, point: &str, victim: Victim) -> Verdict {
    let unknown = point.ends_with(":after");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for action in sim.agents[0].log.actions() {
        let known = action == HostAction::Reboot && victim == Victim::Host;
        let count = counts.entry(format!("{action:?}")).or_default();
        *count += 1;
        if *count > 1 + usize::from(unknown && !known) {
            let detail = format!("{action:?} was done {count} times");
            return Err(Violation::new("effects-happen-once", detail));
        }
    }
    Ok(())
}

fn send(sim: &mut Sim, kind: &'static str, params: Map<String, Value>) {
    let ask = Ask::Task { server: sim.agents[0].server, kind, params };
    sim.ask(ask, Patience::Endless);
}

fn ask(sim: &mut Sim, kind: &'static str, params: Map<String, Value>) -> Verdict {
    send(sim, kind, params);
    sim.run_until("every-task-ends", SETTLE, Sim::is_settled)?;
    match sim.witness.model().tasks.ended() {
        (_, 0) => Ok(()),
        (_, _) => Err(Violation::new("setup-works", kind)),
    }
}
