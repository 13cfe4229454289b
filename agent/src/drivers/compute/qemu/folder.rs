//! Where a guest's process keeps its files, and what is noted there about it.

use std::io;
use std::path::{Path, PathBuf};

use muster_shared::folders::make_private;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};

use crate::drivers::compute::notes::{absent_is_fine, read, write};
use crate::drivers::compute::{Ended, Logged, logged};
use crate::drivers::{DriverError, files};
use crate::host::ProcessId;

/// Holds the number of a guest's user.
const UID_FILE: &str = "uid";

/// The paths of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestFolder {
    /// Sockets and what is known of the process; gone after a boot of the host.
    run: PathBuf,
    /// Metadata disk and logs.
    data: PathBuf,
}

/// `start.json`: what was started. Written before the process is, so that its times are known
/// also when the agent dies in between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Started {
    /// Boot of the host.
    pub(super) boot_id: String,
    /// SHA-256 (hex) of the arguments.
    pub(super) argv_hash: String,
    /// Wall clock at the start, ms.
    pub(super) started_at_ms: u64,
    /// The process, once it is known.
    pub(super) process: Option<ProcessId>,
    /// Length of the console's log at the start, bytes.
    #[serde(default)]
    pub(super) console_from: u64,
    /// When the guest itself restarted last, wall clock, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rebooted_at_ms: Option<u64>,
    /// How often it did.
    #[serde(default)]
    pub(super) reboots: u32,
}

/// `exit.json`: how the last process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exited {
    /// Boot of the host.
    pub(super) boot_id: String,
    /// Exit code, or 128 + signal; unknown when the agent was away.
    pub(super) exit_status: Option<i32>,
    /// When the agent noticed, wall clock, ms.
    #[serde(default)]
    pub(super) exited_at_ms: Option<u64>,
    /// Why it ended, in the hypervisor's word, e.g. `guest-shutdown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

impl Exited {
    pub(super) fn ended(&self) -> Ended {
        Ended {
            exit_status: self.exit_status,
            exited_at_ms: self.exited_at_ms,
            reason: self.reason.as_deref().map(Into::into),
        }
    }
}

impl GuestFolder {
    pub(super) fn new(run_dir: &Path, data_dir: &Path, vm: VmUuid) -> Self {
        let vm = vm.to_string();
        Self { run: run_dir.join("vm").join(&vm), data: data_dir.join("guests").join(&vm) }
    }

    /// Those that have files in an agent's data folder. Their sockets are elsewhere.
    pub(super) fn all(data_dir: &Path) -> io::Result<Vec<Self>> {
        let entries = match std::fs::read_dir(data_dir.join("guests")) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            if let Some(vm) = name.to_str().and_then(|name| name.parse().ok()) {
                all.push(Self::new(Path::new(""), data_dir, vm));
            }
        }
        Ok(all)
    }

    /// Whether there is anything of it.
    pub(super) fn exists(&self) -> bool {
        self.data.exists() || self.run.exists()
    }

    pub(super) fn make(&self) -> io::Result<()> {
        // Consoles and metadata are nobody else's business.
        make_private(&self.run)?;
        make_private(&self.data)
    }

    pub(super) fn qmp(&self) -> PathBuf {
        self.run.join("qmp.sock")
    }

    pub(super) fn qmp_aux(&self) -> PathBuf {
        self.run.join("qmp-aux.sock")
    }

    pub(super) fn serial(&self) -> PathBuf {
        self.run.join("serial0.sock")
    }

    /// The second serial port, which carries metadata.
    pub(super) fn metadata_channel(&self) -> PathBuf {
        self.run.join("serial1.sock")
    }

    pub(super) fn guest_agent(&self) -> PathBuf {
        self.run.join("qga.sock")
    }

    pub(super) fn vnc(&self) -> PathBuf {
        self.run.join("vnc.sock")
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.run.join("pid")
    }

    pub(super) fn console_log(&self) -> PathBuf {
        self.data.join("console.log")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.data.join("qemu.log")
    }

    pub(super) fn metadata(&self) -> PathBuf {
        self.data.join("cidata.img")
    }

    /// Where earlier versions had what UEFI firmware keeps for this VM.
    pub(super) fn earlier_uefi_variables(&self) -> PathBuf {
        self.data.join("uefi-vars.fd")
    }

    fn start_file(&self) -> PathBuf {
        self.run.join("start.json")
    }

    fn exit_file(&self) -> PathBuf {
        self.run.join("exit.json")
    }

    pub(super) fn started(&self) -> io::Result<Option<Started>> {
        read(&self.start_file())
    }

    pub(super) fn set_started(&self, started: &Started) -> io::Result<()> {
        write(&self.start_file(), &serde_json::to_vec(started)?)
    }

    /// Notes that the guest restarted within its process.
    pub(super) fn note_reboot(
        &self,
        process: ProcessId,
        at_ms: Option<u64>,
        reboots: u32,
    ) -> io::Result<()> {
        match self.started()? {
            Some(started) if started.process == Some(process) => {
                self.set_started(&Started { rebooted_at_ms: at_ms, reboots, ..started })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn exited(&self) -> io::Result<Option<Exited>> {
        read(&self.exit_file())
    }

    pub(super) fn set_exited(&self, exited: &Exited) -> io::Result<()> {
        // Somebody may have cleaned up.
        make_private(&self.run)?;
        write(&self.exit_file(), &serde_json::to_vec(exited)?)
    }

    pub(super) fn forget_exit(&self) -> io::Result<()> {
        absent_is_fine(std::fs::remove_file(self.exit_file()))
    }

    /// Holds a file for each device that the guest was asked to give up.
    fn asked_folder(&self) -> PathBuf {
        self.run.join("asked")
    }

    /// Notes that the guest is asked for a device: from now on it may give it up at any time, also
    /// while no agent runs.
    pub(super) fn note_asked(&self, device: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.asked_folder())?;
        std::fs::write(self.asked_folder().join(device), b"")
    }

    /// Notes that the guest has given a device up, or has it anew.
    pub(super) fn forget_asked(&self, device: &str) -> io::Result<()> {
        absent_is_fine(std::fs::remove_file(self.asked_folder().join(device)))
    }

    /// The devices that the guest was asked for and may still have.
    pub(super) fn asked(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.asked_folder()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }

    /// The user that its process gets.
    pub(super) fn uid(&self) -> io::Result<Option<u32>> {
        Self::uid_in(&self.data)
    }

    /// The user in a guest's data folder.
    pub(super) fn uid_in(data: &Path) -> io::Result<Option<u32>> {
        read(&data.join(UID_FILE))
    }

    pub(super) fn set_uid(&self, uid: u32) -> io::Result<()> {
        write(&self.data.join(UID_FILE), uid.to_string().as_bytes())
    }

    /// Writes the metadata disk unless it is there as it should be.
    pub(super) fn set_metadata(&self, volume: &[u8]) -> io::Result<()> {
        let path = self.metadata();
        if std::fs::read(&path).is_ok_and(|old| old == volume) {
            return Ok(());
        }
        write(&path, volume)
    }

    /// Removes what a process of the past left, before a new one.
    pub(super) fn clear_run(&self) -> io::Result<()> {
        let files = [
            self.qmp(),
            self.qmp_aux(),
            self.serial(),
            self.metadata_channel(),
            self.guest_agent(),
            self.vnc(),
            self.pid_file(),
            self.start_file(),
        ];
        for file in files {
            absent_is_fine(std::fs::remove_file(file))?;
        }
        absent_is_fine(std::fs::remove_dir_all(self.asked_folder()))
    }

    /// The end of what the latest process printed on its console after `from`, whole lines if that
    /// is not all.
    pub(super) fn printed(&self, from: Option<u64>) -> io::Result<Logged> {
        let from = match from {
            Some(from) => from,
            None => self.started()?.map_or(0, |started| started.console_from),
        };
        logged(&self.console_log(), from)
    }

    /// Removes everything, durably: the task that wants it gone does not look again after a power cut.
    pub(super) async fn purge(&self) -> Result<(), DriverError> {
        files::remove_folder(&self.run).await?;
        files::remove_folder_durably(&self.data).await
    }
}
