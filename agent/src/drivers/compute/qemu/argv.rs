//! The hypervisor's command line, as a pure function of the VM's record.

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::balloon;
use super::boot::{BootOrder, disk_place, is_cdrom};
use super::channels;
use super::drives;
use super::firmware::VmFirmware;
use super::folder::GuestFolder;
use super::nics::{self, Card};
use super::probe::Accelerator;
use crate::drivers::DriverError;
use crate::drivers::network::{Attached, NicModel};
use crate::drivers::storage::Disk;
use crate::vm_record::VmRecord;
use crate::vm_record::disks::with_number;

/// Translated code that is kept of a guest that runs without hardware's help, MiB.
const TRANSLATED_MIB: u32 = 128;
/// Says how much memory the guest has, MiB.
const MEMORY: &str = "-m";

/// The guest's memory when it is started next.
pub(super) fn ram_mib(vm: &VmRecord) -> u64 {
    vm.number("ram").unwrap_or(256)
}

/// The memory of a guest that was started with these arguments.
pub(super) fn ram_mib_of(argv: &[String]) -> Option<u64> {
    let pair = argv.windows(2).find(|pair| pair[0] == MEMORY)?;
    pair[1].parse().ok()
}

/// What a command line is made from.
#[derive(Clone, Debug)]
pub(super) struct Input<'a> {
    pub(super) binary: &'a str,
    pub(super) accelerator: Accelerator,
    pub(super) version: &'a str,
    pub(super) vm: &'a VmRecord,
    pub(super) disks: &'a [Disk],
    pub(super) folder: &'a GuestFolder,
    /// UEFI; else BIOS.
    pub(super) firmware: Option<VmFirmware>,
    pub(super) nics: &'a [Attached],
    /// The user that the process becomes; `None`: it stays the agent's.
    pub(super) uid: Option<u32>,
}

#[derive(Debug, Default)]
struct Args(Vec<String>);

impl Args {
    fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn pair(&mut self, name: &str, value: impl Into<String>) {
        self.0.push(name.to_owned());
        self.0.push(value.into());
    }
}

/// Program and arguments.
///
/// # Errors
/// `InvalidParameters`: the record asks for what can't be.
pub(super) fn build(input: &Input<'_>) -> Result<Vec<String>, DriverError> {
    let vm = input.vm;
    let mut args = Args(vec![input.binary.to_owned()]);
    args.pair("-name", format!("{},debug-threads=on", vm.uuid));
    args.pair("-uuid", vm.uuid.to_string());
    for flag in ["-nodefaults", "-no-user-config", "-S"] {
        args.flag(flag);
    }
    args.pair("-display", "none");
    // It is told through this device, and stays for a look at it until somebody resets it.
    args.pair("-action", "panic=pause");
    args.pair("-device", "pvpanic");
    match input.uid {
        Some(uid) => {
            // It becomes that user itself, once its files and sockets are open, so the calls for it
            // can't be denied. Afterwards it has no rights that they could raise.
            args.pair("-sandbox", "on,spawn=deny");
            args.pair("-runas", format!("{uid}:{uid}"));
        }
        None => args.pair("-sandbox", "on,elevateprivileges=deny,spawn=deny"),
    }
    args.pair("-pidfile", input.folder.pid_file().display().to_string());
    args.pair("-msg", "timestamp=on");
    machine(&mut args, input);
    identity(&mut args, input);
    control(&mut args, input);
    disks(&mut args, input)?;
    nics(&mut args, input);
    // Last, so that all devices before them keep their places on the bus.
    args.pair("-device", balloon::DEVICE);
    for (name, value) in channels::arguments(input.folder) {
        args.pair(name, value);
    }
    Ok(args.0)
}

/// The machine type in the VM's record, unless its graphics adapter needs another kind by now.
pub(super) fn pinned_machine(vm: &VmRecord) -> Option<&str> {
    let kind = if old_machine(vm) { "pc-i440fx-" } else { "pc-q35-" };
    vm.machine_type.as_deref().filter(|machine| machine.starts_with(kind))
}

pub(super) fn old_machine(vm: &VmRecord) -> bool {
    vm.text("vga") == Some("cirrus")
}

fn machine(args: &mut Args, input: &Input<'_>) {
    let vm = input.vm;
    let unversioned = if old_machine(vm) { "pc" } else { "q35" };
    let kind = pinned_machine(vm).unwrap_or(unversioned);
    match &input.firmware {
        None => args.pair("-machine", kind),
        Some(firmware) => {
            let (flash, nodes) = firmware.options();
            nodes.into_iter().for_each(|node| args.pair("-blockdev", node));
            args.pair("-machine", format!("{kind}{flash}"));
        }
    }
    // Always told: QEMU's own choice follows what opens, not what works.
    args.pair("-accel", accelerator(input.accelerator));
    let bhyve = vm.text("brand") != Some("kvm");
    let wanted = vm.text("cpu_type").unwrap_or(if bhyve { "host" } else { "qemu64" });
    let cpu = match (wanted, input.accelerator) {
        ("host", Accelerator::Tcg) => "max",
        (wanted, _) => wanted,
    };
    args.pair("-cpu", cpu);
    args.pair("-smp", vm.number("vcpus").unwrap_or(1).to_string());
    args.pair(MEMORY, ram_mib(vm).to_string());
    args.pair("-rtc", "base=utc");
    args.pair("-vga", vm.text("vga").unwrap_or("std"));
    args.pair("-object", "rng-random,id=rng0,filename=/dev/urandom");
    args.pair("-device", "virtio-rng-pci,rng=rng0");
    if !old_machine(vm) {
        (0..nics::SLOTS).for_each(|number| args.pair("-device", nics::port(number)));
        bays(args, input);
    }
}

fn accelerator(accelerator: Accelerator) -> String {
    match accelerator {
        Accelerator::Kvm => accelerator.name().to_owned(),
        // Translated code counts against the guest's limit of memory, and would by default grow to
        // a gibibyte.
        Accelerator::Tcg => format!("{},tb-size={TRANSLATED_MIB}", accelerator.name()),
    }
}

fn identity(args: &mut Args, input: &Input<'_>) {
    let uuid = input.vm.uuid;
    let smbios = format!(
        "type=1,manufacturer=Muster,product=Muster HVM,version={},serial={uuid},uuid={uuid},\
         family=Virtual Machine",
        input.version
    );
    args.pair("-smbios", smbios);
    args.pair("-fw_cfg", format!("name=opt/com.muster/uuid,string={uuid}"));
    if let Some(name) = input.vm.text("hostname") {
        args.pair("-fw_cfg", format!("name=opt/com.muster/hostname,string={}", escaped(name)));
    }
}

fn control(args: &mut Args, input: &Input<'_>) {
    let folder = input.folder;
    let path = |path: std::path::PathBuf| escaped(&path.display().to_string());
    for (id, socket) in [("qmp0", folder.qmp()), ("qmp1", folder.qmp_aux())] {
        let socket = path(socket);
        args.pair("-chardev", format!("socket,id={id},path={socket},server=on,wait=off"));
        args.pair("-mon", format!("chardev={id},mode=control"));
    }
    let (serial, log) = (path(folder.serial()), path(folder.console_log()));
    args.pair(
        "-chardev",
        format!("socket,id=serial0,path={serial},server=on,wait=off,logfile={log},logappend=on"),
    );
    args.pair("-serial", "chardev:serial0");
    if super::vnc::has_display(input.vm) {
        // The password itself would be for all to see here: it follows on the control socket.
        let asks = if super::vnc::password(input.vm).is_some() { ",password=on" } else { "" };
        args.pair("-vnc", format!("unix:{}{asks}", path(folder.vnc())));
    }
}

/// In QEMU's option lists a comma is written twice.
pub(super) fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

/// Place of a device in the order of the first boot; `None` when it is not to be booted from.
fn boot_index(vm: &VmRecord, letter: char, device: usize) -> Option<usize> {
    BootOrder::of(vm).first(letter, device)
}

fn disks(args: &mut Args, input: &Input<'_>) -> Result<(), DriverError> {
    let vm = input.vm;
    let mut ports = 0..if old_machine(vm) { 4 } else { 6 };
    let described = vm.list("disks");
    let mut scsi = false;
    for disk in input.disks {
        let number = disk.index;
        let description = with_number(described, number).unwrap_or(&Value::Null);
        args.pair("-blockdev", drives::node(disk, description, &disk.path).to_string());
        let model = description["model"].as_str().unwrap_or("virtio");
        // A CD's drive, or a disk.
        let kind = if is_cdrom(description) { "cd" } else { "hd" };
        let mut bay = None;
        let device = match model {
            "scsi" => {
                if !scsi {
                    args.pair("-device", "virtio-scsi-pci,id=scsi0");
                    scsi = true;
                }
                format!("scsi-{kind},bus=scsi0.0")
            }
            "nvme" => "nvme".to_owned(),
            "ide" | "ahci" => {
                let port = ports.next().ok_or_else(|| {
                    let text = format!("disk {number}: no free port for model {model}");
                    DriverError::refused(Code::InvalidParameters, text)
                })?;
                ide(vm, kind, port)
            }
            _ => {
                bay = Some(number).filter(|number| !old_machine(vm) && drives::has_bay(*number));
                drives::DRIVER.to_owned()
            }
        };
        let (letter, place) = disk_place(description, number);
        let boot = boot_index(vm, letter, place);
        let boot = boot.map(|boot| format!(",bootindex={boot}")).unwrap_or_default();
        let bay = bay.map(|bay| format!(",bus={}", drives::bay_id(bay))).unwrap_or_default();
        let (name, id) = (drives::node_name(number), drives::device_id(number));
        let serial = drives::serial(number, description);
        args.pair("-device", format!("{device},drive={name},serial={serial},id={id}{bay}{boot}"));
    }
    metadata_disk(args, input);
    Ok(())
}

fn metadata_disk(args: &mut Args, input: &Input<'_>) {
    let metadata = json!({
        "driver": "raw", "node-name": "cidata", "read-only": true,
        "file": { "driver": "file", "filename": input.folder.metadata(), "read-only": true },
    });
    args.pair("-blockdev", metadata.to_string());
    let bus = match old_machine(input.vm) {
        true => String::new(),
        // Behind all others, whose names in the guest it does not change.
        false => {
            args.pair("-device", drives::METADATA_BAY);
            format!(",bus={}", drives::METADATA_BAY_ID)
        }
    };
    let device = format!("virtio-blk-pci,drive=cidata,serial=cidata,id=cidatadev{bus}");
    args.pair("-device", device);
}

/// The bays of disks, used or not.
fn bays(args: &mut Args, input: &Input<'_>) {
    let last = input.disks.iter().map(|disk| disk.index).filter(|n| drives::has_bay(*n)).max();
    let last = last.unwrap_or(0).max(drives::BAYS);
    (1..=last).for_each(|number| args.pair("-device", drives::bay(number)));
}

fn ide(vm: &VmRecord, kind: &str, port: usize) -> String {
    if old_machine(vm) {
        format!("ide-{kind},bus=ide.{},unit={}", port / 2, port % 2)
    } else {
        format!("ide-{kind},bus=ide.{port}")
    }
}

/// In the order of their slots, whatever their order in the record.
fn nics(args: &mut Args, input: &Input<'_>) {
    let has_slots = !old_machine(input.vm);
    let mut all: Vec<&Attached> = input.nics.iter().collect();
    all.sort_by_key(|attached| attached.nic.number);
    for attached in all {
        let nic = &attached.nic;
        let in_slot = has_slots && nic.model == NicModel::Virtio;
        if in_slot && nic.number >= nics::SLOTS {
            args.pair("-device", nics::port(nic.number));
        }
        args.pair("-netdev", nics::netdev_argument(attached));
        let card = Card::new(attached, in_slot);
        let card = card.booted_from(boot_index(input.vm, 'n', nic.index));
        args.pair("-device", card.argument());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::drivers::network::{Backend, Nic};
    use crate::vms::payload;
    use crate::vms::sim::record;

    fn vm(params: Value) -> VmRecord {
        let Value::Object(params) = params else { panic!("an object is needed") };
        VmRecord { properties: payload::create(&params).unwrap(), ..record(0xabc) }
    }

    fn disk(index: u32, format: &str) -> Disk {
        Disk {
            index,
            identity: None,
            path: format!("/data/vols/x/disk{index}.{format}").into(),
            format: format.to_owned(),
            size_bytes: 1 << 20,
            used_bytes: 0,
        }
    }

    fn argv(vm: &VmRecord, disks: &[Disk], accelerator: Accelerator) -> Result<String, String> {
        let folder = GuestFolder::new(Path::new("/run/muster"), Path::new("/data"), vm.uuid);
        let backend = Backend::User { restricted: accelerator == Accelerator::Tcg };
        let nics = Nic::all(vm).map_err(|error| error.to_string())?.into_iter();
        let nics: Vec<_> = nics.map(|nic| Attached { nic, backend: backend.clone() }).collect();
        let input = Input {
            binary: "qemu-system-x86_64",
            accelerator,
            version: "0.1.0",
            vm,
            disks,
            folder: &folder,
            firmware: None,
            nics: &nics,
            uid: (accelerator == Accelerator::Kvm).then_some(1_900_000_007),
        };
        let args = build(&input).map_err(|error| error.to_string())?;
        let mut text = String::new();
        for arg in args {
            text.push_str(if arg.starts_with('-') { "\n" } else { " " });
            text.push_str(&arg);
        }
        Ok(text.trim().to_owned() + "\n")
    }

    #[test]
    fn golden_kvm_brand() {
        let vm = vm(json!({
            "brand": "kvm", "ram": 192, "vcpus": 2, "hostname": "one",
            "disks": [{"size": 1, "model": "virtio"}, {"size": 1, "model": "ide", "notrim": true}],
            "nics": [{"nic_tag": "admin", "mac": "02:00:00:00:00:01"}],
            "internal_metadata": {"muster:hostfwd": "tcp:127.0.0.1:2222-:22"},
        }));
        let argv = argv(&vm, &[disk(0, "qcow2"), disk(1, "raw")], Accelerator::Tcg).unwrap();
        assert_eq!(argv, include_str!("golden/kvm.args"));
        let words: Vec<String> = argv.split_whitespace().map(str::to_owned).collect();
        assert_eq!((ram_mib_of(&words), ram_mib_of(&words[..3])), (Some(192), None));
    }

    #[test]
    fn golden_bhyve_brand() {
        let vm = vm(json!({
            "brand": "bhyve", "vnc_port": -1, "boot": "order=nc",
            "disks": [
                {"size": 1, "model": "nvme"}, {"size": 1, "model": "scsi", "boot": true},
                {"size": 1, "model": "scsi"},
            ],
            "nics": [
                {"nic_tag": "admin", "mac": "02:00:00:00:00:01", "model": "e1000"},
                {"nic_tag": "admin", "mac": "02:00:00:00:00:02"},
            ],
        }));
        let disks = [disk(0, "qcow2"), disk(1, "qcow2"), disk(2, "qcow2")];
        let argv = argv(&vm, &disks, Accelerator::Kvm).unwrap();
        assert_eq!(argv, include_str!("golden/bhyve.args"));
    }

    #[test]
    fn a_nic_on_a_bridge_is_a_tap() {
        let vm = vm(json!({
            "brand": "kvm", "nics": [{"nic_tag": "admin"}, {"nic_tag": "admin", "model": "e1000"}],
        }));
        let backend = |number: usize| Backend::Tap { name: format!("mt{number}"), mtu: 1400 };
        let nics = Nic::all(&vm).unwrap().into_iter();
        let nics: Vec<_> = nics.map(|nic| Attached { backend: backend(nic.number), nic }).collect();
        let folder = GuestFolder::new(Path::new("/run/muster"), Path::new("/data"), vm.uuid);
        let mut args = Args::default();
        super::nics(
            &mut args,
            &Input {
                binary: "qemu-system-x86_64",
                accelerator: Accelerator::Tcg,
                version: "0.1.0",
                vm: &vm,
                disks: &[],
                folder: &folder,
                firmware: None,
                nics: &nics,
                uid: None,
            },
        );
        let argv = args.0.join(" ");
        assert!(argv.contains("tap,id=net0,ifname=mt0,script=no,downscript=no"), "{argv}");
        assert!(argv.contains("id=nic0,host_mtu=1400") && !argv.contains("id=nic1,host"), "{argv}");
    }

    /// Else what is plugged in would be elsewhere after the next start, and have another name there.
    #[test]
    fn a_nic_is_in_the_slot_of_its_number() {
        let nics = |numbers: &[u8]| -> Value {
            let nic = |n: &u8| json!({ "nic_tag": "admin", "interface": format!("net{n}") });
            numbers.iter().map(nic).collect()
        };
        let vm = vm(json!({ "brand": "kvm", "nics": nics(&[2, 0, 5]) }));
        let argv = argv(&vm, &[], Accelerator::Tcg).unwrap();
        let places: Vec<usize> = ["id=nic0,bus=spare1", "id=nic2,bus=spare3", "id=nic5,bus=spare6"]
            .map(|device| argv.find(device).unwrap_or_else(|| panic!("{device} in {argv}")))
            .into();
        assert!(places.is_sorted(), "{argv}");
        assert!(argv.contains("pcie-root-port,id=spare6,chassis=6,slot=6"), "{argv}");
        let old = vm_on_old_machine(&nics(&[1]));
        let argv = super::tests::argv(&old, &[], Accelerator::Tcg).unwrap();
        assert!(argv.contains("id=nic1,romfile=") && !argv.contains("spare"), "{argv}");
    }

    fn vm_on_old_machine(nics: &Value) -> VmRecord {
        vm(json!({ "brand": "kvm", "vga": "cirrus", "nics": nics }))
    }

    #[test]
    fn forwards_are_checked() {
        let vm = vm(json!({
            "brand": "kvm", "nics": [{"nic_tag": "admin"}],
            "internal_metadata": {"muster:hostfwd": "tcp::2001-:2,guestfwd=x"},
        }));
        assert!(argv(&vm, &[], Accelerator::Tcg).unwrap_err().contains("guestfwd"));
    }

    #[test]
    fn a_guest_keeps_its_machine_as_long_as_that_is_of_the_right_kind() {
        let mut vm = vm(json!({ "brand": "kvm" }));
        let machine = |vm: &VmRecord| {
            let argv = argv(vm, &[], Accelerator::Tcg).unwrap();
            let line = argv.lines().find(|line| line.starts_with("-machine ")).unwrap();
            line["-machine ".len()..].to_owned()
        };
        assert_eq!(machine(&vm), "q35");
        vm.machine_type = Some("pc-q35-6.2".to_owned());
        assert_eq!(machine(&vm), "pc-q35-6.2");
        vm.properties.insert("vga".to_owned(), json!("cirrus"));
        assert_eq!(machine(&vm), "pc");
    }

    #[test]
    fn a_cd_has_a_drive_and_a_place_in_the_boot_order() {
        let iso = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01";
        let vm = vm(json!({
            "brand": "kvm", "boot": "order=c,once=d",
            "disks": [
                {"size": 1}, {"media": "cdrom", "image_uuid": iso},
                {"media": "cdrom", "image_uuid": iso, "model": "scsi"},
            ],
        }));
        let disks = [disk(0, "qcow2"), disk(1, "qcow2"), disk(2, "qcow2")];
        let argv = argv(&vm, &disks, Accelerator::Tcg).unwrap();
        for device in [
            "virtio-blk-pci,drive=disk0,serial=disk0,id=disk0dev,bootindex=100",
            "ide-cd,bus=ide.0,drive=disk1,serial=disk1,id=disk1dev,bootindex=2",
            "scsi-cd,bus=scsi0.0,drive=disk2,serial=disk2,id=disk2dev,bootindex=3",
        ] {
            assert!(argv.lines().any(|line| line == format!("-device {device}")), "{argv}");
        }
    }

    #[test]
    fn ports_for_old_disks_run_out_with_a_reason() {
        let many: Vec<Value> = (0..7).map(|_| json!({"size": 1, "model": "ahci"})).collect();
        let vm = vm(json!({ "brand": "kvm", "disks": many }));
        let disks: Vec<Disk> = (0..7).map(|index| disk(index, "raw")).collect();
        assert!(argv(&vm, &disks, Accelerator::Tcg).unwrap_err().contains("no free port"));
    }
}
