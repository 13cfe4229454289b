//! Control groups: which hierarchies this host has, and what those of one process say.

mod counters;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::counters::{BlockCounter, CpuCounters, GuestCounters, LinkCounters, NetworkCounters};
use super::procfs::{self, gone_is_none};

/// Where the kernel says what is mounted.
const MOUNTS: &str = "proc/self/mountinfo";
const NS_PER_MS: u64 = 1_000_000;
const US_PER_MS: u64 = 1000;

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub path: PathBuf,
    /// Of version 2.
    pub unified: bool,
    /// By the names that its version has for them.
    pub controllers: Vec<String>,
}

impl Hierarchy {
    /// Those of the host below `root`, in the order in which they were mounted.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn all(root: &Path) -> io::Result<Vec<Self>> {
        let mounts = std::fs::read_to_string(root.join(MOUNTS))?;
        Ok(mounts.lines().filter_map(|line| Self::read(line, root)).collect())
    }

    /// From a line of `mountinfo`: fields, a dash, type, source and options.
    fn read(line: &str, root: &Path) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let path = root.join(front.split(' ').nth(4)?.trim_start_matches('/'));
        let mut back = back.split(' ');
        let (kind, _source, options) = (back.next()?, back.next()?, back.next()?);
        let words = |text: &str, separator: char| {
            text.split(separator).map(|word| word.trim().to_owned()).collect::<Vec<_>>()
        };
        match kind {
            "cgroup" => Some(Self { path, unified: false, controllers: words(options, ',') }),
            "cgroup2" => {
                // Those that version 1 has taken are not in it.
                let offered = std::fs::read_to_string(path.join("cgroup.controllers"));
                let controllers = words(&offered.unwrap_or_default(), ' ');
                Some(Self { path, unified: true, controllers })
            }
            _ => None,
        }
    }

    /// Whether it has this controller.
    #[must_use]
    pub fn offers(&self, controller: &str) -> bool {
        self.controllers.iter().any(|offered| offered == controller)
    }
}

/// What was read and written on block devices; what is still in memory is not among it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Where the control groups of one process are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroups {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    freezer: Option<PathBuf>,
    #[serde(default)]
    io: Option<PathBuf>,
    /// Of version 2.
    unified: Option<PathBuf>,
}

impl Cgroups {
    /// Those of a process; `None`: there is no such process.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(text) = procfs::cgroups(pid)? else { return Ok(None) };
        Ok(Some(Self::read(&text, &Hierarchy::all(Path::new("/"))?)))
    }

    fn read(text: &str, hierarchies: &[Hierarchy]) -> Self {
        let place = |controller: &str, old: &str| {
            let hierarchy = hierarchies.iter().find(|hierarchy| {
                hierarchy.offers(if hierarchy.unified { controller } else { old })
            })?;
            let of_it = |line: &&str| {
                let named = line.split(':').nth(1).unwrap_or_default();
                match hierarchy.unified {
                    true => named.is_empty(),
                    false => named.split(',').any(|name| name == old),
                }
            };
            let path = text.lines().find(of_it)?.splitn(3, ':').nth(2)?;
            Some(hierarchy.path.join(path.trim_start_matches('/')))
        };
        let unified = hierarchies.iter().find(|it| it.unified && !it.controllers.is_empty());
        let unified = unified.and_then(|hierarchy| {
            let line = text.lines().find(|line| line.starts_with("0::"))?;
            Some(hierarchy.path.join(line.trim_start_matches("0::").trim_start_matches('/')))
        });
        Self {
            memory: place("memory", "memory"),
            cpu: place("cpu", "cpuacct"),
            pids: place("pids", "pids"),
            freezer: place("freezer", "freezer"),
            io: place("io", "blkio"),
            unified,
        }
    }

    /// Processes that the kernel ended since their memory was used up.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let dir = self.memory.as_ref()?;
        named(dir, "memory.events", "oom_kill")
            .or_else(|| named(dir, "memory.oom_control", "oom_kill"))
    }

    /// Processes and threads that could not be made since there were too many.
    #[must_use]
    pub fn refused_tasks(&self) -> Option<u64> {
        named(self.pids.as_ref()?, "pids.events", "max")
    }

    /// Processes and threads.
    #[must_use]
    pub fn tasks(&self) -> Option<u64> {
        number(self.pids.as_ref()?, "pids.current")
    }

    /// Memory in use, with that of files that could be given back, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        let dir = self.memory.as_ref()?;
        number(dir, "memory.current").or_else(|| number(dir, "memory.usage_in_bytes"))
    }

    /// Most memory that may be in use, bytes.
    #[must_use]
    pub fn memory_limit_bytes(&self) -> Option<u64> {
        let dir = self.memory.as_ref()?;
        number(dir, "memory.max").or_else(|| number(dir, "memory.limit_in_bytes"))
    }

    /// CPU time, ms.
    #[must_use]
    pub fn cpu_ms(&self) -> Option<u64> {
        let dir = self.cpu.as_ref()?;
        let unified = named(dir, "cpu.stat", "usage_usec").map(|us| us / US_PER_MS);
        unified.or_else(|| number(dir, "cpuacct.usage").map(|ns| ns / NS_PER_MS))
    }

    /// What was read and written on all block devices together.
    #[must_use]
    pub fn blocks(&self) -> Option<Blocks> {
        let dir = self.io.as_ref()?;
        if let Some(text) = read(dir, "io.stat") {
            let sum = |name: &str| {
                let words = text.split_ascii_whitespace();
                let own = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
                own.filter_map(|number| number.parse::<u64>().ok()).fold(0, u64::saturating_add)
            };
            return Some(Blocks {
                read_bytes: sum("rbytes"),
                written_bytes: sum("wbytes"),
                reads: sum("rios"),
                writes: sum("wios"),
            });
        }
        let sum = |file: &str, kind: &str| {
            let text = read(dir, file)?;
            let own =
                text.lines().filter_map(|line| line.split_once(kind)?.1.trim().parse::<u64>().ok());
            Some(own.fold(0, u64::saturating_add))
        };
        let (bytes, count) = ("blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced");
        Some(Blocks {
            read_bytes: sum(bytes, " Read ")?,
            written_bytes: sum(bytes, " Write ")?,
            reads: sum(count, " Read ")?,
            writes: sum(count, " Write ")?,
        })
    }

    /// The processes in it, also of groups that were made within.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn members(&self) -> io::Result<Vec<u32>> {
        let dir = self.pids.as_ref().or(self.memory.as_ref()).or(self.unified.as_ref());
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = dir.cloned().into_iter().collect();
        while let Some(folder) = folders.pop() {
            let text = gone_is_none(std::fs::read_to_string(folder.join("cgroup.procs")))?;
            found.extend(
                text.iter().flat_map(|it| it.lines()).filter_map(|it| it.parse::<u32>().ok()),
            );
            let Some(entries) = gone_is_none(std::fs::read_dir(&folder))? else { continue };
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Whether its processes stand still.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let old = self.freezer.as_ref().and_then(|dir| read(dir, "freezer.state"));
        let new = self.unified.as_ref().and_then(|dir| read(dir, "cgroup.freeze"));
        old.is_some_and(|state| state.trim() != "THAWED") || new.is_some_and(|it| it.trim() == "1")
    }
}

fn read(dir: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(file)).ok()
}

fn number(dir: &Path, file: &str) -> Option<u64> {
    read(dir, file)?.trim().parse().ok()
}

fn named(dir: &Path, file: &str, name: &str) -> Option<u64> {
    let text = read(dir, file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(path: &str, unified: bool, controllers: &[&str]) -> Hierarchy {
        let controllers = controllers.iter().map(|&name| name.to_owned()).collect();
        Hierarchy { path: path.into(), unified, controllers }
    }

    #[test]
    fn places_are_found_in_both_versions() {
        let old = [
            hierarchy("/cg/cpu", false, &["rw", "cpu", "cpuacct"]),
            hierarchy("/cg/memory", false, &["rw", "memory"]),
            hierarchy("/cg/unified", true, &["pids"]),
        ];
        let text = "5:cpu,cpuacct:/a/x\n4:memory:/b/x\n0::/c/x\n";
        let found = Cgroups::read(text, &old);
        assert_eq!(found.cpu, Some("/cg/cpu/a/x".into()));
        assert_eq!(found.memory, Some("/cg/memory/b/x".into()));
        assert_eq!(found.pids, Some("/cg/unified/c/x".into()));
        assert_eq!(found.freezer, None);
        let new = [hierarchy("/cg", true, &["cpu", "memory", "pids"])];
        let found = Cgroups::read("0::/x.slice/y.scope\n", &new);
        assert_eq!(found.memory, Some("/cg/x.slice/y.scope".into()));
        assert_eq!(found.unified, found.memory);
    }

    #[test]
    fn figures_are_read_in_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let of = || Cgroups {
            memory: Some(dir.path().into()),
            cpu: Some(dir.path().into()),
            pids: Some(dir.path().into()),
            ..Cgroups::default()
        };
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        assert_eq!((of().oom_kills(), of().cpu_ms()), (None, None));
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        write("cpuacct.usage", "5000000\n");
        write("pids.events", "max 3\n");
        assert_eq!(
            (of().oom_kills(), of().cpu_ms(), of().refused_tasks()),
            (Some(2), Some(5), Some(3))
        );
        write("blkio.throttle.io_service_bytes", "8:0 Read 5\n8:0 Write 7\n8:1 Read 1\nTotal 13\n");
        write("blkio.throttle.io_serviced", "8:0 Read 2\n8:0 Write 3\nTotal 5\n");
        let io = || Cgroups { io: Some(dir.path().into()), ..of() }.blocks();
        let old = Blocks { read_bytes: 6, written_bytes: 7, reads: 2, writes: 3 };
        assert_eq!(io(), Some(old));
        write("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0\n8:1 rbytes=9\n");
        let new = Blocks { read_bytes: 10, written_bytes: 2, reads: 3, writes: 4 };
        assert_eq!(io(), Some(new));
        write("memory.events", "low 0\noom 4\noom_kill 4\n");
        write("cpu.stat", "usage_usec 7000\nuser_usec 1\n");
        assert_eq!((of().oom_kills(), of().cpu_ms()), (Some(4), Some(7)));
    }

    #[test]
    fn this_process_has_some() {
        Cgroups::of(std::process::id()).unwrap().unwrap();
        assert_eq!(Cgroups::of(u32::MAX).unwrap(), None);
    }
}
