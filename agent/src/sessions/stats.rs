//! Figures of a guest over a connection: one JSON object per line and second, with the members of
//! docker's API.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Peer;
use crate::drivers::DriverError;
use crate::drivers::compute::{Compute, CpuCounters, GuestCounters, LinkCounters};

/// Time between two lines.
const PERIOD: Duration = Duration::from_secs(1);

/// Serves them until the client leaves or the guest ends; only once unless `stream`.
pub async fn serve(
    mut peer: Peer,
    compute: Arc<dyn Compute>,
    clock: SharedClock,
    vm: VmUuid,
    stream: bool,
) {
    let tell = async {
        let mut before = CpuCounters::default();
        loop {
            let now = compute.counters(vm).await?;
            let line = format!("{}\n", figures(&now, &before, &clock.wall().to_string()));
            let sent = peer.writer.write_all(line.as_bytes()).await;
            sent.map_err(|error| DriverError::failed("send figures", error))?;
            if !stream {
                return Ok(());
            }
            before = now.cpu;
            tokio::time::sleep(PERIOD).await;
        }
    };
    let told: Result<(), DriverError> = tokio::select! {
        told = tell => told,
        () = left(&mut peer.reader) => Ok(()),
    };
    if let Err(error) = told {
        tracing::debug!(vm_uuid = %vm, error = %Chain(&error), "figures of a guest ended");
    }
}

/// Waits until the client closes its side; what it says means nothing.
async fn left(reader: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut buffer = [0; 256];
    while let Ok(1..) = reader.read(&mut buffer).await {}
}

/// The figures in docker's form.
fn figures(now: &GuestCounters, before: &CpuCounters, read: &str) -> Value {
    let blocks: Vec<_> = now
        .blocks
        .iter()
        .map(|block| {
            json!({
                "major": block.major, "minor": block.minor, "op": block.operation,
                "value": block.bytes,
            })
        })
        .collect();
    let mut network = serde_json::Map::new();
    for (prefix, link) in [("rx", &now.network.received), ("tx", &now.network.sent)] {
        let LinkCounters { bytes, packets, errors, dropped } = link;
        for (name, value) in
            [("bytes", bytes), ("packets", packets), ("errors", errors), ("dropped", dropped)]
        {
            network.insert(format!("{prefix}_{name}"), json!(value));
        }
    }
    json!({
        "read": read,
        "network": network,
        "precpu_stats": cpu(before),
        "cpu_stats": cpu(&now.cpu),
        "memory_stats": {
            "usage": now.memory_bytes, "limit": now.memory_limit_bytes,
            "failcnt": now.memory_failures, "stats": now.memory,
        },
        "blkio_stats": { "io_service_bytes_recursive": blocks },
        "pids_stats": { "current": now.tasks },
    })
}

fn cpu(cpu: &CpuCounters) -> Value {
    json!({
        "cpu_usage": {
            "total_usage": cpu.total_ns, "usage_in_usermode": cpu.user_ns,
            "usage_in_kernelmode": cpu.system_ns,
        },
        "system_cpu_usage": cpu.host_ns,
        "online_cpus": cpu.host_cpus,
        "throttling_data": {
            "periods": cpu.periods, "throttled_periods": cpu.throttled_periods,
            "throttled_time": cpu.throttled_ns,
        },
    })
}
