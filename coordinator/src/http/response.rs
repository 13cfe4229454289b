//! What a handler answers with, before the shell adds its headers and picks the text form.

use std::fmt;
use std::io;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::header::{ETAG, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use muster_shared::threads::{Threads, compute_aside};
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;

/// Lists of more items are written off the async threads: a thousand servers with all that is known
/// of them are tens of MB.
const INLINE_ITEMS: usize = 32;

/// Writes JSON text.
type Writing = Box<dyn FnOnce() -> serde_json::Result<Vec<u8>> + Send>;

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Response {
    /// HTTP status; `None`: the route's declared success status.
    pub(crate) status: Option<StatusCode>,
    /// Further headers.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Body,
}

/// The body of an answer.
pub(crate) enum Body {
    /// None; also no content type.
    Empty,
    /// Compact JSON; as `text/plain` when the client prefers that.
    Json(Value),
    /// JSON text that needs no tree in between: large answers.
    Encoded(Bytes),
    /// JSON text that is still to be written, see [`Response::written`].
    Unwritten(Writing),
    /// Bytes of the type that the headers name.
    Bytes(Bytes),
    /// A stream of bytes of the type that the headers name.
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Json(_) => "Json",
            Self::Encoded(_) => "Encoded",
            Self::Unwritten(_) => "Unwritten",
            Self::Bytes(_) => "Bytes",
            Self::Stream(_) => "Stream",
        })
    }
}

impl Response {
    fn new(body: Body) -> Self {
        Self { status: None, headers: HeaderMap::new(), body }
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::new(Body::Empty)
    }

    /// A JSON body.
    ///
    /// # Errors
    /// [`ApiError::Internal`] for a value that has no JSON form.
    pub(crate) fn json(value: impl Serialize) -> Result<Self, ApiError> {
        let value = serde_json::to_value(value)
            .map_err(|error| ApiError::internal("cannot encode the answer", error))?;
        Ok(Self::new(Body::Json(value)))
    }

    /// A list, as JSON; a long one is written off the async threads.
    ///
    /// # Errors
    /// [`ApiError::Internal`] for a value that has no JSON form.
    pub(crate) fn list<T: Serialize + Send + 'static>(items: Vec<T>) -> Result<Self, ApiError> {
        if items.len() <= INLINE_ITEMS {
            return Self::json(items);
        }
        Ok(Self::unwritten(items))
    }

    /// JSON that may be long: it is written off the async threads.
    pub(crate) fn unwritten(value: impl Serialize + Send + 'static) -> Self {
        Self::new(Body::Unwritten(Box::new(move || serde_json::to_vec(&value))))
    }

    /// The answer, with all of its text.
    ///
    /// # Errors
    /// [`ApiError::Internal`] for a value that has no JSON form.
    pub(crate) async fn written(self, threads: &dyn Threads) -> Result<Self, ApiError> {
        let Self { status, headers, body } = self;
        let body = match body {
            Body::Unwritten(write) => {
                let text = compute_aside(threads, write).await;
                let failed = |error| ApiError::internal("cannot encode the answer", error);
                Body::Encoded(text.map_err(failed)?.into())
            }
            body => body,
        };
        Ok(Self { status, headers, body })
    }

    /// JSON text.
    pub(crate) fn encoded_as(text: impl Into<Bytes>) -> Self {
        Self::new(Body::Encoded(text.into()))
    }

    /// JSON that is written already.
    pub(crate) fn text(json: Bytes) -> Self {
        Self::new(Body::Encoded(json))
    }

    /// Bytes of a media type.
    pub(crate) fn bytes(content_type: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::new(Body::Bytes(bytes.into()))
            .header(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    /// A stream of `length` bytes of a media type. An error in it breaks the connection, so that
    /// the client can't take a short file for a whole one.
    pub(crate) fn stream(
        content_type: &'static str,
        length: u64,
        stream: BoxStream<'static, io::Result<Bytes>>,
    ) -> Self {
        Self::new(Body::Stream(stream))
            .header(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type))
            .header(http::header::CONTENT_LENGTH, HeaderValue::from(length))
    }

    /// A stream of bytes of a media type that goes on until the client or the server leaves.
    pub(crate) fn endless(
        content_type: &'static str,
        stream: BoxStream<'static, io::Result<Bytes>>,
    ) -> Self {
        Self::new(Body::Stream(stream))
            .header(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type))
    }

    /// Another status than the route's.
    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The version of the record in the body, unquoted.
    pub(crate) fn etag(self, version: impl fmt::Display) -> Self {
        match HeaderValue::try_from(format!("\"{version}\"")) {
            Ok(value) => self.header(ETAG, value),
            // A version that can't stand in a header is no use to a client.
            Err(_) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::threads::OsThreads;

    use super::*;

    #[tokio::test]
    async fn a_long_list_is_written_elsewhere_and_is_the_same() {
        for length in [0, INLINE_ITEMS, INLINE_ITEMS + 1, 1_000] {
            let items: Vec<usize> = (0..length).collect();
            let answer = Response::list(items.clone()).unwrap();
            let long = matches!(answer.body, Body::Unwritten(_));
            assert_eq!(long, length > INLINE_ITEMS, "{length}");
            let text = match answer.written(&OsThreads).await.unwrap().body {
                Body::Json(value) => value.to_string().into(),
                Body::Encoded(text) => text,
                other => panic!("{other:?}"),
            };
            assert_eq!(serde_json::from_slice::<Vec<usize>>(&text).unwrap(), items);
        }
    }
}
