//! The console of a container as the input and output of a program: what it prints, from what it printed
//! lately on, and what is typed for it. It ends when the container does.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use muster_shared::ids::VmUuid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::drivers::DriverError;
use crate::drivers::compute::{
    Compute, GuestProcess, Observed, ProcessInput, ProcessOutput, TerminalSize,
};
use crate::host::Exit;

/// Bytes on the way, each direction.
const PIPE_BYTES: usize = 16 * 1024;
/// Longest wait for the end of a container whose console has ended.
const END: Duration = Duration::from_secs(10);
/// The shell's number of a signal is so much more.
const SIGNALS: i32 = 128;

/// Where consoles are looked at.
#[async_trait]
pub trait Consoles: fmt::Debug + Send + Sync + 'static {
    /// Looks at the console of a VM that runs.
    ///
    /// # Errors
    /// `VmNotRunning`; `ConsoleBusy`.
    async fn look(&self, vm: VmUuid) -> Result<Box<dyn Console>, DriverError>;
}

/// A console that is looked at, until it is dropped.
#[async_trait]
pub trait Console: fmt::Debug + Send + Sync {
    /// What the VM prints next; `None`: it has ended. Cancel-safe.
    async fn next(&self) -> Option<Bytes>;

    /// Types for the VM.
    async fn write(&self, bytes: Bytes);
}

/// A console in place of a program. Dropped, it is only looked at no longer.
#[derive(Debug)]
pub struct Attached {
    console: Box<dyn Console>,
    compute: Arc<dyn Compute>,
    vm: VmUuid,
    /// This end of what is printed; none once all of it was.
    printing: Option<DuplexStream>,
    /// What was printed and is not on its way yet.
    printed: Bytes,
    /// This end of what is typed; none once nobody types any more.
    typing: Option<DuplexStream>,
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
}

impl Attached {
    /// Of this VM.
    #[must_use]
    pub fn new(console: Box<dyn Console>, compute: Arc<dyn Compute>, vm: VmUuid) -> Self {
        let (printing, stdout) = tokio::io::duplex(PIPE_BYTES);
        let (stdin, typing) = tokio::io::duplex(PIPE_BYTES);
        Self {
            console,
            compute,
            vm,
            printing: Some(printing),
            printed: Bytes::new(),
            typing: Some(typing),
            stdin: Some(stdin),
            stdout: Some(stdout),
        }
    }

    async fn exit(&self) -> io::Result<Exit> {
        let ended = self.compute.wait_stopped(self.vm, END).await.map_err(io::Error::other)?;
        tracing::debug!(vm_uuid = %self.vm, ended, "a console that somebody was attached to has ended");
        let observed = self.compute.observe(self.vm).await.map_err(io::Error::other)?;
        let status = match observed {
            Observed::Stopped(ended) => ended.exit_status,
            Observed::Running(_) => None,
        };
        Ok(match status {
            Some(number) if number > SIGNALS => Exit { code: None, signal: Some(number - SIGNALS) },
            code => Exit { code, signal: None },
        })
    }
}

#[async_trait]
impl GuestProcess for Attached {
    fn take_stdin(&mut self) -> Option<ProcessInput> {
        Some(Box::new(self.stdin.take()?))
    }

    fn take_stdout(&mut self) -> Option<ProcessOutput> {
        Some(Box::new(self.stdout.take()?))
    }

    fn take_stderr(&mut self) -> Option<ProcessOutput> {
        None
    }

    /// The terminal is the container's, and others may look at it.
    fn resize(&self, _size: TerminalSize) -> io::Result<()> {
        Ok(())
    }

    async fn wait(&mut self) -> io::Result<Exit> {
        let mut typed = [0; 1024];
        while let Some(printing) = &mut self.printing {
            let waits = !self.printed.is_empty();
            let types = self.typing.is_some();
            let typing = async {
                match &mut self.typing {
                    Some(typing) => typing.read(&mut typed).await.unwrap_or(0),
                    None => 0,
                }
            };
            tokio::select! {
                next = self.console.next(), if !waits => match next {
                    Some(bytes) => self.printed = bytes,
                    None => self.printing = None,
                },
                wrote = printing.write(&self.printed), if waits => match wrote {
                    Ok(count @ 1..) => self.printed.advance(count),
                    // Nobody reads it: it is not kept for anybody.
                    Ok(0) | Err(_) => self.printed.clear(),
                },
                count = typing, if types => match count {
                    0 => self.typing = None,
                    count => self.console.write(Bytes::copy_from_slice(&typed[..count])).await,
                },
            }
        }
        self.exit().await
    }
}
