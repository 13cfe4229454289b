//! `muster vm top`: what machines use, the busiest first.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::ProgressBar;
use muster_shared::api::server::Server;
use muster_shared::api::usage::FleetVmUsage;
use muster_shared::api::vm::Heard;
use muster_shared::ids::VmUuid;
use serde::Serialize;
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::answer::Answer;
use crate::cell::{Cell, safe};
use crate::client::Client;
use crate::output::{CLEAR, Output, write_out};
use crate::rates::Rates;
use crate::table::Column;
use crate::{CliError, duration, pick, server};

/// Shortest interval.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// What lies between a sample and the next, as the coordinator is asked: figures of one look of an
/// agent serve all who ask about the same time.
const MAX_AGE_SHARE: f64 = 0.5;
/// A figure that is older is marked as such.
const STALE_MS: u64 = 90_000;
const KIB: f64 = 1024.0;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
CPU% is relative to one host CPU and includes the hypervisor: a VM with two busy virtual CPUs shows
about 200. WAIT% is the share of time in which virtual CPUs were ready to run but had no host CPU;
if it is high, the node is overcommitted. MEMORY is what the VM really occupies on the host, of what
it may use. A dash means unknown: user-mode networks have no counters, and a hypervisor that hangs
reports no disk figures. `old` in NOTE: the node's agent did not answer; these are its last figures.

On a terminal the table is refreshed at each interval until Ctrl-C. Otherwise, with --once or with
`-o json`, one table is printed, covering one interval. Examples:
  muster vm top
  muster vm top --server node3 --sort disk --interval 5s
  muster vm top --once -o json")]
pub(crate) struct Args {
    /// Only VMs on this server.
    #[arg(long)]
    server: Option<String>,

    /// What to sort by.
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Refresh interval, e.g. `2s`, `500ms`, `1m`.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,

    /// Prints one table and exits.
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// CPU time.
    #[default]
    Cpu,
    /// Memory of the host.
    Memory,
    /// Bytes to and from disks.
    Disk,
    /// Bytes over the network.
    Net,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration::read(text)?;
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&time) {
        Ok(time)
    } else {
        Err("must be from 500ms to 60m".to_owned())
    }
}

/// A machine in the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    vm: FleetVmUsage,
    rates: Rates,
}

/// Shows machines; with `nodes` also what their servers have to give.
pub(crate) async fn run(
    client: &Client,
    output: &Output,
    args: Args,
    nodes: bool,
) -> Result<(), CliError> {
    let server: Option<String> = match &args.server {
        Some(name) => Some(pick::server(client, name).await?.record.uuid.to_string()),
        None => None,
    };
    let terminal = std::io::stdout().is_terminal();
    let once = args.once || output.is_json() || !terminal;
    let max_age = args.interval.mul_f64(MAX_AGE_SHARE).as_secs_f64().to_string();
    let mut query = vec![("max_age", max_age)];
    query.extend(server.clone().map(|uuid| ("server_uuid", uuid)));
    let servers = async || {
        let extras = [("extras", "memory,disk,vms,muster".to_owned())];
        let mut servers: Vec<Answer<Server>> = client.get("/servers", &extras).await?;
        servers.retain(|it| server.as_ref().is_none_or(|uuid| it.record.uuid.to_string() == *uuid));
        Ok::<_, CliError>(servers)
    };
    let uuid = |vm: &Answer<FleetVmUsage>| vm.uuid.to_string();
    let mut old: Vec<Answer<FleetVmUsage>> = client.get_all("/vms/usage", &query, uuid).await?;
    let mut due = tokio::time::interval(args.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    due.tick().await;
    let waiting = waiting(args.interval);
    loop {
        due.tick().await;
        let new = match client.get_all("/vms/usage", &query, uuid).await {
            Err(lost @ CliError::Unreachable { .. }) if !once => {
                write_out(&format!("{CLEAR}{}, retrying", safe(&lost.to_string())))?;
                continue;
            }
            answer => answer?,
        };
        let rows = rows(&old, &new, args.sort);
        let servers = if nodes { Some(servers().await?) } else { None };
        waiting.finish_and_clear();
        if output.is_json() {
            return output.object(&match servers {
                Some(servers) => json!({ "servers": servers, "vms": rows }),
                None => json!(rows),
            });
        }
        if !once {
            write_out(&format!("{CLEAR}{}", summary(&rows)))?;
        }
        if let Some(servers) = servers {
            output.table(&servers, SERVERS)?;
            write_out("")?;
        }
        output.table(&rows, COLUMNS)?;
        if once {
            return Ok(());
        }
        old = new;
    }
}

/// There is nothing to show before the second look.
fn waiting(interval: Duration) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_message(format!("measuring for {} s", interval.as_secs_f64()));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// The machines with what they did between the two looks, the busiest first.
fn rows(old: &[Answer<FleetVmUsage>], new: &[Answer<FleetVmUsage>], sort: Sort) -> Vec<Row> {
    let before: BTreeMap<VmUuid, &FleetVmUsage> = old.iter().map(|vm| (vm.uuid, &**vm)).collect();
    let rates = |vm: &FleetVmUsage| {
        let before = before.get(&vm.uuid)?.usage.as_ref()?;
        Some(Rates::between(before, vm.usage.as_ref()?))
    };
    let row = |vm: &Answer<FleetVmUsage>| Row {
        rates: rates(vm).unwrap_or_default(),
        vm: FleetVmUsage::clone(vm),
    };
    let mut rows: Vec<Row> = new.iter().map(row).collect();
    // What is not known comes last; equal ones stay in the order of their uuids.
    rows.sort_by(|one, other| {
        busy(other, sort).partial_cmp(&busy(one, sort)).unwrap_or(Ordering::Equal)
    });
    rows
}

#[expect(clippy::cast_precision_loss, reason = "only compared")]
fn busy(row: &Row, sort: Sort) -> Option<f64> {
    match sort {
        Sort::Cpu => row.rates.cpu_percent,
        Sort::Memory => row.vm.usage.as_ref()?.rss_bytes.map(|bytes| bytes as f64),
        Sort::Disk => row.rates.disk(),
        Sort::Net => row.rates.net(),
    }
}

/// What nodes have, and how much of it is in use.
const SERVERS: &[Column<Answer<Server>>] = &[
    Column::new("SERVER", |server: &Answer<Server>| Cell::text(&server.record.hostname)).cut(),
    Column::new("STATUS", |server: &Answer<Server>| server::status(server)).spare(2),
    Column::new("VMS", |server: &Answer<Server>| {
        Cell::of(&server.vms.as_ref().map_or(0, BTreeMap::len))
    }),
    Column::new("LOAD", |server: &Answer<Server>| server::load(server)),
    Column::new("MEMORY", |server: &Answer<Server>| {
        let memory = &server.memory;
        let used = memory.memory_total_bytes.zip(memory.memory_available_bytes);
        right(used_of(used.map(|(all, free)| (all.saturating_sub(free), all))))
    }),
    Column::new("DISK", |server: &Answer<Server>| {
        let disk = &server.disk;
        right(used_of(disk.disk_pool_alloc_bytes.zip(disk.disk_pool_size_bytes)))
    })
    .spare(1),
];

/// How much of what there is.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn used_of(of: Option<(i64, i64)>) -> String {
    of.map_or_else(dash, |(used, all)| {
        format!("{} of {}", bytes(Some(used as f64)), bytes(Some(all as f64)))
    })
}

const COLUMNS: &[Column<Row>] = &[
    Column::new("ID", |row: &Row| Cell::id(&row.vm.uuid)).spare(4),
    Column::new("NAME", |row: &Row| Cell::maybe(row.vm.alias.as_ref())).cut(),
    Column::new("SERVER", |row: &Row| match &row.vm.hostname {
        Some(name) => Cell::text(name),
        None => Cell::id(&row.vm.server_uuid),
    })
    .cut()
    .spare(2),
    Column::new("STATE", |row: &Row| {
        row.vm.state.as_ref().map_or_else(Cell::dash, |it| Cell::state(it))
    })
    .spare(1),
    Column::new("CPU%", |row: &Row| right(percent(row.rates.cpu_percent))),
    Column::new("WAIT%", |row: &Row| right(percent(row.rates.wait_percent))),
    Column::new("MEMORY", |row: &Row| right(memory(row))),
    Column::new("READ/S", |row: &Row| right(bytes(row.rates.disk_read_bytes_per_s))),
    Column::new("WRITE/S", |row: &Row| right(bytes(row.rates.disk_written_bytes_per_s))),
    Column::new("OPS/S", |row: &Row| {
        right(row.rates.disk_operations_per_s.map_or(dash(), |rate| format!("{rate:.0}")))
    })
    .spare(5),
    Column::new("RECV/S", |row: &Row| right(bytes(row.rates.net_received_bytes_per_s))).spare(6),
    Column::new("SENT/S", |row: &Row| right(bytes(row.rates.net_sent_bytes_per_s))).spare(6),
    Column::new("NOTE", |row: &Row| Cell::text(note(row))).cut().spare(3),
];

fn dash() -> String {
    "-".to_owned()
}

fn right(text: String) -> Cell {
    Cell { text, right: true, ..Cell::default() }
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| format!("{value:.1}"))
}

/// With three digits and a unit.
fn bytes(value: Option<f64>) -> String {
    let Some(mut value) = value else { return dash() };
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 999.5 {
            let digits = if value < 9.95 && unit != "B" { 1 } else { 0 };
            return format!("{value:.digits$} {unit}");
        }
        value /= KIB;
    }
    format!("{value:.1} TiB")
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn memory(row: &Row) -> String {
    let used = row.vm.usage.as_ref().and_then(|usage| usage.rss_bytes);
    let may = row.vm.max_physical_memory.map(|mib| mib as f64 * KIB * KIB);
    match (used, may) {
        (None, _) => dash(),
        (Some(used), None) => bytes(Some(used as f64)),
        (Some(used), Some(may)) => format!("{} of {}", bytes(Some(used as f64)), bytes(Some(may))),
    }
}

/// Why figures are missing or not of now.
fn note(row: &Row) -> String {
    let running = row.vm.state.as_deref() == Some("running");
    if row.vm.server_status == Heard::Unknown {
        return "server away".to_owned();
    }
    if row.vm.age_ms.is_some_and(|age| age > STALE_MS) {
        return "old".to_owned();
    }
    match &row.vm.usage {
        None if running => "not told yet".to_owned(),
        Some(usage) => match usage.disk_age_ms {
            Some(age) => format!("disk figures are {} s old", age / 1000),
            None => String::new(),
        },
        None => String::new(),
    }
}

/// A line above the table.
fn summary(rows: &[Row]) -> String {
    let running = rows.iter().filter(|row| row.vm.usage.is_some()).count();
    let cpu: f64 = rows.iter().filter_map(|row| row.rates.cpu_percent).sum();
    let disk: f64 = rows.iter().filter_map(|row| row.rates.disk()).sum();
    format!(
        "{} VMs, {running} with figures; CPU {cpu:.0} %, disks {}/s\n",
        rows.len(),
        bytes(Some(disk))
    )
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::ServerUuid;
    use muster_shared::wire::usage::VmUsage;
    use serde_json::Value;

    use super::*;

    fn vm(number: u128, usage: Option<VmUsage>) -> Answer<FleetVmUsage> {
        let vm = FleetVmUsage {
            uuid: VmUuid(uuid::Uuid::from_u128(number)),
            alias: Some(format!("vm{number}")),
            state: Some("running".to_owned()),
            max_physical_memory: Some(1024),
            vcpus: Some(1),
            server_uuid: ServerUuid(uuid::Uuid::nil()),
            hostname: Some("node".to_owned()),
            server_status: Heard::Running,
            usage,
            age_ms: Some(10),
        };
        serde_json::from_value(json!(vm)).unwrap()
    }

    fn usage(at_ms: u64, cpu_ms: u64) -> Option<VmUsage> {
        let rss_bytes = Some(300 << 20);
        Some(VmUsage { at_ms, cpu_ms: Some(cpu_ms), rss_bytes, ..VmUsage::default() })
    }

    #[test]
    fn the_busiest_come_first_and_the_unknown_last() {
        let old = [vm(1, usage(0, 0)), vm(2, usage(0, 0)), vm(4, None)];
        let new =
            [vm(1, usage(2000, 200)), vm(2, usage(2000, 1000)), vm(3, usage(5, 5)), vm(4, None)];
        let rows = rows(&old, &new, Sort::Cpu);
        let cells = |row: &Row| COLUMNS.iter().map(|it| it.of(row).text).collect::<Vec<_>>();
        let order: Vec<_> = rows.iter().map(|row| cells(row)[1].clone()).collect();
        assert_eq!(order, ["vm2", "vm1", "vm3", "vm4"]);
        let busiest = cells(&rows[0]);
        assert_eq!(busiest[4..7], ["50.0", "-", "300 MiB of 1.0 GiB"]);
        assert_eq!(cells(&rows[3])[12], "not told yet");
        assert!(summary(&rows).starts_with("4 VMs, 3 with figures; CPU 60 %"));
        let json: Value = json!(rows[0]);
        assert_eq!(json["rates"]["cpu_percent"], 50.0);
        assert_eq!(json["usage"]["cpu_ms"], 1000);
    }

    #[test]
    fn nodes_are_told_with_what_is_in_use() {
        let server = json!({
            "uuid": uuid::Uuid::nil(), "hostname": "cn1", "status": "running", "setup": true,
            "memory_total_bytes": 8_u64 << 30, "memory_available_bytes": 6_u64 << 30,
            "muster": { "load": [0.5, 0, 0] },
        });
        let server: Answer<Server> = serde_json::from_value(server).unwrap();
        let cells: Vec<String> = SERVERS.iter().map(|column| column.of(&server).text).collect();
        assert_eq!(cells, ["cn1", "running", "0", "0.5", "2.0 GiB of 8.0 GiB", "-"]);
    }

    #[test]
    fn amounts_have_units() {
        for (value, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 KiB"),
            (10_240.0, "10 KiB"),
            (5.5 * KIB * KIB, "5.5 MiB"),
            (3.0 * KIB * KIB * KIB * KIB, "3.0 TiB"),
        ] {
            assert_eq!(bytes(Some(value)), text);
        }
        assert_eq!(bytes(None), "-");
    }

    #[test]
    fn intervals_have_units_and_bounds() {
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(interval("500ms"), Ok(MIN_INTERVAL));
        assert_eq!(interval("1m"), Ok(Duration::from_secs(60)));
        for bad in ["", "s", "2h", "0s", "-1s", "61m", "NaN", "1e400", "inf"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
