//! `compute` and `network`: how VMs run, and what connects them.

use muster_shared::config::{Check, Problems};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::drivers::compute::oci::UserNamespaces;
use crate::drivers::compute::qemu::{Choice, isolation};
use crate::drivers::network::UserNetwork;
use crate::host::idmap::IdRange;
use crate::vm_record::user_ids;

/// Most containers of a node that have ids of their own.
const CONTAINERS: u32 = 3_584;
/// After those that guests' processes have; systemd's list of assigned numbers leaves what follows to nobody.
const FIRST_USER_ID: u32 = 0x7150_0000;
/// Below it are users of the host, and those that services get.
const LEAST_USER_ID: u32 = 0x1_0000;
/// Up to 2^31, from where on many programs err.
const MOST_USER_ID: u32 = 0x8000_0000 - CONTAINERS * user_ids::EACH;

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
    /// Whose users and groups those of new containers are: `auto` (their own, 65,536 of the host's ids for
    /// each container, where runtime, kernel and storage can do that and the image does not need the
    /// host's) or `never` (the host's).
    #[schema(value_type = String)]
    pub user_namespaces: UserNamespaces,
    /// The first of the 234,881,024 ids of the host that containers get for their own; nobody else may have
    /// any of them.
    pub first_user_id: u32,
}

impl ComputeConfig {
    /// The ids of the host that containers get for their own.
    #[must_use]
    pub fn user_ids(&self) -> Option<IdRange> {
        let all = IdRange { first: self.first_user_id, count: CONTAINERS * user_ids::EACH };
        (self.user_namespaces == UserNamespaces::Auto).then_some(all)
    }
}

impl Check for ComputeConfig {
    fn check(&self, problems: &mut Problems) {
        let ids = LEAST_USER_ID..=MOST_USER_ID;
        problems.require(
            ids.contains(&self.first_user_id),
            "first_user_id",
            format!("must be {} to {}", ids.start(), ids.end()),
        );
        let all = IdRange { first: self.first_user_id, count: CONTAINERS * user_ids::EACH };
        problems.require(
            !all.overlaps(isolation::GUESTS),
            "first_user_id",
            "leads to ids of the processes of hardware VMs",
        );
    }
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self {
            accel: Choice::default(),
            qemu: "qemu-system-x86_64".to_owned(),
            user_network: UserNetwork::default(),
            cgroup_parent: String::new(),
            oci_runtime: String::new(),
            user_namespaces: UserNamespaces::default(),
            first_user_id: FIRST_USER_ID,
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
