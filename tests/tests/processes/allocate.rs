//! Allocations through the API of a real coordinator, which is killed meanwhile.

use std::collections::BTreeMap;

use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use reqwest::Method;
use serde_json::{Value, json};

/// Servers, and how many VMs of the package each holds in turn.
const SERVERS: usize = 20;
const FITS: [u64; 2] = [7, 8];

fn body(vm: &str) -> Value {
    json!({
        "vm": { "vm_uuid": vm, "owner_uuid": "dea0834e-4747-4f77-aed4-b2a2737b59a8", "ram": 1024,
                "brand": "joyent", "cpu_cap": 100, "quota": 1 },
        "image": {},
        "package": { "max_physical_memory": 1024, "cpu_cap": 100, "quota": 1024 },
        "nic_tags": ["admin"],
    })
}

/// Registers a server as an agent of the reference does.
async fn register(client: &Client, server: &str) {
    let sysinfo = json!({
        "UUID": server, "Hostname": server, "Live Image": "20260101T000000Z", "Setup": true,
        "System Type": "Linux", "Boot Time": "1700000000", "SDC Version": "7.0",
        "CPU Total Cores": 64, "CPU Online Count": 64, "MiB of Memory": "16384",
        "Network Interfaces": { "eth0": { "Link Status": "up", "NIC Names": ["admin"] } },
    });
    let path = format!("/servers/{server}/sysinfo");
    client.post(&path, &json!({ "sysinfo": sysinfo })).await.expect(200);
}

async fn report(client: &Client, server: &str, fits: u64) {
    // 15 % are never promised; the half keeps rounding away.
    let total = ((fits * 1024 + 512) * 100).div_ceil(85) << 20;
    let status = json!({
        "vms": {},
        "meminfo": { "availrmem_bytes": total, "arcsize_bytes": 0, "total_bytes": total },
        "diskinfo": { "pool_size_bytes": 4000u64 << 30, "pool_alloc_bytes": 0,
            "system_used_bytes": 0, "installed_images_used_bytes": 0, "cores_quota_used_bytes": 0,
            "zone_quota_bytes": 0, "zone_quota_used_bytes": 0, "kvm_quota_bytes": 0,
            "kvm_zvol_volsize_bytes": 0, "kvm_zvol_used_bytes": 0 },
    });
    let answer = client.post(&format!("/servers/{server}/events/status"), &status).await;
    assert!(answer.status.is_success(), "{}", answer.text);
}

/// Asks for all at once; returns the servers of those that were answered with one.
async fn allocate(client: &Client, vms: &[String]) -> Vec<(String, Option<String>)> {
    let one = async |vm: &String| {
        let path = "/allocate?steps=none&least_changes=false";
        let answer = client.try_send(Method::POST, path, Some(&body(vm))).await;
        let server = answer.ok().filter(|answer| answer.status == 200);
        let server = server.map(|a| a.json["server"]["uuid"].as_str().expect("a uuid").to_owned());
        (vm.clone(), server)
    };
    futures_util::future::join_all(vms.iter().map(one)).await
}

#[tokio::test]
async fn two_hundred_at_once_fill_the_fleet_exactly_across_a_kill() {
    let settings = ["roster.post_ms=3600000", "allocator.reservation_ttl_s=3600"];
    let mut coordinator = Coordinator::with_settings(&settings);
    let client = coordinator.client();
    let servers: Vec<String> = (0..SERVERS).map(|_| fresh_uuid()).collect();
    let fits = |place: usize| FITS[place % FITS.len()];
    for (place, server) in servers.iter().enumerate() {
        register(&client, server).await;
        report(&client, server, fits(place)).await;
    }
    let mut left: Vec<String> = (0..200).map(|_| fresh_uuid()).collect();
    let mut placed: BTreeMap<String, String> = BTreeMap::new();
    let mut first_round = true;
    for _ in 0..2 {
        let answers = if first_round {
            // Killed once some have their answer: asking for one more takes about as long.
            let early = &left[..40];
            let before = allocate(&client, early).await;
            let kill = async {
                drop(client.get("/ping").await);
                coordinator.kill9();
            };
            let (during, ()) = tokio::join!(allocate(&client, &left[40..]), kill);
            before.into_iter().chain(during).collect()
        } else {
            coordinator.restart();
            for (place, server) in servers.iter().enumerate() {
                report(&client, server, fits(place)).await;
            }
            allocate(&client, &left).await
        };
        first_round = false;
        for (vm, server) in answers {
            if let Some(server) = server {
                left.retain(|other| *other != vm);
                placed.insert(vm, server);
            }
        }
    }
    assert_eq!(placed.len(), 150);
    for (place, server) in servers.iter().enumerate() {
        let here = placed.values().filter(|other| *other == server).count();
        assert_eq!(u64::try_from(here).expect("few"), fits(place), "server {place}");
    }
    let decisions = client.get("/allocations?limit=1000").await.expect(200);
    // Of a burst only the last snapshots are kept, and the last decision need not have the last id.
    let mut replayed = 0;
    for decision in decisions.as_array().expect("a list") {
        let path = format!("/allocations/{}/replay", decision["id"].as_str().expect("an id"));
        let replay = client.post(&path, &json!({ "steps": "none" })).await;
        if replay.status != 404 {
            assert_eq!(replay.expect(200)["identical"], true);
            replayed += 1;
        }
    }
    assert!(replayed > 0, "no snapshot is kept");
}
