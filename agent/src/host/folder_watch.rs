//! The kernel's word that something happened in a folder.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::syscalls;

/// Room for as many events as are read at a time, bytes.
const EVENTS_BYTES: usize = 4096;

/// Watches the entries of one folder, not those of folders in it.
#[derive(Debug)]
pub struct FolderWatch(Option<AsyncFd<OwnedFd>>);

impl FolderWatch {
    /// Watches a folder for these kinds of events, from now on.
    ///
    /// # Errors
    /// The folder is not there, or the kernel has no watch left to give.
    pub fn of(folder: &Path, events: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(folder, events)?;
        Ok(Self(Some(syscalls::register(inotify.into())?)))
    }

    /// Returns once something has happened since the last call. What, the caller looks for itself.
    ///
    /// # Errors
    /// The kernel can't be asked.
    pub async fn changed(&self) -> io::Result<()> {
        let mut events = [0; EVENTS_BYTES];
        let inotify = self.0.as_ref().expect("it is open until it is dropped");
        let mut ready = inotify.readable().await?;
        loop {
            match nix::unistd::read(inotify.get_ref(), &mut events) {
                Ok(0) | Err(Errno::EAGAIN) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

/// The kernel waits when a watch is closed until no processor can still be telling of an event: tens of
/// milliseconds, which must not pass on an async thread.
impl Drop for FolderWatch {
    fn drop(&mut self) {
        let inotify = self.0.take().map(AsyncFd::into_inner);
        // Without a runtime there is no async thread to hold up.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(inotify)));
        }
    }
}
