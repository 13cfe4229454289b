//! What the host sees of the inside of a guest: its files and its figures.

use std::fmt;
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use crate::drivers::DriverError;
use crate::host::idmap::IdRange;
pub use crate::host::{BlockCounter, CpuCounters, GuestCounters, LinkCounters, NetworkCounters};

/// The root folder of a guest.
#[derive(Debug)]
pub struct InsideRoot {
    /// The folder, opened.
    pub folder: OwnedFd,
    /// The host's ids that the guest's own are, unless its own are the host's.
    pub ids: Option<IdRange>,
}

/// Sees into guests.
#[async_trait]
pub trait GuestInside: fmt::Debug + Send + Sync + 'static {
    /// The root folder of a running guest, with all that is mounted in it. What is in it is the
    /// guest's, and may change at any time.
    ///
    /// # Errors
    /// `VmNotRunning`; `NotSupported` by a driver whose guests are not processes of the host.
    async fn root(&self, vm: VmUuid) -> Result<InsideRoot, DriverError> {
        Err(hardware(vm))
    }

    /// What a running guest has used.
    ///
    /// # Errors
    /// As [`GuestInside::root`].
    async fn counters(&self, vm: VmUuid) -> Result<GuestCounters, DriverError> {
        Err(hardware(vm))
    }
}

fn hardware(vm: VmUuid) -> DriverError {
    let text = format!("VM {vm} is a hardware VM: its host does not see into it");
    DriverError::refused(Code::NotSupported, text)
}
