//! What goes in and out of a guest's ports.

use std::fmt;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::ids::VmUuid;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::drivers::DriverError;

/// A byte stream to a guest device.
pub trait GuestIo: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> GuestIo for T {}

/// Which device of a guest a byte stream goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestPort {
    /// First serial port.
    Console,
    /// Display (RFB).
    Vnc,
    /// Second serial port, on which the guest asks for its metadata.
    Metadata,
    /// Channel to the guest agent, a program in the guest.
    GuestAgent,
}

/// The guest's end of the channel to its guest agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentChannel {
    /// The VM's process was started without one.
    Absent,
    /// No program in the guest has it open.
    Closed,
    /// A program in the guest has it open.
    Open,
}

/// Most that [`GuestConsole::console_log`] returns, bytes.
pub const CONSOLE_PAST_BYTES: usize = 16 * 1024;

/// A piece of what a guest printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged {
    /// The piece.
    pub bytes: Bytes,
    /// Where it ends in the log.
    pub end: u64,
}

/// The end of what is in a log after `from`, whole lines if that is not all.
pub(super) fn logged(log: &Path, from: u64) -> io::Result<Logged> {
    let mut log = match std::fs::File::open(log) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Logged::default()),
        Err(error) => return Err(error),
    };
    let length = log.metadata()?.len();
    // A log that grew too long was emptied meanwhile.
    let from = if from > length { 0 } else { from };
    let limit = u64::try_from(CONSOLE_PAST_BYTES).unwrap_or(u64::MAX);
    let start = from.max(length.saturating_sub(limit));
    log.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    let read = log.take(length - start).read_to_end(&mut bytes)?;
    let end = start + u64::try_from(read).unwrap_or(0);
    if start > from {
        let line = bytes.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        bytes.drain(..line);
    }
    Ok(Logged { bytes: bytes.into(), end })
}

/// Opens the ports of guests.
#[async_trait]
pub trait GuestConsole: fmt::Debug + Send + Sync + 'static {
    /// Opens a device of a running guest. The serial port takes one client: see
    /// [`crate::consoles`].
    ///
    /// # Errors
    /// `VmNotRunning`.
    async fn open(&self, vm: VmUuid, port: GuestPort) -> Result<Box<dyn GuestIo>, DriverError>;

    /// Whether a guest agent is there to be talked to.
    ///
    /// # Errors
    /// `VmNotRunning`; the hypervisor does not tell.
    async fn agent_channel(&self, vm: VmUuid) -> Result<AgentChannel, DriverError>;

    /// What the guest's latest process printed on its serial port, from a place in the log or from
    /// its start: the last [`CONSOLE_PAST_BYTES`] of it. A byte is in the log only after it went to
    /// the port's client.
    ///
    /// # Errors
    /// The log could not be read.
    async fn console_log(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError>;
}
