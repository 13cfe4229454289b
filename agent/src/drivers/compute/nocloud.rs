//! The NoCloud volume: a small FAT file system, labelled `CIDATA`, from which a guest learns its
//! name, keys, networks and metadata. Pure, and the same inputs give the same bytes.

use std::io::{Cursor, Write as _};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::vm_record::routes::{self, Gateway, Route};
use crate::vm_record::{VmRecord, image_of};

/// Smallest volume; FAT needs some room.
const MIN_BYTES: usize = 1024 * 1024;
/// Room beside the files for tables and the ends of clusters.
const SLACK_BYTES: usize = 512 * 1024;
const LABEL: [u8; 11] = *b"CIDATA     ";
/// The destination of a default route.
const EVERYWHERE_4: &str = "0.0.0.0/0";
const EVERYWHERE_6: &str = "::/0";
/// The same for all volumes: it is found by its label.
const VOLUME_ID: u32 = 0x4d55_5354;

/// The whole volume of a VM.
///
/// # Errors
/// The files do not fit, which their limits rule out.
pub fn volume(vm: &VmRecord) -> std::io::Result<Vec<u8>> {
    let files = files(vm);
    let content: usize = files.iter().map(|(_, content)| content.len()).sum();
    let size = (content + SLACK_BYTES).max(MIN_BYTES).next_multiple_of(MIN_BYTES);
    let mut disk = Cursor::new(vec![0; size]);
    let options = fatfs::FormatVolumeOptions::new().volume_label(LABEL).volume_id(VOLUME_ID);
    fatfs::format_volume(&mut disk, options)?;
    {
        let volume = fatfs::FileSystem::new(&mut disk, fatfs::FsOptions::new())?;
        for (name, content) in files {
            let mut file = volume.root_dir().create_file(name)?;
            file.write_all(content.as_bytes())?;
            file.flush()?;
        }
        volume.unmount()?;
    }
    Ok(disk.into_inner())
}

/// Name and content of each file.
fn files(vm: &VmRecord) -> Vec<(&'static str, String)> {
    let text = |key: &str| vm.customer_metadata(key).and_then(Value::as_str);
    let script = text("user-script").map(str::to_owned);
    let user_data = text("cloud-init:user-data").map(str::to_owned);
    let user_data = user_data
        .or_else(|| script.clone().filter(|script| script.starts_with("#!")))
        .unwrap_or_else(|| "#cloud-config\n{}\n".to_owned());
    let network = text("cloud-init:network-config").map(str::to_owned);
    let mut files = vec![
        ("meta-data", yaml(&meta_data(vm))),
        ("user-data", user_data),
        ("vendor-data", text("cloud-init:vendor-data").unwrap_or_default().to_owned()),
        ("network-config", network.unwrap_or_else(|| yaml(&network_config(vm)))),
    ];
    files.extend(script.map(|script| ("user-script", script)));
    files
}

/// JSON is YAML; one member a line, so that small guests can read it with sed.
fn yaml(value: &Value) -> String {
    format!("{value:#}\n")
}

fn meta_data(vm: &VmRecord) -> Value {
    let image = vm.list("disks").first().and_then(image_of);
    // Another image is another instance, so that cloud-init runs again.
    let instance = match image {
        Some(image) => format!("{}-{:.8}", vm.uuid, image.to_string()),
        None => vm.uuid.to_string(),
    };
    let uuid = vm.uuid.to_string();
    let hostname =
        vm.text("hostname").filter(|name| *name != uuid).or(vm.text("alias")).unwrap_or(&uuid);
    let keys: Vec<&str> = vm
        .customer_metadata("root_authorized_keys")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    json!({
        "instance-id": instance,
        "local-hostname": hostname,
        "public-keys": keys,
        "customer_metadata": vm.properties.get("customer_metadata").unwrap_or(&Value::Null),
    })
}

fn network_config(vm: &VmRecord) -> Value {
    let nics = vm.list("nics");
    let routes = routes::of(vm);
    let mut ethernets = Map::new();
    for (index, nic) in nics.iter().enumerate() {
        let Some(mac) = nic.get("mac").and_then(Value::as_str) else { continue };
        let name = nic.get("interface").and_then(Value::as_str);
        let name = name.map_or_else(|| format!("net{index}"), str::to_owned);
        let routes = routes.iter().filter(|route| route.nic(nics) == Some(index));
        let routes = routes.map(|route| entry(nic, route)).collect();
        let config = ethernet(nic, mac, &name, vm.list("resolvers"), routes);
        ethernets.insert(name, config);
    }
    json!({ "version": 2, "ethernets": ethernets })
}

fn ethernet(
    nic: &Value,
    mac: &str,
    name: &str,
    resolvers: &[Value],
    mut routes: Vec<Value>,
) -> Value {
    let words = |list: &str| -> Vec<&str> {
        let items = nic.get(list).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let ips = words("ips");
    let addresses: Vec<&str> = ips.iter().copied().filter(|ip| ip.contains('/')).collect();
    let mut config = json!({
        "match": { "macaddress": mac },
        "set-name": name,
        // A nic without any address asks for one.
        "dhcp4": ips.is_empty() || ips.contains(&"dhcp"),
        "dhcp6": ips.contains(&"addrconf"),
    });
    if !addresses.is_empty() {
        config["addresses"] = json!(addresses);
    }
    if !ips.is_empty() {
        // Whoever has its addresses told takes no others from routers.
        config["accept-ra"] = json!(ips.contains(&"addrconf"));
    }
    if let Some(mtu) = nic.get("mtu").and_then(Value::as_u64).filter(|mtu| *mtu > 0) {
        config["mtu"] = json!(mtu);
    }
    if nic.get("primary").is_some_and(|primary| *primary == true) {
        for (family, all, is_of_it) in
            [("gateway4", EVERYWHERE_4, false), ("gateway6", EVERYWHERE_6, true)]
        {
            // A guest has one way out; the others stand by in the record.
            let gateways = words("gateways");
            let Some(gateway) = gateways.iter().find(|gw| gw.contains(':') == is_of_it) else {
                continue;
            };
            match Route::parse(all, gateway) {
                // One outside of the guest's networks is told in the longer form alone.
                Some(route) if needs_on_link(nic, &route) => routes.push(entry(nic, &route)),
                _ => config[family] = json!(gateway),
            }
        }
        if !resolvers.is_empty() {
            config["nameservers"] = json!({ "addresses": resolvers });
        }
    }
    if !routes.is_empty() {
        config["routes"] = json!(routes);
    }
    config
}

fn entry(nic: &Value, route: &Route) -> Value {
    match &route.gateway {
        Gateway::Address(gateway) if needs_on_link(nic, route) => {
            json!({ "to": route.to, "via": gateway, "on-link": true })
        }
        Gateway::Address(gateway) => json!({ "to": route.to, "via": gateway }),
        Gateway::Nic(_) | Gateway::Mac(_) => json!({ "to": route.to, "scope": "link" }),
    }
}

/// Whether the guest has to be told that the gateway is on the NIC's link: it is outside of the
/// networks that it knows there. Of a link-local address that goes without saying, and which networks
/// come by DHCP nobody knows here.
fn needs_on_link(nic: &Value, route: &Route) -> bool {
    let Gateway::Address(gateway) = route.gateway else { return false };
    let link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
    let ips = nic.get("ips").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let asks = ips.is_empty() || ips.iter().any(|ip| ip == "dhcp" || ip == "addrconf");
    !link_local && !asks && !routes::is_on_link(nic, gateway)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::vms::sim::record;

    fn vm(properties: Value) -> VmRecord {
        let Value::Object(properties) = properties else { panic!("an object is needed") };
        VmRecord { properties, ..record(9) }
    }

    fn read(volume: &[u8], name: &str) -> String {
        let disk = Cursor::new(volume.to_vec());
        let volume = fatfs::FileSystem::new(disk, fatfs::FsOptions::new()).unwrap();
        assert_eq!(volume.volume_label(), "CIDATA");
        let mut text = String::new();
        volume.root_dir().open_file(name).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_volume_holds_name_keys_networks_and_metadata() {
        let vm = vm(json!({
            "alias": "web", "resolvers": ["9.9.9.9"],
            "customer_metadata": {
                "root_authorized_keys": "ssh-ed25519 AAAA a\n\nssh-ed25519 BBBB b\n",
                "user-script": "#!/bin/sh\necho hello\n", "color": "blue",
            },
            "nics": [
                {"mac": "02:00:00:00:00:01", "primary": true, "mtu": 1400,
                 "ips": ["10.0.0.2/24", "2001:db8::2/64"],
                 "gateways": ["10.0.0.1", "10.0.0.254", "2001:db8::1"]},
                {"mac": "02:00:00:00:00:02", "interface": "net7"},
                {"mac": "02:00:00:00:00:03", "ips": ["dhcp", "addrconf"], "gateways": ["10.9.9.9"]},
            ],
        }));
        let volume = volume(&vm).unwrap();
        assert_eq!(volume, super::volume(&vm).unwrap());
        let meta: Value = serde_json::from_str(&read(&volume, "meta-data")).unwrap();
        assert_eq!(meta["local-hostname"], "web");
        assert_eq!(meta["instance-id"], vm.uuid.to_string());
        assert_eq!(meta["public-keys"], json!(["ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"]));
        assert_eq!(meta["customer_metadata"]["color"], "blue");
        assert!(read(&volume, "meta-data").contains("\n  \"local-hostname\": \"web\",\n"));
        assert!(read(&volume, "user-data").starts_with("#!/bin/sh"));
        let network: Value = serde_json::from_str(&read(&volume, "network-config")).unwrap();
        assert_eq!(
            network["ethernets"],
            json!({
                "net0": {
                    "match": {"macaddress": "02:00:00:00:00:01"}, "set-name": "net0",
                    "dhcp4": false, "dhcp6": false, "accept-ra": false, "mtu": 1400,
                    "addresses": ["10.0.0.2/24", "2001:db8::2/64"],
                    "gateway4": "10.0.0.1", "gateway6": "2001:db8::1",
                    "nameservers": {"addresses": ["9.9.9.9"]},
                },
                "net7": {
                    "match": {"macaddress": "02:00:00:00:00:02"}, "set-name": "net7",
                    "dhcp4": true, "dhcp6": false,
                },
                "net2": {
                    "match": {"macaddress": "02:00:00:00:00:03"}, "set-name": "net2",
                    "dhcp4": true, "dhcp6": true, "accept-ra": true,
                },
            })
        );
    }

    #[test]
    fn routes_are_told_with_the_nic_that_they_lead_through() {
        let vm = vm(json!({
            "nics": [
                {"mac": "02:00:00:00:00:01", "primary": true, "ips": ["192.0.2.5/32", "2001:db8::2/64"],
                 "gateways": ["198.51.100.1", "fe80::1"]},
                {"mac": "02:00:00:00:00:02", "ips": ["10.0.0.2/24"]},
                {"mac": "02:00:00:00:00:03"},
            ],
            "routes": {
                "10.9.0.0/16": "10.0.0.1", "10.8.0.1": "203.0.113.1", "10.7.0.0/16": "nics[2]",
                "10.6.0.0/16": "macs[02:00:00:00:00:09]",
            },
        }));
        let ethernets = network_config(&vm)["ethernets"].clone();
        let first = &ethernets["net0"];
        assert_eq!((first.get("gateway4"), &first["gateway6"]), (None, &json!("fe80::1")));
        assert_eq!(
            first["routes"],
            json!([
                {"to": "10.8.0.1/32", "via": "203.0.113.1", "on-link": true},
                {"to": "0.0.0.0/0", "via": "198.51.100.1", "on-link": true},
            ])
        );
        assert_eq!(ethernets["net1"]["routes"], json!([{"to": "10.9.0.0/16", "via": "10.0.0.1"}]));
        assert_eq!(ethernets["net2"]["routes"], json!([{"to": "10.7.0.0/16", "scope": "link"}]));
    }

    #[test]
    fn large_metadata_fits() {
        let script = "#!".to_owned() + &"x".repeat(3 * 1024 * 1024);
        let vm = vm(json!({ "customer_metadata": { "user-script": script } }));
        assert_eq!(read(&volume(&vm).unwrap(), "user-script").len(), script.len());
    }
}
