//! What the threads of a process did, as the kernel's scheduler counts it.

use std::{fs, io};

use super::procfs;

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id, as the id of a process.
    pub id: u32,
    /// Its name.
    pub name: String,
}

/// Times of a thread, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// It ran.
    pub run_ns: u64,
    /// It was ready to run and waited for a CPU.
    pub delay_ns: u64,
}

/// The threads of a process; `None` when there is no such process.
///
/// # Errors
/// `/proc` could not be read.
pub fn threads(pid: u32) -> io::Result<Option<Vec<Thread>>> {
    let folder = format!("/proc/{pid}/task");
    let Some(entries) = procfs::gone_is_none(fs::read_dir(folder))? else { return Ok(None) };
    let mut threads = Vec::new();
    for entry in entries {
        let Some(entry) = procfs::gone_is_none(entry)? else { continue };
        let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()) else { continue };
        // One that has ended since the folder was listed has no name.
        let name = procfs::gone_is_none(fs::read_to_string(entry.path().join("comm")))?;
        threads.extend(name.map(|name| Thread { id, name: name.trim_end().to_owned() }));
    }
    Ok(Some(threads))
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There is no such thread.
    Gone,
    /// This kernel does not count.
    Uncounted,
    /// So much.
    Times(Times),
}

/// What one thread of a process did.
///
/// # Errors
/// `/proc` could not be read.
pub fn times(pid: u32, thread: u32) -> io::Result<Seen> {
    let path = format!("/proc/{pid}/task/{thread}/schedstat");
    let seen = procfs::short(&path, |text| Some(parse(text).map_or(Seen::Uncounted, Seen::Times)))?;
    match seen {
        // A kernel without the file has the thread all the same.
        None if fs::exists(format!("/proc/{pid}/task/{thread}"))? => Ok(Seen::Uncounted),
        None => Ok(Seen::Gone),
        Some(seen) => Ok(seen),
    }
}

/// Time on a CPU, time in a queue for one, turns. A kernel that does not count says all zeros; a
/// thread that exists had a turn.
fn parse(schedstat: &str) -> Option<Times> {
    let mut numbers = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (run_ns, delay_ns, turns) = (next()?, next()?, next()?);
    ((run_ns, delay_ns, turns) != (0, 0, 0)).then_some(Times { run_ns, delay_ns })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_kernel_that_does_not_count_is_not_taken_for_an_idle_thread() {
        assert_eq!(parse("0 0 0\n"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("1 2"), None);
        assert_eq!(parse("0 3726342 1\n"), Some(Times { run_ns: 0, delay_ns: 3_726_342 }));
    }

    #[test]
    fn this_thread_is_among_those_of_its_process() {
        let mine = fs::read_to_string("/proc/thread-self/comm").unwrap();
        let me = std::process::id();
        let threads = threads(me).unwrap().unwrap();
        let mine = threads.iter().find(|thread| thread.name == mine.trim_end());
        assert_ne!(times(me, mine.expect("it runs").id).unwrap(), Seen::Gone);
        assert_eq!(times(me, u32::MAX).unwrap(), Seen::Gone);
        assert_eq!(super::threads(u32::MAX).unwrap(), None);
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read(run in 1_u64.., delay: u64, turns: u64) {
            let times = Times { run_ns: run, delay_ns: delay };
            prop_assert_eq!(parse(&format!("{run} {delay} {turns}\n")), Some(times));
        }

        #[test]
        fn anything_else_is_refused_or_read_without_harm(text in "\\PC{0,60}") {
            parse(&text);
        }
    }
}
