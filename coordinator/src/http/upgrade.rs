//! Turns a request into a websocket.

use std::future::Future;

use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::upgrade::{Parts, Upgraded};
use hyper_util::rt::TokioIo;
use muster_shared::link::Connection;
use muster_shared::link::websocket::accepted;
use muster_shared::wire::Code;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::watched::ServedIo;

/// The only websocket version there is.
const VERSION: &str = "13";

impl Request {
    /// Whether [`Request::into_websocket`] would accept the handshake.
    ///
    /// # Errors
    /// As [`Request::into_websocket`].
    pub(crate) fn check_websocket(&self, protocol: Option<&str>) -> Result<(), ApiError> {
        handshake(&self.headers, protocol).map(drop)
    }

    /// Answers 101 and runs `serve` with the connection once it is a websocket. A `protocol` must
    /// be among those that the client offers.
    ///
    /// The websocket outlives a drain; it is dropped when the application has stopped.
    ///
    /// # Errors
    /// 426 UpgradeRequired for a plain request; 400 InvalidHeader for a bad handshake.
    pub(crate) fn into_websocket<F, Fut>(
        self,
        protocol: Option<&'static str>,
        serve: F,
    ) -> Result<Response, ApiError>
    where
        F: FnOnce(Connection) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let accept = handshake(&self.headers, protocol)?;
        let upgrade = self.upgrade.ok_or_else(|| bad("the connection can't be upgraded"))?;
        let kill = self.shell.kill.clone();
        let req_id = self.caller.req_id;
        let place = self.place;
        self.shell.sockets.spawn(async move {
            let work = async move {
                match upgrade.await {
                    Ok(upgraded) => serve(connection(upgraded, protocol)).await,
                    Err(error) => tracing::debug!(%error, req_id, "upgrade failed"),
                }
            };
            tokio::select! {
                biased;
                () = kill.cancelled() => {}
                () = work => {}
            }
            drop(place);
        });
        let mut response = Response::empty()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, HeaderValue::from_static("Upgrade"))
            .header(UPGRADE, HeaderValue::from_static("websocket"))
            .header(SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(protocol) = protocol {
            let value = HeaderValue::from_static(protocol);
            response = response.header(SEC_WEBSOCKET_PROTOCOL, value);
        }
        Ok(response)
    }
}

/// The websocket that a connection of HTTP has become. It reads the socket itself: with thousands of
/// connections, each layer in between is memory that every small frame waits for.
fn connection(upgraded: Upgraded, protocol: Option<&str>) -> Connection {
    over::<TcpStream>(upgraded, protocol)
        .or_else(|upgraded| over::<TlsStream<TcpStream>>(upgraded, protocol))
        .unwrap_or_else(|upgraded| accepted(TokioIo::new(upgraded), &[], protocol))
}

/// The same, or what it is if that is not over such a socket.
fn over<S>(upgraded: Upgraded, protocol: Option<&str>) -> Result<Connection, Upgraded>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Parts { io, read_buf, .. } = upgraded.downcast::<ServedIo<S>>()?;
    Ok(accepted(io.into_inner().unwatched(), &read_buf, protocol))
}

/// Checks the handshake's headers; the value of `Sec-WebSocket-Accept`.
fn handshake(headers: &HeaderMap, protocol: Option<&str>) -> Result<HeaderValue, ApiError> {
    if !lists(headers, &UPGRADE, "websocket") || !lists(headers, &CONNECTION, "upgrade") {
        return Err(upgrade_required("this is a websocket: the request must ask for an upgrade"));
    }
    if !lists(headers, &SEC_WEBSOCKET_VERSION, VERSION) {
        return Err(upgrade_required("the websocket version must be 13"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or_else(|| bad("no Sec-WebSocket-Key"))?;
    if let Some(protocol) = protocol
        && !lists(headers, &SEC_WEBSOCKET_PROTOCOL, protocol)
    {
        return Err(bad(&format!("the subprotocol {protocol} is not offered")));
    }
    HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|error| ApiError::internal("cannot answer the handshake", error))
}

/// Whether a comma-separated header names a token, ignoring case.
fn lists(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|item| item.trim().eq_ignore_ascii_case(token))
}

fn bad(message: &str) -> ApiError {
    ApiError::coded(StatusCode::BAD_REQUEST, Code::InvalidHeader, message)
}

fn upgrade_required(message: &str) -> ApiError {
    ApiError::coded(StatusCode::UPGRADE_REQUIRED, Code::UpgradeRequired, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    const GOOD: [(&str, &str); 5] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "other, muster.v1"),
    ];

    #[test]
    fn accepts_the_example_of_the_rfc() {
        let accept = handshake(&headers(&GOOD), Some("muster.v1")).unwrap();
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn refuses_handshakes_with_a_part_missing() {
        for (missing, _) in GOOD {
            let rest: Vec<_> = GOOD.into_iter().filter(|(name, _)| *name != missing).collect();
            assert!(handshake(&headers(&rest), Some("muster.v1")).is_err(), "{missing}");
        }
    }
}
