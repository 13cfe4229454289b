//! The bodies of ordinary requests, read whole: how large one may be, how long it may take, and
//! how much all of them may hold together.

use std::time::Duration;

use async_compression::tokio::bufread::GzipDecoder;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, EXPECT};
use muster_shared::json_bounds::{self, MAX_VALUES};
use tokio::io::AsyncReadExt as _;

use super::error::ApiError;
use super::request::BodyStream;
use crate::budget::{Budget, Hold};

/// What bodies of all requests under way may hold, with what they are parsed into.
const BUDGET_BYTES: u32 = 48 << 20;
/// The first bytes of a body need no budget: ordinary requests are served however much those of
/// others hold.
const FREE_BYTES: usize = 16 * 1024;
/// How long a body may take, beside what its size allows.
const GRACE: Duration = Duration::from_secs(30);
/// A body comes at least this fast, bytes per second.
const LEAST_RATE: u64 = 64 * 1024;
/// How much of a body that was refused is read, and for how long.
const DISCARD_BYTES: usize = 16 * 1024 * 1024;
const DISCARD: Duration = Duration::from_secs(2);

/// What the bodies of a process's requests share.
#[derive(Debug)]
pub(crate) struct Bodies {
    budget: Budget,
}

impl Default for Bodies {
    fn default() -> Self {
        Self::new(BUDGET_BYTES)
    }
}

/// A body, and the room that it holds until its request is answered.
#[derive(Debug)]
pub(crate) struct Held {
    /// What the client sent.
    pub(crate) bytes: Bytes,
    /// Its part of the budget.
    pub(crate) hold: Hold,
}

impl Bodies {
    /// Bodies that may hold so many bytes together.
    pub(crate) fn new(budget: u32) -> Self {
        Self { budget: Budget::new(budget) }
    }

    /// Reads at most `limit` bytes, so that a body without a length is bounded too.
    ///
    /// # Errors
    /// [`ApiError::TooLarge`]; [`ApiError::InvalidContent`] for a body that ends too early or
    /// comes too slowly; [`ApiError::Unavailable`] while others hold too much.
    pub(crate) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: BodyStream,
        limit: usize,
    ) -> Result<Held, ApiError> {
        let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let declared = declared.and_then(|text| text.parse::<u64>().ok());
        let most = u64::try_from(limit).unwrap_or(u64::MAX);
        // What a client declares and does not send holds nothing.
        let size = declared.and_then(|length| usize::try_from(length).ok()).unwrap_or(limit);
        let refused = if declared.is_some_and(|length| length > most) {
            too_large(limit)
        } else {
            let longest = longest(declared.unwrap_or(most));
            match tokio::time::timeout(longest, self.read_all(&mut body, size, limit)).await {
                Ok(Ok(held)) => return Ok(held),
                Ok(Err(refused)) => refused,
                Err(_) => {
                    let seconds = longest.as_secs();
                    let text = format!("the body was not complete after {seconds} s");
                    return Err(ApiError::InvalidContent(text));
                }
            }
        };
        // A client that waits for 100-continue sends nothing, so there is nothing to discard.
        let waits = declared.is_some_and(|length| length > most) && headers.contains_key(EXPECT);
        if !waits {
            discard(body).await;
        }
        Err(refused)
    }

    /// Reads a body that has `size` bytes at most, unless it is larger than it may be.
    async fn read_all(
        &self,
        body: &mut BodyStream,
        size: usize,
        limit: usize,
    ) -> Result<Held, ApiError> {
        let mut read = Vec::new();
        let mut hold = Hold::default();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|_| {
                ApiError::InvalidContent("the body ended before its end".to_owned())
            })?;
            let length = read.len() + chunk.len();
            if length > limit {
                return Err(too_large(limit));
            }
            hold.add(self.grow(&mut read, chunk.len(), size)?);
            read.extend_from_slice(&chunk);
        }
        Ok(Held { bytes: read.into(), hold })
    }

    /// Makes room for `more` bytes in what gets `size` at most, so that the budget counts what is
    /// taken of memory and not only what is used of it.
    fn grow(&self, read: &mut Vec<u8>, more: usize, size: usize) -> Result<Hold, ApiError> {
        let (length, before) = (read.len() + more, read.capacity());
        if length <= before {
            return Ok(Hold::default());
        }
        // Twice as much each time: else what is there would be copied again and again.
        let capacity = (2 * before).max(FREE_BYTES).min(size).max(length);
        let hold = self.room(capacity.saturating_sub(before.max(FREE_BYTES)))?;
        read.reserve_exact(capacity - read.len());
        Ok(hold)
    }

    /// Unpacks a body that its client has packed, as far as the reference unpacks them.
    ///
    /// # Errors
    /// [`ApiError::InvalidContent`]; [`ApiError::TooLarge`] if it unpacks to more than `limit` bytes;
    /// [`ApiError::Unavailable`] while others hold too much.
    pub(crate) async fn unpack(
        &self,
        headers: &HeaderMap,
        packed: Held,
        limit: usize,
    ) -> Result<Held, ApiError> {
        let encoding = headers.get(CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        if packed.bytes.is_empty() || !encoding.is_some_and(|e| e.eq_ignore_ascii_case("gzip")) {
            return Ok(packed);
        }
        let mut decoder = GzipDecoder::new(&packed.bytes[..]);
        let (mut bytes, mut hold) = (Vec::new(), Hold::default());
        loop {
            // One more than allowed, so that it is seen.
            hold.add(self.grow(&mut bytes, 1, limit + 1)?);
            let more = decoder.read_buf(&mut bytes).await;
            if more.map_err(|_| ApiError::InvalidContent("the body is not gzip".to_owned()))? == 0 {
                return Ok(Held { bytes: bytes.into(), hold });
            }
            if bytes.len() > limit {
                return Err(ApiError::TooLarge(format!("the unpacked body is over {limit} bytes")));
            }
        }
    }

    /// Holds what a JSON body will need when it is parsed.
    ///
    /// # Errors
    /// [`ApiError::TooLarge`] for more values than a request may have;
    /// [`ApiError::Unavailable`] while others hold too much.
    pub(crate) fn weigh(&self, json: &[u8], hold: &mut Hold) -> Result<(), ApiError> {
        let values = json_bounds::values(json);
        if values > MAX_VALUES {
            let text = format!("the body has more than {MAX_VALUES} values");
            return Err(ApiError::TooLarge(text));
        }
        let more = json_bounds::weight(json.len(), values).saturating_sub(json.len());
        hold.add(self.room(more.saturating_sub(FREE_BYTES))?);
        Ok(())
    }

    fn room(&self, bytes: usize) -> Result<Hold, ApiError> {
        if bytes == 0 {
            return Ok(Hold::default());
        }
        self.budget.try_take(bytes).ok_or_else(|| {
            let text = "requests under way hold as much memory as they may; try again";
            ApiError::Unavailable(text.to_owned())
        })
    }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::TooLarge(format!("the body is over {limit} bytes"))
}

/// How long a body of so many bytes may take.
fn longest(bytes: u64) -> Duration {
    GRACE + Duration::from_secs(bytes / LEAST_RATE)
}

/// Reads on for a moment after a body is refused: a connection that is closed while the client
/// still sends is reset, and the client may never see the answer.
async fn discard(mut body: BodyStream) {
    let read = async {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(chunk)) = body.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                break;
            }
        }
    };
    // An error means that the client is too slow to be waited for.
    drop(tokio::time::timeout(DISCARD, read).await);
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::super::stream::SyncStream;
    use super::*;

    fn body(chunks: &[usize], ends: bool) -> BodyStream {
        let chunks: Vec<_> = chunks.iter().map(|size| Ok(Bytes::from(vec![b'x'; *size]))).collect();
        let chunks = stream::iter(chunks);
        match ends {
            true => SyncStream::new(chunks.boxed()),
            false => SyncStream::new(chunks.chain(stream::pending()).boxed()),
        }
    }

    async fn read(bodies: &Bodies, chunks: &[usize], ends: bool) -> Result<Held, ApiError> {
        bodies.read(&HeaderMap::new(), body(chunks, ends), 1 << 20).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let bodies = Bodies::default();
        // 30 s, and 16 for a MiB.
        let patience = |seconds| {
            tokio::time::timeout(Duration::from_secs(seconds), read(&bodies, &[10], false))
        };
        assert!(patience(45).await.is_err());
        let refused = patience(47).await.expect("it is given up").unwrap_err();
        assert!(matches!(refused, ApiError::InvalidContent(_)), "{refused:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_large_bodies_wait_for_others() {
        let bodies = Bodies::new(104_000);
        let held = read(&bodies, &[60_000, 50_000], true).await.unwrap();
        let refused = read(&bodies, &[30_000], true).await.unwrap_err();
        assert!(matches!(refused, ApiError::Unavailable(_)), "{refused:?}");
        let free = read(&bodies, &[8_000, 8_000], true).await.unwrap();
        assert_eq!(free.bytes.len(), 16_000);
        drop(held);
        read(&bodies, &[30_000], true).await.unwrap();
    }

    #[tokio::test]
    async fn the_budget_counts_the_memory_that_bodies_take() {
        let chunks = [10_000; 10];
        let bodies = Bodies::new(84_000);
        // A body that says how large it is gets no more than that; any other one gets twice what
        // it had.
        let sized = [(CONTENT_LENGTH, 100_000.into())].into_iter().collect();
        let read_sized = bodies.read(&sized, body(&chunks, true), 1 << 20).await.unwrap();
        assert_eq!(read_sized.bytes.len(), 100_000);
        drop(read_sized);
        let refused = read(&bodies, &chunks, true).await.unwrap_err();
        assert!(matches!(refused, ApiError::Unavailable(_)), "{refused:?}");
        // All of it is given back.
        assert!(bodies.budget.try_take(84_000).is_some());
    }

    #[test]
    fn what_is_parsed_is_weighed() {
        let bodies = Bodies::new(1 << 20);
        let _others = bodies.budget.try_take(1).unwrap();
        let zeros = format!("[{}0]", "0,".repeat(20_000));
        let refused = bodies.weigh(zeros.as_bytes(), &mut Hold::default()).unwrap_err();
        assert!(matches!(refused, ApiError::Unavailable(_)), "{refused:?}");
        let text = format!("\"{}\"", "0,".repeat(20_000));
        bodies.weigh(text.as_bytes(), &mut Hold::default()).unwrap();
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        let refused = bodies.weigh(many.as_bytes(), &mut Hold::default()).unwrap_err();
        assert!(matches!(refused, ApiError::TooLarge(_)), "{refused:?}");
    }
}
