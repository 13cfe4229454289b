//! The local HTTP: the reference agent's routes byte for byte, and more for debugging.
//!
//! On loopback TCP and a unix socket. Whoever reaches it may look; changing anything needs root
//! (or the agent's own user) on the unix socket, or over TCP the token in `local.token`.

mod answer;
mod console;
mod interface_metrics;
mod metrics;
mod routes;
#[cfg(test)]
mod tests;
mod vm_metrics;
mod zfs_metrics;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use muster_shared::clock::SharedClock;
use muster_shared::config::ListenAddress;
use muster_shared::entropy::SharedEntropy;
use muster_shared::unix_socket::{self, SocketFile};
use muster_shared::wire::Code;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::answer::Answer;
use crate::Running;
use crate::tasks::record::Origin;

/// Connections at a time over TCP, over the unix socket, and of those who may change things there:
/// nobody can keep the operator out.
const TCP_CONNECTIONS: usize = 128;
const UNIX_CONNECTIONS: usize = 128;
const OWNER_CONNECTIONS: usize = 32;
/// Longest time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, e.g. for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time open requests get when the agent stops.
const DRAIN: Duration = Duration::from_secs(1);
/// Anybody may ask; who asks is checked by request.
const SOCKET_MODE: u32 = 0o666;

/// What the routes work with.
#[derive(Debug)]
pub struct Local {
    agent: Arc<Running>,
    clock: SharedClock,
    token: String,
    /// When the process started, about.
    started: jiff::Timestamp,
}

impl Local {
    /// The local HTTP of an agent; `token` lets TCP clients change things.
    #[must_use]
    pub fn new(agent: Arc<Running>, clock: SharedClock, token: String) -> Self {
        let started = clock.wall();
        Self { agent, clock, token, started }
    }
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Over TCP.
    Tcp,
    /// Over the unix socket, by this user.
    Unix(u32),
    /// A CNAPI that calls its agents.
    Legacy,
}

/// Serves the original agent's routes, and no others, on a connection of a CNAPI that may use them.
pub(crate) async fn serve_legacy(
    stream: tokio::net::TcpStream,
    local: Arc<Local>,
    stop: CancellationToken,
) {
    connection(stream, Peer::Legacy, local, stop).await;
}

impl Peer {
    /// Root or the agent's own user.
    fn is_owner(self) -> bool {
        match self {
            Self::Unix(user) => user == 0 || user == nix::unistd::Uid::effective().as_raw(),
            Self::Tcp | Self::Legacy => false,
        }
    }
}

/// How many connections there may be, of each kind.
struct Places {
    tcp: Arc<Semaphore>,
    unix: Arc<Semaphore>,
    owner: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            tcp: places(TCP_CONNECTIONS),
            unix: places(UNIX_CONNECTIONS),
            owner: places(OWNER_CONNECTIONS),
        }
    }
}

impl Places {
    /// A place for a connection; `None`: those of its kind are taken, and it is closed. To wait
    /// would keep those of other kinds waiting behind it.
    fn take(&self, peer: Peer) -> Option<OwnedSemaphorePermit> {
        let of_kind = match peer {
            // Those of a CNAPI are counted by their own listener.
            Peer::Tcp | Peer::Legacy => &self.tcp,
            Peer::Unix(_) if peer.is_owner() => &self.owner,
            Peer::Unix(_) => &self.unix,
        };
        Arc::clone(of_kind).try_acquire_owned().ok()
    }
}

/// The bound sockets.
#[derive(Debug)]
pub struct Listeners {
    tcp: TcpListener,
    unix: UnixListener,
    file: SocketFile,
}

impl Listeners {
    /// Binds both; a socket left by a dead agent is replaced.
    ///
    /// # Errors
    /// The system's error, with the address.
    pub async fn bind(listen: &ListenAddress, socket: &Path) -> io::Result<Self> {
        let at = |what: &dyn std::fmt::Display, error: io::Error| {
            io::Error::new(error.kind(), format!("listen on {what}: {error}"))
        };
        let address = match listen {
            ListenAddress::Tcp(address) => *address,
            ListenAddress::Unix(_) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let tcp = TcpListener::bind(address).await.map_err(|e| at(&address, e))?;
        let bound = unix_socket::bind(socket, SOCKET_MODE).await;
        let (unix, file) = bound.map_err(|e| at(&socket.display(), e))?;
        Ok(Self { tcp, unix, file })
    }

    /// The TCP address, with the port that port 0 became.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`.
    pub async fn serve(self, local: Arc<Local>, stop: CancellationToken) {
        let tracker = TaskTracker::new();
        let places = Places::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                tcp = self.tcp.accept() => tcp.map(|(io, _)| Accepted::Tcp(io)),
                unix = self.unix.accept() => unix.map(|(io, _)| Accepted::Unix(io)),
            };
            let (local, stop) = (local.clone(), stop.clone());
            match accepted {
                Ok(Accepted::Tcp(io)) => {
                    let Some(place) = places.take(Peer::Tcp) else { continue };
                    tracker.spawn(async move {
                        connection(io, Peer::Tcp, local, stop).await;
                        drop(place);
                    });
                }
                Ok(Accepted::Unix(io)) => {
                    let peer = Peer::Unix(io.peer_cred().map_or(u32::MAX, |peer| peer.uid()));
                    let Some(place) = places.take(peer) else { continue };
                    tracker.spawn(async move {
                        connection(io, peer, local, stop).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a local connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        tracker.close();
        if tokio::time::timeout(DRAIN, tracker.wait()).await.is_err() {
            tracing::info!("local requests were cut off");
        }
        drop(self.file);
    }
}

enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(UnixStream),
}

async fn connection<S>(io: S, peer: Peer, local: Arc<Local>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|request| {
        let local = local.clone();
        async move { Ok::<_, Infallible>(respond(request, peer, &local).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(io), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        biased;
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        served = connection.as_mut() => served,
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a local connection failed");
    }
}

async fn respond(
    request: Request<Incoming>,
    peer: Peer,
    local: &Arc<Local>,
) -> hyper::Response<http_body_util::Full<bytes::Bytes>> {
    let began = local.clock.monotonic();
    let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    let id = given.map_or_else(|| local.agent.engine.new_id().to_string(), str::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answer = if peer == Peer::Legacy && !routes::is_of_the_original(&method, &path) {
        Answer::error(404, &Code::ResourceNotFound, &format!("{path} does not exist"))
    } else if may(&request, peer, &local.token) {
        let origin = if peer.is_owner() { Origin::Socket } else { Origin::Local };
        routes::route(request, local, &id, origin).await
    } else {
        let text = "changes need root on the unix socket, or the token of local.token";
        Answer::error(403, &Code::NotAuthorized, text)
    };
    let took = local.clock.monotonic().saturating_sub(began);
    let elapsed_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let status = answer.status();
    tracing::debug!(%method, path, status, elapsed_ms, req_id = id, "local request");
    answer.into_response(&id, elapsed_ms, &local.agent.server_uuid.to_string())
}

/// Whether the peer may do what it asks.
fn may(request: &Request<Incoming>, peer: Peer, token: &str) -> bool {
    // A console is a way into a guest, so it counts as a change.
    let looks = matches!(*request.method(), Method::GET | Method::HEAD)
        && !request.headers().contains_key(hyper::header::UPGRADE);
    if looks {
        return true;
    }
    match peer {
        Peer::Unix(_) => peer.is_owner(),
        Peer::Legacy => true,
        Peer::Tcp => {
            let given = request.headers().get(hyper::header::AUTHORIZATION);
            let given = given.and_then(|value| value.to_str().ok());
            given.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|t| same(t, token))
        }
    }
}

/// Compares without telling by its duration where two tokens differ.
fn same(a: &str, b: &str) -> bool {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(a) == Sha256::digest(b)
}

/// Writes a fresh token, readable by this user only.
///
/// # Errors
/// The file can't be written.
pub fn make_token(path: &Path, entropy: &SharedEntropy) -> io::Result<String> {
    use io::Write as _;
    let token = format!("{}{}", entropy.uuid().simple(), entropy.uuid().simple());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{token}")?;
    Ok(token)
}
