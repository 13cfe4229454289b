//! What the probe makes of hosts that are fast, slow, or lack something.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::clock::{SystemClock, TokioClock};

use super::*;
use crate::host::{
    Detached, Exec, Exit, FakeExec, Output, Piped, RunningChild, Spawned, UnitProperty,
};

const QEMU: &str = "qemu-system-x86_64";

fn probe(exec: &Arc<FakeExec>, run_dir: &Path) -> Probe {
    Probe {
        exec: exec.clone(),
        clock: Arc::new(SystemClock::new()),
        binary: QEMU.to_owned(),
        run_dir: run_dir.to_owned(),
        boot_id: "b".to_owned(),
        kvm_node: PathBuf::from(KVM_NODE),
    }
}

async fn verdict(exec: FakeExec, choice: Choice) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let exec = Arc::new(exec);
    let probe = probe(&exec, folder.path());
    let first = probe.verdict(choice).await;
    let calls = exec.calls().len();
    let second = probe.verdict(choice).await;
    if first.accelerator.is_some() {
        assert_eq!(exec.calls().len(), calls + 1, "a verdict is not reached twice");
        assert_eq!(first, second);
    }
    first
}

fn qemu(exit_code: i32) -> FakeExec {
    let exec = FakeExec::default();
    let exit = Exit { code: Some(exit_code), signal: None };
    exec.answers(&[QEMU, "-nodefaults"], Output { exit, ..Output::default() });
    exec.prints(&[QEMU, "--version"], "QEMU emulator version 7.2.22 (Debian)\n");
    let machines = "Supported machines are:\n\
        pc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-7.2)\n\
        pc-i440fx-7.2        Standard PC (i440FX + PIIX, 1996) (default)\n\
        q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n";
    exec.prints(&[QEMU, "-machine", "help"], machines);
    exec
}

#[tokio::test]
async fn a_host_that_failed_is_looked_at_again_when_a_guest_is_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let exec = Arc::new(qemu(0));
    let prober = Prober::new(probe(&exec, folder.path()), Choice::Tcg).await;
    assert_eq!(prober.verdict_for_start().await.accelerator, None);
    let exit = Exit { code: Some(DONE), signal: None };
    exec.answers(&[QEMU, "-nodefaults"], Output { exit, ..Output::default() });
    assert_eq!(prober.verdict_for_start().await.accelerator, Some(Accelerator::Tcg));
    let calls = exec.calls().len();
    assert_eq!(prober.verdict_for_start().await, prober.verdict());
    assert_eq!(exec.calls().len(), calls);
}

/// Each run of the probe guest takes the next of these times, ms.
#[derive(Debug)]
struct Timed {
    exec: FakeExec,
    ms: Mutex<VecDeque<u64>>,
}

#[async_trait]
impl Exec for Timed {
    async fn run(
        &self,
        command: &Command,
        cancelled: &CancellationToken,
    ) -> Result<Output, ExecError> {
        if command.argv[1] == "-nodefaults" {
            let ms = self.ms.lock().pop_front().expect("one more run than expected");
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.exec.run(command, cancelled).await
    }

    async fn spawn_detached(&self, detached: &Detached) -> Result<Spawned, ExecError> {
        self.exec.spawn_detached(detached).await
    }

    async fn spawn_piped(&self, piped: &Piped) -> Result<RunningChild, ExecError> {
        self.exec.spawn_piped(piped).await
    }

    async fn change_unit(&self, unit: &str, properties: &[UnitProperty]) -> Result<(), ExecError> {
        self.exec.change_unit(unit, properties).await
    }

    fn supervisor(&self) -> &'static str {
        "direct"
    }
}

/// The verdict when runs take these times (emulated, KVM, then KVM first), and how many are left.
async fn judged(ms: &[u64]) -> (Verdict, usize) {
    let folder = tempfile::tempdir().unwrap();
    let kvm_node = folder.path().join("kvm");
    std::fs::write(&kvm_node, "").unwrap();
    let exec = Arc::new(Timed { exec: qemu(DONE), ms: Mutex::new(ms.iter().copied().collect()) });
    let probe = Probe {
        exec: exec.clone(),
        clock: Arc::new(TokioClock::new(jiff::Timestamp::UNIX_EPOCH)),
        kvm_node,
        ..probe(&Arc::default(), folder.path())
    };
    let verdict = probe.verdict(Choice::Auto).await;
    let left = exec.ms.lock().len();
    (verdict, left)
}

#[tokio::test(start_paused = true)]
async fn the_best_of_several_runs_counts() {
    let (quick, left) = judged(&[200, 90, 1]).await;
    assert_eq!((quick.accelerator, left), (Some(Accelerator::Kvm), 1), "{quick:?}");
    // The host is busy at first, and its emulated guest had a good moment.
    let (busy, left) = judged(&[200, 900, 400, 210, 90, 500, 1]).await;
    assert_eq!((busy.accelerator, left), (Some(Accelerator::Kvm), 1), "{busy:?}");
    let (slow, left) = judged(&[100, 110, 120, 105, 101, 300, 900, 900]).await;
    assert_eq!((slow.accelerator, left), (Some(Accelerator::Tcg), 0));
    assert_eq!(slow.degraded, ["kvm: KVM works, but no faster than emulation"]);
}

#[tokio::test]
async fn only_the_right_answer_counts() {
    let passed = verdict(qemu(DONE), Choice::Tcg).await;
    assert_eq!(passed.accelerator, Some(Accelerator::Tcg));
    assert_eq!(passed.version.as_deref(), Some("7.2.22"));
    let Machines { q35, pc } = passed.machines;
    assert_eq!((q35.as_deref(), pc.as_deref()), (Some("pc-q35-7.2"), Some("pc-i440fx-7.2")));
    let failed = verdict(qemu(0), Choice::Auto).await;
    assert_eq!(failed.accelerator, None);
    assert!(failed.degraded.iter().any(|text| text.starts_with("tcg: ")), "{failed:?}");
    let absent = verdict(FakeExec::default(), Choice::Auto).await;
    assert_eq!((absent.accelerator, absent.version), (None, None));
    assert_eq!(absent.degraded.len(), 1);
}
