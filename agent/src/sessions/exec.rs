//! A program in a guest over a connection, as lines of JSON. The client sends
//! `{"type":"stdin","data":…}`, or `tty` in place of `stdin`; `{"type":"tty","resize":{"h":…,"w":…}}`;
//! `{"type":"end"}`. It gets `stdout`, `stderr` or `tty`, and at last
//! `{"type":"end","data":{"code":…,"signal":…}}`. A client that leaves ends the program; one that has
//! only closed its sending half still listens, and gets an empty `stdout` or `tty` now and then, which shows
//! when it does not.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_shared::error_chain::Chain;
use muster_shared::lenient;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc};
use tokio_util::codec::{FramedRead, LinesCodec};

use super::utf8::Utf8;
use super::{HALF_CLOSED_LOOK, Peer};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestProcess, ProcessInput, ProcessOutput, TerminalSize};
use crate::host::Exit;

/// Longest line of a client, bytes.
const MAX_LINE_BYTES: usize = 1024 * 1024;
/// Piece of output, bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// How long output is waited for that others hold open when the program has ended.
const LINGER: Duration = Duration::from_secs(2);
/// Exit code of what could not be started, as shells have it.
const NOT_STARTED: i32 = 126;

/// What of a program the client is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The client writes to it.
    pub stdin: bool,
    /// The client gets what it prints.
    pub stdout: bool,
    /// The client gets what it complains of.
    pub stderr: bool,
    /// It has a terminal.
    pub terminal: bool,
}

#[derive(Debug, Deserialize)]
struct Said {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    resize: Option<Value>,
}

/// Where lines go to the client.
#[derive(Clone, Debug)]
struct Lines(Arc<Mutex<OwnedWriteHalf>>);

impl Lines {
    async fn send(&self, line: &Value) -> io::Result<()> {
        let line = format!("{line}\r\n");
        self.0.lock().await.write_all(line.as_bytes()).await
    }

    async fn end(&self, exit: Exit) -> io::Result<()> {
        let signal = exit.signal.and_then(|number| {
            nix::sys::signal::Signal::try_from(number).ok().map(nix::sys::signal::Signal::as_str)
        });
        self.send(&json!({ "type": "end", "data": { "code": exit.code, "signal": signal } }))
            .await?;
        self.0.lock().await.shutdown().await
    }
}

/// Serves a program that was started, or says why it was not.
pub async fn serve(
    peer: Peer,
    started: Result<Box<dyn GuestProcess>, DriverError>,
    attached: Attached,
) {
    let lines = Lines(Arc::new(Mutex::new(peer.writer)));
    let served = match started {
        Ok(process) => converse(peer.reader, &lines, process, attached).await,
        Err(error) => refuse(&lines, &error).await,
    };
    if let Err(error) = served {
        tracing::debug!(error = %Chain(&error), "a session with a program was cut");
    }
}

async fn refuse(lines: &Lines, error: &DriverError) -> io::Result<()> {
    tracing::info!(error = %Chain(error), "a program of a session was not started");
    lines.send(&json!({ "type": "stderr", "data": format!("{error}\n") })).await?;
    lines.end(Exit { code: Some(NOT_STARTED), signal: None }).await
}

async fn converse(
    reader: impl tokio::io::AsyncRead + Unpin,
    lines: &Lines,
    mut process: Box<dyn GuestProcess>,
    attached: Attached,
) -> io::Result<()> {
    let stdin = process.take_stdin().filter(|_| attached.stdin);
    let printed = if attached.terminal { "tty" } else { "stdout" };
    let stdout = forward(process.take_stdout(), printed, attached.stdout, lines.clone());
    let stderr = forward(process.take_stderr(), "stderr", attached.stderr, lines.clone());
    let (resize, mut resized) = mpsc::channel(1);
    let program = async move {
        loop {
            tokio::select! {
                exit = process.wait() => return exit,
                Some(size) = resized.recv() => process.resize(size)?,
            }
        }
    };
    let done = async {
        let output = async { tokio::try_join!(stdout, stderr) };
        tokio::pin!(program, output);
        let mut drained = false;
        let exit = loop {
            tokio::select! {
                exit = &mut program => break exit?,
                // A client that takes nothing more has left.
                end = &mut output, if !drained => drained = end.map(|_| true)?,
            }
        };
        if !drained && let Ok(end) = tokio::time::timeout(LINGER, output).await {
            end?;
        }
        lines.end(exit).await
    };
    tokio::select! {
        done = done => done,
        gone = listen(reader, stdin, resize, printed, lines) => gone,
    }
}

/// Does what the client says until it leaves.
async fn listen(
    reader: impl tokio::io::AsyncRead + Unpin,
    mut stdin: Option<ProcessInput>,
    resize: mpsc::Sender<TerminalSize>,
    printed: &str,
    told: &Lines,
) -> io::Result<()> {
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
    while let Some(line) = lines.next().await {
        let line = line.map_err(io::Error::other)?;
        if line.trim().is_empty() {
            continue;
        }
        let said: Said = serde_json::from_str(&line)?;
        match (&*said.kind, said.data) {
            ("stdin" | "tty", Some(data)) => {
                if let Some(open) = &mut stdin
                    && write(open, data.as_bytes()).await.is_err()
                {
                    // It reads nothing more; what it prints still comes.
                    stdin = None;
                }
            }
            ("end", _) => stdin = None,
            _ => {}
        }
        if let Some(size) = said.resize.as_ref().and_then(size) {
            // Nobody takes it once the program has ended.
            let _ended = resize.send(size).await;
        }
    }
    drop(stdin);
    loop {
        tokio::time::sleep(HALF_CLOSED_LOOK).await;
        told.send(&json!({ "type": printed, "data": "" })).await?;
    }
}

async fn write(stdin: &mut ProcessInput, data: &[u8]) -> io::Result<()> {
    stdin.write_all(data).await?;
    stdin.flush().await
}

fn size(resize: &Value) -> Option<TerminalSize> {
    let side = |name: &str| {
        let number = u16::try_from(lenient::number(resize.get(name)?)?).ok()?;
        (number > 0).then_some(number)
    };
    Some(TerminalSize { columns: side("w")?, rows: side("h")? })
}

/// Sends what is printed to the client, or only reads it when that is not wanted.
async fn forward(
    from: Option<ProcessOutput>,
    name: &'static str,
    wanted: bool,
    lines: Lines,
) -> io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let (mut buffer, mut utf8) = (vec![0; PIECE_BYTES], Utf8::default());
    let tell = async |text: String| match wanted && !text.is_empty() {
        true => lines.send(&json!({ "type": name, "data": text })).await,
        false => Ok(()),
    };
    loop {
        // A terminal whose program has ended gives an error in place of an end.
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            return tell(utf8.end()).await;
        }
        tell(utf8.add(&buffer[..read])).await?;
    }
}

/// Waits for a program that nobody is attached to.
pub async fn run_alone(mut process: Box<dyn GuestProcess>) {
    let outputs = [process.take_stdout(), process.take_stderr()];
    drop(process.take_stdin());
    let [stdout, stderr] = outputs.map(|output| async {
        match output {
            Some(mut output) => {
                tokio::io::copy(&mut output, &mut tokio::io::sink()).await.map(drop)
            }
            None => Ok(()),
        }
    });
    let (_, _, exit) = tokio::join!(stdout, stderr, process.wait());
    if let Err(error) = exit {
        tracing::warn!(%error, "cannot wait for a program in a guest");
    }
}
