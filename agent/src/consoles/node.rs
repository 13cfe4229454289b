//! The serial ports of this node's guests.

use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;

use super::{Fate, Ports};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestIo, GuestPort, Logged};
use crate::node::SharedDrivers;
use crate::tasks::Engine;

/// Ports of the guests of `drivers`, on which the tasks of `engine` work.
#[derive(Debug)]
pub struct NodePorts {
    /// The node.
    pub drivers: SharedDrivers,
    /// Who may start a guest again.
    pub engine: Arc<Engine>,
}

#[async_trait]
impl Ports for NodePorts {
    async fn fate(&self, vm: VmUuid) -> Fate {
        // Asked before the look: a task that starts the guest and ends in between is not missed.
        let at_work = self.engine.works_on(vm);
        let drivers = &self.drivers;
        match drivers.vms.observe(drivers.compute.as_ref(), vm).await {
            Ok(observed) if observed.is_running() => Fate::Runs,
            Ok(_) if drivers.vms.get(vm).is_none() => Fate::Gone,
            Ok(_) if at_work => Fate::Pending,
            Ok(_) => Fate::Stopped,
            Err(error) => {
                tracing::warn!(vm_uuid = %vm, error = %Chain(&error), "cannot observe a VM");
                Fate::Stopped
            }
        }
    }

    async fn open(&self, vm: VmUuid) -> Result<Box<dyn GuestIo>, DriverError> {
        self.drivers.compute.open(vm, GuestPort::Console).await
    }

    async fn logged(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError> {
        self.drivers.compute.console_log(vm, from).await
    }
}
