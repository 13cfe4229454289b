//! The properties themselves. What no table names is dropped by agents, and their log says so.

use super::property::{Effect, Form, Item, Kind, Property};
use super::{
    MAX_ALIAS_CHARS, MAX_METADATA_BYTES, MAX_ROUTES_BYTES, MAX_TAGS_BYTES, MAX_VCPUS, MIN_RAM_MIB,
};
use Effect::{AtStart, Dropped, Ignored, Kept, Live, Refused};
use Kind::{Any, Count, Flag, FlatObject, Gib, List, Mib, Range, Text, Uuid, Words};

const TAGS: Kind = FlatObject(MAX_TAGS_BYTES);
const METADATA: Kind = FlatObject(MAX_METADATA_BYTES);
const ROUTES: Kind = FlatObject(MAX_ROUTES_BYTES);

const fn p(name: &'static str, kind: Kind, effect: Effect, doc: &'static str) -> Property {
    Property::new(name, kind, effect, doc)
}

/// May be given when a VM is made, and changed later.
pub const LASTING: &[Property] = &[
    p("alias", Text(MAX_ALIAS_CHARS), Live, "Its name for people").form(Form::Filled),
    p(
        "archive_on_delete",
        Flag,
        Live,
        "Its record and the end of its console are kept when it is destroyed",
    ),
    p("autoboot", Flag, Live, "Starts with its server"),
    p(
        "bhyve_extra_opts",
        Text(1024),
        Refused,
        "Of the hypervisor; refused unless the agent allows it",
    ),
    p("billing_id", Uuid, Kept, "Of its package"),
    p("boot", Text(64), AtStart, "Order of boot devices, e.g. `order=cd`")
        .form(Form::Option { commas: true }),
    p("bootrom", Text(1024), AtStart, "Firmware: `bios` or `uefi`").form(Form::OneOf(&["bios"])),
    p("com1", Text(1024), Ignored, "First serial line of a bhyve VM"),
    p("com2", Text(1024), Ignored, "Second serial line of a bhyve VM"),
    p("cpu_cap", Count, Kept, "Percent of one CPU; 0: none"),
    p("cpu_shares", Count, Kept, "Its weight among VMs that compete for CPU"),
    p("cpu_type", Text(64), AtStart, "CPU model of a kvm VM, e.g. `qemu64` or `host`")
        .form(Form::Option { commas: false }),
    p("disk_driver", Text(64), Live, "Model of disks that name none")
        .form(Form::OneOf(&["ahci", "ide", "nvme", "scsi", "virtio"])),
    p("dns_domain", Text(253), Ignored, "Search domain of a container"),
    p("do_not_inventory", Flag, Live, "Hidden from reports"),
    p("docker", Flag, Refused, "Is a docker container"),
    p("firewall_enabled", Flag, Kept, "Firewall rules are in force"),
    p("flexible_disk_size", Mib, Live, "Room for disks and snapshots of a bhyve VM, MiB"),
    p("fs_allowed", Words, Refused, "Filesystems that a container may mount"),
    p("hostname", Text(253), AtStart, "Host name inside").form(Form::HostName),
    p("indestructible_delegated", Flag, Live, "Its delegated dataset can't be destroyed"),
    p("indestructible_zoneroot", Flag, Live, "It can't be destroyed"),
    p("init_name", Text(1024), Refused, "First program of a container"),
    p(
        "internal_metadata_namespaces",
        Words,
        Kept,
        "Prefixes of metadata that the guest can't write",
    ),
    p("kernel_version", Text(64), Refused, "Of an lx container"),
    p("limit_priv", Words, Kept, "Privileges"),
    p("maintain_resolvers", Flag, Kept, "Resolvers are kept up to date inside"),
    p("max_locked_memory", Mib, Kept, "Memory that it may lock, MiB"),
    p("max_lwps", Count, Kept, "Threads"),
    p("max_msg_ids", Count, Ignored, "System V message queues of a container"),
    p("max_physical_memory", Mib, Live, "Memory with the hypervisor's share, MiB"),
    p("max_sem_ids", Count, Ignored, "System V semaphores of a container"),
    p("max_shm_ids", Count, Ignored, "System V shared memory segments of a container"),
    p("max_shm_memory", Mib, Ignored, "System V shared memory of a container, MiB"),
    p("max_swap", Mib, Kept, "Memory and swap, MiB; at least 256 are given"),
    p("mdata_exec_timeout", Count, Ignored, "Seconds that the user script may take"),
    p("nic_driver", Text(64), Live, "Model of network interfaces that name none")
        .form(Form::OneOf(&["e1000", "rtl8139", "virtio"])),
    p("owner_uuid", Uuid, Live, "Its owner"),
    p("package_name", Text(1024), Kept, "Of its package"),
    p("package_version", Text(1024), Kept, "Of its package"),
    p(
        "qemu_extra_opts",
        Text(1024),
        Refused,
        "Of the hypervisor; refused unless the agent allows it",
    ),
    p("qemu_opts", Text(1024), Refused, "Of the hypervisor; refused unless the agent allows it"),
    p("quota", Gib, Live, "Disk quota, GiB; 0: none"),
    p("ram", Mib, AtStart, "Memory of the guest, MiB; hardware VMs need 64")
        .form(Form::AtLeast(MIN_RAM_MIB)),
    p("resolvers", Words, AtStart, "Addresses of DNS servers"),
    p("restart_init", Flag, Ignored, "A container's first program is started again"),
    p("spice_opts", Text(1024), Refused, "Of the SPICE display of a kvm VM"),
    p("spice_password", Text(64), Refused, "Password of the SPICE display of a kvm VM"),
    p("spice_port", Range(-1, 65_535), Refused, "Port of the SPICE display of a kvm VM"),
    p("tmpfs", Mib, Refused, "Size of /tmp of a container, MiB"),
    p("vcpus", Range(0, MAX_VCPUS), AtStart, "Virtual CPUs of a hardware VM")
        .form(Form::AtLeast(1)),
    p("vga", Text(64), AtStart, "Graphics adapter of a kvm VM")
        .form(Form::OneOf(&["cirrus", "qxl", "std", "vmware"])),
    p("virtio_txburst", Count, Ignored, "Of a kvm VM; of no effect here"),
    p("virtio_txtimer", Count, Ignored, "Of a kvm VM; of no effect here"),
    p("vnc_password", Text(8), AtStart, "Password of the display, at most 8 characters")
        .form(Form::Bytes(8)),
    p("vnc_port", Range(-1, 65_535), AtStart, "Port of the display; 0: any, -1: none"),
    p("zfs_data_compression", Text(64), Ignored, "Compression of the delegated dataset"),
    p("zfs_data_recsize", Count, Ignored, "Record size of the delegated dataset, bytes"),
    p("zfs_filesystem_limit", Count, Ignored, "Filesystems below its root dataset"),
    p("zfs_io_priority", Count, Kept, "Its weight among VMs that compete for disks"),
    p("zfs_root_compression", Text(64), Ignored, "Compression of the root dataset"),
    p("zfs_root_recsize", Count, Ignored, "Record size of the root dataset, bytes"),
    p("zfs_snapshot_limit", Count, Ignored, "Snapshots of its root dataset"),
    p("zlog_max_size", Count, Ignored, "Bytes of console log that are kept"),
];

/// Only when a VM is made; changed through members of their own, or never.
pub const INITIAL: &[Property] = &[
    p("brand", Text(64), Live, "`kvm`, `bhyve`, `joyent-minimal`, `lx`, …")
        .form(Form::OneOf(&["bhyve", "kvm"])),
    p("customer_metadata", METADATA, AtStart, "For the guest; at most 256 KiB of JSON"),
    p("delegate_dataset", Flag, Refused, "A container gets a dataset of its own"),
    p("disks", List(Item::Disk), AtStart, "Of a hardware VM"),
    p("filesystems", List(Item::Filesystem), Refused, "Directories of the server in a container"),
    p("firewall_rules", List(Item::FirewallRule), Dropped, "Rules that are put in force with it"),
    p("image_uuid", Uuid, Live, "Image of a container, or of the only disk"),
    p(
        "internal_metadata",
        METADATA,
        Live,
        "For the guest, which can't change it; at most 256 KiB of JSON",
    ),
    p("nics", List(Item::Nic), AtStart, "Network interfaces"),
    p("nowait", Flag, Ignored, "Made without waiting until a container is up"),
    p("pci_devices", List(Item::PciDevice), Refused, "Devices of the server in a bhyve VM"),
    p("routes", ROUTES, Live, "Gateway by destination; at most 16 KiB of JSON"),
    p("tags", TAGS, Live, "For whoever looks for it; at most 16 KiB of JSON"),
    // A create takes it for `zpool` before it looks here.
    p("zfs_storage_pool_name", Text(255), Ignored, "Another name of `zpool`"),
    p("zone_dataset_uuid", Uuid, Ignored, "Of no effect here"),
    p("zonename", Text(64), Live, "Its uuid, unless old clients want otherwise"),
    p("zpool", Text(255), Live, "Pool that it lies in"),
];

/// Only for changing a VM.
pub const CHANGES: &[Property] = &[
    p("add_disks", List(Item::Disk), Refused, "New disks"),
    p("add_filesystems", List(Item::Filesystem), Refused, "New directories"),
    p("add_nics", List(Item::Nic), Live, "New network interfaces"),
    p("add_pci_devices", List(Item::PciDevice), Refused, "New devices"),
    p("remove_customer_metadata", Words, Live, "Names"),
    p("remove_disks", Words, Refused, "Paths"),
    p("remove_filesystems", Words, Refused, "Targets"),
    p("remove_internal_metadata", Words, Live, "Names"),
    p("remove_nics", Words, Live, "MAC addresses"),
    p("remove_pci_devices", Words, Refused, "Paths"),
    p("remove_routes", Words, Live, "Destinations"),
    p("remove_tags", Words, Live, "Names"),
    p("set_customer_metadata", METADATA, Live, "New values"),
    p("set_internal_metadata", METADATA, Live, "New values"),
    p("set_routes", ROUTES, Live, "New values"),
    p("set_tags", TAGS, Live, "New values"),
    p("update_disks", List(Item::Disk), Live, "Changes of disks, by `path`"),
    p("update_filesystems", List(Item::Filesystem), Refused, "Changes of directories, by `target`"),
    p("update_nics", List(Item::Nic), Live, "Changes of network interfaces, by `mac`"),
    p("update_pci_devices", List(Item::PciDevice), Refused, "Changes of devices, by `path`"),
];

/// What an agent tells beside the properties.
pub const FACTS: &[Property] = &[
    p("datacenter_name", Text(1024), Dropped, "Where it is"),
    p("headnode_id", Text(1024), Ignored, "Of an old agent"),
    p("init_restarts", Count, Ignored, "Times that a container's first program was started again"),
    p("platform_buildstamp", Text(1024), Ignored, "Platform of its server"),
    p("pid", Count, Refused, "Process of the guest on its server"),
    p(
        "transition_expire",
        Range(0, i64::MAX as u64),
        Ignored,
        "End of the transition, ms since 1970",
    ),
    p("transition_to", Text(64), Ignored, "State that it is changing to"),
    p("v", Count, Ignored, "Version of the object"),
    p("zfs_filesystem", Text(1024), Ignored, "Its root dataset"),
    p("zonepath", Text(1024), Ignored, "Its place in the pool"),
    p("free_space", Any, Ignored, "Of an old agent"),
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

const DISK_MODELS: &[&str] = &["ahci", "ide", "nvme", "scsi", "virtio"];
const NIC_MODELS: &[&str] = &["e1000", "rtl8139", "virtio"];

/// Of a disk.
pub const DISK: &[Property] = &[
    p("path", Text(1024), Refused, "Where it is; names it in an update"),
    p("size", Mib, AtStart, "MiB; not needed with an image").form(Form::AtLeast(1)),
    p("image_uuid", Uuid, AtStart, "Image that it starts as"),
    p("image_size", Mib, Kept, "MiB, of the image"),
    p("image_name", Text(1024), Kept, "Of the image"),
    p("block_size", Count, Kept, "Bytes"),
    p("guest_block_size", Text(1024), Ignored, "`L` or `L/P`, bytes"),
    p("refreservation", Any, Ignored, "MiB that are set aside, or `auto`"),
    p("compression", Text(1024), Kept, "`on`, `off`, `lz4`, …"),
    p("boot", Flag, AtStart, "The guest starts from it"),
    p("media", Text(1024), AtStart, "`disk` or `cdrom`").form(Form::OneOf(&["disk"])),
    p("model", Text(1024), AtStart, "`virtio`, `scsi`, `ide`, `ahci` or `nvme`")
        .form(Form::OneOf(DISK_MODELS)),
    p("nocreate", Flag, Refused, "It is there already"),
    p("zpool", Text(1024), Kept, "Pool that it lies in"),
    p("uuid", Uuid, Kept, "Its own"),
    p("notrim", Flag, AtStart, "The guest can't give back what it does not use"),
    p("pci_slot", Text(1024), Ignored, "`bus:device:function`"),
    p("dangerous_allow_shrink", Flag, Ignored, "It may become smaller"),
];

/// Of a network interface. What is [`Kept`] there is kept as it came.
pub const NIC: &[Property] = &[
    p("mac", Text(1024), AtStart, "Its address; chosen if there is none; names it in an update"),
    p("interface", Text(1024), Live, "Its name in the guest, e.g. `net0`"),
    p("nic_tag", Text(1024), AtStart, "Network of the server that it is on"),
    p("vlan_id", Range(0, 4095), AtStart, "VLAN; 0: none"),
    p("ips", Words, AtStart, "Addresses as `a.b.c.d/len`, or `dhcp`, `addrconf`"),
    p("ip", Text(1024), AtStart, "The first of `ips`, for old clients; or `dhcp`"),
    p("netmask", Text(1024), AtStart, "Of `ip`"),
    p("gateway", Text(1024), AtStart, "The first of `gateways`, for old clients"),
    p("gateways", Words, AtStart, "IPv4"),
    p("primary", Flag, AtStart, "The one with the default route"),
    p("model", Text(1024), AtStart, "`virtio`, `e1000` or `rtl8139`").form(Form::OneOf(NIC_MODELS)),
    p("mtu", Range(0, 9000), AtStart, "Bytes; 576 to 9000").form(Form::AtLeast(576)),
    p("network_uuid", Uuid, Live, "Of the network"),
    p("allow_ip_spoofing", Flag, Kept, "Any address as source"),
    p("allow_mac_spoofing", Flag, Kept, "Any MAC address as source"),
    p("allow_dhcp_spoofing", Flag, Kept, "May be a DHCP server"),
    p("dhcp_server", Flag, Kept, "The same"),
    p("allow_restricted_traffic", Flag, Kept, "Any protocol"),
    p("allow_unfiltered_promisc", Flag, Kept, "Hears everything on the network"),
    p("allowed_ips", Words, Live, "Further addresses as source"),
    p("allowed_dhcp_cids", Words, Kept, "Client identifiers"),
    p("blocked_outgoing_ports", Any, Kept, "Ports that nothing is sent to"),
    p("vrrp_vrid", Range(0, 255), Kept, "Virtual router"),
    p("vrrp_primary_ip", Text(1024), Kept, "Of the virtual router"),
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
    fn limits_of_bytes_are_told() {
        let objects = [LASTING, INITIAL].into_iter().flatten();
        for property in objects {
            let FlatObject(most) = property.kind else { continue };
            let told = format!("at most {} KiB of JSON", most / 1024);
            assert!(property.doc.ends_with(&told), "{}: {}", property.name, property.doc);
        }
    }

    #[test]
    fn units_are_named() {
        for property in [LASTING, INITIAL, CHANGES, FACTS, DISK].into_iter().flatten() {
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
