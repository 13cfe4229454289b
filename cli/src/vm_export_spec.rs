//! `muster vm export-spec`: a file that makes a machine like one that there is.

use std::collections::BTreeMap;

use muster_shared::api::image::Manifest;
use muster_shared::units::format_mib;
use muster_shared::vm::restart::POLICY_KEY;
use muster_shared::vm::{
    DEFAULT_BRAND, Effect, Firmware, LASTING, MIN_SWAP_MIB, NOBODY, OWN_FIELDS, Publish, SpecDisk,
    SpecFile, SpecNetwork, asks_nothing, full_cpu_cap, overhead_mib,
};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, write_out};
use crate::spec_file::{CLOUD_CONFIG, KEYS_KEY, PORTS_KEY, SCRIPT_KEY, USER_DATA_KEY};
use crate::{CliError, pick};

/// What an agent gives a VM that says nothing of it.
const DEFAULTS: [(&str, u64); 3] =
    [("cpu_shares", 100), ("max_lwps", 2000), ("zfs_io_priority", 100)];
const DEFAULT_MODEL: &str = "virtio";
const DEFAULT_POOL: &str = "zones";

pub(crate) async fn run(client: &Client, output: &Output, name: &str) -> Result<(), CliError> {
    let vm = pick::vm(client, name).await?;
    let path = format!("/servers/{}/vms/{}", vm.server_uuid, vm.vm.uuid);
    let whole: Value = client.get(&path, &[]).await?;
    let spec = spec_of(&whole, &image_names(client).await?);
    if output.is_json() {
        return output.object(&json!(spec));
    }
    write_out(yaml(&spec)?.trim_end())
}

/// A file as it is edited. What a terminal would obey is escaped, as JSON can and YAML's blocks
/// can't.
pub(crate) fn yaml(spec: &SpecFile) -> Result<String, CliError> {
    let text = serde_saphyr::to_string(spec);
    let text = text.map_err(|error| CliError::Ended(format!("cannot write YAML: {error}")))?;
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    Ok(if text.chars().all(plain) { text } else { format!("{:#}\n", json!(spec)) })
}

/// `NAME@VERSION` of each image, by uuid; none of those that share it with another.
pub(crate) async fn image_names(client: &Client) -> Result<BTreeMap<String, String>, CliError> {
    let all: Vec<Answer<Manifest>> = client.get("/images", &[]).await?;
    let name = |image: &Manifest| format!("{}@{}", image.name, image.version);
    let mut names = BTreeMap::new();
    for image in &all {
        if all.iter().filter(|other| name(other) == name(image)).count() == 1 {
            names.insert(image.uuid.to_string(), name(image));
        }
    }
    Ok(names)
}

/// The machine as its agent tells it, as a file.
pub(crate) fn spec_of(vm: &Value, images: &BTreeMap<String, String>) -> SpecFile {
    let text = |value: &Value| value.as_str().filter(|it| !it.is_empty()).map(str::to_owned);
    let other = |name: &str, usual: &str| text(&vm[name]).filter(|value| value != usual);
    let vcpus = vm["vcpus"].as_u64();
    let cap = vm["cpu_cap"].as_u64().filter(|cap| *cap > 0);
    let mut metadata = vm["customer_metadata"].as_object().cloned().unwrap_or_default();
    let mut take = |key: &str, fits: &dyn Fn(&str) -> bool| {
        let value = metadata.get(key).and_then(text)?;
        fits(&value).then(|| drop(metadata.shift_remove(key)))?;
        Some(value)
    };
    let keys = take(KEYS_KEY, &|_| true).unwrap_or_default();
    let cloud_config = take(USER_DATA_KEY, &|it| it.lines().next() == Some(CLOUD_CONFIG));
    let user_script = take(SCRIPT_KEY, &|_| true);
    let mut internal = vm["internal_metadata"].as_object().cloned().unwrap_or_default();
    let publish = internal.get(PORTS_KEY).and_then(published).unwrap_or_default();
    if !publish.is_empty() {
        internal.shift_remove(PORTS_KEY);
    }
    let restart = internal.shift_remove(POLICY_KEY).as_ref().and_then(text);
    let image = |disk: &Value| {
        let uuid = text(&disk["image_uuid"])?;
        Some(images.get(&uuid).cloned().unwrap_or(uuid))
    };
    let (cds, disks): (Vec<_>, Vec<_>) =
        list(vm, "disks").partition(|disk| disk["media"] == "cdrom");
    SpecFile {
        name: text(&vm["alias"]),
        image: disks.first().and_then(|disk| image(disk)),
        cdrom: cds.first().and_then(|disk| image(disk)),
        ram: vm["ram"].as_u64().map(format_mib),
        vcpus,
        cpu_cap: cap.filter(|cap| *cap != full_cpu_cap(vcpus.unwrap_or(1))),
        disks: disks
            .iter()
            .enumerate()
            .map(|(number, it)| {
                let image = image(it).filter(|_| number > 0);
                SpecDisk { image, ..disk(it, &vm["zpool"]) }
            })
            .collect(),
        networks: list(vm, "nics").filter_map(network).collect(),
        publish,
        firmware: (vm["bootrom"] == "uefi").then_some(Firmware::Uefi),
        autostart: vm["autoboot"].as_bool().filter(|autostart| !autostart),
        restart,
        ssh_keys: keys.lines().filter(|key| !key.trim().is_empty()).map(str::to_owned).collect(),
        cloud_config,
        user_script,
        tags: vm["tags"].as_object().cloned().unwrap_or_default(),
        metadata,
        owner: other("owner_uuid", NOBODY),
        brand: other("brand", DEFAULT_BRAND),
        properties: properties(vm, internal),
        ..SpecFile::default()
    }
}

fn list<'a>(vm: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    vm[name].as_array().into_iter().flatten()
}

/// Published ports, if a file can say all of them.
fn published(ports: &Value) -> Option<Vec<String>> {
    let ports = ports.as_str()?.split(',');
    ports.map(|port| Publish::of_hostfwd(port.trim()).map(|port| port.to_string())).collect()
}

fn disk(disk: &Value, pool: &Value) -> SpecDisk {
    let text = |name: &str| disk[name].as_str().map(str::to_owned);
    let limit = |name: &str| disk[name].as_u64().filter(|most| *most > 0);
    SpecDisk {
        size: disk["size"].as_u64().map(format_mib),
        image: None,
        pool: text("zpool").filter(|name| pool != name.as_str()),
        model: text("model").filter(|model| model != DEFAULT_MODEL),
        max_iops: limit("max_iops"),
        max_mib_per_second: limit("max_mib_per_second"),
    }
}

fn network(nic: &Value) -> Option<SpecNetwork> {
    let model = nic["model"].as_str().filter(|model| *model != DEFAULT_MODEL);
    Some(SpecNetwork { name: nic["nic_tag"].as_str()?.to_owned(), model: model.map(str::to_owned) })
}

/// What else was said of it; what an agent adds by itself is left out.
fn properties(vm: &Value, internal: Map<String, Value>) -> Map<String, Value> {
    let ram = vm["ram"].as_u64().unwrap_or(0);
    let brand = vm["brand"].as_str().unwrap_or(DEFAULT_BRAND);
    let memory = ram + u64::from(overhead_mib(brand));
    let computed = [
        ("billing_id", json!(NOBODY)),
        ("max_locked_memory", json!(memory)),
        ("max_physical_memory", json!(memory)),
        ("max_swap", json!(memory.max(MIN_SWAP_MIB))),
        ("zpool", json!(DEFAULT_POOL)),
    ];
    let usual = |name: &str, value: &Value| {
        asks_nothing(value)
            || computed.iter().any(|(other, computed)| *other == name && computed == value)
            || DEFAULTS.iter().any(|(other, number)| *other == name && value == number)
    };
    let lasting = LASTING.iter().filter(|property| {
        let own = OWN_FIELDS.iter().any(|(name, _)| *name == property.name);
        !own && matches!(property.effect, Effect::Live | Effect::AtStart | Effect::Kept(_))
    });
    let names = lasting.map(|property| property.name).chain(["routes", "zpool"]);
    let of_vm = names.filter_map(|name| Some((name, vm.get(name)?.clone())));
    let mut all: Map<String, Value> = of_vm
        .filter(|(name, value)| !usual(name, value))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    if !internal.is_empty() {
        all.insert("internal_metadata".to_owned(), Value::Object(internal));
    }
    all
}

#[cfg(test)]
mod tests {
    use muster_shared::config::{Check as _, Problems};

    use super::*;

    const IMAGE: &str = "11111111-1111-4111-8111-111111111111";

    fn vm() -> Value {
        json!({
            "uuid": IMAGE, "alias": "db1", "brand": "kvm", "owner_uuid": NOBODY, "ram": 2048,
            "vcpus": 2, "cpu_cap": 200, "quota": 0, "max_physical_memory": 3072, "max_swap": 3072,
            "max_locked_memory": 3072, "cpu_shares": 100, "zfs_io_priority": 50, "max_lwps": 2000,
            "billing_id": NOBODY, "zpool": "zones", "autoboot": false, "resolvers": [],
            "state": "running", "bootrom": "uefi", "routes": {},
            "disks": [
                { "size": 1536, "image_uuid": IMAGE, "model": "virtio", "media": "disk",
                  "boot": true, "path": "/x", "zpool": "zones" },
                { "size": 10240, "model": "scsi", "media": "disk", "zpool": "fast", "max_iops": 9 },
                { "image_uuid": "other", "media": "cdrom", "model": "ide", "size": 1 },
            ],
            "nics": [{ "nic_tag": "admin", "model": "virtio", "mac": "x", "ips": ["dhcp"] }],
            "tags": { "role": "db" },
            "customer_metadata": {
                "root_authorized_keys": "a\nb\n", "cloud-init:user-data": "#!/bin/sh\n", "k": 1,
            },
            "internal_metadata": {
                "muster:hostfwd": "tcp::2222-:22,udp:127.0.0.1:5353-:53",
                "muster:restart_policy": "always", "mine": "x",
            },
        })
    }

    #[test]
    fn a_machine_becomes_the_file_that_makes_one_like_it() {
        let names = BTreeMap::from([(IMAGE.to_owned(), "debian@12".to_owned())]);
        let spec = spec_of(&vm(), &names);
        let expected = json!({
            "name": "db1", "image": "debian@12", "cdrom": "other", "ram": "2GiB", "vcpus": 2,
            "disks": [
                { "size": "1536MiB" }, { "size": "10GiB", "pool": "fast", "model": "scsi", "max_iops": 9 },
            ],
            "networks": [{ "name": "admin" }], "publish": ["2222:22", "127.0.0.1:5353:53/udp"],
            "firmware": "uefi", "autostart": false, "restart": "always", "ssh_keys": ["a", "b"],
            "tags": { "role": "db" },
            "metadata": { "cloud-init:user-data": "#!/bin/sh\n", "k": 1 },
            "properties": { "zfs_io_priority": 50, "internal_metadata": { "mine": "x" } },
        });
        assert_eq!(json!(spec), expected);
        let mut problems = Problems::default();
        spec.check(&mut problems);
        assert_eq!(problems.into_result(), Ok(()));
    }

    #[test]
    fn ports_that_a_file_cannot_say_stay_as_they_are() {
        let ports = json!({ "internal_metadata": { "muster:hostfwd": "tcp::2222-10.0.2.9:22" } });
        let spec = spec_of(&ports, &BTreeMap::new());
        assert_eq!(spec.publish, [""; 0]);
        assert_eq!(json!(spec.properties), ports);
    }

    #[test]
    fn no_file_controls_a_terminal() {
        let of = |script: &str| {
            let script = Some(script.to_owned());
            yaml(&SpecFile { user_script: script, ..SpecFile::default() }).unwrap()
        };
        assert_eq!(of("#!/bin/sh\n\techo\n"), "user_script: |\n  #!/bin/sh\n  \techo\n");
        let evil = of("a\u{1b}[31m\nb\n");
        assert!(!evil.contains('\u{1b}') && evil.contains("31m"), "{evil}");
    }
}
