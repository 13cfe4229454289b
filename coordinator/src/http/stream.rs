//! A byte stream that may be shared: only one task polls it, but what holds it crosses awaits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use parking_lot::Mutex;

/// Makes any stream `Sync`.
pub(crate) struct SyncStream<T>(Mutex<BoxStream<'static, T>>);

impl<T> SyncStream<T> {
    /// Wraps a stream.
    pub(crate) fn new(stream: BoxStream<'static, T>) -> Self {
        Self(Mutex::new(stream))
    }
}

impl<T> fmt::Debug for SyncStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncStream")
    }
}

impl<T> Stream for SyncStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.get_mut().poll_next_unpin(cx)
    }
}
