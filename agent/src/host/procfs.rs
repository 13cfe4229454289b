//! Reads of `/proc`.

use std::io::Read as _;
use std::{fs, io};

use nix::libc;

/// What is read of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// Clock ticks since boot at which it started.
    pub start_ticks: u64,
}

impl Stat {
    /// A zombie, or on its way to be one.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Reads `/proc/<pid>/stat`; `None` when there is no such process.
///
/// # Errors
/// The file could not be read or understood.
pub fn stat(pid: u32) -> io::Result<Option<Stat>> {
    let Some(text) = gone_is_none(fs::read_to_string(format!("/proc/{pid}/stat")))? else {
        return Ok(None);
    };
    parse_stat(&text)
        .map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/<pid>/stat"))
}

/// The name in parentheses may itself hold spaces and parentheses: fields count from its end.
fn parse_stat(text: &str) -> Option<Stat> {
    const STATE: usize = 0;
    const START_TICKS: usize = 19;
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let state = fields.get(STATE)?.chars().next()?;
    Some(Stat { state, start_ticks: fields.get(START_TICKS)?.parse().ok()? })
}

/// What a process has taken of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// CPU time of all its threads, those that have ended among them, ms.
    pub cpu_ms: u64,
    /// Memory that it really has, bytes; a zombie has none.
    pub resident_bytes: u64,
}

/// What a process has taken of its host; `None` when there is no such process.
///
/// # Errors
/// The file could not be read or understood.
pub fn taken(pid: u32) -> io::Result<Option<Taken>> {
    let Some((ticks, pages)) = short(&format!("/proc/{pid}/stat"), parse_taken)? else {
        return Ok(None);
    };
    let cpu_ms = ticks.saturating_mul(1000) / ticks_per_second()?;
    Ok(Some(Taken { cpu_ms, resident_bytes: pages.saturating_mul(page_bytes()?) }))
}

/// Clock ticks in user mode and in the kernel, and pages of memory.
fn parse_taken(text: &str) -> Option<(u64, u64)> {
    const USER_TICKS: usize = 11;
    const KERNEL_TICKS: usize = 12;
    const RESIDENT_PAGES: usize = 21;
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let mut rest = fields.by_ref().skip(USER_TICKS);
    let user: u64 = rest.next()?.parse().ok()?;
    let kernel: u64 = rest.next()?.parse().ok()?;
    let pages = rest.nth(RESIDENT_PAGES - KERNEL_TICKS - 1)?;
    // The kernel's own count may be below zero for a moment.
    let pages: i64 = pages.parse().ok()?;
    Some((user.checked_add(kernel)?, pages.max(0).unsigned_abs()))
}

/// Reads what the kernel says in less than a page; `None` for what is gone. Nothing is asked of the
/// file but its content: this is done for each guest, again and again.
pub(super) fn short<T>(path: &str, parse: impl FnOnce(&str) -> Option<T>) -> io::Result<Option<T>> {
    let mut buffer = [0; 4096];
    let read = fs::File::open(path).and_then(|mut file| {
        let mut length = 0;
        loop {
            match file.read(&mut buffer[length..])? {
                // With the buffer full there may be more.
                0 if length < buffer.len() => return Ok(length),
                0 => return Err(io::ErrorKind::FileTooLarge.into()),
                more => length += more,
            }
        }
    });
    let Some(length) = gone_is_none(read)? else { return Ok(None) };
    let parsed = std::str::from_utf8(&buffer[..length]).ok().and_then(parse);
    let unexpected =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{path} has an unexpected content"));
    parsed.map(Some).ok_or_else(unexpected)
}

/// The arguments of a process; `None` when there is no such process. Empty for kernel threads.
///
/// # Errors
/// The file could not be read.
pub fn cmdline(pid: u32) -> io::Result<Option<Vec<String>>> {
    let bytes = gone_is_none(fs::read(format!("/proc/{pid}/cmdline")))?;
    Ok(bytes.map(|bytes| {
        bytes
            .split(|byte| *byte == 0)
            .filter(|argument| !argument.is_empty())
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect()
    }))
}

/// The control groups of a process, a line each; `None` when there is no such process.
///
/// # Errors
/// The file could not be read.
pub fn cgroups(pid: u32) -> io::Result<Option<String>> {
    gone_is_none(fs::read_to_string(format!("/proc/{pid}/cgroup")))
}

/// A variable in the environment that a process was started with; `None` also when there is no such
/// process.
///
/// # Errors
/// The file could not be read.
pub fn started_with(pid: u32, name: &str) -> io::Result<Option<String>> {
    let bytes = gone_is_none(fs::read(format!("/proc/{pid}/environ")))?.unwrap_or_default();
    let mut variables = bytes.split(|byte| *byte == 0);
    let value =
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

/// Memory of this host, MiB; `None` where it does not tell.
#[must_use]
pub fn memory_mib() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(value.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Whether this process has a capability, by the number of capabilities(7).
///
/// # Errors
/// `/proc` could not be read.
pub fn has_capability(number: u32) -> io::Result<bool> {
    let text = fs::read_to_string("/proc/thread-self/status")?;
    effective_capabilities(&text)
        .map(|set| set >> number & 1 == 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no CapEff in the status"))
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

/// What is read of `/proc/<pid>/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The process that made it.
    pub parent: u64,
    /// Whose it is.
    pub uid: u64,
    /// With whose rights it acts.
    pub effective_uid: u64,
    /// Its group.
    pub gid: u64,
    /// With which group's rights it acts.
    pub effective_gid: u64,
    /// Address space, KiB.
    pub size_kib: u64,
    /// Memory that it really has, KiB.
    pub resident_kib: u64,
    /// Its threads.
    pub threads: u64,
}

/// Reads `/proc/<pid>/status`; `None` when there is no such process.
///
/// # Errors
/// The file could not be read.
pub fn status(pid: u32) -> io::Result<Option<Status>> {
    let text = gone_is_none(fs::read_to_string(format!("/proc/{pid}/status")))?;
    Ok(text.map(|text| parse_status(&text)))
}

/// What is absent, as the memory of a zombie, is 0.
fn parse_status(text: &str) -> Status {
    let number = |name: &str, place: usize| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let word = line.and_then(|line| line.split_ascii_whitespace().nth(place));
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    Status {
        parent: number("PPid", 0),
        uid: number("Uid", 0),
        effective_uid: number("Uid", 1),
        gid: number("Gid", 0),
        effective_gid: number("Gid", 1),
        size_kib: number("VmSize", 0),
        resident_kib: number("VmRSS", 0),
        threads: number("Threads", 0),
    }
}

/// The number that a process has in its own namespace of processes; `None` when there is no such
/// process.
///
/// # Errors
/// The file could not be read.
pub fn innermost_pid(pid: u32) -> io::Result<Option<u32>> {
    let text = gone_is_none(fs::read_to_string(format!("/proc/{pid}/status")))?;
    let Some(text) = text else { return Ok(None) };
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
    Ok(line.and_then(|line| line.split_ascii_whitespace().last()?.parse().ok()))
}

/// Every process, in pid order.
///
/// # Errors
/// `/proc` could not be listed.
pub fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            pids.push(pid);
        }
    }
    pids.sort_unstable();
    Ok(pids)
}

/// Wall clock, ms since the epoch, at so many clock ticks after the boot of the host.
///
/// # Errors
/// The kernel does not tell when it was booted.
pub fn wall_ms(ticks_since_boot: u64) -> io::Result<u64> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "no boot time in /proc/stat");
    let text = fs::read_to_string("/proc/stat")?;
    let booted = text.lines().find_map(|line| line.strip_prefix("btime "));
    let booted_s: u64 = booted.and_then(|s| s.trim().parse().ok()).ok_or_else(unknown)?;
    let per_second = ticks_per_second()?;
    Ok(booted_s.saturating_mul(1000).saturating_add(ticks_since_boot * 1000 / per_second))
}

/// The unit of times in `/proc`.
fn ticks_per_second() -> io::Result<u64> {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?;
    let per_second = per_second.and_then(|hz| u64::try_from(hz).ok()).filter(|hz| *hz > 0);
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "no length of a clock tick");
    per_second.ok_or_else(unknown)
}

/// The unit of memory in `/proc/<pid>/stat`.
fn page_bytes() -> io::Result<u64> {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no size of a page"))
}

/// Changes with every boot of the host.
///
/// # Errors
/// The kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// `None` for what is gone, as a process may be at any time.
pub(super) fn gone_is_none<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rights_are_read_by_their_numbers() {
        let of = effective_capabilities;
        assert_eq!(of("Name:\tx\nCapEff:\t0000000000001000\n"), Some(1 << 12));
        assert_eq!((of("CapEff:\tx"), of("CapPrm:\t01")), (None, None));
        has_capability(12).unwrap();
    }

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2";
        assert_eq!(parse_stat(text), Some(Stat { state: 'S', start_ticks: 98765 }));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_taken(text), Some((0, 2)));
        let busy = "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 150 50 9 9 20 0 1 0 98765 1 -2 7";
        assert_eq!(parse_taken(busy), Some((200, 0)));
        assert_eq!(parse_taken("42 (a) S 1"), None);
    }

    proptest! {
        #[test]
        fn any_name_and_any_cut_is_read_or_refused(name in "\\PC{0,20}", at in 0_usize..90) {
            let text = format!("42 ({name}) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99 1 5");
            prop_assert_eq!(parse_taken(&text), Some((23, 5)));
            prop_assert_eq!(parse_stat(&text).map(|stat| stat.start_ticks), Some(99));
            let cut: String = text.chars().take(at).collect();
            parse_taken(&cut);
            parse_stat(&cut);
            parse_status(&cut);
        }
    }

    #[test]
    fn a_status_is_read_by_name_and_place() {
        let text =
            "Name:\tx\nPPid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\nVmRSS:\t  12 kB\nThreads:\t3\n";
        let expected = Status {
            parent: 7,
            uid: 1,
            effective_uid: 2,
            gid: 5,
            effective_gid: 6,
            size_kib: 0,
            resident_kib: 12,
            threads: 3,
        };
        assert_eq!(parse_status(text), expected);
        let mine = status(std::process::id()).unwrap().unwrap();
        assert!(mine.threads >= 1 && mine.resident_kib > 0);
    }

    #[test]
    fn what_this_process_has_taken_agrees_with_its_status() {
        let me = std::process::id();
        let (taken, status) = (taken(me).unwrap().unwrap(), status(me).unwrap().unwrap());
        let status_bytes = status.resident_kib * 1024;
        // It grows and shrinks between the two.
        assert!(taken.resident_bytes > status_bytes / 2, "{taken:?} {status_bytes}");
        assert!(taken.resident_bytes < status_bytes * 2, "{taken:?} {status_bytes}");
        assert_eq!(super::taken(u32::MAX).unwrap(), None);
    }

    #[test]
    fn what_is_too_long_or_no_text_is_refused() {
        let whole = |text: &str| Some(text.len());
        short("/proc/kallsyms", whole).unwrap_err();
        assert_eq!(short("/proc/self/comm", |text| Some(text.len() > 1)).unwrap(), Some(true));
        assert_eq!(short("/proc/self/absent", whole).unwrap(), None);
    }

    #[test]
    fn this_process_is_listed_with_its_arguments() {
        let me = std::process::id();
        assert!(pids().unwrap().contains(&me));
        assert!(!cmdline(me).unwrap().unwrap().is_empty());
        assert!(!boot_id().unwrap().is_empty());
    }
}
