//! Cgroups that the agent makes itself, for hosts without systemd: of version 1, version 2, or both
//! where controllers are spread over the two ("hybrid").

use std::io;
use std::path::{Path, PathBuf};

use super::limits::Limits;
use crate::host::Hierarchy;

/// Length of the period of which a guest gets its share, µs; the kernel's default.
const PERIOD_US: u64 = 100_000;

/// A kind of resource that the kernel can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Cpu,
    Io,
    Memory,
    Pids,
}

impl Controller {
    pub(super) const ALL: [Self; 4] = [Self::Cpu, Self::Io, Self::Memory, Self::Pids];

    /// In version 2.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Io => "io",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }

    fn old_name(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }

    fn is_in(self, hierarchy: &Hierarchy) -> bool {
        hierarchy.offers(if hierarchy.unified { self.name() } else { self.old_name() })
    }

    /// What is limited, for people.
    pub(super) fn limits(self) -> &'static str {
        match self {
            Self::Cpu => "CPU time",
            Self::Io => "disk use",
            Self::Memory => "memory",
            Self::Pids => "threads",
        }
    }
}

/// Where one controller's hierarchy has the parent of all guests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    controller: Controller,
    unified: bool,
    mount: PathBuf,
    parent: PathBuf,
}

/// The parent of all guests' cgroups, in all hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    places: Vec<Place>,
}

impl Tree {
    /// Finds the hierarchies of the host below `root`; writes nothing. `parent` is a path as in
    /// `/proc/PID/cgroup`.
    pub(super) fn find(root: &Path, parent: &str) -> io::Result<Self> {
        let relative = parent.trim_matches('/');
        if relative.split('/').any(|name| name == ".." || name == ".") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain path"));
        }
        let mounts = Hierarchy::all(root)?;
        if mounts.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no cgroups are mounted"));
        }
        let place = |controller: Controller| {
            let mount = mounts.iter().find(|mount| controller.is_in(mount))?;
            let parent = mount.path.join(relative);
            Some(Place { controller, unified: mount.unified, mount: mount.path.clone(), parent })
        };
        Ok(Self { places: Controller::ALL.into_iter().filter_map(place).collect() })
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        self.places.iter().any(|place| place.controller == controller)
    }

    /// Makes the parent in each hierarchy, with its controllers handed down to the guests.
    pub(super) fn make(&self) -> io::Result<()> {
        for place in &self.places {
            std::fs::create_dir_all(&place.parent)?;
            if place.unified {
                hand_down(place)?;
            }
        }
        Ok(())
    }

    /// Sets all limits of a guest, in cgroups that are made if need be.
    pub(super) fn set(&self, guest: &str, limits: &Limits) -> io::Result<()> {
        for place in &self.places {
            let dir = place.parent.join(guest);
            std::fs::create_dir_all(&dir)?;
            let files = if place.unified {
                unified(place.controller, limits)
            } else {
                separate(place.controller, limits, &dir)
            };
            for (name, value, needed) in files {
                match std::fs::write(dir.join(name), value) {
                    // Not in this kernel, e.g. weights without a disk scheduler that knows them.
                    Err(error) if !needed && is_absent(&error) => {}
                    wrote => wrote?,
                }
            }
        }
        Ok(())
    }

    /// Moves a process, with all its threads.
    pub(super) fn enter(&self, guest: &str, pid: u32) -> io::Result<()> {
        for place in &self.places {
            std::fs::write(place.parent.join(guest).join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Removes a guest's cgroups, which must be empty.
    pub(super) fn remove(&self, guest: &str) -> io::Result<()> {
        for place in &self.places {
            match std::fs::remove_dir(place.parent.join(guest)) {
                // In version 2 all controllers share one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Removes the parent, unless something is in it.
    pub(super) fn remove_parent(&self) {
        for place in &self.places {
            match std::fs::remove_dir(&place.parent) {
                Ok(()) => {}
                Err(error) => tracing::debug!(path = %place.parent.display(), %error, "it stays"),
            }
        }
    }
}

/// In version 2 a cgroup has the controllers that all above it hand down.
fn hand_down(place: &Place) -> io::Result<()> {
    let above = place.parent.ancestors().take_while(|dir| dir.starts_with(&place.mount));
    let mut above: Vec<&Path> = above.collect();
    above.reverse();
    for dir in above {
        let file = dir.join("cgroup.subtree_control");
        let name = place.controller.name();
        let handed = std::fs::read_to_string(&file)?;
        if !handed.split_whitespace().any(|it| it == name) {
            std::fs::write(&file, format!("+{name}"))?;
        }
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(nix::libc::EOPNOTSUPP)
}

/// File, content, and whether the limit is nothing without it.
type Files = Vec<(&'static str, String, bool)>;

fn unified(controller: Controller, limits: &Limits) -> Files {
    match controller {
        Controller::Memory => vec![
            ("memory.high", limits.memory_high_bytes().to_string(), false),
            ("memory.max", limits.memory_bytes.to_string(), true),
            ("memory.swap.max", limits.swap_bytes.to_string(), false),
        ],
        Controller::Cpu => {
            let quota = limits.cpu_percent.map(|percent| percent * PERIOD_US / 100);
            let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
            vec![
                ("cpu.max", format!("{quota} {PERIOD_US}"), true),
                ("cpu.weight", limits.cpu_weight.to_string(), true),
            ]
        }
        Controller::Io => vec![("io.weight", limits.io_weight.to_string(), false)],
        Controller::Pids => vec![("pids.max", limits.tasks.to_string(), true)],
    }
}

fn separate(controller: Controller, limits: &Limits, dir: &Path) -> Files {
    match controller {
        Controller::Memory => memory_and_swap(limits, dir),
        Controller::Cpu => {
            let quota = limits.cpu_percent.map(|percent| percent * PERIOD_US / 100);
            let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
            vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string(), true),
                ("cpu.cfs_quota_us", quota, true),
                // 1024 is what 100 is in version 2; the kernel's limits are 2 and 262144.
                (
                    "cpu.shares",
                    (limits.cpu_weight * 1024 / 100).clamp(2, 262_144).to_string(),
                    true,
                ),
            ]
        }
        // Its limits are 10 and 1000.
        Controller::Io => {
            let weight = limits.io_weight.clamp(10, 1000).to_string();
            vec![("blkio.bfq.weight", weight.clone(), false), ("blkio.weight", weight, false)]
        }
        Controller::Pids => vec![("pids.max", limits.tasks.to_string(), true)],
    }
}

/// Memory and swap together are never allowed less than memory alone, so what grows is set from the
/// sum down, what shrinks from memory up.
fn memory_and_swap(limits: &Limits, dir: &Path) -> Files {
    let sum = limits.memory_bytes.saturating_add(limits.swap_bytes);
    let memory = ("memory.limit_in_bytes", limits.memory_bytes.to_string(), true);
    let both = ("memory.memsw.limit_in_bytes", sum.to_string(), false);
    let now = std::fs::read_to_string(dir.join(both.0));
    let now = now.ok().and_then(|now| now.trim().parse::<u64>().ok());
    if now.is_some_and(|now| now < limits.memory_bytes) {
        vec![both, memory]
    } else {
        vec![memory, both]
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const MOUNTS: &str = "proc/self/mountinfo";

    const LIMITS: Limits = Limits {
        memory_bytes: 1_000_000_000,
        swap_bytes: 500_000_000,
        cpu_percent: Some(150),
        cpu_weight: 200,
        io_weight: 300,
        tasks: 77,
    };

    /// A host with these mounts, as type, place and options or offered controllers.
    fn host(mounts: &[(&str, &str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let mut lines = String::new();
        for (kind, place, controllers) in mounts {
            let dir = root.path().join(place);
            std::fs::create_dir_all(&dir).unwrap();
            let mut options = "rw".to_owned();
            if *kind == "cgroup2" {
                std::fs::write(dir.join("cgroup.controllers"), format!("{controllers}\n")).unwrap();
                std::fs::write(dir.join("cgroup.subtree_control"), "").unwrap();
            } else {
                options = format!("rw,{controllers}");
            }
            lines += &format!("31 23 0:28 / /{place} rw,relatime shared:9 - {kind} x {options}\n");
        }
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join(MOUNTS), lines).unwrap();
        root
    }

    fn read(root: &TempDir, path: &str) -> String {
        std::fs::read_to_string(root.path().join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn version_2_has_one_folder_for_all() {
        let root = host(&[("cgroup2", "sys/fs/cgroup", "cpuset cpu io memory pids")]);
        let guests = root.path().join("sys/fs/cgroup/guests");
        std::fs::create_dir_all(&guests).unwrap();
        std::fs::write(guests.join("cgroup.subtree_control"), "").unwrap();
        let tree = Tree::find(root.path(), "/guests").unwrap();
        tree.make().unwrap();
        tree.set("one", &LIMITS).unwrap();
        tree.enter("one", 42).unwrap();
        for (file, content) in [
            ("memory.max", "1000000000"),
            ("memory.high", "980000000"),
            ("memory.swap.max", "500000000"),
            ("cpu.max", "150000 100000"),
            ("cpu.weight", "200"),
            ("io.weight", "300"),
            ("pids.max", "77"),
            ("cgroup.procs", "42"),
        ] {
            assert_eq!(read(&root, &format!("sys/fs/cgroup/guests/one/{file}")), content, "{file}");
        }
        // A real file takes them one after the other; this one keeps the last.
        assert_eq!(read(&root, "sys/fs/cgroup/cgroup.subtree_control"), "+pids");
        tree.set("one", &Limits { cpu_percent: None, ..LIMITS }).unwrap();
        assert_eq!(read(&root, "sys/fs/cgroup/guests/one/cpu.max"), "max 100000");
    }

    #[test]
    fn hybrid_takes_each_controller_from_where_it_is() {
        let root = host(&[
            ("cgroup", "cg/memory", "memory"),
            ("cgroup", "cg/cpu", "cpu,cpuacct"),
            ("cgroup2", "cg/unified", "pids"),
        ]);
        std::fs::create_dir_all(root.path().join("cg/unified/a/b")).unwrap();
        for dir in ["a", "a/b"] {
            let file = root.path().join("cg/unified").join(dir).join("cgroup.subtree_control");
            std::fs::write(file, "").unwrap();
        }
        let tree = Tree::find(root.path(), "/a/b").unwrap();
        assert!(!tree.has(Controller::Io) && tree.has(Controller::Pids));
        tree.make().unwrap();
        tree.set("one", &LIMITS).unwrap();
        assert_eq!(read(&root, "cg/memory/a/b/one/memory.limit_in_bytes"), "1000000000");
        assert_eq!(read(&root, "cg/memory/a/b/one/memory.memsw.limit_in_bytes"), "1500000000");
        assert_eq!(read(&root, "cg/cpu/a/b/one/cpu.cfs_quota_us"), "150000");
        assert_eq!(read(&root, "cg/cpu/a/b/one/cpu.shares"), "2048");
        assert_eq!(read(&root, "cg/unified/a/b/one/pids.max"), "77");
        assert_eq!(read(&root, "cg/unified/a/cgroup.subtree_control"), "+pids");
    }

    #[test]
    fn memory_and_swap_change_in_the_order_the_kernel_takes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.memsw.limit_in_bytes"), "500\n").unwrap();
        let first = |limits: &Limits| memory_and_swap(limits, dir.path())[0].0;
        assert_eq!(first(&LIMITS), "memory.memsw.limit_in_bytes");
        assert_eq!(first(&Limits { memory_bytes: 400, ..LIMITS }), "memory.limit_in_bytes");
    }

    /// A parent of this test's own on the real host, removed with what is in it.
    struct Own(Tree);

    impl Drop for Own {
        fn drop(&mut self) {
            drop(self.0.remove("one"));
            for place in &self.0.places {
                drop(std::fs::remove_dir(&place.parent));
            }
        }
    }

    #[tokio::test]
    async fn a_real_kernel_takes_what_is_written() {
        use crate::host::{Detached, Exec as _, SystemExec};
        let name = format!("/muster-test-{}", std::process::id());
        let exec = SystemExec::new();
        let tree = Tree::find(Path::new("/"), &name);
        let own = match tree.and_then(|tree| tree.make().map(|()| Own(tree))) {
            Ok(own) if exec.supervisor() == "direct" => own,
            // systemd's cgroups are systemd's, and not everybody may make any.
            other => return eprintln!("not tried here: {:?}", other.map(|own| own.0.clone())),
        };
        let tree = &own.0;
        let folder = tempfile::tempdir().unwrap();
        let argv = ["sleep", "1000"].map(str::to_owned).to_vec();
        let log = folder.path().join("log");
        let detached = Detached { argv, env: Vec::new(), log, scope: None };
        let spawned = exec.spawn_detached(&detached).await.unwrap();
        let lowered = Limits { memory_bytes: 200 << 20, swap_bytes: 0, tasks: 33, ..LIMITS };
        let tried = [LIMITS, lowered, LIMITS].into_iter().try_for_each(|it| tree.set("one", &it));
        let entered = tried.and_then(|()| tree.enter("one", spawned.process.pid));
        let found = std::fs::read_to_string(format!("/proc/{}/cgroup", spawned.process.pid));
        let pids = tree.places.iter().find(|place| place.controller == Controller::Pids);
        let limit = pids.map(|it| std::fs::read_to_string(it.parent.join("one/pids.max")));
        spawned.process.kill().unwrap();
        spawned.process.gone().await.unwrap();
        entered.unwrap();
        assert!(found.unwrap().contains(&format!("{name}/one")));
        if let Some(limit) = limit {
            assert_eq!(limit.unwrap().trim(), "77");
        }
        let places = tree.places.clone();
        tree.remove("one").unwrap();
        assert!(places.iter().all(|place| !place.parent.join("one").exists()));
    }

    #[test]
    fn what_is_gone_is_removed_and_what_leads_elsewhere_refused() {
        let root = host(&[("cgroup", "cg/pids", "pids")]);
        assert!(Tree::find(root.path(), "/../etc").is_err());
        let tree = Tree::find(root.path(), "guests").unwrap();
        std::fs::create_dir_all(root.path().join("cg/pids/guests/one")).unwrap();
        tree.remove("one").unwrap();
        tree.remove("one").unwrap();
        assert!(!root.path().join("cg/pids/guests/one").exists());
    }
}
