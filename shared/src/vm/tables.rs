//! The properties themselves. What no table names is dropped by agents, and their log says so.

use super::property::{Effect, Form, Item, Kind, Property};
use super::{
    MAX_ALIAS_CHARS, MAX_DISK_MIB, MAX_METADATA_BYTES, MAX_RAM_MIB, MAX_ROUTES_BYTES,
    MAX_TAGS_BYTES, MAX_VCPUS, MIN_RAM_MIB,
};
use Effect::{AtStart, Dropped, Ignored, Kept, Live, Refused};
use Kind::{Any, Count, Flag, FlatObject, Gib, List, Mib, Range, Text, Uuid, Words};

/// Whoever reads it.
const RECORD: Effect = Kept("as information only");
const UNLOCKED: Effect = Kept("hypervisors lock no memory");
const NO_CIDS: Effect = Kept("identifiers in DHCP are not filtered");
const NO_VRRP: Effect = Kept("virtual routers are not set up");
const FILE: Effect = Kept("a ZFS pool makes the disk so; files grow as they are written");
const ROOT: Effect = Kept("at once, where roots are in a ZFS pool; files have none of it");
const CONTAINER: Effect = Ignored("of containers only");
const DATASET: Effect = Ignored("there are no datasets: disks are files");
const BY_AGENT: Effect = Ignored("told by the agent, which knows");
const NO_CONTAINER: Effect = Refused("of containers only");
const NOT_YET: Effect = Refused("not done for containers yet");
const KEPT_YET: Effect = Kept("not done for containers yet");
const HARDWARE: Effect = Ignored("of hardware VMs only");
const NO_DISKS: Effect = Refused("containers have no disks: their root is their image");
const NO_RAW: Effect = Refused("options of the hypervisor would reach the server");
const NO_SPICE: Effect = Refused("there is no SPICE display");
const NO_PASSING: Effect = Refused("files and devices of the server are not for guests");

const TAGS: Kind = FlatObject(MAX_TAGS_BYTES);
const METADATA: Kind = FlatObject(MAX_METADATA_BYTES);
const ROUTES: Kind = FlatObject(MAX_ROUTES_BYTES);

const fn p(name: &'static str, kind: Kind, effect: Effect, doc: &'static str) -> Property {
    Property::new(name, kind, effect, doc)
}

/// May be given when a VM is made, and changed later.
pub const LASTING: &[Property] = &[
    p("alias", Text(MAX_ALIAS_CHARS), Live, "Its name").form(Form::Filled),
    p(
        "archive_on_delete",
        Flag,
        Live,
        "Its record and the end of its console are kept when it is destroyed",
    ),
    p("autoboot", Flag, Live, "Starts with its server"),
    p("bhyve_extra_opts", Text(1024), NO_RAW, "Of the hypervisor"),
    p("billing_id", Uuid, RECORD, "Of its package"),
    p(
        "boot",
        Text(64),
        AtStart,
        "Order of boot devices, e.g. `order=cd` (c disk, d CD, n network); with `,once=d` the next \
         boot alone is from there",
    ).on_containers(HARDWARE)
    .form(Form::Option { commas: true }),
    p("bootrom", Text(1024), AtStart, "Firmware: `bios`, or `uefi` where the node has it").on_containers(HARDWARE)
        .form(Form::OneOf(&["bios", "uefi"])),
    p(
        "com1",
        Text(1024),
        Ignored("the console is the first serial line"),
        "First serial line of a bhyve VM",
    ).on_containers(HARDWARE),
    p(
        "com2",
        Text(1024),
        Ignored("metadata is on the second serial line"),
        "Second serial line of a bhyve VM",
    ).on_containers(HARDWARE),
    p("cpu_cap", Count, Live, "Percent of one CPU; 0: none"),
    p("cpu_shares", Count, Live, "CPU weight relative to other VMs"),
    p("cpu_type", Text(64), AtStart, "CPU model of a kvm VM, e.g. `qemu64` or `host`").on_containers(HARDWARE)
        .form(Form::Option { commas: false }),
    p("disk_driver", Text(64), Live, "Model of disks that name none").on_containers(HARDWARE)
        .form(Form::OneOf(&["ahci", "ide", "nvme", "scsi", "virtio"])),
    p("dns_domain", Text(253), CONTAINER, "Search domain of a container").on_containers(AtStart),
    p("do_not_inventory", Flag, Live, "Hidden from reports"),
    p("docker", Flag, NO_CONTAINER, "Is a docker container").on_containers(AtStart),
    p("firewall_enabled", Flag, Live, "Firewall rules are in force"),
    p(
        "firewall_rules",
        List(Item::FirewallRule),
        Live,
        "Its firewall's rules; an update replaces all of them",
    ),
    p("flexible_disk_size", Mib, Live, "Room for disks and snapshots of a bhyve VM, MiB").on_containers(HARDWARE),
    p("fs_allowed", Words, NO_CONTAINER, "Filesystems that a container may mount").on_containers(NOT_YET),
    p("hostname", Text(253), AtStart, "Host name inside").form(Form::HostName),
    p("indestructible_delegated", Flag, Live, "Its delegated dataset can't be destroyed"),
    p("indestructible_zoneroot", Flag, Live, "It can't be destroyed"),
    p("init_name", Text(1024), NO_CONTAINER, "First program of a container").on_containers(AtStart),
    p(
        "internal_metadata_namespaces",
        Words,
        Live,
        "Prefixes of names in `internal_metadata`, up to a colon, that the guest reads and can't \
         write",
    ).on_containers(KEPT_YET),
    p("kernel_version", Text(64), NO_CONTAINER, "Of an lx container").on_containers(RECORD),
    p("limit_priv", Words, RECORD, "Privileges"),
    p(
        "maintain_resolvers",
        Flag,
        Kept("a guest learns its resolvers when it starts"),
        "Resolvers are kept up to date inside",
    ),
    p("max_locked_memory", Mib, UNLOCKED, "Memory that it may lock, MiB"),
    p("max_lwps", Count, Live, "Threads"),
    p("max_msg_ids", Count, CONTAINER, "System V message queues of a container").on_containers(KEPT_YET),
    p("max_physical_memory", Mib, Live, "Memory with the hypervisor's share, MiB"),
    p("max_sem_ids", Count, CONTAINER, "System V semaphores of a container").on_containers(KEPT_YET),
    p("max_shm_ids", Count, CONTAINER, "System V shared memory segments of a container").on_containers(KEPT_YET),
    p("max_shm_memory", Mib, CONTAINER, "System V shared memory of a container, MiB").on_containers(KEPT_YET),
    p("max_swap", Mib, Live, "Memory and swap, MiB; at least 256 are given"),
    p("mdata_exec_timeout", Count, CONTAINER, "Seconds that the user script may take").on_containers(KEPT_YET),
    p("nic_driver", Text(64), Live, "Model of network interfaces that name none").on_containers(HARDWARE)
        .form(Form::OneOf(&["e1000", "rtl8139", "virtio"])),
    p("owner_uuid", Uuid, Live, "Its owner"),
    p("package_name", Text(1024), RECORD, "Of its package"),
    p("package_version", Text(1024), RECORD, "Of its package"),
    p("qemu_extra_opts", Text(1024), NO_RAW, "Of the hypervisor"),
    p("qemu_opts", Text(1024), NO_RAW, "Of the hypervisor"),
    // An update with 0 is no wish for the default.
    p("quota", Gib, Live, "Disk quota, GiB; 0: none").on_containers(ROOT).form(Form::AtLeast(0)),
    p(
        "ram",
        Range(0, MAX_RAM_MIB),
        AtStart,
        "Memory of the guest, MiB; hardware VMs need 64. Less than it was started with, and up to that \
         again, while it runs if its system has a balloon driver",
    )
    .form(Form::AtLeast(MIN_RAM_MIB)),
    p("resolvers", Words, AtStart, "Addresses of DNS servers"),
    p("restart_init", Flag, CONTAINER, "A container's first program is started again").on_containers(KEPT_YET),
    p("spice_opts", Text(1024), NO_SPICE, "Of the SPICE display of a kvm VM"),
    p("spice_password", Text(64), NO_SPICE, "Password of the SPICE display of a kvm VM"),
    p("spice_port", Range(-1, 65_535), NO_SPICE, "Port of the SPICE display of a kvm VM"),
    p("tmpfs", Mib, NO_CONTAINER, "Size of /tmp of a container, MiB").on_containers(AtStart),
    p("vcpus", Range(0, MAX_VCPUS), AtStart, "Virtual CPUs of a hardware VM").on_containers(KEPT_YET)
        .form(Form::AtLeast(1)),
    p("vga", Text(64), AtStart, "Graphics adapter of a kvm VM").on_containers(HARDWARE)
        .form(Form::OneOf(&["cirrus", "qxl", "std", "vmware"])),
    p(
        "virtio_txburst",
        Count,
        Ignored("the network card has no such setting"),
        "Of a kvm VM; of no effect here",
    ).on_containers(HARDWARE),
    p(
        "virtio_txtimer",
        Count,
        Ignored("the network card has no such setting"),
        "Of a kvm VM; of no effect here",
    ).on_containers(HARDWARE),
    p(
        "vnc_password",
        Text(8),
        Live,
        "Password that the display asks viewers for, at most 8 characters; without one it is \
         reached only through coordinators and from the node itself. A display begins to ask, or \
         ends, when its guest starts next",
    ).on_containers(HARDWARE)
    .form(Form::Bytes(8)),
    p(
        "vnc_port",
        Range(-1, 65_535),
        AtStart,
        "Port of the display; -1: no display, any other: the agent chooses",
    ).on_containers(HARDWARE),
    p("zfs_data_compression", Text(64), DATASET, "Compression of the delegated dataset"),
    p("zfs_data_recsize", Count, DATASET, "Record size of the delegated dataset, bytes"),
    p("zfs_filesystem_limit", Count, DATASET, "Filesystems below its root dataset"),
    p("zfs_io_priority", Count, Live, "Its weight among VMs that compete for disks").on_containers(KEPT_YET),
    p("zfs_root_compression", Text(64), DATASET, "Compression of the root dataset").on_containers(ROOT),
    p("zfs_root_recsize", Count, DATASET, "Record size of the root dataset, bytes").on_containers(ROOT),
    p("zfs_snapshot_limit", Count, DATASET, "Snapshots of its root dataset"),
    p("zlog_max_size", Count, CONTAINER, "Bytes of console log that are kept").on_containers(KEPT_YET),
];

/// Only when a VM is made; changed through members of their own, or never.
pub const INITIAL: &[Property] = &[
    p("brand", Text(64), Live, "`kvm`, `bhyve`, `joyent-minimal`, `lx`, …")
        .form(Form::OneOf(&["bhyve", "docker", "joyent", "joyent-minimal", "kvm", "lx"])),
    p(
        "customer_metadata",
        METADATA,
        AtStart,
        "For the guest: by cloud-init when it starts, on its second serial line at once; at most 256 \
         KiB of JSON",
    ).on_containers(KEPT_YET),
    p("delegate_dataset", Flag, NO_CONTAINER, "A container gets a dataset of its own").on_containers(NOT_YET),
    p("disks", List(Item::Disk), AtStart, "Of a hardware VM").on_containers(NO_DISKS),
    p(
        "filesystems",
        List(Item::Filesystem),
        NO_CONTAINER,
        "Directories of the server in a container",
    ).on_containers(NOT_YET),
    p("image_uuid", Uuid, Live, "Image of a container, or of the only disk"),
    p(
        "internal_metadata",
        METADATA,
        Live,
        "For the guest, which can't change it; at most 256 KiB of JSON",
    ),
    p("nics", List(Item::Nic), AtStart, "Network interfaces"),
    p("nowait", Flag, CONTAINER, "Made without waiting until a container is up").on_containers(KEPT_YET),
    p("pci_devices", List(Item::PciDevice), NO_PASSING, "Devices of the server in a bhyve VM"),
    p(
        "routes",
        ROUTES,
        AtStart,
        "Gateway by destination, as addresses; or `nics[NUMBER]`, `macs[MAC]` for what is on that \
         interface's link; on a bridge; at most 16 KiB of JSON",
    ).on_containers(KEPT_YET),
    p("tags", TAGS, Live, "Free-form labels; at most 16 KiB of JSON"),
    // A create takes it for `zpool` before it looks here.
    p(
        "zfs_storage_pool_name",
        Text(255),
        Ignored("a create takes it for `zpool`"),
        "Another name of `zpool`",
    ),
    p("zone_dataset_uuid", Uuid, DATASET, "Of no effect here"),
    p("zonename", Text(64), Live, "Its uuid, unless old clients want otherwise"),
    p("zpool", Text(255), Live, "Pool of the server that its disks lie in, unless they name one"),
];

/// Only for changing a VM.
pub const CHANGES: &[Property] = &[
    p("add_disks", List(Item::Disk), Live, "New disks").on_containers(NO_DISKS),
    p("add_filesystems", List(Item::Filesystem), NO_CONTAINER, "New directories")
        .on_containers(NOT_YET),
    p("add_nics", List(Item::Nic), Live, "New network interfaces"),
    p("add_pci_devices", List(Item::PciDevice), NO_PASSING, "New devices"),
    p("remove_customer_metadata", Words, Live, "Names"),
    p("remove_disks", Words, Live, "Paths; their content is lost").on_containers(NO_DISKS),
    p("remove_filesystems", Words, NO_CONTAINER, "Targets").on_containers(NOT_YET),
    p("remove_internal_metadata", Words, Live, "Names"),
    p("remove_nics", Words, Live, "MAC addresses"),
    p("remove_pci_devices", Words, NO_PASSING, "Paths"),
    p("remove_routes", Words, Live, "Destinations"),
    p("remove_tags", Words, Live, "Names"),
    p("set_customer_metadata", METADATA, Live, "New values"),
    p("set_internal_metadata", METADATA, Live, "New values"),
    p("set_routes", ROUTES, Live, "New values"),
    p("set_tags", TAGS, Live, "New values"),
    p("update_disks", List(Item::Disk), Live, "Changes of disks, by `path`")
        .on_containers(NO_DISKS),
    p(
        "update_filesystems",
        List(Item::Filesystem),
        NO_CONTAINER,
        "Changes of directories, by `target`",
    )
    .on_containers(NOT_YET),
    p("update_nics", List(Item::Nic), Live, "Changes of network interfaces, by `mac`"),
    p("update_pci_devices", List(Item::PciDevice), NO_PASSING, "Changes of devices, by `path`"),
];

/// What an agent tells beside the properties.
pub const FACTS: &[Property] = &[
    p("datacenter_name", Text(1024), Dropped, "Where it is"),
    p("headnode_id", Text(1024), BY_AGENT, "Of an old agent"),
    p("init_restarts", Count, BY_AGENT, "Times that a container's first program was started again"),
    p("platform_buildstamp", Text(1024), BY_AGENT, "Platform of its server"),
    p(
        "pid",
        Count,
        Refused("told by the agent, which knows"),
        "Process of the guest on its server",
    ),
    p(
        "transition_expire",
        Range(0, i64::MAX as u64),
        BY_AGENT,
        "End of the transition, ms since 1970",
    ),
    p("transition_to", Text(64), BY_AGENT, "State that it is changing to"),
    p("v", Count, BY_AGENT, "Version of the object"),
    p("zfs_filesystem", Text(1024), BY_AGENT, "Its root dataset"),
    p("zonepath", Text(1024), BY_AGENT, "Its place in the pool"),
    p("free_space", Any, BY_AGENT, "Of an old agent"),
];

/// What an agent tells of a VM's state, and refuses to be told.
pub const TOLD: &[&str] = &[
    "boot_timestamp",
    "create_timestamp",
    "exit_status",
    "exit_timestamp",
    "last_modified",
    "pid",
    "snapshots",
    "state",
    "zone_state",
];

/// What comes with a request beside the VM's properties; agents drop it without a word.
pub const CONTEXT: &[&str] =
    &["idempotent", "image", "keep_failed", "req_id", "server_uuid", "task", "uuid"];

/// Far beyond what any disk does, and well below what the hypervisor can count.
const MAX_IOPS: u64 = 100_000_000;
const MAX_MIB_PER_SECOND: u64 = 1_000_000;
/// What the kernel can count: nanoseconds times bytes per second, in 64 bits.
const MAX_MBIT_PER_SECOND: u64 = 100_000;

const DISK_MODELS: &[&str] = &["ahci", "ide", "nvme", "scsi", "virtio"];
const NIC_MODELS: &[&str] = &["e1000", "rtl8139", "virtio"];

/// Of a disk.
pub const DISK: &[Property] = &[
    p("path", Text(1024), NO_PASSING, "Where it is; names it in an update"),
    p(
        "size",
        Range(0, MAX_DISK_MIB),
        Live,
        "MiB, at most 64 TiB; not needed with an image. A guest is told that a `virtio` or `scsi` \
         disk has grown, and sees it of others when it starts next",
    )
    .form(Form::AtLeast(1)),
    p("image_uuid", Uuid, AtStart, "Image that it starts as"),
    p("image_size", Mib, RECORD, "MiB, of the image"),
    p("image_name", Text(1024), RECORD, "Of the image"),
    p("block_size", Count, FILE, "Bytes"),
    p("guest_block_size", Text(1024), Refused("sectors are of 512 bytes"), "`L` or `L/P`, bytes"),
    p("refreservation", Any, FILE, "MiB that are set aside, or `auto`"),
    p("compression", Text(1024), FILE, "`on`, `off`, `lz4`, …"),
    p("boot", Flag, AtStart, "The guest starts from it"),
    p("max_iops", Range(0, MAX_IOPS), Live, "I/O operations per second; 0: no limit"),
    p(
        "max_mib_per_second",
        Range(0, MAX_MIB_PER_SECOND),
        Live,
        "MiB per second, read and written; 0: no limit",
    ),
    p("media", Text(1024), AtStart, "`disk`, or `cdrom`, which needs an image")
        .form(Form::OneOf(&["cdrom", "disk"])),
    p("model", Text(1024), AtStart, "`virtio`, `scsi`, `ide`, `ahci` or `nvme`")
        .form(Form::OneOf(DISK_MODELS)),
    p("nocreate", Flag, NO_PASSING, "It is there already"),
    p("zpool", Text(255), AtStart, "Pool of the server that it lies in; the VM's if it names none"),
    p("uuid", Uuid, RECORD, "Its own"),
    p("notrim", Flag, AtStart, "The guest cannot discard (TRIM) unused blocks"),
    p("pci_slot", Text(1024), Refused("the agent chooses the slots"), "`bus:device:function`"),
    p("dangerous_allow_shrink", Flag, Refused("disks never shrink"), "It may become smaller"),
];

/// Of a network interface.
pub const NIC: &[Property] = &[
    p("mac", Text(1024), AtStart, "Its address; chosen if there is none; names it in an update"),
    p("interface", Text(1024), AtStart, "Its name in the guest, e.g. `net0`, and its slot there"),
    p("nic_tag", Text(1024), AtStart, "Network of the server that it is on"),
    p("vlan_id", Range(0, 4095), AtStart, "VLAN; 0: none; on a bridge"),
    p("ips", Words, AtStart, "Addresses as `a.b.c.d/len`, or `dhcp`, `addrconf`; on a bridge"),
    p("ip", Text(1024), AtStart, "The first of `ips`, for old clients; or `dhcp`"),
    p("netmask", Text(1024), AtStart, "Of `ip`"),
    p("gateway", Text(1024), AtStart, "The first of `gateways`, for old clients"),
    p("gateways", Words, AtStart, "Routers; on a bridge"),
    p("primary", Flag, AtStart, "The one with the default route"),
    p("model", Text(1024), AtStart, "`virtio`, `e1000` or `rtl8139`").form(Form::OneOf(NIC_MODELS)),
    p("mtu", Range(0, 9000), AtStart, "Bytes; 576 to 9000; on a bridge").form(Form::AtLeast(576)),
    p("network_uuid", Uuid, RECORD, "Of the network"),
    p("allow_ip_spoofing", Flag, Live, "Any address as source"),
    p("allow_mac_spoofing", Flag, Live, "Any MAC address as source"),
    p("allow_dhcp_spoofing", Flag, Live, "May be a DHCP server, and a router of IPv6"),
    p("dhcp_server", Flag, Live, "The same"),
    p("allow_restricted_traffic", Flag, Live, "Any protocol"),
    p(
        "allow_unfiltered_promisc",
        Flag,
        Live,
        "Promiscuous mode: receives all traffic of the network",
    ),
    p("allowed_ips", Words, Live, "Further addresses and networks as source"),
    p("allowed_dhcp_cids", Words, NO_CIDS, "Client identifiers"),
    p("blocked_outgoing_ports", Any, Live, "Ports that nothing is sent to"),
    p(
        "max_mbit_per_second",
        Range(0, MAX_MBIT_PER_SECOND),
        Live,
        "Most that it sends, and most that it receives, Mbit/s; 0: no limit; on a bridge",
    ),
    p("link_down", Flag, Live, "Its cable is out: the guest sees no carrier"),
    p("vrrp_vrid", Range(0, 255), NO_VRRP, "Virtual router"),
    p("vrrp_primary_ip", Text(1024), NO_VRRP, "Of the virtual router"),
];

/// The sizes of a package: what a VM gets that names it and says nothing of them itself. Zero stands
/// for nothing said elsewhere, so it is refused here.
pub const PACKAGE: &[Property] = &[
    p("cpu_cap", Count, Live, "CPU limit, percent of one core").form(Form::AtLeast(1)),
    p("max_lwps", Count, Live, "Threads").form(Form::AtLeast(1)),
    p("max_physical_memory", Range(0, MAX_RAM_MIB), AtStart, "Memory of the guest, MiB")
        .form(Form::AtLeast(MIN_RAM_MIB)),
    p("max_swap", Mib, Live, "Memory and swap, MiB; at least 256 are given").form(Form::AtLeast(1)),
    p("quota", Mib, Live, "Disk, MiB; VMs get whole GiB, rounded up").form(Form::AtLeast(1)),
    p("vcpus", Range(0, MAX_VCPUS), AtStart, "Virtual CPUs").form(Form::AtLeast(1)),
    p("zfs_io_priority", Count, Live, "Its weight among VMs that compete for disks"),
];

/// What comes with a network interface that is made from a network's record; agents drop it without
/// a word.
pub const NETWORK_RECORD: &[&str] = &[
    "belongs_to_type",
    "belongs_to_uuid",
    "cn_uuid",
    "created_timestamp",
    "gateway_provisioned",
    "modified_timestamp",
    "owner_uuid",
    "resolvers",
    "routes",
    "state",
];

/// The property of this name that a VM has.
#[must_use]
pub fn property(name: &str) -> Option<&'static Property> {
    [LASTING, INITIAL, FACTS].into_iter().flatten().find(|property| property.name == name)
}

/// The change of this name.
#[must_use]
pub fn change(name: &str) -> Option<&'static Property> {
    CHANGES.iter().find(|change| change.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_stands_once() {
        let names = [LASTING, INITIAL, CHANGES, FACTS].into_iter().flatten().map(|p| p.name);
        let all: Vec<_> = names.chain(CONTEXT.iter().copied()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for table in [DISK, NIC] {
            let names: BTreeSet<_> = table.iter().map(|property| property.name).collect();
            assert_eq!(names.len(), table.len());
        }
    }

    #[test]
    fn a_package_has_the_limits_of_the_vms_that_it_makes() {
        for size in PACKAGE {
            let name = if size.name == "max_physical_memory" { "ram" } else { size.name };
            let of_vm = property(name).expect("VMs have it");
            let (_, most) = size.limits().expect("a number");
            let in_its_unit = if size.name == "quota" { 1024 } else { 1 };
            assert_eq!(of_vm.limits().map(|(_, most)| most * in_its_unit), Some(most), "{name}");
            assert_eq!(of_vm.effect, size.effect, "{name}");
            if !matches!(of_vm.form, Form::Any | Form::AtLeast(0)) {
                assert_eq!(of_vm.form, size.form, "{name}");
            }
        }
    }

    #[test]
    fn limits_of_bytes_are_told() {
        let objects = [LASTING, INITIAL].into_iter().flatten();
        for property in objects {
            let FlatObject(most) = property.kind else { continue };
            let limit = format!("at most {} KiB of JSON", most / 1024);
            assert!(property.doc.ends_with(&limit), "{}: {}", property.name, property.doc);
        }
    }

    #[test]
    fn units_are_named() {
        for property in [LASTING, INITIAL, CHANGES, FACTS, DISK, PACKAGE].into_iter().flatten() {
            let unit = match property.kind {
                Mib => "MiB",
                Gib => "GiB",
                _ => continue,
            };
            let doc = property.doc;
            assert!(doc.contains(unit), "{}: {doc}", property.name);
        }
    }
}
