//! Displays as TCP ports: a guest's display is a unix socket. One with a password asks whoever
//! comes for it; a client that wants such a one gets a port on which connections are passed
//! through. One without a password has no port: everybody on the node could use it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::qmp::{Qmp, QmpError};
use crate::drivers::DriverError;
use crate::host::ProcessId;
use crate::vm_record::VmRecord;

/// A port that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Longest wait until a display has its password.
const PASSWORD_LIMIT: Duration = Duration::from_secs(5);
/// Connections to one display at a time.
const MAX_CLIENTS: usize = 16;

/// The password that a VM's display asks for.
pub(super) fn password(vm: &VmRecord) -> Option<&str> {
    vm.text("vnc_password").filter(|password| !password.is_empty())
}

/// Has a display ask for the VM's password from now on, if it has one.
///
/// # Errors
/// The hypervisor refused.
pub(super) async fn set_password(qmp: &Arc<Qmp>, vm: &VmRecord) -> Result<(), QmpError> {
    let (Some(password), true) = (password(vm), has_display(vm)) else { return Ok(()) };
    let command = SetPassword { protocol: "vnc", password: password.to_owned() };
    qmp.send(command, PASSWORD_LIMIT).await?;
    Ok(())
}

/// Whether the hypervisor, which answered so to `query-vnc`, asks for a password.
pub(super) fn asks(answer: &Value) -> bool {
    answer["auth"].as_str().is_some_and(|way| way != "none")
}

/// Whether a VM has a display at all.
pub(super) fn has_display(vm: &VmRecord) -> bool {
    vm.properties.get("vnc_port").and_then(Value::as_i64) != Some(-1)
}

/// Gives a display a password.
#[derive(Serialize)]
struct SetPassword {
    protocol: &'static str,
    password: String,
}

impl qapi::Command for SetPassword {
    type Ok = Value;
    const NAME: &'static str = "set_password";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for SetPassword {}

/// The ports that are open, by VM.
#[derive(Clone, Debug)]
pub(super) struct Displays {
    listen: IpAddr,
    ports: Arc<Mutex<BTreeMap<VmUuid, SocketAddr>>>,
}

impl Displays {
    /// Opens ports on this address only.
    pub(super) fn new(listen: IpAddr) -> Self {
        Self { listen, ports: Arc::default() }
    }

    /// The address under which the display of this process of the VM is served now: the next one
    /// may have no password.
    pub(super) async fn open(
        &self,
        vm: VmUuid,
        socket: PathBuf,
        process: ProcessId,
    ) -> Result<SocketAddr, DriverError> {
        if let Some(open) = self.ports.lock().get(&vm) {
            return Ok(*open);
        }
        let failed = |error| DriverError::failed(format!("serve the display of VM {vm}"), error);
        let listener = TcpListener::bind((self.listen, 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        {
            let mut ports = self.ports.lock();
            // Somebody else may have been quicker.
            if let Some(open) = ports.get(&vm) {
                return Ok(*open);
            }
            ports.insert(vm, address);
        }
        let ports = Arc::clone(&self.ports);
        // Ends when nobody comes any more, with the process, or with the agent's runtime.
        drop(tokio::spawn(async move {
            tokio::select! {
                () = serve(&listener, &socket) => {}
                gone = process.gone() => if let Err(error) = gone {
                    tracing::warn!(%error, "a display is closed: its process can't be followed");
                },
            }
            ports.lock().remove(&vm);
        }));
        Ok(address)
    }
}

/// Until nobody has been connected for [`IDLE`].
async fn serve(listener: &TcpListener, socket: &Path) {
    let mut clients = JoinSet::new();
    loop {
        let quiet = clients.is_empty();
        let accepted = tokio::select! {
            biased;
            _ = clients.join_next(), if !quiet => continue,
            accepted = listener.accept(), if clients.len() < MAX_CLIENTS => accepted,
            () = tokio::time::sleep(IDLE), if quiet => return,
        };
        match accepted {
            Ok((client, _)) => drop(clients.spawn(pass(client, socket.to_owned()))),
            Err(error) => {
                tracing::warn!(%error, "a display takes no more connections");
                return;
            }
        }
    }
}

async fn pass(mut client: TcpStream, socket: PathBuf) {
    let passed = async {
        let mut display = UnixStream::connect(&socket).await?;
        tokio::io::copy_bidirectional(&mut client, &mut display).await
    };
    if let Err(error) = passed.await {
        tracing::debug!(%error, socket = %socket.display(), "a display connection broke");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_port_passes_bytes_both_ways_and_stays_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("vnc.sock");
        let display = UnixListener::bind(&socket).unwrap();
        let displays = Displays::new(std::net::Ipv4Addr::LOCALHOST.into());
        let vm = uuid::Uuid::nil().into();
        let me = ProcessId::of(std::process::id()).unwrap().unwrap();
        let address = displays.open(vm, socket.clone(), me).await.unwrap();
        assert_eq!(displays.open(vm, socket, me).await.unwrap(), address);
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut guest, _) = display.accept().await.unwrap();
        guest.write_all(b"RFB").await.unwrap();
        client.write_all(b"ok").await.unwrap();
        let mut read = [0; 3];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"RFB");
        let mut read = [0; 2];
        guest.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ok");
    }
}
