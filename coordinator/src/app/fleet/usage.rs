//! What VMs use: in memory only, since it changes all the time.

use std::time::Duration;

use muster_shared::wire::usage::Usages;

/// What a server's VMs used when it told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerUsage {
    /// When that was, by this coordinator's monotonic clock.
    pub at: Duration,
    /// By VM.
    pub vms: Usages,
}
