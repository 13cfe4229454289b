//! A VM: what a client may say of one, and what an agent tells of it, from one table of
//! properties. Types, units and bounds are those of all brands; what one agent or brand does not
//! offer it refuses itself.

use serde_json::{Map, Value, json};

use super::values::{
    flat_object, long_text, number, quiet_flag, text_up_to, uuid_or_nothing, words,
};
use super::{any, iso, list, reference, uuid};

/// Largest figure of MiB: 1 EiB.
const MAX_MIB: u64 = 1 << 40;
const MAX_COUNT: u64 = u32::MAX as u64;
/// Disks or network interfaces of one VM.
const MAX_DEVICES: u64 = 32;

/// The type of a property.
#[derive(Clone, Copy)]
enum Kind {
    Uuid,
    Text(u64),
    Flag,
    Mib,
    Gib,
    Count,
    Range(i64, u64),
    FlatObject,
    Words,
    List(&'static str),
    Any,
}

use Kind::{Count, Flag, FlatObject, Gib, List, Mib, Range, Text, Uuid, Words};

type Property = (&'static str, Kind, &'static str);

/// May be given when a VM is made, and changed later.
const LASTING: &[Property] = &[
    ("alias", Text(189), "Its name for people"),
    ("archive_on_delete", Flag, "Its record and logs are kept when it is destroyed"),
    ("autoboot", Flag, "Starts with its server"),
    ("bhyve_extra_opts", Text(1024), "Of the hypervisor; refused unless the agent allows it"),
    ("billing_id", Uuid, "Of its package"),
    ("boot", Text(64), "Order of boot devices, e.g. `order=cd`"),
    ("bootrom", Text(1024), "Firmware: `bios` or `uefi`"),
    ("com1", Text(1024), "First serial line of a bhyve VM"),
    ("com2", Text(1024), "Second serial line of a bhyve VM"),
    ("cpu_cap", Count, "Percent of one CPU; 0: none"),
    ("cpu_shares", Count, "Its weight among VMs that compete for CPU"),
    ("cpu_type", Text(64), "CPU model of a kvm VM, e.g. `qemu64` or `host`"),
    ("disk_driver", Text(64), "Model of disks that name none"),
    ("dns_domain", Text(253), "Search domain of a container"),
    ("do_not_inventory", Flag, "Hidden from reports"),
    ("docker", Flag, "Is a docker container"),
    ("firewall_enabled", Flag, "Firewall rules are in force"),
    ("flexible_disk_size", Mib, "Room for disks and snapshots of a bhyve VM, MiB"),
    ("fs_allowed", Words, "Filesystems that a container may mount"),
    ("hostname", Text(253), "Host name inside"),
    ("indestructible_delegated", Flag, "Its delegated dataset can't be destroyed"),
    ("indestructible_zoneroot", Flag, "It can't be destroyed"),
    ("init_name", Text(1024), "First program of a container"),
    ("internal_metadata_namespaces", Words, "Prefixes of metadata that the guest can't write"),
    ("kernel_version", Text(64), "Of an lx container"),
    ("limit_priv", Words, "Privileges"),
    ("maintain_resolvers", Flag, "Resolvers are kept up to date inside"),
    ("max_locked_memory", Mib, "Memory that it may lock, MiB"),
    ("max_lwps", Count, "Threads"),
    ("max_msg_ids", Count, "System V message queues of a container"),
    ("max_physical_memory", Mib, "Memory with the hypervisor's share, MiB"),
    ("max_sem_ids", Count, "System V semaphores of a container"),
    ("max_shm_ids", Count, "System V shared memory segments of a container"),
    ("max_shm_memory", Mib, "System V shared memory of a container, MiB"),
    ("max_swap", Mib, "Memory and swap, MiB; at least 256 are given"),
    ("mdata_exec_timeout", Count, "Seconds that the user script may take"),
    ("nic_driver", Text(64), "Model of network interfaces that name none"),
    ("owner_uuid", Uuid, "Its owner"),
    ("package_name", Text(1024), "Of its package"),
    ("package_version", Text(1024), "Of its package"),
    ("qemu_extra_opts", Text(1024), "Of the hypervisor; refused unless the agent allows it"),
    ("qemu_opts", Text(1024), "Of the hypervisor; refused unless the agent allows it"),
    ("quota", Gib, "Disk quota, GiB; 0: none"),
    ("ram", Mib, "Memory of the guest, MiB; hardware VMs need 64"),
    ("resolvers", Words, "Addresses of DNS servers"),
    ("restart_init", Flag, "A container's first program is started again"),
    ("spice_opts", Text(1024), "Of the SPICE display of a kvm VM"),
    ("spice_password", Text(64), "Password of the SPICE display of a kvm VM"),
    ("spice_port", Range(-1, 65_535), "Port of the SPICE display of a kvm VM"),
    ("tmpfs", Mib, "Size of /tmp of a container, MiB"),
    ("vcpus", Range(0, 1024), "Virtual CPUs of a hardware VM"),
    ("vga", Text(64), "Graphics adapter of a kvm VM"),
    ("virtio_txburst", Count, "Of a kvm VM; of no effect here"),
    ("virtio_txtimer", Count, "Of a kvm VM; of no effect here"),
    ("vnc_password", Text(8), "Password of the display, at most 8 characters"),
    ("vnc_port", Range(-1, 65_535), "Port of the display; 0: any, -1: none"),
    ("zfs_data_compression", Text(64), "Compression of the delegated dataset"),
    ("zfs_data_recsize", Count, "Record size of the delegated dataset, bytes"),
    ("zfs_filesystem_limit", Count, "Filesystems below its root dataset"),
    ("zfs_io_priority", Count, "Its weight among VMs that compete for disks"),
    ("zfs_root_compression", Text(64), "Compression of the root dataset"),
    ("zfs_root_recsize", Count, "Record size of the root dataset, bytes"),
    ("zfs_snapshot_limit", Count, "Snapshots of its root dataset"),
    ("zlog_max_size", Count, "Bytes of console log that are kept"),
];

/// Only when a VM is made; changed through members of their own, or never.
const INITIAL: &[Property] = &[
    ("brand", Text(64), "`kvm`, `bhyve`, `joyent-minimal`, `lx`, …"),
    ("customer_metadata", FlatObject, "For the guest"),
    ("delegate_dataset", Flag, "A container gets a dataset of its own"),
    ("disks", List("Disk"), "Of a hardware VM"),
    ("filesystems", List("Filesystem"), "Directories of the server in a container"),
    ("firewall_rules", List("FirewallRule"), "Rules that are put in force with it"),
    ("image_uuid", Uuid, "Image of a container, or of the only disk"),
    ("internal_metadata", FlatObject, "For the guest, which can't change it"),
    ("nics", List("Nic"), "Network interfaces"),
    ("nowait", Flag, "Made without waiting until a container is up"),
    ("pci_devices", List("PciDevice"), "Devices of the server in a bhyve VM"),
    ("routes", FlatObject, "Gateway by destination"),
    ("tags", FlatObject, "For whoever looks for it"),
    ("zfs_storage_pool_name", Text(255), "Another name of `zpool`"),
    ("zone_dataset_uuid", Uuid, "Of no effect here"),
    ("zonename", Text(64), "Its uuid, unless old clients want otherwise"),
    ("zpool", Text(255), "Pool that it lies in"),
];

/// Only for changing a VM.
const CHANGES: &[Property] = &[
    ("add_disks", List("Disk"), "New disks"),
    ("add_filesystems", List("Filesystem"), "New directories"),
    ("add_nics", List("Nic"), "New network interfaces"),
    ("add_pci_devices", List("PciDevice"), "New devices"),
    ("remove_customer_metadata", Words, "Names"),
    ("remove_disks", Words, "Paths"),
    ("remove_filesystems", Words, "Targets"),
    ("remove_internal_metadata", Words, "Names"),
    ("remove_nics", Words, "MAC addresses"),
    ("remove_pci_devices", Words, "Paths"),
    ("remove_routes", Words, "Destinations"),
    ("remove_tags", Words, "Names"),
    ("set_customer_metadata", FlatObject, "New values"),
    ("set_internal_metadata", FlatObject, "New values"),
    ("set_routes", FlatObject, "New values"),
    ("set_tags", FlatObject, "New values"),
    ("update_disks", List("Disk"), "Changes of disks, by `path`"),
    ("update_filesystems", List("Filesystem"), "Changes of directories, by `target`"),
    ("update_nics", List("Nic"), "Changes of network interfaces, by `mac`"),
    ("update_pci_devices", List("PciDevice"), "Changes of devices, by `path`"),
];

/// What an agent tells beside the properties.
const FACTS: &[Property] = &[
    ("datacenter_name", Text(1024), "Where it is"),
    ("headnode_id", Text(1024), "Of an old agent"),
    ("init_restarts", Count, "Times that a container's first program was started again"),
    ("platform_buildstamp", Text(1024), "Platform of its server"),
    ("pid", Count, "Process of the guest on its server"),
    ("transition_expire", Range(0, i64::MAX as u64), "End of the transition, ms since 1970"),
    ("transition_to", Text(64), "State that it is changing to"),
    ("v", Count, "Version of the object"),
    ("zfs_filesystem", Text(1024), "Its root dataset"),
    ("zonepath", Text(1024), "Its place in the pool"),
    ("free_space", Kind::Any, "Of an old agent"),
];

fn bare(kind: Kind) -> Value {
    match kind {
        Uuid => uuid_or_nothing(),
        Text(most) => text_up_to(most),
        Flag => quiet_flag(),
        Mib => number(0, MAX_MIB),
        Gib => number(0, MAX_MIB / 1024),
        Count => number(0, MAX_COUNT),
        Range(least, most) => number(least, most),
        FlatObject => flat_object(),
        Words => words(),
        List(of) => json!({
            "type": ["array", "null"], "maxItems": MAX_DEVICES, "items": reference(of),
        }),
        Kind::Any => any(),
    }
}

/// As [`bare`], but nothing that only clients are allowed.
fn told(kind: Kind) -> Value {
    let whole = |least: i64| json!({ "type": ["integer", "null"], "minimum": least });
    match kind {
        Uuid => uuid_or_nothing(),
        Text(_) => json!({ "type": ["string", "null"] }),
        Flag => json!({ "type": ["boolean", "null"] }),
        Mib | Gib | Count => whole(0),
        Range(least, _) => whole(least),
        FlatObject | Words | Kind::Any | List(_) => bare(kind),
    }
}

fn properties(tables: &[&[Property]], schema: fn(Kind) -> Value) -> Map<String, Value> {
    let described = |(name, kind, doc): &Property| {
        let mut schema = schema(*kind);
        schema["description"] = json!(doc);
        ((*name).to_owned(), schema)
    };
    tables.iter().flat_map(|table| table.iter()).map(described).collect()
}

/// Parameters of a create, beside the VM's properties.
pub(super) fn create() -> Value {
    let mut all = properties(&[LASTING, INITIAL], bare);
    all.insert(
        "image".to_owned(),
        json!({
            "type": "object", "description": "Manifest of the image; with `files`",
            "properties": {
                "files": { "type": "array", "items": { "type": "object" } },
                "origin": { "type": ["string", "null"], "description": "Image that it builds on" },
            },
        }),
    );
    let mut keep = quiet_flag();
    keep["description"] = json!("Keep what was made if making it fails, for looking into it");
    all.insert("keep_failed".to_owned(), keep);
    json!({
        "type": "object", "properties": all,
        "description": "A new VM; unknown members are passed on to the agent",
        "example": {
            "brand": "kvm", "ram": 1024, "vcpus": 1, "cpu_cap": 100, "quota": 10,
            "disks": [{
                "boot": true, "model": "virtio",
                "image_uuid": "11111111-1111-4111-8111-111111111111",
            }],
            "nics": [{ "nic_tag": "admin", "model": "virtio", "ips": ["dhcp"], "primary": true }],
            "image": { "files": [{ "compression": "gzip" }] },
        },
    })
}

/// Parameters of a create with a server to be chosen.
pub(super) fn place() -> Value {
    let mut all = properties(&[LASTING, INITIAL], bare);
    let described = |mut schema: Value, doc: &str| {
        schema["description"] = json!(doc);
        schema
    };
    for (name, schema) in [
        ("uuid", described(uuid_or_nothing(), "Its uuid; chosen if there is none")),
        ("memory", described(number(0, MAX_MIB), "Another name of `ram`, MiB")),
        (
            "disk",
            described(
                number(1, MAX_MIB),
                "Size of its disk, MiB; else `quota`, or the image's if that is larger",
            ),
        ),
        ("vcpus", described(number(1, 1024), "Virtual CPUs")),
        ("cpu_cap", described(number(1, MAX_COUNT), "Most CPU, percent of one core")),
        ("metadata", described(flat_object(), "Added to `customer_metadata`")),
        (
            "image",
            json!({
                "description": "The image's uuid or manifest; or `image_uuid`",
                "anyOf": [
                    uuid(),
                    { "type": "object", "properties": { "uuid": uuid() } },
                ],
            }),
        ),
        (
            "package",
            json!({
                "type": "object", "description": "Sizes that are not given otherwise, as PAPI has them",
                "properties": {
                    "name": { "type": "string" }, "uuid": { "type": "string" },
                    "version": { "type": "string" },
                    "max_physical_memory": described(number(0, MAX_MIB), "MiB"),
                    "vcpus": number(0, 1024),
                    "cpu_cap": described(number(0, MAX_COUNT), "Percent of a CPU"),
                    "quota": described(number(0, MAX_MIB), "MiB"),
                },
            }),
        ),
        (
            "networks",
            json!({
                "type": "array", "maxItems": MAX_DEVICES,
                "description": "Tags, or interfaces with `nic_tag`; one each",
                "items": { "anyOf": [{ "type": "string" }, reference("Nic")] },
            }),
        ),
    ] {
        all.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object", "properties": all,
        "description": "A new VM; `ram` and an image are needed",
        "example": {
            "image": "11111111-1111-4111-8111-111111111111", "ram": 1024, "vcpus": 1,
            "networks": ["admin"],
        },
    })
}

/// Parameters of an update.
pub(super) fn update() -> Value {
    let mut all = properties(&[LASTING, CHANGES], bare);
    all.insert(
        "reboot".to_owned(),
        json!({
            "type": ["string", "null"], "enum": ["always", "if_needed", "never", null],
            "description": "Whether the guest is restarted for what needs it",
        }),
    );
    json!({
        "type": "object", "properties": all,
        "description": "Changes of a VM; 0, `null` or an empty text takes a property away",
        "example": { "ram": 2048, "set_tags": { "role": "web" }, "remove_nics": [] },
    })
}

/// The object of `VmLoad` and of results.
pub(super) fn object() -> Value {
    let mut all = properties(&[LASTING, INITIAL, FACTS], told);
    let text = |doc: &str| json!({ "type": "string", "description": doc });
    for (name, schema) in [
        ("uuid", uuid()),
        ("state", text("`running`, `stopped`, `stopping`, `provisioning`, `failed`, …")),
        ("zone_state", text("`running`, `installed`, `configured`, …")),
        ("type", text("`KVM`, `BHYVE`, `LX` or `OS`")),
        ("hvm", json!({ "type": "boolean", "description": "A hardware VM" })),
        ("server_uuid", uuid()),
        ("last_modified", text("ISO time")),
        ("boot_timestamp", text("ISO time of its last start")),
        ("create_timestamp", text("ISO time")),
        ("exit_timestamp", text("ISO time of its last end")),
        ("exit_status", json!({ "description": "Of its last end: a code, or 128 and a signal" })),
        ("snapshots", list("VmSnapshot")),
    ] {
        all.insert(name.to_owned(), schema);
    }
    json!({
        "type": "object", "properties": all, "required": ["uuid", "state"],
        "description": "A VM with all its properties, as its agent tells it",
        "example": {
            "uuid": "22222222-2222-4222-8222-222222222222", "brand": "kvm", "state": "running",
            "zone_state": "running", "ram": 1024, "max_physical_memory": 2048, "quota": 10,
        },
    })
}

pub(super) fn snapshot() -> Value {
    json!({
        "type": "object", "required": ["name"], "description": "A snapshot of a VM's disks",
        "properties": {
            "name": { "type": "string" },
            "size": { "type": "number", "minimum": 0, "description": "MiB" },
            "created_at": iso(),
        },
    })
}

/// A disk: given or told.
pub(super) fn disk() -> Value {
    let described = |mut schema: Value, doc: &str| {
        schema["description"] = json!(doc);
        schema
    };
    let word = |doc| described(text_up_to(1024), doc);
    let flag = |doc| described(quiet_flag(), doc);
    json!({
        "type": "object", "description": "A disk of a hardware VM",
        "properties": {
            "path": word("Where it is; names it in an update"),
            "size": described(number(0, MAX_MIB), "MiB; not needed with an image"),
            "image_uuid": described(uuid_or_nothing(), "Image that it starts as"),
            "image_size": described(number(0, MAX_MIB), "MiB, of the image"),
            "image_name": word("Of the image"),
            "block_size": described(number(0, MAX_COUNT), "Bytes"),
            "guest_block_size": word("`L` or `L/P`, bytes"),
            "refreservation": described(
                json!({ "type": ["integer", "string", "null"] }),
                "MiB that are set aside, or `auto`",
            ),
            "compression": word("`on`, `off`, `lz4`, …"),
            "boot": flag("The guest starts from it"),
            "media": word("`disk` or `cdrom`"),
            "model": word("`virtio`, `scsi`, `ide`, `ahci` or `nvme`"),
            "nocreate": flag("It is there already"),
            "zpool": word("Pool that it lies in"),
            "uuid": described(uuid_or_nothing(), "Its own"),
            "notrim": flag("The guest can't give back what it does not use"),
            "pci_slot": word("`bus:device:function`"),
            "dangerous_allow_shrink": flag("It may become smaller"),
        },
        "example": { "size": 10240, "model": "virtio" },
    })
}

/// A network interface: given or told.
pub(super) fn nic() -> Value {
    let described = |mut schema: Value, doc: &str| {
        schema["description"] = json!(doc);
        schema
    };
    let word = |doc| described(text_up_to(1024), doc);
    let flag = |doc| described(quiet_flag(), doc);
    let many = |doc| described(words(), doc);
    json!({
        "type": "object", "description": "A network interface of a VM",
        "properties": {
            "mac": word("Its address; chosen if there is none; names it in an update"),
            "interface": word("Its name in the guest, e.g. `net0`"),
            "nic_tag": word("Network of the server that it is on"),
            "vlan_id": described(number(0, 4095), "VLAN; 0: none"),
            "ips": many("Addresses as `a.b.c.d/len`, or `dhcp`, `addrconf`"),
            "ip": word("The first of `ips`, for old clients; or `dhcp`"),
            "netmask": word("Of `ip`"),
            "gateway": word("The first of `gateways`, for old clients"),
            "gateways": many("IPv4"),
            "primary": flag("The one with the default route"),
            "model": word("`virtio`, `e1000` or `rtl8139`"),
            "mtu": described(number(0, 9000), "Bytes; 576 to 9000"),
            "network_uuid": described(uuid_or_nothing(), "Of the network"),
            "allow_ip_spoofing": flag("Any address as source"),
            "allow_mac_spoofing": flag("Any MAC address as source"),
            "allow_dhcp_spoofing": flag("May be a DHCP server"),
            "dhcp_server": flag("The same"),
            "allow_restricted_traffic": flag("Any protocol"),
            "allow_unfiltered_promisc": flag("Hears everything on the network"),
            "allowed_ips": many("Further addresses as source"),
            "allowed_dhcp_cids": many("Client identifiers"),
            "blocked_outgoing_ports": {
                "type": ["array", "string", "null"], "items": { "type": ["integer", "string"] },
                "description": "Ports that nothing is sent to",
            },
            "vrrp_vrid": described(number(0, 255), "Virtual router"),
            "vrrp_primary_ip": word("Of the virtual router"),
        },
        "example": { "nic_tag": "admin", "ips": ["10.0.0.5/24"], "gateways": ["10.0.0.1"] },
    })
}

/// A directory of the server in a container.
pub(super) fn filesystem() -> Value {
    json!({
        "type": "object", "description": "A directory of the server in a container",
        "properties": {
            "type": long_text(), "source": long_text(), "target": long_text(), "raw": long_text(),
            "options": words(),
        },
    })
}

/// A device of the server in a VM.
pub(super) fn pci_device() -> Value {
    json!({
        "type": "object", "description": "A device of the server in a bhyve VM",
        "properties": { "path": long_text(), "pci_slot": long_text() },
    })
}

/// A firewall rule, as FWAPI has it.
pub(super) fn firewall_rule() -> Value {
    json!({
        "type": "object", "description": "A firewall rule, as FWAPI has it",
        "properties": { "rule": long_text(), "enabled": quiet_flag() },
    })
}
