//! Requests to the allocator: the question, what it imagines, and the policy that it names, over
//! a small fleet.

use std::sync::{Arc, LazyLock};

use muster_coordinator::alloc::{
    Config, Detail, Fitted, Fleet, HostOs, Options, Order, Request, WhatIf, allocate, fit,
    parse_capacity,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// Servers of the fleet.
const SERVERS: u128 = 6;

static POLICY: LazyLock<Config> = LazyLock::new(|| Config::reference_default(HostOs::Any));
static FLEET: LazyLock<Fleet> = LazyLock::new(|| {
    let mut fleet = Fleet::new(&POLICY);
    for number in 1..=SERVERS {
        let Value::Object(record) = server(number) else { unreachable!("it is an object") };
        fleet.upsert_server(Arc::new(record)).expect("it has a uuid");
    }
    fleet
});

fn server(number: u128) -> Value {
    let vm = Uuid::from_u128(0x100 + number);
    json!({
        "uuid": Uuid::from_u128(number), "status": "running", "setup": true, "hostname": "cn",
        "memory_total_bytes": 64_u64 << 30, "memory_available_bytes": 32_u64 << 30,
        "disk_pool_size_bytes": 1_u64 << 40, "reservation_ratio": 0.15,
        "rack_identifier": format!("r{}", number % 2),
        "traits": { "ssd": number.is_multiple_of(2) },
        "sysinfo": {
            "CPU Total Cores": 16, "MiB of Memory": "65536",
            "Network Interfaces": { "net0": { "NIC Names": ["admin", "external"] } },
        },
        "vms": {
            vm.to_string(): {
                "uuid": vm, "owner_uuid": Uuid::from_u128(9), "max_physical_memory": 1024,
                "quota": 10, "cpu_cap": 100, "brand": "kvm", "state": "running",
                "zone_state": "running", "tags": { "role": "web" }, "alias": "web0",
            },
        },
    })
}

/// Asks the question of the input, twice.
pub fn run(data: &[u8]) {
    let Ok(Value::Object(body)) = serde_json::from_slice::<Value>(data) else { return };
    drop(parse_capacity(&body));
    let mut fleet = FLEET.clone();
    let mut policy = None;
    if let Some(what_if) = body.get("what_if").and_then(|value| WhatIf::parse(value).ok()) {
        policy = what_if.policy(&POLICY).ok().flatten();
        what_if.apply(&mut fleet);
    }
    let Ok(request) = Request::parse(&body) else { return };
    let policy = policy.as_ref().unwrap_or(&POLICY);
    let snapshot = fleet.snapshot();
    let options = Options { order: Order::Shuffled, seed: 7, ..Options::default() };
    let outcome = allocate(&snapshot, &request, policy, &options);
    let again = allocate(&snapshot, &request, policy, &options);
    let shown = |outcome: &muster_coordinator::alloc::Outcome| {
        json!({
            "server": outcome.server.as_ref().map(|server| server.server_uuid.to_string()),
            "steps": outcome.steps(Detail::Full), "failure": outcome.failure(),
        })
    };
    assert_eq!(shown(&outcome), shown(&again), "the same question has two answers");
    if let Some(chosen) = &outcome.server {
        let named = snapshot.servers().any(|server| *server == chosen.server_uuid);
        assert!(named, "{:?} is not in the fleet", chosen.server_uuid);
        fleet.reserve(Uuid::from_u128(0x200), &chosen.server_uuid, request.promise());
        let fitted = Fitted { request: &request, extra: &request.promise() };
        drop(fit(&fleet.snapshot(), &chosen.server_uuid, fitted, policy));
    }
}
