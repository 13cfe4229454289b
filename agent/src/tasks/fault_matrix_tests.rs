//! Each call that a task makes to its host fails, or hangs, in turn: the task ends, and whatever it
//! left can be worked with and destroyed without a trace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::wire::{Code, Outcome, TaskResult};
use serde_json::{Value, json};

use super::machine_container_tests::container_params;
use super::machine_create_image::prepare_tests::{self, WORKS};
use super::machine_import::MachineImport;
use super::machine_tests::{
    CONTAINER_IMAGE, Host, IMAGE, create_params, engine, params, submission,
};
use super::{Engine, Handler as _, Params};
use crate::drivers::faults::{Fault, HANG};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30 * 86_400);

/// What the tasks are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    HardwareVm,
    Container,
}

impl Of {
    fn host(self) -> Host {
        match self {
            Self::HardwareVm => Host::new(),
            Self::Container => Host::of_containers(),
        }
    }

    fn wanted(self, kind: &str, extra: &Value) -> Params {
        match (kind, self) {
            ("machine_create", Self::HardwareVm) => create_params(extra.clone()),
            ("machine_create", Self::Container) => container_params(),
            ("machine_import", Self::HardwareVm) => MachineImport.example(),
            ("machine_import", Self::Container) => {
                let mut params = container_params();
                let root = json!({ "role": "root", "size_bytes": 8 });
                params.insert("import".to_owned(), json!({ "export": "one", "volumes": [root] }));
                params
            }
            ("machine_reprovision", Self::Container) => {
                params(json!({ "image_uuid": CONTAINER_IMAGE }))
            }
            _ => params(extra.clone()),
        }
    }
}

/// A node on which one task at a time runs to its end.
struct Node {
    of: Of,
    host: Host,
    engine: Arc<Engine>,
    tasks: u32,
}

impl Node {
    async fn new(of: Of) -> Self {
        let host = of.host();
        let drivers = host.agent("boot-1").await;
        // Guests that are given a script do what it says.
        tokio::spawn(prepare_tests::guest(host.guests.clone(), drivers.clone(), WORKS));
        let engine = engine(drivers, Duration::from_secs(3600)).await;
        Self { of, host, engine, tasks: 0 }
    }

    async fn run(&mut self, kind: &str, params: Params) -> TaskResult {
        self.tasks += 1;
        let id: TaskId = format!("task-{}", self.tasks).parse().unwrap();
        self.engine.submit(submission(&id, kind, params)).await.unwrap();
        assert!(self.engine.wait(&id, LONG).await, "{kind} does not end");
        self.engine.result(&id).await.unwrap()
    }

    /// What the kind works on.
    async fn prepare(&mut self, kind: &str) {
        for (kind, extra) in before(kind) {
            let done = self.run(kind, self.of.wanted(kind, &extra)).await;
            assert_eq!(done.status, Outcome::Complete, "{kind}: {done:?}");
        }
    }
}

/// The tasks that make what a kind works on.
pub(super) fn before(kind: &str) -> Vec<(&'static str, Value)> {
    let create = ("machine_create", json!({}));
    match kind {
        "machine_create" | "machine_import" => Vec::new(),
        "machine_import_end" => vec![("machine_import", json!({}))],
        "machine_boot" | "machine_create_image" => {
            vec![create, ("machine_shutdown", json!({ "force": true }))]
        }
        "machine_rollback_snapshot" | "machine_delete_snapshot" => {
            vec![create, ("machine_create_snapshot", json!({ "snapshot_name": "a" }))]
        }
        _ => vec![create],
    }
}

/// The calls that a task makes when nothing fails, by operation.
async fn calls(of: Of, kind: &str, extra: &Value) -> BTreeMap<&'static str, u64> {
    let mut node = Node::new(of).await;
    node.prepare(kind).await;
    let before = node.host.faults.called();
    let done = node.run(kind, of.wanted(kind, extra)).await;
    assert_eq!(done.status, Outcome::Complete, "{kind}: {done:?}");
    let after = node.host.faults.called().into_iter();
    after.map(|(name, count)| (name, count - before.get(name).copied().unwrap_or(0))).collect()
}

/// What a task may say that finds its work done, or the VM as a failure left it.
pub(super) const EXCUSES: &[Code] = &[
    Code::NotRunning,
    Code::AlreadyRunning,
    Code::SnapshotExists,
    Code::SnapshotNotFound,
    Code::VmExists,
    Code::VmNotFound,
    Code::VmNotUsable,
];

/// Whether the task failed.
async fn survives(
    of: Of,
    kind: &str,
    extra: &Value,
    operation: &'static str,
    nth: u64,
    fault: Fault,
) -> bool {
    let case = format!("{of:?}: {kind}: {operation} {nth} {fault:?}");
    let mut node = Node::new(of).await;
    let empty = node.host.content();
    node.prepare(kind).await;
    node.host.faults.fail_nth(operation, nth, fault);
    let first = node.run(kind, of.wanted(kind, extra)).await;
    // What hung has come back.
    tokio::time::sleep(HANG).await;
    let again = node.run(kind, of.wanted(kind, extra)).await;
    if let Some(error) = &again.error {
        assert!(EXCUSES.contains(&error.code), "{case}: again: {error:?}, first {first:?}");
    }
    let gone = node.run("machine_destroy", params(json!({}))).await;
    assert_eq!(gone.status, Outcome::Complete, "{case}: {gone:?}");
    assert_eq!(node.host.content(), empty, "{case}: something is left");
    assert!(node.host.pool.stashed().is_empty() && node.host.pool.copies().is_empty(), "{case}");
    first.status == Outcome::Failure
}

/// Every call of a kind, each fault.
async fn matrix(of: Of, kind: &str, extra: Value) {
    let (mut tried, mut failed) = (0, 0);
    for (operation, count) in calls(of, kind, &extra).await {
        for nth in 1..=count {
            for fault in [Fault::before(), Fault::after(), Fault::hangs()] {
                tried += 1;
                failed += u32::from(survives(of, kind, &extra, operation, nth, fault).await);
            }
        }
    }
    println!("{of:?}: {kind}: {tried} faults, {failed} tasks failed, nothing was left of any");
    assert!(failed > 0, "of {tried} tasks none failed");
}

/// Without a restart.
#[tokio::test(start_paused = true)]
async fn machine_update_of_a_guest_that_runs() {
    let nic = json!({ "nic_tag": "external", "mac": "02:00:00:00:00:77" });
    matrix(Of::HardwareVm, "machine_update", json!({ "add_nics": [nic] })).await;
}

/// The VM prepares itself first. Some of the faults come while it does, others while that is taken back.
#[tokio::test(start_paused = true)]
async fn machine_create_image_with_a_script() {
    matrix(Of::HardwareVm, "machine_create_image", prepare_tests::wanted()).await;
}

#[tokio::test(start_paused = true)]
async fn machine_create_image_of_what_differs() {
    let manifest = json!({ "name": "a", "version": "1" });
    let extra = json!({ "compression": "gzip", "manifest": manifest, "incremental": true });
    matrix(Of::HardwareVm, "machine_create_image", extra).await;
}

macro_rules! kinds {
    ($($kind:ident: $extra:tt;)+) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $kind() {
                matrix(Of::HardwareVm, stringify!($kind), json!($extra)).await;
            }
        )+

        mod of_containers {
            use super::*;

            $(
                #[tokio::test(start_paused = true)]
                async fn $kind() {
                    matrix(Of::Container, stringify!($kind), json!($extra)).await;
                }
            )+
        }
    };
}

kinds! {
    machine_create: {};
    machine_boot: {};
    machine_shutdown: { "timeout": 30 };
    machine_kill: { "signal": "KILL" };
    machine_reboot: { "timeout": 30 };
    machine_update: { "ram": 256, "alias": "other", "reboot": "always" };
    machine_reprovision: { "image_uuid": IMAGE };
    machine_create_snapshot: { "snapshot_name": "a" };
    machine_rollback_snapshot: { "snapshot_name": "a" };
    machine_delete_snapshot: { "snapshot_name": "a" };
    machine_import: {};
    machine_create_image: { "compression": "gzip", "manifest": { "name": "a", "version": "1" } };
    machine_import_end: { "start": true };
    machine_destroy: {};
}
