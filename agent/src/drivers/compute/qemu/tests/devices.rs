//! What guests use and show, and what they boot from.

use super::super::qmp::QueryBlock;
use super::*;
use crate::drivers::compute::{GuestDisplay as _, GuestFacts as _, SnapshotChange};
use crate::drivers::storage::{FileStorage, FileStorageConfig, Role, Storage as _};

/// What a display wants of a viewer before it shows anything: 1 nothing, 2 a password.
async fn display_asks(qemu: &Qemu, vm: VmUuid) -> Vec<u8> {
    use tokio::io::AsyncWriteExt as _;
    let mut display = qemu.open(vm, GuestPort::Vnc).await.unwrap();
    let mut version = [0; 12];
    display.read_exact(&mut version).await.unwrap();
    display.write_all(&version).await.unwrap();
    let count = usize::from(display.read_u8().await.unwrap());
    let mut ways = vec![0; count];
    display.read_exact(&mut ways).await.unwrap();
    ways
}

#[tokio::test]
async fn a_display_asks_for_the_password_that_its_vm_has() {
    for (password, asks) in [("", 1), ("secret", 2)] {
        let bench = Bench::new(json!({
            "brand": "kvm", "ram": 64, "disks": [{"size": 1}], "vnc_password": password,
        }));
        let qemu = bench.qemu("qemu-system-x86_64").await;
        qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
        let vm = bench.vm.uuid;
        assert_eq!(display_asks(&qemu, vm).await, [asks], "{password:?}");
        // Only what asks has a port; it is gone with the process.
        let info = qemu.info(vm, &["vnc".to_owned()]).await.unwrap();
        assert!(info["vnc"]["path"].is_string(), "{info}");
        assert_eq!(info["vnc"]["port"].is_u64(), asks == 2, "{info}");
        let Some(port) = info["vnc"]["port"].as_u64() else { continue };
        let mut other = bench.vm.clone();
        other.properties.insert("vnc_password".to_owned(), json!("other"));
        qemu.set_password(&other).await.unwrap();
        assert_eq!(display_asks(&qemu, vm).await, [asks]);
        let address = ("127.0.0.1", u16::try_from(port).unwrap());
        let mut viewer = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut version = [0; 12];
        viewer.read_exact(&mut version).await.unwrap();
        qemu.signal(vm, GuestSignal::Kill).await.unwrap();
        assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
        let rest = viewer.read(&mut version);
        let rest = tokio::time::timeout(SOON, rest).await.expect("the port is closed");
        assert!(!rest.is_ok_and(|bytes| bytes > 0));
    }
}

#[tokio::test]
async fn a_picture_of_a_guest_is_taken_whoever_its_process_is() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let stopped = qemu.screenshot(vm).await.unwrap_err();
    assert!(stopped.to_string().contains("not running"), "{stopped}");
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    for _ in 0..2 {
        let picture = qemu.screenshot(vm).await.unwrap();
        assert!(picture.width >= 320 && picture.height >= 200, "{picture:?}");
    }
}

#[tokio::test]
async fn what_a_guest_uses_is_told_by_host_and_hypervisor() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(qemu.process_usage(vm).await.unwrap(), None);
    qemu.disk_usage(vm).await.unwrap_err();
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = qemu.process_usage(vm).await.unwrap().unwrap();
    assert!(first.rss_bytes > Some(1 << 20) && first.started_at_ms > 0, "{first:?}");
    // The firmware looks for something to boot: it reads the blank disk.
    let read = async {
        while qemu.disk_usage(vm).await.unwrap().reads == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap();
    let later = qemu.process_usage(vm).await.unwrap().unwrap();
    assert!(later.cpu_ms >= first.cpu_ms && later.vcpu_ms.is_some(), "{later:?}");
}

/// A CD beside the disk; the next boot alone is from it.
#[tokio::test]
async fn a_guest_with_a_cd_starts_and_boots_from_it_once() {
    let image = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01";
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 64, "boot": "order=c,once=d",
        "disks": [{"size": 1}, {"media": "cdrom", "image_uuid": image}],
    }));
    let vm = bench.vm.uuid;
    let mut disks = bench.disks();
    let path = bench.folder.path().join("cd.raw");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    disks.push(Disk { index: 1, path, ..disks[0].clone() });
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(disks)).await.unwrap();
    let info = qemu.info(vm, &["block".to_owned()]).await.unwrap();
    let of_cd = |device: &&Value| device["qdev"].as_str().is_some_and(|q| q.contains("disk1dev"));
    let cd = info["block"].as_array().unwrap().iter().find(of_cd).cloned().unwrap_or_default();
    assert_eq!((&cd["removable"], &cd["tray_open"]), (&json!(true), &json!(false)), "{info:#}");
    qemu.signal(vm, GuestSignal::Reset).await.unwrap();
    assert!(qemu.observe(vm).await.unwrap().is_running());
}

/// Firmware of the package `ovmf`, which a machine may lack.
#[tokio::test]
async fn a_guest_with_uefi_keeps_its_variables() {
    let bench = Bench::new(json!({
        "brand": "bhyve", "ram": 128, "disks": [{"size": 1}], "bootrom": "uefi",
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let template = qemu.firmware_template(&bench.vm);
    if !qemu.abilities().uefi {
        let refused = template.unwrap_err().to_string();
        assert!(refused.contains("install the package ovmf"), "{refused}");
        return;
    }
    let storage = FileStorageConfig {
        storage_dir: bench.folder.path().to_owned(),
        data_dir: bench.folder.path().to_owned(),
        server_uuid: uuid::Uuid::nil().into(),
        cluster: Cluster::unknown(),
        pool: "zones".to_owned(),
    };
    let storage = FileStorage::open(storage, Arc::new(SystemExec::new())).await.unwrap();
    let variables = storage.variables(vm, &template.unwrap().unwrap()).await.unwrap();
    let with = Resources { variables: Some(variables), ..bench.with(bench.disks()) };
    qemu.start(&bench.vm, &with).await.unwrap();
    let folder = qemu.guests.folder(bench.vm.uuid);
    let speaks = async {
        while !folder
            .printed(None)
            .unwrap()
            .bytes
            .windows(4)
            .any(|word| word == b"BdsD" || word == b"UEFI")
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(3 * SOON, speaks).await.expect("the firmware speaks");
    // While it runs, its hypervisor takes the snapshot.
    let of = vec![Role::Firmware];
    let change = SnapshotChange::Create { name: "vmsnap-a".to_owned(), of: of.clone() };
    assert_eq!(qemu.snapshot(vm, &change).await.unwrap(), []);
    let taken = storage.snapshots(vm).await.unwrap();
    assert_eq!((taken[0].volume, &*taken[0].name), (Role::Firmware, "vmsnap-a"));
    storage.destroy_disks(vm, None).await.unwrap_err();
    qemu.signal(vm, GuestSignal::Kill).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    let change = SnapshotChange::Delete { name: "vmsnap-a".to_owned(), from: of.clone() };
    assert_eq!(qemu.snapshot(vm, &change).await.unwrap(), of);
    storage.delete_snapshot(vm, "vmsnap-a", &of).await.unwrap();
    qemu.start(&bench.vm, &with).await.unwrap();
}

/// What the hypervisor says that a disk may do: operations and bytes a second.
async fn rate(qemu: &Qemu, vm: VmUuid) -> (u64, u64) {
    let qmp = qemu.guests.qmp(vm).await.unwrap();
    let blocks = qmp.execute::<QueryBlock>().await.unwrap();
    let mut blocks = blocks.as_array().unwrap().iter().map(|block| &block["inserted"]);
    let disk = blocks.find(|inserted| inserted["node-name"] == "disk0").unwrap();
    (disk["iops"].as_u64().unwrap(), disk["bps"].as_u64().unwrap())
}

#[tokio::test]
async fn a_disk_is_as_slow_as_its_record_wants_and_is_changed_while_its_guest_runs() {
    for model in ["virtio", "scsi", "ahci", "nvme"] {
        let mut bench = Bench::new(json!({
            "brand": "kvm", "ram": 64,
            "disks": [{ "size": 1, "model": model, "max_iops": 50, "max_mib_per_second": 2 }],
        }));
        let vm = bench.vm.uuid;
        let qemu = bench.qemu("qemu-system-x86_64").await;
        qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
        assert_eq!(rate(&qemu, vm).await, (50, 2 << 20), "{model}");
        for (iops, mib) in [(500, 2), (0, 0)] {
            bench.vm.properties["disks"][0]["max_iops"] = json!(iops);
            bench.vm.properties["disks"][0]["max_mib_per_second"] = json!(mib);
            qemu.limit(&bench.vm).await.unwrap();
            assert_eq!(rate(&qemu, vm).await, (iops, mib << 20), "{model}");
        }
        qemu.signal(vm, GuestSignal::Kill).await.unwrap();
        assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
        // Nothing runs, so there is nothing to limit.
        qemu.limit(&bench.vm).await.unwrap();
    }
}

/// The hypervisor holds the file, and grows it itself.
#[tokio::test]
async fn a_disk_grows_while_its_guest_runs_and_never_shrinks() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    // Nobody has it open, so there is nothing to do here.
    qemu.grow_disk(vm, 0, 4 << 20).await.unwrap();
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let size = || bench.disks()[0].path.metadata().unwrap().len();
    assert_eq!(size(), 1 << 20);
    for (wanted, is) in [(4, 4), (2, 4), (4, 4), (8, 8)] {
        qemu.grow_disk(vm, 0, wanted << 20).await.unwrap();
        assert_eq!(size(), is << 20, "{wanted}");
    }
    // A disk of the record that this guest was not started with.
    qemu.grow_disk(vm, 7, 4 << 20).await.unwrap();
}

/// What the kernel does then, it also does when it fails by itself.
const PANIC: &str = "#!/bin/sh\necho c >/proc/sysrq-trigger\n";

#[tokio::test]
async fn a_guest_that_panics_is_told_and_reset() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 192, "alias": "tiny", "disks": [{"size": 32}],
        "customer_metadata": { "user-script": PANIC },
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(guest_disk(&bench))).await.unwrap();
    let becomes = async |activity: Activity, reboots: u32| {
        let mut changes = qemu.changes();
        let seen = async {
            loop {
                let live = qemu.guests.live_now(vm).unwrap();
                if live.activity == activity && live.reboots >= reboots {
                    return live;
                }
                changes.changed().await.unwrap();
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(90), seen).await;
        seen.unwrap_or_else(|_| {
            let log = std::fs::read_to_string(qemu.guests.folder(vm).console_log());
            let live = qemu.guests.live_now(vm);
            panic!("no {activity:?} after {reboots} resets: {live:?} {}", log.unwrap())
        })
    };
    let live = becomes(Activity::Panicked, 0).await;
    assert!(live.reason.unwrap().contains("panicked"));
    qemu.signal(vm, GuestSignal::Reset).await.unwrap();
    assert_eq!(qemu.guests.live_now(vm).unwrap().activity, Activity::Running);
    // The firmware resets the machine once more by itself.
    becomes(Activity::Panicked, 1).await;
    qemu.signal(vm, GuestSignal::Kill).await.unwrap();
    assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
}
