//! `muster vm console`: a guest's serial console over a websocket.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_shared::clock::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Stdin};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::client::{Client, Frames, Keys};
use crate::escape::{self, Escape, Wish};
use crate::output::{fitting, warn};
use crate::terminal::RawMode;
use crate::{CliError, pick};

/// How much of the output is kept to find a text that arrives in pieces.
const SEARCHED_BYTES: usize = 4096;
/// Between signs of life on a quiet console.
const PING: Duration = Duration::from_secs(20);
/// Close code of a coordinator that stops; the guest goes on.
const RESTARTING: u16 = 1012;
/// How long a coordinator may be away before a console is given up.
const AWAY: Duration = Duration::from_secs(120);
/// Pause between two attempts to reach it.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Starts with what the VM printed recently, since its last start. Several people can share a console
and all of them can type. It survives restarts of the VM and of the coordinator, and ends when the
VM is stopped.

Ctrl-] detaches at any time; --escape chooses another key. At the start of a line, ~. detaches too,
~? lists these keys, and ~~ types one ~. Examples:
  muster vm console web1
  muster vm console web1 --escape ^a
  muster vm console web1 --until 'login:' --timeout 60     for scripts: exit 7 if it never comes")]
pub(crate) struct Args {
    /// Uuid, its beginning, or alias.
    vm: String,

    /// Key that leaves at any time: a character, `^X` for Ctrl-X, or `none`.
    #[arg(long, value_name = "KEY", default_value = "^]", value_parser = key)]
    escape: Key,

    /// Do not attach; exit once a line contains TEXT.
    #[arg(long, value_name = "TEXT")]
    until: Option<String>,

    /// Longest wait for that text, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, requires = "until")]
    timeout: u64,
}

/// The key that leaves, if there is one.
#[derive(Clone, Copy, Debug)]
struct Key(Option<u8>);

fn key(text: &str) -> Result<Key, String> {
    escape::parse_key(text).map(Key)
}

pub(crate) async fn run(client: &Client, args: Args) -> Result<(), CliError> {
    let vm = pick::vm(client, &args.vm).await?;
    let path = format!("/vms/{}/console", vm.vm.uuid);
    let socket = client.websocket(&path).await?;
    match args.until {
        None => Attached::new(client, path, args.escape.0)?.run(socket.split()).await,
        Some(text) => watch(socket.split().0, &text, args.timeout).await,
    }
}

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
enum Incoming {
    Output(Vec<u8>),
    /// Something happened to the console.
    Notice(String),
    /// The console has ended, and why.
    End(String),
    /// The coordinator stops or is gone; the guest is not.
    Away,
    Nothing,
}

fn incoming(frame: Option<Result<Message, SocketError>>) -> Result<Incoming, CliError> {
    match frame {
        Some(Ok(Message::Binary(bytes))) => Ok(Incoming::Output(bytes.to_vec())),
        Some(Ok(Message::Text(text))) => Ok(Incoming::Notice(text.to_string())),
        Some(Ok(Message::Close(close))) => match close {
            Some(close) if u16::from(close.code) == RESTARTING => Ok(Incoming::Away),
            Some(close) if u16::from(close.code) != 1000 => {
                let message = format!("the console was closed: {} ({})", close.reason, close.code);
                Err(CliError::Ended(message))
            }
            Some(close) if !close.reason.is_empty() => Ok(Incoming::End(close.reason.to_string())),
            _ => Ok(Incoming::End("the console has ended".to_owned())),
        },
        Some(Ok(_)) => Ok(Incoming::Nothing),
        // A coordinator that was killed says no goodbye.
        Some(Err(_)) | None => Ok(Incoming::Away),
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

/// How a connection ended.
enum Left {
    /// The person left, or the console has ended.
    For(String),
    /// The coordinator did.
    Away,
}

/// A person at a console. The terminal is in raw mode as long as this lives.
struct Attached<'a> {
    client: &'a Client,
    path: String,
    stdin: Stdin,
    /// Nothing more is typed once the input has ended.
    typing: bool,
    key: Option<u8>,
    escape: Escape,
    raw: RawMode,
}

impl<'a> Attached<'a> {
    fn new(client: &'a Client, path: String, key: Option<u8>) -> Result<Self, CliError> {
        warn(&format!("connected; {}", how_to_leave(key)));
        let (stdin, escape) = (tokio::io::stdin(), Escape::new(key));
        Ok(Self { client, path, stdin, typing: true, key, escape, raw: RawMode::enter()? })
    }

    async fn run(mut self, mut socket: (Frames, Keys)) -> Result<(), CliError> {
        let reason = loop {
            let (mut frames, mut keys) = socket;
            let ended = self.talk(&mut frames, &mut keys).await;
            // The console ends either way; a failing goodbye changes nothing.
            drop(keys.close().await);
            match ended? {
                Left::For(reason) => break reason,
                Left::Away => self.say("lost the coordinator, reconnecting"),
            }
            match self.connect_again().await? {
                Some(again) => socket = again,
                None => break "left".to_owned(),
            }
            self.say("connected again");
        };
        eprint!("{}", self.newline());
        drop(self.raw);
        warn(&format!("muster: {reason}"));
        Ok(())
    }

    fn newline(&self) -> &'static str {
        if self.raw.is_raw() { "\r\n" } else { "\n" }
    }

    fn say(&self, text: &str) {
        let newline = self.newline();
        let text = fitting(&format!("muster: {text}")).replace('\n', newline);
        eprint!("{newline}{text}{newline}");
    }

    /// Carries bytes both ways until the connection ends or the person leaves.
    async fn talk(&mut self, frames: &mut Frames, keys: &mut Keys) -> Result<Left, CliError> {
        let mut ping = tokio::time::interval(PING);
        loop {
            // Each arm is cancel-safe: a frame or a key is either taken whole or not at all.
            let message = tokio::select! {
                biased;
                frame = frames.next() => match incoming(frame)? {
                    Incoming::Output(bytes) => { show(&bytes).await?; continue }
                    Incoming::Notice(text) => { self.say(&text); continue }
                    Incoming::Nothing => continue,
                    Incoming::Away => return Ok(Left::Away),
                    Incoming::End(reason) => return Ok(Left::For(reason)),
                },
                typed = self.typed(), if self.typing => match typed? {
                    Some(typed) => Message::binary(typed),
                    None => return Ok(Left::For("left".to_owned())),
                },
                _ = ping.tick() => Message::Ping(Vec::new().into()),
            };
            if keys.send(message).await.is_err() {
                return Ok(Left::Away);
            }
        }
    }

    /// What was typed for the guest; `None`: to leave.
    async fn typed(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let mut buffer = [0; 1024];
        let read = self.stdin.read(&mut buffer).await;
        let count =
            read.map_err(|source| CliError::Terminal { action: "read the terminal", source })?;
        self.typing = count > 0;
        let (passed, wish) = self.escape.filter(&buffer[..count]);
        if wish == Wish::Help {
            self.say(&how_to_leave(self.key));
        }
        Ok((wish != Wish::Leave).then_some(passed))
    }

    /// Connects once there is a coordinator again; `None`: the person left meanwhile.
    async fn connect_again(&mut self) -> Result<Option<(Frames, Keys)>, CliError> {
        let (client, path) = (self.client, self.path.clone());
        let connecting = again(client, &path);
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                biased;
                socket = &mut connecting => return socket.map(Some),
                typed = self.typed(), if self.typing => match typed? {
                    // There is no guest to type to.
                    Some(_) => {}
                    None => return Ok(None),
                },
            }
        }
    }
}

async fn again(client: &Client, path: &str) -> Result<(Frames, Keys), CliError> {
    let clock = SystemClock::new();
    let late = clock.monotonic() + AWAY;
    loop {
        match client.websocket(path).await {
            Ok(socket) => return Ok(socket.split()),
            // Right after its start the VM's agent may not have come yet.
            Err(CliError::Unreachable { .. } | CliError::Server { status: 503, .. })
                if clock.monotonic() < late =>
            {
                tokio::time::sleep(RETRY).await;
            }
            Err(other) => return Err(other),
        }
    }
}

fn how_to_leave(key: Option<u8>) -> String {
    let key = key.map(|key| format!("{} at any time, or ", escape::shown_key(key)));
    let key = key.unwrap_or_default();
    format!("to detach: {key}~. at the start of a line (~? lists the keys, ~~ types one ~)")
}

async fn watch(mut frames: Frames, wanted: &str, timeout_s: u64) -> Result<(), CliError> {
    let mut seen = Vec::new();
    let search = async {
        loop {
            match incoming(frames.next().await)? {
                Incoming::Output(bytes) => {
                    show(&bytes).await?;
                    if appears(&mut seen, &bytes, wanted) {
                        return Ok(());
                    }
                }
                Incoming::Notice(text) => warn(&format!("muster: {text}")),
                Incoming::End(reason) => {
                    let text = format!("{reason}; {wanted:?} was not seen");
                    return Err(CliError::Ended(text));
                }
                Incoming::Away => {
                    let text = format!("lost the coordinator; {wanted:?} was not seen");
                    return Err(CliError::Ended(text));
                }
                Incoming::Nothing => {}
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
        let stopped = incoming(closed(1000, "the machine is stopped")).unwrap();
        assert_eq!(stopped, Incoming::End("the machine is stopped".to_owned()));
        let gone = incoming(closed(1011, "the agent is gone")).unwrap_err();
        assert_eq!(gone.exit_code(), 1);
        assert_eq!(gone.to_string(), "the console was closed: the agent is gone (1011)");
        assert_eq!(incoming(None).unwrap(), Incoming::Away);
        assert_eq!(incoming(closed(1012, "the coordinator is stopping")).unwrap(), Incoming::Away);
        let notice = incoming(Some(Ok(Message::text("the machine runs again")))).unwrap();
        assert_eq!(notice, Incoming::Notice("the machine runs again".to_owned()));
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
