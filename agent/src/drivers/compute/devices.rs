//! What a guest's hypervisor tells of its devices, and does to them.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use crate::drivers::DriverError;
use crate::drivers::network::{Attached, Nic};
use crate::drivers::storage::{Disk, Role};

/// A change of a snapshot of a VM's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// Taken.
    Create {
        /// Its name.
        name: String,
        /// All of the VM's volumes, none of which has it.
        of: Vec<Role>,
    },
    /// Deleted.
    Delete {
        /// Its name.
        name: String,
        /// The volumes that have it.
        from: Vec<Role>,
    },
}

impl SnapshotChange {
    /// What is changed.
    #[must_use]
    pub fn volumes(&self) -> &[Role] {
        match self {
            Self::Create { of, .. } => of,
            Self::Delete { from, .. } => from,
        }
    }
}

/// A network interface that a guest has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNic {
    /// Its number, see [`Nic::number`](crate::drivers::network::Nic::number).
    pub number: usize,
    /// Its address, lower case.
    pub mac: String,
    /// It can be taken from the guest while that runs.
    pub removable: bool,
}

/// The network interfaces of a guest, as its hypervisor tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestNics {
    /// Those that it has, by number.
    pub present: Vec<GuestNic>,
    /// Numbers of those that it can be given while it runs.
    pub free: BTreeSet<usize>,
}

/// A disk that a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestDisk {
    /// Its number, see [`numbers`](crate::vm_record::disks::numbers).
    pub number: u32,
    /// It can be taken from the guest while that runs.
    pub removable: bool,
}

/// The disks of a guest, as its hypervisor tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestDisks {
    /// Those that it has, by number.
    pub present: Vec<GuestDisk>,
    /// Numbers of those that it can be given while it runs.
    pub free: BTreeSet<u32>,
}

/// Asks for devices of guests, and changes them.
#[async_trait]
pub trait GuestDevices: fmt::Debug + Send + Sync + 'static {
    /// Raw answers of the hypervisor by type (`status`, `block`, `vnc`, …; `all`).
    ///
    /// # Errors
    /// `VmNotRunning`; `InvalidParameters` for an unknown type.
    async fn info(&self, vm: VmUuid, types: &[String]) -> Result<Value, DriverError>;

    /// Changes a snapshot of the volumes that a guest has open: all of them at one moment. Returns
    /// the others, with which storage can do it.
    ///
    /// # Errors
    /// The hypervisor refused; nothing was changed by a create.
    async fn snapshot(&self, vm: VmUuid, change: &SnapshotChange)
    -> Result<Vec<Role>, DriverError>;

    /// Makes a disk that a guest has open at least this large, and tells the guest. Nothing is done
    /// about one that no guest has open: storage can grow that.
    ///
    /// # Errors
    /// The hypervisor refused.
    async fn grow_disk(&self, vm: VmUuid, index: u32, size_bytes: u64) -> Result<(), DriverError>;

    /// Has a guest that runs give memory back until it has this much, or take it again, but no more than it
    /// was started with. Returns when it has, or does not come nearer: its system may not be able to.
    /// Nothing is done about a guest that does not run.
    ///
    /// # Errors
    /// The hypervisor refused.
    async fn set_memory(&self, vm: VmUuid, ram_mib: u64) -> Result<(), DriverError>;

    /// The disks of a guest; `None`: it does not run.
    ///
    /// # Errors
    /// The hypervisor does not tell.
    async fn disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError>;

    /// Gives a guest that runs one more disk, as its VM's record describes it, within that one's limits.
    /// One that it has is no error.
    ///
    /// # Errors
    /// `VmNotRunning`; or the hypervisor refused, and nothing was changed.
    async fn plug_disk(
        &self,
        vm: VmUuid,
        disk: &Disk,
        described: &Value,
    ) -> Result<(), DriverError>;

    /// Takes a disk from a guest that runs; returns once the guest has given it up and nobody has its
    /// file open. One that it does not have is no error.
    ///
    /// # Errors
    /// `VmNotRunning`; `GuestRefused`: the guest still has it, and may give it up later.
    async fn unplug_disk(&self, vm: VmUuid, number: u32) -> Result<(), DriverError>;

    /// Notes that a guest has the disks that it is to have.
    fn settle_disks(&self, vm: VmUuid);

    /// The network interfaces of a guest; `None`: it does not run.
    ///
    /// # Errors
    /// The hypervisor does not tell.
    async fn nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError>;

    /// Gives a guest that runs one more network interface, whose host's side is there. One that it has
    /// is no error.
    ///
    /// # Errors
    /// `VmNotRunning`; or the hypervisor refused, and nothing was changed.
    async fn plug_nic(&self, vm: VmUuid, nic: &Attached) -> Result<(), DriverError>;

    /// Takes a network interface from a guest that runs; returns once the guest has given it up. One
    /// that it does not have is no error.
    ///
    /// # Errors
    /// `VmNotRunning`; `GuestRefused`: the guest still has it, and may give it up later.
    async fn unplug_nic(&self, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError>;

    /// Puts the cable of a network interface of a guest that runs in or out, as it is to be. One that
    /// the guest does not have is no error.
    ///
    /// # Errors
    /// `VmNotRunning`; or the hypervisor refused.
    async fn set_link(&self, vm: VmUuid, nic: &Nic) -> Result<(), DriverError>;

    /// Notes that a guest has the network interfaces that it is to have.
    fn settle_nics(&self, vm: VmUuid);
}

/// What [`GuestDevices::info`] can be asked for.
pub const INFO_TYPES: &[&str] = &[
    "all",
    "block",
    "blockstats",
    "chardev",
    "cpus",
    "kvm",
    "pci",
    "spice",
    "status",
    "version",
    "vnc",
];

/// Checks the types of an info request.
///
/// # Errors
/// `InvalidParameters` that names the unknown type.
pub fn check_info_types(types: &[String]) -> Result<(), DriverError> {
    match types.iter().find(|wanted| !INFO_TYPES.contains(&wanted.as_str())) {
        None => Ok(()),
        Some(unknown) => {
            let known = INFO_TYPES.join(", ");
            let text = format!("types: unknown type {unknown:?}; known are {known}");
            Err(DriverError::refused(Code::InvalidParameters, text))
        }
    }
}
