//! Processors and their topology.

use std::collections::BTreeSet;

use serde_json::json;

use super::probe::Probe;
use super::{Group, Keys, keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "cpu", collect: |probe| Box::pin(collect(probe)), unknown };

/// Most processors that are counted; Linux itself stops at 8192.
const MAX_CPUS: usize = 8192;

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    const FOLDER: &str = "sys/devices/system/cpu";
    let info = probe.needed("proc/cpuinfo").await?;
    let listed = info.lines().filter(|line| line.starts_with("processor")).count().max(1);
    let online = probe.text(&format!("{FOLDER}/online")).await;
    let online = online.and_then(|ranges| count_ranges(&ranges)).unwrap_or(listed);
    let present = probe.text(&format!("{FOLDER}/present")).await;
    let present = present.and_then(|ranges| count_ranges(&ranges)).unwrap_or(online);
    let (mut sockets, mut cores) = (BTreeSet::new(), BTreeSet::new());
    for cpu in 0..present.min(MAX_CPUS) {
        let topology = format!("{FOLDER}/cpu{cpu}/topology");
        let socket = probe.text(&format!("{topology}/physical_package_id")).await;
        let core = probe.text(&format!("{topology}/core_id")).await;
        if let (Some(socket), Some(core)) = (socket, core) {
            sockets.insert(socket.clone());
            cores.insert((socket, core));
        }
    }
    let socket_count = sockets.len().max(1);
    let core_count = if cores.is_empty() { present } else { cores.len() };
    let mut found = keys(json!({
        "CPU Type": model(&info).unwrap_or("Unknown"),
        "CPU Virtualization": virtualization(&info),
        "CPU Socket Count": socket_count,
        "CPU Core Count": core_count,
        "CPU Count": present,
        "CPU Online Count": online,
        // Misnomers that clients know: sockets, and threads.
        "CPU Physical Cores": socket_count,
        "CPU Total Cores": present,
    }));
    let psrinfo = match probe.text(&format!("{FOLDER}/smt/active")).await.as_deref() {
        Some(active) => json!({ "smt_enabled": (active == "1").to_string() }),
        None => json!({}),
    };
    found.insert("Psrinfo".to_owned(), psrinfo);
    Ok(found)
}

fn unknown(_probe: &Probe) -> Keys {
    keys(json!({
        "CPU Type": "Unknown",
        "CPU Virtualization": "none",
        "CPU Socket Count": 1,
        "CPU Core Count": 1,
        "CPU Count": 1,
        "CPU Online Count": 1,
        "CPU Physical Cores": 1,
        "CPU Total Cores": 1,
        "Psrinfo": {},
    }))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let values = info.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    });
    values.into_iter().find(|value| !value.is_empty())
}

fn model(info: &str) -> Option<&str> {
    field(info, "model name").or_else(|| field(info, "Model"))
}

fn virtualization(info: &str) -> &'static str {
    let flags: BTreeSet<&str> = field(info, "flags").unwrap_or_default().split(' ').collect();
    if flags.contains("vmx") {
        "vmx"
    } else if flags.contains("svm") {
        "svm"
    } else {
        "none"
    }
}

/// How many numbers `0-3,8` names.
fn count_ranges(text: &str) -> Option<usize> {
    let mut count = 0_usize;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted() {
        for (text, expected) in [
            ("0", Some(1)),
            ("0-3", Some(4)),
            ("0-3,8,10-11\n", Some(7)),
            ("", None),
            ("3-0", None),
            ("a", None),
        ] {
            assert_eq!(count_ranges(text), expected, "{text:?}");
        }
    }

    #[test]
    fn model_and_virtualization_come_from_cpuinfo() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu svm sse\n";
        assert_eq!((model(info), virtualization(info)), (Some("AMD EPYC"), "svm"));
        assert_eq!((model("processor: 0"), virtualization("flags: fpu")), (None, "none"));
    }
}
