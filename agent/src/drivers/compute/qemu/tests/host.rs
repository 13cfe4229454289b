//! A host that can't be read, or that has no time for its guests.

use std::os::unix::fs::PermissionsExt as _;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use super::super::table::{Follower, GuestTable, TableConfig};
use super::*;
use crate::host::{Detached, Exec as _};

/// While it lives, this process can open no file.
struct NoFiles(u64, u64);

impl NoFiles {
    fn new() -> Self {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
        Self(soft, hard)
    }
}

impl Drop for NoFiles {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_NOFILE, self.0, self.1).unwrap();
    }
}

#[tokio::test]
async fn a_process_table_that_can_not_be_read_is_an_error_and_stops_no_guest() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = qemu.observe(vm).await.unwrap();
    let process = ProcessId::of(pid(&first)).unwrap().unwrap();
    let (search, with) = (Search::new(&bench.folder.path().join("run")), bench.with(bench.disks()));
    let none = NoFiles::new();
    let looked = search.all();
    let alive = process.is_alive();
    let started = qemu.start(&bench.vm, &with).await;
    let observed = qemu.observe(vm).await;
    drop(none);
    for unread in [looked.map(drop), alive.map(drop)] {
        assert_eq!(unread.unwrap_err().raw_os_error(), Some(nix::libc::EMFILE));
    }
    let refused = started.unwrap_err().to_string();
    assert!(refused.contains("process table"), "{refused}");
    assert_eq!(observed.unwrap(), first);

    // What is noted about it may be torn: it runs all the same.
    let start_file = bench.folder.path().join(format!("run/vm/{vm}/start.json"));
    std::fs::write(start_file, "{").unwrap();
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(pid(&qemu.observe(vm).await.unwrap()), process.pid);
}

/// On a host that boots with all its guests, a hypervisor may take long to read its own libraries.
#[tokio::test]
async fn a_guest_that_takes_its_time_to_start_is_waited_for() {
    let bench = Bench::small();
    let slow = bench.folder.path().join("slow-qemu");
    let script = "#!/bin/sh\ncase \"$*\" in *-pidfile*) sleep 12 ;; esac\n\
                  exec qemu-system-x86_64 \"$@\"\n";
    std::fs::write(&slow, script).unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    let qemu = bench.qemu(slow.to_str().unwrap()).await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    assert!(qemu.observe(bench.vm.uuid).await.unwrap().is_running());
}

/// A process that passes for a guest, and that returns a status of its own; its table is looked at as
/// soon as it is there, before whoever made it has said so.
#[tokio::test]
async fn the_exit_status_of_a_guest_that_is_found_before_it_is_registered_is_kept() {
    let folder = tempfile::Builder::new().prefix("mq").tempdir_in("/tmp").unwrap();
    let (data_dir, run_dir) = (folder.path().join("data"), folder.path().join("run"));
    let vm = record(0xfeed).uuid;
    let config = TableConfig { data_dir, run_dir: run_dir.clone(), follower: Follower::Agent };
    let clock = Arc::new(SystemClock::new());
    let table = GuestTable::new(config, clock, "boot-1".to_owned(), CancellationToken::new());
    table.folder(vm).make().unwrap();
    let (pid_file, go) = (run_dir.join(format!("vm/{vm}/pid")), folder.path().join("go"));
    nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!("read word <{}; exit 7", go.display());
    let argv = ["sh", "-c", &script, "sh", "-pidfile", pid_file.to_str().unwrap()];
    let argv = argv.map(str::to_owned).to_vec();
    let log = folder.path().join("log");
    let process = Detached { argv, env: Vec::new(), log, scope: None };

    let launch = table.launch(vm);
    let spawned = SystemExec::new().spawn_detached(&process).await.unwrap();
    assert_eq!(table.look().unwrap(), 1);
    assert!(table.get(vm).is_none(), "nobody but its maker knows how to learn its exit status");
    launch.made(spawned.process, 1, spawned.exit);
    drop(launch);
    assert_eq!(table.look().unwrap(), 1);
    std::fs::write(&go, "go\n").unwrap();
    tokio::time::timeout(SOON, table.gone(vm)).await.unwrap();
    assert_eq!(exit_status(&table.observe(vm).unwrap()), Some(7));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the only other thread is taken here")]
fn the_process_table_is_read_beside_the_async_threads() {
    let bench = Bench::small();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let clock = Arc::new(SystemClock::new());
        let (data_dir, run_dir) =
            (bench.folder.path().join("data"), bench.folder.path().join("run"));
        let config = TableConfig { data_dir, run_dir, follower: Follower::Agent };
        let table = GuestTable::new(config, clock, "boot-1".to_owned(), CancellationToken::new());
        let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
        let other = tokio::task::spawn_blocking(move || held.recv());
        let mut look = Box::pin(table.look_until_settled());
        assert!(futures_util::poll!(look.as_mut()).is_pending(), "it blocked this thread");
        drop(release);
        other.await.unwrap().unwrap_err();
        look.await.unwrap();
    });
}
