//! Frames of one kind on one interface.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};

use super::syscalls;

/// What the kernel keeps until it is read, bytes; the rest is dropped.
const KEPT_BYTES: usize = 64 * 1024;
/// Two addresses and the kind.
const HEADER_BYTES: usize = 14;
/// The longest frame that is read as a whole, bytes.
const MAX_FRAME_BYTES: usize = HEADER_BYTES + 1500;

/// Hears the frames of one kind that an interface receives.
#[derive(Debug)]
pub struct EthernetListener {
    socket: OwnedFd,
    buffer: [u8; MAX_FRAME_BYTES],
}

impl EthernetListener {
    /// Listens to an interface, by its number, for frames of this kind that are sent to it or to this
    /// group. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// There is no right to do that, or no such interface.
    pub fn open(interface: u32, ethertype: u16, group: [u8; 6]) -> io::Result<Self> {
        let socket = syscalls::packet_socket(interface, ethertype, group)?;
        setsockopt(&socket, sockopt::RcvBuf, &KEPT_BYTES)?;
        Ok(Self { socket, buffer: [0; MAX_FRAME_BYTES] })
    }

    /// What follows the header of the next frame, cut off after 1500 bytes; `None`: there is none yet,
    /// or the interface is off or gone.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    return Ok(Some(self.buffer.get(HEADER_BYTES..length).unwrap_or_default()));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                // Said once, when an interface goes off; it may come on again.
                Err(Errno::EINTR | Errno::ENETDOWN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a frame of this kind to the group.
    ///
    /// # Errors
    /// The interface is gone, or off.
    #[cfg(test)]
    pub fn send(&self, group: [u8; 6], ethertype: u16, content: &[u8]) -> io::Result<()> {
        let from = [2, 0, 0, 0, 0, 9];
        let frame = [&group[..], &from, &ethertype.to_be_bytes(), content].concat();
        nix::sys::socket::send(self.socket.as_raw_fd(), &frame, MsgFlags::empty())?;
        Ok(())
    }
}
