//! What holds for every algorithm of the registry.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::*;
use crate::algorithm::Kind;
use crate::config::{Config, create_expression};
use crate::fleet::Fleet;
use crate::outcome::{Step, in_order};
use crate::promises::Extra;
use crate::recent::Recent;
use crate::remaining::Remaining;
use crate::request::Request;
use crate::run::Run;
use crate::server_name::ServerName;
use crate::settings::HostOs;

#[test]
fn names_and_kinds_fit() {
    let names: BTreeSet<_> = all().map(|algorithm| algorithm.name).collect();
    assert_eq!(names.len(), all().count(), "a name is used twice");
    for algorithm in all() {
        let prefix = match algorithm.kind {
            Kind::Scorer => &["score-"][..],
            Kind::Sorter => &["sort-", "pick-"],
            Kind::Filter | Kind::Set | Kind::Calculator => {
                &["hard-filter-", "soft-filter-", "calculate-", "load-", "override-", "identity"]
            }
        };
        assert!(prefix.iter().any(|p| algorithm.name.starts_with(p)), "{algorithm:?}");
        assert!(!algorithm.title.is_empty());
    }
}

const BRANDS: [&str; 4] = ["kvm", "bhyve", "joyent", "lx"];
const STATES: [&str; 3] = ["running", "provisioning", "destroyed"];

fn server_uuid(n: u8) -> Uuid {
    Uuid::from_u128(0x5000 + u128::from(n))
}

fn owner(n: u8) -> Uuid {
    Uuid::from_u128(0x9000 + u128::from(n % 3))
}

/// A VM: its owner, memory in GiB, brand, whether it is capped and in which state.
type ModelVm = (u8, u8, u8, bool, u8);

fn vm(server: u8, place: usize, (of, gib, brand, capped, state): ModelVm) -> (String, Value) {
    let uuid = Uuid::from_u128(0x7000 + u128::from(server) * 16 + place as u128).to_string();
    let value = json!({
        "uuid": uuid, "owner_uuid": owner(of), "max_physical_memory": u64::from(gib) * 1024,
        "brand": BRANDS[usize::from(brand % 4)], "quota": 10,
        "cpu_cap": if capped { json!(100) } else { json!(null) },
        "state": STATES[usize::from(state % 3)],
        "last_modified": "2022-01-01T00:00:00.000Z",
    });
    (uuid, value)
}

/// A server's record; `flaw` says what is wrong with it, mostly nothing.
fn record(id: u8, gib: u64, flaw: u8, vms: &[ModelVm]) -> Map<String, Value> {
    let vms: Map<String, Value> =
        vms.iter().enumerate().map(|(place, model)| vm(id, place, *model)).collect();
    let bytes = gib << 30;
    let record = json!({
        "uuid": server_uuid(id), "setup": flaw != 0, "reserved": flaw == 1, "vms": vms,
        "status": if flaw == 2 { "unknown" } else { "running" },
        "headnode": flaw == 3, "reservoir": flaw == 4, "reservation_ratio": 0.15,
        "current_platform": format!("202301{:02}T000000Z", id % 9 + 1),
        "last_boot": "2022-01-01T00:00:00.000Z", "rack_identifier": format!("r{}", id % 3),
        "next_reboot": if id.is_multiple_of(3) { json!("2030-01-05T00:00:00.000Z") } else { json!(null) },
        "traits": if flaw == 5 { json!({"ssd": true}) } else { json!({}) },
        "overprovision_ratios": {"cpu": 4, "ram": if id.is_multiple_of(4) { 2 } else { 1 }, "disk": 1},
        "memory_available_bytes": bytes, "memory_total_bytes": bytes,
        "disk_pool_size_bytes": 4_000_u64 << 30, "disk_pool_alloc_bytes": 0,
        "disk_system_used_bytes": 0, "disk_installed_images_used_bytes": 0,
        "disk_cores_quota_used_bytes": 0, "disk_zone_quota_bytes": 0, "disk_kvm_quota_bytes": 0,
        "disk_kvm_zvol_volsize_bytes": 0,
        "sysinfo": {
            "Live Image": "20230101T000000Z", "SDC Version": "7.0", "CPU Total Cores": 16,
            "System Type": if flaw == 8 { "Virtual" } else { "Linux" },
            "Muster": if id % 7 == 1 { json!({}) } else { json!({"oci_runtime": "runc"}) },
            "Zpool Encrypted": flaw == 6, "Bhyve Capable": id.is_multiple_of(2), "HVM API": id.is_multiple_of(5),
            "Network Interfaces": {"net0": {
                "Link Status": if flaw == 7 { "down" } else { "up" }, "NIC Names": ["admin"],
            }},
        },
    });
    record.as_object().expect("an object").clone()
}

fn request(brand: u8, gib: u64, wishes: u8, spread: usize) -> Request {
    let spread = ["", "min-ram", "max-ram", "random", "min-owner"][spread % 5];
    let bit = |n: u8| wishes & (1 << n) != 0;
    let near = Uuid::from_u128(0x7000).to_string();
    let body = json!({
        "vm": {
            "vm_uuid": Uuid::from_u128(1), "owner_uuid": owner(0), "ram": gib * 1024, "quota": 10,
            "brand": BRANDS[usize::from(brand % 4)], "vcpus": 2,
            "cpu_cap": if bit(0) { json!(100) } else { json!(null) },
            "traits": if bit(1) { json!({"ssd": true}) } else { json!({}) },
            "locality": {"strict": bit(2), "near": near, "far": [Uuid::from_u128(0x7010)]},
            "internal_metadata": {"encrypted": bit(3)},
        },
        "image": {"type": if bit(4) { "zvol" } else { "zone-dataset" }, "image_size": 1024},
        "package": {
            "max_physical_memory": gib * 1024, "overprovision_cpu": 4, "overprovision_memory": 1,
            "alloc_server_spread": spread,
        },
        "nic_tags": ["admin"],
    });
    Request::parse(body.as_object().expect("an object")).expect("the request is good")
}

/// What an algorithm made of what it found.
#[derive(Debug, PartialEq)]
struct Made {
    list: Vec<u32>,
    score: Vec<f64>,
    reasons: String,
    left: Vec<String>,
}

/// Servers and scores before and after: each kind may change one of them, or neither.
fn changes_what_it_may(algorithm: &Algorithm, before: (&[u32], &[f64]), after: (&[u32], &[f64])) {
    let same_scores = format!("{:?}", before.1) == format!("{:?}", after.1);
    let is_allowed = match algorithm.kind {
        Kind::Filter => same_scores && is_part_in_order(after.0, before.0),
        Kind::Set | Kind::Sorter => same_scores && is_part(after.0, before.0),
        Kind::Calculator => same_scores && after.0 == before.0,
        Kind::Scorer => after.0 == before.0,
    };
    assert!(is_allowed, "{algorithm:?} makes {after:?} of {before:?}");
}

/// Whether each of the servers is one of the others, and none is there twice.
fn is_part(part: &[u32], whole: &[u32]) -> bool {
    let distinct: BTreeSet<_> = part.iter().collect();
    distinct.len() == part.len() && part.iter().all(|slot| whole.contains(slot))
}

fn is_part_in_order(part: &[u32], whole: &[u32]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|slot| rest.any(|other| other == slot))
}

/// Runs an algorithm on what others left, with the snapshot's sums or without them.
fn made(mut run: Run<'_>, before: &[&Algorithm], algorithm: &Algorithm, sums: bool) -> Made {
    if !sums {
        run.without_sums();
    }
    for earlier in before {
        (earlier.run)(&mut run);
    }
    let (list, scores) = (run.list().to_vec(), run.scores().by_slot().to_vec());
    let reasons = (algorithm.run)(&mut run);
    let mut steps = [Step { algorithm: None, remaining: Arc::clone(run.remaining()), reasons }];
    in_order(&mut steps);
    let reasons = format!("{:?}", steps[0].reasons);
    changes_what_it_may(algorithm, (&list, &scores), (run.list(), run.scores().by_slot()));
    let left = run.list().iter().map(|slot| format!("{:?}", run.left(*slot))).collect();
    Made { list: run.list().to_vec(), score: run.scores().by_slot().to_vec(), reasons, left }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Sums and flags that a snapshot has ready are a shortcut and nothing else.
    #[test]
    fn what_is_summed_beforehand_is_what_servers_show(
        servers in prop::collection::vec(
            (1..40u64, 0..20u8, prop::collection::vec(any::<ModelVm>(), 0..4)), 0..10,
        ),
        promised in prop::collection::vec((0..10u8, 1..8u8, any::<bool>()), 0..5),
        brand in 0..4u8, gib in 1..16u64, wishes in any::<u8>(), spread in 0..5usize,
        forced in any::<bool>(), loaded in 0..4usize, seed in any::<u64>(),
    ) {
        let changes = json!({
            "disable_override_overprovisioning": !forced, "weight_num_owner_zones": -0.5,
            "minimum_free_disk": 100,
        });
        let config = Config::new(&create_expression(), &changes, HostOs::Reference);
        let config = config.expect("the policy is good");
        let mut fleet = Fleet::new(&config);
        for (id, (gib, flaw, vms)) in (0..).zip(&servers) {
            let vms: Vec<ModelVm> =
                vms.iter().map(|(of, gib, ..)| (*of, gib % 8 + 1)).zip(vms).map(
                    |((of, gib), (_, _, brand, capped, state))| (of, gib, *brand, *capped, *state),
                ).collect();
            let record = record(id, *gib, *flaw, &vms);
            fleet.upsert_server(Arc::new(record)).expect("the record has a uuid");
        }
        for (n, (server, gib, kvm)) in (0..).zip(&promised) {
            let extra = Extra {
                owner_uuid: owner(*gib).to_string(),
                max_physical_memory: f64::from(*gib) * 1024.0,
                brand: if *kvm { "kvm" } else { "joyent" }.to_owned(),
                quota: 5.0,
                ..Extra::default()
            };
            let server = ServerName::of(&server_uuid(*server).to_string());
            fleet.reserve(Uuid::from_u128(0x8000 + n), &server, extra);
        }
        let snapshot = fleet.snapshot();
        let (request, recent) = (request(brand, gib, wishes, spread), Recent::default());
        let run = || {
            let mut run = Run::new(&snapshot, &request, &config.settings, &recent, seed);
            run.start_with(Remaining::new(snapshot.slots().collect(), snapshot.capacity()));
            run
        };
        // As far as pipelines get before it: nothing, VMs, promised ones, what is left.
        let pipeline = ["override-overprovisioning", "load-server-vms", "calculate-ticketed-vms",
            "calculate-server-unreserved"];
        let before: Vec<&Algorithm> =
            pipeline[..=loaded].iter().filter_map(|name| find(name)).collect();
        for algorithm in all() {
            let (quick, general) =
                (made(run(), &before, algorithm, true), made(run(), &before, algorithm, false));
            prop_assert_eq!(format!("{quick:?}"), format!("{general:?}"), "{:?}", algorithm);
        }
    }
}
