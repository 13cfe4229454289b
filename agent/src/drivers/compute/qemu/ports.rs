//! The ports of a guest: sockets of its hypervisor.

use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use tokio::net::UnixStream;

use super::{Qemu, channels, not_running, qmp, talk_failed};
use crate::drivers::DriverError;
use crate::drivers::compute::{AgentChannel, GuestConsole, GuestIo, GuestPort, Logged};

/// Longest wait for a guest's socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[async_trait]
impl GuestConsole for Qemu {
    async fn open(&self, vm: VmUuid, port: GuestPort) -> Result<Box<dyn GuestIo>, DriverError> {
        let folder = self.guests.folder(vm);
        let path = match port {
            GuestPort::Console => folder.serial(),
            GuestPort::Vnc => folder.vnc(),
            GuestPort::Metadata => folder.metadata_channel(),
            GuestPort::GuestAgent => folder.guest_agent(),
        };
        if self.guests.live(vm).is_none() {
            return Err(not_running(vm));
        }
        let failed = |error| DriverError::failed(format!("open {}", path.display()), error);
        match tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(&path)).await {
            Ok(stream) => Ok(Box::new(stream.map_err(failed)?)),
            Err(_) => Err(failed(std::io::ErrorKind::TimedOut.into())),
        }
    }

    async fn agent_channel(&self, vm: VmUuid) -> Result<AgentChannel, DriverError> {
        let qmp = self.guests.qmp(vm).await?;
        let answer = qmp.execute::<qmp::QueryChardev>().await;
        Ok(channels::agent_channel(&answer.map_err(|error| talk_failed(vm, error))?))
    }

    async fn console_log(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError> {
        let logged = self.guests.folder(vm).printed(from);
        logged.map_err(|error| DriverError::failed(format!("read the console log of {vm}"), error))
    }
}
