//! The allocator's settings. Those of `dapi` have the reference's names and accept its text forms.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::config::{Check, Problems};
use muster_shared::error_chain::Chain;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::alloc::{self, ConfigError, Order, create_expression, default_expression};
use crate::app::AllocationConfig;

/// As long as clients of the reference may take from an allocation to their ticket.
const DEFAULT_RESERVATION_TTL_S: u64 = 60;
/// Some days of a busy datacentre, a few MiB.
const DEFAULT_HISTORY: usize = 1_000;

/// The placement policy, under the reference's names.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Dapi {
    /// Which algorithms run, in which order: `["pipe", …]`, `["or", …]`, nested to any depth. None:
    /// the reference's default.
    #[serde(rename = "allocationDescription")]
    #[schema(value_type = Value)]
    pub allocation_description: Option<Value>,
    /// Defaults that differ.
    #[serde(rename = "changeDefaults")]
    pub change_defaults: ChangeDefaults,
}

/// Defaults that differ: text as in the reference (`"true"`, `"4.0"`; empty for the default), or
/// plain booleans and numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ChangeDefaults {
    /// Packages and servers dictate overprovisioning ratios. Default false.
    #[schema(value_type = Value)]
    pub disable_override_overprovisioning: Option<Value>,
    /// No server has VMs with and without CPU cap. Default true.
    #[schema(value_type = Value)]
    pub filter_capness: Option<Value>,
    /// No VM on headnodes. Default true.
    #[schema(value_type = Value)]
    pub filter_headnode: Option<Value>,
    /// Keeps the 15 % emptiest servers for large VMs. Default true.
    #[schema(value_type = Value)]
    pub filter_large_servers: Option<Value>,
    /// Servers need enough CPU, RAM and disk left. Default true.
    #[schema(value_type = Value)]
    pub filter_min_resources: Option<Value>,
    /// Maximum VMs per server. Default 224.
    #[schema(value_type = Value)]
    pub filter_vm_limit: Option<Value>,
    /// Earliest platform for docker VMs.
    #[schema(value_type = Value)]
    pub filter_docker_min_platform: Option<Value>,
    /// Earliest platform for docker VMs with volumes. Default 20160613T123039Z.
    #[schema(value_type = Value)]
    pub filter_docker_nfs_volumes_automount_min_platform: Option<Value>,
    /// Earliest platform for other VMs with volumes. Default 20170925T211846Z.
    #[schema(value_type = Value)]
    pub filter_non_docker_nfs_volumes_automount_min_platform: Option<Value>,
    /// Earliest platform for volumes of the second kind. Default 20200213T123742Z.
    #[schema(value_type = Value)]
    pub filter_volapi_nfs_v2_min_platform: Option<Value>,
    /// Earliest platform for VMs with flexible disk sizes. Default 20181206T190647Z.
    #[schema(value_type = Value)]
    pub filter_flexible_disk_min_platform: Option<Value>,
    /// Servers set aside: a table from owner to a predicate over `server`, e.g. `server.hostname == "cn1"`.
    #[schema(value_type = Value)]
    pub filter_owner_server: Option<Value>,
    /// Servers need so much room in their pool, whatever is promised, MiB.
    #[schema(value_type = Value)]
    pub minimum_free_disk: Option<Value>,
    /// CPU overcommit ratio: VMs may be promised this many times the CPU there is. Default 4.
    #[schema(value_type = Value)]
    pub overprovision_ratio_cpu: Option<Value>,
    /// Memory overcommit ratio. Default 1.
    #[schema(value_type = Value)]
    pub overprovision_ratio_ram: Option<Value>,
    /// Disk overcommit ratio. Default 1.
    #[schema(value_type = Value)]
    pub overprovision_ratio_disk: Option<Value>,
    /// Deprecated: `min-ram`, `max-ram`, `min-owner` or `random` instead of weights.
    #[schema(value_type = Value)]
    pub server_spread: Option<Value>,
    /// Favours servers with newer platforms. Default 1.
    #[schema(value_type = Value)]
    pub weight_current_platform: Option<Value>,
    /// Favours servers that are not to be rebooted soon. Default 0.5.
    #[schema(value_type = Value)]
    pub weight_next_reboot: Option<Value>,
    /// Favours servers with fewer VMs of the owner. Default 0.
    #[schema(value_type = Value)]
    pub weight_num_owner_zones: Option<Value>,
    /// Favours servers at random. Default 0.5.
    #[schema(value_type = Value)]
    pub weight_uniform_random: Option<Value>,
    /// Favours servers with less disk left, which packs. Default 1.
    #[schema(value_type = Value)]
    pub weight_unreserved_disk: Option<Value>,
    /// Favours servers with less RAM left, which packs. Default 2.
    #[schema(value_type = Value)]
    pub weight_unreserved_ram: Option<Value>,
}

impl ChangeDefaults {
    /// What is set, by name.
    #[must_use]
    pub fn set(&self) -> Object {
        let mut all = Object::of(self);
        all.retain(|_, value| !value.is_null());
        all
    }
}

/// Which host operating systems may take a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostOs {
    /// Any.
    #[default]
    Any,
    /// The reference's rule: SunOS, except for `lx` VMs of `lxd` images.
    Reference,
}

/// The allocator.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AllocatorConfig {
    /// Which hosts may take a VM: `any`, or by the `reference`'s rule, which drops Linux hosts for
    /// all but `lx` VMs.
    pub host_os: HostOs,
    /// How long room is kept for a VM that was allocated and that no ticket, task or report shows, s.
    pub reservation_ttl_s: u64,
    /// Decisions that are kept.
    pub history: usize,
}

impl Default for AllocatorConfig {
    fn default() -> Self {
        Self {
            host_os: HostOs::Any,
            reservation_ttl_s: DEFAULT_RESERVATION_TTL_S,
            history: DEFAULT_HISTORY,
        }
    }
}

/// A single allocation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AllocationOrder {
    /// Looks at servers in a random order, so that equal ones fill evenly; else in uuid order.
    pub shuffle: bool,
}

impl Default for AllocationOrder {
    fn default() -> Self {
        Self { shuffle: true }
    }
}

impl Check for AllocatorConfig {
    fn check(&self, problems: &mut Problems) {
        let ttl = (1..=86_400).contains(&self.reservation_ttl_s);
        problems.require(ttl, "reservation_ttl_s", "from 1 to 86400");
        problems.require((1..=100_000).contains(&self.history), "history", "from 1 to 100000");
    }
}

impl Check for Dapi {
    fn check(&self, problems: &mut Problems) {
        let Err(error) = self.policy(HostOs::Any, &default_expression(false)) else { return };
        let key = match (error.default_at_fault(), &error) {
            (Some(default), _) => format!("changeDefaults.{default}"),
            (None, ConfigError::Default(_)) => "changeDefaults".to_owned(),
            (None, _) => "allocationDescription".to_owned(),
        };
        problems.add(&key, Chain(&error).to_string());
    }
}

impl Dapi {
    /// The checked policy; `default` is its expression unless the operator has one.
    pub(super) fn policy(
        &self,
        host_os: HostOs,
        default: &Value,
    ) -> Result<alloc::Config, ConfigError> {
        let host_os = match host_os {
            HostOs::Any => alloc::HostOs::Any,
            HostOs::Reference => alloc::HostOs::Reference,
        };
        let expression = self.allocation_description.as_ref().unwrap_or(default);
        alloc::Config::new(expression, &self.change_defaults.set().into_value(), host_os)
    }
}

/// What the application needs of all this.
pub(super) fn app(
    dapi: &Dapi,
    allocator: &AllocatorConfig,
    order: &AllocationOrder,
) -> AllocationConfig {
    let policy = |default: &Value| {
        let policy = dapi.policy(allocator.host_os, default);
        Arc::new(policy.expect("the policy was checked when the configuration was read"))
    };
    AllocationConfig {
        policy: policy(&default_expression(false)),
        // What this coordinator creates itself must have room for its disks, and somebody to run it.
        placing: policy(&create_expression()),
        reservation_ttl: Duration::from_secs(allocator.reservation_ttl_s),
        order: if order.shuffle { Order::Shuffled } else { Order::Uuid },
        history: allocator.history,
    }
}
