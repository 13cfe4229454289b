//! The door to the network between agent and coordinator: message connections.
//!
//! Production uses websockets ([`websocket`]); a simulation hands out its own connections.

mod halves;
pub mod memory;
mod transport;
pub mod websocket;

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use url::Url;

/// One message of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A protocol message, see [`crate::wire`].
    Text(String),
    /// Bytes of a stream.
    Binary(Bytes),
}

/// The sending half. Dropping it without [`FrameSink::close`] is a lost connection to the peer.
#[async_trait]
pub trait FrameSink: fmt::Debug + Send {
    /// Sends one frame; returns when the transport has taken it.
    ///
    /// # Errors
    /// [`LinkError`]: the connection is unusable from now on.
    async fn send(&mut self, frame: Frame) -> Result<(), LinkError>;

    /// Closes the connection with a websocket close code (1000 normal, 1001 going away,
    /// 1012 restart, 4001 replaced by a newer connection).
    async fn close(&mut self, code: u16, reason: &str);
}

/// The receiving half.
pub trait FrameStream: fmt::Debug + Send {
    /// The next frame; `Ok(None)` after an orderly close.
    ///
    /// # Errors
    /// [`LinkError`]: the connection is unusable from now on.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, LinkError>>;

    /// The close code the peer gave, once the stream has ended.
    fn close_code(&self) -> Option<u16>;

    /// How many bytes have arrived, also those of a frame that is not complete yet; always 0 where
    /// frames arrive as a whole.
    fn received(&self) -> u64 {
        0
    }
}

impl dyn FrameStream + '_ {
    /// The next frame, see [`FrameStream::poll_next`]. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError`]: the connection is unusable from now on.
    pub async fn next(&mut self) -> Result<Option<Frame>, LinkError> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

/// As [`FrameStream::next`], and calls `heard` for every sign of life on the way: bytes are one
/// although the frame that they belong to is not complete. Cancel-safe.
///
/// # Errors
/// As [`FrameStream::next`].
pub async fn next_heard(
    stream: &mut dyn FrameStream,
    mut heard: impl FnMut(),
) -> Result<Option<Frame>, LinkError> {
    let mut seen = stream.received();
    // Whatever arrives wakes the task that waits for the frame, so no timer is needed.
    poll_fn(|context| {
        let polled = stream.poll_next(context);
        let now = stream.received();
        if now != seen || matches!(polled, Poll::Ready(Ok(Some(_)))) {
            seen = now;
            heard();
        }
        polled
    })
    .await
}

/// Both halves of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Sends.
    pub sink: Box<dyn FrameSink>,
    /// Receives.
    pub stream: Box<dyn FrameStream>,
}

/// How long [`Connection::shutdown`] waits for the peer's own close.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

impl Connection {
    /// Closes the connection in order: sends the close code, then reads until the peer has closed
    /// too (at most a second). Without that wait unread input would turn the close into a reset,
    /// and the peer might never see the code.
    pub async fn shutdown(mut self, code: u16, reason: &str) {
        let close = async {
            self.sink.close(code, reason).await;
            while matches!(self.stream.next().await, Ok(Some(_))) {}
        };
        // The peer has had its chance; dropping both halves ends the transport.
        drop(tokio::time::timeout(CLOSE_WAIT, close).await);
    }
}

/// Opens connections.
#[async_trait]
pub trait Dialer: fmt::Debug + Send + Sync + 'static {
    /// Resolves the URL's name anew, connects and does the websocket handshake with the
    /// subprotocol `protocol`.
    ///
    /// # Errors
    /// [`LinkError`] with the cause; the caller backs off.
    async fn dial(&self, url: &Url, protocol: &str) -> Result<Connection, LinkError>;
}

/// A connection failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Name resolution, TCP, TLS or the handshake failed.
    #[error("connect to {url}")]
    Connect {
        /// Where to.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An established connection broke.
    #[error("the connection broke")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The peer sent a frame over the limit.
    #[error("a frame over {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// No answer in time.
    #[error("no answer from {url} in {ms} ms")]
    Timeout {
        /// Where to.
        url: String,
        /// The deadline, ms.
        ms: u64,
    },
}
