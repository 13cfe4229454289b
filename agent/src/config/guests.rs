//! `compute` and `network`: how VMs run, and what connects them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::drivers::compute::qemu::Choice;
use crate::drivers::network::UserNetwork;

/// Running VMs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ComputeConfig {
    /// `auto` (KVM when it passes a probe, else TCG), `kvm` or `tcg`.
    #[schema(value_type = String)]
    pub accel: Choice,
    /// The hypervisor's program.
    pub qemu: String,
    /// How far guests with user-mode networking reach: `filtered` (wherever this host does, but not
    /// to this host itself; needs root and nftables) or `restricted` (nowhere; published ports still
    /// lead to them).
    #[schema(value_type = String)]
    pub user_network: UserNetwork,
    /// Where systemd does not run: the cgroup in which guests get one each, as in
    /// `/proc/PID/cgroup`, e.g. `/muster-vms`. It must be the agent's alone. Empty: guests run
    /// without limits, except for containers, which get one below `/INSTANCE-vms` then. With systemd they
    /// have scopes, and this means nothing.
    pub cgroup_parent: String,
    /// The program that runs containers. Empty: the first of `runc` and `crun` that runs one.
    pub oci_runtime: String,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self {
            accel: Choice::default(),
            qemu: "qemu-system-x86_64".to_owned(),
            user_network: UserNetwork::default(),
            cgroup_parent: String::new(),
            oci_runtime: String::new(),
        }
    }
}

/// Networks of VMs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NetworkConfig {
    /// NIC tags whose interfaces are on user-mode networks although this host has a bridge
    /// `mt-TAG`.
    pub user_tags: Vec<String>,
    /// NIC tags whose guests reach the addresses that this host has on their bridge, e.g. because
    /// it is their router or name server. Guests of other tags reach none of them.
    pub server_tags: Vec<String>,
}
