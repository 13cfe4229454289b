//! Which accelerators work. That a device node opens proves nothing: a tiny guest has to do a
//! fixed piece of work in time, and under KVM sooner than without it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_shared::clock::SharedClock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::host::{Command, ExecError, SharedExec};

/// Longest time the tiny guest may take.
const DEADLINE: Duration = Duration::from_secs(5);
/// The same for a last attempt without which nothing would run: a host that boots, or one that is
/// itself emulated, may be busy for a long time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit code of QEMU when the guest writes the right sum to the debug port: `2 * 0x14 + 1`.
const DONE: i32 = 41;
/// Further runs of both before KVM is judged to be no faster.
const MORE_RUNS: u32 = 3;
/// The usual [`Probe::kvm_node`].
pub(super) const KVM_NODE: &str = "/dev/kvm";
/// Size of the firmware image, bytes; QEMU wants a multiple of 64 KiB.
const FIRMWARE_BYTES: usize = 64 * 1024;
/// Where the processor starts, counted from the image's begin.
const RESET_VECTOR: usize = 0xfff0;

/// `probe.S` assembled: adds up 65 million numbers with a port write every 65,536 of them (each
/// one leaves the guest), then writes the sum's lowest byte to the debug port.
const CODE: [u8; 26] = [
    0x31, 0xdb, 0xbe, 0xe8, 0x03, 0x31, 0xc9, 0x01, 0xcb, 0x49, 0x75, 0xfb, 0x01, 0xf3, 0xe6, 0x80,
    0x4e, 0x75, 0xf2, 0x88, 0xd8, 0xe6, 0xf4, 0xf4, 0xeb, 0xfd,
];
/// A jump from the reset vector to the code.
const JUMP: [u8; 3] = [0xe9, 0x0d, 0x00];

/// A way to run guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The kernel's.
    Kvm,
    /// Translation, which works everywhere.
    Tcg,
}

impl Accelerator {
    /// As QEMU and sysinfo name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// `compute.accel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// KVM when it passes its probe, else TCG.
    #[default]
    Auto,
    /// KVM or no hardware VMs.
    Kvm,
    /// TCG.
    Tcg,
}

impl std::str::FromStr for Choice {
    type Err = UnknownChoice;

    fn from_str(word: &str) -> Result<Self, UnknownChoice> {
        match word {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            _ => Err(UnknownChoice),
        }
    }
}

/// The word is no choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be auto, kvm or tcg")]
pub struct UnknownChoice;

/// What the probes found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) version: Option<String>,
    pub(super) accelerator: Option<Accelerator>,
    /// What the hypervisor's names without a version stand for now.
    #[serde(default)]
    pub(super) machines: Machines,
    /// Why something is not used.
    pub(super) degraded: Vec<String>,
}

impl Verdict {
    /// What an operator should know: slow guests are noticed late, and by their users.
    fn tell(&self) {
        let reason = self.degraded.join("; ");
        match self.accelerator {
            Some(Accelerator::Tcg) if !reason.is_empty() => {
                tracing::warn!(reason, "KVM unusable, using emulation: guests are slow");
            }
            Some(_) => {}
            None => tracing::warn!(reason, "hardware VMs can't run here"),
        }
    }
}

/// Machine types with their version, e.g. `pc-q35-7.2`: another version is other hardware to a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machines {
    pub(super) q35: Option<String>,
    pub(super) pc: Option<String>,
}

/// What a probe works with.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) exec: SharedExec,
    pub(super) clock: SharedClock,
    pub(super) binary: String,
    pub(super) run_dir: PathBuf,
    pub(super) boot_id: String,
    /// Through which the kernel runs guests.
    pub(super) kvm_node: PathBuf,
}

/// The verdict in force. One that nothing works is looked at again whenever a guest is to start:
/// a host that is busy booting fails probes that it passes a minute later.
#[derive(Debug)]
pub(super) struct Prober {
    probe: Probe,
    choice: Choice,
    verdict: Mutex<Verdict>,
    // Guests that start at once share one look.
    looking: tokio::sync::Mutex<()>,
}

impl Prober {
    pub(super) async fn new(probe: Probe, choice: Choice) -> Self {
        let verdict = probe.verdict(choice).await;
        verdict.tell();
        let verdict = Mutex::new(verdict);
        Self { probe, choice, verdict, looking: tokio::sync::Mutex::default() }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict.lock().clone()
    }

    pub(super) async fn verdict_for_start(&self) -> Verdict {
        let before = self.verdict();
        if before.accelerator.is_some() {
            return before;
        }
        let _looking = self.looking.lock().await;
        if self.verdict() == before {
            let again = self.probe.verdict(self.choice).await;
            again.tell();
            *self.verdict.lock() = again;
        }
        self.verdict()
    }
}

/// A verdict holds for one boot, one hypervisor and one choice.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Remembered {
    boot_id: String,
    choice: Choice,
    verdict: Verdict,
}

impl Probe {
    /// The verdict, from an earlier start in this boot if there is one.
    pub(super) async fn verdict(&self, choice: Choice) -> Verdict {
        let version = match self.version().await {
            Ok(version) => version,
            Err(problem) => {
                return Verdict { degraded: vec![problem], ..Verdict::default() };
            }
        };
        let file = self.run_dir.join("accel.json");
        if let Some(old) = recall(&file)
            && old.boot_id == self.boot_id
            && old.choice == choice
            && old.verdict.version.as_ref() == Some(&version)
            && old.verdict.accelerator.is_some()
            && old.verdict.machines.q35.is_some()
        {
            return old.verdict;
        }
        let mut verdict = self.run_all(choice).await;
        verdict.version = Some(version);
        verdict.machines = self.machines().await.unwrap_or_else(|problem| {
            // Guests run without; what they get changes with the hypervisor then.
            verdict.degraded.push(format!("machine types: {problem}"));
            Machines::default()
        });
        let boot_id = self.boot_id.clone();
        let remembered = Remembered { boot_id, choice, verdict: verdict.clone() };
        let json = serde_json::to_vec(&remembered).map_err(std::io::Error::other);
        if let Err(error) = json.and_then(|json| std::fs::write(&file, json)) {
            tracing::warn!(%error, "cannot remember the accelerator");
        }
        verdict
    }

    async fn run_all(&self, choice: Choice) -> Verdict {
        let mut verdict = Verdict::default();
        let mut tcg = self.time(Accelerator::Tcg, DEADLINE).await;
        if tcg.is_err() {
            // Translation works everywhere: a host that is busy with something else gets a
            // second chance, because nothing would run on it otherwise.
            tcg = self.time(Accelerator::Tcg, PATIENCE).await;
        }
        if choice == Choice::Tcg {
            return decide_tcg(verdict, tcg);
        }
        let mut kvm = self.time(Accelerator::Kvm, DEADLINE).await;
        for _ in 0..MORE_RUNS {
            // A host that is busy while it boots slows down one as much as the other: the best of
            // several runs is what they can do.
            let (Ok(best_kvm), Ok(best_tcg)) = (kvm.clone(), tcg.clone()) else { break };
            if best_kvm < best_tcg {
                break;
            }
            kvm = Ok(self.time(Accelerator::Kvm, DEADLINE).await.unwrap_or(best_kvm).min(best_kvm));
            tcg = Ok(self.time(Accelerator::Tcg, DEADLINE).await.unwrap_or(best_tcg).min(best_tcg));
        }
        let kvm = match kvm {
            Ok(kvm) if tcg.as_ref().is_ok_and(|tcg| kvm >= *tcg) => {
                Err("KVM works, but no faster than emulation".to_owned())
            }
            other => other,
        };
        match kvm {
            Ok(_) => verdict.accelerator = Some(Accelerator::Kvm),
            Err(problem) => {
                verdict.degraded.push(format!("kvm: {problem}"));
                if choice == Choice::Auto {
                    return decide_tcg(verdict, tcg);
                }
            }
        }
        verdict
    }

    /// How long the tiny guest took.
    async fn time(&self, accelerator: Accelerator, deadline: Duration) -> Result<Duration, String> {
        if accelerator == Accelerator::Kvm {
            let node = std::fs::OpenOptions::new().read(true).write(true).open(&self.kvm_node);
            node.map_err(|error| format!("{}: {error}", self.kvm_node.display()))?;
        }
        let firmware = self.firmware().map_err(|error| format!("write the probe: {error}"))?;
        let began = self.clock.monotonic();
        let argv = [
            self.binary.as_str(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-machine",
            "q35",
            "-accel",
            accelerator.name(),
            "-m",
            "16",
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=0x04",
            "-bios",
            &firmware.display().to_string(),
        ];
        let command = Command::new(argv, deadline);
        let output = self.exec.run(&command, &CancellationToken::new()).await;
        let took = self.clock.monotonic().saturating_sub(began);
        match output {
            Ok(output) if output.exit.code == Some(DONE) => {
                let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                tracing::info!(
                    accelerator = accelerator.name(),
                    took_ms,
                    "the probe guest is done"
                );
                Ok(took)
            }
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                Err(format!("the probe guest failed: {} {}", output.exit, stderr.trim()))
            }
            Err(ExecError::Timeout { .. }) => {
                Err(format!("the probe guest hung for {} s", deadline.as_secs()))
            }
            Err(error) => Err(muster_shared::error_chain::Chain(&error).to_string()),
        }
    }

    fn firmware(&self) -> std::io::Result<PathBuf> {
        let mut image = vec![0; FIRMWARE_BYTES];
        image[..CODE.len()].copy_from_slice(&CODE);
        image[RESET_VECTOR..RESET_VECTOR + JUMP.len()].copy_from_slice(&JUMP);
        let path = self.run_dir.join("probe.bin");
        std::fs::write(&path, image)?;
        Ok(path)
    }

    /// What the hypervisor prints when it is asked for something.
    async fn asked(&self, words: &[&str]) -> Result<String, String> {
        let argv = [self.binary.as_str()].into_iter().chain(words.iter().copied());
        // No measurement: it may take as long as a busy host needs.
        let command = Command::new(argv, PATIENCE);
        let output = self.exec.run(&command, &CancellationToken::new()).await;
        let output = output
            .and_then(|output| output.checked(&self.binary))
            .map_err(|error| muster_shared::error_chain::Chain(&error).to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn machines(&self) -> Result<Machines, String> {
        let text = self.asked(&["-machine", "help"]).await?;
        let found = |name: &str| {
            let of = |line: &str| line.split_whitespace().next() == Some(name);
            let (_, rest) = text.lines().find(|line| of(line))?.rsplit_once("(alias of ")?;
            Some(rest.trim_end().trim_end_matches(')').to_owned())
        };
        Ok(Machines { q35: found("q35"), pc: found("pc") })
    }

    async fn version(&self) -> Result<String, String> {
        let text = self.asked(&["--version"]).await?;
        let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "version");
        words.nth(1).map(str::to_owned).ok_or_else(|| format!("{}: no version", self.binary))
    }
}

fn decide_tcg(mut verdict: Verdict, tcg: Result<Duration, String>) -> Verdict {
    match tcg {
        Ok(_) => verdict.accelerator = Some(Accelerator::Tcg),
        Err(problem) => verdict.degraded.push(format!("tcg: {problem}")),
    }
    verdict
}

fn recall(file: &Path) -> Option<Remembered> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

#[cfg(test)]
mod tests;
