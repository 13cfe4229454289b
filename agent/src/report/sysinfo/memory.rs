//! Memory of the host.

use serde_json::json;

use super::probe::Probe;
use super::{Group, Keys, keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "memory", collect: |probe| Box::pin(collect(probe)), unknown };

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let meminfo = probe.needed("proc/meminfo").await?;
    let Some(total_kib) = kib(&meminfo, "MemTotal") else {
        return Err(DriverError::failed("read /proc/meminfo", "it has no MemTotal"));
    };
    Ok(keys(json!({ "MiB of Memory": (total_kib / 1024).to_string() })))
}

fn unknown(_probe: &Probe) -> Keys {
    keys(json!({ "MiB of Memory": "0" }))
}

/// A line of `/proc/meminfo`.
pub(super) fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}
