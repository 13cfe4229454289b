//! What a compute driver tells of what its guests use.

use std::fmt;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::usage::{DiskUsage, VmUsage};
use serde_json::Value;

use crate::drivers::DriverError;

/// Figures of guests that run. Nothing here changes anything.
#[async_trait]
pub trait GuestFacts: fmt::Debug + Send + Sync + 'static {
    /// CPU and memory of a guest's process, without disks and network; `None`: it does not run.
    /// Asks only the host, so that it answers also while the hypervisor hangs.
    ///
    /// # Errors
    /// The host could not be read.
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError>;

    /// What a guest did to its disks. May take as long as its hypervisor likes: who asks bounds it.
    ///
    /// # Errors
    /// `VmNotRunning`; the hypervisor did not answer.
    async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError>;

    /// The processes of a running VM as `machine_proc` tells them, by pid.
    ///
    /// # Errors
    /// `VmNotRunning`.
    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError>;
}
