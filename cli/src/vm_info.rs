//! `muster vm info`, `proc` and `vnc`: what the hypervisor and its process say of a machine, and its
//! display.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::CliError;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::vm::{MACHINE, Target};

/// Piece in which a viewer's bytes are carried.
const CHUNK_BYTES: usize = 16 * 1024;

const KINDS: [&str; 10] =
    ["block", "blockstats", "chardev", "cpus", "kvm", "pci", "spice", "status", "version", "vnc"];

#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    #[arg(help = MACHINE)]
    vm: String,
    /// What to show [default: everything].
    #[arg(value_parser = KINDS)]
    kinds: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the address to connect a VNC viewer to; the connection is tunnelled through the coordinator
to the VM's server. One viewer at a time; Ctrl-C closes the port. Example:
  muster vm vnc web1 --listen 127.0.0.1:5901 &
  vncviewer 127.0.0.1:5901")]
pub(crate) struct Vnc {
    #[arg(help = MACHINE)]
    vm: String,
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Exits when the first viewer disconnects.
    #[arg(long)]
    once: bool,
}

pub(crate) async fn info(client: &Client, output: &Output, args: Info) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let query: Vec<(&str, String)> =
        if args.kinds.is_empty() { Vec::new() } else { vec![("info", args.kinds.join(","))] };
    output.object(&client.get::<Value>(&target.path("/info"), &query).await?)
}

pub(crate) async fn process(client: &Client, output: &Output, name: &str) -> Result<(), CliError> {
    let target = Target::find(client, name).await?;
    output.object(&client.get::<Value>(&target.path("/proc"), &[]).await?)
}

pub(crate) async fn vnc(client: &Client, args: Vnc) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let path = format!("/vms/{}/display", target.uuid);
    // That there is none is said before somebody starts a viewer.
    drop(client.websocket(&path).await?);
    let failed = |source| CliError::Terminal { action: "wait for a viewer", source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    warn(&format!("the display of {} is at {address}; Ctrl-C closes it", target.shown()));
    loop {
        let (viewer, _) = listener.accept().await.map_err(failed)?;
        match carried(client, &path, viewer).await {
            Err(error) if !args.once => error.report(false),
            ended if args.once => return ended,
            _ => {}
        }
    }
}

/// Carries bytes both ways until either side leaves.
async fn carried(client: &Client, path: &str, mut viewer: TcpStream) -> Result<(), CliError> {
    let (mut frames, mut keys) = client.websocket(path).await?.split();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        tokio::select! {
            biased;
            frame = frames.next() => match frame {
                Some(Ok(Message::Binary(bytes))) => {
                    // Viewers leave as they like.
                    if viewer.write_all(&bytes).await.is_err() {
                        return Ok(());
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                Some(Ok(_)) => {}
            },
            read = viewer.read(&mut buffer) => {
                let count = read.unwrap_or(0);
                let message = Message::binary(buffer[..count].to_vec());
                if count == 0 || keys.send(message).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}
