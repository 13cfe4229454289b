//! Streams of snapshots, through `zfs send` and `zfs receive`.

use std::fmt;
use std::time::Duration;

use muster_shared::wire::Code;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::programs::{LOOK, Program, Programs};
use super::{Receive, Snapshot, StreamOf, error};
use crate::drivers::DriverError;
use crate::host::RunningChild;

/// Most that is kept of what a program complains of, bytes.
const COMPLAINT_BYTES: u64 = 16 * 1024;
/// A stream of which nothing can be read or written for so long is given up.
const STALL: Duration = Duration::from_secs(600);
/// Read and written at once, bytes.
const CHUNK_BYTES: usize = 128 * 1024;

/// A snapshot that is being sent. Dropped, the sender is told to end, and until it has the snapshot can't
/// be removed.
pub struct SendStream {
    /// What is sent. Its end says nothing of whether that was all: see [`Sender::end`].
    pub data: Box<dyn AsyncRead + Send + Unpin>,
    /// Who sends it.
    pub sender: Sender,
}

/// Who sends a [`SendStream`].
#[derive(Debug)]
pub struct Sender(Option<RunningChild>);

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStream").finish_non_exhaustive()
    }
}

impl SendStream {
    /// One that is whole already.
    pub(super) fn whole(data: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { data: Box::new(data), sender: Sender(None) }
    }
}

impl Sender {
    /// Once the data was read, or dropped: whether that was all. Nothing keeps the snapshot any more when
    /// this returns.
    ///
    /// # Errors
    /// The sender failed: what was read is not good.
    pub async fn end(self) -> Result<(), DriverError> {
        match self.0 {
            Some(sender) => ended(sender).await,
            None => Ok(()),
        }
    }
}

fn send_arguments(what: &StreamOf) -> Vec<String> {
    match what {
        StreamOf::Whole(snapshot) => vec![snapshot.to_string()],
        StreamOf::Changes { since, until } => {
            vec!["-i".to_owned(), format!("@{}", since.name()), until.to_string()]
        }
        StreamOf::Rest(token) => vec!["-t".to_owned(), token.clone()],
    }
}

/// A token is hexadecimal numbers between dashes; nothing else gets to the command line.
fn check(what: &StreamOf) -> Result<(), DriverError> {
    match what {
        StreamOf::Rest(token) => {
            let usable = |c: char| c.is_ascii_alphanumeric() || c == '-';
            let fits = token.starts_with(|c: char| c.is_ascii_alphanumeric());
            if fits && token.len() <= 16 * 1024 && token.chars().all(usable) {
                return Ok(());
            }
            let text = "the token to go on with a stream is damaged";
            Err(DriverError::refused(Code::InvalidArgument, text))
        }
        StreamOf::Changes { since, until } if since.dataset() != until.dataset() => {
            let text = format!("{since} is no snapshot of {}", until.dataset());
            Err(DriverError::refused(Code::InvalidArgument, text))
        }
        StreamOf::Whole(_) | StreamOf::Changes { .. } => Ok(()),
    }
}

/// Begins to send. Blocks are sent as they are on the disk, properties stay behind.
pub(super) async fn send(programs: &Programs, what: &StreamOf) -> Result<SendStream, DriverError> {
    check(what)?;
    let of = send_arguments(what);
    let mut arguments = vec!["send", "-L", "-e", "-c"];
    arguments.extend(of.iter().map(String::as_str));
    let mut sender = programs.pipe(&arguments, false).await?;
    let data = sender.take_stdout().ok_or_else(|| no_pipe("zfs send"))?;
    Ok(SendStream { data: Box::new(data), sender: Sender(Some(sender)) })
}

/// About how many bytes [`send`] will have.
pub(super) async fn size(programs: &Programs, what: &StreamOf) -> Result<u64, DriverError> {
    check(what)?;
    let of = send_arguments(what);
    let mut arguments = vec!["send", "-n", "-P", "-L", "-e", "-c"];
    arguments.extend(of.iter().map(String::as_str));
    let text = programs.run(Program::Zfs, &arguments, LOOK).await?;
    let size = text.lines().find_map(|line| line.strip_prefix("size")?.trim().parse().ok());
    size.ok_or_else(|| DriverError::failed("read the size of a stream", "zfs did not tell it"))
}

/// Receives a stream to its end.
pub(super) async fn receive(
    programs: &Programs,
    into: &Snapshot,
    how: &Receive,
    from: Box<dyn AsyncRead + Send + Unpin>,
) -> Result<(), DriverError> {
    // Not mounted: where to is for whoever asked to say. The rest is kept when the stream is cut.
    let mut arguments = vec!["receive".to_owned(), "-s".into(), "-u".into()];
    if how.force {
        arguments.push("-F".to_owned());
    }
    for (name, value) in &how.properties {
        super::check_setting(name, value)?;
        arguments.extend(["-o".to_owned(), format!("{name}={value}")]);
    }
    for name in &how.without {
        super::check_property(name)?;
        arguments.extend(["-x".to_owned(), name.clone()]);
    }
    arguments.push(into.to_string());
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut receiver = programs.pipe(&arguments, true).await?;
    let stdin = receiver.take_stdin().ok_or_else(|| no_pipe("zfs receive"))?;
    // What it complains of is the reason, also where it closed its ear meanwhile.
    let pumped = pump(from, stdin).await;
    match (pumped, ended(receiver).await) {
        (_, Err(refused)) => Err(refused),
        (Err(error), Ok(())) => {
            // The stream was cut behind a whole snapshot: that is there, the rest is not.
            Err(DriverError::failed(format!("receive {into}"), error))
        }
        (Ok(()), Ok(())) => Ok(()),
    }
}

async fn pump(
    mut from: Box<dyn AsyncRead + Send + Unpin>,
    mut to: tokio::process::ChildStdin,
) -> std::io::Result<()> {
    let stalled = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = tokio::time::timeout(STALL, from.read(&mut buffer)).await.map_err(stalled)??;
        if read == 0 {
            return to.shutdown().await;
        }
        let write = to.write_all(&buffer[..read]);
        tokio::time::timeout(STALL, write).await.map_err(stalled)??;
    }
}

/// Waits for the end of one that has nothing more to read or to be read.
async fn ended(mut child: RunningChild) -> Result<(), DriverError> {
    let mut complaint = Vec::new();
    let stderr = child.take_stderr();
    let finish = async {
        if let Some(stderr) = stderr {
            stderr.take(COMPLAINT_BYTES).read_to_end(&mut complaint).await?;
        }
        child.wait().await
    };
    match tokio::time::timeout(STALL, finish).await {
        Ok(Ok(exit)) if exit.success() => Ok(()),
        Ok(Ok(exit)) if complaint.is_empty() => {
            Err(DriverError::failed("end a stream of ZFS", exit.to_string()))
        }
        Ok(Ok(_)) => Err(error::refusal(&String::from_utf8_lossy(&complaint))),
        Ok(Err(error)) => Err(DriverError::failed("end a stream of ZFS", error)),
        Err(_) => Err(super::programs::late("a stream of ZFS")),
    }
}

fn no_pipe(program: &str) -> DriverError {
    DriverError::failed(program, "it has no pipe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_asked_for_by_names_and_tokens_alone() {
        let (a, b): (Snapshot, Snapshot) = ("z/a@1".parse().unwrap(), "z/a@2".parse().unwrap());
        assert_eq!(send_arguments(&StreamOf::Whole(a.clone())), ["z/a@1"]);
        let changes = StreamOf::Changes { since: a.clone(), until: b.clone() };
        check(&changes).unwrap();
        assert_eq!(send_arguments(&changes), ["-i", "@1", "z/a@2"]);
        let token = StreamOf::Rest("1-b6a4-c0-789c".to_owned());
        check(&token).unwrap();
        assert_eq!(send_arguments(&token), ["-t", "1-b6a4-c0-789c"]);
        for bad in ["", "-R", "a b", "a;b"] {
            check(&StreamOf::Rest(bad.to_owned())).unwrap_err();
        }
        let other = "z/b@1".parse().unwrap();
        check(&StreamOf::Changes { since: other, until: b }).unwrap_err();
    }
}
