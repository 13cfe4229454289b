//! Disks that are plugged in and pulled out, and memory that a guest gives back.

use super::super::bays;
use super::*;
use crate::drivers::compute::{GuestDisk, GuestDisks};
use crate::failure::TaskFailure;

/// A blank disk of 2 MiB.
fn second(bench: &Bench) -> Disk {
    let path = bench.folder.path().join("disk1.raw");
    std::fs::File::create(&path).unwrap().set_len(2 << 20).unwrap();
    let format = "raw".to_owned();
    Disk { index: 1, identity: None, path, format, size_bytes: 2 << 20, used_bytes: 0 }
}

fn described() -> Value {
    json!({ "size": 2, "model": "virtio", "max_iops": 123 })
}

async fn present(qemu: &Qemu, vm: VmUuid) -> GuestDisks {
    qemu.disks(vm).await.unwrap().expect("it runs")
}

fn numbers(disks: &GuestDisks) -> Vec<u32> {
    disks.present.iter().map(|disk| disk.number).collect()
}

fn code_of(answer: Result<(), DriverError>) -> Code {
    TaskFailure::from(answer.unwrap_err()).code
}

#[tokio::test]
async fn a_guest_gets_one_more_and_the_next_agent_knows_it() {
    let bench = Bench::small();
    let (vm, disk) = (bench.vm.uuid, second(&bench));
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(qemu.disks(vm).await.unwrap(), None);
    assert_eq!(code_of(qemu.plug_disk(vm, &disk, &described()).await), Code::VmNotRunning);
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = GuestDisk { number: 0, removable: false };
    let disks = present(&qemu, vm).await;
    assert_eq!((&disks.present, disks.free), (&vec![first], [1, 2, 3, 4].into()));
    for _ in 0..2 {
        qemu.plug_disk(vm, &disk, &described()).await.unwrap();
        assert_eq!(numbers(&present(&qemu, vm).await), [0, 1]);
    }
    let block = qemu.info(vm, &["block".to_owned()]).await.unwrap();
    let inserted = block["block"].as_array().unwrap().iter().map(|it| &it["inserted"]);
    let plugged = inserted.clone().find(|it| it["node-name"] == "disk1").unwrap();
    assert_eq!(
        (&plugged["iops"], &plugged["image"]["virtual-size"]),
        (&json!(123), &json!(2 << 20))
    );
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let disks = present(&qemu, vm).await;
    let second = GuestDisk { number: 1, removable: true };
    assert_eq!((disks.present, disks.free), (vec![first, second], [2, 3, 4].into()));
}

/// With its bus instead of bays.
#[tokio::test]
async fn a_guest_on_the_old_machine_gets_one_more() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 64, "vga": "cirrus", "disks": [{"size": 1}],
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    qemu.plug_disk(vm, &second(&bench), &described()).await.unwrap();
    let disks = present(&qemu, vm).await;
    assert!(numbers(&disks) == [0, 1] && disks.free.contains(&2), "{disks:?}");
}

/// Its disk is blank: nothing hears what it is asked for.
#[tokio::test]
async fn a_guest_that_gives_nothing_up_is_named() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    qemu.plug_disk(vm, &second(&bench), &described()).await.unwrap();
    qemu.settle_disks(vm);
    let refused = TaskFailure::from(qemu.unplug_disk(vm, 1).await.unwrap_err());
    assert_eq!(refused.code, Code::GuestRefused);
    assert!(refused.message.contains("disk 1"), "{refused}");
    assert_eq!(numbers(&present(&qemu, vm).await), [0, 1]);
    // What it was asked for in vain goes at its next restart, and is missed.
    qemu.settle_disks(vm);
    qemu.signal(vm, GuestSignal::Reset).await.unwrap();
    until(&qemu, vm, |live| live.disks_unsettled).await;
    assert_eq!(numbers(&present(&qemu, vm).await), [0]);
    qemu.plug_disk(vm, &second(&bench), &described()).await.unwrap();
    qemu.settle_disks(vm);
    assert!(!qemu.observe(vm).await.unwrap().live().unwrap().disks_unsettled);
}

#[tokio::test]
async fn a_real_guest_takes_disks_and_gives_them_up_and_memory_as_well() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 192, "alias": "tiny", "disks": [{"size": 32}, {"size": 2}],
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let mut disks = guest_disk(&bench);
    disks.push(second(&bench));
    qemu.start(&bench.vm, &bench.with(disks)).await.unwrap();
    console_until(&qemu, vm, "muster-guest up").await;
    let first = pid(&qemu.observe(vm).await.unwrap());
    // The one that it started with, and again.
    for _ in 0..2 {
        qemu.unplug_disk(vm, 1).await.unwrap();
        assert_eq!(numbers(&present(&qemu, vm).await), [0]);
        let nodes = qemu.info(vm, &["block".to_owned()]).await.unwrap().to_string();
        assert!(!nodes.contains("disk1.raw"), "its file is closed: {nodes}");
        qemu.plug_disk(vm, &second(&bench), &described()).await.unwrap();
    }
    qemu.unplug_disk(vm, 1).await.unwrap();

    let memory = async || qemu.observe(vm).await.unwrap().live().unwrap().memory_mib;
    for (wanted, has) in [(128, 128), (160, 160), (500, 192)] {
        qemu.set_memory(vm, wanted).await.unwrap();
        assert_eq!(memory().await, Some(has));
    }
    assert_eq!(pid(&qemu.observe(vm).await.unwrap()), first);
}

/// Its disk is blank: it has no driver.
#[tokio::test]
async fn a_guest_that_gives_no_memory_back_is_waited_for_a_moment_only() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.set_memory(vm, 64).await.unwrap();
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    qemu.set_memory(vm, 32).await.unwrap();
    assert_eq!(qemu.observe(vm).await.unwrap().live().unwrap().memory_mib, Some(64));
}

/// The hypervisor would not open the file again.
#[tokio::test]
async fn a_disk_that_an_agent_had_handed_over_when_it_died_is_plugged_in() {
    let bench = Bench::small();
    let (vm, disk) = (bench.vm.uuid, second(&bench));
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let qmp = qemu.guests.qmp(vm).await.unwrap();
    let files = bays::open(&disk).await.unwrap();
    bays::add_node(&qmp, &disk, &described(), files).await.unwrap();
    assert_eq!(numbers(&present(&qemu, vm).await), [0]);
    qemu.plug_disk(vm, &disk, &described()).await.unwrap();
    assert_eq!(numbers(&present(&qemu, vm).await), [0, 1]);
}
