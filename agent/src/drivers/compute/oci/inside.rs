//! The inside of a container, through what its first process has.

use std::io;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use rustix::fs::{Mode, OFlags, open};

use super::Oci;
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestCounters, GuestInside, InsideRoot, not_running};

#[async_trait]
impl GuestInside for Oci {
    async fn root(&self, vm: VmUuid) -> Result<InsideRoot, DriverError> {
        let ready = self.containers.ready(vm)?;
        let failed =
            |error: io::Error| DriverError::failed(format!("open the root of VM {vm}"), error);
        let path = format!("/proc/{}/root", ready.init.pid);
        let started = self.containers.folder(vm).started().map_err(failed)?;
        let ids = started.and_then(|started| started.ids);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(path, flags, Mode::empty());
        // The number may be another process's by now.
        if !ready.init.is_alive().map_err(failed)? {
            return Err(not_running(vm));
        }
        let folder = root.map_err(|error| failed(error.into()))?;
        Ok(InsideRoot { folder, ids })
    }

    async fn counters(&self, vm: VmUuid) -> Result<GuestCounters, DriverError> {
        let ready = self.containers.ready(vm)?;
        let failed =
            |error: io::Error| DriverError::failed(format!("read the figures of VM {vm}"), error);
        let counters = ready.cgroups.counters(ready.init.pid).map_err(failed)?;
        counters.ok_or_else(|| not_running(vm))
    }
}
