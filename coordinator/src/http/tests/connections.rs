//! Connections: keep-alive, limits, stalled clients, TLS, websockets, the end.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_shared::tls::{self, Identity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use super::{Answer, Api};

const GET_PING: &[u8] = b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n";
const LIMIT: Duration = Duration::from_secs(10);

/// Reads one answer with a content length from a connection that stays open.
async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut read = Vec::new();
    loop {
        let byte = tokio::time::timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap();
        read.push(byte);
        if read.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let mut answer = Answer::parse(&read);
    let length = answer.headers["content-length"].parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    answer.body = body;
    answer
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    matches!(tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await, Ok(Ok(0)))
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let api = Api::start().await;
    let mut stream = TcpStream::connect(&api.address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(GET_PING).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.status, 200);
    }
}

#[tokio::test]
async fn http_2_is_not_served() {
    let api = Api::start().await;
    let mut stream = TcpStream::connect(&api.address).await.unwrap();
    // The preface, and an empty SETTINGS frame.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.unwrap();
    let mut answer = Vec::new();
    // An error is a reset, which refuses as well.
    let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    drop(ended.expect("the connection ends"));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
}

#[tokio::test]
async fn stalled_heads_are_cut_off_and_idle_connections_are_not() {
    let api = Api::with(|config| config.api.head_timeout_ms = 200).await;
    let mut silent = TcpStream::connect(&api.address).await.unwrap();
    let mut stalled = TcpStream::connect(&api.address).await.unwrap();
    stalled.write_all(b"GET /pi").await.unwrap();
    let mut idle = TcpStream::connect(&api.address).await.unwrap();
    idle.write_all(GET_PING).await.unwrap();
    assert_eq!(read_answer(&mut idle).await.status, 200);
    assert!(is_closed(&mut silent).await && is_closed(&mut stalled).await);
    idle.write_all(GET_PING).await.unwrap();
    assert_eq!(read_answer(&mut idle).await.status, 200);
}

#[tokio::test]
async fn the_oldest_idle_connection_makes_room_for_another() {
    let api = Api::with(|config| config.api.connections = 2).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&api.address).await.unwrap();
        stream.write_all(GET_PING).await.unwrap();
        assert_eq!(read_answer(&mut stream).await.status, 200);
        idle.push(stream);
    }
    assert!(is_closed(&mut idle[0]).await);
    for stream in &mut idle[1..] {
        stream.write_all(GET_PING).await.unwrap();
        assert_eq!(read_answer(stream).await.status, 200);
    }
}

/// A connection on which something is under way.
async fn socket(api: &Api) -> impl Sized {
    let mut request = format!("ws://{}/t/socket", api.address).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "echo.v1".parse().unwrap());
    tokio_tungstenite::connect_async(request).await.unwrap().0
}

#[tokio::test]
async fn one_client_can_t_take_all_connections() {
    let api = Api::with(|config| {
        config.api.connections = 4;
        config.api.connections_per_peer = 1;
    })
    .await;
    let _working = socket(&api).await;
    let mut second = TcpStream::connect(&api.address).await.unwrap();
    // An error is a reset, which refuses as well.
    let mut rest = Vec::new();
    drop(tokio::time::timeout(LIMIT, second.read_to_end(&mut rest)).await.expect("it is closed"));
    assert!(rest.is_empty());
}

#[tokio::test]
async fn the_last_connections_are_for_agents() {
    let api = Api::with(|config| config.api.connections = 8).await;
    let mut working = Vec::new();
    for _ in 0..7 {
        working.push(socket(&api).await);
    }
    let mut last = TcpStream::connect(&api.address).await.unwrap();
    last.write_all(GET_PING).await.unwrap();
    let refused = read_answer(&mut last).await;
    refused.expect(503, "ServiceUnavailable");
    assert_eq!(refused.headers["retry-after"], "1");
    drop(last);
    let mut request = format!("ws://{}/agent", api.address).into_client_request().unwrap();
    let protocol = muster_shared::wire::PROTOCOL.parse().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocol);
    let agent = tokio::time::timeout(LIMIT, tokio_tungstenite::connect_async(request)).await;
    agent.expect("an agent need not wait").unwrap();
    drop(working);
}

#[tokio::test]
async fn pages_of_other_sites_get_nothing() {
    let api = Api::start().await;
    let refused = api.send("GET /ping|origin: http://evil.example", b"").await;
    refused.expect(403, "NotAuthorized");
    let refused = api.send("POST /t/echo|sec-fetch-site: cross-site", b"").await;
    refused.expect(403, "NotAuthorized");
    let rebound = b"GET /ping HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    api.raw(rebound).await.expect(421, "NotAuthorized");
    let mut request = format!("ws://{}/agent", api.address).into_client_request().unwrap();
    request.headers_mut().insert("origin", "http://evil.example".parse().unwrap());
    let protocol = muster_shared::wire::PROTOCOL.parse().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocol);
    assert!(tokio_tungstenite::connect_async(request).await.is_err());
}

#[tokio::test]
async fn websockets_count_as_connections() {
    let api = Api::with(|config| config.api.connections = 1).await;
    let mut request = format!("ws://{}/t/socket", api.address).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "echo.v1".parse().unwrap());
    let (socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let mut second = TcpStream::connect(&api.address).await.unwrap();
    second.write_all(GET_PING).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), second.read_u8()).await;
    assert!(early.is_err(), "served beyond the limit");
    drop(socket);
    assert_eq!(read_answer(&mut second).await.status, 200);
}

#[tokio::test]
async fn an_upload_that_asks_first_is_answered() {
    let api = Api::start().await;
    let mut stream = TcpStream::connect(&api.address).await.unwrap();
    let head = "POST /t/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                expect: 100-continue\r\ncontent-length: 7\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{\"a\":1}").await.unwrap();
    assert_eq!(read_answer(&mut stream).await.params()["a"], 1);
}

#[tokio::test]
async fn a_unix_socket_serves_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    // Left by a dead process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let api = Api::with(|config| {
        config.listen = format!("unix:{}", path.display()).parse().unwrap();
    })
    .await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(Answer::parse(&answer).status, 200);
    assert_eq!(api.server.drain().await, 0);
    assert!(!path.exists());
}

/// The API's answer and its websocket over a byte stream: the first frame comes with the request, and the
/// second after the answer.
async fn echoes(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let head = "GET /t/socket HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                sec-websocket-protocol: echo.v1\r\n\r\n";
    let frame = |text: u8| [0x81, 0x81, 0, 0, 0, 0, text];
    stream.write_all(&[head.as_bytes(), &frame(b'a')].concat()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n\x81\x01a") {
        let read = tokio::time::timeout(LIMIT, stream.read_buf(&mut answer)).await;
        assert_ne!(read.expect("an answer").unwrap(), 0, "{}", answer.escape_ascii());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", answer.escape_ascii());
    stream.write_all(&frame(b'b')).await.unwrap();
    let mut echo = [0; 3];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut echo)).await.expect("an echo").unwrap();
    assert_eq!(&echo, b"\x81\x01b");
}

#[tokio::test]
async fn a_frame_may_come_with_the_request_for_a_websocket() {
    let api = Api::start().await;
    echoes(TcpStream::connect(&api.address).await.unwrap()).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let listen = format!("unix:{}", path.display());
    let _api = Api::with(|config| config.listen = listen.parse().unwrap()).await;
    echoes(UnixStream::connect(&path).await.unwrap()).await;
}

#[tokio::test]
async fn waiting_requests_get_503_when_the_drain_ends() {
    let api = Api::with(|config| config.api.drain_ms = 100).await;
    let mut waiting = TcpStream::connect(&api.address).await.unwrap();
    waiting.write_all(b"GET /t/wait HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut idle = TcpStream::connect(&api.address).await.unwrap();
    idle.write_all(GET_PING).await.unwrap();
    read_answer(&mut idle).await;
    let (left, answer) = tokio::join!(api.server.drain(), read_answer(&mut waiting));
    answer.expect(503, "ServiceUnavailable");
    assert_eq!(left, 0);
    assert!(is_closed(&mut idle).await);
    assert!(TcpStream::connect(&api.address).await.is_err(), "still listening");
}

#[tokio::test]
async fn websockets_carry_frames_and_end_with_the_server() {
    let api = Api::with(|config| config.api.drain_ms = 50).await;
    let plain = api.send("GET /t/socket", b"").await;
    plain.expect(426, "UpgradeRequired");
    let mut request = format!("ws://{}/t/socket", api.address).into_client_request().unwrap();
    let refused = tokio_tungstenite::connect_async(request.clone()).await;
    assert!(refused.is_err(), "accepted without the subprotocol");
    let offered = "other, echo.v1".parse().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", offered);
    let (mut socket, response) = tokio_tungstenite::connect_async(request).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "echo.v1");
    assert!(response.headers().contains_key("x-request-id"));
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    assert_eq!(api.server.drain().await, 0);
    socket.send(Message::text("still")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("still"));
    assert_eq!(api.server.close_sockets().await, 1);
    let ended = tokio::time::timeout(LIMIT, socket.next()).await.unwrap();
    assert!(ended.is_none_or(|frame| frame.is_err() || frame.is_ok_and(|f| f.is_close())));
}

/// A CA and a certificate of it, as PEM files.
fn certificates(dir: &std::path::Path) -> (std::path::PathBuf, Identity) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let leaf = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
    let file = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let identity = Identity {
        certificate: file("cert.pem", leaf.pem()),
        key: file("key.pem", key.serialize_pem()),
    };
    (file("ca.pem", ca.pem()), identity)
}

#[tokio::test]
async fn tls_serves_and_may_demand_client_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, identity) = certificates(dir.path());
    let api = Api::with(|config| {
        config.tls.certificate = Some(identity.certificate.clone());
        config.tls.key = Some(identity.key.clone());
        config.tls.client_ca = Some(ca.clone());
        config.tls.client_required = true;
    })
    .await;
    let connect = async |config| {
        let connector = tokio_rustls::TlsConnector::from(config);
        let tcp = TcpStream::connect(&api.address).await?;
        connector.connect("localhost".try_into().unwrap(), tcp).await
    };
    let get = async |config| {
        let mut stream = connect(config).await?;
        stream.write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(Answer::parse(&answer).status)
    };
    let with = get(tls::client(Some(&ca), Some(&identity)).unwrap()).await;
    assert_eq!(with.unwrap(), 200);
    let without = get(tls::client(Some(&ca), None).unwrap()).await;
    assert!(without.is_err(), "served without a client certificate: {without:?}");
    echoes(connect(tls::client(Some(&ca), Some(&identity)).unwrap()).await.unwrap()).await;
}

/// A fleet that comes back at once: whoever the kernel has no room for waits a second or more.
#[tokio::test]
async fn many_may_connect_before_anybody_is_accepted() {
    const MANY: usize = 400;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let most: usize = most.trim().parse().unwrap();
    assert!(most >= MANY, "the kernel allows only {most} connections that wait");
    let bound = super::super::conn::Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = bound.address().unwrap().to_string();
    let mut waiting = Vec::new();
    for number in 0..MANY {
        let connected = tokio::time::timeout(LIMIT, TcpStream::connect(&address)).await;
        let stream = connected.unwrap_or_else(|_| panic!("{number} wait, and no more may"));
        waiting.push(stream.unwrap());
    }
    drop(bound);
}

#[tokio::test]
async fn one_client_takes_half_of_the_event_streams_at_most() {
    let api = Api::start().await;
    let open = async || {
        let mut stream = TcpStream::connect(&api.address).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        (status == *b"HTTP/1.1 200").then_some(stream)
    };
    let mut held = Vec::new();
    while let Some(stream) = open().await {
        held.push(stream);
        assert!(held.len() <= super::super::MAX_EVENT_STREAMS_OF_CLIENT);
    }
    assert_eq!(held.len(), super::super::MAX_EVENT_STREAMS_OF_CLIENT);
    // Another client is on the unix socket or has another address; its share is its own.
    held.pop();
    let again = async {
        loop {
            match open().await {
                Some(_) => return,
                // The end of the other one is noticed in a moment.
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(LIMIT, again).await.expect("what is given back can be taken");
}
