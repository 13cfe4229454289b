//! `machine_update_nics`: the networks of the datacentre changed; every VM that is on the changed
//! one gets its new gateway, resolvers and routes.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure, VmView, machine};
use crate::vms::VmRecord;

/// Networks of one request.
const MAX_NETWORKS: usize = 1024;

/// The kind; parameters `original_network` and `networks`, all of the datacentre.
#[derive(Debug)]
pub struct MachineUpdateNics;

impl Handler for MachineUpdateNics {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_update_nics", machine::MACHINE_TASKS, Duration::from_secs(1800))
    }

    fn example(&self) -> Params {
        let network = json!({ "subnet": "10.0.0.0/24", "netmask": "255.255.255.0", "vlan_id": 0,
            "nic_tag": "admin", "gateway": "10.0.0.1", "resolvers": ["10.0.0.2"] });
        Params::from_iter([
            ("original_network".to_owned(), network.clone()),
            ("networks".to_owned(), json!([network])),
        ])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), UpdateAll::parse(params)?, STEPS))
    }

    /// The VMs that are on the network now. One that comes to it later comes with its new values,
    /// or is changed by a task of its own, record by record as here.
    fn locks(&self, params: &Params, vms: &VmView<'_>) -> Vec<Lock> {
        let Ok(job) = UpdateAll::parse(params) else { return Vec::new() };
        vms.which(|record| job.concerns(record)).into_iter().map(Lock::Vm).collect()
    }
}

impl UpdateAll {
    fn parse(params: &Params) -> Result<Self, TaskFailure> {
        let original = params.get("original_network").unwrap_or(&Value::Null);
        let original = Network::parse("original_network", original)?;
        let listed = params.get("networks").and_then(Value::as_array);
        let listed = listed.filter(|networks| networks.len() <= MAX_NETWORKS);
        let listed = listed.ok_or_else(|| invalid("networks", "must be a list of networks"))?;
        let networks: Result<Vec<Network>, _> =
            listed.iter().map(|network| Network::parse("networks", network)).collect();
        Ok(Self { original, networks: networks? })
    }
}

fn invalid(field: &str, problem: &str) -> TaskFailure {
    let mut failure = TaskFailure::bad_param(field, problem);
    failure.message = format!("Invalid request parameters: {}", failure.message);
    failure
}

/// One network, as far as it reaches into VMs.
#[derive(Clone, Debug, PartialEq)]
struct Network {
    subnet: Ipv4Net,
    netmask: Option<String>,
    vlan_id: u64,
    nic_tag: String,
    gateway: Option<String>,
    resolvers: Vec<String>,
    routes: Map<String, Value>,
}

impl Network {
    fn parse(field: &str, value: &Value) -> Result<Self, TaskFailure> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let subnet = text("subnet").filter(|subnet| subnet.contains('/'));
        let subnet = subnet.and_then(|subnet| subnet.parse::<Ipv4Net>().ok());
        let subnet = subnet.ok_or_else(|| invalid(field, "subnet must be a.b.c.d/len"))?;
        let nic_tag = text("nic_tag").ok_or_else(|| invalid(field, "nic_tag must be a text"))?;
        let resolvers = value.get("resolvers").and_then(Value::as_array);
        let resolvers = resolvers.into_iter().flatten().filter_map(Value::as_str);
        let routes = value.get("routes").and_then(Value::as_object).cloned().unwrap_or_default();
        Ok(Self {
            subnet,
            netmask: text("netmask").map(str::to_owned),
            vlan_id: value.get("vlan_id").and_then(Value::as_u64).unwrap_or(0),
            nic_tag: nic_tag.to_owned(),
            gateway: text("gateway").map(str::to_owned),
            resolvers: resolvers.map(str::to_owned).collect(),
            routes,
        })
    }

    /// Whether a NIC is on it. One that asks DHCP has no address to tell.
    fn carries(&self, nic: &Value) -> bool {
        let ip = nic.get("ip").and_then(Value::as_str).or_else(|| nic["ips"][0].as_str());
        let ip = ip.and_then(|ip| ip.split('/').next()?.parse::<Ipv4Addr>().ok());
        let netmask = nic.get("netmask").and_then(Value::as_str);
        let same_mask = match (netmask, &self.netmask) {
            (Some(own), Some(wanted)) => own == wanted,
            _ => true,
        };
        nic["nic_tag"] == self.nic_tag.as_str()
            && nic.get("vlan_id").and_then(Value::as_u64).unwrap_or(0) == self.vlan_id
            && same_mask
            && ip.is_some_and(|ip| self.subnet.contains(&ip))
    }
}

const STEPS: &[Row<UpdateAll>] = steps![("update", 100, update)];

#[derive(Debug)]
struct UpdateAll {
    original: Network,
    networks: Vec<Network>,
}

impl UpdateAll {
    fn concerns(&self, record: &VmRecord) -> bool {
        record.list("nics").iter().any(|nic| self.original.carries(nic))
    }

    fn network_of(&self, nic: &Value) -> Option<&Network> {
        self.networks.iter().find(|network| network.carries(nic))
    }

    /// Brings one VM up to date.
    fn apply_to(&self, record: &mut VmRecord) {
        let keeps_resolvers = record
            .internal_metadata("set_resolvers")
            .is_some_and(|set| matches!(set, Value::Bool(false)) || *set == json!("false"));
        let (mut resolvers, mut routes) = (Vec::new(), Map::new());
        for nic in record.list("nics") {
            let Some(network) = self.network_of(nic) else { continue };
            for resolver in &network.resolvers {
                if !resolvers.contains(resolver) {
                    resolvers.push(resolver.clone());
                }
            }
            routes.extend(network.routes.clone());
        }
        if let Some(Value::Array(nics)) = record.properties.get_mut("nics") {
            for nic in nics.iter_mut().filter(|nic| self.original.carries(nic)) {
                let gateway = self.networks.iter().find(|network| network.carries(nic));
                if let Some(gateway) = gateway.and_then(|network| network.gateway.clone()) {
                    nic["gateway"] = json!(gateway);
                    nic["gateways"] = json!([gateway]);
                }
            }
        }
        if !keeps_resolvers && !resolvers.is_empty() {
            record.properties.insert("resolvers".to_owned(), json!(resolvers));
        }
        if !routes.is_empty() || record.properties.contains_key("routes") {
            record.properties.insert("routes".to_owned(), Value::Object(routes));
        }
    }
}

impl UpdateAll {
    async fn update(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vms = &ctx.drivers.vms;
        let entries = vms.entries();
        let concerned: Vec<_> =
            entries.iter().filter(|entry| self.concerns(&entry.record)).collect();
        ctx.progress(50);
        let (mut updated, mut unchanged, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for entry in concerned {
            let before = &entry.record;
            match vms.update(before.uuid, |record| self.apply_to(record)).await {
                Ok(after) if after.properties == before.properties => unchanged.push(after.uuid),
                Ok(after) => updated.push(after.uuid),
                Err(error) => {
                    let error = TaskFailure::from(error).message;
                    failures.push(json!({ "uuid": before.uuid, "error": error }));
                }
            }
        }
        let count = failures.len();
        ctx.finish_with(json!({
            "updated": updated, "unchanged": unchanged, "failed": failures,
        }));
        if count > 0 {
            let text = format!("vmadm.update error: {count} VMs could not be updated");
            return Err(TaskFailure::new(Code::InternalError, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    fn network(gateway: &str) -> Value {
        json!({ "subnet": "10.0.0.0/24", "netmask": "255.255.255.0", "vlan_id": 2,
            "nic_tag": "external", "gateway": gateway, "resolvers": ["8.8.8.8", "1.1.1.1"],
            "routes": { "10.1.0.0/16": "10.0.0.9" } })
    }

    fn step(gateway: &str) -> UpdateAll {
        let parse = |value: &Value| Network::parse("networks", value).unwrap();
        let networks = vec![parse(&network(gateway))];
        UpdateAll { original: parse(&network("10.0.0.1")), networks }
    }

    fn vm(ip: &str) -> VmRecord {
        let mut vm = record(1);
        let nic = json!({ "nic_tag": "external", "vlan_id": 2, "ip": ip, "gateway": "10.0.0.1",
            "netmask": "255.255.255.0" });
        vm.properties.insert("nics".to_owned(), json!([nic]));
        vm
    }

    #[test]
    fn a_vm_on_the_network_gets_what_changed() {
        let mut vm = vm("10.0.0.7");
        let step = step("10.0.0.254");
        assert!(step.concerns(&vm));
        step.apply_to(&mut vm);
        assert_eq!(vm.list("nics")[0]["gateway"], "10.0.0.254");
        assert_eq!(vm.properties["resolvers"], json!(["8.8.8.8", "1.1.1.1"]));
        assert_eq!(vm.properties["routes"], json!({ "10.1.0.0/16": "10.0.0.9" }));
        let once = vm.clone();
        step.apply_to(&mut vm);
        assert_eq!(vm, once);
    }

    #[test]
    fn others_are_not_concerned() {
        for other in [vm("10.0.1.7"), vm("dhcp")] {
            assert!(!step("10.0.0.254").concerns(&other));
        }
        let mut keeps = vm("10.0.0.7");
        keeps.properties.insert("internal_metadata".to_owned(), json!({ "set_resolvers": false }));
        step("10.0.0.254").apply_to(&mut keeps);
        assert!(!keeps.properties.contains_key("resolvers"));
    }

    #[test]
    fn subnets_are_checked() {
        for subnet in ["10.0.0.0", "10.0.0.0/33", "::/0", "x"] {
            let mut params = MachineUpdateNics.example();
            params["original_network"]["subnet"] = json!(subnet);
            let failure = MachineUpdateNics.plan(&params).unwrap_err();
            assert!(failure.message.starts_with("Invalid request parameters"), "{subnet}");
        }
    }
}
