//! Orphans among a process's descendants.

use std::io;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{Exit, ProcessId};

/// Has this process be the parent of its descendants that lose theirs.
///
/// # Errors
/// The kernel refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Waits for the end of a child that this process did not start itself.
///
/// # Errors
/// It is no child; or the kernel refuses.
pub async fn reap(child: ProcessId) -> io::Result<Exit> {
    let pid = i32::try_from(child.pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // A zombie is gone by then and still to be waited for.
        child.gone().await?;
        match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(Exit { code: Some(code), signal: None }),
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                return Ok(Exit { code: None, signal: Some(signal as i32) });
            }
            Ok(_) | Err(Errno::EINTR) => tokio::task::yield_now().await,
            Err(error) => return Err(error.into()),
        }
    }
}
