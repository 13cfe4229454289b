//! Conversations with a hypervisor over QMP. Every one has a deadline.

use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::BytesMut;
use futures_util::StreamExt as _;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::Mutex;
use qapi::qmp::{Event, QapiCapabilities, QmpMessageAny};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::CancellationToken;

/// Longest wait for the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message of a hypervisor, bytes. It may be in its guest's hands.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Kept for what a hypervisor says next, bytes. There is a connection for each guest, and most of
/// them are silent.
const READ_BYTES: usize = 1024;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    /// Nobody listens, or the connection broke.
    #[error("talk to the hypervisor")]
    Io(#[from] io::Error),
    /// It refused.
    #[error("{command}: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The hypervisor's words.
        reason: String,
        /// It has no device of that name.
        not_found: bool,
    },
    /// It did not answer in time.
    #[error("no answer to {command} in {} ms", limit.as_millis())]
    Timeout {
        /// The command, or `greeting`.
        command: &'static str,
        /// How long it had.
        limit: Duration,
    },
}

type Answer = Result<Value, qapi::Error>;
/// Who waits for the next answer.
type Asker = Arc<Mutex<Option<oneshot::Sender<Answer>>>>;

/// One connection. Commands may be sent at the same time; they are asked one after the other, since
/// answers are told apart by their order alone.
pub(super) struct Qmp {
    /// Whoever holds it has the turn.
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    asker: Asker,
    /// Cancelled once a question was left without answer, as the next one would get it; and when
    /// nobody reads answers any more.
    given_up: CancellationToken,
}

impl fmt::Debug for Qmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qmp").finish_non_exhaustive()
    }
}

/// What a hypervisor says, line by line.
struct Messages(FramedRead<OwnedReadHalf, LinesCodec>);

impl Messages {
    fn new(reader: OwnedReadHalf) -> Self {
        let codec = LinesCodec::new_with_max_length(MAX_MESSAGE_BYTES);
        Self(FramedRead::with_capacity(reader, codec, READ_BYTES))
    }

    /// The next one; `None` at the end of the connection, which a line without end is as well.
    async fn next<T: DeserializeOwned>(&mut self) -> Option<io::Result<T>> {
        let line = match self.0.next().await? {
            Ok(line) => line,
            Err(LinesCodecError::Io(error)) => return Some(Err(error)),
            Err(error @ LinesCodecError::MaxLineLengthExceeded) => {
                return Some(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
            }
        };
        let unread = self.0.read_buffer_mut();
        if unread.is_empty() {
            // A long answer has made it large.
            *unread = BytesMut::with_capacity(READ_BYTES);
        }
        Some(serde_json::from_str(&line).map_err(io::Error::from))
    }

    /// The next one of a conversation that has only begun.
    async fn expect<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        self.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Where a connection's events arrive, and with them the answers: it has to be read.
pub(super) struct Events {
    messages: Messages,
    asker: Asker,
    given_up: CancellationToken,
}

impl Events {
    /// The next event, or that a message was none; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> Option<io::Result<Event>> {
        loop {
            match self.messages.next().await? {
                Ok(QmpMessageAny::Event(event)) => return Some(Ok(event)),
                Ok(QmpMessageAny::Response(answer)) => {
                    if let Some(asker) = self.asker.lock().take() {
                        // Who asked may have run out of time.
                        drop(asker.send(answer.result()));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // In this order: whoever asks afterwards sees that it is in vain.
        self.given_up.cancel();
        *self.asker.lock() = None;
    }
}

/// A command as it is sent. What has no arguments says so by leaving them out: a hypervisor reads its
/// commands byte by byte, with several system calls for each.
fn line_of<C: qapi::Command>(command: C) -> serde_json::Result<Vec<u8>> {
    let mut message = serde_json::to_value(qapi::Execute::<C>::with_command(command))?;
    if let Some(message) = message.as_object_mut() {
        message.retain(|_, value| value.as_object().is_none_or(|arguments| !arguments.is_empty()));
    }
    let mut line = serde_json::to_vec(&message)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends a command, and a descriptor with its first bytes.
async fn write<C: qapi::Command>(
    writer: &mut OwnedWriteHalf,
    fd: Option<OwnedFd>,
    command: C,
) -> io::Result<()> {
    let line = line_of(command)?;
    let mut rest = line.as_slice();
    if let Some(fd) = fd {
        let stream: &UnixStream = writer.as_ref();
        let send = || {
            let fds = [fd.as_raw_fd()];
            let with = [ControlMessage::ScmRights(&fds)];
            let (to, flags) = (stream.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
            Ok(sendmsg::<()>(to, &[IoSlice::new(&line)], &with, flags, None)?)
        };
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        rest = &line[sent..];
    }
    writer.write_all(rest).await
}

/// A command without arguments whose answer is returned as it is.
pub(super) trait Plain: qapi::qmp::QmpCommand + qapi::Command<Ok = Value> + Default {}

macro_rules! commands {
    ($($name:ident $command:literal)*) => {
        $(
            #[derive(Debug, Default, Serialize)]
            pub(super) struct $name {}

            impl qapi::Command for $name {
                type Ok = Value;
                const NAME: &'static str = $command;
                const ALLOW_OOB: bool = false;
            }

            impl qapi::qmp::QmpCommand for $name {}
            impl Plain for $name {}
        )*
    };
}

commands! {
    Cont "cont"
    InjectNmi "inject-nmi"
    Negotiate "qmp_capabilities"
    PowerDown "system_powerdown"
    QueryBalloon "query-balloon"
    QueryBlock "query-block"
    QueryBlockstats "query-blockstats"
    QueryChardev "query-chardev"
    QueryCpus "query-cpus-fast"
    QueryKvm "query-kvm"
    QueryPci "query-pci"
    QueryStatus "query-status"
    QueryVersion "query-version"
    QueryVnc "query-vnc"
    Quit "quit"
    Reset "system_reset"
    Stop "stop"
}

impl Qmp {
    /// Connects and leaves the negotiation behind.
    pub(super) async fn connect(socket: &Path) -> Result<(Self, Events), QmpError> {
        let connect = async {
            let (reader, mut writer) = UnixStream::connect(socket).await?.into_split();
            let mut messages = Messages::new(reader);
            let QapiCapabilities { .. } = messages.expect().await?;
            write(&mut writer, None, Negotiate {}).await?;
            // Events may come before the answer. The state that they tell of is asked for afterwards.
            let answer = loop {
                if let QmpMessageAny::Response(answer) = messages.expect().await? {
                    break answer;
                }
            };
            answer.result()?;
            Ok::<_, io::Error>((messages, writer))
        };
        let (messages, writer) = match tokio::time::timeout(GREETING_TIMEOUT, connect).await {
            Ok(connected) => connected?,
            Err(_) => {
                let (command, limit) = ("greeting", GREETING_TIMEOUT);
                return Err(QmpError::Timeout { command, limit });
            }
        };
        let (asker, given_up) = (Asker::default(), CancellationToken::new());
        let events = Events { messages, asker: Arc::clone(&asker), given_up: given_up.clone() };
        Ok((Self { writer: tokio::sync::Mutex::new(writer), asker, given_up }, events))
    }

    /// Returns once the connection is of no use any more.
    pub(super) fn given_up(&self) -> CancellationToken {
        self.given_up.clone()
    }

    /// Runs a command.
    pub(super) async fn execute<C>(self: &Arc<Self>) -> Result<Value, QmpError>
    where
        C: Plain + Send + 'static,
    {
        self.send(C::default(), ANSWER_TIMEOUT).await
    }

    /// Runs a command with arguments that may take up to `limit`.
    pub(super) async fn send<C>(
        self: &Arc<Self>,
        command: C,
        limit: Duration,
    ) -> Result<Value, QmpError>
    where
        C: qapi::qmp::QmpCommand + qapi::Command<Ok = Value> + Send + 'static,
    {
        self.send_with(None, command, limit).await
    }

    /// Runs a command that takes a descriptor.
    pub(super) async fn hand_over<C>(
        self: &Arc<Self>,
        fd: OwnedFd,
        command: C,
        limit: Duration,
    ) -> Result<Value, QmpError>
    where
        C: qapi::qmp::QmpCommand + qapi::Command<Ok = Value> + Send + 'static,
    {
        self.send_with(Some(fd), command, limit).await
    }

    async fn send_with<C>(
        self: &Arc<Self>,
        fd: Option<OwnedFd>,
        command: C,
        limit: Duration,
    ) -> Result<Value, QmpError>
    where
        C: qapi::qmp::QmpCommand + qapi::Command<Ok = Value> + Send + 'static,
    {
        let late = || QmpError::Timeout { command: C::NAME, limit };
        let qmp = Arc::clone(self);
        // Who asks may go away. The answer comes all the same, and has to be taken before the next.
        let asked = tokio::spawn(async move { qmp.ask(fd, command, limit).await });
        match tokio::time::timeout(limit, asked).await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) | Err(_) => Err(late()),
            Ok(Err(error)) => Err(QmpError::Io(io::Error::other(error))),
        }
    }

    /// `None`: out of time.
    async fn ask<C>(
        &self,
        fd: Option<OwnedFd>,
        command: C,
        limit: Duration,
    ) -> Option<Result<Value, QmpError>>
    where
        C: qapi::qmp::QmpCommand + qapi::Command<Ok = Value>,
    {
        let mut writer = tokio::time::timeout(limit, self.writer.lock()).await.ok()?;
        let (asker, answer) = oneshot::channel();
        *self.asker.lock() = Some(asker);
        if self.given_up.is_cancelled() {
            return Some(Err(QmpError::Io(io::ErrorKind::ConnectionAborted.into())));
        }
        // Dropped without an answer, also with the runtime.
        let unanswered = self.given_up.clone().drop_guard();
        let asked = async {
            write(&mut writer, fd, command).await?;
            answer.await.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        Some(match tokio::time::timeout(limit, asked).await.ok()? {
            Ok(answer) => {
                unanswered.disarm();
                answer.map_err(|error| {
                    let not_found = error.class == qapi::ErrorClass::DeviceNotFound;
                    let reason = error.to_string();
                    QmpError::Refused { command: C::NAME, reason, not_found }
                })
            }
            Err(error) => Err(QmpError::Io(error)),
        })
    }
}

#[cfg(test)]
mod tests;
