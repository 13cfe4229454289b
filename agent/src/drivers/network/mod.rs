//! Networks: what connects the NICs of VMs with the world outside the hypervisor.

mod bridged;
mod filter;
mod firewall;
mod forward;
mod guard;
pub mod links;
mod namespaces;
pub mod sim;
mod stamp;
mod user;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::vm::{CONTAINER_BRANDS, MAX_DEVICES, Rule, firewall_rules};
use muster_shared::wire::Code;
use serde_json::{Map, Value};

pub use self::bridged::{BridgedConfig, BridgedNetworks};
pub use self::forward::{Forward, PublishOn, forwards};
pub use self::stamp::{BridgeStamp, bridge_name, is_of_an_agent, tap_name};
pub use self::user::{UserNetwork, UserNetworks};
use super::DriverError;
use crate::vm_record::VmRecord;

/// The card that the guest sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicModel {
    /// Paravirtual.
    #[default]
    Virtio,
    /// Intel 82540EM.
    E1000,
    /// Realtek 8139.
    Rtl8139,
}

/// A NIC that a VM is to have, as its record describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its place among those of the VM; 0 is the first.
    pub index: usize,
    /// Its number, which it keeps when others come or go: its devices on both sides are named by it.
    pub number: usize,
    /// `02:00:00:00:00:01`.
    pub mac: String,
    /// The card.
    pub model: NicModel,
    /// The network that it is to be in, e.g. `admin`.
    pub tag: Option<String>,
    /// The VLAN that it is to be in; 0: none.
    pub vlan_id: u16,
    /// Its largest packet, bytes; `None`: the network's.
    pub mtu: Option<u32>,
    /// Its cable is out: the guest sees no carrier.
    pub link_down: bool,
    /// Ports of the host that lead to it.
    pub forwards: Vec<Forward>,
    /// All that the VM's record says of it.
    pub described: Value,
    /// The firewall of its VM, if it is enabled.
    pub firewall: Option<Arc<VmFirewall>>,
    /// It is a container's: one end of it is in the container's namespace.
    pub in_namespace: bool,
}

/// What a VM's record says of its firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmFirewall {
    /// Rules that are enabled.
    pub rules: Vec<Rule>,
    /// Its tags, by which rules name it.
    pub tags: Value,
}

impl VmFirewall {
    /// `None`: it is not enabled.
    fn of(properties: &Map<String, Value>) -> Result<Option<Arc<Self>>, DriverError> {
        let rules = firewall_rules(properties.get("firewall_rules"));
        let rules = rules.map_err(|(number, bad)| {
            let text = format!("firewall_rules.{number}: {bad}");
            DriverError::refused(Code::InvalidParameters, text)
        })?;
        let enabled = properties.get("firewall_enabled").is_some_and(|enabled| *enabled == true);
        let tags = properties.get("tags").cloned().unwrap_or_default();
        Ok(enabled.then(|| Arc::new(Self { rules, tags })))
    }
}

impl Nic {
    /// The NICs of a VM, in their order.
    ///
    /// # Errors
    /// `InvalidParameters`: its published ports or its firewall rules are of no known form.
    pub fn all(vm: &VmRecord) -> Result<Vec<Self>, DriverError> {
        Self::of(&vm.properties)
    }

    /// The NICs of a VM with these properties, in their order.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub fn of(properties: &Map<String, Value>) -> Result<Vec<Self>, DriverError> {
        let mut published = forwards(properties)?;
        let firewall = VmFirewall::of(properties)?;
        let brand = properties.get("brand").and_then(Value::as_str);
        let in_namespace = brand.is_some_and(|brand| CONTAINER_BRANDS.contains(&brand));
        let nics = properties.get("nics").and_then(Value::as_array);
        let nics = nics.map_or(&[][..], Vec::as_slice);
        let numbered = nics.iter().zip(numbers(nics)).enumerate();
        // Published ports lead to the first one.
        let nic = |(index, (nic, number))| Self {
            index,
            number,
            forwards: std::mem::take(&mut published),
            firewall: firewall.clone(),
            in_namespace,
            ..Self::described(nic)
        };
        Ok(numbered.map(nic).collect())
    }

    fn described(nic: &Value) -> Self {
        let text = |name: &str| nic.get(name).and_then(Value::as_str);
        let model = match text("model") {
            Some("e1000") => NicModel::E1000,
            Some("rtl8139") => NicModel::Rtl8139,
            _ => NicModel::Virtio,
        };
        let number = |name: &str| nic.get(name).and_then(Value::as_u64);
        Self {
            mac: text("mac").unwrap_or_default().to_owned(),
            model,
            tag: text("nic_tag").map(str::to_owned),
            vlan_id: number("vlan_id").and_then(|vlan| u16::try_from(vlan).ok()).unwrap_or(0),
            mtu: number("mtu").and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu > 0),
            link_down: nic.get("link_down").is_some_and(|down| *down == true),
            described: nic.clone(),
            ..Self::default()
        }
    }
}

/// The numbers of a VM's NICs: that of its interface (`net1`), or the lowest that is free.
#[must_use]
pub fn numbers(nics: &[Value]) -> Vec<usize> {
    let mut taken = BTreeSet::new();
    let own = |nic: &Value| {
        let number = nic.get("interface")?.as_str()?.strip_prefix("net")?.parse().ok()?;
        (number < MAX_DEVICES && taken.insert(number)).then_some(number)
    };
    let own: Vec<Option<usize>> = nics.iter().map(own).collect();
    let mut free = (0..).filter(|number| !taken.contains(number));
    own.into_iter().map(|own| own.or_else(|| free.next()).unwrap_or_default()).collect()
}

/// How a NIC is connected on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Through the hypervisor's own sockets: nothing is made on the host.
    User {
        /// The guest reaches nothing; published ports still lead to it.
        restricted: bool,
    },
    /// Through a tap, which is a port of a bridge of the host.
    Tap {
        /// Its name.
        name: String,
        /// Largest packet, bytes.
        mtu: u32,
    },
    /// Through a pair of links, one end of which is a port of a bridge of the host.
    Pair {
        /// The name of the end on the host.
        name: String,
        /// The network namespace with the other end, which has its addresses already.
        namespace: PathBuf,
    },
}

/// A NIC with its host's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The NIC.
    pub nic: Nic,
    /// Its host's side.
    pub backend: Backend,
}

/// Connects NICs.
#[async_trait]
pub trait Networks: fmt::Debug + Send + Sync + 'static {
    /// `bridge`, `user`, `sim`.
    fn name(&self) -> &'static str;

    /// What this host lacks, for `Muster.degraded`.
    fn degraded(&self) -> Vec<String>;

    /// Makes again what the NICs of all VMs share on this host, where somebody took it away; to be
    /// called now and then. What can't be made is in [`Self::degraded`].
    async fn mend(&self);

    /// Checks what a VM with these properties wants of its networks, before anything of it is made.
    ///
    /// # Errors
    /// `InvalidParameters` that names the property; or the host could not be read.
    async fn check(&self, properties: &Map<String, Value>) -> Result<(), DriverError>;

    /// Whether a bridge has to be made before guests are in the network of a nic tag on the interface
    /// with this address: not where the operator has made it, nor for user-mode networks.
    ///
    /// # Errors
    /// The host could not be read.
    async fn lacks_bridge(&self, tag: &str, mac: &str) -> Result<bool, DriverError>;

    /// Makes the host's side of a VM's NICs, in their order. One that is there stays, one that is no
    /// longer among them goes.
    ///
    /// # Errors
    /// It can't be made. What was made before the failure is removed by [`Self::detach`].
    async fn attach(&self, vm: VmUuid, nics: &[Nic]) -> Result<Vec<Attached>, DriverError>;

    /// Removes the host's side of all NICs of a VM that does not run. None is no error.
    ///
    /// # Errors
    /// It can't be removed.
    async fn detach(&self, vm: VmUuid) -> Result<(), DriverError>;

    /// VMs for which something is on the host, whether or not they have a record; and the names of
    /// that.
    ///
    /// # Errors
    /// The host could not be read.
    async fn holders(&self) -> Result<BTreeMap<VmUuid, Vec<String>>, DriverError>;

    /// What went over the NICs of each VM since they were made, as the guest sees it, as far as this
    /// host counts it: user-mode networks count nothing.
    ///
    /// # Errors
    /// The host could not be read.
    async fn counters(&self) -> Result<BTreeMap<VmUuid, Counters>, DriverError>;
}

/// What went over NICs, as their guest sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
}

impl Counters {
    fn plus(self, other: Self) -> Self {
        Self {
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received_packets: self.received_packets.saturating_add(other.received_packets),
            sent_packets: self.sent_packets.saturating_add(other.sent_packets),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::drivers::cluster::Cluster;
    use crate::drivers::faults::{Fault, Faults};
    use crate::failure::TaskFailure;
    use crate::vms::sim::record;

    fn vm() -> VmRecord {
        let mut vm = record(1);
        let nics = json!([
            { "mac": "02:00:00:00:00:01", "nic_tag": "admin" },
            { "mac": "02:00:00:00:00:02", "model": "e1000" },
        ]);
        vm.properties.insert("nics".to_owned(), nics);
        let metadata = json!({ "muster:hostfwd": "tcp:127.0.0.1:2222-:22" });
        vm.properties.insert("internal_metadata".to_owned(), metadata);
        vm
    }

    /// What each implementation has to do.
    async fn conforms(networks: &dyn Networks) {
        let vm = vm();
        let nics = Nic::all(&vm).unwrap();
        networks.check(&vm.properties).await.unwrap();
        networks.detach(vm.uuid).await.unwrap();
        let first = networks.attach(vm.uuid, &nics).await.unwrap();
        let attached: Vec<_> = first.iter().map(|attached| attached.nic.clone()).collect();
        assert_eq!(attached, nics);
        assert_eq!(networks.attach(vm.uuid, &nics).await.unwrap(), first);
        assert_eq!(networks.attach(vm.uuid, &nics[1..]).await.unwrap().len(), 1);
        networks.detach(vm.uuid).await.unwrap();
        networks.detach(vm.uuid).await.unwrap();
        assert!(networks.holders().await.unwrap().is_empty());
        publishes_on_loopback_alone(networks, vm).await;
    }

    /// Also where the record is from before this was a rule.
    async fn publishes_on_loopback_alone(networks: &dyn Networks, mut vm: VmRecord) {
        let metadata = json!({ "muster:hostfwd": "tcp:0.0.0.0:2222-:22" });
        vm.properties.insert("internal_metadata".to_owned(), metadata);
        let nics = Nic::all(&vm).unwrap();
        for refused in [
            networks.check(&vm.properties).await.unwrap_err(),
            networks.attach(vm.uuid, &nics).await.unwrap_err(),
        ] {
            let code = TaskFailure::from(refused).code;
            assert_eq!(code, Code::InvalidParameters);
        }
        assert!(networks.holders().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn every_implementation_conforms() {
        conforms(&UserNetworks::restricted()).await;
        let sim = sim::SimHolders::default();
        conforms(&sim::SimNetworks::new(sim.clone(), Faults::none())).await;
        assert!(sim.vms().is_empty());
        let bridged = BridgedConfig {
            server_uuid: uuid::Uuid::from_u128(1).into(),
            cluster: Cluster::unknown(),
            user_tags: Vec::new(),
            server_tags: Vec::new(),
            prefix: "muster".to_owned(),
            data_dir: std::path::PathBuf::from("/nonexistent"),
            run_dir: std::path::PathBuf::from("/nonexistent"),
            exec: Arc::new(crate::host::FakeExec::default()),
        };
        let links = Arc::new(links::sim::SimLinks::default());
        let user = Arc::new(UserNetworks::restricted());
        conforms(&BridgedNetworks::open(bridged, links, user).await).await;
    }

    #[tokio::test]
    async fn what_was_made_before_a_failure_is_told_and_removed() {
        let (faults, holders) = (Faults::none(), sim::SimHolders::default());
        let networks = sim::SimNetworks::new(holders.clone(), faults.clone());
        faults.fail_nth("networks.attach", 1, Fault::after());
        let vm = vm();
        networks.attach(vm.uuid, &Nic::all(&vm).unwrap()).await.unwrap_err();
        assert!(networks.holders().await.unwrap().keys().eq([&vm.uuid]));
        networks.detach(vm.uuid).await.unwrap();
        assert!(holders.vms().is_empty());
    }

    #[test]
    fn nics_are_read_from_the_record() {
        let nics = Nic::all(&vm()).unwrap();
        assert_eq!(nics[0].forwards.len(), 1);
        assert_eq!((nics[0].tag.as_deref(), nics[0].model), (Some("admin"), NicModel::Virtio));
        assert_eq!((nics[1].index, nics[1].model), (1, NicModel::E1000));
        assert!(nics[1].forwards.is_empty());
    }

    #[test]
    fn a_nic_keeps_its_number_when_others_go() {
        let nic = |interface: &str| json!({ "interface": interface });
        let numbered =
            |names: &[&str]| numbers(&names.iter().map(|name| nic(name)).collect::<Vec<_>>());
        assert_eq!(numbered(&["net0", "net1", "net2"]), [0, 1, 2]);
        assert_eq!(numbered(&["net2", "net0"]), [2, 0]);
        // Names that tell none, or the same twice, or one beyond all there can be.
        assert_eq!(numbered(&["uplink", "net0", "net0", "net99", "eth5"]), [1, 0, 2, 3, 4]);
        assert_eq!(numbers(&[json!({}), nic("net1"), json!({})]), [0, 1, 2]);
    }
}
