//! What payloads are accepted, refused and completed to.

use muster_shared::vm::{FACTS, INITIAL, LASTING, MAX_DISK_MIB, MAX_METADATA_BYTES};
use proptest::prelude::*;

use super::*;

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else { panic!("an object is needed") };
    object
}

#[track_caller]
fn refused(params: Value) -> Value {
    let failure = create(&object(params)).unwrap_err();
    assert_eq!(failure.code, "InvalidVmPayload");
    *failure.details.unwrap()
}

#[test]
fn a_small_payload_is_completed() {
    let image = "00000000-0000-0000-0000-00000000000A";
    let vm = create(&object(json!({
        "uuid": "x", "server_uuid": "y", "unknown": [1], "ram": "128", "brand": "kvm",
        "autoboot": "false", "image_uuid": image, "nics": [{"nic_tag": "admin"}],
    })))
    .unwrap();
    assert_eq!(vm["ram"], 128);
    assert_eq!(vm["autoboot"], false);
    assert_eq!(vm["max_physical_memory"], 128 + 1024);
    assert_eq!(vm["disks"][0]["image_uuid"], image.to_ascii_lowercase());
    assert_eq!(vm["disks"][0]["boot"], true);
    assert_eq!(vm["nics"][0]["primary"], true);
    assert!(!vm.contains_key("unknown") && !vm.contains_key("server_uuid"));
    assert_eq!(images(&vm), [image.parse().unwrap()]);
}

#[test]
fn a_boot_order_of_letters_that_no_device_has_is_refused_by_name() {
    for boot in ["order=cx", "cd", "order=c,once=q", "menu=on"] {
        let params = json!({ "brand": "kvm", "boot": boot });
        assert_eq!(refused(params)["bad_properties"], json!(["boot"]), "{boot}");
    }
    let vm = create(&object(json!({ "brand": "kvm", "boot": "order=cdn,once=d" }))).unwrap();
    let changed = json!({ "boot": "order=z" });
    let refused = update(&vm, &object(changed), String::new).unwrap_err();
    assert_eq!(refused.details.unwrap()["bad_properties"], json!(["boot"]));
    assert!(refused.message.contains("c (disk), d (CD)"), "{}", refused.message);
    let cleared = update(&vm, &object(json!({ "boot": null })), String::new).unwrap();
    assert!(!cleared.contains_key("boot"));
}

/// As vmapi makes it from NAPI's record.
#[test]
fn a_nic_of_napi_is_recorded_without_what_vmapi_must_not_see_again() {
    let vm = create(&object(json!({
        "brand": "kvm", "ram": 128, "disks": [{ "size": 10 }],
        "nics": [{
            "belongs_to_type": "zone", "belongs_to_uuid": "x", "owner_uuid": "y",
            "created_timestamp": "2026-01-01T00:00:00.000Z", "state": "provisioning",
            "mac": "90:B8:D0:00:00:01", "nic_tag": "external", "vlan_id": 0, "mtu": 1500,
            "ip": "10.88.88.7", "netmask": "255.255.255.0", "gateway": "10.88.88.2",
            "primary": true,
        }],
    })))
    .unwrap();
    assert_eq!(
        vm["nics"],
        json!([{
            "mac": "90:b8:d0:00:00:01", "nic_tag": "external", "vlan_id": 0, "mtu": 1500,
            "ip": "10.88.88.7", "netmask": "255.255.255.0", "gateway": "10.88.88.2",
            "primary": true, "ips": ["10.88.88.7/24"], "gateways": ["10.88.88.2"],
            "model": "virtio", "interface": "net0",
        }])
    );
    let unheard_of = json!({
        "brand": "kvm", "nics": [{ "nic_tag": "external", "bogus": 1 }],
    });
    assert_eq!(refused(unheard_of)["bad_properties"], json!(["nics.0.bogus"]));
}

#[test]
fn everything_wrong_is_told_at_once() {
    let details = refused(json!({
        "ram": 1, "tags": {"a": []}, "state": "running", "tmpfs": 1, "max_swap": [],
        "nics": [{"mac": "01:00:00:00:00:00"}],
    }));
    let bad = ["ram", "tags", "nics.0.mac", "max_swap"];
    for name in bad {
        assert!(details["bad_values"].as_array().unwrap().contains(&json!(name)), "{name}");
    }
    assert_eq!(details["missing_properties"], json!(["nics.0.nic_tag", "brand"]));
    assert_eq!(details["bad_properties"], json!(["state", "tmpfs"]));
}

#[test]
fn what_would_reach_the_host_is_refused() {
    let disk = json!({ "brand": "kvm", "disks": [{"size": 1, "path": "/etc/shadow"}] });
    assert_eq!(refused(disk)["bad_properties"], json!(["disks.0.path"]));
    let cpu = json!({ "brand": "kvm", "cpu_type": "max,x" });
    assert_eq!(refused(cpu)["bad_values"], json!(["cpu_type"]));
    let help = json!({ "brand": "kvm", "cpu_type": "help" });
    assert_eq!(refused(help)["bad_values"], json!(["cpu_type"]));
    let opts = json!({ "brand": "kvm", "qemu_opts": "-drive x" });
    assert_eq!(refused(opts)["bad_properties"], json!(["qemu_opts"]));
    let two = json!({ "brand": "kvm", "disks": [
        {"size": 1, "boot": true}, {"size": 1, "boot": true},
    ]});
    assert_eq!(refused(two)["bad_values"], json!(["disks"]));
}

#[test]
fn what_is_too_large_is_named() {
    let large = json!({ "a": "x".repeat(MAX_METADATA_BYTES) });
    for name in ["tags", "customer_metadata", "internal_metadata"] {
        assert_eq!(refused(json!({ "brand": "kvm", name: large }))["bad_values"], json!([name]));
    }
    let nics = json!([{ "nic_tag": "admin", "allowed_ips": vec!["10.0.0.1"; 100_000] }]);
    let many = refused(json!({ "brand": "kvm", "nics": nics }));
    assert_eq!(many["bad_values"], json!(["nics.0.allowed_ips"]));
    let nics = json!([{ "nic_tag": "admin", "allowed_ips": ["1".repeat(MAX_VM_BYTES)] }]);
    assert_eq!(refused(json!({ "brand": "kvm", "nics": nics }))["bad_values"], json!(["nics"]));
    let resolvers = json!({ "brand": "kvm", "resolvers": vec!["192.0.2.1"; 50_000] });
    assert_eq!(refused(resolvers)["bad_values"], json!(["resolvers"]));
    let disk = json!({ "brand": "kvm", "disks": [{ "size": MAX_DISK_MIB + 1 }] });
    assert_eq!(refused(disk)["bad_values"], json!(["disks.0.size"]));
}

#[test]
fn what_would_not_come_is_refused_with_its_reason() {
    let payload = json!({
        "brand": "kvm", "qemu_opts": "-x", "tmpfs": 1, "docker": false,
        "firewall_rules": [], "pci_devices": [], "spice_password": "",
        "disks": [{ "size": 1, "nocreate": false, "iops": 5, "guest_block_size": "4096" }],
        "nics": [{
            "nic_tag": "admin", "speed": 1, "allow_ip_spoofing": { "x": 1 }, "vlan_id": 5000,
            "belongs_to_type": "zone", "owner_uuid": "x", "allow_mac_spoofing": "true",
        }],
    });
    let failure = create(&object(payload)).unwrap_err();
    assert!(failure.message.contains("of containers only"), "{failure}");
    let details = failure.details.unwrap();
    let mut names: Vec<_> = details["bad_properties"].as_array().unwrap().to_vec();
    names.sort_by_key(ToString::to_string);
    let expected =
        ["disks.0.guest_block_size", "disks.0.iops", "nics.0.speed", "qemu_opts", "tmpfs"];
    assert_eq!(names, expected);
    assert_eq!(details["bad_values"], json!(["nics.0.allow_ip_spoofing", "nics.0.vlan_id"]));
}

#[test]
fn a_cd_is_its_image() {
    let image = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01";
    let cd = |cd: Value| json!({ "brand": "kvm", "disks": [{ "size": 1 }, cd] });
    let vm = create(&object(cd(json!({ "media": "cdrom", "image_uuid": image })))).unwrap();
    assert_eq!(vm["disks"][1]["model"], "ide");
    assert_eq!(vm["disks"][0]["boot"], true);
    let missing = refused(cd(json!({ "media": "cdrom" })));
    assert_eq!(missing["missing_properties"], json!(["disks.1.image_uuid"]));
    let sized = refused(cd(json!({ "media": "cdrom", "image_uuid": image, "size": 5 })));
    assert_eq!(sized["bad_properties"], json!(["disks.1.size"]));
    let fast = refused(cd(json!({ "media": "cdrom", "image_uuid": image, "model": "virtio" })));
    assert_eq!(fast["bad_values"], json!(["disks.1.model"]));
}

#[test]
fn a_brand_of_containers_that_does_not_run_has_a_code_of_its_own() {
    let failure = create(&object(json!({ "brand": "builder" }))).unwrap_err();
    assert_eq!(failure.code, "ContainerNotSupported");
}

#[test]
fn a_container_is_made_of_its_image_and_has_no_disks() {
    let image = "01020304-0506-4708-890a-0b0c0d0e0f10";
    let container =
        json!({ "brand": "lx", "image_uuid": image, "ram": 64, "tmpfs": 8, "vga": "std" });
    let vm = create(&object(container)).unwrap();
    assert_eq!((&vm["disks"], &vm["max_physical_memory"]), (&json!([]), &json!(64)));
    assert_eq!(images(&vm), [image.parse().unwrap()]);
    assert!(vm.contains_key("tmpfs") && !vm.contains_key("vga"));
    assert_eq!(refused(json!({ "brand": "lx" }))["missing_properties"], json!(["image_uuid"]));
    let disks = json!({ "brand": "lx", "image_uuid": image, "disks": [{ "size": 8 }] });
    assert_eq!(refused(disks)["bad_properties"], json!(["disks"]));
    let change = |change: Value| update(&vm, &object(change), || unreachable!());
    let failure = change(json!({ "add_disks": [{ "size": 8 }] })).unwrap_err();
    assert!(failure.message.contains("containers have no disks"), "{failure}");
    assert_eq!(change(json!({ "max_physical_memory": 128 })).unwrap()["max_physical_memory"], 128);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[a-z0-9,:.-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key = prop_oneof![Just("size".to_owned()), Just("nic_tag".to_owned()), "[a-z_]{1,8}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn any_payload() -> impl Strategy<Value = Map<String, Value>> {
    let tables = [LASTING, INITIAL, FACTS].into_iter().flatten();
    let names: Vec<&'static str> = tables.map(|property| property.name).collect();
    let entry = (prop::sample::select(names).prop_map(str::to_owned), any_json());
    prop::collection::vec(entry, 0..8).prop_map(|entries| entries.into_iter().collect())
}

proptest! {
    #[test]
    fn any_payload_is_refused_or_completed_once_and_for_all(
        mut params in any_payload(),
        sensible in any::<bool>(),
    ) {
        if sensible {
            params.retain(|name, _| !["brand", "ram", "max_swap"].contains(&name.as_str()));
            params.insert("brand".to_owned(), json!("kvm"));
        }
        if let Ok(vm) = create(&params) {
            prop_assert_eq!(create(&vm).unwrap(), vm);
        }
    }
}
