//! What a server's record shows: members of the extras, computed figures, filters.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::row::Sent;

const SEEN: &str = "00000000-0000-4000-8000-0000000000cc";
const BASE: &str = "boot_params boot_platform comments created current_platform datacenter \
    default_console headnode hostname kernel_flags last_boot rack_identifier ram \
    reservation_ratio reserved reservoir serial setup status system_type traits uuid";
const MEMORY: &str = "memory_available_bytes memory_arc_bytes memory_total_bytes \
    memory_provisionable_bytes";
const DISK: &str = "disk_kvm_zvol_used_bytes disk_kvm_zvol_volsize_bytes disk_kvm_quota_bytes \
    disk_kvm_quota_used_bytes disk_zone_quota_bytes disk_zone_quota_used_bytes \
    disk_cores_quota_bytes disk_cores_quota_used_bytes disk_installed_images_used_bytes \
    disk_pool_size_bytes disk_pool_alloc_bytes disk_system_used_bytes";
const CAPACITY: &str =
    "overprovision_ratios unreserved_cpu unreserved_ram unreserved_disk score agents";

/// The server of the reference's observations.
async fn observed() -> Cluster {
    let cluster = Cluster::start().await;
    let sysinfo = json!({
        "UUID": SEEN, "Hostname": "seen", "Live Image": "20260101T000000Z", "Setup": "true",
        "System Type": "SunOS", "Boot Time": "1549500301", "MiB of Memory": "49139",
        "CPU Total Cores": 16, "CPU Online Count": 8, "Boot Parameters": { "headnode": "true" },
        "SDC Agents": [{ "name": "cn-agent", "version": "2.14.0" }],
        "Network Interfaces": { "e0": { "Link Status": "up", "NIC Names": ["admin"] } },
    });
    post(&cluster, "sysinfo", &json!({ "sysinfo": sysinfo })).await;
    report(&cluster, &json!({})).await;
    cluster
}

async fn post(cluster: &Cluster, tail: &str, body: &Value) {
    let answer =
        cluster.send(&Sent::new("POST", format!("/servers/{SEEN}/{tail}")).json(body)).await;
    assert!(answer.status < 300, "{}", answer.text());
}

async fn report(cluster: &Cluster, vms: &Value) {
    let body = json!({
        "vms": vms,
        "meminfo": {
            "availrmem_bytes": 5_325_869_056_u64, "arcsize_bytes": 1_331_352_848_u64,
            "total_bytes": 8_579_944_448_u64,
        },
        "diskinfo": {
            "kvm_zvol_used_bytes": 0, "kvm_zvol_volsize_bytes": 0, "kvm_quota_bytes": 0,
            "kvm_quota_used_bytes": 0, "zone_quota_bytes": 0, "zone_quota_used_bytes": 0,
            "cores_quota_bytes": 0, "cores_quota_used_bytes": 0, "installed_images_used_bytes": 0,
            "pool_size_bytes": 206_997_137_408_u64, "pool_alloc_bytes": 7_662_300_672_u64,
            "system_used_bytes": 7_662_300_672_u64,
        },
    });
    post(cluster, "events/status", &body).await;
}

async fn list(cluster: &Cluster, query: &str) -> Vec<Value> {
    let answer = cluster.send(&Sent::new("GET", format!("/servers?{query}"))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.value().as_array().cloned().unwrap()
}

async fn one(cluster: &Cluster, query: &str) -> Value {
    let mut found = list(cluster, &format!("uuids={SEEN}&{query}")).await;
    assert_eq!(found.len(), 1, "{query}");
    found.remove(0)
}

#[track_caller]
fn has_exactly(record: &Value, names: &[&str]) {
    let have: BTreeSet<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    let want: BTreeSet<&str> = names.iter().flat_map(|names| names.split_whitespace()).collect();
    assert_eq!(have, want);
}

#[tokio::test]
async fn extras_show_exactly_their_members() {
    let cluster = observed().await;
    let beat = "last_heartbeat";
    for (query, names) in [
        ("", vec![BASE]),
        ("extras=nonsense", vec![BASE, beat]),
        ("extras=status", vec![BASE, beat]),
        ("extras=agents", vec![BASE, beat, "agents"]),
        ("extras=vms", vec![BASE, beat, "vms"]),
        ("extras=sysinfo", vec![BASE, beat, "sysinfo"]),
        ("extras=memory", vec![BASE, beat, MEMORY]),
        ("extras=disk", vec![BASE, beat, DISK]),
        ("extras=capacity", vec![BASE, beat, MEMORY, DISK, CAPACITY]),
        ("extras=vms,disk", vec![BASE, beat, "vms", DISK]),
        ("extras=all", vec![BASE, beat, MEMORY, DISK, CAPACITY, "vms sysinfo"]),
        ("fields=uuid,status,vms,none", vec!["uuid status"]),
        ("extras=vms&fields=vms,hostname", vec!["vms hostname"]),
    ] {
        has_exactly(&one(&cluster, query).await, &names);
    }
    let whole = cluster.send(&Sent::new("GET", format!("/servers/{SEEN}"))).await.value();
    has_exactly(&whole, &[BASE, beat, MEMORY, DISK, CAPACITY, "vms sysinfo"]);
    assert_eq!(whole["agents"][0]["name"], "cn-agent");
    assert_eq!(whole["last_boot"], "2019-02-07T00:45:01.000Z");
    assert_eq!((&whole["headnode"], &whole["ram"]), (&json!(true), &json!(49139)));
    cluster.stop().await;
}

#[tokio::test]
async fn figures_are_those_of_the_reference() {
    let cluster = observed().await;
    let whole = one(&cluster, "extras=all").await;
    assert_eq!(whole["memory_provisionable_bytes"], 43_797_079_654_i64);
    assert_eq!(whole["overprovision_ratios"], json!({ "cpu": 4, "ram": 1, "disk": 1 }));
    let away = cluster.send(&Sent::new("GET", "/servers/{away}")).await.value();
    assert_eq!((away.get("overprovision_ratios"), &away["score"]), (None, &json!(0)));
    let left = ["unreserved_cpu", "unreserved_ram", "unreserved_disk", "score"]
        .map(|name| whole[name].as_f64().unwrap());
    assert_eq!(left.map(|value| value.round()), [800.0, 6955.0, 178_256.0, 0.0]);
    let vm = json!({ cluster.name("ghost"): {
        "uuid": cluster.name("ghost"), "owner_uuid": SEEN, "brand": "joyent-minimal",
        "cpu_cap": 100, "quota": 25, "max_physical_memory": 128, "state": "running",
        "zone_state": "running", "last_modified": "2019-02-06T18:49:14.000Z",
    }});
    report(&cluster, &vm).await;
    let whole = one(&cluster, "extras=all").await;
    assert_eq!(whole["memory_provisionable_bytes"], 43_662_861_926_i64);
    assert_eq!(whole["vms"], vm);
    assert_eq!(whole["unreserved_cpu"], 775);
    // Without `vms` the old ones stay; an empty map empties them.
    post(&cluster, "events/status", &json!({ "meminfo": {} })).await;
    assert_eq!(one(&cluster, "extras=vms").await["vms"], vm);
    report(&cluster, &json!({})).await;
    assert_eq!(one(&cluster, "extras=vms").await["vms"], json!({}));
    cluster.stop().await;
}

#[tokio::test]
async fn filters_select_and_pages_end() {
    let cluster = observed().await;
    let uuids = |servers: &[Value]| -> Vec<String> {
        servers.iter().map(|server| server["uuid"].as_str().unwrap().to_owned()).collect()
    };
    let all = uuids(&list(&cluster, "").await);
    assert_eq!(all.len(), 4);
    assert!(all.is_sorted());
    for (query, found) in [
        ("setup=true", 4),
        ("setup=FALSE", 0),
        ("headnode=true", 1),
        ("reserved=false", 4),
        ("reserved=true", 0),
        ("reservoir=false", 4),
        ("hostname=seen", 1),
        ("hostname=SEEN", 0),
        ("uuids=nobody", 0),
        ("limit=3", 3),
        ("limit=3&offset=3", 1),
        ("offset=4", 0),
        ("offset=-1", 4),
    ] {
        assert_eq!(list(&cluster, query).await.len(), found, "{query}");
    }
    let missing = cluster.name("missing");
    let some = list(&cluster, &format!("uuids={},{missing},{}", SEEN.to_uppercase(), all[0])).await;
    assert_eq!(some.len(), 2);
    cluster.stop().await;
}

#[tokio::test]
async fn updates_change_what_they_name() {
    let cluster = observed().await;
    let update = |body: Value| {
        let sent = Sent::new("POST", path_of()).json(&body);
        let cluster = &cluster;
        async move {
            let answer = cluster.send(&sent).await;
            assert_eq!(answer.status, 204, "{body}: {}", answer.text());
            cluster.send(&Sent::new("GET", path_of())).await
        }
    };
    let before = cluster.send(&Sent::new("GET", path_of())).await;
    let same = update(json!({ "comments": "", "nics": [], "etag_retries": "3" })).await;
    assert_eq!(same.headers["etag"], before.headers["etag"], "equal values cause no write");
    let shown = update(json!({ "reservation_ratio": "0x1", "traits": { "ssd": true } })).await;
    assert_eq!(shown.value()["reservation_ratio"], 1.0);
    let shown = update(json!({ "reservation_ratio": null, "traits": { "hdd": true } })).await;
    assert_eq!(shown.value()["reservation_ratio"], 0.0);
    assert_eq!(shown.value()["memory_provisionable_bytes"], 49139_i64 << 20);
    assert_eq!(shown.value()["traits"], json!({ "hdd": true }), "replaced, not merged");
    let shown = update(json!({ "next_reboot": "2026-01-01T00:00:00.000Z" })).await;
    assert_eq!(shown.value()["next_reboot"], "2026-01-01T00:00:00.000Z");
    assert_eq!(update(json!({ "next_reboot": "" })).await.value()["next_reboot"], "");
    let shown = update(json!({ "transitional_status": "rebooting" })).await;
    assert_eq!(shown.value()["transitional_status"], "rebooting");
    assert_eq!(shown.value()["status"], "running");
    let shown = update(json!({ "transitional_status": "" })).await;
    assert_eq!(shown.value()["transitional_status"], "", "as the reference keeps it");
    cluster.stop().await;
}

fn path_of() -> String {
    format!("/servers/{SEEN}")
}
