//! Servers: the record that is kept of a compute node, and what is shown of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use super::boot::{BootModule, BootRecord};
use super::ticket::TicketServer;
use super::value::TimeOrNull;
use super::vm::Vm;
use super::{IsoTime, Object};
use crate::ids::{ServerUuid, VmUuid};
use crate::lenient::{self, if_fits};

/// A server's stored record, its members in the order in which they are shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerRecord {
    /// Its name.
    #[schema(value_type = TicketServer, required = false)]
    pub uuid: ServerUuid,
    /// When it was made.
    #[serde(default)]
    #[schema(value_type = IsoTime)]
    pub created: String,
    /// Of the node, or given at setup.
    #[serde(default)]
    pub hostname: String,
    /// Where it is.
    #[serde(default)]
    pub datacenter: String,
    /// Agents installed, each with `name` and `version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = json!([{ "name": "cn-agent", "version": "2.14.0" }]))]
    pub agents: Option<Vec<Value>>,
    /// What it boots with.
    #[serde(flatten)]
    pub boot: BootRecord,
    /// For people.
    #[serde(default)]
    pub comments: String,
    /// Where it is.
    #[serde(default)]
    pub rack_identifier: String,
    /// Share of memory kept free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub reservation_ratio: Option<Number>,
    /// Gets no new VMs.
    #[serde(default)]
    pub reserved: bool,
    /// Gets VMs only when no other server has room.
    #[serde(default)]
    pub reservoir: bool,
    /// For the allocator.
    #[serde(default)]
    pub traits: Object,
    /// ISO time, or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reboot: Option<String>,
    /// `rebooting` until it is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transitional_status: Option<String>,
    /// A setup is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting_up: Option<bool>,
    /// Set up.
    #[serde(default)]
    pub setup: bool,
    /// Platform that it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_platform: Option<String>,
    /// A headnode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headnode: Option<bool>,
    /// `Linux` or `SunOS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_type: Option<String>,
    /// When it booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IsoTime>)]
    pub last_boot: Option<String>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<i64>,
    /// What another version keeps in the record; it is not shown.
    #[serde(flatten)]
    #[schema(ignore)]
    pub unknown: Map<String, Value>,
}

/// A server's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerStatus {
    /// It is heard.
    Running,
    /// It is not heard.
    Unknown,
    /// It is not heard because it reboots.
    Rebooting,
}

impl ServerStatus {
    /// As CNAPI spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Unknown => "unknown",
            Self::Rebooting => "rebooting",
        }
    }
}

/// How much more than there is VMs may be promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ratios {
    /// Of CPUs.
    #[schema(value_type = Option<f64>, required)]
    pub cpu: Option<Number>,
    /// Of memory.
    #[schema(value_type = Option<f64>, required)]
    pub ram: Option<Number>,
    /// Of disk.
    #[schema(value_type = Option<f64>, required)]
    pub disk: Option<Number>,
}

/// Memory of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryFigures {
    /// Memory of the ZFS cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_arc_bytes: Option<i64>,
    /// Free memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<i64>,
    /// All memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<i64>,
}

/// Disk use of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskFigures {
    /// Limits of the places for core dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_cores_quota_bytes: Option<i64>,
    /// Use of the places for core dumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_cores_quota_used_bytes: Option<i64>,
    /// Use of installed images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_installed_images_used_bytes: Option<i64>,
    /// Limits of hardware VMs beside their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kvm_quota_bytes: Option<i64>,
    /// Use of hardware VMs beside their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kvm_quota_used_bytes: Option<i64>,
    /// Use of the disks of hardware VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kvm_zvol_used_bytes: Option<i64>,
    /// Sizes of the disks of hardware VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_kvm_zvol_volsize_bytes: Option<i64>,
    /// Use of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_pool_alloc_bytes: Option<i64>,
    /// Size of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_pool_size_bytes: Option<i64>,
    /// Use of the system itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_system_used_bytes: Option<i64>,
    /// Limits of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_zone_quota_bytes: Option<i64>,
    /// Use of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_zone_quota_used_bytes: Option<i64>,
}

/// A compute node. Which members are there depends on `extras` and `fields`; a server that never
/// reported has no memory or disk figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Server {
    /// What is stored.
    #[serde(flatten)]
    pub record: ServerRecord,
    /// Whether it is heard.
    #[schema(required = false)]
    pub status: ServerStatus,
    /// Last heartbeat; null while it is offline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = TimeOrNull, required = false)]
    pub last_heartbeat: Option<Option<String>>,
    /// Its memory.
    #[serde(flatten)]
    pub memory: MemoryFigures,
    /// Its disks.
    #[serde(flatten)]
    pub disk: DiskFigures,
    /// Memory for VMs; may be negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_provisionable_bytes: Option<i64>,
    /// Of cpu, ram and disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overprovision_ratios: Option<Ratios>,
    /// Percent of a core; may be negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub unreserved_cpu: Option<Number>,
    /// MiB; may be negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub unreserved_ram: Option<Number>,
    /// MiB; may be negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub unreserved_disk: Option<Number>,
    /// Of the allocator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub score: Option<Number>,
    /// VMs by uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<BTreeMap<VmUuid, Vm>>,
    /// The node's description of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Sysinfo>)]
    pub sysinfo: Option<Object>,
    /// The agent's last own figures: load, pressure, pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub muster: Option<Value>,
}

/// The record that new servers inherit from, as `GET /servers/default` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DefaultServer {
    /// `default`.
    pub uuid: &'static str,
    /// Console of the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_console: Option<String>,
    /// Serial device of the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Kernel arguments of the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_params: Option<Object>,
    /// Kernel flags of the next boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_flags: Option<Object>,
    /// Files for the boot loader.
    pub boot_modules: Vec<BootModule>,
    /// Platform of the next boot.
    pub boot_platform: String,
    /// It is no node.
    pub status: ServerStatus,
    /// Never.
    pub last_heartbeat: Option<String>,
    /// Always 0.
    pub score: u32,
}

/// What is read of the document in which a node describes itself, in SmartOS's key names. The
/// types of its members differ between agents: what is not of the type here is as if it were not
/// there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sysinfo {
    /// The node.
    #[serde(rename = "UUID", deserialize_with = "id")]
    #[schema(value_type = ServerUuid, required = false)]
    pub uuid: Option<ServerUuid>,
    /// Its name.
    #[serde(rename = "Hostname", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub hostname: Option<String>,
    /// Platform that it runs.
    #[serde(rename = "Live Image", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub live_image: Option<String>,
    /// `Linux` or `SunOS`.
    #[serde(rename = "System Type", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub system_type: Option<String>,
    /// Seconds since 1970, a number or its text.
    #[serde(rename = "Boot Time", deserialize_with = "seconds")]
    #[schema(value_type = Value)]
    pub boot_time: Option<f64>,
    /// When it got its pool, as `Boot Time`.
    #[serde(rename = "Zpool Creation", deserialize_with = "seconds")]
    #[schema(value_type = Value)]
    pub pool_created: Option<f64>,
    /// Whether it is set up.
    #[serde(rename = "Setup", deserialize_with = "flag")]
    #[schema(value_type = Value)]
    pub setup: Option<bool>,
    /// Its memory.
    #[serde(rename = "MiB of Memory", deserialize_with = "whole")]
    #[schema(value_type = Value)]
    pub memory_mib: Option<i64>,
    /// Of the agent's tools.
    #[serde(rename = "SDC Version")]
    #[schema(value_type = Value)]
    pub sdc_version: Option<Value>,
    /// CPUs it has.
    #[serde(rename = "CPU Total Cores")]
    pub cpu_total: Value,
    /// CPUs that are switched on.
    #[serde(rename = "CPU Online Count")]
    pub cpu_online: Value,
    /// What it booted with.
    #[serde(rename = "Boot Parameters", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub boot_parameters: Option<BootParameters>,
    /// Agents installed.
    #[serde(rename = "SDC Agents", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub agents: Option<Vec<Value>>,
    /// Interfaces by name.
    #[serde(rename = "Network Interfaces", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub interfaces: Option<Object>,
    /// Whether its pool is encrypted.
    #[serde(rename = "Zpool Encrypted", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub pool_encrypted: Option<bool>,
    /// The recovery configurations of an encrypted pool.
    #[serde(rename = "Zpool Recovery", deserialize_with = "if_fits")]
    #[schema(value_type = Value)]
    pub pool_recovery: Option<PoolRecovery>,
    /// What is not read here.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ServerUuid>, D::Error> {
    lenient::member(from, |value| value.as_str()?.parse().ok())
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    lenient::member(from, lenient::float)
}

fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    lenient::member(from, lenient::flag)
}

fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    lenient::member(from, lenient::js_parse_int)
}

/// What a node booted with, as far as it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BootParameters {
    /// `true` on a headnode.
    #[serde(deserialize_with = "if_fits")]
    pub headnode: Option<String>,
}

/// Recovery configurations of an encrypted pool, each by its hash, hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PoolRecovery {
    /// The one in use.
    #[serde(deserialize_with = "if_fits")]
    pub active: Option<String>,
    /// The one to come.
    #[serde(deserialize_with = "if_fits")]
    pub staged: Option<String>,
}

/// A network interface of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its address.
    #[serde(rename = "MAC Address", deserialize_with = "if_fits")]
    pub mac: Option<String>,
    /// Its tags.
    #[serde(rename = "NIC Names", deserialize_with = "if_fits")]
    pub tags: Option<Vec<String>>,
}

impl Sysinfo {
    /// Its interfaces.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface> {
        let all = self.interfaces.iter().flat_map(Object::iter);
        all.filter_map(|(_, interface)| Interface::deserialize(interface).ok())
    }
}
