//! Rules of the reference that the recorded cases don't reach, each on a small fleet.

use muster_alloc::offline::Offline;
use serde_json::{Value, json};

const OWNER: &str = "dea0834e-4747-4f77-aed4-b2a2737b59a8";
const GIB: u64 = 1 << 30;

fn uuid(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

fn server(n: usize, vms: &[usize]) -> Value {
    let vm = |vm: &usize| {
        let members = json!({
            "uuid": uuid(*vm), "owner_uuid": OWNER, "brand": "kvm", "max_physical_memory": 1024,
            "quota": 10, "cpu_cap": 100, "state": "running",
        });
        (uuid(*vm), members)
    };
    json!({
        "uuid": uuid(n), "setup": true, "reserved": false, "headnode": false, "status": "running",
        "reservation_ratio": 0.15, "overprovision_ratios": { "cpu": 4.0, "ram": 1.0, "disk": 1.0 },
        "memory_total_bytes": 64 * GIB, "memory_available_bytes": 60 * GIB,
        "disk_pool_size_bytes": 900 * GIB, "disk_pool_alloc_bytes": 0,
        "disk_system_used_bytes": 0, "disk_installed_images_used_bytes": 0,
        "disk_cores_quota_used_bytes": 0, "disk_zone_quota_bytes": 0,
        "disk_zone_quota_used_bytes": 0, "disk_kvm_quota_bytes": 0,
        "disk_kvm_zvol_volsize_bytes": 0,
        "sysinfo": {
            "Live Image": "20230101T000105Z", "CPU Total Cores": 16,
            "Network Interfaces": { "net0": { "Link Status": "up", "NIC Names": ["external"] } },
        },
        "vms": vms.iter().map(vm).collect::<serde_json::Map<_, _>>(),
    })
}

fn allocate(servers: &[Value], expression: &Value, vm: &Value) -> Value {
    let mut request = json!({
        "vm": { "vm_uuid": uuid(999), "owner_uuid": OWNER, "ram": 1024 },
        "image": {}, "nic_tags": [],
        "package": { "max_physical_memory": 1024, "overprovision_ram": 1 },
    });
    for (name, value) in vm.as_object().expect("members") {
        request["vm"][name] = value.clone();
    }
    let config = json!({ "allocationDescription": expression });
    let document =
        json!({ "servers": servers, "tickets": [], "config": config, "request": request });
    let case = Offline::default().document(&document.to_string()).expect("it is usable");
    serde_json::to_value(case.decide().line(None)).expect("it is JSON")
}

#[test]
fn an_affinity_that_means_nobody_leaves_the_locality() {
    let servers = [server(1, &[11]), server(2, &[])];
    let expression =
        json!(["pipe", "load-server-vms", "calculate-affinity", "hard-filter-locality-hints"]);
    let wish = |key: &str, soft: bool| {
        json!([{ "key": key, "operator": "!=", "value": "nobody", "valueType": "exact",
            "isSoft": soft }])
    };
    for affinity in [json!([]), wish("image", false), wish("instance", true)] {
        let locality = json!({ "strict": true, "far": uuid(11) });
        let vm = json!({ "affinity": affinity, "locality": locality });
        assert_eq!(allocate(&servers, &expression, &vm)["server"], uuid(2), "{vm}");
    }
}

#[test]
fn a_failed_branch_forgets_no_figures() {
    let servers = [server(1, &[11, 12]), server(2, &[])];
    let figures = "calculate-server-unreserved";
    let expression = json!([
        "pipe",
        "load-server-vms",
        figures,
        [
            "or",
            ["pipe", "hard-filter-owner-same-servers", figures, "hard-filter-force-failure"],
            ["pipe", "identity"]
        ],
        "sort-min-ram"
    ]);
    let vm = json!({ "internal_metadata": { "force_designation_failure": true } });
    let answer = allocate(&servers, &expression, &vm);
    assert_eq!(answer["server"], uuid(1), "{answer:#}");
}

#[test]
fn a_vm_without_cap_is_not_asked_for_ratios() {
    let servers = [server(1, &[])];
    let expression =
        json!(["pipe", "load-server-vms", "calculate-server-unreserved", "hard-filter-min-cpu"]);
    assert_eq!(allocate(&servers, &expression, &json!({}))["server"], uuid(1));
    assert_eq!(allocate(&servers, &expression, &json!({ "cpu_cap": 100 }))["server"], Value::Null);
}

#[test]
fn servers_with_senseless_records_are_sorted_all_the_same() {
    let mut servers: Vec<_> = (1..40).map(|n| server(n, &[])).collect();
    for server in servers.iter_mut().step_by(3) {
        server["reservation_ratio"] = json!("x");
    }
    let expression =
        json!(["pipe", "load-server-vms", "calculate-server-unreserved", "score-unreserved-ram"]);
    assert!(allocate(&servers, &expression, &json!({}))["server"].is_string());
}

#[test]
fn a_request_says_vcpus_as_a_number() {
    let refused =
        allocate(&[server(1, &[])], &json!(["pipe", "identity"]), &json!({ "vcpus": "" }));
    assert_eq!(refused["error"]["errors"][0]["message"], "VM \"vcpus\" is not a number");
}

#[test]
fn a_server_without_uuid_is_an_invalid_server() {
    let expression = json!(["pipe", "hard-filter-invalid-servers"]);
    let mut nameless = server(1, &[]);
    nameless.as_object_mut().expect("an object").remove("uuid");
    let answer = allocate(&[nameless.clone(), server(2, &[])], &expression, &json!({}));
    assert_eq!(answer["server"], uuid(2), "{answer:#}");
    let reason = &answer["steps"][1]["reasons"]["undefined"];
    assert_eq!(reason, "property \"uuid\": is missing and it is required");
    nameless["uuid"] = json!(5);
    let answer = allocate(&[nameless], &expression, &json!({}));
    assert_eq!(answer["server"], Value::Null, "{answer:#}");
    assert!(answer["steps"][1]["reasons"]["5"].is_string(), "{answer:#}");
}

#[test]
fn a_status_that_is_no_text_is_told_as_it_is() {
    let mut odd = server(1, &[]);
    odd["status"] = Value::Null;
    let answer = allocate(&[odd], &json!(["pipe", "hard-filter-running"]), &json!({}));
    let reason = &answer["steps"][1]["reasons"][uuid(1)];
    assert_eq!(reason, "Server has status: null", "{answer:#}");
}

#[test]
fn a_host_that_says_no_vcpus_gets_no_bhyve_vm() {
    let vm = json!({ "brand": "bhyve", "vcpus": 2 });
    let answer = |max: Value, cores: Value| {
        let mut host = server(1, &[]);
        host["sysinfo"]["Bhyve Capable"] = json!(true);
        host["sysinfo"]["Bhyve Max Vcpus"] = max;
        host["sysinfo"]["CPU Total Cores"] = cores;
        for name in ["Bhyve Max Vcpus", "CPU Total Cores"] {
            if host["sysinfo"][name].is_null() {
                host["sysinfo"].as_object_mut().expect("an object").remove(name);
            }
        }
        allocate(&[host], &json!(["pipe", "hard-filter-hvm"]), &vm)
    };
    let none = answer(json!(0), json!(16));
    let reason = none["steps"][1]["reasons"][uuid(1)].as_str().expect("a reason");
    assert!(reason.ends_with("whereas server supports 1 - 0 vcpus"), "{none:#}");
    let one = answer(Value::Null, json!(1));
    let reason = one["steps"][1]["reasons"][uuid(1)].as_str().expect("a reason");
    assert!(reason.ends_with("whereas server supports 1 - 1 vcpus"), "{one:#}");
    for (max, cores) in [(Value::Null, json!(16)), (json!("x"), json!(16)), (json!(2), Value::Null)]
    {
        assert_eq!(answer(max.clone(), cores.clone())["server"], uuid(1), "{max} {cores}");
    }
}

#[test]
fn memory_that_nobody_names_is_not_zero() {
    let left = [
        "pipe",
        "load-server-vms",
        "calculate-ticketed-vms",
        "calculate-server-unreserved",
        "hard-filter-min-ram",
    ];
    let mut unknown = server(1, &[11]);
    let full = allocate(&[unknown.clone()], &json!(left), &json!({}));
    assert_eq!(full["server"], uuid(1), "{full:#}");
    for memory in [json!(null), json!("much")] {
        unknown["vms"][uuid(11)]["max_physical_memory"] = memory;
        let answer = allocate(&[unknown.clone()], &json!(left), &json!({}));
        assert_eq!(answer["server"], Value::Null, "{answer:#}");
    }
    let request = json!({
        "vm": { "vm_uuid": uuid(999), "owner_uuid": OWNER, "ram": 1024 }, "image": {},
        "nic_tags": [], "package": { "max_physical_memory": 1024, "overprovision_ram": 1 },
    });
    for (extra, fits) in [
        (json!({ "owner_uuid": OWNER, "brand": "kvm" }), false),
        (json!({ "owner_uuid": OWNER, "brand": "kvm", "max_physical_memory": 1024 }), true),
    ] {
        let ticket = json!({
            "uuid": uuid(50), "id": uuid(51), "server_uuid": uuid(1), "scope": "vm",
            "action": "provision", "status": "active", "extra": extra,
        });
        let document = json!({
            "servers": [server(1, &[])], "tickets": [ticket],
            "config": { "allocationDescription": left }, "request": request,
        });
        let case = Offline::default().document(&document.to_string()).expect("it is usable");
        let answer = serde_json::to_value(case.decide().line(None)).expect("it is JSON");
        assert_eq!(answer["server"].is_string(), fits, "{answer:#}");
    }
}

#[test]
fn a_strict_wish_that_nobody_can_read_is_refused() {
    let servers = [server(1, &[11])];
    let expression =
        json!(["pipe", "load-server-vms", "calculate-affinity", "hard-filter-locality-hints"]);
    for (operator, soft, placed) in
        [("!=", false, false), ("==", false, false), ("!=", true, true), ("==", true, true)]
    {
        let vm = json!({ "affinity": [{ "key": "instance", "operator": operator,
            "value": "/web(?!0)/", "valueType": "re", "isSoft": soft }] });
        let answer = allocate(&servers, &expression, &vm);
        assert_eq!(answer["server"].is_string(), placed, "{answer:#}");
        if !placed {
            let text = answer.to_string();
            assert!(text.contains("unsupported regular expression in affinity"), "{text}");
        }
    }
}

#[test]
fn only_a_docker_container_has_a_docker_id() {
    let id = format!("{}{}", uuid(11).replace('-', ""), "0".repeat(32));
    let expression =
        json!(["pipe", "load-server-vms", "calculate-affinity", "hard-filter-locality-hints"]);
    let vm = json!({ "affinity": [{ "key": "instance", "operator": "==", "value": id,
        "valueType": "exact", "isSoft": false }] });
    for docker in [true, false] {
        let mut host = server(1, &[11]);
        host["vms"][uuid(11)]["internal_metadata"] = json!({ "docker:id": id });
        host["vms"][uuid(11)]["docker"] = json!(docker);
        let answer = allocate(&[host], &expression, &vm);
        assert_eq!(answer["server"].is_string(), docker, "{answer:#}");
    }
}

#[test]
fn traits_that_are_a_list_are_shown_as_one() {
    let mut odd = server(1, &[]);
    odd["traits"] = json!(["ssd"]);
    let answer = allocate(&[odd], &json!(["pipe", "hard-filter-traits"]), &json!({}));
    let reason = &answer["steps"][1]["reasons"][uuid(1)];
    let text = "Combined vm/pkg/img require no traits but server has [\"ssd\"]";
    assert_eq!(reason, text, "{answer:#}");
}
