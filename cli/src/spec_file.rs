//! A machine as a file describes it, to what the API is asked for: the same for `vm create`, `vm
//! export-spec` and `vm edit`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muster_shared::api::image::Manifest;
use muster_shared::api::package::Package;
use muster_shared::ids::ImageUuid;
use muster_shared::units::{format_mib, parse_mib};
use muster_shared::vm::restart::POLICY_KEY;
use muster_shared::vm::{
    DEFAULT_BRAND, DEFAULT_RAM_MIB, DiskSpec, NOBODY, Publish, SpecDisk, SpecFile, VmSpec,
};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::{CliError, document, pick};

/// Disk of a machine that names none, GiB: smaller than the API's, an image is rarely larger.
pub(crate) const DEFAULT_DISK_GIB: u64 = 1;
/// Where published ports are among `internal_metadata`.
pub(crate) const PORTS_KEY: &str = "muster:hostfwd";
pub(crate) const KEYS_KEY: &str = "root_authorized_keys";
pub(crate) const USER_DATA_KEY: &str = "cloud-init:user-data";
pub(crate) const SCRIPT_KEY: &str = "user-script";
/// The first line of a configuration for cloud-init.
pub(crate) const CLOUD_CONFIG: &str = "#cloud-config";

/// Reads a file, and what it names beside it; `-` is stdin.
pub(crate) fn read(path: &Path) -> Result<SpecFile, CliError> {
    let mut spec: SpecFile = document::read(path, &text(path)?)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    include(&mut spec, folder)?;
    Ok(spec)
}

/// Puts the contents of files in the place of their names.
fn include(spec: &mut SpecFile, folder: &Path) -> Result<(), CliError> {
    for path in std::mem::take(&mut spec.ssh_key_files) {
        spec.ssh_keys.push(text(&below(folder, &path))?.trim().to_owned());
    }
    if let Some(path) = spec.cloud_config_file.take() {
        let path = below(folder, &path);
        let config = text(&path)?;
        refuse_no_config(&path.display().to_string(), &config)?;
        spec.cloud_config = Some(config);
    } else if let Some(config) = &spec.cloud_config {
        refuse_no_config("cloud_config", config)?;
    }
    if let Some(path) = spec.user_script_file.take() {
        spec.user_script = Some(text(&below(folder, &path))?);
    }
    Ok(())
}

fn refuse_no_config(place: &str, config: &str) -> Result<(), CliError> {
    if config.lines().next() == Some(CLOUD_CONFIG) {
        return Ok(());
    }
    Err(CliError::Usage(format!("{place}: the first line must be {CLOUD_CONFIG}")))
}

/// A path as a file in this folder means it.
fn below(folder: &Path, path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => folder.join(path),
    }
}

/// What a file holds; `-` is stdin.
pub(crate) fn text(path: &Path) -> Result<String, CliError> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|source| CliError::File { action: "read", path: path.to_owned(), source })
}

/// What a machine names: images, by those names, and its package.
#[derive(Debug, Default)]
pub(crate) struct Named {
    images: BTreeMap<String, Image>,
    package: Option<Package>,
}

#[derive(Clone, Copy, Debug)]
struct Image {
    uuid: ImageUuid,
    /// Size of a disk made from it, MiB, if its manifest says so.
    size_mib: Option<u64>,
}

impl Named {
    /// Looks them up.
    pub(crate) async fn find(client: &Client, spec: &SpecFile) -> Result<Self, CliError> {
        let of_disks = spec.disks.iter().filter_map(|disk| disk.image.as_ref());
        let mut images = BTreeMap::new();
        for name in spec.image.iter().chain(&spec.cdrom).chain(of_disks) {
            if !images.contains_key(name) {
                images.insert(name.clone(), Image::of(&*pick::image(client, name).await?));
            }
        }
        let package = match &spec.package {
            Some(name) => Some((*pick::package(client, name).await?).clone()),
            None => None,
        };
        Ok(Self { images, package })
    }

    fn image(&self, name: Option<&String>) -> Option<Image> {
        self.images.get(name?).copied()
    }
}

impl Image {
    fn of(manifest: &Manifest) -> Self {
        let size_mib = manifest.others.get("image_size").and_then(Value::as_u64);
        Self { uuid: manifest.uuid, size_mib }
    }
}

/// The machine as `POST /vms` takes it. Sizes that a package may give are left to it.
pub(crate) fn payload(spec: &SpecFile, named: &Named) -> VmSpec {
    let default = |value: u64| named.package.is_none().then_some(value);
    let mut vm = VmSpec {
        alias: spec.name.clone(),
        brand: Some(spec.brand.clone().unwrap_or_else(|| DEFAULT_BRAND.to_owned())),
        owner_uuid: Some(spec.owner.clone().unwrap_or_else(|| NOBODY.to_owned())),
        ram: spec.ram.as_deref().and_then(parse_mib).or(default(DEFAULT_RAM_MIB)),
        vcpus: spec.vcpus.or(default(1)),
        cpu_cap: spec.cpu_cap,
        extra: spec.properties.clone(),
        ..VmSpec::default()
    };
    match &named.package {
        Some(package) => drop(vm.extra.insert("package".to_owned(), json!(package.name))),
        None => vm.cap_cpu(),
    }
    disks(&mut vm, spec, named);
    let text = |name: &str, value: &Option<String>| value.clone().map(|it| (name.to_owned(), it));
    let keys = (!spec.ssh_keys.is_empty()).then(|| spec.ssh_keys.join("\n"));
    let own = [
        text(KEYS_KEY, &keys),
        text(USER_DATA_KEY, &spec.cloud_config),
        text(SCRIPT_KEY, &spec.user_script),
    ];
    let own = own.into_iter().flatten().map(|(name, value)| (name, json!(value)));
    let metadata: Map<String, Value> = spec.metadata.clone().into_iter().chain(own).collect();
    vm.customer_metadata = (!metadata.is_empty()).then_some(metadata);
    vm.tags = (!spec.tags.is_empty()).then(|| spec.tags.clone());
    let ports = spec.publish.iter().filter_map(|port| port.parse::<Publish>().ok());
    let ports: Vec<String> = ports.map(|port| port.hostfwd()).collect();
    let ports = (!ports.is_empty()).then(|| ports.join(","));
    for (key, value) in [(PORTS_KEY, &ports), (POLICY_KEY, &spec.restart)] {
        let Some(value) = value else { continue };
        let metadata = vm.extra.entry("internal_metadata").or_insert_with(|| json!({}));
        metadata[key] = json!(value);
    }
    let networks: Vec<Value> = spec
        .networks
        .iter()
        .map(|network| match &network.model {
            Some(model) => json!({ "nic_tag": network.name, "model": model }),
            None => json!(network.name),
        })
        .collect();
    for (name, value) in [
        ("networks", (!networks.is_empty()).then(|| json!(networks))),
        ("bootrom", spec.firmware.map(|firmware| json!(firmware))),
        ("autoboot", spec.autostart.map(Value::Bool)),
    ] {
        vm.extra.extend(value.map(|value| (name.to_owned(), value)));
    }
    vm
}

/// One disk from an image is as large as the quota, or as the image if that is larger; everything
/// else has disks with sizes of their own, and no quota that would be counted beside them.
fn disks(vm: &mut VmSpec, spec: &SpecFile, named: &Named) {
    let none = SpecDisk::default();
    let given = if spec.disks.is_empty() { std::slice::from_ref(&none) } else { &spec.disks[..] };
    let boot = named.image(spec.image.as_ref());
    if let ([only], None) = (given, &spec.cdrom)
        && *only == (SpecDisk { size: only.size.clone(), ..SpecDisk::default() })
        && let Some(gib) = whole_gib(only.size.as_deref())
    {
        vm.image_uuid = boot.map(|image| image.uuid);
        let packaged = named.package.is_some() && only.size.is_none();
        vm.quota = (!packaged).then_some(gib);
        return;
    }
    let of_package = named.package.as_ref().and_then(|package| package.quota);
    let mut disks: Vec<DiskSpec> = Vec::new();
    for (number, disk) in given.iter().enumerate() {
        let image = named.image(disk.image.as_ref()).or(boot.filter(|_| number == 0));
        let size = disk.size.as_deref().and_then(parse_mib);
        let of_image = image.and_then(|image| image.size_mib);
        let first = of_package.filter(|_| number == 0 && disk.size.is_none());
        let size = size.or(first).max(of_image);
        let size = size.or(image.is_none().then_some(DEFAULT_DISK_GIB * 1024));
        let extra = [
            ("boot", (number == 0).then(|| json!(true))),
            ("zpool", disk.pool.as_ref().map(|pool| json!(pool))),
            ("model", disk.model.as_ref().map(|model| json!(model))),
            ("max_iops", disk.max_iops.map(|most| json!(most))),
            ("max_mib_per_second", disk.max_mib_per_second.map(|most| json!(most))),
        ];
        let extra = extra.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let image_uuid = image.map(|image| image.uuid);
        disks.push(DiskSpec { size, image_uuid, extra: extra.collect() });
    }
    if let Some(cdrom) = named.image(spec.cdrom.as_ref()) {
        let media = Map::from_iter([("media".to_owned(), json!("cdrom"))]);
        let image_uuid = Some(cdrom.uuid);
        disks.push(DiskSpec { image_uuid, extra: media, ..DiskSpec::default() });
        // The first boot is from the CD.
        vm.extra.entry("boot").or_insert_with(|| json!("order=cd,once=d"));
    }
    vm.quota = Some(0);
    vm.disks = Some(disks);
}

/// A size that is a whole number of GiB; that of a disk which names none.
fn whole_gib(size: Option<&str>) -> Option<u64> {
    match size {
        None => Some(DEFAULT_DISK_GIB),
        Some(size) => parse_mib(size).filter(|mib| mib % 1024 == 0).map(|mib| mib / 1024),
    }
}

/// A size in GiB, as a file has it.
pub(crate) fn gib(gib: u64) -> String {
    format_mib(gib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "11111111-1111-4111-8111-111111111111";

    fn made(file: Value) -> Value {
        let spec: SpecFile = serde_json::from_value(file).unwrap();
        let image = |size_mib| Image { uuid: IMAGE.parse().unwrap(), size_mib };
        let images =
            [("debian", image(None)), ("cd", image(None)), ("large", image(Some(9 * 1024)))];
        let images = images.map(|(name, image)| (name.to_owned(), image)).into();
        let package = spec.package.as_ref().map(|name| {
            let package = json!({
                "name": name, "uuid": IMAGE, "max_physical_memory": 512, "quota": 20 * 1024,
            });
            serde_json::from_value(package).unwrap()
        });
        Value::Object(payload(&spec, &Named { images, package }).into_members())
    }

    #[test]
    fn what_a_package_may_say_is_left_to_it() {
        let expected = json!({
            "brand": "kvm", "owner_uuid": NOBODY, "image_uuid": IMAGE, "package": "small",
        });
        assert_eq!(made(json!({ "image": "debian", "package": "small" })), expected);
        let file = json!({
            "image": "debian", "package": "small", "ram": "1GiB", "vcpus": 3, "cpu_cap": 50,
            "disks": [{ "size": "4GiB" }],
        });
        let own = made(file);
        assert_eq!((&own["ram"], &own["vcpus"]), (&json!(1024), &json!(3)));
        assert_eq!((&own["cpu_cap"], &own["quota"]), (&json!(50), &json!(4)));
        // An empty disk beside a CD has no image to take a size from.
        let cd = made(json!({ "cdrom": "cd", "package": "small" }));
        assert_eq!((&cd["disks"][0]["size"], &cd["quota"]), (&json!(20 * 1024), &json!(0)));
    }

    #[test]
    fn an_image_alone_makes_a_small_machine() {
        let expected = json!({
            "brand": "kvm", "owner_uuid": NOBODY, "image_uuid": IMAGE, "ram": 256, "vcpus": 1,
            "cpu_cap": 100, "quota": 1,
        });
        assert_eq!(made(json!({ "image": "debian" })), expected);
        let sized = made(json!({ "image": "debian", "vcpus": 3, "disks": [{ "size": "20GiB" }] }));
        assert_eq!((&sized["quota"], &sized["cpu_cap"]), (&json!(20), &json!(300)));
        assert_eq!(sized.get("disks"), None);
    }

    #[test]
    fn disks_with_wishes_are_counted_without_a_quota() {
        let disks = json!([
            { "size": "8GiB", "pool": "fast", "model": "scsi" },
            { "size": "1536MiB", "max_iops": 7, "max_mib_per_second": 9 },
        ]);
        let two = made(json!({ "image": "debian", "disks": disks }));
        let expected = json!([
            { "image_uuid": IMAGE, "size": 8192, "boot": true, "zpool": "fast", "model": "scsi" },
            { "size": 1536, "max_iops": 7, "max_mib_per_second": 9 },
        ]);
        assert_eq!((&two["disks"], &two["quota"]), (&expected, &json!(0)));
        assert_eq!(two.get("image_uuid"), None);
        let odd = made(json!({ "image": "large", "disks": [{ "size": "1536MiB" }] }));
        assert_eq!(odd["disks"][0]["size"], 9 * 1024, "no smaller than its image");
    }

    #[test]
    fn a_cd_is_booted_once_beside_a_disk() {
        let cd = json!({ "image_uuid": IMAGE, "media": "cdrom" });
        let file = json!({ "cdrom": "cd", "disks": [{ "size": "2GiB" }], "firmware": "uefi" });
        let empty = made(file);
        assert_eq!(empty["disks"], json!([{ "size": 2048, "boot": true }, cd]));
        assert_eq!(
            (&empty["boot"], &empty["bootrom"]),
            (&json!("order=cd,once=d"), &json!("uefi"))
        );
        let rescued = made(json!({ "cdrom": "cd", "image": "debian" }));
        assert_eq!(rescued["disks"], json!([{ "image_uuid": IMAGE, "boot": true }, cd]));
    }

    #[test]
    fn what_the_guest_is_told_lies_in_metadata() {
        let all = made(json!({
            "image": "debian", "ssh_keys": ["a", "b"], "cloud_config": "#cloud-config\n",
            "user_script": "x", "metadata": { "k": 1 }, "publish": ["2222:22", "5353:53/udp"],
            "restart": "always", "properties": { "internal_metadata": { "p": "q" }, "vga": "std" },
            "networks": [{ "name": "admin" }, { "name": "x", "model": "e1000" }],
            "autostart": false, "tags": { "t": true },
        }));
        let metadata = json!({
            "k": 1, "root_authorized_keys": "a\nb", "cloud-init:user-data": "#cloud-config\n",
            "user-script": "x",
        });
        assert_eq!(all["customer_metadata"], metadata);
        let internal = json!({
            "p": "q", "muster:hostfwd": "tcp::2222-:22,udp::5353-:53",
            "muster:restart_policy": "always",
        });
        assert_eq!(all["internal_metadata"], internal);
        assert_eq!(all["networks"], json!(["admin", { "nic_tag": "x", "model": "e1000" }]));
        assert_eq!((&all["autoboot"], &all["vga"]), (&json!(false), &json!("std")));
        assert_eq!(all["tags"], json!({ "t": true }));
    }

    #[test]
    fn files_that_are_named_stand_in_for_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("key.pub", "ssh-ed25519 A\n");
        write("user-data", "#cloud-config\npackages: []\n");
        write("setup.sh", "#!/bin/sh\n");
        write(
            "vm.yaml",
            "ssh_key_files: [key.pub]\ncloud_config_file: user-data\nuser_script_file: setup.sh\n",
        );
        let spec = read(&folder.path().join("vm.yaml")).unwrap();
        assert_eq!(spec.ssh_keys, ["ssh-ed25519 A"]);
        assert_eq!(spec.user_script.as_deref(), Some("#!/bin/sh\n"));
        assert!(spec.cloud_config.is_some() && spec.cloud_config_file.is_none());
        write("bad.yaml", "cloud_config: |\n  packages: []\n");
        let refused = read(&folder.path().join("bad.yaml")).unwrap_err().to_string();
        assert!(refused.contains("the first line must be #cloud-config"), "{refused}");
    }
}
