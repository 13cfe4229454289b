//! Processes whose input and output are descriptors of somebody's.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::pty::{OpenptyResult, Winsize, openpty};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixListener;
use tokio::net::unix::pipe;

use super::exec::{PATH, process};
use super::{ExecError, RunningChild, syscalls};

/// A process that reads and writes these.
#[derive(Debug)]
pub struct Wired {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// What it reads.
    pub stdin: OwnedFd,
    /// What it prints.
    pub stdout: OwnedFd,
    /// What it complains of.
    pub stderr: OwnedFd,
    /// All three are one terminal, which is its own.
    pub terminal: bool,
}

impl Wired {
    /// Starts it. Dropped, the process is killed.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(self) -> Result<RunningChild, ExecError> {
        let mut command = process(&self.argv);
        command.env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        command.stdin(Stdio::from(self.stdin)).stdout(self.stdout).stderr(self.stderr);
        command.kill_on_drop(true);
        if self.terminal {
            syscalls::take_terminal(&mut command);
        } else {
            command.process_group(0);
        }
        let program = self.argv.first().cloned().unwrap_or_default();
        command
            .spawn()
            .map(RunningChild::from)
            .map_err(|source| ExecError::Start { program, source })
    }
}

/// A pipe whose reading end is this process's.
///
/// # Errors
/// The kernel refuses.
pub fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((receiver, sender.into_blocking_fd()?))
}

/// A pipe whose writing end is this process's.
///
/// # Errors
/// The kernel refuses.
pub fn input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((sender, receiver.into_blocking_fd()?))
}

/// The end of a terminal from which it is driven.
#[derive(Debug)]
pub struct Terminal(AsyncFd<File>);

impl Terminal {
    /// Makes one; the other end is for a process.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn make(columns: u16, rows: u16) -> io::Result<(Self, OwnedFd)> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None)?;
        Ok((Self::of(master)?, slave))
    }

    /// Drives the terminal of this end.
    ///
    /// # Errors
    /// The runtime can't watch it.
    pub fn of(end: OwnedFd) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        fcntl(&end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        syscalls::watch_both_ways(File::from(end)).map(Self)
    }

    /// Gives it another size; its processes hear of it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resize(&self, columns: u16, rows: u16) -> io::Result<()> {
        syscalls::set_window_size(self.0.get_ref(), columns, rows)
    }

    /// Reads what was printed. 0: nobody has the other end any more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::io::Read as _;
        let read = self.0.async_io(tokio::io::Interest::READABLE, |mut end| end.read(buffer));
        match read.await {
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => Ok(0),
            other => other,
        }
    }

    /// Types something; returns how much of it was taken.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        use std::io::Write as _;
        self.0.async_io(tokio::io::Interest::WRITABLE, |mut end| end.write(bytes)).await
    }
}

/// A terminal as a stream of bytes, both ways.
#[derive(Clone, Debug)]
pub struct TerminalEnd(pub Arc<Terminal>);

impl AsyncRead for TerminalEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        use std::io::Read as _;
        loop {
            let mut ready = ready!(self.0.0.poll_read_ready(cx))?;
            match ready.try_io(|end| end.get_ref().read(buffer.initialize_unfilled())) {
                // Nobody has the other end any more.
                Ok(Err(error)) if error.raw_os_error() == Some(nix::libc::EIO) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(read) => return Poll::Ready(read.map(|length| buffer.advance(length))),
                Err(_not_yet) => {}
            }
        }
    }
}

impl AsyncWrite for TerminalEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        use std::io::Write as _;
        loop {
            let mut ready = ready!(self.0.0.poll_write_ready(cx))?;
            if let Ok(wrote) = ready.try_io(|end| end.get_ref().write(bytes)) {
                return Poll::Ready(wrote);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Where somebody hands a terminal over, once.
#[derive(Debug)]
pub struct TerminalSocket(UnixListener);

impl TerminalSocket {
    /// Listens at a path, in place of what was there.
    ///
    /// # Errors
    /// It can't be bound.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => UnixListener::bind(path).map(Self),
        }
    }

    /// Waits for the terminal.
    ///
    /// # Errors
    /// Something else came.
    pub async fn receive(self) -> io::Result<Terminal> {
        let (stream, _) = self.0.accept().await?;
        loop {
            stream.readable().await?;
            let received = stream
                .try_io(tokio::io::Interest::READABLE, || syscalls::received_descriptor(&stream));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Terminal::of(received?),
            }
        }
    }
}
