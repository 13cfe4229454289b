//! Processes under test: which there are, and what they take of the machine.

use std::time::Duration;

/// Resident memory, bytes.
///
/// # Panics
/// If the process does not run.
#[must_use]
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

/// Processor time that it has used so far, all its threads together; in steps of 10 ms.
///
/// # Panics
/// If the process does not run.
#[must_use]
pub fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, after_name) = stat.rsplit_once(") ").expect("a name in parentheses");
    let ticks = after_name.split(' ').skip(11).take(2).map(|n| n.parse::<u64>().expect("ticks"));
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Process ids of those among whose arguments there is this text.
///
/// # Panics
/// If the process table can't be read.
#[must_use]
pub fn with_command(text: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let names_it = |pid: &u32| {
        // One that has ended meanwhile has none.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(text)
    };
    pids.filter(names_it).collect()
}
