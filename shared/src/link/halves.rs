//! A websocket as the two halves of a [`Connection`].
//!
//! Both are one object behind a lock that is held while the library is called, and never while
//! something is awaited: neither half keeps the other waiting for longer than a call that does not
//! wait takes.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, WebSocket};

use super::transport::{Transport, polled};
use super::{Connection, Frame, FrameSink, FrameStream, LinkError};
use crate::wire::MAX_FRAME_BYTES;

/// Longest time a close frame may take to be written.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Shared<S> = Arc<Mutex<WebSocket<Transport<S>>>>;

/// A websocket as a connection.
pub(super) fn connection<S>(websocket: WebSocket<Transport<S>>) -> Connection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let received = websocket.get_ref().received();
    let shared = Arc::new(Mutex::new(websocket));
    let sink = WsSink { shared: Arc::clone(&shared), unsent: false };
    let stream = WsStream { shared, received, code: None, ended: false, last: None };
    Connection { sink: Box::new(sink), stream: Box::new(stream) }
}

struct WsSink<S> {
    shared: Shared<S>,
    /// Part of a message waits in the library's buffer.
    unsent: bool,
}

impl<S> fmt::Debug for WsSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WsSink")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsSink<S> {
    async fn transmit(&mut self, message: Message) -> Result<(), WsError> {
        // Of a message whose sending was given up: the buffer has room for so much and no more.
        if self.unsent {
            self.flush().await?;
        }
        self.unsent = true;
        let written = self.shared.lock().write(message);
        // What the transport does not take at once is in the buffer.
        if let Poll::Ready(written) = polled(written) {
            written?;
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), WsError> {
        let flushed = poll_fn(|context| {
            let mut websocket = self.shared.lock();
            websocket.get_ref().written_by(context.waker());
            polled(websocket.flush())
        });
        match flushed.await {
            // The close handshake has come to its end with this.
            Ok(()) | Err(WsError::ConnectionClosed) => {
                self.unsent = false;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl<S: AsyncRead + AsyncWrite + Unpin + Send> FrameSink for WsSink<S> {
    async fn send(&mut self, frame: Frame) -> Result<(), LinkError> {
        let message = match frame {
            Frame::Text(text) => Message::text(text),
            Frame::Binary(bytes) => Message::binary(bytes),
        };
        self.transmit(message).await.map_err(link_error)
    }

    async fn close(&mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: code.into(), reason: reason.to_owned().into() };
        // A peer that can't be told is gone already.
        drop(timeout(CLOSE_TIMEOUT, self.transmit(Message::Close(Some(frame)))).await);
    }
}

struct WsStream<S> {
    shared: Shared<S>,
    received: u64,
    code: Option<u16>,
    ended: bool,
    /// After the peer's close the answer to it still has to go out, which polling does; a client
    /// then waits for the server to close the socket, so not for ever.
    last: Option<Pin<Box<Sleep>>>,
}

impl<S> fmt::Debug for WsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WsStream").field("code", &self.code).field("ended", &self.ended).finish()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsStream<S> {
    /// The next message, for as long as there may be one.
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, WsError>> {
        let read = {
            let mut websocket = self.shared.lock();
            websocket.get_mut().read_by(context.waker());
            let read = websocket.read();
            self.received = websocket.get_ref().received();
            polled(read)
        };
        if read.is_pending()
            && let Some(last) = &mut self.last
            && last.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(WsError::ConnectionClosed));
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> FrameStream for WsStream<S> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, LinkError>> {
        while !self.ended {
            match ready!(self.poll_message(context)) {
                Ok(Message::Text(text)) => {
                    // A copy: what waits to be handled would keep the whole buffer that it was read into.
                    return Poll::Ready(Ok(Some(Frame::Text(text.as_str().to_owned()))));
                }
                Ok(Message::Binary(bytes)) => {
                    return Poll::Ready(Ok(Some(Frame::Binary(bytes))));
                }
                Ok(Message::Close(frame)) => {
                    self.code = Some(frame.map_or(1005, |f| f.code.into()));
                    self.last = Some(Box::pin(sleep(CLOSE_TIMEOUT)));
                }
                // Pings are answered by the library while it is polled.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(WsError::ConnectionClosed | WsError::AlreadyClosed) => self.ended = true,
                Err(_) if self.code.is_some() => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Err(link_error(error)));
                }
            }
        }
        Poll::Ready(Ok(None))
    }

    fn close_code(&self) -> Option<u16> {
        self.code
    }

    fn received(&self) -> u64 {
        self.received
    }
}

fn link_error(error: WsError) -> LinkError {
    match error {
        WsError::Capacity(_) => LinkError::TooLarge { limit: MAX_FRAME_BYTES },
        other => LinkError::Broken(Box::new(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The server's end, with room for a frame of 1,000 bytes, and a peer that reads only what it is told
    /// to: 64 bytes are under way at most.
    fn server() -> (DuplexStream, Connection) {
        let (peer, ours) = duplex(64);
        let config = WebSocketConfig::default().write_buffer_size(0).max_write_buffer_size(1_100);
        let (io, config) = (Transport::new(ours), Some(config));
        (peer, connection(WebSocket::from_raw_socket(io, Role::Server, config)))
    }

    async fn received<const N: usize>(peer: &mut DuplexStream) -> [u8; N] {
        let mut bytes = [0; N];
        timeout(LIMIT, peer.read_exact(&mut bytes)).await.unwrap().unwrap();
        bytes
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_arrives_wakes_who_reads_and_nobody_else() {
        let (mut peer, Connection { mut sink, mut stream }) = server();
        let (sender, reader) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
        let wakers = [&sender, &reader].map(|woken| Waker::from(Arc::clone(woken)));
        let mut send = sink.send(Frame::Text("hi".into()));
        assert!(send.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_ready());
        assert!(stream.poll_next(&mut Context::from_waker(&wakers[1])).is_pending());
        let frame = [0x81, 0x82, 0, 0, 0, 0, b'h', b'o'];
        let mut write = Box::pin(peer.write_all(&frame));
        assert!(write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(sender.0.load(Ordering::Relaxed), 0);
        assert_eq!(reader.0.load(Ordering::Relaxed), 1);
        let next = stream.poll_next(&mut Context::from_waker(&wakers[1]));
        assert!(matches!(next, Poll::Ready(Ok(Some(Frame::Text(text)))) if text == "ho"));
        assert_eq!(stream.received(), 8);
    }

    #[tokio::test]
    async fn a_ping_is_answered_while_a_send_waits_for_room() {
        let (mut peer, Connection { mut sink, mut stream }) = server();
        let send =
            tokio::spawn(async move { sink.send(Frame::Binary(vec![7; 1000].into())).await });
        let next = tokio::spawn(async move { stream.next().await });
        assert_eq!(received(&mut peer).await, [0x82, 126, 3, 0xe8]);
        peer.write_all(&[0x89, 0x81, 0, 0, 0, 0, b'p']).await.unwrap();
        peer.write_all(&[0x81, 0x81, 0, 0, 0, 0, b't']).await.unwrap();
        let text = timeout(LIMIT, next).await.unwrap().unwrap().unwrap();
        assert_eq!(text, Some(Frame::Text("t".into())));
        assert_eq!(received(&mut peer).await, [7; 1000]);
        assert_eq!(received(&mut peer).await, [0x8a, 1, b'p']);
        timeout(LIMIT, send).await.unwrap().unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_answer_to_a_ping_that_waits_for_room_goes_out_although_nothing_is_sent() {
        let (mut peer, Connection { sink: _sink, mut stream }) = server();
        let reading = tokio::spawn(async move { stream.next().await });
        for n in 0..9 {
            let mut ping = [n; 36];
            ping[..6].copy_from_slice(&[0x89, 0x80 | 30, 0, 0, 0, 0]);
            timeout(LIMIT, peer.write_all(&ping)).await.unwrap().unwrap();
        }
        // All were read by now; an answer that was not begun gives way to a later one.
        let mut last = 0;
        while last < 8 {
            let pong: [u8; 32] = received(&mut peer).await;
            assert_eq!(pong[..2], [0x8a, 30]);
            assert!(pong[2..].iter().all(|n| *n == pong[2] && *n >= last));
            last = pong[2];
        }
        reading.abort();
    }

    #[tokio::test]
    async fn a_frame_whose_sending_was_given_up_stays_whole_and_makes_room_for_the_next() {
        let (mut peer, Connection { mut sink, stream: _stream }) = server();
        let mut given_up = sink.send(Frame::Binary(vec![1; 1000].into()));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop(given_up);
        let next = Frame::Binary(vec![2; 1000].into());
        let sent = tokio::spawn(async move { sink.send(next).await });
        for n in [1, 2] {
            assert_eq!(received(&mut peer).await, [0x82, 126, 3, 0xe8]);
            assert_eq!(received(&mut peer).await, [n; 1000]);
        }
        timeout(LIMIT, sent).await.unwrap().unwrap().unwrap();
    }
}
