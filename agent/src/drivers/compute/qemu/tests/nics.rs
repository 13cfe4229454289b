//! Network interfaces that are plugged in and pulled out.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::super::hotplug;
use super::*;
use crate::drivers::compute::{GuestNic, GuestNics};
use crate::failure::TaskFailure;
use crate::host::Tap;

fn second() -> Attached {
    let nic = Nic { number: 1, mac: "02:00:00:00:00:02".to_owned(), ..Nic::default() };
    Attached { nic, backend: Backend::User { restricted: true } }
}

async fn present(qemu: &Qemu, vm: VmUuid) -> GuestNics {
    qemu.nics(vm).await.unwrap().expect("it runs")
}

fn numbers(nics: &GuestNics) -> Vec<usize> {
    nics.present.iter().map(|nic| nic.number).collect()
}

#[tokio::test]
async fn a_guest_gets_one_more_and_the_next_agent_knows_it() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(qemu.nics(vm).await.unwrap(), None);
    assert_eq!(code_of(qemu.plug_nic(vm, &second()).await), Code::VmNotRunning);
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let first = GuestNic { number: 0, mac: "02:00:00:00:00:01".to_owned(), removable: true };
    let nics = present(&qemu, vm).await;
    assert_eq!((&nics.present, nics.free), (&vec![first.clone()], [1, 2, 3].into()));
    for _ in 0..2 {
        qemu.plug_nic(vm, &second()).await.unwrap();
        assert_eq!(numbers(&present(&qemu, vm).await), [0, 1]);
    }
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    let nics = present(&qemu, vm).await;
    let second = GuestNic { number: 1, mac: "02:00:00:00:00:02".to_owned(), removable: true };
    assert_eq!((nics.present, nics.free), (vec![first, second], [2, 3].into()));
}

/// With its bus instead of slots.
#[tokio::test]
async fn a_guest_on_the_old_machine_gets_one_more() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 64, "vga": "cirrus", "disks": [{"size": 1}],
        "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:01"}],
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    qemu.plug_nic(vm, &second()).await.unwrap();
    let nics = present(&qemu, vm).await;
    assert_eq!(numbers(&nics), [0, 1]);
    assert!(nics.present.iter().all(|nic| nic.removable) && nics.free.contains(&2), "{nics:?}");
}

fn code_of(answer: Result<(), DriverError>) -> Code {
    TaskFailure::from(answer.unwrap_err()).code
}

/// Its disk is blank: nothing hears what it is asked for.
#[tokio::test]
async fn a_guest_that_gives_nothing_up_is_named() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let nic = present(&qemu, vm).await.present.remove(0);
    let refused = TaskFailure::from(qemu.unplug_nic(vm, &nic).await.unwrap_err());
    assert_eq!(refused.code, Code::GuestRefused);
    assert!(refused.message.contains("02:00:00:00:00:01"), "{refused}");
    assert_eq!(numbers(&present(&qemu, vm).await), [0]);
    let ended = async {
        qemu.signal(vm, GuestSignal::Kill).await.unwrap();
        assert!(qemu.wait_stopped(vm, SOON).await.unwrap());
    };
    let (asked, ()) = tokio::join!(qemu.unplug_nic(vm, &nic), ended);
    assert_eq!(code_of(asked), Code::VmNotRunning);
}

#[tokio::test]
async fn a_real_guest_gives_up_the_one_that_it_started_with_and_takes_it_again() {
    let bench = Bench::new(json!({
        "brand": "kvm", "ram": 192, "alias": "tiny", "disks": [{"size": 32}],
        "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:01"}],
    }));
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(guest_disk(&bench))).await.unwrap();
    console_until(&qemu, vm, "muster-guest up").await;
    let first = pid(&qemu.observe(vm).await.unwrap());
    let nic = present(&qemu, vm).await.present.remove(0);
    for _ in 0..2 {
        qemu.unplug_nic(vm, &nic).await.unwrap();
        assert_eq!(numbers(&present(&qemu, vm).await), [0; 0]);
    }
    for attached in bench.nics().into_iter().chain([second()]) {
        qemu.plug_nic(vm, &attached).await.unwrap();
    }
    assert_eq!(numbers(&present(&qemu, vm).await), [0, 1]);
    // The system takes a moment to have a new one, and may be asked for it before.
    for nic in present(&qemu, vm).await.present {
        qemu.unplug_nic(vm, &nic).await.unwrap();
    }
    assert_eq!(pid(&qemu.observe(vm).await.unwrap()), first);
}

/// What a guest was asked for in vain goes at its next restart: nobody takes the question back.
#[tokio::test]
async fn an_interface_that_goes_later_is_missed_until_the_guest_has_it_again() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let nic = present(&qemu, vm).await.present.remove(0);
    let asked = tokio::time::timeout(Duration::from_secs(1), qemu.unplug_nic(vm, &nic)).await;
    assert!(asked.is_err(), "its disk is blank: nothing hears it");
    qemu.signal(vm, GuestSignal::Reset).await.unwrap();
    until(&qemu, vm, |live| live.nics_unsettled).await;
    assert_eq!(numbers(&present(&qemu, vm).await), [0; 0]);
    qemu.plug_nic(vm, &bench.nics()[0]).await.unwrap();
    qemu.settle_nics(vm);
    assert!(!qemu.observe(vm).await.unwrap().live().unwrap().nics_unsettled);
    assert_eq!(numbers(&present(&qemu, vm).await), [0]);
}

/// Restarts a guest beside its agents; returns once it has given up what it was asked for.
async fn reset_without_an_agent(socket: &Path) {
    let (reader, mut writer) = tokio::net::UnixStream::connect(socket).await.unwrap().into_split();
    for command in ["qmp_capabilities", "system_reset"] {
        let command = format!("{}\n", json!({ "execute": command }));
        writer.write_all(command.as_bytes()).await.unwrap();
    }
    let mut lines = BufReader::new(reader).lines();
    let given_up = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("DEVICE_DELETED") && line.contains("nic0") {
                return;
            }
        }
        panic!("the hypervisor has ended");
    };
    tokio::time::timeout(SOON, given_up).await.expect("a reset ends the wait for the guest");
}

#[tokio::test]
async fn an_interface_that_goes_while_no_agent_runs_is_missed_by_the_next_one() {
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let nic = present(&qemu, vm).await.present.remove(0);
    let asked = tokio::time::timeout(Duration::from_secs(1), qemu.unplug_nic(vm, &nic)).await;
    assert!(asked.is_err(), "its disk is blank: nothing hears it");
    // The change failed, and the guest has what its record says.
    qemu.settle_nics(vm);
    let socket = qemu.guests.folder(vm).qmp();
    drop(qemu);
    reset_without_an_agent(&socket).await;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    until(&qemu, vm, |live| live.nics_unsettled && !live.disks_unsettled).await;
    assert_eq!(numbers(&present(&qemu, vm).await), [0; 0]);
    qemu.plug_nic(vm, &bench.nics()[0]).await.unwrap();
    qemu.settle_nics(vm);
    drop(qemu);
    let qemu = bench.qemu("qemu-system-x86_64").await;
    assert_eq!(numbers(&present(&qemu, vm).await), [0]);
    let observed = qemu.observe(vm).await.unwrap();
    assert!(!observed.live().unwrap().nics_unsettled, "it has it anew, and is not asked any more");
}

/// Nobody can open a tap that the hypervisor still holds.
#[tokio::test]
async fn a_tap_that_an_agent_had_handed_over_when_it_died_is_plugged_in() {
    if !enter_own_network() {
        return;
    }
    let bench = Bench::small();
    let vm = bench.vm.uuid;
    let qemu = bench.qemu("qemu-system-x86_64").await;
    qemu.start(&bench.vm, &bench.with(bench.disks())).await.unwrap();
    let qmp = qemu.guests.qmp(vm).await.unwrap();
    for (number, got_further) in [(1, false), (2, true)] {
        let name = format!("mt{number}");
        let tap = Tap::make(&name, nix::unistd::geteuid().as_raw()).unwrap();
        tap.keep().unwrap();
        let mac = format!("02:00:00:00:00:1{number}");
        let nic = Nic { number, mac, ..Nic::default() };
        let attached = Attached { nic, backend: Backend::Tap { name: name.clone(), mtu: 1500 } };
        hotplug::hand_over(&qmp, number, tap).await.unwrap();
        if got_further {
            hotplug::add_netdev(&qmp, &attached).await.unwrap();
        }
        Tap::open(&name).expect_err("it is in use");
        qemu.plug_nic(vm, &attached).await.unwrap();
        Tap::open(&name).expect_err("its guest has it");
    }
    assert_eq!(numbers(&present(&qemu, vm).await), [0, 1, 2]);
}
