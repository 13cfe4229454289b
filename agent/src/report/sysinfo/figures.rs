//! Figures for the status sample: memory, boot time, load, pressure.

use jiff::Timestamp;
use muster_shared::wire::status::Meminfo;
use serde_json::{Value, json};

use super::probe::Probe;
use super::{Keys, memory, system};
use crate::drivers::DriverError;
use crate::report::Figures;

pub(super) async fn collect(probe: &Probe) -> Result<Figures, DriverError> {
    let text = probe.needed("proc/meminfo").await?;
    let arcstats = probe.text("proc/spl/kstat/zfs/arcstats").await.unwrap_or_default();
    let Some(meminfo) = meminfo(&text, &arcstats) else {
        return Err(DriverError::failed("read /proc/meminfo", "it has no MemTotal"));
    };
    let stat = probe.needed("proc/stat").await?;
    let boot_time = system::boot_time(&stat).and_then(|at| Timestamp::from_second(at).ok());
    let Some(boot_time) = boot_time else {
        return Err(DriverError::failed("read /proc/stat", "it has no btime"));
    };
    let mut extra = Keys::new();
    let load = probe.text("proc/loadavg").await.as_deref().and_then(load);
    extra.extend(load.map(|load| ("load".to_owned(), load)));
    let mut pressure = Keys::new();
    for kind in ["cpu", "io", "memory"] {
        let text = probe.text(&format!("proc/pressure/{kind}")).await;
        let average = text.as_deref().and_then(some_avg10);
        pressure.extend(average.map(|average| (kind.to_owned(), json!(average))));
    }
    if !pressure.is_empty() {
        extra.insert("pressure".to_owned(), Value::Object(pressure));
    }
    Ok(Figures { meminfo, boot_time, extra })
}

/// Memory in bytes. The cache of ZFS counts as used to Linux, but can be given back down to its
/// minimum.
fn meminfo(text: &str, arcstats: &str) -> Option<Meminfo> {
    let bytes = |name: &str| memory::kib(text, name).map(|kib| kib.saturating_mul(1024));
    let arc = |name: &str| {
        let mut lines = arcstats.lines().map(|line| line.split_whitespace());
        let value = lines.find_map(|mut fields| {
            (fields.next() == Some(name)).then(|| fields.nth(1)).flatten()?.parse().ok()
        });
        value.unwrap_or(0_u64)
    };
    let available = bytes("MemAvailable")
        .or_else(|| Some(bytes("MemFree")?.saturating_add(bytes("Cached")?)))
        .unwrap_or(0);
    let evictable = arc("size").saturating_sub(arc("c_min"));
    Some(Meminfo {
        availrmem_bytes: available.saturating_add(evictable),
        arcsize_bytes: arc("size"),
        total_bytes: bytes("MemTotal").filter(|total| *total > 0)?,
    })
}

fn load(loadavg: &str) -> Option<Value> {
    let figures: Vec<f64> =
        loadavg.split_whitespace().take(3).filter_map(|figure| figure.parse().ok()).collect();
    (figures.len() == 3).then(|| json!(figures))
}

/// `avg10` of the line `some`.
fn some_avg10(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_what_zfs_can_give_back() {
        let text = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nCached: 50 kB\n";
        let plain = meminfo(text, "").unwrap();
        assert_eq!((plain.total_bytes, plain.availrmem_bytes), (1_024_000, 409_600));
        let arcstats = "13 1 0x01\nname type data\nc_min 4 1000\nsize 4 5000\n";
        let with_arc = meminfo(text, arcstats).unwrap();
        assert_eq!((with_arc.arcsize_bytes, with_arc.availrmem_bytes), (5000, 409_600 + 4000));
        let old = meminfo("MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 50 kB\n", "").unwrap();
        assert_eq!(old.availrmem_bytes, 153_600);
        assert_eq!(meminfo("MemFree: 1 kB", ""), None);
    }

    #[test]
    fn load_and_pressure_are_read() {
        assert_eq!(load("0.5 1.25 2 1/100 42"), Some(json!([0.5, 1.25, 2.0])));
        assert_eq!(load("x"), None);
        let pressure = "some avg10=3.84 avg60=12.56 total=1\nfull avg10=0.00 total=0\n";
        assert_eq!(some_avg10(pressure), Some(3.84));
    }
}
