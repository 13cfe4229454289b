//! The accept loop: connections within [limits](super::places), TLS under a deadline, timeouts for clients that
//! stall in their headers, upgrades, and an orderly end.
//!
//! warp's own server has no TLS, no connection limit and no header timeout, so hyper is driven
//! directly around `warp::service`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use muster_shared::config::ListenAddress;
use muster_shared::tls::certificate_name;
use muster_shared::unix_socket::{self, SocketFile};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;
use warp::filters::BoxedFilter;

use super::dispatch::Peer;
use super::filters::give_path;
use super::places::{PlaceLimits, Places, peer_key};
use super::watched::{Activity, Guarded, ServedIo, Timeouts, WatchedIo};

/// Longest pause after a failed accept, e.g. for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time for a TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest request head, bytes; a connection's read buffer never grows beyond.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Connections that the kernel completes while nobody has accepted them: a fleet that comes back at
/// once must not wait for repeated SYNs.
const LISTEN_BACKLOG: u32 = 4096;
/// The owner and the group may use the API on a unix socket.
const SOCKET_MODE: u32 = 0o660;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnLimits {
    /// Most connections at a time, websockets included; more wait in the kernel's queue.
    pub(crate) connections: PlaceLimits,
    /// What stalled and idle clients get.
    pub(crate) timeouts: Timeouts,
}

/// A bound listener.
#[derive(Debug)]
pub(crate) enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket; its file is removed at the end.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Binds the address, as [`unix_socket::bind`] does with a unix socket.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                let socket = match address {
                    SocketAddr::V4(_) => TcpSocket::new_v4()?,
                    SocketAddr::V6(_) => TcpSocket::new_v6()?,
                };
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                socket.listen(LISTEN_BACKLOG).map(Self::Tcp)
            }
            ListenAddress::Unix(path) => {
                let (listener, file) = unix_socket::bind(path, SOCKET_MODE).await?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The address as it is known now: with the port that port 0 became.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(_, file) => Ok(ListenAddress::Unix(file.path().to_owned())),
        }
    }
}

/// What connections of a listener are served with.
#[derive(Clone)]
pub(crate) struct Serving {
    /// The API.
    pub(crate) filter: BoxedFilter<(warp::reply::Response,)>,
    /// TLS, unless plaintext.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Limits.
    pub(crate) limits: ConnLimits,
    /// Ends accepting; idle connections close, others after their request.
    pub(crate) stop: CancellationToken,
    /// Ends all connections at once.
    pub(crate) kill: CancellationToken,
    /// Knows every connection.
    pub(crate) tracker: TaskTracker,
}

/// Accepts until `stop`.
pub(crate) async fn accept_loop(listener: Listener, serving: Serving) {
    let serving = Arc::new(serving);
    let places = Places::new(serving.limits.connections);
    loop {
        let accepted = tokio::select! {
            biased;
            () = serving.stop.cancelled() => return,
            accepted = accept(&listener) => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let activity = Arc::new(Activity::new(&places.order));
        let peer = address.map(|address| peer_key(address.ip()));
        let place = tokio::select! {
            biased;
            () = serving.stop.cancelled() => return,
            place = places.enter(peer, &activity) => place,
        };
        let Some(place) = place else {
            tracing::debug!(?address, "a peer has as many connections as it may");
            continue;
        };
        let serving_one = Arc::clone(&serving);
        let peer = Peer { address, place: Some(Arc::new(place)), ..Peer::default() };
        serving.tracker.spawn(async move {
            match stream {
                Stream::Tcp(stream) => secure(stream, peer, activity, &serving_one).await,
                Stream::Unix(stream) => serve(stream, peer, activity, &serving_one).await,
            }
        });
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<(Stream, Option<SocketAddr>)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            if let Err(error) = muster_shared::link::websocket::tune(&stream) {
                tracing::debug!(%error, "cannot tune a connection");
            }
            Ok((Stream::Tcp(stream), Some(peer)))
        }
        Listener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            Ok((Stream::Unix(stream), None))
        }
    }
}

async fn secure(
    stream: tokio::net::TcpStream,
    peer: Peer,
    activity: Arc<Activity>,
    serving: &Serving,
) {
    let Some(acceptor) = &serving.tls else {
        return serve(stream, peer, activity, serving).await;
    };
    let handshake = tokio::select! {
        biased;
        () = serving.stop.cancelled() => return,
        handshake = tokio::time::timeout(TLS_TIMEOUT, acceptor.accept(stream)) => handshake,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let certificates = stream.get_ref().1.peer_certificates();
            let name = certificates.and_then(|all| certificate_name(all.first()?));
            let peer = Peer { name: name.map(Arc::from), ..peer };
            serve(stream, peer, activity, serving).await
        }
        Ok(Err(error)) => {
            let address = peer.address.map(tracing::field::display);
            tracing::info!(%error, address, "TLS handshake failed");
        }
        Err(_) => {
            let address = peer.address.map(tracing::field::display);
            tracing::info!(address, "TLS handshake took too long");
        }
    }
}

async fn serve<S>(stream: S, peer: Peer, activity: Arc<Activity>, serving: &Serving)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let end = peer.place.as_ref().map(|place| place.end.clone()).unwrap_or_default();
    let io = WatchedIo::new(stream, serving.limits.timeouts, Arc::clone(&activity));
    let service = service_fn(|mut request: http::Request<Incoming>| {
        give_path(&mut request);
        let http_1_0 = request.version() == http::Version::HTTP_10;
        request.extensions_mut().insert(Peer { http_1_0, ..peer.clone() });
        let guard = activity.begin();
        let mut service = warp::service(serving.filter.clone());
        async move {
            let response = service.call(request).await?;
            guard.answered(response.status());
            Ok::<_, Infallible>(response.map(|body| Guarded::new(body, guard)))
        }
    });
    // HTTP/1.1 only: a connection of HTTP/2 has any number of requests under way, and the limits
    // here are limits of connections. hyper-util's builder serves HTTP/2 to whoever begins with
    // it, whatever it was told.
    let mut builder = http1::Builder::new();
    // WatchedIo keeps the time: hyper's header timeout would also end idle connections, which
    // may live for an hour.
    builder.header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES);
    let io: ServedIo<S> = TokioIo::new(io);
    let connection = builder.serve_connection(io, service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        () = serving.kill.cancelled() => return,
        () = end.cancelled() => {
            return tracing::debug!(address = ?peer.address, "an idle connection made room");
        }
        ended = connection.as_mut() => Some(ended),
        () = serving.stop.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                () = serving.kill.cancelled() => return,
                ended = connection => ended,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, address = ?peer.address, "connection ended");
    }
}
