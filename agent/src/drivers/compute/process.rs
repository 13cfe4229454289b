//! Programs that run in a guest beside its own.

use std::fmt;
use std::io;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::drivers::DriverError;
use crate::host::Exit;

/// A program to run in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestCommand {
    /// Program and arguments; the program is looked for in the guest's `PATH`.
    pub argv: Vec<String>,
    /// `NAME=value`, beside the environment of the guest's own program and before it.
    pub env: Vec<String>,
    /// `user`, `user:group`, or numbers; `None`: that of the guest's own program.
    pub user: Option<String>,
    /// Where it starts; `None`: where the guest's own program did.
    pub dir: Option<String>,
    /// It has a terminal of this size, over which all of its input and output goes.
    pub terminal: Option<TerminalSize>,
}

/// Size of a terminal, characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Characters of a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// What a program reads.
pub type ProcessInput = Box<dyn AsyncWrite + Send + Unpin>;
/// What a program prints.
pub type ProcessOutput = Box<dyn AsyncRead + Send + Unpin>;

/// A program that runs in a guest. Dropped, it is killed.
#[async_trait]
pub trait GuestProcess: fmt::Debug + Send {
    /// What it reads, once. Dropped, it reads the end; a terminal has none but with the program.
    fn take_stdin(&mut self) -> Option<ProcessInput>;

    /// What it prints, once; with a terminal also what it complains of.
    fn take_stdout(&mut self) -> Option<ProcessOutput>;

    /// What it complains of, once; `None` with a terminal.
    fn take_stderr(&mut self) -> Option<ProcessOutput>;

    /// Gives its terminal another size. Without a terminal nothing happens.
    ///
    /// # Errors
    /// The kernel refused.
    fn resize(&self, size: TerminalSize) -> io::Result<()>;

    /// Waits until it has ended; may be given up and called again, also after the end.
    ///
    /// # Errors
    /// The kernel does not tell.
    async fn wait(&mut self) -> io::Result<Exit>;
}

/// Runs programs in guests.
#[async_trait]
pub trait GuestProcesses: fmt::Debug + Send + Sync + 'static {
    /// Starts a program in a running guest.
    ///
    /// # Errors
    /// `VmNotRunning`; `InvalidParameters`: the guest has no such user; `NotSupported` by a driver whose
    /// guests are not processes of the host.
    async fn exec(
        &self,
        vm: VmUuid,
        command: &GuestCommand,
    ) -> Result<Box<dyn GuestProcess>, DriverError> {
        let _: &GuestCommand = command;
        let text = format!("VM {vm} is a hardware VM: only its guest agent runs programs in it");
        Err(DriverError::refused(Code::NotSupported, text))
    }
}
