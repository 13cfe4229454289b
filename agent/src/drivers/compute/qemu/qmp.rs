//! Conversations with a hypervisor over QMP. Every one has a deadline.

use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use parking_lot::Mutex;
use qapi::futures::{QapiEvents, QapiService, QmpStreamTokio};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::sync::CancellationToken;

/// Longest wait for the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    /// Nobody listens, or the connection broke.
    #[error("talk to the hypervisor")]
    Io(#[from] std::io::Error),
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

/// Longest message of a hypervisor, bytes. It may be in its guest's hands.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

type Reader = QmpStreamTokio<Bounded<OwnedReadHalf>>;
type Writer = QmpStreamTokio<Sender>;
/// A descriptor that goes with the next bytes.
type Hand = Arc<Mutex<Option<OwnedFd>>>;

/// Where a connection's events arrive, and with them the answers: it has to be read.
pub(super) type Events = QapiEvents<Reader>;

/// One connection. Commands may be sent at the same time; they are asked one after the other, since
/// answers are told apart by their order alone.
pub(super) struct Qmp {
    service: QapiService<Writer>,
    turn: tokio::sync::Mutex<()>,
    hand: Hand,
    /// Cancelled once a question was left without answer: the next one would get it.
    given_up: CancellationToken,
}

impl fmt::Debug for Qmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qmp").finish_non_exhaustive()
    }
}

/// Ends a stream on which one line grows too long.
pub(super) struct Bounded<R> {
    reader: R,
    line_bytes: usize,
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
        let fresh = &buffer.filled()[before..];
        self.line_bytes = match fresh.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => fresh.len() - end - 1,
            None => self.line_bytes + fresh.len(),
        };
        if self.line_bytes > MAX_MESSAGE_BYTES {
            let text = format!("a message of over {MAX_MESSAGE_BYTES} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        Poll::Ready(Ok(()))
    }
}

/// Sends bytes, and a descriptor with them.
pub(super) struct Sender {
    stream: OwnedWriteHalf,
    hand: Hand,
}

impl Sender {
    /// Sends what there is room for, and with it what is in the hand.
    fn poll_hand_over(
        &self,
        cx: &mut Context<'_>,
        hand: &mut Option<OwnedFd>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream: &UnixStream = self.stream.as_ref();
        loop {
            ready!(stream.poll_write_ready(cx))?;
            let sent = stream.try_io(Interest::WRITABLE, || {
                let fds: Vec<_> = hand.iter().map(|fd| fd.as_raw_fd()).collect();
                let with = [ControlMessage::ScmRights(&fds)];
                let (to, flags) = (stream.as_raw_fd(), MsgFlags::MSG_NOSIGNAL);
                sendmsg::<()>(to, &[IoSlice::new(buffer)], &with, flags, None)
                    .map_err(io::Error::from)
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    *hand = None;
                    return Poll::Ready(sent);
                }
            }
        }
    }
}

impl AsyncWrite for Sender {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let hand = Arc::clone(&self.hand);
        let mut hand = hand.lock();
        match *hand {
            None => Pin::new(&mut self.stream).poll_write(cx, buffer),
            Some(_) => self.poll_hand_over(cx, &mut hand, buffer),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
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
        let hand = Hand::default();
        let connect = async {
            let (reader, stream) = UnixStream::connect(socket).await?.into_split();
            let writer = Sender { stream, hand: Arc::clone(&hand) };
            let reader = Bounded { reader, line_bytes: 0 };
            QmpStreamTokio::open_split(reader, writer).await?.negotiate().await
        };
        match tokio::time::timeout(GREETING_TIMEOUT, connect).await {
            Ok(stream) => {
                let (service, events) = stream?.into_parts();
                let (turn, given_up) = (tokio::sync::Mutex::default(), CancellationToken::new());
                Ok((Self { service, turn, hand, given_up }, events))
            }
            Err(_) => Err(QmpError::Timeout { command: "greeting", limit: GREETING_TIMEOUT }),
        }
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
        let _turn = tokio::time::timeout(limit, self.turn.lock()).await.ok()?;
        if self.given_up.is_cancelled() {
            return Some(Err(QmpError::Io(io::ErrorKind::ConnectionAborted.into())));
        }
        // Dropped without an answer, also with the runtime.
        let unanswered = self.given_up.clone().drop_guard();
        *self.hand.lock() = fd;
        let answer = tokio::time::timeout(limit, self.service.execute(command)).await.ok()?;
        // After an error of the connection the question still waits in it, and the next one would be
        // taken for its double.
        if !matches!(answer, Err(qapi::ExecuteError::Io(_))) {
            unanswered.disarm();
        }
        Some(match answer {
            Ok(value) => Ok(value),
            Err(qapi::ExecuteError::Io(error)) => Err(QmpError::Io(error)),
            Err(qapi::ExecuteError::Qapi(error)) => {
                let not_found = error.class == qapi::ErrorClass::DeviceNotFound;
                let reason = error.to_string();
                Err(QmpError::Refused { command: C::NAME, reason, not_found })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7},
        "package": ""}, "capabilities": ["oob"]}}"#;

    /// Answers each command with its name, but `stop` not at all.
    async fn answer(stream: UnixStream) {
        let (reader, mut writer) = stream.into_split();
        writer.write_all(GREETING.replace('\n', " ").as_bytes()).await.unwrap();
        writer.write_all(b"\n").await.unwrap();
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let command: Value = serde_json::from_str(&line).unwrap();
            let answer = match command["execute"].as_str().unwrap() {
                "stop" => continue,
                "qmp_capabilities" => serde_json::json!({ "return": {} }),
                name => serde_json::json!({ "return": { "asked": name } }),
            };
            writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
    }

    async fn hypervisor(listener: UnixListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            drop(tokio::spawn(answer(stream)));
        }
    }

    async fn connected(socket: &Path) -> Arc<Qmp> {
        let (qmp, mut events) = Qmp::connect(socket).await.unwrap();
        drop(tokio::spawn(async move { while events.next().await.is_some() {} }));
        Arc::new(qmp)
    }

    #[tokio::test]
    async fn no_question_gets_the_answer_to_another() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let server = tokio::spawn(hypervisor(UnixListener::bind(&socket).unwrap()));
        let qmp = connected(&socket).await;
        // Whoever asked this does not wait for the answer.
        let mut gone = Box::pin(qmp.execute::<QueryKvm>());
        assert!(futures_util::poll!(gone.as_mut()).is_pending());
        drop(gone);
        assert_eq!(qmp.execute::<QueryStatus>().await.unwrap()["asked"], "query-status");

        // Nobody knows which of the next answers belongs to this one.
        let soon = Duration::from_millis(200);
        let (silent, next) = tokio::join!(qmp.send(Stop {}, soon), qmp.execute::<QueryStatus>());
        assert!(matches!(silent, Err(QmpError::Timeout { command: "stop", .. })), "{silent:?}");
        assert!(matches!(next, Err(QmpError::Io(_))), "{next:?}");
        assert!(qmp.given_up().is_cancelled());
        drop(qmp);
        let qmp = connected(&socket).await;
        assert_eq!(qmp.execute::<QueryStatus>().await.unwrap()["asked"], "query-status");
        server.abort();
    }

    #[tokio::test]
    async fn a_connection_that_broke_is_asked_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            stream.write_all(GREETING.replace('\n', " ").as_bytes()).await.unwrap();
            stream.write_all(b"\n").await.unwrap();
            let mut lines = BufReader::new(&mut stream).lines();
            lines.next_line().await.unwrap();
            stream.write_all(b"{\"return\": {}}\n").await.unwrap();
        });
        // Nobody reads the events, as when the process was killed a moment ago.
        let (qmp, events) = Qmp::connect(&socket).await.unwrap();
        let qmp = Arc::new(qmp);
        server.await.unwrap();
        for _ in 0..2 {
            let error = qmp.execute::<QueryStatus>().await.unwrap_err();
            let QmpError::Io(error) = error else { panic!("{error:?}") };
            assert_ne!(error.kind(), io::ErrorKind::Other, "{error}");
            assert!(qmp.given_up().is_cancelled());
        }
        drop(events);
    }

    /// Answers the greeting's question, and takes a descriptor with the next bytes.
    async fn take(stream: UnixStream) -> OwnedFd {
        let greeting = format!("{}\n", GREETING.replace('\n', " "));
        let mut stream = stream;
        stream.write_all(greeting.as_bytes()).await.unwrap();
        let mut asked = [0; 1024];
        let read = stream.read(&mut asked).await.unwrap();
        assert!(asked[..read].ends_with(b"\n"));
        stream.write_all(b"{\"return\": {}}\n").await.unwrap();
        loop {
            stream.readable().await.unwrap();
            let mut space = nix::cmsg_space!(std::os::fd::RawFd);
            let received = stream.try_io(Interest::READABLE, || {
                let mut buffers = [io::IoSliceMut::new(&mut asked)];
                let flags = MsgFlags::empty();
                let got = recvmsg::<()>(stream.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
                let rights = got.cmsgs()?.find_map(|message| match message {
                    ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                    _ => None,
                });
                Ok(rights)
            });
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    let fd = received.unwrap().expect("a descriptor");
                    let path = format!("/proc/self/fd/{fd}");
                    let file = std::fs::File::options().write(true).open(path).unwrap();
                    nix::unistd::close(fd).unwrap();
                    return file.into();
                }
            }
        }
    }

    /// The hypervisor opens no files any more once its guest runs.
    #[tokio::test]
    async fn a_descriptor_is_handed_over_with_the_command_that_takes_it() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(async move { take(listener.accept().await.unwrap().0).await });
        let qmp = connected(&socket).await;
        let (mut reader, writer) = io::pipe().unwrap();
        let soon = Duration::from_secs(5);
        qmp.hand_over(writer.into(), Stop {}, soon).await.unwrap_err();
        let taken = server.await.unwrap();
        io::Write::write_all(&mut std::fs::File::from(taken), b"from there").unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "from there", "and nobody else has it open");
    }

    /// Reads what a hypervisor sends that repeats `byte` without end.
    async fn read_all(byte: u8) -> io::Result<usize> {
        let endless = tokio::io::repeat(byte).take(2 * MAX_MESSAGE_BYTES as u64);
        let mut bounded = Bounded { reader: endless, line_bytes: 0 };
        let (mut buffer, mut total) = (vec![0; 64 * 1024], 0);
        loop {
            match bounded.read(&mut buffer).await? {
                0 => return Ok(total),
                read => total += read,
            }
        }
    }

    /// A hypervisor that was taken over must not fill the agent's memory.
    #[tokio::test]
    async fn a_message_without_end_ends_the_connection() {
        let error = read_all(b'x').await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_all(b'\n').await.unwrap(), 2 * MAX_MESSAGE_BYTES);
    }
}
