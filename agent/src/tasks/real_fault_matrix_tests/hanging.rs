//! Hypervisors and files that hang.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::super::machine_tests::uuid;
use super::*;

/// Time of a task whose hypervisor does not answer: more than one question to it may take.
const PATIENCE: Duration = Duration::from_secs(12);

/// Work is done again, or finds that it was done; then all of it goes.
async fn mended(node: &mut Node, kind: &str, extra: &Value, first: &TaskResult) {
    let case = format!("{kind}: first {first:?}");
    let again = node.run(kind, extra, None).await;
    if let Some(error) = &again.error {
        assert!(EXCUSES.contains(&error.code), "{case}: again: {error:?}");
    }
    let gone = node.run("machine_destroy", &json!({}), None).await;
    assert_eq!(gone.status, Outcome::Complete, "{case}: {gone:?}");
    node.real.assert_empty(&case);
}

/// The guest's hypervisor stands still while the task is at work.
async fn with_a_frozen_hypervisor(kind: &str, extra: Value) -> TaskResult {
    let mut node = Node::new().await;
    node.prepare(kind).await;
    let pids: Vec<Pid> = node
        .real
        .guest_pids()
        .iter()
        .map(|pid| Pid::from_raw(i32::try_from(*pid).unwrap()))
        .collect();
    assert_eq!(pids.len(), 1, "{kind}");
    for pid in &pids {
        kill(*pid, Signal::SIGSTOP).unwrap();
    }
    let first = node.run(kind, &extra, Some(PATIENCE)).await;
    for pid in &pids {
        // It may have been killed.
        kill(*pid, Signal::SIGCONT).ok();
    }
    mended(&mut node, kind, &extra, &first).await;
    first
}

macro_rules! frozen {
    ($($name:ident: $kind:literal, $extra:tt => $outcome:ident;)+) => {
        $(
            #[tokio::test]
            async fn $name() {
                let first = with_a_frozen_hypervisor($kind, json!($extra)).await;
                assert_eq!(first.status, Outcome::$outcome, "{first:?}");
            }
        )+
    };
}

// What needs no answer is done all the same.
frozen! {
    frozen_guests_are_shut_down: "machine_shutdown", { "force": true } => Complete;
    frozen_guests_are_rebooted: "machine_reboot", { "force": true } => Complete;
    frozen_guests_are_killed: "machine_kill", { "signal": "SIGKILL" } => Complete;
    frozen_guests_are_rolled_back: "machine_rollback_snapshot", { "snapshot_name": "a" } => Complete;
    frozen_guests_are_not_paused: "machine_kill", { "signal": "SIGSTOP" } => Failure;
    frozen_guests_get_no_network_interface: "machine_update", {
        "add_nics": [{ "nic_tag": "admin", "mac": "02:00:00:00:00:77" }]
    } => Failure;
    frozen_guests_have_no_snapshot_taken: "machine_create_snapshot", { "snapshot_name": "a" } => Failure;
}

/// A disk of which nothing comes back, as on a server that is gone.
struct HangingDisk {
    path: PathBuf,
    real: PathBuf,
}

impl HangingDisk {
    fn of(node: &Node) -> Self {
        let path = node.real.path("vols").join(uuid().to_string()).join("disk0.qcow2");
        let real = path.with_extension("kept");
        std::fs::rename(&path, &real).unwrap();
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        Self { path, real }
    }

    /// Who waits for it is answered, and the next one has the disk.
    fn come_back(self) {
        let ends: File = File::options()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&self.path)
            .unwrap();
        std::fs::rename(&self.real, &self.path).unwrap();
        drop(ends);
    }
}

async fn with_a_hanging_disk(kind: &str, extra: Value) {
    let mut node = Node::new().await;
    node.prepare(kind).await;
    if !node.real.guest_pids().is_empty() {
        let off = node.run("machine_shutdown", &json!({ "force": true }), None).await;
        assert_eq!(off.status, Outcome::Complete, "{off:?}");
    }
    let disk = HangingDisk::of(&node);
    let first = node.run(kind, &extra, Some(DEADLINE)).await;
    disk.come_back();
    assert_eq!(first.status, Outcome::Failure, "{kind}: {first:?}");
    mended(&mut node, kind, &extra, &first).await;
}

macro_rules! hanging_disks {
    ($($kind:ident: $extra:tt;)+) => {
        $(
            #[tokio::test]
            async fn $kind() {
                with_a_hanging_disk(stringify!($kind), json!($extra)).await;
            }
        )+
    };
}

hanging_disks! {
    machine_boot: {};
    machine_create_snapshot: { "snapshot_name": "a" };
    machine_delete_snapshot: { "snapshot_name": "a" };
    machine_reprovision: {};
    machine_rollback_snapshot: { "snapshot_name": "a" };
}
