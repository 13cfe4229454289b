//! The status report: CNAPI's sample plus the VM index, full once per connection, then deltas.
//!
//! A delta names only the VMs that changed; `digest` is what the whole map must hash to after the
//! delta was applied, so that a lost delta is noticed at once and a full report asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::usage::Usages;
use crate::ids::VmUuid;

/// From the agent: a report. Without `report`, from the coordinator: send a full one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

impl Status {
    /// A frame of this kind as [`decode`](super::decode) reads it, in a single pass: as frequent as
    /// heartbeats, and many times as long.
    ///
    /// # Errors
    /// It is another kind of frame, or none.
    pub fn of_frame(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        enum Kind {
            #[serde(rename = "status")]
            Status,
        }

        #[derive(Deserialize)]
        struct Frame {
            #[serde(rename = "kind")]
            _kind: Kind,
            #[serde(default)]
            report: Option<Report>,
        }

        let Frame { report, .. } = serde_json::from_str(text)?;
        Ok(Self { report })
    }
}

/// One report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// True: `vms` is the whole truth. False: `vms` holds only what changed since the last report
    /// on this connection, `null` for a VM that is gone.
    pub full: bool,
    /// VMs by uuid.
    #[schema(value_type = Object)]
    pub vms: BTreeMap<VmUuid, Option<Arc<VmReport>>>,
    /// [`digest`] of all VMs once this report is applied.
    pub digest: String,
    /// Bytes free and used by pool.
    #[serde(default, rename = "zpoolStatus")]
    #[schema(value_type = Object)]
    pub zpool_status: BTreeMap<String, PoolStatus>,
    /// Memory of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meminfo: Option<Meminfo>,
    /// Disk use of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diskinfo: Option<Diskinfo>,
    /// When the host booted, ISO 8601.
    #[serde(default)]
    pub boot_time: String,
    /// What the VMs use, all of those that run; only in periodic reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub usage: Option<Usages>,
    /// When the sample was taken, ISO 8601.
    #[serde(default)]
    pub timestamp: String,
    /// Agent version, intake, task counts, load, pressure, pool health.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub muster: Value,
}

/// What a report says about one VM: CNAPI's nine members, and the members of the VM index beside
/// them (over HTTP the index is the separate member `vm_index`, CNAPI's `vms` keeps its nine).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmReport {
    /// CNAPI's members.
    #[serde(flatten)]
    pub vm: VmStatus,
    /// For the fleet index and the allocator.
    #[serde(default)]
    pub index: VmIndex,
}

/// The nine members CNAPI keeps in a server's `vms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmStatus {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub uuid: VmUuid,
    /// Its owner.
    pub owner_uuid: String,
    /// `kvm`, `bhyve`, `joyent-minimal`, …
    pub brand: String,
    /// Percent of one core; absent: uncapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_cap: Option<u64>,
    /// GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// MiB, overhead of the hypervisor included.
    pub max_physical_memory: u64,
    /// `running`, `stopped`, `provisioning`, …
    pub state: String,
    /// `running`, `installed`, …
    pub zone_state: String,
    /// ISO 8601.
    pub last_modified: String,
}

/// The VM index members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmIndex {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Tags: strings, numbers, booleans.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub tags: BTreeMap<String, Value>,
    /// Virtual CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// Memory of the guest, MiB, without that of its hypervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<u64>,
    /// All its disks, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// When it was made, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// `internal_metadata["docker:id"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker_id: Option<String>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flexible_disk_size: Option<u64>,
    /// The image of its boot disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_uuid: Option<String>,
    /// The package that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_name: Option<String>,
    /// IP addresses of its network interfaces, without prefix lengths; `dhcp` where the guest uses DHCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Why it is in its state, e.g. `disk0: write: No space left on device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// While its guest runs: properties whose change waits for its next start, and what it runs with
    /// until then (`null` for anything but numbers and switches).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Object)]
    pub running_with: BTreeMap<String, Value>,
    /// What its guest agent says; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestInfo>,
}

/// What a guest agent says of its guest. Nobody else vouches for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestInfo {
    /// Release of the guest agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Its system, e.g. `Debian GNU/Linux 12 (bookworm)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// Release of its kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Its network interfaces, without the loopback; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<GuestInterface>,
    /// Who is logged in; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
}

/// A network interface as its guest has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GuestInterface {
    /// Its name inside.
    pub name: String,
    /// Its MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its addresses, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
}

/// Bytes free and used of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Free, bytes.
    pub bytes_available: u64,
    /// Used, bytes.
    pub bytes_used: u64,
}

/// Memory of the host, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Meminfo {
    /// Available to new work.
    pub availrmem_bytes: u64,
    /// ZFS cache.
    pub arcsize_bytes: u64,
    /// All.
    pub total_bytes: u64,
}

/// Disk use of the host, bytes; CNAPI stores each as `disk_<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the names are CNAPI's and say what they are")]
pub struct Diskinfo {
    pub kvm_zvol_used_bytes: u64,
    pub kvm_zvol_volsize_bytes: u64,
    pub kvm_quota_bytes: u64,
    pub kvm_quota_used_bytes: u64,
    pub zone_quota_bytes: u64,
    pub zone_quota_used_bytes: u64,
    pub cores_quota_bytes: u64,
    pub cores_quota_used_bytes: u64,
    pub installed_images_used_bytes: u64,
    pub pool_size_bytes: u64,
    pub pool_alloc_bytes: u64,
    pub system_used_bytes: u64,
}

/// A report's delta did not lead to the digest it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a status delta was lost")]
pub struct LostDelta;

/// Hash of a whole VM map: SHA-256 (hex) over its JSON, VMs in uuid order.
#[must_use]
pub fn digest(vms: &BTreeMap<VmUuid, VmReport>) -> String {
    digest_of(vms)
}

fn digest_of(vms: &impl Serialize) -> String {
    let json = serde_json::to_vec(vms).expect("a report has only string keys");
    hex::encode(Sha256::digest(json))
}

impl Report {
    /// The report that says all; the caller adds the figures.
    #[must_use]
    pub fn whole(vms: &BTreeMap<VmUuid, VmReport>) -> Self {
        let said = |(uuid, vm): (&VmUuid, &VmReport)| (*uuid, Some(Arc::new(vm.clone())));
        let digest = digest(vms);
        Self { full: true, vms: vms.iter().map(said).collect(), digest, ..Self::default() }
    }
}

/// The report that leads from `old` to `new`; the caller adds the figures.
#[must_use]
pub fn delta(old: &BTreeMap<VmUuid, VmReport>, new: &BTreeMap<VmUuid, VmReport>) -> Report {
    let mut vms: BTreeMap<_, _> = new
        .iter()
        .filter(|(uuid, vm)| old.get(*uuid) != Some(*vm))
        .map(|(uuid, vm)| (*uuid, Some(Arc::new(vm.clone()))))
        .collect();
    vms.extend(old.keys().filter(|uuid| !new.contains_key(*uuid)).map(|uuid| (*uuid, None)));
    Report { full: false, vms, digest: digest(new), ..Report::default() }
}

/// The VMs that the reports of one connection have led to.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    vms: BTreeMap<VmUuid, Arc<VmReport>>,
    /// Of `vms`; `None` while they are not what the other side has.
    digest: Option<Box<str>>,
}

impl Reported {
    /// Whether the reports so far have led to what the other side has.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.digest.is_some()
    }

    /// The VMs.
    #[must_use]
    pub fn vms(&self) -> &BTreeMap<VmUuid, Arc<VmReport>> {
        &self.vms
    }

    /// Applies the next report.
    ///
    /// # Errors
    /// [`LostDelta`]; only a full report helps then.
    pub fn apply(&mut self, report: &Report) -> Result<(), LostDelta> {
        let says_same = !report.full && report.vms.is_empty();
        if says_same && self.digest.as_deref() == Some(&report.digest) {
            return Ok(());
        }
        if report.full {
            self.vms.clear();
        }
        for (uuid, vm) in &report.vms {
            match vm {
                Some(vm) => drop(self.vms.insert(*uuid, Arc::clone(vm))),
                None => drop(self.vms.remove(uuid)),
            }
        }
        let digest = digest_of(&self.vms);
        let fits = digest == report.digest;
        self.digest = fits.then(|| digest.into());
        if fits { Ok(()) } else { Err(LostDelta) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn vms(states: &[&str]) -> BTreeMap<VmUuid, VmReport> {
        let vm = |(n, state): (u128, &&str)| {
            let uuid = VmUuid(Uuid::from_u128(n));
            let report = json!({
                "uuid": uuid, "owner_uuid": "o", "brand": "kvm", "max_physical_memory": 1,
                "state": state, "zone_state": state, "last_modified": "",
            });
            (uuid, serde_json::from_value(report).unwrap())
        };
        (0..).zip(states).map(vm).collect()
    }

    fn unchanged(vms: &BTreeMap<VmUuid, VmReport>) -> Report {
        delta(vms, vms)
    }

    #[test]
    fn reports_lead_to_what_their_sender_has() {
        let (one, two) = (vms(&["running", "running"]), vms(&["stopped"]));
        let mut reported = Reported::default();
        assert!(!reported.is_complete());
        reported.apply(&Report::whole(&one)).unwrap();
        reported.apply(&unchanged(&one)).unwrap();
        reported.apply(&delta(&one, &two)).unwrap();
        assert!(reported.is_complete());
        assert!(reported.vms().iter().map(|(vm, report)| (vm, &**report)).eq(&two));
    }

    #[test]
    fn a_frame_is_read_in_one_pass_as_in_two() {
        use crate::wire::{FromAgent, decode, encode};
        let frame: FromAgent =
            Box::new(Status { report: Some(Report::whole(&vms(&["running"]))) }).into();
        let text = encode(&frame);
        let Ok(FromAgent::Status(status)) = decode(&text) else { panic!("no status: {text}") };
        assert_eq!(Status::of_frame(&text).unwrap(), *status);
        assert_eq!(Status::of_frame(r#"{"kind":"status"}"#).unwrap(), Status::default());
        for other in [r#"{"kind":"heartbeat"}"#, r#"{"report":null}"#, "[]", "{"] {
            assert!(Status::of_frame(other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_was_lost_is_noticed_also_when_nothing_changes_any_more() {
        let (one, two) = (vms(&["running", "running"]), vms(&["running", "stopped"]));
        let mut reported = Reported::default();
        reported.apply(&Report::whole(&one)).unwrap();
        // The report that led to `two` did not come.
        assert_eq!(reported.apply(&unchanged(&two)), Err(LostDelta));
        assert!(!reported.is_complete());
        assert_eq!(reported.apply(&unchanged(&two)), Err(LostDelta), "it is still missing");
        reported.apply(&Report::whole(&two)).unwrap();
        assert!(reported.is_complete());
        let wrong = Report { digest: digest(&one), ..Report::whole(&two) };
        assert_eq!(reported.apply(&wrong), Err(LostDelta));
    }
}
