//! An asynchronous transport as the websocket library wants one: where it would have to wait, it says
//! `WouldBlock`, and wakes who waits later.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::handshake::{HandshakeError, HandshakeRole, MidHandshake};

/// Wakes all that wait until a transport takes more: who sends, and who reads, which answers pings. The
/// transport remembers one waker.
#[derive(Debug, Default)]
struct Writable {
    sender: AtomicWaker,
    reader: AtomicWaker,
}

impl Wake for Writable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.sender.wake();
        self.reader.wake();
    }
}

/// A transport for the library, which counts what arrives.
///
/// What arrives wakes the task that reads, directly: with thousands of connections that are seldom used,
/// each object on that way is memory to wait for.
#[derive(Debug)]
pub(super) struct Transport<S> {
    io: S,
    received: u64,
    reader: Waker,
    writable: Arc<Writable>,
}

impl<S> Transport<S> {
    /// A transport of which nobody has read or written.
    pub(super) fn new(io: S) -> Self {
        Self { io, received: 0, reader: Waker::noop().clone(), writable: Arc::default() }
    }

    /// The same after so many bytes of it were read elsewhere.
    pub(super) fn after(self, read: usize) -> Self {
        Self { received: u64::try_from(read).unwrap_or(u64::MAX), ..self }
    }

    /// Bytes that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Names the task that reads; to be called before each read.
    pub(super) fn read_by(&mut self, reader: &Waker) {
        self.reader.clone_from(reader);
    }

    /// Names the task that sends; to be called before each write or flush of its own.
    pub(super) fn written_by(&self, sender: &Waker) {
        self.writable.sender.register(sender);
    }
}

impl<S: AsyncWrite + Unpin> Transport<S> {
    /// Has the transport wake both tasks when it has room.
    fn write_with<T>(
        &mut self,
        call: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> io::Result<T> {
        self.writable.reader.register(&self.reader);
        let waker = Waker::from(Arc::clone(&self.writable));
        at_once(call(Pin::new(&mut self.io), &mut Context::from_waker(&waker)))
    }
}

impl<S: AsyncRead + Unpin> Read for Transport<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        let mut context = Context::from_waker(&self.reader);
        at_once(Pin::new(&mut self.io).poll_read(&mut context, &mut buffer))?;
        let read = buffer.filled().len();
        self.received += u64::try_from(read).unwrap_or(u64::MAX);
        Ok(read)
    }
}

impl<S: AsyncWrite + Unpin> Write for Transport<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_with(|io, context| io.poll_write(context, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_with(|io, context| io.poll_flush(context))
    }
}

fn at_once<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// What a call of the library came to, as a poll.
pub(super) fn polled<T>(called: Result<T, WsError>) -> Poll<Result<T, WsError>> {
    match called {
        Err(WsError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}

/// Brings a handshake of either role to its end.
pub(super) async fn handshake<R, S>(begun: MidHandshake<R>) -> Result<R::FinalResult, WsError>
where
    R: HandshakeRole<InternalStream = Transport<S>>,
{
    let mut begun = Some(begun);
    poll_fn(|context| {
        let Some(mut round) = begun.take() else { return Poll::Pending };
        round.get_mut().get_mut().read_by(context.waker());
        match round.handshake() {
            Ok(done) => Poll::Ready(Ok(done)),
            Err(HandshakeError::Failure(error)) => Poll::Ready(Err(error)),
            Err(HandshakeError::Interrupted(more)) => {
                begun = Some(more);
                Poll::Pending
            }
        }
    })
    .await
}
