//! Real QEMU processes, emulated: most with a blank disk, one with the tiny guest.

mod devices;
mod disks;
mod host;
mod nics;

use std::path::Path;
use std::sync::Arc;

use muster_shared::clock::SystemClock;
use muster_shared::wire::Code;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::processes::Search;
use super::*;
use crate::drivers::cluster::Cluster;
use crate::drivers::compute::{Activity, GuestConsole as _, GuestDevices as _, GuestPort, Live};
use crate::drivers::network::{Attached, Backend, Networks as _, Nic, UserNetwork, UserNetworks};
use crate::drivers::storage::Disk;
use crate::host::{ProcessId, SystemExec};
use crate::vms::payload;
use crate::vms::sim::record;

const SOON: Duration = Duration::from_secs(30);

/// A driver in a folder of its own; ends its guests when dropped, also after a failed assertion.
struct Bench {
    folder: tempfile::TempDir,
    restricted: bool,
    vm: VmRecord,
}

impl Bench {
    fn new(properties: Value) -> Self {
        let Value::Object(properties) = properties else { panic!("an object is needed") };
        let properties = payload::create(&properties).unwrap();
        let folder = tempfile::Builder::new().prefix("mq").tempdir_in("/tmp").unwrap();
        let vm = VmRecord { properties, ..record(0xfeed) };
        Self { folder, restricted: true, vm }
    }

    fn small() -> Self {
        Self::new(json!({
            "brand": "kvm", "ram": 64, "disks": [{"size": 1}],
            "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:01"}],
        }))
    }

    async fn qemu(&self, binary: &str) -> Qemu {
        self.qemu_with(binary, Choice::Tcg).await
    }

    async fn qemu_with(&self, binary: &str, accel: Choice) -> Qemu {
        let config = QemuConfig {
            binary: binary.to_owned(),
            data_dir: self.folder.path().join("data"),
            run_dir: self.folder.path().join("run"),
            accel,
            prefix: "muster-test".to_owned(),
            server_uuid: uuid::Uuid::nil().into(),
            cluster: Cluster::unknown(),
            cgroup_parent: String::new(),
            version: "0.0.0".to_owned(),
        };
        let clock = Arc::new(SystemClock::new());
        Qemu::open(config, Arc::new(SystemExec::new()), clock).await.unwrap()
    }

    fn nics(&self) -> Vec<Attached> {
        let backend = Backend::User { restricted: self.restricted };
        let nics = Nic::all(&self.vm).unwrap().into_iter();
        nics.map(|nic| Attached { nic, backend: backend.clone() }).collect()
    }

    fn with(&self, disks: Vec<Disk>) -> Resources {
        Resources { disks, nics: self.nics(), ..Resources::default() }
    }

    fn disks(&self) -> Vec<Disk> {
        let path = self.folder.path().join("disk0.raw");
        if !path.exists() {
            std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        }
        let format = "raw".to_owned();
        vec![Disk { index: 0, identity: None, path, format, size_bytes: 1 << 20, used_bytes: 0 }]
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let run = self.folder.path().join("run");
        for process in Search::new(&run).all().unwrap_or_default().into_values() {
            process.kill().unwrap();
        }
    }
}

fn exit_status(observed: &Observed) -> Option<i32> {
    match observed {
        Observed::Running(_) => None,
        Observed::Stopped(ended) => ended.exit_status,
    }
}

async fn running(qemu: &Qemu) -> Vec<VmUuid> {
    qemu.running().await.unwrap().into_iter().map(|guest| guest.vm).collect()
}

fn pid(observed: &Observed) -> u32 {
    observed.live().expect("a process").pid
}

#[tokio::test]
async fn a_guest_outlives_its_driver_and_is_adopted() {
    // As the agent's unit has it: the kernel spares the agent, not its guests.
    std::fs::write("/proc/self/oom_score_adj", "500").unwrap();
    let mut bench = Bench::small();
    bench.vm.start_task = Some("task-1".parse().unwrap());
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(qemu.abilities().accel.as_deref(), Some("tcg"));
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = qemu.observe(vm).await.unwrap();
    let process = ProcessId::of(pid(&first)).unwrap().unwrap();
    let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", process.pid)).unwrap();
    assert_eq!(score.trim(), "0");
    // A session of its own, and none of our descriptors beyond the standard three.
    assert_ne!(nix::unistd::getsid(None), nix::unistd::getsid(Some(nix_pid(process.pid))));
    drop(qemu);

    let qemu = bench.qemu("qemu-system-x86_64").await;
    let found = qemu.running().await.unwrap();
    assert_eq!((found.len(), found[0].vm), (1, vm));
    assert_eq!(found[0].started_by, bench.vm.start_task);
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    assert_eq!(qemu.observe(vm).await.unwrap(), first);

    // An agent that died before it noted the pid.
    let folder = qemu.guests.folder(vm);
    let mut started = folder.started().unwrap().unwrap();
    started.process = None;
    folder.set_started(&started).unwrap();
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(pid(&qemu.observe(vm).await.unwrap()), process.pid);

    qemu.signal(vm, GuestSignal::Kill).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let stopped = qemu.observe(vm).await.unwrap();
    let Observed::Stopped(ended) = stopped else { panic!("{stopped:?}") };
    assert!(ended.exit_status == Some(137) && ended.exited_at_ms.is_some(), "{ended:?}");
    qemu.cleanup(vm, true).await.unwrap();
    assert!(!bench.folder.path().join(format!("data/guests/{vm}")).exists());
}

/// `systemd-tmpfiles` removes what is old in /tmp, and people remove what they do not know.
#[tokio::test]
async fn a_guest_whose_run_folder_is_lost_still_runs_and_can_be_ended() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = qemu.observe(vm).await.unwrap();
    drop(qemu);
    std::fs::remove_dir_all(bench.folder.path().join("run/vm")).unwrap();

    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(running(&qemu).await, [vm]);
    let found = qemu.observe(vm).await.unwrap();
    assert_eq!(pid(&found), pid(&first));
    let (found, first) = (found.live().unwrap(), first.live().unwrap());
    // The kernel counts in seconds since the boot and in ticks from there.
    assert!(found.started_at_ms.abs_diff(first.started_at_ms) < 3000, "{found:?} {first:?}");
    // It can't be taken for one that could be started, nor its files for anybody's.
    assert!(qemu.cleanup(vm, true).await.is_err());
    qemu.signal(vm, GuestSignal::Kill).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let stopped = qemu.observe(vm).await.unwrap();
    assert_eq!(exit_status(&stopped), Some(137), "{stopped:?}");
}

/// Ends the process it holds, also after a failed assertion.
struct Impostor(std::process::Child);

impl Drop for Impostor {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_process_of_another_user_is_no_guest() {
    use std::os::unix::process::CommandExt as _;
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root can start a process of another user");
        return;
    }
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let pid_file = bench.folder.path().join(format!("run/vm/{vm}/pid"));
    #[expect(clippy::disallowed_methods, reason = "the test is about a process of somebody else")]
    let mut process = std::process::Command::new("sh");
    process.args(["-c", "read forever", "-pidfile"]).arg(&pid_file);
    process.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    process.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    let impostor = Impostor(process.spawn().unwrap());

    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(running(&qemu).await, []);
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    assert_ne!(pid(&qemu.observe(vm).await.unwrap()), impostor.0.id());
}

/// What `done` accepts of a VM's process.
async fn until(qemu: &Qemu, vm: VmUuid, done: impl Fn(&Live) -> bool) -> Live {
    let mut changes = qemu.changes();
    let look = async {
        loop {
            let observed = qemu.observe(vm).await.unwrap();
            let live = observed.live().expect("it runs");
            if done(live) {
                return live.clone();
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(SOON, look).await.expect("it does what is awaited")
}

#[tokio::test]
async fn what_a_guests_cpus_do_is_told_at_once() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let fresh = qemu.observe(vm).await.unwrap().live().unwrap().clone();
    assert_eq!((fresh.activity, fresh.reboots), (Activity::Running, 0));
    assert_eq!(fresh.booted_at_ms, fresh.started_at_ms);

    qemu.signal(vm, GuestSignal::Pause).await.unwrap();
    let paused = qemu.observe(vm).await.unwrap().live().unwrap().clone();
    assert_eq!(paused.activity, Activity::Paused);
    assert!(paused.reason.is_some());
    // Its agent may be another one meanwhile.
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    until(&qemu, vm, |live| live.activity == Activity::Paused).await;
    qemu.signal(vm, GuestSignal::Resume).await.unwrap();
    let resumed = qemu.observe(vm).await.unwrap().live().unwrap().clone();
    assert_eq!((resumed.activity, resumed.reason), (Activity::Running, None));

    qemu.signal(vm, GuestSignal::Reset).await.unwrap();
    let reset = until(&qemu, vm, |live| live.reboots == 1).await;
    assert!(reset.booted_at_ms > reset.started_at_ms);
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let later = qemu.observe(vm).await.unwrap().live().unwrap().clone();
    assert_eq!((later.booted_at_ms, later.reboots), (reset.booted_at_ms, 1));

    qemu.signal(vm, GuestSignal::Quit).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let Observed::Stopped(ended) = qemu.observe(vm).await.unwrap() else { panic!("it runs") };
    assert_eq!(ended.reason.as_deref(), Some("host-qmp-quit"));
}

fn nix_pid(pid: u32) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap())
}

#[tokio::test]
async fn the_hypervisor_is_controlled() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert!(qemu.signal(vm, GuestSignal::Reset).await.is_err());
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();

    let info = qemu.info(vm, &["all".to_owned()]).await.unwrap();
    let types: Vec<&str> = super::super::INFO_TYPES.to_vec();
    for kind in types.into_iter().filter(|kind| !["all", "spice"].contains(kind)) {
        assert!(info.get(kind).is_some(), "{kind} in {info}");
    }
    assert_eq!(info["status"]["status"], "running");
    for (signal, status) in [
        (GuestSignal::Pause, "paused"),
        (GuestSignal::Resume, "running"),
        (GuestSignal::Reset, "running"),
        (GuestSignal::Nmi, "running"),
    ] {
        qemu.signal(vm, signal).await.unwrap();
        let info = qemu.info(vm, &["status".to_owned()]).await.unwrap();
        assert_eq!(info["status"]["status"], status, "{signal:?}");
    }
    let mut vnc = qemu.open(vm, GuestPort::Vnc).await.unwrap();
    let mut greeting = [0; 4];
    vnc.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"RFB ");
    drop(qemu.open(vm, GuestPort::Console).await.unwrap());

    let mut changes = qemu.changes();
    changes.mark_unchanged();
    qemu.signal(vm, GuestSignal::Quit).await.unwrap();
    tokio::time::timeout(SOON, changes.changed()).await.unwrap().unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let stopped = qemu.observe(vm).await.unwrap();
    assert_eq!(exit_status(&stopped), Some(0), "{stopped:?}");
    assert!(qemu.info(vm, &[]).await.is_err());
    qemu.cleanup(vm, false).await.unwrap();
    qemu.cleanup(vm, true).await.unwrap();
}

#[tokio::test]
async fn a_hypervisor_that_fails_at_start_leaves_nothing_but_its_reason() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let mut disks = bench.disks();
    disks[0].path = Path::new("/nonexistent/disk").to_owned();
    let error = qemu.start(&bench.vm, &bench.with(disks)).await.unwrap_err();
    let text = muster_shared::error_chain::Chain(&error).to_string();
    assert!(text.contains("exit code 1") && text.contains("/nonexistent/disk"), "{text}");
    assert!(!qemu.observe(vm).await.unwrap().is_running());
    assert_eq!(running(&qemu).await, []);
    // And it can be started once the reason is gone.
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    qemu.signal(vm, GuestSignal::Kill).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
}

#[tokio::test]
async fn without_a_hypervisor_the_reason_is_told() {
    let bench = Bench::small();
    let qemu = bench.qemu("/nonexistent/qemu").await;
    let abilities = qemu.abilities();
    assert!(!abilities.hvm && abilities.max_vcpus == 0);
    let error = qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap_err();
    assert!(matches!(&error, DriverError::Refused { code: Code::HvmNotSupported, .. }), "{error}");
}

/// The tiny guest's own disk, as a copy.
fn guest_disk(bench: &Bench) -> Vec<Disk> {
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/guest/muster-guest.qcow2");
    assert!(
        image.exists(),
        "no guest image at {}: run scripts/build-guest-image.sh",
        image.display()
    );
    let path = bench.folder.path().join("disk0.qcow2");
    std::fs::copy(&image, &path).unwrap();
    vec![Disk {
        index: 0,
        identity: None,
        path,
        format: "qcow2".to_owned(),
        size_bytes: 32 << 20,
        used_bytes: 0,
    }]
}

#[tokio::test]
async fn a_real_guest_comes_up_reads_its_metadata_and_shuts_down() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 192, "alias": "tiny", "disks": [{"size": 32}],
        "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:02"}],
        "customer_metadata": {"user-script": "#!/bin/sh\necho script says hello\n"},
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(guest_disk(&bench))).await.unwrap();
    let mut console = qemu.open(vm, GuestPort::Console).await.unwrap();
    let mut seen = String::new();
    let up = async {
        let mut buffer = [0; 1024];
        while !seen.contains("user-script exit=0") {
            let read = console.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "the console ended");
            seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(90), up).await;
    assert!(waited.is_ok(), "the guest did not come up: {seen}");
    let line = format!("muster-guest up hostname=tiny uuid={vm}");
    assert!(seen.contains(&line) && seen.contains("script says hello"), "{seen}");
    let log = std::fs::read_to_string(qemu.guests.folder(vm).console_log()).unwrap();
    assert!(log.contains(&line), "{log}");

    qemu.signal(vm, GuestSignal::PowerDown).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let stopped = qemu.observe(vm).await.unwrap();
    assert_eq!(exit_status(&stopped), Some(0), "{stopped:?}");
    let Observed::Stopped(ended) = stopped else { panic!("{stopped:?}") };
    assert_eq!(ended.reason.as_deref(), Some("guest-shutdown"));
}

/// What the tiny guest prints until `done` is in it.
async fn console_until(qemu: &Qemu, vm: VmUuid, done: &str) -> String {
    let mut console = qemu.open(vm, GuestPort::Console).await.unwrap();
    let mut seen = String::new();
    let read = async {
        let mut buffer = [0; 1024];
        while !seen.contains(done) {
            let read = console.read(&mut buffer).await.unwrap();
            assert_ne!(read, 0, "the console ended");
            seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(120), read).await;
    assert!(read.is_ok(), "no {done:?} from the guest: {seen}");
    seen
}

/// In a network namespace of its own: what is made for it ends with the test's process. False, and
/// said so, where this process may not.
fn enter_own_network() -> bool {
    match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(nix::errno::Errno::EPERM) => {
            println!("SKIPPED: no right to make a network namespace");
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    as_operator(&["ip", "link", "set", "lo", "up"]);
    true
}

#[track_caller]
fn as_operator(argv: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new(argv[0]).args(&argv[1..]).status().unwrap();
    assert!(done.success(), "{argv:?}");
}

#[tokio::test]
async fn a_guest_has_a_user_of_its_own_and_does_not_reach_the_hosts_loopback() {
    if !enter_own_network() {
        return;
    }
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let answer = tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            let answer = b"HTTP/1.0 200 OK\r\n\r\nthe host answers\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.ok();
        }
    });
    let script =
        format!("#!/bin/sh\nwget -q -T 5 -O - http://10.0.2.2:{port}/ || echo nothing answers\n");
    let mut bench = Bench::new(json!({
        "brand": "kvm", "ram": 192, "alias": "tiny", "disks": [{"size": 32}],
        "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:02"}],
        "customer_metadata": {"user-script": script},
    }));
    let (exec, uids) = (Arc::new(SystemExec::new()), isolation::guest_uids());
    let networks = UserNetworks::open(UserNetwork::Filtered, "muster-test", uids, exec).await;
    // As a firewall that is loaded again does.
    as_operator(&["nft", "flush", "ruleset"]);
    networks.mend().await;
    bench.restricted = false;
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let degraded = [qemu.abilities().degraded, networks.degraded()].concat();
    assert!(
        !degraded.iter().any(|why| why.contains("lead nowhere") || why.contains("users")),
        "{degraded:?}"
    );
    qemu.start(&bench.vm, &bench.with(guest_disk(&bench))).await.unwrap();
    let process = pid(&qemu.observe(vm).await.unwrap());
    let status = procfs::status(process).unwrap().unwrap();
    assert!(isolation::is_guest(status.uid) && status.uid == status.effective_uid, "{status:?}");
    assert!(isolation::is_guest(status.gid) && status.gid == status.effective_gid, "{status:?}");
    let seen = console_until(&qemu, vm, "user-script exit=").await;
    assert!(seen.contains("nothing answers") && !seen.contains("the host answers"), "{seen}");
    // Still found and controlled by the next agent.
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.signal(vm, GuestSignal::PowerDown).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    answer.abort();
}

/// On a host where the node opens and guests hang, this is what keeps KVM from being chosen.
#[tokio::test]
async fn an_accelerator_is_chosen_by_what_its_guest_does() {
    let bench = Bench::small();
    let qemu = bench.qemu_with("qemu-system-x86_64", Choice::Auto).await;
    let abilities = qemu.abilities();
    assert!(abilities.hvm, "{abilities:?}");
    if abilities.accel.as_deref() == Some("tcg") {
        let why = abilities.degraded.iter().find(|why| why.starts_with("kvm: "));
        assert!(why.is_some(), "{abilities:?}");
    }
}
