//! Taps: network links whose other end is a process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use nix::libc;
use tokio::io::unix::AsyncFd;

use super::syscalls;

/// Its packets are Ethernet frames, behind the header that virtual cards share with the kernel.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// There is to be none of that name.
const NEW: libc::c_int = libc::IFF_TUN_EXCL;

/// A tap that this process has open. Unless it is kept, it goes when this is dropped.
#[derive(Debug)]
pub struct Tap(OwnedFd);

impl Tap {
    /// Makes a tap that processes of this user may open: without an owner everybody might.
    ///
    /// # Errors
    /// It can't be made; or there is a link of this name.
    pub fn make(name: &str, owner: u32) -> io::Result<Self> {
        let tun = open()?;
        syscalls::tun_set_iff(&tun, name, as_flags(FLAGS | NEW)?)?;
        syscalls::tun_set_owner(&tun, owner)?;
        Ok(Self(tun))
    }

    /// Opens the guest's end of a tap that there is.
    ///
    /// # Errors
    /// It can't be opened; or another process has it open.
    pub fn open(name: &str) -> io::Result<Self> {
        let tun = open()?;
        syscalls::tun_set_iff(&tun, name, as_flags(FLAGS)?)?;
        Ok(Self(tun))
    }

    /// Lets it stay when nobody has it open.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn keep(&self) -> io::Result<()> {
        syscalls::tun_set_persist(&self.0)
    }

    /// The descriptor, whose readiness to be read the runtime tells.
    ///
    /// # Errors
    /// The runtime can't watch it.
    pub fn register(self) -> io::Result<AsyncFd<OwnedFd>> {
        syscalls::register(self.0)
    }
}

impl From<Tap> for OwnedFd {
    fn from(tap: Tap) -> Self {
        tap.0
    }
}

fn as_flags(flags: libc::c_int) -> io::Result<u16> {
    u16::try_from(flags).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn open() -> io::Result<OwnedFd> {
    File::options().read(true).write(true).open("/dev/net/tun").map(OwnedFd::from)
}
