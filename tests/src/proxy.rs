//! A TCP proxy that can go silent or drop its connections: a partition between two daemons.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// What the proxy does with what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes it on.
    Open,
    /// Passes on what the server says, and keeps what the client says until it is open again.
    ServerOnly,
    /// Keeps connections and passes nothing, as a dead switch does.
    Silent,
    /// Closes connections and refuses new ones.
    Closed,
}

/// A running proxy; ends with its runtime.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    tasks: TaskTracker,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target` (`ADDR:PORT`).
    ///
    /// # Panics
    /// If no port can be had.
    pub async fn start(target: &str) -> Self {
        Self::on("127.0.0.1", target).await
    }

    /// As [`Self::start`], on another address of this host.
    ///
    /// # Panics
    /// If no port can be had there.
    pub async fn on(ip: &str, target: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let (mode, watched) = watch::channel(Mode::Open);
        let tasks = TaskTracker::new();
        let (target, spawner) = (target.to_owned(), tasks.clone());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                spawner.spawn(serve(client, target.clone(), watched.clone()));
            }
        });
        Self { address, mode, tasks }
    }

    /// `ADDR:PORT` to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what it does, at once and for all connections.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections it serves now.
    #[must_use]
    pub fn connections(&self) -> usize {
        // The accept loop is one of the tasks.
        self.tasks.len().saturating_sub(1)
    }
}

async fn serve(client: TcpStream, target: String, mode: watch::Receiver<Mode>) {
    if *mode.borrow() == Mode::Closed {
        return;
    }
    let Ok(server) = TcpStream::connect(&target).await else { return };
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let mut closing = mode.clone();
    tokio::select! {
        biased;
        _ = closing.wait_for(|m| *m == Mode::Closed) => {}
        () = pump(client_read, server_write, mode.clone(), &[Mode::Open]) => {}
        () = pump(server_read, client_write, mode, &[Mode::Open, Mode::ServerOnly]) => {}
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    passing: &[Mode],
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        if mode.wait_for(|m| passing.contains(m)).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
