//! What the agent's own process takes of the node's memory, which is there for guests.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::syscalls;

/// How often what is not in use is given back.
const PERIOD: Duration = Duration::from_secs(10);

/// Has all threads allocate from one heap: with one for each, freed memory lies about in all of them.
/// To be called before there is a second thread.
pub fn share_heap() {
    syscalls::use_one_arena();
}

/// Gives back what is not in use, from time to time, for as long as it is polled.
pub async fn keep_small() {
    loop {
        tokio::time::sleep(PERIOD).await;
        give_back();
    }
}

/// Gives back freed memory, and the program's code: around each page of it that is touched the kernel
/// maps fifteen others, most of which are needed at the start or never. What is needed is mapped again,
/// from the kernel's cache.
fn give_back() {
    syscalls::trim_heap();
    // What can't be read is not given back; nothing depends on it.
    let (Ok(maps), Ok(program)) =
        (std::fs::read_to_string("/proc/self/maps"), std::fs::read_link("/proc/self/exe"))
    else {
        return;
    };
    for range in code(&maps, &program) {
        syscalls::unmap_code(range);
    }
}

/// Where a program's code is mapped, by `/proc/PID/maps`: executable, and never written to.
fn code(maps: &str, program: &Path) -> Vec<Range<usize>> {
    let range = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (range, rights) = (words.next()?, words.next()?);
        let path = words.nth(3)?.trim_start();
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let is_code = rights == "r-xp" && Path::new(path) == program;
        is_code.then_some(number(start)?..number(end)?)
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_the_program_executes_and_nothing_that_may_differ_from_its_file() {
        let maps = "\
55d0c5a00000-55d0c6000000 r--p 00000000 fe:00 1234                       /usr/bin/muster agent
55d0c6000000-55d0c7000000 r-xp 00600000 fe:00 1234                       /usr/bin/muster agent
55d0c7000000-55d0c7100000 rwxp 01600000 fe:00 1234                       /usr/bin/muster agent
7f0000000000-7f0000100000 r-xp 00000000 fe:00 77                         /usr/lib/libc.so.6
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]
7fff00002000-7fff00003000 r-xp 00000000 00:00 0
";
        let found = code(maps, Path::new("/usr/bin/muster agent"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0], 0x55d0_c600_0000..0x55d0_c700_0000);
    }

    #[test]
    fn a_program_goes_on_after_it_has_given_back_its_code() {
        give_back();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        assert!(!code(&maps, &program).is_empty());
    }
}
