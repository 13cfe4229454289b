//! Websockets as [`Connection`]s, and the dialer that opens them.
//!
//! Both ends use [`config`]: small read buffers (a coordinator holds one connection per agent)
//! and explicit limits, so that a peer can make this process hold at most one frame.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderValue;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{ClientHandshake, Error as WsError, WebSocket};
use url::Url;

use super::halves::connection;
use super::transport::{Transport, handshake};
use super::{Connection, Dialer, LinkError};
use crate::entropy::SharedEntropy;
use crate::wire::{ENDPOINT_PATH, MAX_FRAME_BYTES, PROTOCOL};

/// Read buffer of an agent's connection, bytes. The library zeroes what is free of it before each read, so
/// the buffers of ten thousand connections keep pushing everything else out of the processor's cache.
/// Heartbeats and most status reports fit; a longer message takes several reads.
const MESSAGE_BUFFER_BYTES: usize = 1024;
/// Read buffer of a byte stream, bytes: there are few of them, and they are read as fast as possible.
const STREAM_BUFFER_BYTES: usize = 4096;
/// Longest time for name resolution, for TCP, and for TLS with the handshake, each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer whose host vanished is noticed by the protocol's own heartbeats long before; these only
/// free the descriptor when nobody sends.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Output that is not taken for so long breaks the connection, instead of being tried for 15 minutes: a
/// host that vanished, or a reader that stopped. One that only pauses, as behind a pager, goes on.
const USER_TIMEOUT: Duration = Duration::from_mins(1);
/// Addresses of a name that are tried in one attempt.
const MAX_ADDRESSES: usize = 16;

/// Limits and buffers of a websocket between agent and coordinator, by its subprotocol.
#[must_use]
pub fn config(protocol: Option<&str>) -> WebSocketConfig {
    let carries_messages = protocol == Some(PROTOCOL);
    let read_buffer = if carries_messages { MESSAGE_BUFFER_BYTES } else { STREAM_BUFFER_BYTES };
    WebSocketConfig::default()
        .read_buffer_size(read_buffer)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MAX_FRAME_BYTES)
        .max_message_size(Some(MAX_FRAME_BYTES))
        .max_frame_size(Some(MAX_FRAME_BYTES))
}

/// The server's end of a websocket whose HTTP upgrade to this subprotocol has been answered; `read` was read
/// of it together with the request.
pub fn accepted<S>(io: S, read: &[u8], protocol: Option<&str>) -> Connection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (config, io) = (Some(config(protocol)), Transport::new(io).after(read.len()));
    connection(WebSocket::from_partially_read(io, read.to_vec(), Role::Server, config))
}

/// Opens websockets: `ws://` plainly, `wss://` over TLS.
pub struct WebsocketDialer {
    entropy: SharedEntropy,
    tls: Option<Arc<rustls::ClientConfig>>,
    bearer: Option<HeaderValue>,
}

impl fmt::Debug for WebsocketDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebsocketDialer").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl WebsocketDialer {
    /// A dialer; `tls` is used for `wss://` (without it: the host's root certificates, no client
    /// certificate).
    #[must_use]
    pub fn new(entropy: SharedEntropy, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { entropy, tls, bearer: None }
    }

    /// Sends `Authorization: Bearer <token>` with every handshake. A token that can't be a header
    /// is refused.
    ///
    /// # Errors
    /// The token holds bytes that no header may hold.
    pub fn with_bearer(mut self, token: &str) -> Result<Self, http::header::InvalidHeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
        value.set_sensitive(true);
        self.bearer = Some(value);
        Ok(self)
    }

    async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, LinkError> {
        let failed = |source| LinkError::Connect { url: url.to_string(), source };
        let port = url
            .port_or_known_default()
            .ok_or_else(|| failed("the URL has neither port nor a known scheme".into()))?;
        let host = url.host_str().ok_or_else(|| failed("the URL has no host".into()))?;
        // An IPv6 literal is written in brackets, which the resolver does not take.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let found = timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((host, port)))
            .await
            .map_err(|_| timed_out(url))?
            .map_err(|e| failed(e.into()))?;
        let mut found: Vec<SocketAddr> = found.take(MAX_ADDRESSES).collect();
        shuffle(&mut found, &self.entropy);
        if found.is_empty() {
            return Err(failed("the name has no address".into()));
        }
        Ok(found)
    }

    async fn handshake(
        &self,
        tcp: TcpStream,
        url: &Url,
        protocol: &str,
    ) -> Result<Connection, LinkError> {
        let failed = |source| LinkError::Connect { url: url.to_string(), source };
        let mut request = url.as_str().into_client_request().map_err(|e| failed(e.into()))?;
        let value = HeaderValue::from_str(protocol).map_err(|e| failed(e.into()))?;
        request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, value);
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        let config = config(Some(protocol));
        if url.scheme() != "wss" {
            return upgraded(tcp, request, config).await.map_err(|e| failed(e.into()));
        }
        let tls = match &self.tls {
            Some(tls) => tls.clone(),
            None => native_tls_config().map_err(failed)?,
        };
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|e| failed(e.into()))?;
        let stream =
            TlsConnector::from(tls).connect(name, tcp).await.map_err(|e| failed(e.into()))?;
        upgraded(stream, request, config).await.map_err(|e| failed(e.into()))
    }

    async fn dial_address(
        &self,
        address: SocketAddr,
        url: &Url,
        protocol: &str,
    ) -> Result<Connection, LinkError> {
        let tcp = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .map_err(|_| timed_out(url))?
            .map_err(|e| LinkError::Connect { url: url.to_string(), source: e.into() })?;
        if let Err(error) = tune(&tcp) {
            tracing::debug!(%error, "cannot tune a socket");
        }
        timeout(CONNECT_TIMEOUT, self.handshake(tcp, url, protocol))
            .await
            .map_err(|_| timed_out(url))?
    }
}

#[async_trait]
impl Dialer for WebsocketDialer {
    async fn dial(&self, url: &Url, protocol: &str) -> Result<Connection, LinkError> {
        let url = with_endpoint_path(url);
        let mut last = None;
        for address in self.addresses(&url).await? {
            match self.dial_address(address, &url, protocol).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| timed_out(&url)))
    }
}

/// The client's end of a websocket, for which it asks with this request.
async fn upgraded<S>(
    io: S,
    request: Request,
    config: WebSocketConfig,
) -> Result<Connection, WsError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let begun = ClientHandshake::start(Transport::new(io), request, Some(config))?;
    let (websocket, _) = handshake(begun).await?;
    Ok(connection(websocket))
}

/// Small latency, and an end to connections whose peer vanished; for accepted sockets as well.
///
/// # Errors
/// The socket refuses an option; it works without.
pub fn tune(tcp: &TcpStream) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = socket2::SockRef::from(tcp);
    let keepalive =
        socket2::TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// The URL with the agent endpoint's path if it has none of its own.
#[must_use]
pub fn with_endpoint_path(url: &Url) -> Url {
    let mut url = url.clone();
    if matches!(url.path(), "" | "/") {
        url.set_path(ENDPOINT_PATH);
    }
    url
}

fn timed_out(url: &Url) -> LinkError {
    let ms = u64::try_from(CONNECT_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    LinkError::Timeout { url: url.to_string(), ms }
}

/// Fisher-Yates; the modulo's bias is of no matter for a handful of addresses.
fn shuffle<T>(items: &mut [T], entropy: &SharedEntropy) {
    for i in (1..items.len()).rev() {
        let range = u64::try_from(i).unwrap_or(u64::MAX).saturating_add(1);
        let j = usize::try_from(entropy.u64() % range).unwrap_or(0);
        items.swap(i, j);
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn native_tls_config() -> Result<Arc<rustls::ClientConfig>, BoxError> {
    let mut roots = rustls::RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err("the host has no root certificates; configure a CA file".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;
    use crate::link::Frame;
    use crate::link::halves::CLOSE_TIMEOUT;
    use bytes::Bytes;
    use tokio::net::TcpListener;

    fn dialer() -> WebsocketDialer {
        WebsocketDialer::new(Arc::new(SeededEntropy::new(1)), None)
    }

    #[expect(clippy::result_large_err, reason = "the callback's type is the library's")]
    /// Accepts one websocket, echoes the wanted subprotocol, reports the path.
    async fn accept(listener: TcpListener) -> (Connection, String) {
        use tokio_tungstenite::tungstenite::ServerHandshake;
        use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
        let (tcp, _) = listener.accept().await.unwrap();
        let mut path = String::new();
        let begun = ServerHandshake::start(
            Transport::new(tcp),
            |request: &Request, mut response: Response| {
                path = request.uri().path().to_owned();
                let wanted = request.headers()[SEC_WEBSOCKET_PROTOCOL].clone();
                response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, wanted);
                Ok(response)
            },
            Some(config(Some(PROTOCOL))),
        );
        let websocket = handshake(begun).await.unwrap();
        (connection(websocket), path)
    }

    async fn connected() -> (Connection, Connection, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let dialer = dialer();
        let (client, (server, path)) = tokio::join!(dialer.dial(&url, PROTOCOL), accept(listener));
        (client.unwrap(), server, path)
    }

    #[tokio::test]
    async fn dials_the_endpoint_and_carries_frames_both_ways() {
        let (mut client, mut server, path) = connected().await;
        assert_eq!(path, "/agent");
        client.sink.send(Frame::Text("a".into())).await.unwrap();
        server.sink.send(Frame::Binary(Bytes::from_static(b"b"))).await.unwrap();
        assert_eq!(server.stream.next().await.unwrap(), Some(Frame::Text("a".into())));
        let got = client.stream.next().await.unwrap();
        assert_eq!(got, Some(Frame::Binary(Bytes::from_static(b"b"))));
    }

    /// A peer whose frame takes minutes is there all that time.
    #[tokio::test]
    async fn bytes_of_a_frame_are_heard_before_it_is_complete() {
        use crate::link::next_heard;
        use std::cell::Cell;
        use tokio::io::AsyncWriteExt as _;
        let (mut peer, ours) = tokio::io::duplex(64);
        let mut connection = accepted(ours, &[], Some(PROTOCOL));
        // Fin and text; masked, 4 bytes of payload; the mask.
        let frame = [0x81, 0x84, 0, 0, 0, 0, b'l', b'a', b't', b'e'];
        let heard = Cell::new(0);
        let mut next = Box::pin(next_heard(&mut *connection.stream, || heard.set(heard.get() + 1)));
        for (sent, byte) in frame.iter().enumerate() {
            assert!(futures_util::poll!(&mut next).is_pending());
            assert_eq!(heard.get(), sent);
            peer.write_all(&[*byte]).await.unwrap();
        }
        assert_eq!(next.await.unwrap(), Some(Frame::Text("late".into())));
        assert_eq!(heard.get(), frame.len());
    }

    #[tokio::test]
    async fn what_was_read_with_the_request_comes_first() {
        use tokio::io::AsyncWriteExt as _;
        let (mut peer, ours) = tokio::io::duplex(64);
        let (start, rest) = ([0x81, 0x83, 0, 0, 0, 0, b'o'], b"ne");
        let mut connection = accepted(ours, &start, Some(PROTOCOL));
        assert_eq!(connection.stream.received(), 7);
        peer.write_all(rest).await.unwrap();
        let frame = connection.stream.next().await.unwrap();
        assert_eq!(frame, Some(Frame::Text("one".into())));
        assert_eq!(connection.stream.received(), 9);
    }

    #[tokio::test]
    async fn a_close_code_reaches_the_peer_even_with_unread_input() {
        let (mut client, server, _) = connected().await;
        client.sink.send(Frame::Text("never read".into())).await.unwrap();
        let reader = async {
            while client.stream.next().await.unwrap().is_some() {}
            client.stream.close_code()
        };
        let (code, ()) = tokio::join!(reader, server.shutdown(4001, "replaced"));
        assert_eq!(code, Some(4001));
    }

    #[tokio::test]
    async fn a_frame_over_the_limit_is_refused() {
        let (mut client, mut server, _) = connected().await;
        let send = client.sink.send(Frame::Text("x".repeat(MAX_FRAME_BYTES + 1)));
        let (_, got) = tokio::join!(timeout(CLOSE_TIMEOUT, send), server.stream.next());
        assert!(matches!(got, Err(LinkError::TooLarge { .. })), "{got:?}");
    }

    #[tokio::test]
    async fn nobody_listening_is_a_connect_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        drop(listener);
        let error = dialer().dial(&url, "p").await.unwrap_err();
        assert!(matches!(error, LinkError::Connect { .. }), "{error:?}");
    }

    #[test]
    fn only_a_url_without_path_gets_the_endpoint() {
        let path = |s: &str| with_endpoint_path(&Url::parse(s).unwrap()).path().to_owned();
        assert_eq!(path("ws://h:1"), "/agent");
        assert_eq!(path("ws://h:1/"), "/agent");
        assert_eq!(path("ws://h:1/x"), "/x");
    }
}
