//! What a guest's hypervisor tells of its devices, and does to them.

use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use crate::drivers::DriverError;
use crate::drivers::storage::Role;

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
