//! Chooses servers: gathers the snapshot, promises included, and asks the allocator.

use std::collections::BTreeSet;

use muster_shared::ids::ServerUuid;
use muster_shared::wire::status::VmReport;
use serde_json::{Map, Value, json};

use super::App;
use super::capacity::{Capacity, Input, Ratios, capacity};
use super::error::AppError;
use super::fleet::Entry;
use super::place::Promises;

impl App {
    /// What is left of a server that could get a VM; `None` for others.
    pub(super) fn capacity_of(
        &self,
        server: ServerUuid,
        entry: &Entry,
        sysinfo: &Map<String, Value>,
    ) -> Option<Capacity> {
        let promises = self.promises.lock();
        judge(server, entry, sysinfo, &promises).ok()
    }

    /// The server for a VM.
    pub(super) fn choose(
        &self,
        params: &Map<String, Value>,
        report: &VmReport,
        exclude: &BTreeSet<ServerUuid>,
        promises: &Promises,
    ) -> Result<ServerUuid, AppError> {
        let disk_mib = wanted_disk_mib(params);
        let mut reasons = Map::new();
        let mut best: Option<(i64, ServerUuid)> = None;
        let mut last = "received by DAPI".to_owned();
        self.fleet.for_each(|server, entry| {
            let verdict = if exclude.contains(&server) {
                Err("refused this VM already".to_owned())
            } else {
                judge(server, entry, &entry.sysinfo(), promises)
                    .and_then(|left| fits(left, report, disk_mib))
            };
            match verdict {
                Ok(left) if best.is_none_or(|(ram, _)| left.ram > ram) => {
                    best = Some((left.ram, server));
                }
                Ok(_) => {}
                Err(reason) => {
                    last.clone_from(&reason);
                    reasons.insert(server.to_string(), json!(reason));
                }
            }
        });
        match best {
            Some((_, server)) => Ok(server),
            None => Err(AppError::NoServer {
                reason: last,
                steps: json!([{ "step": "Servers with room for the VM", "remaining": [],
                                "reasons": reasons }]),
            }),
        }
    }
}

fn wanted_disk_mib(params: &Map<String, Value>) -> i64 {
    let quota = params.get("quota").and_then(Value::as_i64).unwrap_or(0) * 1024;
    let disks = params
        .get("disks")
        .and_then(Value::as_array)
        .map_or(0, |disks| disks.iter().filter_map(|disk| disk.get("size")?.as_i64()).sum());
    quota + disks
}

fn fits(left: Capacity, report: &VmReport, disk_mib: i64) -> Result<Capacity, String> {
    let ram = i64::try_from(report.vm.max_physical_memory).unwrap_or(i64::MAX);
    if left.ram < ram {
        return Err(format!("{ram} MiB requested, {} MiB unreserved", left.ram));
    }
    if left.disk < disk_mib {
        return Err(format!("{disk_mib} MiB of disk requested, {} MiB unreserved", left.disk));
    }
    let cpu = i64::try_from(report.vm.cpu_cap.unwrap_or(0)).unwrap_or(i64::MAX) / 4;
    if left.cpu < cpu {
        return Err(format!("{cpu} % of a core requested, {} % unreserved", left.cpu));
    }
    Ok(left)
}

fn judge(
    server: ServerUuid,
    entry: &Entry,
    sysinfo: &Map<String, Value>,
    promises: &Promises,
) -> Result<Capacity, String> {
    let record = entry.record.as_ref().map(|held| &held.value).ok_or("not registered")?;
    let is = |name: &str| record.get(name).and_then(Value::as_bool).unwrap_or(false);
    if !is("setup") {
        return Err("not set up".to_owned());
    }
    if entry.stored_status() != "running" {
        return Err("not running".to_owned());
    }
    if is("reserved") {
        return Err("reserved".to_owned());
    }
    let figure = |name: &str| entry.figures.exact(name).unwrap_or(0);
    if figure("memory_total_bytes") <= 0 || figure("disk_pool_size_bytes") <= 0 {
        return Err("has not reported its memory and disk yet".to_owned());
    }
    let promised = promises.of(server).filter(|p| !entry.vms.contains_key(&p.vm.uuid));
    let vms: Vec<&VmReport> = entry.vms.values().map(|vm| &**vm).chain(promised).collect();
    let ratios = Ratios::default();
    Ok(capacity(&Input { record, sysinfo, figures: &entry.figures, vms: &vms, ratios }))
}
