//! All figures of the control groups of one process, of both versions, and of its network.

use std::collections::BTreeMap;
use std::io;

use super::{Cgroups, gone_is_none, named, number, read};
const NS_PER_US: u64 = 1000;
/// Of the figures in `/proc/stat` and `cpuacct.stat`; the kernel tells them in 1/100 s everywhere.
const NS_PER_TICK: u64 = 10_000_000;
/// What the kernel says when there is no limit; version 1 rounds it to pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Figures of a guest since its start; what the kernel does not count is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestCounters {
    /// CPU time.
    pub cpu: CpuCounters,
    /// Memory in use, bytes.
    pub memory_bytes: u64,
    /// Most memory that may be in use, bytes; `None`: all that the host has.
    pub memory_limit_bytes: Option<u64>,
    /// How often memory was asked for beyond the limit.
    pub memory_failures: u64,
    /// What the memory is used for, by the kernel's names, bytes or events.
    pub memory: BTreeMap<String, u64>,
    /// What was read from and written to block devices.
    pub blocks: Vec<BlockCounter>,
    /// Processes and threads now.
    pub tasks: u64,
    /// Its network interfaces, without loopback, together.
    pub network: NetworkCounters,
}

/// CPU time, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    /// In all.
    pub total_ns: u64,
    /// Of it in the guest's programs.
    pub user_ns: u64,
    /// Of it in the kernel.
    pub system_ns: u64,
    /// Of all processes of the host, idle time included.
    pub host_ns: u64,
    /// Processors of the host.
    pub host_cpus: u64,
    /// Periods in which it could be held back.
    pub periods: u64,
    /// Periods in which it was.
    pub throttled_periods: u64,
    /// Time for which it was.
    pub throttled_ns: u64,
}

/// Bytes of one kind at one block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCounter {
    /// Of the device.
    pub major: u64,
    /// Of the device.
    pub minor: u64,
    /// `Read` or `Write`.
    pub operation: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// What went over network interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkCounters {
    /// Received.
    pub received: LinkCounters,
    /// Sent.
    pub sent: LinkCounters,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with faults.
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

impl Cgroups {
    /// Figures of the groups, and of the network of this process, which is in them; `None`: there is
    /// no such process.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn counters(&self, pid: u32) -> io::Result<Option<GuestCounters>> {
        let links = gone_is_none(std::fs::read_to_string(format!("/proc/{pid}/net/dev")))?;
        let Some(links) = links else { return Ok(None) };
        let host = std::fs::read_to_string("/proc/stat")?;
        let memory = self.memory.as_deref();
        let failures = memory.and_then(|dir| {
            named(dir, "memory.events", "max").or_else(|| number(dir, "memory.failcnt"))
        });
        Ok(Some(GuestCounters {
            cpu: self.cpu_counters(&host),
            memory_bytes: self.memory_bytes().unwrap_or(0),
            memory_limit_bytes: self.memory_limit_bytes().filter(|most| *most < UNLIMITED_BYTES),
            memory_failures: failures.unwrap_or(0),
            memory: memory
                .and_then(|dir| read(dir, "memory.stat"))
                .map_or_else(BTreeMap::new, pairs),
            blocks: self.block_counters(),
            tasks: self.tasks().unwrap_or(0),
            network: network(&links),
        }))
    }

    fn cpu_counters(&self, host: &str) -> CpuCounters {
        let (host_ns, host_cpus) = host_cpu(host);
        let counted = CpuCounters { host_ns, host_cpus, ..CpuCounters::default() };
        let Some(dir) = self.cpu.as_deref() else { return counted };
        let of = |name: &str| named(dir, "cpu.stat", name);
        let us = |name: &str| of(name).map(|us| us.saturating_mul(NS_PER_US));
        let ticks = |name: &str| {
            named(dir, "cpuacct.stat", name).map(|ticks| ticks.saturating_mul(NS_PER_TICK))
        };
        CpuCounters {
            total_ns: us("usage_usec").or_else(|| number(dir, "cpuacct.usage")).unwrap_or(0),
            user_ns: us("user_usec").or_else(|| ticks("user")).unwrap_or(0),
            system_ns: us("system_usec").or_else(|| ticks("system")).unwrap_or(0),
            periods: of("nr_periods").unwrap_or(0),
            throttled_periods: of("nr_throttled").unwrap_or(0),
            throttled_ns: us("throttled_usec").or_else(|| of("throttled_time")).unwrap_or(0),
            ..counted
        }
    }

    fn block_counters(&self) -> Vec<BlockCounter> {
        let new = self.unified.as_deref().and_then(|dir| read(dir, "io.stat"));
        if let Some(text) = new {
            return text.lines().flat_map(io_stat).collect();
        }
        let old = self.io.as_deref();
        let text = old.and_then(|dir| read(dir, "blkio.throttle.io_service_bytes"));
        text.unwrap_or_default().lines().filter_map(io_service).collect()
    }
}

/// `8:0 rbytes=90430464 wbytes=299008000 …`, of version 2.
fn io_stat(line: &str) -> Vec<BlockCounter> {
    let mut words = line.split_ascii_whitespace();
    let Some((major, minor)) = words.next().and_then(device) else { return Vec::new() };
    let of = |word: &str| {
        let (name, bytes) = word.split_once('=')?;
        let operation = match name {
            "rbytes" => "Read",
            "wbytes" => "Write",
            _ => return None,
        };
        Some(BlockCounter { major, minor, operation, bytes: bytes.parse().ok()? })
    };
    words.filter_map(of).collect()
}

/// `8:0 Read 4096`, of version 1.
fn io_service(line: &str) -> Option<BlockCounter> {
    let mut words = line.split_ascii_whitespace();
    let (major, minor) = device(words.next()?)?;
    let operation = match words.next()? {
        "Read" => "Read",
        "Write" => "Write",
        _ => return None,
    };
    Some(BlockCounter { major, minor, operation, bytes: words.next()?.parse().ok()? })
}

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Lines of a name and a number.
fn pairs(text: impl AsRef<str>) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.as_ref().lines().filter_map(pair).collect()
}

/// Time of all processors, and how many there are, from `/proc/stat`.
fn host_cpu(text: &str) -> (u64, u64) {
    let mut lines = text.lines().filter(|line| line.starts_with("cpu"));
    // The times of guests, the last two, are in those of users already.
    let all = lines.next().unwrap_or_default().split_ascii_whitespace().skip(1).take(8);
    let ticks = all.filter_map(|word| word.parse::<u64>().ok()).fold(0, u64::saturating_add);
    (ticks.saturating_mul(NS_PER_TICK), u64::try_from(lines.count()).unwrap_or(0))
}

/// All interfaces of `/proc/…/net/dev` but loopback, together.
fn network(text: &str) -> NetworkCounters {
    let mut sum = NetworkCounters::default();
    for line in text.lines() {
        let Some((name, figures)) = line.split_once(':') else { continue };
        if name.trim() == "lo" {
            continue;
        }
        let figures: Vec<u64> =
            figures.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        // Eight of what came, then eight of what went.
        for (link, at) in [(&mut sum.received, 0), (&mut sum.sent, 8)] {
            let figure = |offset: usize| figures.get(at + offset).copied().unwrap_or(0);
            *link = LinkCounters {
                bytes: link.bytes.saturating_add(figure(0)),
                packets: link.packets.saturating_add(figure(1)),
                errors: link.errors.saturating_add(figure(2)),
                dropped: link.dropped.saturating_add(figure(3)),
            };
        }
    }
    sum
}

/// A folder in the place of all groups.
#[cfg(test)]
fn groups_in(dir: &std::path::Path) -> Cgroups {
    Cgroups {
        memory: Some(dir.into()),
        cpu: Some(dir.into()),
        pids: Some(dir.into()),
        io: Some(dir.into()),
        ..Cgroups::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_version_1_and_2_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        write("memory.stat", "cache 5\nrss 7\n");
        write("memory.usage_in_bytes", "12\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.failcnt", "3\n");
        write("cpuacct.usage", "30000000\n");
        write("cpuacct.stat", "user 2\nsystem 1\n");
        write("pids.current", "4\n");
        write("blkio.throttle.io_service_bytes", "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n");
        let old = groups_in(dir.path()).counters(std::process::id()).unwrap().unwrap();
        assert_eq!((old.memory_bytes, old.memory_limit_bytes, old.memory_failures), (12, None, 3));
        assert_eq!((old.cpu.total_ns, old.cpu.user_ns, old.tasks), (30_000_000, 20_000_000, 4));
        assert!(old.cpu.host_ns > 0 && old.cpu.host_cpus > 0);
        assert_eq!((old.memory["rss"], old.blocks.len(), old.blocks[1].bytes), (7, 2, 20));
        write("memory.current", "12\n");
        write("memory.max", "max\n");
        write("memory.events", "low 0\nmax 3\n");
        write("cpu.stat", "usage_usec 30000\nuser_usec 20000\nsystem_usec 10000\n");
        write("io.stat", "8:0 rbytes=10 wbytes=20 rios=1\n");
        std::fs::remove_file(dir.path().join("memory.limit_in_bytes")).unwrap();
        let groups = Cgroups { unified: Some(dir.path().into()), ..groups_in(dir.path()) };
        let new = groups.counters(std::process::id()).unwrap().unwrap();
        let cpu = CpuCounters { host_ns: old.cpu.host_ns, ..new.cpu };
        assert_eq!(GuestCounters { cpu, network: old.network, ..new }, old);
        assert_eq!(groups.counters(u32::MAX).unwrap(), None);
    }

    #[test]
    fn loopback_is_not_counted() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n\
                    \x20 eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n";
        let found = network(text);
        assert_eq!((found.received.bytes, found.received.dropped, found.sent.packets), (1, 4, 6));
    }
}
