//! A process named for ever: by its pid and its start time, so that a reused pid is never taken
//! for it.

use std::io;

use nix::libc;
use serde::{Deserialize, Serialize};

use super::{procfs, syscalls};

/// One process of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process that has this pid now; `None` when there is none (a zombie is none).
    ///
    /// # Errors
    /// `/proc` could not be read.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let stat = procfs::stat(pid)?;
        Ok(stat
            .filter(|stat| !stat.is_dead())
            .map(|stat| Self { pid, start_ticks: stat.start_ticks }))
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// `/proc` could not be read.
    pub fn is_alive(self) -> io::Result<bool> {
        Ok(Self::of(self.pid)? == Some(self))
    }

    /// Kills it (`SIGKILL`). One that is gone is no error.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn kill(self) -> io::Result<()> {
        self.signal(libc::SIGKILL)
    }

    /// Asks it to end (`SIGTERM`). One that is gone is no error.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn terminate(self) -> io::Result<()> {
        self.signal(libc::SIGTERM)
    }

    /// Sends it a signal. One that is gone is no error.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn signal(self, signal: i32) -> io::Result<()> {
        let Some(pidfd) = self.open()? else { return Ok(()) };
        match syscalls::pidfd_kill(&pidfd, signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Returns once it is gone.
    ///
    /// # Errors
    /// The kernel refused.
    pub async fn gone(self) -> io::Result<()> {
        let Some(pidfd) = self.open()? else { return Ok(()) };
        syscalls::readable(pidfd).await
    }

    /// Opens it; the check after the open is what makes sure that it is the one meant.
    fn open(self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        match syscalls::pidfd_open(self.pid) {
            Ok(pidfd) => Ok(self.is_alive()?.then_some(pidfd)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a process of this user runs.
///
/// # Errors
/// The kernel refused.
pub fn user_has_processes(uid: u32) -> io::Result<bool> {
    syscalls::user_has_processes(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_with_processes_are_told_from_those_without() {
        assert!(user_has_processes(nix::unistd::getuid().as_raw()).unwrap());
        assert!(!user_has_processes(4_000_000_000).unwrap());
    }

    #[test]
    fn a_process_with_another_start_time_is_not_alive() {
        let me = ProcessId::of(std::process::id()).unwrap().unwrap();
        assert!(me.is_alive().unwrap());
        let other = ProcessId { start_ticks: me.start_ticks + 1, ..me };
        assert!(!other.is_alive().unwrap());
        other.kill().unwrap();
    }
}
