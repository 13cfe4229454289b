//! One server, parsed when its record or report arrives, so that a request parses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::figures::Figures;
use crate::num::{self, nonzero, num, some_truthy, truthy};
use crate::promises::{DiskPromise, Promised};
use crate::ratios::Ratios;
use crate::schema;
use crate::server_name::ServerName;
use crate::time;
use crate::vm::{Brand, Vm};

pub(crate) const MIB: f64 = 1_048_576.0;
pub(crate) const GIB: f64 = 1_073_741_824.0;
/// The part of a pool that may be filled.
pub(crate) const USABLE: f64 = 0.94;
/// What each kvm VM takes beside its disks, GiB.
const KVM_DISK_GIB: f64 = 10.0;

/// What Muster's agents say beside the reference's sysinfo, and in it the program that runs containers.
pub(crate) const MUSTER: &str = "Muster";
pub(crate) const OCI_RUNTIME: &str = "oci_runtime";

/// One bit for each yes-or-no that filters ask.
pub(crate) mod flag {
    pub(crate) const SETUP: u32 = 1;
    pub(crate) const RUNNING: u32 = 1 << 1;
    pub(crate) const LINUX: u32 = 1 << 2;
    pub(crate) const VALID: u32 = 1 << 3;
    pub(crate) const VIRTUAL: u32 = 1 << 4;
    pub(crate) const ENCRYPTED: u32 = 1 << 5;
    pub(crate) const RESERVED: u32 = 1 << 6;
    pub(crate) const RESERVOIR: u32 = 1 << 7;
    pub(crate) const HEADNODE: u32 = 1 << 8;
    pub(crate) const TRAITS: u32 = 1 << 9;
    pub(crate) const HVM_API: u32 = 1 << 10;
    pub(crate) const BHYVE_CAPABLE: u32 = 1 << 11;
    /// Has promises beside its visible VMs.
    pub(crate) const PROMISED: u32 = 1 << 12;
    /// Has a ticket without figures.
    pub(crate) const BARE_TICKET: u32 = 1 << 13;
    /// Promises included: some VM is capped, uncapped, of brand kvm, of brand bhyve.
    pub(crate) const CAPPED: u32 = 1 << 14;
    pub(crate) const UNCAPPED: u32 = 1 << 15;
    pub(crate) const KVM: u32 = 1 << 16;
    pub(crate) const BHYVE: u32 = 1 << 17;
    /// The slot is in use.
    pub(crate) const USED: u32 = 1 << 18;
    /// VMs can run that are containers: on Linux a runtime runs them, elsewhere the system itself.
    pub(crate) const CONTAINERS: u32 = 1 << 19;
    /// A reboot is planned.
    pub(crate) const REBOOT: u32 = 1 << 20;
    /// How many there are.
    pub(crate) const COUNT: usize = 21;
}

/// Which NIC tags a server has, and in what state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nics {
    /// Sysinfo has interfaces at all.
    pub(crate) known: bool,
    pub(crate) online: BTreeSet<String>,
    /// By tag: interface and link status.
    pub(crate) offline: BTreeMap<String, (String, String)>,
}

impl Nics {
    fn parse(sysinfo: &Map<String, Value>) -> Self {
        let mut nics = Self::default();
        let Some(Value::Object(interfaces)) = sysinfo.get("Network Interfaces") else {
            return nics;
        };
        nics.known = true;
        nics.add(interfaces, "NIC Names");
        if let Some(Value::Object(overlays)) = sysinfo.get("Virtual Network Interfaces") {
            nics.add(overlays, "Overlay Nic Tags");
        }
        nics
    }

    fn add(&mut self, interfaces: &Map<String, Value>, key: &str) {
        for (name, interface) in interfaces {
            let status = interface.get("Link Status");
            let Some(Value::Array(tags)) = interface.get(key) else { continue };
            for tag in tags.iter().filter_map(Value::as_str) {
                if status.and_then(Value::as_str) == Some("up") {
                    self.online.insert(tag.to_owned());
                } else {
                    let status = crate::num::display(status);
                    self.offline.insert(tag.to_owned(), (name.clone(), status));
                }
            }
        }
    }
}

/// What decides about platform limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Platform {
    pub(crate) sdc_version: String,
    pub(crate) live_image: String,
}

/// What a record says, apart from status and sizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) flags: u32,
    pub(crate) has_sysinfo: bool,
    pub(crate) reservation_ratio: f64,
    /// The server's own ratios; `None` if it has none.
    pub(crate) ratios: Option<Ratios>,
    /// Cores that count.
    pub(crate) cores: f64,
    /// Most vCPUs of a bhyve VM: no more than there are cores, if sysinfo says how many.
    pub(crate) bhyve_max_vcpus: f64,
    pub(crate) nics: Arc<Nics>,
    pub(crate) platform: Arc<Platform>,
    pub(crate) traits: Option<Map<String, Value>>,
    pub(crate) rack: Option<String>,
    /// Milliseconds; NaN if there is no valid platform.
    pub(crate) platform_ms: f64,
    /// When the next reboot is due, milliseconds; NaN if none is.
    pub(crate) reboot_ms: f64,
    fault_uuid: Option<String>,
    fault_rest: Option<String>,
}

/// Most vCPUs of a bhyve VM where sysinfo doesn't say.
const BHYVE_MAX_VCPUS: f64 = 16.0;

impl Parsed {
    pub(crate) fn new(record: &Map<String, Value>) -> Self {
        let empty = Map::new();
        let sysinfo = record.get("sysinfo").and_then(Value::as_object);
        let has_sysinfo = sysinfo.is_some();
        let sysinfo = sysinfo.unwrap_or(&empty);
        let text = |name: &str| sysinfo.get(name).and_then(Value::as_str);
        let number = |name: &str| sysinfo.get(name).map(num).and_then(nonzero);
        let traits = record.get("traits").filter(|t| !t.is_null());
        let traits = traits.and_then(|t| crate::validate::traits(t).ok());
        let cores = match sysinfo.get("CPU Online Count") {
            Some(count) => num(count),
            None => number("CPU Total Cores").unwrap_or(0.0),
        };
        let says_cores = ["CPU Online Count", "CPU Total Cores"].iter();
        let says_cores = { says_cores }.any(|name| sysinfo.contains_key(*name));
        // A host that says 0 can't run any.
        let bhyve_max_vcpus = sysinfo.get("Bhyve Max Vcpus").map(num);
        let bhyve_max_vcpus =
            bhyve_max_vcpus.filter(|max| !max.is_nan()).unwrap_or(BHYVE_MAX_VCPUS);
        Self {
            flags: record_flags(record, sysinfo, traits.as_ref()),
            has_sysinfo,
            reservation_ratio: record.get("reservation_ratio").map_or(0.0, num),
            ratios: some_truthy(record.get("overprovision_ratios")).map(own_ratios),
            cores,
            bhyve_max_vcpus: bhyve_max_vcpus.min(if says_cores { cores } else { f64::INFINITY }),
            nics: Arc::new(Nics::parse(sysinfo)),
            platform: Arc::new(Platform {
                sdc_version: text("SDC Version")
                    .filter(|version| !version.is_empty())
                    .unwrap_or("6.5")
                    .to_owned(),
                live_image: text("Live Image").unwrap_or_default().to_owned(),
            }),
            traits,
            rack: record
                .get("rack_identifier")
                .and_then(Value::as_str)
                .filter(|rack| !rack.is_empty())
                .map(str::to_owned),
            platform_ms: record
                .get("current_platform")
                .and_then(Value::as_str)
                .and_then(time::stamp_ms)
                .unwrap_or(f64::NAN),
            reboot_ms: reboot_ms(record),
            fault_uuid: schema::check_uuid(record).err(),
            fault_rest: schema::check_rest(record).err(),
        }
    }
}

pub(crate) fn record_flags(
    record: &Map<String, Value>,
    sysinfo: &Map<String, Value>,
    traits: Option<&Map<String, Value>>,
) -> u32 {
    let member = |name: &str| truthy(record.get(name));
    let info = |name: &str| truthy(sysinfo.get(name));
    let system = sysinfo.get("System Type").and_then(Value::as_str);
    let capable = sysinfo.get("Bhyve Capable") == Some(&Value::Bool(true));
    let runtime = sysinfo.get(MUSTER).and_then(|block| block.get(OCI_RUNTIME)?.as_str());
    let containers = system != Some("Linux") || runtime.is_some_and(|name| !name.is_empty());
    [
        (flag::SETUP, member("setup")),
        (flag::RESERVED, member("reserved")),
        (flag::RESERVOIR, member("reservoir")),
        (flag::HEADNODE, member("headnode")),
        (flag::LINUX, system == Some("Linux")),
        (flag::VIRTUAL, system == Some("Virtual")),
        (flag::ENCRYPTED, info("Zpool Encrypted")),
        (flag::HVM_API, info("HVM API")),
        (flag::BHYVE_CAPABLE, capable),
        (flag::CONTAINERS, containers),
        (flag::TRAITS, traits.is_some_and(|traits| !traits.is_empty())),
        (flag::USED, true),
    ]
    .into_iter()
    .fold(0, |flags, (bit, on)| if on { flags | bit } else { flags })
}

fn own_ratios(value: &Value) -> Ratios {
    let ratio = |name: &str| value.get(name).map(num).and_then(nonzero);
    Ratios {
        cpu: ratio("cpu"),
        ram: ratio("ram"),
        disk: ratio("disk"),
        io: ratio("io"),
        net: ratio("net"),
    }
}

fn reboot_ms(record: &Map<String, Value>) -> f64 {
    let text = |name: &str| record.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
    match (text("next_reboot"), text("last_boot")) {
        // As text, like all times of the reference.
        (Some(next), Some(last)) if next < last => f64::NAN,
        (Some(next), _) => time::iso_ms(next).unwrap_or(f64::NAN),
        (None, _) => f64::NAN,
    }
}

/// What a server has left: CPU in percent of a core, RAM and disk in MiB; may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unreserved {
    /// Percent of one core.
    pub cpu: f64,
    /// MiB.
    pub ram: f64,
    /// MiB.
    pub disk: f64,
}

impl Unreserved {
    /// `{"cpu": n, "ram": n, "disk": n}`.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({
            "cpu": num::json(self.cpu), "ram": num::json(self.ram), "disk": num::json(self.disk),
        })
    }
}

/// One server of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    pub(crate) name: ServerName,
    pub(crate) record: Arc<Map<String, Value>>,
    pub(crate) parsed: Arc<Parsed>,
    pub(crate) status: Option<Arc<str>>,
    pub(crate) figures: Figures,
    /// All VMs, whatever their state.
    pub(crate) vms: Arc<Vec<Arc<Vm>>>,
    pub(crate) promised: Arc<Promised>,
}

impl Server {
    /// A server of which only the record is known.
    pub(crate) fn new(name: ServerName, record: Arc<Map<String, Value>>) -> Self {
        let parsed = Arc::new(Parsed::new(&record));
        Self::parsed(name, record, parsed)
    }

    /// As [`Server::new`], of a record that was parsed before.
    pub(crate) fn parsed(
        name: ServerName,
        record: Arc<Map<String, Value>>,
        parsed: Arc<Parsed>,
    ) -> Self {
        Self {
            name,
            parsed,
            record,
            status: None,
            figures: Figures::unknown(),
            vms: Arc::default(),
            promised: Arc::default(),
        }
    }

    /// The server as it will be once all that is promised on it is there.
    pub(crate) fn settled(&self) -> Self {
        let mut server = self.clone();
        server.figures.take(self.promised.disk);
        server.vms = Arc::new(self.vms.iter().chain(&self.promised.vms).cloned().collect());
        server.promised = Arc::default();
        server
    }

    /// The VMs that `load-server-vms` counts.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter().map(AsRef::as_ref).filter(|vm| vm.is_loaded())
    }

    /// Those and the promised ones.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Vm> {
        self.loaded().chain(self.promised.vms.iter().map(AsRef::as_ref))
    }

    /// Why the record is not usable, VMs not considered.
    pub(crate) fn fault(&self) -> Option<&str> {
        let parsed = &self.parsed;
        parsed
            .fault_uuid
            .as_deref()
            .or_else(|| self.figures.fault())
            .or(parsed.fault_rest.as_deref())
    }

    pub(crate) fn flags(&self) -> u32 {
        let mut flags = self.parsed.flags;
        let mut set = |bit: u32, on: bool| flags |= if on { bit } else { 0 };
        set(flag::RUNNING, self.status.as_deref() == Some("running"));
        set(flag::VALID, self.fault().is_none());
        set(flag::REBOOT, !self.parsed.reboot_ms.is_nan());
        set(flag::PROMISED, !self.promised.is_empty());
        set(flag::BARE_TICKET, self.promised.bare);
        for vm in self.counted() {
            set(flag::CAPPED, vm.cpu_cap.is_some());
            set(flag::UNCAPPED, vm.cpu_cap.is_none());
            set(flag::KVM, vm.brand == Brand::Kvm);
            set(flag::BHYVE, vm.brand == Brand::Bhyve);
        }
        flags
    }

    /// MiB that `hard-filter-min-free-disk` looks at.
    pub(crate) fn free_disk(&self) -> f64 {
        let free = self.figures.pool_size() * USABLE - self.figures.pool_alloc();
        (free / MIB).ceil().max(0.0)
    }

    /// The ratios that the server itself brings.
    pub(crate) fn own_ratios(&self) -> Ratios {
        self.parsed.ratios.unwrap_or(Ratios::DEFAULT)
    }

    /// What is left beside the given VMs; ``promised` is what VMs not yet visible
    /// add to the disk figures.
    pub(crate) fn unreserved<'v>(
        &self,
        ratios: Ratios,
        vms: impl Iterator<Item = &'v Vm>,
        promised: DiskPromise,
    ) -> Unreserved {
        let (parsed, figures) = (&self.parsed, &self.figures);
        if !parsed.has_sysinfo {
            return Unreserved::default();
        }
        let ratio = |ratio: Option<f64>| ratio.unwrap_or(1.0);
        let (ratio_cpu, ratio_ram) = (ratio(ratios.cpu), ratio(ratios.ram));
        let mut cpu = 100.0 * parsed.cores;
        let mut ram = figures.memory_total() / MIB * (1.0 - parsed.reservation_ratio);
        let mut kvm = 0.0;
        let mut uncapped = false;
        for vm in vms {
            match vm.cpu_cap {
                Some(cap) => cpu -= cap / ratio_cpu,
                None => uncapped = true,
            }
            ram -= vm.max_physical_memory / if vm.brand.is_hvm() { 1.0 } else { ratio_ram };
            kvm += if vm.brand == Brand::Kvm { 1.0 } else { 0.0 };
        }
        let usable = figures.pool_size() * USABLE;
        let used = figures.zone_quota_used;
        let mut disk =
            usable - figures.system_used() - figures.images_used() - figures.cores_used();
        disk -= figures.zvol_volsize() + promised.zvol + kvm * KVM_DISK_GIB * GIB;
        disk -= used + (figures.zone_quota() + promised.zone_quota - used) / ratio(ratios.disk);
        disk = disk.min(usable - figures.pool_alloc());
        Unreserved {
            cpu: if uncapped { 0.0 } else { cpu.floor() },
            ram: ram.floor(),
            disk: (disk / MIB).floor(),
        }
    }

    /// What is left beside VMs and promises.
    pub(crate) fn unreserved_promised(&self, ratios: Ratios) -> Unreserved {
        self.unreserved(ratios, self.counted(), self.promised.disk)
    }
}
