//! VMs that prepare themselves for an image, on a simulated host.

use std::sync::Arc;

use super::super::machine_tests::{Host, act, create_params, params, run, uuid};
use super::*;
use crate::drivers::compute::sim::SimGuests;
use crate::drivers::faults::Fault;
use crate::node::Drivers;
use crate::tasks::machine_engine_tests::Node;
use crate::tasks::{HANDLERS, engine_tests};
use crate::vms::restart::Power;

const KIND: &str = "machine_create_image";
const STATE: &str = "prepare-image:state";
/// The text does not matter: the guest knows what it does.
const SCRIPT: &str = "#!/bin/sh\ntrue";

/// What a script says, one after the other, and whether it shuts the guest down then.
#[derive(Clone, Copy)]
pub(in crate::tasks) struct Script {
    says: &'static [(&'static str, &'static str)],
    ends: bool,
}

/// One that does its work.
pub(in crate::tasks) const WORKS: Script =
    Script { says: &[("left", "behind"), (STATE, "running"), (STATE, "success")], ends: true };

/// The guest: each time it is started with a script it does what that says. Never returns.
pub(in crate::tasks) async fn guest(guests: SimGuests, drivers: Arc<Drivers>, script: Script) {
    let mut changes = drivers.vms.subscribe();
    let mut done = 0;
    loop {
        changes.mark_unchanged();
        let record = guests.record(uuid()).filter(|_| guests.running().contains_key(&uuid()));
        let asked = record.and_then(|record| operator_script(&record));
        let asked = asked.is_some_and(|script| script == SCRIPT);
        if asked && guests.starts(uuid()) > done {
            done = guests.starts(uuid());
            for (key, word) in script.says {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let say = |record: &mut VmRecord| {
                    let metadata = record.properties.entry("customer_metadata");
                    metadata.or_insert(json!({}))[*key] = json!(word);
                };
                // It may be destroyed meanwhile.
                if drivers.vms.update(uuid(), say).await.is_err() {
                    break;
                }
            }
            if script.ends {
                guests.exit(uuid(), 0);
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn operator_script(record: &VmRecord) -> Option<Value> {
    record.properties.get("internal_metadata")?.get("operator-script").cloned()
}

pub(in crate::tasks) fn wanted() -> Value {
    json!({
        "compression": "none", "manifest": { "name": "made", "version": "1" },
        "prepare_image_script": SCRIPT,
    })
}

/// A VM whose owner has metadata, and an own script.
async fn one_vm(host: &Host, runs: bool) -> Arc<Drivers> {
    let drivers = host.agent("boot-1").await;
    let create = create_params(json!({
        "customer_metadata": { STATE: "success", "mine": "kept" }, "boot": "order=cn",
        "internal_metadata": { "operator-script": "#!/bin/own", "a": "b" },
    }));
    run(&host.context(&drivers, &create), "machine_create", false).await.unwrap();
    if !runs {
        act(host, &drivers, "machine_shutdown", json!({ "force": true })).await.unwrap();
    }
    drivers
}

/// What must be as it was: disks with their snapshots, whether it runs, what its record says.
fn state(host: &Host, drivers: &Drivers) -> impl PartialEq + std::fmt::Debug + use<> {
    let record = drivers.vms.get(uuid()).unwrap();
    let properties: Value = ["customer_metadata", "internal_metadata", "boot", "autoboot", "disks"]
        .map(|name| (name, record.properties.get(name).cloned().unwrap_or_default()))
        .into_iter()
        .collect();
    let begun = (record.rolling_back_to, record.start_when_rolled_back);
    let runs = host.guests.running().contains_key(&uuid());
    (host.pool.disks(), host.pool.packed_count(), runs, record.power, begun, properties)
}

async fn make(host: &Host, drivers: &Arc<Drivers>, script: Script) -> Result<Value, TaskFailure> {
    let context = host.context(drivers, &params(wanted()));
    tokio::select! {
        made = run(&context, KIND, false) => made,
        () = guest(host.guests.clone(), drivers.clone(), script) => panic!("the guest returned"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_prepares_itself_and_is_as_before() {
    for runs in [true, false] {
        let host = Host::new();
        let drivers = one_vm(&host, runs).await;
        let before = state(&host, &drivers);
        let made = make(&host, &drivers, WORKS).await.unwrap();
        assert_eq!(made["manifest"]["state"], "active");
        assert_eq!(state(&host, &drivers), before, "{runs}");
        assert_eq!(host.guests.starts(uuid()), if runs { 3 } else { 2 });
        let power = if runs { Power::On } else { Power::Off };
        assert_eq!(drivers.vms.get(uuid()).unwrap().power, power);
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_that_does_not_do_its_work_fails_by_name() {
    let failed: &[_] = &[(STATE, "running"), ("prepare-image:error", "no room"), (STATE, "error")];
    let cases: [(Script, &str, &str); 7] = [
        (Script { says: &[], ends: false }, "PrepareImageDidNotRun", "within 300 s"),
        (Script { says: &[], ends: true }, "PrepareImageDidNotRun", "before the guest ended"),
        (Script { says: &[(STATE, "running")], ends: false }, "PrepareImageError", "within 300 s"),
        (Script { says: &[(STATE, "running")], ends: true }, "PrepareImageError", "guest ended"),
        (Script { says: failed, ends: true }, "PrepareImageError", "failed: no room"),
        (Script { says: failed, ends: false }, "PrepareImageError", "failed: no room"),
        (
            Script { says: &[(STATE, "running"), (STATE, "success")], ends: false },
            "PrepareImageError",
            "did not shut the VM down",
        ),
    ];
    for (script, code, says) in cases {
        for runs in [true, false] {
            let host = Host::new();
            let drivers = one_vm(&host, runs).await;
            let (before, begun) = (state(&host, &drivers), host.clock.monotonic());
            let failure = make(&host, &drivers, script).await.unwrap_err();
            assert_eq!(failure.code, code, "{says}");
            assert!(failure.message.contains(says), "{says}: {failure}");
            assert_eq!(state(&host, &drivers), before, "{says}, {runs}");
            // No stage takes more than its own time.
            assert!(host.clock.monotonic() - begun < Duration::from_secs(320), "{says}");
        }
    }
}

/// Also in the middle of a step, and when each undo is repeated.
#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_at_any_step_leaves_the_vm_as_it_was() {
    let names: Vec<_> = STEPS.iter().map(|row| row.name).collect();
    for runs in [true, false] {
        for (step, how) in (0..names.len()).flat_map(|step| (0..3).map(move |how| (step, how))) {
            let case = format!("{}, {how}, {runs}", names[step]);
            let host = Host::new();
            let drivers = one_vm(&host, runs).await;
            let before = state(&host, &drivers);
            let plan = MachineCreateImage.plan(&params(wanted())).unwrap();
            let first = host.context(&drivers, &params(wanted()));
            let mut journaled = Value::Null;
            let dies = async {
                for applied in &plan.steps[..step] {
                    applied.apply(&first).await.unwrap();
                }
                journaled = first.notes.lock().clone();
                let last = plan.steps[step].apply(&first);
                match how {
                    0 => {}
                    1 => drop(tokio::time::timeout(Duration::from_millis(1500), last).await),
                    _ => last.await.unwrap(),
                }
            };
            tokio::select! {
                () = dies => {}
                () = guest(host.guests.clone(), drivers.clone(), WORKS) => {}
            }
            drop(drivers);
            let drivers = host.agent("boot-1").await;
            let mut second = host.context(&drivers, &params(wanted()));
            (second.task_id, second.resumed) = (first.task_id.clone(), true);
            *second.notes.lock() = journaled;
            let failure = plan.steps[step].apply(&second).await.unwrap_err();
            assert_eq!(failure.code, Code::Interrupted, "{case}");
            for undone in plan.steps[..=step].iter().rev() {
                for _ in 0..2 {
                    undone.undo(&second).await.unwrap();
                }
            }
            assert_eq!(state(&host, &drivers), before, "{case}");
        }
    }
}

/// With the journal: the task goes on with the next agent, and says what happened.
#[tokio::test(start_paused = true)]
async fn a_cut_at_each_point_ends_as_an_interruption() {
    let kind = MachineCreateImage.plan(&params(wanted())).unwrap();
    let moments = ["before", "after"];
    for (step, moment) in kind.steps.iter().flat_map(|step| moments.map(|it| (step.name(), it))) {
        let point = format!("{KIND}:{step}:{moment}");
        let node = engine_tests::Node::new(HANDLERS);
        engine_tests::prepare(&node, KIND).await;
        let faults = Arc::new(engine_tests::CutAt(point.clone()));
        let engine = node.boot("boot-1", Some(faults)).await;
        let drivers = Arc::clone(&engine.parts.drivers);
        let before = state(&node.host, &drivers);
        let task = engine_tests::submission("image", KIND, Value::Object(params(wanted())));
        engine.submit(task).await.unwrap();
        let id = "image".parse().unwrap();
        tokio::select! {
            ended = engine.wait(&id, Duration::from_secs(1000)) => assert!(!ended, "{point}"),
            () = guest(node.host.guests.clone(), drivers, WORKS) => {}
        }
        node.cut_power();
        let engine = node.start().await;
        let result = engine_tests::ended(&engine, "image").await;
        let error = result.error.unwrap();
        assert_eq!(
            (error.code, error.details),
            (Code::Interrupted, None),
            "{point}: {}",
            error.message
        );
        assert!(!error.message.contains("left behind"), "{point}: {}", error.message);
        assert_eq!(state(&node.host, &engine.parts.drivers), before, "{point}");
    }
}

/// The task ends before its disks are what they were; the agent goes on with them by itself.
#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_is_finished_without_anybody_asking() {
    let node = Node::new(Duration::from_secs(100_000)).await;
    node.engine.wake().await;
    let drivers = Arc::clone(&node.engine.parts.drivers);
    let before = state(&node.host, &drivers);
    tokio::spawn(guest(node.host.guests.clone(), drivers.clone(), WORKS));
    // That of the step, and that of its undo.
    for fault in 1..=2 {
        node.host.faults.fail_nth("storage.roll_back", fault, Fault::before());
    }
    node.submit("image", KIND, wanted()).await;
    let error = node.ended("image").await.error.unwrap();
    assert!(error.message.contains("left behind"), "{error:?}");
    let mut changes = drivers.vms.subscribe();
    let back = async {
        while state(&node.host, &drivers) != before {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(100), back).await.unwrap();
    node.engine.shut_down(Duration::from_secs(1)).await;
}
