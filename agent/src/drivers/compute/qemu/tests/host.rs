//! A host that can't be read, or that has no time for its guests.

use std::os::unix::fs::PermissionsExt as _;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::*;

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
