//! Time per allocation at several fleet sizes, full default pipeline, beside the goals; and the
//! time to render it, to say what servers have left, and to take over what reports bring. Before
//! these, the first decision of a process: each in a process of its own, which runs this program
//! again.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group};
use mimalloc::MiMalloc;
use muster_alloc::{
    Config, Detail, Fleet, HostOs, News, Options, Request, ServerName, allocate, capacity,
};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::{VmIndex, VmReport, VmStatus};
use serde_json::json;
use uuid::Uuid;

/// As in the coordinator: with the C library's allocator the lists of a large fleet, which are
/// mapped and unmapped for each step, are what is measured.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const GIB: u64 = 1 << 30;
/// Set for a process that is to say how long its first decision took: on so many servers.
const FIRST: &str = "MUSTER_BENCH_FIRST";
/// Processes that are asked so, for each size.
const PROCESSES: usize = 5;
/// Servers, VMs on each, and the goal for one allocation.
const SIZES: [(u32, u32, &str); 6] = [
    (100, 20, "no goal"),
    (1_000, 20, "no goal"),
    (1_000, 100, "goal 0.5 ms"),
    (5_000, 20, "goal 0.3 ms"),
    (20_000, 20, "goal 1.2 ms"),
    (100_000, 20, "goal 6 ms"),
];

fn server_uuid(n: u32) -> ServerName {
    ServerUuid(Uuid::from_u128((0x5000_u128 << 64) + u128::from(n))).into()
}

/// A cheap spread of numbers, the same in every run.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn vms(server: u32, count: u32) -> Vec<VmReport> {
    let vm = |i: u32| {
        let n = mix(u64::from(server) * 1_000 + u64::from(i));
        let uuid = VmUuid(Uuid::from_u64_pair(mix(n), u64::from(server) * 1_000 + u64::from(i)));
        let status = VmStatus {
            uuid,
            owner_uuid: Uuid::from_u64_pair(1, n % 5_000).to_string(),
            brand: "kvm".to_owned(),
            cpu_cap: Some(100 * (1 + n % 4)),
            quota: Some(25),
            max_physical_memory: 1_024 * (1 + n % 8),
            state: "running".to_owned(),
            zone_state: "running".to_owned(),
            last_modified: String::new(),
        };
        let index = VmIndex { alias: Some(format!("vm{i}")), ..VmIndex::default() };
        VmReport { vm: status, index }
    };
    let mut vms: Vec<VmReport> = (0..count).map(vm).collect();
    vms.sort_by_key(|report| report.vm.uuid);
    vms
}

/// Takes in what a server reports.
fn report(fleet: &mut Fleet, server: u32, status: &str, available: u64, vms: &[VmReport]) {
    let bytes = |figure: &str| match figure {
        "memory_available_bytes" => available,
        "memory_total_bytes" => (256 + mix(u64::from(server)) % 512) * GIB,
        "disk_pool_size_bytes" => (4_000 + mix(u64::from(server)) % 8_000) * GIB,
        "disk_pool_alloc_bytes" => 500 * GIB,
        "disk_kvm_zvol_volsize_bytes" => vms.len() as u64 * 25 * GIB,
        _ => 0,
    };
    let figure = |figure: &str| i64::try_from(bytes(figure)).ok();
    let mut news = News::new();
    news.set_status(status);
    news.set_figures(figure);
    vms.iter().for_each(|vm| news.set_vm(vm));
    fleet.take_news(&server_uuid(server), news);
}

fn fleet(servers: u32, each: u32) -> Fleet {
    let mut fleet = Fleet::new(&Config::reference_default(HostOs::Any));
    for n in 0..servers {
        let odd = mix(u64::from(n) + 7) % 100;
        let status = if odd == 2 { "unknown" } else { "running" };
        let record = json!({
            "uuid": server_uuid(n), "setup": true, "reserved": odd == 0, "headnode": odd == 1,
            "status": status, "reservoir": odd == 3,
            "reservation_ratio": 0.15, "rack_identifier": format!("r{}", n / 40),
            "current_platform": format!("2023{:02}01T000000Z", 1 + odd % 12),
            "last_boot": "2022-01-01T00:00:00.000Z",
            "next_reboot": if odd < 30 { format!("2030-01-{:02}T00:00:00.000Z", 1 + odd % 28) } else { String::new() },
            "traits": if odd == 4 { json!({"ssd": true}) } else { json!({}) },
            "sysinfo": {
                "Live Image": "20230101T000000Z", "SDC Version": "7.0",
                "CPU Total Cores": 128, "CPU Online Count": 128, "System Type": "Linux",
                "Network Interfaces": {
                    "net0": {"Link Status": "up", "NIC Names": ["admin"], "MAC Address": "0:0"},
                    "net1": {"Link Status": if odd == 5 { "down" } else { "up" },
                             "NIC Names": ["external", "internal"], "MAC Address": "0:1"},
                },
            },
        });
        let record = record.as_object().expect("an object").clone();
        fleet.upsert_server(Arc::new(record)).expect("the record has a uuid");
        report(&mut fleet, n, status, GIB, &vms(n, each));
    }
    fleet
}

fn request() -> Request {
    let body = json!({
        "vm": {"vm_uuid": "f9627169-cdc9-4970-aebe-35a164cbbe0e", "ram": 2048, "brand": "kvm",
               "owner_uuid": Uuid::from_u64_pair(1, 17).to_string(), "cpu_cap": 200, "quota": 25,
               "vcpus": 2},
        "image": {"image_size": 10_240, "files": [{"size": 500_000_000}]},
        "package": {"max_physical_memory": 2048, "cpu_cap": 200, "quota": 25_600, "vcpus": 2},
        "nic_tags": ["external"],
    });
    Request::parse(body.as_object().expect("an object")).expect("the request is good")
}

fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn bench(c: &mut Criterion) {
    let config = Config::reference_default(HostOs::Any);
    let request = request();
    for (servers, vms_each, goal) in SIZES {
        let before = resident_kib();
        let mut fleet = fleet(servers, vms_each);
        if let (Some(before), Some(after)) = (before, resident_kib()) {
            let each = after.saturating_sub(before) * 1024 / u64::from(servers);
            println!("{servers} servers x {vms_each} VMs: about {each} bytes of memory per server");
        }
        let snapshot = fleet.snapshot();
        let name = format!("{servers} servers x {vms_each} VMs");
        let options = Options { only_ready: true, seed: 42, ..Options::default() };
        let outcome = allocate(&snapshot, &request, &config, &options);
        assert!(outcome.server.is_some(), "nothing fits: {}", outcome.failure());
        let mut group = c.benchmark_group("alloc");
        group.sample_size(20);
        group.bench_function(BenchmarkId::new(format!("allocate [{goal}]"), &name), |b| {
            b.iter(|| allocate(black_box(&snapshot), &request, &config, &options));
        });
        group.bench_function(BenchmarkId::new("render [no goal]", &name), |b| {
            b.iter(|| serde_json::to_vec(&black_box(&outcome).steps(Detail::Full)));
        });
        group.bench_function(
            BenchmarkId::new("capacity [5,000: 1 ms; 20,000: 5 ms]", &name),
            |b| {
                b.iter(|| capacity(black_box(&snapshot), None, &config));
            },
        );
        let mut reported = vms(7, vms_each);
        group.bench_function(BenchmarkId::new("takeover of a VM that changed", &name), |b| {
            b.iter(|| {
                reported[0].vm.max_physical_memory += 1;
                let mut news = News::new();
                news.set_vm(black_box(&reported[0]));
                fleet.take_news(&server_uuid(7), news);
                // So that the next one finds the chunk shared, the worst case.
                fleet.snapshot()
            });
        });
        group.bench_function(BenchmarkId::new("takeover of a server, all equal", &name), |b| {
            b.iter(|| {
                report(&mut fleet, 7, "running", GIB, black_box(&reported));
                fleet.snapshot()
            });
        });
        group.finish();
    }
}

/// Says how long the first decision of this process took, and how long those after it took.
fn first_of_this_process(servers: u32) {
    #[expect(clippy::disallowed_methods, reason = "what is measured is this process")]
    let now = Instant::now;
    let config = Config::reference_default(HostOs::Any);
    let (request, snapshot) = (request(), fleet(servers, 20).snapshot());
    let options = Options { only_ready: true, seed: 42, ..Options::default() };
    let time = || {
        let start = now();
        black_box(allocate(&snapshot, &request, &config, &options));
        start.elapsed()
    };
    let first = time();
    let mut others: Vec<Duration> = std::iter::repeat_with(time).take(101).collect();
    others.sort_unstable();
    println!("{} {}", first.as_nanos(), others[others.len() / 2].as_nanos());
}

/// Shows the first decisions of processes beside their median ones.
fn first_decisions() {
    for (servers, _, goal) in SIZES.iter().filter(|(servers, ..)| *servers >= 5_000) {
        let mut times: Vec<(f64, f64)> =
            (0..PROCESSES).map(|_| first_of_another(*servers)).collect();
        times.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let ((first, median), worst) = (times[PROCESSES / 2], times[PROCESSES - 1]);
        println!(
            "{servers} servers: the first decision of a process {:.2} ms, {:.1} times the median \
             [3 times] of {:.2} ms [{goal}]; the slowest of {PROCESSES} processes {:.1} times",
            first / 1e6,
            first / median,
            median / 1e6,
            worst.0 / worst.1,
        );
    }
}

/// The first and the median decision of a new process, ns.
fn first_of_another(servers: u32) -> (f64, f64) {
    let program = std::env::current_exe().expect("a program has a path");
    #[expect(clippy::disallowed_methods, reason = "the process is this program again")]
    let mut command = std::process::Command::new(program);
    let output = command.env(FIRST, servers.to_string()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("it writes numbers");
    let mut times = text.split_whitespace().map(|time| time.parse().expect("a number"));
    (times.next().expect("the first"), times.next().expect("the median"))
}

criterion_group!(benches, bench);

fn main() {
    match std::env::var(FIRST) {
        Ok(servers) => first_of_this_process(servers.parse().expect("a number of servers")),
        Err(_) => {
            first_decisions();
            benches();
            Criterion::default().configure_from_args().final_summary();
        }
    }
}
