//! Which processes of this host are guests of this agent. The process table is the truth: files in
//! a run folder can be lost, processes can't.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use muster_shared::ids::VmUuid;

use super::isolation;
use crate::host::{ProcessId, procfs};

/// In the environment of a guest's process: the task that started it.
pub(super) const START_TASK: &str = "MUSTER_TASK_ID";

/// Looks for guests by the path of the pid file among their arguments.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// `…/vm`, which holds a folder for each guest.
    guests: PathBuf,
    /// The agent's user; else guests have users of their own.
    uid: u64,
}

impl Search {
    /// For guests with folders below `run_dir`.
    pub(super) fn new(run_dir: &Path) -> Self {
        Self { guests: run_dir.join("vm"), uid: nix::unistd::geteuid().as_raw().into() }
    }

    /// Every guest that runs.
    ///
    /// # Errors
    /// The process table could not be read: nothing is known then, not even what is stopped.
    pub(super) fn all(&self) -> io::Result<BTreeMap<VmUuid, ProcessId>> {
        let mut found = BTreeMap::new();
        for pid in procfs::pids()? {
            let Some(vm) = procfs::cmdline(pid)?.and_then(|argv| self.guest(&argv)) else {
                continue;
            };
            // A closed gate has the same arguments until it has become the hypervisor, so it is
            // found as well. Anybody may name our pid file: only the owner makes it ours.
            let owner = procfs::status(pid)?.map(|status| status.uid);
            if owner.is_some_and(|owner| owner != self.uid && !isolation::is_guest(owner)) {
                tracing::warn!(pid, %vm, uid = owner, "a process of another user passes for a guest");
                continue;
            }
            if let Some(process) = ProcessId::of(pid)? {
                found.entry(vm).or_insert(process);
            }
        }
        Ok(found)
    }

    /// The guest whose pid file is among these arguments.
    fn guest(&self, argv: &[String]) -> Option<VmUuid> {
        let pair = argv.windows(2).find(|pair| pair[0] == "-pidfile")?;
        let name = Path::new(&pair[1]).strip_prefix(&self.guests).ok()?.parent()?;
        name.to_str()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_guest_is_named_by_its_pid_file() {
        let search = Search::new(Path::new("/run/muster"));
        let vm = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01";
        let named = search.guest(&argv(&format!("q -pidfile /run/muster/vm/{vm}/pid -S")));
        assert_eq!(named.map(|vm| vm.to_string()).as_deref(), Some(vm));
        for other in [
            format!("q -pidfile /run/other/vm/{vm}/pid"),
            "q -pidfile /run/muster/vm/x/pid".to_owned(),
            "q -pidfile".to_owned(),
            format!("q /run/muster/vm/{vm}/pid"),
        ] {
            assert_eq!(search.guest(&argv(&other)), None, "{other}");
        }
    }
}
