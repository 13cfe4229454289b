//! The ports of a container: its console alone.

use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use tokio::net::UnixStream;

use super::Oci;
use crate::drivers::DriverError;
use crate::drivers::compute::{
    AgentChannel, GuestConsole, GuestDisplay, GuestIo, GuestPort, Logged, Picture, not_running,
};
use crate::vm_record::VmRecord;

/// Longest wait for a container's console.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

fn has_none(vm: VmUuid, what: &str) -> DriverError {
    DriverError::refused(Code::NotSupported, format!("VM {vm} is a container and has no {what}"))
}

#[async_trait]
impl GuestConsole for Oci {
    async fn open(&self, vm: VmUuid, port: GuestPort) -> Result<Box<dyn GuestIo>, DriverError> {
        if self.containers.get(vm).is_none() {
            return Err(not_running(vm));
        }
        match port {
            GuestPort::Console => {}
            GuestPort::Vnc => return Err(has_none(vm, "display")),
            GuestPort::Metadata => return Err(has_none(vm, "metadata port")),
            GuestPort::GuestAgent => return Err(has_none(vm, "channel to a guest agent")),
        }
        let path = self.containers.folder(vm).console();
        let failed = |error| DriverError::failed(format!("open {}", path.display()), error);
        match tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(&path)).await {
            Ok(stream) => Ok(Box::new(stream.map_err(failed)?)),
            Err(_) => Err(failed(std::io::ErrorKind::TimedOut.into())),
        }
    }

    async fn agent_channel(&self, vm: VmUuid) -> Result<AgentChannel, DriverError> {
        match self.containers.get(vm) {
            Some(_) => Ok(AgentChannel::Absent),
            None => Err(not_running(vm)),
        }
    }

    async fn console_log(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError> {
        let logged = self.containers.folder(vm).printed(from);
        logged.map_err(|error| DriverError::failed(format!("read the console log of {vm}"), error))
    }
}

#[async_trait]
impl GuestDisplay for Oci {
    async fn screenshot(&self, vm: VmUuid) -> Result<Picture, DriverError> {
        Err(has_none(vm, "display"))
    }

    async fn set_password(&self, _vm: &VmRecord) -> Result<(), DriverError> {
        Ok(())
    }
}
