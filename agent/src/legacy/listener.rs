//! Where a CNAPI calls this agent: the five routes of the original agent by plain HTTP, for callers
//! from the configured networks and for nobody else. There is no other check, as the protocol has
//! none.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::debug_http::{self, Local};

/// Connections at a time; a task holds its own until it ends.
const MAX_CONNECTIONS: usize = 256;
/// Pause after a failed accept, e.g. for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bound socket.
#[derive(Debug)]
pub struct LegacyListener {
    tcp: TcpListener,
    networks: Vec<IpNet>,
}

impl LegacyListener {
    /// Binds it.
    ///
    /// # Errors
    /// The system's error, with the address.
    pub async fn bind(address: SocketAddr, networks: Vec<IpNet>) -> io::Result<Self> {
        let tcp = TcpListener::bind(address).await;
        let tcp = tcp.map_err(|error| {
            io::Error::new(error.kind(), format!("listen on {address}: {error}"))
        })?;
        Ok(Self { tcp, networks })
    }

    /// Its address, with the port that port 0 became.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`. Who still waits for a task then learns of its end from the history.
    pub async fn serve(self, local: Arc<Local>, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = self.tcp.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) if self.may_call(from) => {
                    let (local, stop) = (Arc::clone(&local), stop.clone());
                    tokio::spawn(async move {
                        debug_http::serve_legacy(stream, local, stop).await;
                        drop(permit);
                    });
                }
                Ok((_, from)) => {
                    tracing::warn!(%from, "refused a caller from outside legacy.networks");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a caller");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn may_call(&self, from: SocketAddr) -> bool {
        let ip = from.ip().to_canonical();
        self.networks.iter().any(|network| network.contains(&ip))
    }
}
