//! Connections inside one process, for tests: same behaviour as a websocket as far as sessions
//! can tell (order, back-pressure, close codes, a dropped half is a broken connection).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use url::Url;

use super::{Connection, Dialer, Frame, FrameSink, FrameStream, LinkError};

/// Frames that may wait in each direction.
const CAPACITY: usize = 64;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 16;

/// Two ends of one connection.
#[must_use]
pub fn pair() -> (Connection, Connection) {
    let (to_b, from_a) = mpsc::channel(CAPACITY);
    let (to_a, from_b) = mpsc::channel(CAPACITY);
    (half(to_b, from_b), half(to_a, from_a))
}

fn half(tx: mpsc::Sender<Item>, rx: mpsc::Receiver<Item>) -> Connection {
    Connection {
        sink: Box::new(Sink { tx, closed: false }),
        stream: Box::new(Stream { rx, code: None }),
    }
}

#[derive(Debug)]
enum Item {
    Frame(Frame),
    Close(u16),
}

#[derive(Debug)]
struct Sink {
    tx: mpsc::Sender<Item>,
    closed: bool,
}

#[async_trait]
impl FrameSink for Sink {
    async fn send(&mut self, frame: Frame) -> Result<(), LinkError> {
        if self.closed {
            return Err(broken("sent after close"));
        }
        self.tx.send(Item::Frame(frame)).await.map_err(|_| broken("the peer is gone"))
    }

    async fn close(&mut self, code: u16, _reason: &str) {
        self.closed = true;
        // A peer that is gone needs no close.
        self.tx.send(Item::Close(code)).await.ok();
    }
}

#[derive(Debug)]
struct Stream {
    rx: mpsc::Receiver<Item>,
    code: Option<u16>,
}

impl FrameStream for Stream {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, LinkError>> {
        if self.code.is_some() {
            return Poll::Ready(Ok(None));
        }
        Poll::Ready(match ready!(self.rx.poll_recv(context)) {
            Some(Item::Frame(frame)) => Ok(Some(frame)),
            Some(Item::Close(code)) => {
                self.code = Some(code);
                Ok(None)
            }
            None => Err(broken("the peer dropped the connection")),
        })
    }

    fn close_code(&self) -> Option<u16> {
        self.code
    }
}

fn broken(text: &str) -> LinkError {
    LinkError::Broken(text.into())
}

/// What a [`MemoryDialer`] dialed.
#[derive(Debug)]
pub struct Dialed {
    /// Where to.
    pub url: Url,
    /// The subprotocol asked for.
    pub protocol: String,
    /// The acceptor's end.
    pub connection: Connection,
}

/// Dials a [`MemoryListener`], whatever the URL.
#[derive(Clone, Debug)]
pub struct MemoryDialer {
    tx: mpsc::Sender<Dialed>,
    attempts: Arc<Mutex<u64>>,
}

/// Accepts what a [`MemoryDialer`] dials. While it is dropped, dialing fails.
#[derive(Debug)]
pub struct MemoryListener {
    rx: mpsc::Receiver<Dialed>,
}

/// A dialer and the listener it reaches.
#[must_use]
pub fn listener() -> (MemoryDialer, MemoryListener) {
    let (tx, rx) = mpsc::channel(BACKLOG);
    (MemoryDialer { tx, attempts: Arc::default() }, MemoryListener { rx })
}

impl MemoryListener {
    /// The next connection; `None` once every dialer is gone.
    pub async fn accept(&mut self) -> Option<Dialed> {
        self.rx.recv().await
    }
}

impl MemoryDialer {
    /// How often something was dialed.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        *self.attempts.lock()
    }
}

#[async_trait]
impl Dialer for MemoryDialer {
    async fn dial(&self, url: &Url, protocol: &str) -> Result<Connection, LinkError> {
        *self.attempts.lock() += 1;
        let (ours, theirs) = pair();
        let dialed = Dialed { url: url.clone(), protocol: protocol.to_owned(), connection: theirs };
        self.tx.send(dialed).await.map_err(|_| LinkError::Connect {
            url: url.to_string(),
            source: "nobody listens".into(),
        })?;
        Ok(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_arrive_in_order_then_the_close_code() {
        let (mut a, mut b) = pair();
        a.sink.send(Frame::Text("1".into())).await.unwrap();
        a.sink.send(Frame::Text("2".into())).await.unwrap();
        a.sink.close(4001, "").await;
        assert_eq!(b.stream.next().await.unwrap(), Some(Frame::Text("1".into())));
        assert_eq!(b.stream.next().await.unwrap(), Some(Frame::Text("2".into())));
        assert_eq!(b.stream.next().await.unwrap(), None);
        assert_eq!(b.stream.close_code(), Some(4001));
    }

    #[tokio::test]
    async fn a_dropped_end_is_a_broken_connection() {
        let (a, mut b) = pair();
        drop(a);
        assert!(b.stream.next().await.is_err());
        assert!(b.sink.send(Frame::Text(String::new())).await.is_err());
    }
}
