//! What a container prints, and what is typed for it: kept in a log, and shown to one client at a
//! time.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};

use crate::host::{Terminal, input_pipe, output_pipe};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// A log of this size is put aside, in place of the one before, bytes.
const LOG_BYTES: u64 = 8 * 1024 * 1024;
/// A client that takes nothing for so long is dropped: the container is not to wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// This side of a container's input and output.
#[derive(Debug)]
pub(super) enum Io {
    /// Both of its outputs are one.
    Pipes {
        input: pipe::Sender,
        output: pipe::Receiver,
    },
    Terminal(Terminal),
}

impl Io {
    /// With the ends that the container gets.
    pub(super) fn pipes() -> io::Result<(Self, [OwnedFd; 3])> {
        let (input, stdin) = input_pipe()?;
        let (output, stdout) = output_pipe()?;
        let stderr = stdout.try_clone()?;
        Ok((Self::Pipes { input, output }, [stdin, stdout, stderr]))
    }

    /// For a runtime that makes the container's terminal itself: what it prints is read until then.
    pub(super) fn terminal() -> io::Result<(Self, [OwnedFd; 3])> {
        Self::pipes()
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipes { output, .. } => output.read(buffer).await,
            Self::Terminal(terminal) => terminal.read(buffer).await,
        }
    }
}

/// Serves one container.
#[derive(Debug)]
pub(super) struct Server {
    listener: UnixListener,
    log: Log,
}

impl Server {
    pub(super) fn bind(socket: &Path, log: &Path) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { listener: UnixListener::bind(socket)?, log: Log::open(log)? })
    }

    /// Until nobody has the container's end any more.
    pub(super) async fn serve(mut self, mut io: Io) {
        let mut client: Option<UnixStream> = None;
        let (mut printed, mut typed) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
        // What was typed and the container has not read.
        let mut waiting: Vec<u8> = Vec::new();
        let mut reads_input = true;
        loop {
            let has_client = client.is_some();
            tokio::select! {
                accepted = self.listener.accept(), if !has_client => {
                    client = accepted.ok().map(|(stream, _)| stream);
                }
                read = next(client.as_mut(), &mut typed), if has_client && waiting.is_empty() => {
                    match read {
                        Ok(length) if length > 0 && reads_input => {
                            waiting.extend_from_slice(&typed[..length]);
                        }
                        Ok(length) if length > 0 => {}
                        _ => client = None,
                    }
                }
                moved = turn(&mut io, &mut printed, &waiting) => match moved {
                    Moved::Printed(0) => return,
                    Moved::Printed(length) => {
                        let bytes = &printed[..length];
                        // The client first: see `GuestConsole::console_log`.
                        if let Some(stream) = &mut client
                            && !takes(stream, bytes).await
                        {
                            client = None;
                        }
                        self.log.append(bytes);
                    }
                    Moved::Taken(length) => drop(waiting.drain(..length)),
                    Moved::Closed => {
                        reads_input = false;
                        waiting.clear();
                    }
                },
            }
        }
    }
}

enum Moved {
    /// 0: the end.
    Printed(usize),
    Taken(usize),
    /// The container reads nothing any more.
    Closed,
}

/// Reads what the container prints, or gives it what waits, whichever goes first.
async fn turn(io: &mut Io, printed: &mut [u8], waiting: &[u8]) -> Moved {
    if waiting.is_empty() {
        return Moved::Printed(io.read(printed).await.unwrap_or(0));
    }
    match io {
        Io::Pipes { input, output } => tokio::select! {
            read = output.read(printed) => Moved::Printed(read.unwrap_or(0)),
            wrote = input.write(waiting) => taken(wrote.unwrap_or(0)),
        },
        Io::Terminal(terminal) => tokio::select! {
            read = terminal.read(printed) => Moved::Printed(read.unwrap_or(0)),
            wrote = terminal.write(waiting) => taken(wrote.unwrap_or(0)),
        },
    }
}

fn taken(length: usize) -> Moved {
    if length > 0 { Moved::Taken(length) } else { Moved::Closed }
}

async fn next(client: Option<&mut UnixStream>, typed: &mut [u8]) -> io::Result<usize> {
    match client {
        Some(client) => client.read(typed).await,
        None => std::future::pending().await,
    }
}

async fn takes(client: &mut UnixStream, bytes: &[u8]) -> bool {
    matches!(tokio::time::timeout(PATIENCE, client.write_all(bytes)).await, Ok(Ok(())))
}

/// A log of bounded size, with the one before beside it.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    file: File,
    length: u64,
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length })
    }

    /// What can't be written is lost: the container goes on.
    fn append(&mut self, bytes: &[u8]) {
        if self.length >= LOG_BYTES
            && std::fs::rename(&self.path, self.path.with_extension("log.1")).is_ok()
            && let Ok(fresh) = Self::open(&self.path)
        {
            *self = fresh;
        }
        if self.file.write_all(bytes).is_ok() {
            self.length += u64::try_from(bytes.len()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_full_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut log = Log::open(&path).unwrap();
        log.append(b"first");
        log.length = LOG_BYTES;
        log.append(b"second");
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read(path.with_extension("log.1")).unwrap(), b"first");
        assert_eq!(Log::open(&path).unwrap().length, 6);
    }

    #[tokio::test]
    async fn what_is_printed_is_shown_and_kept_and_what_is_typed_arrives() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, path) = (folder.path().join("s"), folder.path().join("console.log"));
        let (container_in, stdin) = input_pipe().unwrap();
        let (container_out, stdout) = output_pipe().unwrap();
        let mut reads = pipe::Receiver::from_owned_fd(stdin).unwrap();
        let mut prints = pipe::Sender::from_owned_fd(stdout).unwrap();
        let server = Server::bind(&socket, &path).unwrap();
        let io = Io::Pipes { input: container_in, output: container_out };
        let serving = tokio::spawn(server.serve(io));
        let mut client = UnixStream::connect(&socket).await.unwrap();
        client.write_all(b"typed").await.unwrap();
        let mut buffer = [0; 7];
        reads.read_exact(&mut buffer[..5]).await.unwrap();
        assert_eq!(&buffer[..5], b"typed");
        prints.write_all(b"printed").await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"printed");
        drop(prints);
        serving.await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"printed");
    }
}
