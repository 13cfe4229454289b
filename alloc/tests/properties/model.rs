//! A small model of a fleet, for property tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_alloc::{
    Config, Extra, Fleet, HostOs, News, Options, Order, Outcome, Request, ServerName, allocate,
};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MIB: f64 = 1_048_576.0;

pub(crate) fn server_uuid(n: u8) -> ServerName {
    ServerUuid(Uuid::from_u128(0x5000 + u128::from(n))).into()
}

pub(crate) fn vm_uuid(n: u8) -> Uuid {
    Uuid::from_u128(0x7000 + u128::from(n))
}

pub(crate) fn owner(n: u8) -> String {
    Uuid::from_u128(0x9000 + u128::from(n % 3)).to_string()
}

/// A VM of the model: on which server, and what it takes.
#[derive(Clone, Debug)]
pub(crate) struct ModelVm {
    pub(crate) id: u8,
    pub(crate) owner: u8,
    pub(crate) ram: u64,
    pub(crate) up: bool,
}

/// A server of the model. `flaw` picks what is wrong with it, mostly nothing.
#[derive(Clone, Debug)]
pub(crate) struct ModelServer {
    pub(crate) id: u8,
    pub(crate) ram_gib: u64,
    pub(crate) flaw: u8,
    pub(crate) reboot: Option<u8>,
    pub(crate) vms: Vec<ModelVm>,
}

pub(crate) fn vms() -> impl Strategy<Value = Vec<ModelVm>> {
    let vm = (0..40u8, 0..3u8, 1..8u64, prop::bool::weighted(0.8));
    let vm = vm.prop_map(|(id, owner, gib, up)| ModelVm { id, owner, ram: gib * 1024, up });
    prop::collection::vec(vm, 0..5).prop_map(|vms| {
        let by_id: BTreeMap<u8, ModelVm> = vms.into_iter().map(|vm| (vm.id, vm)).collect();
        by_id.into_values().collect()
    })
}

pub(crate) fn server() -> impl Strategy<Value = ModelServer> {
    let parts = (0..12u8, 1..64u64, 0..20u8, prop::option::of(0..28u8), vms());
    parts.prop_map(|(id, ram_gib, flaw, reboot, vms)| ModelServer {
        id,
        ram_gib,
        flaw,
        reboot,
        vms,
    })
}

pub(crate) fn servers() -> impl Strategy<Value = Vec<ModelServer>> {
    prop::collection::vec(server(), 0..12).prop_map(|servers| {
        let by_id: BTreeMap<u8, ModelServer> = servers.into_iter().map(|s| (s.id, s)).collect();
        by_id.into_values().collect()
    })
}

impl ModelServer {
    pub(crate) fn record(&self) -> Map<String, Value> {
        let (id, flaw) = (self.id, self.flaw);
        let mut record = json!({
            "uuid": server_uuid(id), "setup": flaw != 0, "reserved": flaw == 1,
            "status": if flaw == 2 { "unknown" } else { "running" },
            "headnode": flaw == 3, "reservoir": flaw == 4, "reservation_ratio": 0.15,
            "current_platform": format!("202301{:02}T000000Z", id + 1),
            "last_boot": "2022-01-01T00:00:00.000Z",
            "traits": if flaw == 5 { json!({"ssd": true}) } else { json!({}) },
            "sysinfo": {
                "Live Image": "20230101T000000Z", "SDC Version": "7.0", "CPU Total Cores": 64,
                "System Type": "Linux", "Zpool Encrypted": flaw == 6,
                "Network Interfaces": {"net0": {
                    "Link Status": if flaw == 7 { "down" } else { "up" }, "NIC Names": ["admin"],
                }},
            },
        });
        if let Some(day) = self.reboot {
            record["next_reboot"] = json!(format!("2030-01-{:02}T00:00:00.000Z", day + 1));
        }
        if flaw == 8 {
            record["reserved"] = json!("no");
        }
        record.as_object().expect("an object").clone()
    }

    pub(crate) fn vm_reports(&self) -> Vec<VmReport> {
        let vm = |vm: &ModelVm| {
            let status = VmStatus {
                uuid: VmUuid(vm_uuid(vm.id)),
                owner_uuid: owner(vm.owner),
                brand: if vm.id.is_multiple_of(2) { "kvm" } else { "joyent" }.to_owned(),
                cpu_cap: Some(100),
                quota: Some(10),
                max_physical_memory: vm.ram,
                state: if vm.up { "running" } else { "provisioning" }.to_owned(),
                zone_state: "running".to_owned(),
                last_modified: String::new(),
            };
            VmReport { vm: status, index: VmIndex::default() }
        };
        self.vms.iter().map(vm).collect()
    }

    /// Says what the server reports, of a server of any name.
    pub(crate) fn report_as(&self, name: &ServerName, status: &str, fleet: &mut Fleet) {
        let bytes = |figure: &str| match figure {
            "memory_total_bytes" => self.ram_gib * GIB,
            "memory_available_bytes" => GIB,
            "disk_pool_size_bytes" => 4096 * GIB,
            _ => 0,
        };
        let figure = |figure: &str| i64::try_from(bytes(figure)).ok();
        let mut news = News::new();
        news.set_status(status);
        news.set_figures(figure);
        news.no_other_vms();
        self.vm_reports().iter().for_each(|vm| news.set_vm(vm));
        fleet.take_news(name, news);
    }

    /// Says what the server reports.
    pub(crate) fn report(&self, status: &str, fleet: &mut Fleet) {
        self.report_as(&server_uuid(self.id), status, fleet);
    }

    pub(crate) fn add_to(&self, fleet: &mut Fleet) {
        let record = self.record();
        let status = record["status"].as_str().expect("text").to_owned();
        fleet.upsert_server(Arc::new(record)).expect("the record has a uuid");
        self.report(&status, fleet);
    }
}

pub(crate) fn config() -> Config {
    Config::reference_default(HostOs::Any)
}

pub(crate) fn build(servers: &[ModelServer]) -> Fleet {
    let mut fleet = Fleet::new(&config());
    for server in servers {
        server.add_to(&mut fleet);
    }
    fleet
}

pub(crate) fn body(ram: u64, owner_id: u8) -> Map<String, Value> {
    let body = json!({
        "vm": {"vm_uuid": Uuid::from_u128(1).to_string(), "owner_uuid": owner(owner_id),
               "ram": ram, "brand": "kvm", "cpu_cap": 100, "quota": 10},
        "image": {}, "package": {"max_physical_memory": ram, "cpu_cap": 100},
        "nic_tags": ["admin"],
    });
    body.as_object().expect("an object").clone()
}

pub(crate) fn request(ram: u64, owner_id: u8) -> Request {
    Request::parse(&body(ram, owner_id)).expect("the request is good")
}

pub(crate) fn decide(fleet: &mut Fleet, request: &Request) -> Outcome {
    let options = Options { order: Order::Uuid, seed: 5, ..Options::default() };
    allocate(&fleet.snapshot(), request, &config(), &options)
}

pub(crate) fn winner(outcome: &Outcome) -> Option<&ServerName> {
    outcome.server.as_ref().map(|server| &server.server_uuid)
}

pub(crate) fn extra(vm: u8, gib: u64) -> Extra {
    Extra {
        owner_uuid: owner(vm),
        max_physical_memory: f64::from(u32::try_from(gib * 1024).expect("small")),
        cpu_cap: Some(100.0),
        quota: 10.0,
        brand: "kvm".to_owned(),
        disks_mib: 10_240.0,
    }
}
