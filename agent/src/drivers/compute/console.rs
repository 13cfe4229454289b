//! What goes in and out of a guest's ports.

use std::fmt;

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
