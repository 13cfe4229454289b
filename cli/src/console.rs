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
First shows what the machine printed lately, since its last start. Others may look at the same
console, and all may type. It stays while the machine is rebooted, and ends when it is stopped.
Type ~. at the start of a line to leave, ~~ for one ~. Examples:
  muster vm console web1
  muster vm console web1 --until 'login:' --timeout 60     for scripts: exit 7 if it never comes")]
pub(crate) struct Args {
    /// Uuid, its beginning, or alias.
    vm: String,

    /// Only watch, and leave after the line in which this text appears, or has just appeared.
    #[arg(long, value_name = "TEXT")]
    until: Option<String>,

    /// Longest wait for that text, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "until")]
    timeout: u64,
}

pub(crate) async fn run(client: &Client, args: Args) -> Result<(), CliError> {
    let vm = pick::vm(client, &args.vm).await?;
    let path = format!("/vms/{}/console", vm.vm.uuid);
    let socket = client.websocket(&path).await?;
    match (socket, args.until) {
        (Socket::Net(socket), None) => attach(*socket).await,
        (Socket::Unix(socket), None) => attach(*socket).await,
        (Socket::Net(socket), Some(text)) => watch(*socket, &text, args.timeout).await,
        (Socket::Unix(socket), Some(text)) => watch(*socket, &text, args.timeout).await,
    }
}

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Output(Vec<u8>),
    /// Something happened to the console.
    Notice(String),
    /// The console has ended, and why.
    End(String),
    Nothing,
}

fn said(frame: Option<Result<Message, SocketError>>) -> Result<Said, CliError> {
    let lost = |source: Box<dyn std::error::Error + Send + Sync>| CliError::Unreachable {
        url: "the console".to_owned(),
        source,
    };
    match frame {
        Some(Ok(Message::Binary(bytes))) => Ok(Said::Output(bytes.to_vec())),
        Some(Ok(Message::Text(text))) => Ok(Said::Notice(text.to_string())),
        Some(Ok(Message::Close(close))) => match close {
            Some(close) if u16::from(close.code) != 1000 => {
                let message = format!("the console was closed: {} ({})", close.reason, close.code);
                Err(CliError::Ended(message))
            }
            Some(close) if !close.reason.is_empty() => Ok(Said::End(close.reason.to_string())),
            _ => Ok(Said::End("the console has ended".to_owned())),
        },
        Some(Ok(_)) => Ok(Said::Nothing),
        Some(Err(error)) => Err(lost(error.into())),
        None => Err(lost("the connection was lost".into())),
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
            frame = stream.next() => match said(frame) {
                Ok(Said::Output(bytes)) => { show(&bytes).await?; continue }
                Ok(Said::Notice(text)) => {
                    eprint!("{newline}muster: {text}{newline}");
                    continue;
                }
                Ok(Said::Nothing) => continue,
                Ok(Said::End(reason)) => break Ok(reason),
                Err(error) => break Err(error),
            },
            read = stdin.read(&mut buffer), if typing => match read {
                Ok(0) => { typing = false; continue }
                Ok(count) => {
                    let (passed, leave) = escape.filter(&buffer[..count]);
                    if leave {
                        break Ok("left".to_owned());
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
            break said(Some(Err(error))).map(|_| String::new());
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
            match said(socket.next().await)? {
                Said::Output(bytes) => {
                    show(&bytes).await?;
                    if appears(&mut seen, &bytes, wanted) {
                        return Ok(());
                    }
                }
                Said::Notice(text) => eprintln!("muster: {text}"),
                Said::End(reason) => {
                    let text = format!("{reason}; {wanted:?} was not on the console");
                    return Err(CliError::Ended(text));
                }
                Said::Nothing => {}
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

    fn closed(code: u16, reason: &'static str) -> Option<Result<Message, SocketError>> {
        use tokio_tungstenite::tungstenite::protocol::CloseFrame;
        Some(Ok(Message::Close(Some(CloseFrame { code: code.into(), reason: reason.into() }))))
    }

    #[test]
    fn an_end_is_told_by_its_reason() {
        let stopped = said(closed(1000, "the machine is stopped")).unwrap();
        assert_eq!(stopped, Said::End("the machine is stopped".to_owned()));
        let gone = said(closed(1011, "the agent is gone")).unwrap_err();
        assert_eq!(gone.exit_code(), 1);
        assert_eq!(gone.to_string(), "the console was closed: the agent is gone (1011)");
        assert_eq!(said(None).unwrap_err().exit_code(), 5);
        let notice = said(Some(Ok(Message::text("the machine runs again")))).unwrap();
        assert_eq!(notice, Said::Notice("the machine runs again".to_owned()));
    }

    #[test]
    fn text_is_found_across_pieces_once_its_line_ends() {
        let mut seen = Vec::new();
        assert!(!appears(&mut seen, b"booting\r\nmuster-gu", "guest up"));
        assert!(!appears(&mut seen, b"est up hostname=a", "guest up"));
        assert!(appears(&mut seen, b"\r\n", "guest up"));
        assert!(!appears(&mut Vec::new(), &[b'x'; 3 * SEARCHED_BYTES], "guest up"));
    }
}
