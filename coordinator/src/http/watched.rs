//! Timeouts of a client connection: a request's head must arrive quickly once it has begun, an
//! idle connection may stay for an hour, and a request that is being answered is left alone. And
//! what it gets at a time: memory for what it sends, and [the thread](super::fair) for what it is sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use hyper::body::{Body, Frame, SizeHint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};
use tokio::time::Sleep;

use super::fair::FairIo;

/// Most bytes that are read at a time. hyper's buffer of a connection grows while reads fill it: to
/// twice this, and not to the size of the largest head.
const READ_BYTES: u64 = 8 * 1024;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For a request's head, from its first byte (or from the connection's start) to its end.
    pub(crate) head: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
}

/// What a connection is doing, shared between its bytes and its requests.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Requests from the end of their head to the end of their answer.
    in_flight: AtomicUsize,
    /// The connection has become a websocket, which keeps its own time.
    upgraded: AtomicBool,
    /// Counts what becomes idle on a listener: in that order they have been idle for longest.
    order: Arc<AtomicU64>,
    /// When its last request ended, or it began.
    since: AtomicU64,
}

impl Activity {
    /// Of a connection that begins.
    pub(crate) fn new(order: &Arc<AtomicU64>) -> Self {
        let since = AtomicU64::new(order.fetch_add(1, Ordering::Relaxed));
        Self { order: Arc::clone(order), since, ..Self::default() }
    }

    /// A request begins; it ends when the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Its place among those on which no request is under way, the one that has been idle for
    /// longest first; `None` while one is, and for a websocket.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        (!self.busy()).then(|| self.since.load(Ordering::Relaxed))
    }

    fn busy(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0 || self.upgraded.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Activity>);

impl InFlight {
    /// The answer has this status; 101 ends all timeouts.
    pub(crate) fn answered(&self, status: StatusCode) {
        if status == StatusCode::SWITCHING_PROTOCOLS {
            self.0.upgraded.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let now = self.0.order.fetch_add(1, Ordering::Relaxed);
        self.0.since.store(now, Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An answer's body; the request is in flight until it is sent or dropped.
#[derive(Debug)]
pub(crate) struct Guarded<B> {
    body: B,
    _guard: InFlight,
}

impl<B> Guarded<B> {
    /// Ties the guard to the body.
    pub(crate) fn new(body: B, guard: InFlight) -> Self {
        Self { body, _guard: guard }
    }
}

impl<B: Body + Unpin> Body for Guarded<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A request is being answered: no deadline.
    Busy,
    /// Nothing of the next request has arrived.
    Idle,
    /// Part of a head has arrived, or the connection is new.
    Head,
    /// It has become a websocket, for good.
    Upgraded,
}

/// A client's byte stream as hyper is given it, and as it gives it back for a websocket.
pub(crate) type ServedIo<S> = TokioIo<WatchedIo<S>>;

/// A client's byte stream whose reads fail with `TimedOut` when the client takes too long.
#[derive(Debug)]
pub(crate) struct WatchedIo<S> {
    inner: Take<FairIo<S>>,
    activity: Arc<Activity>,
    timeouts: Timeouts,
    phase: Phase,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> WatchedIo<S> {
    /// Watches a new connection, whose first head is awaited.
    pub(crate) fn new(inner: S, timeouts: Timeouts, activity: Arc<Activity>) -> Self {
        let deadline = Some(Box::pin(tokio::time::sleep(timeouts.head)));
        let inner = FairIo::new(inner).take(READ_BYTES);
        Self { inner, activity, timeouts, phase: Phase::Head, deadline }
    }

    /// The byte stream alone, for what keeps its own time.
    pub(crate) fn unwatched(self) -> FairIo<S> {
        self.inner.into_inner()
    }

    fn enter(&mut self, phase: Phase) {
        if self.phase == phase {
            return;
        }
        self.phase = phase;
        self.deadline = match phase {
            Phase::Busy | Phase::Upgraded => None,
            Phase::Idle => Some(Box::pin(tokio::time::sleep(self.timeouts.idle))),
            Phase::Head => Some(Box::pin(tokio::time::sleep(self.timeouts.head))),
        };
    }

    /// Follows what the requests of the connection do.
    fn look(&mut self) {
        match self.phase {
            Phase::Upgraded => {}
            _ if self.activity.upgraded.load(Ordering::Relaxed) => self.enter(Phase::Upgraded),
            _ if self.activity.busy() => self.enter(Phase::Busy),
            Phase::Busy => self.enter(Phase::Idle),
            Phase::Idle | Phase::Head => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.look();
        let before = buf.filled().len();
        this.inner.set_limit(READ_BYTES);
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        match read {
            Poll::Ready(Ok(())) if buf.filled().len() > before && this.phase == Phase::Idle => {
                this.enter(Phase::Head);
            }
            Poll::Pending => {
                let expired =
                    this.deadline.as_mut().is_some_and(|d| d.as_mut().poll(cx).is_ready());
                if expired {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            Poll::Ready(_) => {}
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WatchedIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().inner.get_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().inner.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().inner.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().inner.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const TIMEOUTS: Timeouts =
        Timeouts { head: Duration::from_secs(10), idle: Duration::from_hours(1) };

    async fn ends_within(io: &mut WatchedIo<tokio::io::DuplexStream>, limit: Duration) -> bool {
        matches!(
            tokio::time::timeout(limit, io.read_u8()).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut
        )
    }

    #[tokio::test(start_paused = true)]
    async fn only_stalled_heads_are_cut_off_early() {
        let (mut client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        let mut io = WatchedIo::new(server, TIMEOUTS, Arc::clone(&activity));
        // A request that takes two hours is left alone.
        client.write_all(b"a").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'a');
        let request = activity.begin();
        assert!(!ends_within(&mut io, Duration::from_hours(2)).await);
        drop(request);
        // An idle connection may stay for most of an hour, a head that has begun may not.
        assert!(!ends_within(&mut io, Duration::from_mins(59)).await);
        client.write_all(b"b").await.unwrap();
        assert_eq!(io.read_u8().await.unwrap(), b'b');
        assert!(!ends_within(&mut io, Duration::from_secs(9)).await);
        assert!(ends_within(&mut io, Duration::from_secs(2)).await);
    }

    #[tokio::test]
    async fn what_is_large_is_read_in_parts() {
        const SIZE: usize = 1 << 20;
        let (mut client, server) = tokio::io::duplex(2 * SIZE);
        let mut io = WatchedIo::new(server, TIMEOUTS, Arc::new(Activity::default()));
        client.write_all(&vec![1; SIZE]).await.unwrap();
        let mut read = Vec::with_capacity(SIZE);
        assert_eq!(io.read_buf(&mut read).await.unwrap(), 8 * 1024);
        io.read_exact(&mut vec![0; SIZE - 8 * 1024]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_new_connection_is_cut_off_and_a_websocket_is_not() {
        let (_client, server) = tokio::io::duplex(64);
        let mut io = WatchedIo::new(server, TIMEOUTS, Arc::new(Activity::default()));
        assert!(ends_within(&mut io, Duration::from_secs(11)).await);

        let (_client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        let mut io = WatchedIo::new(server, TIMEOUTS, Arc::clone(&activity));
        activity.begin().answered(StatusCode::SWITCHING_PROTOCOLS);
        assert!(!ends_within(&mut io, Duration::from_hours(48)).await);
    }
}
