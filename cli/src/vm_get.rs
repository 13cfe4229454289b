//! `muster vm get`: what its agent says of a machine, and what is known of it while that is away.

use muster_shared::api::image::Manifest;
use muster_shared::api::vm::{FleetVm, Heard};
use muster_shared::vm::NOBODY;
use muster_shared::wire::status::GuestInfo;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cell::{self, Cell};
use crate::client::Client;
use crate::output::{Output, compact};
use crate::page::{Page, when};
use crate::{CliError, pick, vm_list};

pub(crate) async fn run(client: &Client, output: &Output, name: &str) -> Result<(), CliError> {
    let vm = pick::vm(client, name).await?;
    let whole = whole(client, &vm).await?;
    if output.is_json() {
        // What the fleet's index says, and under `vm` what the agent does.
        let mut all = vm.json().clone();
        if let Some(whole) = whole {
            all["vm"] = whole;
        }
        return output.object(&all);
    }
    let server = pick::hostnames(client).await?.remove(&vm.server_uuid.to_string());
    let image = image_name(client, &vm).await?;
    page(&vm, whole.as_ref(), server.as_deref(), image.as_deref()).print()
}

/// The machine as its agent tells it; `None` while that is away or takes too long.
async fn whole(client: &Client, vm: &FleetVm) -> Result<Option<Value>, CliError> {
    if vm.server_status == Heard::Unknown {
        return Ok(None);
    }
    let path = format!("/servers/{}/vms/{}", vm.server_uuid, vm.vm.uuid);
    match client.get(&path, &[]).await {
        Ok(whole) => Ok(Some(whole)),
        Err(CliError::Server { .. } | CliError::Refused { .. } | CliError::NotFound(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

async fn image_name(client: &Client, vm: &FleetVm) -> Result<Option<String>, CliError> {
    let Some(uuid) = &vm.index.image_uuid else { return Ok(None) };
    match client.get::<Manifest>(&format!("/images/{uuid}"), &[]).await {
        Ok(image) => Ok(Some(format!("{}@{} ({uuid})", image.name, image.version))),
        Err(CliError::NotFound(_)) => Ok(Some(uuid.clone())),
        Err(other) => Err(other),
    }
}

fn page(
    vm: &Answer<FleetVm>,
    whole: Option<&Value>,
    server: Option<&str>,
    image: Option<&str>,
) -> Page {
    let id = vm.vm.uuid.to_string();
    let name = vm.index.alias.as_deref().unwrap_or(&id);
    let server_id = vm.server_uuid.to_string();
    let on = server.unwrap_or(&server_id);
    let reason = vm.index.state_reason.as_ref().map(|reason| format!(": {reason}"));
    let state = vm_list::state(vm).text;
    let mut page = Page::new(format!("{name} is {state} on {on}{}", reason.unwrap_or_default()));
    let none = json!({});
    let machine = whole.unwrap_or(&none);
    let text = |name: &str| machine[name].as_str().filter(|text| !text.is_empty());
    page.group("VM")
        .line("Id", &id)
        .line("Server", format!("{on} ({server_id})"))
        .maybe("Image", image)
        .maybe("Package", vm.index.package_name.as_ref())
        .line("vCPUs", cpus(vm))
        .line("RAM", ram(vm))
        .maybe("At its next start", waiting(vm))
        .maybe("Owner", vm.vm.owner_uuid.as_ref().filter(|owner| *owner != NOBODY))
        .maybe("Brand", vm.vm.brand.as_ref())
        .maybe("Created", vm.index.created_at.as_deref().or(text("create_timestamp")).map(when))
        .maybe("Started", text("boot_timestamp").map(when))
        .maybe("Changed", vm.vm.last_modified.as_deref().map(when))
        .maybe("Starts with its server", machine["autoboot"].as_bool().map(yes_or_no))
        .maybe("Restart", machine["internal_metadata"]["muster:restart_policy"].as_str())
        .maybe("Ports", machine["internal_metadata"]["muster:hostfwd"].as_str());
    page.group("Disks");
    for (number, disk) in list(machine, "disks").iter().enumerate() {
        page.line(&format!("disk{number}"), self::disk(disk));
    }
    page.group("Network");
    for (number, nic) in list(machine, "nics").iter().enumerate() {
        page.line(&format!("net{number}"), self::nic(nic));
    }
    page.group("Guest, as its agent says");
    guest(&mut page, vm.index.guest.as_ref());
    page.group("Tags");
    for (name, value) in &vm.index.tags {
        page.line(name, compact(value));
    }
    page.group("Metadata");
    for group in ["customer_metadata", "internal_metadata"] {
        let names: Vec<&str> = machine[group]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        if !names.is_empty() {
            page.line(group, names.join(", "));
        }
    }
    page.group("Snapshots");
    for snapshot in list(machine, "snapshots") {
        let created = snapshot["created_at"].as_str().map(when).unwrap_or_default();
        page.line(&compact(&snapshot["name"]), created);
    }
    if whole.is_none() {
        page.group("Not known");
        page.line("disks, network, metadata", "unknown: its server's agent does not answer");
        page.next(format!("muster why server {on}"));
    }
    if !vm.index.running_with.is_empty() {
        page.next(format!("muster vm reboot {name}"));
    }
    page.next(format!("muster why vm {name}"));
    page.next(format!("muster task list --vm {name}"));
    page
}

fn guest(page: &mut Page, guest: Option<&GuestInfo>) {
    let Some(guest) = guest else { return };
    page.maybe("Host name", guest.hostname.as_ref())
        .maybe("System", guest.os.as_ref())
        .maybe("Kernel", guest.kernel.as_ref())
        .maybe("Guest agent", guest.agent_version.as_ref());
    if !guest.users.is_empty() {
        page.line("Logged in", guest.users.join(", "));
    }
    for interface in &guest.interfaces {
        page.line(&interface.name, interface.ips.join(", "));
    }
}

fn list<'a>(vm: &'a Value, name: &str) -> &'a [Value] {
    vm[name].as_array().map_or(&[], Vec::as_slice)
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

/// A size, and that of the guest until it starts next if that is another one.
fn until_start(size: &Cell, running: Option<Cell>) -> String {
    match running {
        Some(running) => format!("{} after its next start (now {})", size.text, running.text),
        None => size.text.clone(),
    }
}

/// Properties whose change waits for the next start, but for those that are shown with both sizes.
fn waiting(vm: &FleetVm) -> Option<String> {
    let others = vm.index.running_with.iter().filter(|(name, running)| {
        !(["ram", "vcpus"].contains(&name.as_str()) && running.is_number())
    });
    let names: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| format!("new {}", names.join(", ")))
}

fn cpus(vm: &FleetVm) -> String {
    let running = vm.index.running_with.get("vcpus").and_then(Value::as_u64);
    let count =
        until_start(&Cell::of(&vm.index.vcpus), running.map(|count| Cell::of(&Some(count))));
    match vm.vm.cpu_cap {
        Some(cap) => format!("{count}, limited to {cap} % of one core in total"),
        None => format!("{count}, no limit"),
    }
}

fn ram(vm: &FleetVm) -> String {
    let running = vm.index.running_with.get("ram").and_then(Value::as_u64);
    let own = until_start(&Cell::mib(vm_list::ram(vm)), running.map(|mib| Cell::mib(Some(mib))));
    match (vm.index.ram, vm.vm.max_physical_memory) {
        (Some(ram), Some(all)) if all > ram => {
            format!("{own}, up to {} with the hypervisor", Cell::mib(Some(all)).text)
        }
        _ => own,
    }
}

fn disk(disk: &Value) -> String {
    let size = disk["size"].as_f64().map(|mib| cell::size(mib * 1024.0 * 1024.0));
    let mut words = vec![size.unwrap_or_else(|| "size unknown".to_owned())];
    words.extend(disk["media"].as_str().filter(|media| *media != "disk").map(str::to_owned));
    words.extend(disk["model"].as_str().map(str::to_owned));
    if disk["boot"] == true {
        words.push("boot".to_owned());
    }
    words.extend(disk["image_uuid"].as_str().map(|uuid| format!("image {}", Cell::id(&uuid).text)));
    words.extend(disk["path"].as_str().map(str::to_owned));
    words.join(", ")
}

fn nic(nic: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    words.extend(nic["nic_tag"].as_str().map(|tag| format!("network {tag}")));
    words.extend(nic["mac"].as_str().map(str::to_owned));
    let ips = nic["ips"].as_array().into_iter().flatten().map(compact);
    words.extend(ips);
    words.extend(nic["model"].as_str().map(str::to_owned));
    if nic["primary"] == true {
        words.push("primary".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(status: &str) -> Answer<FleetVm> {
        serde_json::from_value(json!({
            "uuid": uuid::Uuid::nil(), "state": "running", "max_physical_memory": 1536, "quota": 10,
            "cpu_cap": 200, "brand": "kvm", "owner_uuid": NOBODY, "alias": "web1", "vcpus": 2,
            "ram": 512, "server_uuid": uuid::Uuid::nil(), "server_status": status,
            "package_name": "small", "tags": { "role": "db" }, "created_at": "2026-05-01T10:00:00.000Z",
        }))
        .unwrap()
    }

    #[test]
    fn a_machine_is_told_with_what_its_agent_knows() {
        let whole = json!({
            "disks": [{ "size": 10240, "model": "virtio", "boot": true, "path": "/d0" }],
            "nics": [{ "nic_tag": "admin", "mac": "02:00:00:00:00:01", "ips": ["dhcp"] }],
            "customer_metadata": { "root_authorized_keys": "x", "hello": "y" },
            "internal_metadata": { "muster:restart_policy": "always" }, "autoboot": true,
            "snapshots": [{ "name": "before", "created_at": "2026-05-01T11:00:00.000Z" }],
        });
        let text = page(&vm("running"), Some(&whole), Some("cn1"), Some("debian@12")).text(None);
        assert!(text.starts_with("web1 is running on cn1\n"), "{text}");
        for part in [
            "2, limited to 200 % of one core in total",
            "512 MiB, up to 1.5 GiB with the hypervisor",
            " small\n",
            "disk0  10 GiB, virtio, boot, /d0",
            "net0  network admin, 02:00:00:00:00:01, dhcp",
            "role  db",
            "root_authorized_keys, hello",
            "before",
            "always",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Not known") && !text.contains("Guest"), "{text}");
    }

    #[test]
    fn what_a_guest_agent_says_is_told() {
        let mut vm = vm("running").json().clone();
        vm["guest"] = json!({
            "hostname": "web", "os": "Debian GNU/Linux 12 (bookworm)", "users": ["root"],
            "interfaces": [{ "name": "eth0", "ips": ["10.0.0.5", "fd00::5"] }],
        });
        let vm = serde_json::from_value(vm).unwrap();
        let text = page(&vm, None, Some("cn1"), None).text(None);
        for part in [
            "as its agent says",
            "Debian GNU/Linux 12",
            "Logged in  root",
            "eth0       10.0.0.5, fd00::5",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_waits_for_the_next_start_is_shown_with_what_the_guest_has_now() {
        let with = |running_with: Value| {
            let mut vm = vm("running").json().clone();
            vm["running_with"] = running_with;
            let vm = serde_json::from_value(vm).unwrap();
            page(&vm, None, Some("cn1"), None).text(None)
        };
        let text = with(json!({ "ram": 256, "vcpus": null, "disks": null }));
        for part in [
            "512 MiB after its next start (now 256 MiB), up to 1.5 GiB with",
            "At its next start  new disks, vcpus",
            "muster vm reboot web1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = with(json!({ "vcpus": 1 }));
        assert!(text.contains("2 after its next start (now 1), limited to 200 %"), "{text}");
        assert!(!text.contains("At its next start"), "{text}");
        let text = with(json!({}));
        assert!(!text.contains("next start") && !text.contains("reboot"), "{text}");
    }

    #[test]
    fn a_machine_of_a_silent_server_says_what_is_not_known() {
        let text = page(&vm("unknown"), None, Some("cn1"), None).text(None);
        assert!(text.starts_with("web1 is unknown (running) on cn1\n"), "{text}");
        assert!(
            text.contains("does not answer") && text.contains("muster why server cn1"),
            "{text}"
        );
    }
}
