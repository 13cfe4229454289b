//! The programs that the real drivers run fail, or hang, in turn, and so do the guest's hypervisor and
//! the file of its disk: the task ends, and whatever it left can be worked with and destroyed without a
//! trace. The simulated drivers have a finer matrix, see
//! [`super::fault_matrix_tests`].

mod hanging;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::TaskId;
use muster_shared::wire::{Outcome, TaskResult};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::fault_matrix_tests::{EXCUSES, before};
use super::machine_real_tests::RealNode;
use super::machine_tests::{create_params, engine, params, submission};
use super::{Engine, Params};
use crate::host::{
    Command, Detached, Exec, ExecError, Output, Piped, RunningChild, Spawned, SystemExec,
    UnitProperty,
};

/// Time of a task whose program hangs; those that are well take a fraction of it.
const DEADLINE: Duration = Duration::from_secs(4);
/// Longer than any task here.
const LONG: Duration = Duration::from_secs(120);
/// A program that ends badly at once.
const FAILS: &str = "exit 1";
/// One that stands still, with the arguments of the one in whose place it is.
const HANGS: &str = "kill -STOP $$";

/// Programs of which one is another.
#[derive(Debug, Default)]
struct FaultyExec {
    programs: SystemExec,
    started: Mutex<u64>,
    fault: Mutex<Option<(u64, &'static str)>>,
}

impl FaultyExec {
    /// The program that is run instead of the next one.
    fn instead(&self) -> Option<&'static str> {
        let mut started = self.started.lock();
        *started += 1;
        let mut fault = self.fault.lock();
        fault.take_if(|(nth, _)| *nth == *started).map(|(_, script)| script)
    }

    fn argv(&self, argv: &[String]) -> Vec<String> {
        let shell = self.instead().map(|script| ["sh", "-c", script].map(str::to_owned));
        shell.into_iter().flatten().chain(argv.iter().cloned()).collect()
    }
}

#[async_trait]
impl Exec for FaultyExec {
    async fn run(
        &self,
        command: &Command,
        cancelled: &CancellationToken,
    ) -> Result<Output, ExecError> {
        let argv = self.argv(&command.argv);
        self.programs.run(&Command { argv, ..command.clone() }, cancelled).await
    }

    async fn spawn_detached(&self, detached: &Detached) -> Result<Spawned, ExecError> {
        let argv = self.argv(&detached.argv);
        self.programs.spawn_detached(&Detached { argv, ..detached.clone() }).await
    }

    async fn spawn_piped(&self, piped: &Piped) -> Result<RunningChild, ExecError> {
        self.programs.spawn_piped(piped).await
    }

    async fn change_unit(&self, unit: &str, properties: &[UnitProperty]) -> Result<(), ExecError> {
        self.programs.change_unit(unit, properties).await
    }

    fn supervisor(&self) -> &'static str {
        self.programs.supervisor()
    }
}

/// A node on which one task at a time runs to its end.
struct Node {
    real: RealNode,
    exec: Arc<FaultyExec>,
    engine: Arc<Engine>,
    tasks: u32,
}

impl Node {
    async fn new() -> Self {
        let (real, exec) = (RealNode::new(), Arc::new(FaultyExec::default()));
        let drivers = real.agent_with(exec.clone()).await;
        let engine = engine(drivers, LONG).await;
        Self { real, exec, engine, tasks: 0 }
    }

    async fn run(&mut self, kind: &str, extra: &Value, deadline: Option<Duration>) -> TaskResult {
        self.tasks += 1;
        let id: TaskId = format!("task-{}", self.tasks).parse().unwrap();
        let mut task = submission(&id, kind, self.wanted(kind, extra));
        task.deadline_ms = deadline.map(|limit| u64::try_from(limit.as_millis()).unwrap());
        self.engine.submit(task).await.unwrap();
        assert!(self.engine.wait(&id, LONG).await, "{kind} does not end");
        self.engine.result(&id).await.unwrap()
    }

    fn wanted(&self, kind: &str, extra: &Value) -> Params {
        match kind {
            "machine_create" => {
                create_params(json!({ "ram": 64, "disks": [{ "size": 1 }], "nics": [] }))
            }
            "machine_reprovision" => params(json!({ "image_uuid": self.real.image["uuid"] })),
            _ => params(extra.clone()),
        }
    }

    /// Does what the kind works on.
    async fn prepare(&mut self, kind: &str) {
        // A guest without a system does not hear its power button.
        let off = ("machine_shutdown", json!({ "force": true }));
        let off = Some(off).filter(|_| kind == "machine_reprovision");
        for (kind, extra) in before(kind).into_iter().chain(off) {
            let done = self.run(kind, &extra, None).await;
            assert_eq!(done.status, Outcome::Complete, "{kind}: {done:?}");
        }
    }

    fn started(&self) -> u64 {
        *self.exec.started.lock()
    }
}

/// Whether the task failed.
async fn survives(kind: &str, extra: &Value, nth: u64, fault: &'static str) -> bool {
    let case = format!("{kind}: program {nth}: {fault}");
    let mut node = Node::new().await;
    node.prepare(kind).await;
    *node.exec.fault.lock() = Some((node.started() + nth, fault));
    let first = node.run(kind, extra, Some(DEADLINE)).await;
    assert!(node.exec.fault.lock().is_none(), "{case}: it was not run");
    let again = node.run(kind, extra, None).await;
    if let Some(error) = &again.error {
        assert!(EXCUSES.contains(&error.code), "{case}: again: {error:?}, first {first:?}");
    }
    let gone = node.run("machine_destroy", &json!({}), None).await;
    assert_eq!(gone.status, Outcome::Complete, "{case}: {gone:?}, first {first:?}");
    node.real.assert_empty(&case);
    first.status == Outcome::Failure
}

/// Every program that a kind runs fails, and one hangs: that one costs the task's whole time.
async fn matrix(kind: &str, extra: Value) {
    let mut node = Node::new().await;
    node.prepare(kind).await;
    let before = node.started();
    let done = node.run(kind, &extra, None).await;
    assert_eq!(done.status, Outcome::Complete, "{kind}: {done:?}");
    let programs = node.started() - before;
    drop(node);
    let (mut tried, mut failed) = (0, 0);
    let faults = (1..=programs).map(|nth| (nth, FAILS)).chain([(programs, HANGS)]);
    for (nth, fault) in faults {
        tried += 1;
        failed += u32::from(survives(kind, &extra, nth, fault).await);
    }
    println!("{kind}: {tried} faults, {failed} tasks failed, nothing was left of any");
    assert!(failed > 0, "of {tried} tasks none failed");
}

macro_rules! kinds {
    ($($kind:ident: $extra:tt;)+) => {
        $(
            #[tokio::test]
            async fn $kind() {
                matrix(stringify!($kind), json!($extra)).await;
            }
        )+
    };
}

kinds! {
    machine_create: {};
    machine_boot: {};
    machine_reboot: { "force": true };
    machine_reprovision: {};
    machine_rollback_snapshot: { "snapshot_name": "a" };
}
