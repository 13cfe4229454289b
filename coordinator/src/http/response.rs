//! What a handler answers with, before the shell adds its headers and picks the text form.

use std::fmt;
use std::io;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::header::{ETAG, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::error::ApiError;

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
