//! `muster vm console`: a guest's serial console over a websocket.

use std::time::Duration;

use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::client::{Client, Socket};
use crate::terminal::{Escape, RawMode};
use crate::{CliError, pick};

/// How much of the output is kept to find a text that arrives in pieces.
const SEARCHED_BYTES: usize = 4096;
/// Between signs of life on a quiet console.
const PING: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Type ~. at the start of a line to leave, ~~ for one ~. Examples:
  muster vm console web1
  muster vm console web1 --until 'login:' --timeout 60     for scripts: exit 7 if it never comes")]
pub(crate) struct Args {
    /// Uuid, its beginning, or alias.
    vm: String,

    /// Only watch, and leave after the line in which this text appears.
    #[arg(long, value_name = "TEXT")]
    until: Option<String>,

    /// Longest wait for that text, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "until")]
    timeout: u64,
}

pub(crate) async fn run(client: &Client, args: Args) -> Result<(), CliError> {
    let vm = pick::vm(client, &args.vm).await?;
    let path = format!("/vms/{}/console", pick::uuid(&vm)?);
    let socket = client.websocket(&path).await?;
    match (socket, args.until) {
        (Socket::Net(socket), None) => attach(*socket).await,
        (Socket::Unix(socket), None) => attach(*socket).await,
        (Socket::Net(socket), Some(text)) => watch(*socket, &text, args.timeout).await,
        (Socket::Unix(socket), Some(text)) => watch(*socket, &text, args.timeout).await,
    }
}

/// Bytes of a frame; `None` once the console has ended.
fn bytes(frame: Option<Result<Message, SocketError>>) -> Result<Option<Vec<u8>>, CliError> {
    match frame {
        Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes.to_vec())),
        Some(Ok(Message::Text(text))) => Ok(Some(text.as_bytes().to_vec())),
        Some(Ok(Message::Close(Some(close)))) if u16::from(close.code) != 1000 => {
            let message = format!("the console was closed: {} ({})", close.reason, close.code);
            Err(CliError::NotFound(message))
        }
        Some(Ok(Message::Close(_))) | None => Ok(None),
        Some(Ok(_)) => Ok(Some(Vec::new())),
        Some(Err(error)) => {
            Err(CliError::Unreachable { url: "the console".to_owned(), source: error.into() })
        }
    }
}

async fn show(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = tokio::io::stdout();
    let written = async {
        stdout.write_all(bytes).await?;
        stdout.flush().await
    };
    written.await.map_err(|source| CliError::Terminal { action: "print the console", source })
}

async fn attach<S>(socket: S) -> Result<(), CliError>
where
    S: Stream<Item = Result<Message, SocketError>> + Sink<Message, Error = SocketError>,
{
    let (mut sink, mut stream) = socket.split();
    eprintln!("connected; type ~. at the start of a line to leave");
    let raw = RawMode::enter()?;
    let newline = if raw.is_raw() { "\r\n" } else { "\n" };
    let mut stdin = tokio::io::stdin();
    let mut escape = Escape::new();
    let mut buffer = [0; 1024];
    let mut ping = tokio::time::interval(PING);
    let mut typing = true;
    let ended = loop {
        // Each arm is cancel-safe: a frame or a key is either taken whole or not at all.
        let message = tokio::select! {
            biased;
            frame = stream.next() => match bytes(frame) {
                Ok(Some(bytes)) => { show(&bytes).await?; continue }
                Ok(None) => break Ok("the console has ended"),
                Err(error) => break Err(error),
            },
            read = stdin.read(&mut buffer), if typing => match read {
                Ok(0) => { typing = false; continue }
                Ok(count) => {
                    let (passed, leave) = escape.filter(&buffer[..count]);
                    if leave {
                        break Ok("left");
                    }
                    Message::binary(passed)
                }
                Err(source) => {
                    break Err(CliError::Terminal { action: "read the terminal", source });
                }
            },
            _ = ping.tick() => Message::Ping(Vec::new().into()),
        };
        if let Err(error) = sink.send(message).await {
            break bytes(Some(Err(error))).map(|_| "");
        }
    };
    eprint!("{newline}");
    drop(raw);
    // The console ends either way; a failing goodbye changes nothing.
    drop(sink.close().await);
    eprintln!("muster: {}", ended?);
    Ok(())
}

async fn watch<S>(socket: S, wanted: &str, timeout_s: u64) -> Result<(), CliError>
where
    S: Stream<Item = Result<Message, SocketError>> + Sink<Message, Error = SocketError> + Unpin,
{
    let mut socket = socket;
    let mut seen = Vec::new();
    let search = async {
        loop {
            let Some(bytes) = bytes(socket.next().await)? else {
                return Err(CliError::NotFound(format!("the console ended without {wanted:?}")));
            };
            show(&bytes).await?;
            if appears(&mut seen, &bytes, wanted) {
                return Ok(());
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(timeout_s), search).await;
    let late = || CliError::Timeout(format!("no {wanted:?} on the console in {timeout_s} s"));
    found.map_err(|_| late())?
}

/// Whether the output so far holds the text in a line that is complete.
fn appears(seen: &mut Vec<u8>, new: &[u8], wanted: &str) -> bool {
    seen.extend_from_slice(new);
    let text = String::from_utf8_lossy(seen);
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let found = complete.contains(wanted);
    let surplus = seen.len().saturating_sub(SEARCHED_BYTES);
    seen.drain(..surplus);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_found_across_pieces_once_its_line_ends() {
        let mut seen = Vec::new();
        assert!(!appears(&mut seen, b"booting\r\nmuster-gu", "guest up"));
        assert!(!appears(&mut seen, b"est up hostname=a", "guest up"));
        assert!(appears(&mut seen, b"\r\n", "guest up"));
        assert!(!appears(&mut Vec::new(), &[b'x'; 3 * SEARCHED_BYTES], "guest up"));
    }
}
