//! Memory of a large process in huge pages.
//!
//! A coordinator of 20,000 nodes holds more than a GiB, and each message touches dozens of places all
//! over it. With pages of 4 KiB the processor must look up the page tables, in memory as well, at most
//! of them. To ask for huge pages in advance (`MADV_HUGEPAGE`) is no answer: the kernel would zero 2 MiB
//! when one is touched first, in the midst of a request. So what is filled is moved into huge pages
//! afterwards, in the background (`MADV_COLLAPSE`, Linux 6.1), and memory that is not filled stays as
//! it is.
#![expect(unsafe_code, reason = "madvise has no safe wrapper")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{SysconfVar, sysconf};

use crate::clock::Clock;
use crate::threads::{Threads, compute};
use crate::units::MIB;

/// How often memory is looked at.
const PERIOD: Duration = Duration::from_mins(1);
/// Processes with less memory gain nothing, bytes.
const SMALLEST: u64 = 256 * MIB;
/// Pause after each huge page, by the time that it took: so this takes one part in twenty of a processor
/// at most, and page faults of other threads seldom find it at work. All memory of a large process at once
/// would take a whole one for seconds.
const PAUSE: u32 = 19;
/// One in so many of a huge page's pages may be missing; they take memory afterwards.
const MISSING: usize = 16;
const PAGEMAP: &str = "/proc/self/pagemap";
/// Bytes of an entry of `/proc/PID/pagemap`, and the bit that says that the page is in memory.
const ENTRY: usize = 8;
const PRESENT: u64 = 1 << 63;

/// Moves this process's memory into huge pages from time to time, for as long as it is polled. Ends
/// where there are none. At everybody's priority: page faults of other threads wait for it.
pub async fn keep(threads: &dyn Threads, clock: &dyn Clock) {
    let Some(sizes) = Sizes::of_system() else { return };
    loop {
        tokio::time::sleep(PERIOD).await;
        let filled = match compute(threads, move || filled_memory(sizes)).await {
            Ok(filled) => filled,
            Err(error) => return tracing::debug!(%error, "cannot look at the memory's pages"),
        };
        for start in filled {
            let before = clock.monotonic();
            let moved = compute(threads, move || collapse(start, sizes)).await;
            let taken = clock.monotonic().saturating_sub(before);
            // Memory may have changed meanwhile, or there is no room in one piece; next time, then. Linux
            // before 6.1 doesn't know it and a sandbox may refuse it: the rest would fail as well.
            if let Err(error) = moved
                && [libc::EINVAL, libc::EPERM, libc::ENOSYS]
                    .map(Some)
                    .contains(&error.raw_os_error())
            {
                tracing::debug!(%error, "the kernel makes no huge pages");
                break;
            }
            tokio::time::sleep(taken * PAUSE).await;
        }
    }
}

/// Bytes of a page and of a huge page.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    page: usize,
    huge: usize,
}

impl Sizes {
    /// As the kernel says; `None` without huge pages.
    fn of_system() -> Option<Self> {
        let file = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
        let huge = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let page = usize::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
        Some(Self { page, huge }).filter(|sizes| sizes.huge > sizes.page)
    }
}

/// Where huge pages begin that are filled but for a few pages; none of a small process.
fn filled_memory(sizes: Sizes) -> io::Result<Vec<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let pagemap = File::open(PAGEMAP)?;
    let mut filled = Vec::new();
    for start in heap(&maps).into_iter().flat_map(|range| huge_pages_in(range, sizes.huge)) {
        if is_filled(&pagemap, start, sizes)? {
            filled.push(start);
        }
    }
    let bytes = u64::try_from(filled.len() * sizes.huge).unwrap_or(u64::MAX);
    Ok(if bytes < SMALLEST { Vec::new() } else { filled })
}

/// Whether all but a few pages of a huge page are in memory, by `/proc/PID/pagemap`.
fn is_filled(pagemap: &File, start: usize, sizes: Sizes) -> io::Result<bool> {
    let mut entries = vec![0; sizes.huge / sizes.page * ENTRY];
    let at = u64::try_from(start / sizes.page * ENTRY).unwrap_or(u64::MAX);
    pagemap.read_exact_at(&mut entries, at)?;
    let (entries, _) = entries.as_chunks::<ENTRY>();
    let is_present = |entry: &&[u8; ENTRY]| u64::from_ne_bytes(**entry) & PRESENT != 0;
    let present = entries.iter().filter(is_present).count();
    Ok(present >= entries.len() * (MISSING - 1) / MISSING)
}

/// Where a process has memory of its own, by `/proc/PID/maps`: written to, and of no file.
fn heap(maps: &str) -> Vec<Range<usize>> {
    let range = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let is_heap = rights == "rw-p" && words.nth(2)? == "0" && words.next().is_none();
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        is_heap.then_some(number(start)?..number(end)?)
    };
    maps.lines().filter_map(range).collect()
}

/// Where huge pages begin that lie in a range as a whole.
fn huge_pages_in(range: Range<usize>, huge: usize) -> impl Iterator<Item = usize> {
    let first = range.start.next_multiple_of(huge);
    (first..range.end).step_by(huge).filter(move |start| range.end - start >= huge)
}

/// Moves what is there into a huge page, unless it was given back meanwhile; pages that are missing become
/// pages of zeros. Of what is in a huge page already, the kernel finds out in a moment.
fn collapse(start: usize, sizes: Sizes) -> io::Result<()> {
    if !is_filled(&File::open(PAGEMAP)?, start, sizes)? {
        return Ok(());
    }
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: it changes where pages lie and not what is in them. If this memory is no longer mapped, or
    // is mapped anew, it is refused or does the same to what is there now.
    let answer = unsafe { libc::madvise(start, sizes.huge, libc::MADV_COLLAPSE) };
    Ok(Errno::result(answer).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: usize = 0x20_0000;

    #[test]
    fn the_heap_is_what_is_written_to_and_of_no_file() {
        let maps = "\
55d0c5a00000-55d0c6000000 r--p 00000000 fe:00 1234                       /usr/bin/muster-coordinator
55d0c7000000-55d0c7100000 rw-p 01600000 fe:00 1234                       /usr/bin/muster-coordinator
55d0c8000000-55d0c8100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
7f0040000000-7f0080000000 ---p 00000000 00:00 0
7f0080000000-7f00c0000000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7fff00000000-7fff00100000 rw-p 00000000 00:00 0                          [stack]
";
        let found = heap(maps);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0], 0x7f00_0000_0000..0x7f00_4000_0000);
    }

    #[test]
    fn only_whole_huge_pages_are_looked_at() {
        let starts = |range| huge_pages_in(range, HUGE).collect::<Vec<_>>();
        assert_eq!(starts(0..2 * HUGE), [0, HUGE]);
        assert_eq!(starts(1..3 * HUGE - 1), [HUGE]);
        assert!(starts(1..2 * HUGE - 1).is_empty());
        assert!(starts(5..5).is_empty());
    }

    /// How many bytes of this process are in huge pages, as the kernel says.
    fn in_huge_pages() -> usize {
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = rollup.lines().find(|line| line.starts_with("AnonHugePages:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    #[test]
    fn what_is_moved_stays_what_it_was() {
        let sizes = Sizes::of_system().expect("this kernel has huge pages");
        let number = |place: usize| u8::try_from(place % 251).expect("small");
        let memory: Vec<u8> = (0..4 * sizes.huge).map(number).collect();
        let start = memory.as_ptr().expose_provenance();
        let whole: Vec<usize> = huge_pages_in(start..start + memory.len(), sizes.huge).collect();
        let moved = whole.iter().try_for_each(|start| collapse(*start, sizes));
        match moved {
            Ok(()) => assert!(in_huge_pages() >= whole.len() * sizes.huge),
            // An old kernel, or no room in one piece.
            Err(error) => assert!(
                [libc::EINVAL, libc::EAGAIN, libc::ENOMEM, libc::EBUSY]
                    .map(Some)
                    .contains(&error.raw_os_error()),
                "{error}"
            ),
        }
        assert!(memory.iter().enumerate().all(|(place, byte)| *byte == number(place)));
    }

    #[test]
    fn a_small_process_is_left_alone_and_a_large_one_is_not() {
        let sizes = Sizes::of_system().expect("this kernel has huge pages");
        assert!(filled_memory(sizes).unwrap().is_empty());
        let large = usize::try_from(SMALLEST).unwrap() + 2 * sizes.huge;
        let memory = vec![1_u8; large];
        let start = memory.as_ptr().expose_provenance();
        let filled = filled_memory(sizes).unwrap();
        let of_memory = filled
            .iter()
            .filter(|page| **page >= start && **page + sizes.huge <= start + memory.len());
        assert!(of_memory.count() * sizes.huge >= large - 2 * sizes.huge);
    }
}
