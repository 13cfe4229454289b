//! TCP ports that serve one client once: programs in containers, their files and their figures.
//!
//! A port is on the loopback address unless another is configured, and then asks for a token first.
//! There are few of them, one that nobody uses is closed, and all end with the agent.

pub mod attach;
pub mod build;
pub mod copy;
pub mod exec;
pub mod stats;
#[cfg(test)]
mod tests;
mod utf8;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use muster_shared::entropy::SharedEntropy;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::drivers::DriverError;

/// Sessions at a time, waiting ones included.
pub const MAX_SESSIONS: usize = 64;
/// Longest line with a token, bytes.
const MAX_TOKEN_LINE_BYTES: u64 = 1024;
/// How often it is looked whether a client is still there that says nothing more.
const HALF_CLOSED_LOOK: Duration = Duration::from_secs(2);
/// Longest wait for it.
const TOKEN_LIMIT: Duration = Duration::from_secs(10);

/// Opens sessions.
#[derive(Debug)]
pub struct Sessions {
    listen: IpAddr,
    wants_token: bool,
    entropy: SharedEntropy,
    places: Arc<Semaphore>,
    /// The agent's, which know the sessions' node.
    consoles: OnceLock<Weak<dyn attach::Consoles>>,
    ending: CancellationToken,
    _ends: DropGuard,
}

/// Where a client finds its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Opened {
    /// The address.
    pub host: IpAddr,
    /// The port.
    pub port: u16,
    /// To be sent first, as a line `{"token":"…"}`; none: nothing is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// The line that a client has to send first.
#[derive(Debug, Deserialize)]
struct TokenLine {
    token: String,
}

/// The client of a session.
#[derive(Debug)]
pub struct Peer {
    /// What it sends.
    pub reader: BufReader<OwnedReadHalf>,
    /// What it gets.
    pub writer: OwnedWriteHalf,
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: BufReader::new(reader), writer }
    }

    /// For a thread that waits: what was read already, and the connection.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn into_blocking(self) -> io::Result<(Vec<u8>, std::net::TcpStream)> {
        let early = self.reader.buffer().to_vec();
        let stream = self.reader.into_inner().reunite(self.writer).map_err(io::Error::other)?;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok((early, stream))
    }
}

impl Sessions {
    /// Sessions on this address; `wants_token` is about addresses that others reach.
    #[must_use]
    pub fn new(listen: IpAddr, wants_token: bool, entropy: SharedEntropy) -> Self {
        let ending = CancellationToken::new();
        Self {
            listen,
            wants_token: wants_token && !listen.is_loopback(),
            entropy,
            places: Arc::new(Semaphore::new(MAX_SESSIONS)),
            consoles: OnceLock::new(),
            _ends: ending.clone().drop_guard(),
            ending,
        }
    }

    /// Says where consoles are looked at, once.
    pub fn look_through(&self, consoles: Weak<dyn attach::Consoles>) {
        if self.consoles.set(consoles).is_err() {
            tracing::error!("consoles were given twice, and the first ones stay");
        }
    }

    /// Looks at the console of a VM that runs.
    ///
    /// # Errors
    /// `VmNotRunning`; `ConsoleBusy`; `ConsoleUnavailable`: the agent starts or ends.
    pub async fn console(&self, vm: VmUuid) -> Result<Box<dyn attach::Console>, DriverError> {
        match self.consoles.get().and_then(Weak::upgrade) {
            Some(consoles) => consoles.look(vm).await,
            None => {
                let text = "the agent starts or ends, and shows no consoles";
                Err(DriverError::refused(Code::ConsoleUnavailable, text))
            }
        }
    }

    /// Opens a port for one client, who has to come `within` this time, and has it served. What
    /// `serve` makes is dropped when the agent ends.
    ///
    /// # Errors
    /// `QueueFull`; the port could not be opened.
    pub async fn open<S, F>(&self, within: Duration, serve: S) -> Result<Opened, DriverError>
    where
        S: FnOnce(Peer) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let serve = async move |door: Door| {
            if let Some(peer) = door.next().await {
                drop(door);
                serve(peer).await;
            }
        };
        self.open_door(within, serve).await
    }

    /// As [`Self::open`], for a client who comes several times. The port is closed with its door.
    ///
    /// # Errors
    /// As there; `serve` is dropped then.
    pub async fn open_door<S, F>(&self, within: Duration, serve: S) -> Result<Opened, DriverError>
    where
        S: FnOnce(Door) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let place = self.place()?;
        let failed = |error: io::Error| DriverError::failed("open the port of a session", error);
        let listener = TcpListener::bind((self.listen, 0)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = self
            .wants_token
            .then(|| format!("{:016x}{:016x}", self.entropy.u64(), self.entropy.u64()));
        let door = Door { listener, within, token: token.clone() };
        drop(tokio::spawn(self.ending.clone().run_until_cancelled_owned(async move {
            let _place = place;
            serve(door).await;
        })));
        Ok(Opened { host: self.listen, port, token })
    }

    /// Has something done that nobody is connected to; it counts as a session.
    ///
    /// # Errors
    /// `QueueFull`.
    pub fn detach(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), DriverError> {
        let place = self.place()?;
        drop(tokio::spawn(self.ending.clone().run_until_cancelled_owned(async move {
            let _place = place;
            work.await;
        })));
        Ok(())
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, DriverError> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let text = format!("there are {MAX_SESSIONS} sessions already: end one of them first");
            DriverError::refused(Code::QueueFull, text)
        })
    }
}

/// A port that waits for its client.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    within: Duration,
    token: Option<String>,
}

impl Door {
    /// The client, once it has shown the token; `None`: nobody came in time, or somebody else, which
    /// was logged.
    pub async fn next(&self) -> Option<Peer> {
        match self.accept().await {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "a session failed");
                None
            }
        }
    }

    async fn accept(&self) -> io::Result<Option<Peer>> {
        let Ok(came) = tokio::time::timeout(self.within, self.listener.accept()).await else {
            tracing::debug!("nobody came to a session in time");
            return Ok(None);
        };
        let (stream, from) = came?;
        stream.set_nodelay(true)?;
        let mut peer = Peer::new(stream);
        let Some(token) = &self.token else { return Ok(Some(peer)) };
        let mut line = String::new();
        let mut limited = (&mut peer.reader).take(MAX_TOKEN_LINE_BYTES);
        let read = tokio::time::timeout(TOKEN_LIMIT, limited.read_line(&mut line)).await;
        let shown = match read {
            Ok(Ok(_)) => serde_json::from_str::<TokenLine>(&line).ok(),
            Ok(Err(_)) | Err(_) => None,
        };
        if shown.is_some_and(|shown| same(&shown.token, token)) {
            return Ok(Some(peer));
        }
        tracing::warn!(%from, "a client without the right token was turned away from a session");
        Ok(None)
    }
}

/// Compares in a time that does not tell where they differ.
fn same(one: &str, other: &str) -> bool {
    let differing = one.bytes().zip(other.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differing == 0
}
