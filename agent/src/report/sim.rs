//! A simulated host's facts: the same for the same number, with as many cores and as much memory
//! as it was given.

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::units::MIB;
use muster_shared::wire::status::Meminfo;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::{Facts, Figures, sysinfo};
use crate::drivers::DriverError;

/// The systemd unit of each simulated host.
pub const SIM_SERVICE: &str = "packaged-agent";

/// A simulated host.
#[derive(Debug)]
pub struct SimFacts {
    server_uuid: ServerUuid,
    number: u16,
    cpus: u32,
    memory_mib: u64,
    boot: Mutex<(Timestamp, String)>,
}

impl SimFacts {
    /// Host number `number`, booted at `boot_time` under the boot id `boot_id`.
    #[must_use]
    pub fn new(server_uuid: ServerUuid, number: u16, boot_time: Timestamp, boot_id: &str) -> Self {
        Self {
            server_uuid,
            number,
            cpus: 8,
            memory_mib: 32 * 1024,
            boot: Mutex::new((boot_time, boot_id.to_owned())),
        }
    }

    /// With other sizes.
    #[must_use]
    pub fn with_size(mut self, cpus: u32, memory_mib: u64) -> Self {
        (self.cpus, self.memory_mib) = (cpus, memory_mib);
        self
    }

    /// The host was rebooted.
    pub fn reboot(&self, boot_time: Timestamp, boot_id: &str) {
        *self.boot.lock() = (boot_time, boot_id.to_owned());
    }
}

#[async_trait]
impl Facts for SimFacts {
    async fn sysinfo(&self) -> Map<String, Value> {
        let (boot_time, boot_id) = self.boot.lock().clone();
        let [high, low] = self.number.to_be_bytes();
        let document = json!({
            "UUID": self.server_uuid,
            "Hostname": format!("sim{}", self.number),
            "System Type": "Linux",
            "Live Image": "20260101T000000Z",
            "Boot Time": boot_time.as_second().to_string(),
            "SDC Version": sysinfo::SDC_VERSION,
            "SDC Agents": sysinfo::agents(sysinfo::CN_AGENT_VERSION),
            "Setup": "true",
            "VM Capable": true, "Bhyve Capable": true, "HVM API": true, "Bhyve Max Vcpus": 64,
            "CPU Type": "Simulated", "CPU Virtualization": "none",
            "CPU Socket Count": 1, "CPU Core Count": self.cpus, "CPU Count": self.cpus,
            "CPU Online Count": self.cpus, "CPU Physical Cores": 1, "CPU Total Cores": self.cpus,
            "MiB of Memory": self.memory_mib.to_string(),
            "Admin NIC Tag": "admin",
            "Admin IP": format!("10.0.{high}.{low}"),
            "CN Agent Port": 5309,
            "Boot Parameters": {},
            "Disks": { "vda": { "Size in GB": 64 } },
            "Network Interfaces": { "eth0": {
                "MAC Address": format!("02:00:00:00:{high:02x}:{low:02x}"),
                "ip4addr": format!("10.0.{high}.{low}"),
                "Link Status": "up",
                "NIC Names": ["admin"],
            } },
            "Virtual Network Interfaces": {},
            "Link Aggregations": {},
            "Muster": {
                "agent_version": env!("CARGO_PKG_VERSION"),
                "boot_id": boot_id,
                "booted": iso(boot_time),
                "storage": "sim",
                "degraded": [],
            },
        });
        match document {
            Value::Object(document) => document,
            _ => Map::new(),
        }
    }

    async fn figures(&self) -> Result<Figures, DriverError> {
        let total_bytes = self.memory_mib * MIB;
        Ok(Figures {
            meminfo: Meminfo {
                availrmem_bytes: total_bytes / 10 * 9,
                arcsize_bytes: 0,
                total_bytes,
            },
            boot_time: self.boot.lock().0,
            extra: Map::new(),
        })
    }

    async fn has_service(&self, name: &str) -> bool {
        name == SIM_SERVICE
    }

    async fn fingerprint(&self) -> String {
        self.boot.lock().1.clone()
    }
}
