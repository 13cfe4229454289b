//! Many readers of something large do not keep everybody else waiting.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that are written before others have their turn. The runtime counts calls, and one call can
/// write megabytes.
const TURN_BYTES: usize = 64 * 1024;
/// Buffers that are written at once; an answer has two.
const BUFFERS: usize = 8;

/// A client's byte stream that leaves the thread to others after so many bytes.
#[derive(Debug)]
pub(crate) struct FairIo<S> {
    inner: S,
    /// Bytes that were written in this turn.
    written: usize,
}

impl<S> FairIo<S> {
    /// Of a connection that begins.
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, written: 0 }
    }

    /// How many bytes may be written now; pending when it is the turn of others.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        if self.written < TURN_BYTES {
            return Poll::Ready(TURN_BYTES - self.written);
        }
        self.written = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FairIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FairIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let most = buf.len().min(ready!(this.turn(cx)));
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, &buf[..most]))?;
        this.written += written;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut left = ready!(this.turn(cx));
        let mut some = [io::IoSlice::new(&[]); BUFFERS];
        for (slot, buf) in some.iter_mut().zip(bufs) {
            let length = buf.len().min(left);
            *slot = io::IoSlice::new(&buf[..length]);
            left -= length;
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, &some))?;
        this.written += written;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn what_is_large_is_written_in_parts() {
        const SIZE: usize = 1 << 20;
        let (mut client, server) = tokio::io::duplex(2 * SIZE);
        let mut io = FairIo::new(server);
        // Another task of this thread gets its turn between any two parts.
        let turns = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let sent: Vec<u8> = (0..SIZE).map(|n| u8::try_from(n % 251).expect("small")).collect();
        let mut buffers = [&sent[..300], &sent[300..]].map(io::IoSlice::new);
        let mut left = &mut buffers[..];
        while !left.is_empty() {
            let written = io.write_vectored(left).await.unwrap();
            assert!(written <= TURN_BYTES);
            io::IoSlice::advance_slices(&mut left, written);
        }
        assert!(turns.load(Ordering::Relaxed) >= SIZE / TURN_BYTES - 1, "{turns:?}");
        other.abort();
        let mut seen = vec![0; SIZE];
        client.read_exact(&mut seen).await.unwrap();
        assert!(seen == sent);
    }
}
