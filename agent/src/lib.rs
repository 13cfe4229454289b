//! The Muster agent: runs VMs, storage and images on one compute node.

pub mod drivers;
pub mod host;
pub mod report;
pub mod tasks;
pub mod vms;
