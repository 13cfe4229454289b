//! What a handler receives: the application, the merged parameters and what the preconditions
//! found out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::IF_MATCH;
use hyper::upgrade::OnUpgrade;
use muster_shared::api::Object;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde_json::Value;

use super::error::ApiError;
use super::places::{PeerKey, Place, Share, Shares};
use super::stream::SyncStream;
use crate::app::{App, Caller, Expected};
use crate::budget::Hold;

/// The bytes of a body as they arrive.
pub(crate) type BodyStream = SyncStream<Result<Bytes, warp::Error>>;

/// What `:server_uuid` of a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRef {
    /// The record `default`, where the route allows it.
    Default,
    /// A server.
    Server(ServerUuid),
}

/// A request that matched a route and met its preconditions.
pub(crate) struct Request {
    /// The application.
    pub(crate) app: Arc<App>,
    /// Path, query and body members in one map; path first.
    pub(crate) params: Object,
    /// Its id (the client's verbatim, else a new UUID), and the ticket that it names.
    pub(crate) caller: Caller,
    /// The request's headers.
    pub(crate) headers: HeaderMap,
    /// The method is HEAD: only headers of the answer will be sent.
    pub(crate) head: bool,
    pub(super) server: Option<ServerRef>,
    pub(super) vm: Option<VmUuid>,
    pub(super) body: Option<BodyStream>,
    pub(super) upgrade: Option<OnUpgrade>,
    pub(super) place: Option<Arc<Place>>,
    /// Room for the body and the parameters.
    pub(super) _hold: Hold,
    pub(super) shell: Arc<super::Shell>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl Request {
    /// Who asks, as far as limits go.
    pub(super) fn peer(&self) -> PeerKey {
        self.place.as_ref().and_then(|place| place.peer)
    }

    /// One of the things of which each peer may have so many.
    ///
    /// # Errors
    /// [`ApiError::Unavailable`] when its peer has them all.
    pub(super) fn share(&self, of: &Shares, most: usize, what: &str) -> Result<Share, ApiError> {
        of.take(self.peer(), most).ok_or_else(|| {
            ApiError::Unavailable(format!("this client has {most} {what} under way; try again"))
        })
    }

    /// A parameter; `None` when absent.
    pub(crate) fn param(&self, name: &str) -> Option<&Value> {
        self.params.get(name)
    }

    /// A parameter that is text; `None` when absent or of another type.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.params.text(name)
    }

    /// A parameter that is an object; `None` when absent or of another type.
    pub(crate) fn object(&self, name: &str) -> Option<Object> {
        Some(self.params.get(name)?.as_object()?.clone().into())
    }

    /// A parameter that is `true` or `false`; `None` when absent or of another type.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.params.get(name)?.as_bool()
    }

    /// The parameter `limit` of a list; `None` when absent.
    ///
    /// # Errors
    /// [`ApiError::InvalidParameters`] unless it is from 1 to 1000.
    pub(crate) fn limit(&self) -> Result<Option<usize>, ApiError> {
        match self.text("limit").map(str::parse) {
            None => Ok(None),
            Some(Ok(limit @ 1..=1000)) => Ok(Some(limit)),
            Some(_) => Err(ApiError::invalid("limit", "must be from 1 to 1000")),
        }
    }

    /// A parameter that is a number of seconds, or its text; `None` for anything else, which the
    /// waits of the reference take for no limit.
    pub(crate) fn seconds(&self, name: &str) -> Option<Duration> {
        let seconds = match self.param(name)? {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        // Less than nothing is over at once.
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
    }

    /// The server of a route that declared `:server_uuid` as a server (not `default`).
    ///
    /// # Errors
    /// [`ApiError::InvalidArgument`] as for any text that is no server UUID.
    pub(crate) fn server(&self) -> Result<ServerUuid, ApiError> {
        match self.server {
            Some(ServerRef::Server(server)) => Ok(server),
            _ => Err(invalid_server()),
        }
    }

    /// The server, or `default`, of a route that allows both.
    ///
    /// # Errors
    /// [`ApiError::InvalidArgument`] as for any text that is no server UUID.
    pub(crate) fn server_ref(&self) -> Result<ServerRef, ApiError> {
        self.server.ok_or_else(invalid_server)
    }

    /// The VM of a route with the precondition V.
    ///
    /// # Errors
    /// [`ApiError::InvalidArgument`] as for any text that is no VM UUID.
    pub(crate) fn vm(&self) -> Result<VmUuid, ApiError> {
        self.vm.ok_or_else(invalid_vm)
    }

    /// The versions that `If-Match` names; any, when there is none or it is `*`. Weak ones name
    /// no version (RFC 9110, 13.1.1).
    pub(crate) fn expected(&self) -> Expected {
        let values = self.headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
        let tags: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
        if !self.headers.contains_key(IF_MATCH) || tags.contains(&"*") {
            return Expected::ANY;
        }
        let strong = tags.iter().filter(|tag| !tag.starts_with("W/"));
        Expected::one_of(strong.map(|tag| tag.trim_matches('"').to_owned()).collect())
    }

    /// Takes the body of a route that reads it as a stream.
    ///
    /// # Errors
    /// [`ApiError::Internal`] when the route did not ask for it or it was taken before.
    pub(crate) fn take_body(&mut self) -> Result<BodyStream, ApiError> {
        self.body.take().ok_or_else(|| ApiError::Internal {
            message: "the route does not stream its body".to_owned(),
            source: None,
        })
    }
}

/// `Invalid server_uuid`.
pub(crate) fn invalid_server() -> ApiError {
    ApiError::InvalidArgument("Invalid server_uuid".to_owned())
}

/// `Invalid vm_uuid`.
pub(crate) fn invalid_vm() -> ApiError {
    ApiError::InvalidArgument("Invalid vm_uuid".to_owned())
}
