//! `muster vm list`.

use std::collections::BTreeMap;

use muster_shared::api::image::Manifest;
use muster_shared::api::vm::{FleetVm, Heard};
use serde_json::Value;

use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Item, Output, compact};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick};

/// The states of a machine.
const STATES: [&str; 16] = [
    "running",
    "stopped",
    "provisioning",
    "stopping",
    "paused",
    "io-error",
    "panicked",
    "prelaunch",
    "internal-error",
    "failed",
    "destroying",
    "installed",
    "incomplete",
    "configured",
    "shutting_down",
    "down",
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
RAM is what the guest has, without the hypervisor's overhead (see `muster capacity --help`).
A state in brackets is the last known one: the VM's server is offline. Examples:
  muster vm list --server cn1 --sort -ram
  muster vm list --tag role=db --filter 'name=web*' --columns name,state,server
  muster vm list -q --state stopped | xargs muster vm start")]
pub(crate) struct Args {
    /// Only VMs on this server.
    #[arg(long)]
    server: Option<String>,
    /// Only VMs in this state.
    #[arg(long, value_parser = STATES)]
    state: Option<String>,
    /// Only VMs with this alias.
    #[arg(long)]
    alias: Option<String>,
    /// Only VMs of this owner.
    #[arg(long, value_name = "UUID")]
    owner: Option<uuid::Uuid>,
    /// Only VMs with this tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = crate::vm_create::pair)]
    tags: Vec<(String, String)>,
    #[command(flatten)]
    list: ListArgs,
}

/// A machine, and what its server and image are called.
struct Row {
    vm: Answer<FleetVm>,
    server: Option<String>,
    image: Option<String>,
}

impl Item for Row {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |row: &Self| Cell::id(&row.vm.vm.uuid)),
        Column::new("NAME", |row: &Self| Cell::maybe(row.vm.index.alias.as_ref())).cut(),
        Column::new("STATE", |row: &Self| state(&row.vm)),
        Column::new("SERVER", |row: &Self| match &row.server {
            Some(name) => Cell::text(name),
            None => Cell::id(&row.vm.server_uuid),
        })
        .cut()
        .spare(1),
        Column::new("IP", |row: &Self| ips(&row.vm)).cut().spare(7),
        Column::new("VCPUS", |row: &Self| Cell::of(&row.vm.index.vcpus)).spare(5),
        Column::new("RAM", |row: &Self| Cell::mib(ram(&row.vm))).spare(3),
        Column::new("DISK", |row: &Self| Cell::mib(disk(&row.vm))).spare(4),
        Column::new("IMAGE", |row: &Self| match &row.image {
            Some(name) => Cell::text(name),
            None => row.vm.index.image_uuid.as_ref().map_or_else(Cell::dash, Cell::id),
        })
        .cut()
        .spare(6),
        Column::new("AGE", |row: &Self| {
            let age = Cell::since(row.vm.index.created_at.as_deref());
            Cell { text: age.text.replace(" ago", ""), ..age }
        })
        .spare(2),
        Column::new("REASON", |row: &Self| Cell::maybe(row.vm.index.state_reason.as_ref()))
            .cut()
            .wide(),
        Column::new("AT START", |row: &Self| waiting(&row.vm)).cut().wide(),
        Column::new("BRAND", |row: &Self| Cell::maybe(row.vm.vm.brand.as_ref())).wide(),
        Column::new("CPU CAP", |row: &Self| Cell::of(&row.vm.vm.cpu_cap)).wide(),
        Column::new("PACKAGE", |row: &Self| Cell::maybe(row.vm.index.package_name.as_ref()))
            .cut()
            .wide(),
        Column::new("TAGS", |row: &Self| tags(&row.vm)).cut().wide(),
        Column::new("OWNER", |row: &Self| match &row.vm.vm.owner_uuid {
            Some(owner) => Cell::id(owner),
            None => Cell::dash(),
        })
        .wide(),
    ];

    fn id(&self) -> String {
        self.vm.vm.uuid.to_string()
    }

    fn name(&self) -> String {
        self.vm.index.alias.clone().unwrap_or_else(|| self.id())
    }

    fn json(&self) -> &Value {
        self.vm.json()
    }
}

/// What the machine does; in brackets what was told last, if its server is not heard.
pub(crate) fn state(vm: &FleetVm) -> Cell {
    let state = vm.vm.state.as_deref().unwrap_or("-");
    match vm.server_status {
        Heard::Running => Cell::state(state),
        Heard::Unknown => Cell::text(format!("unknown ({state})")).tone(Tone::Bad),
    }
}

/// Memory of the guest, MiB; of agents that do not tell it, with that of the hypervisor.
pub(crate) fn ram(vm: &FleetVm) -> Option<u64> {
    vm.index.ram.or(vm.vm.max_physical_memory)
}

/// All disks, MiB; of agents that do not tell them, the quota.
fn disk(vm: &FleetVm) -> Option<u64> {
    vm.index.disk_mib.or(vm.vm.quota.map(|gib| gib.saturating_mul(1024)))
}

/// Its addresses, the first of which is its primary one.
fn ips(vm: &FleetVm) -> Cell {
    if vm.index.ips.is_empty() { Cell::dash() } else { Cell::text(vm.index.ips.join(" ")) }
}

/// What waits for its next start.
fn waiting(vm: &FleetVm) -> Cell {
    let names: Vec<&str> = vm.index.running_with.keys().map(String::as_str).collect();
    if names.is_empty() { Cell::dash() } else { Cell::text(format!("new {}", names.join(", "))) }
}

fn tags(vm: &FleetVm) -> Cell {
    let tags = vm.index.tags.iter().map(|(key, value)| format!("{key}={}", compact(value)));
    let tags: Vec<String> = tags.collect();
    if tags.is_empty() { Cell::dash() } else { Cell::text(tags.join(" ")) }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let server = match &args.server {
        Some(name) => Some(pick::server(client, name).await?.record.uuid.to_string()),
        None => None,
    };
    let owner = args.owner.map(|owner| owner.to_string());
    let filters = [
        ("server_uuid", server),
        ("state", args.state),
        ("alias", args.alias),
        ("owner_uuid", owner),
    ];
    let tags: Vec<(String, String)> =
        args.tags.into_iter().map(|(key, value)| (format!("tag.{key}"), value)).collect();
    let mut query: Vec<(&str, String)> =
        filters.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    query.extend(tags.iter().map(|(key, value)| (key.as_str(), value.clone())));
    output
        .list(&args.list, async || {
            let vms = client.get_all("/vms", &query, pick::vm_uuid).await?;
            // Programs get the records alone.
            let (servers, images) = if output.is_json() || args.list.quiet {
                (BTreeMap::new(), BTreeMap::new())
            } else {
                (pick::hostnames(client).await?, image_names(client).await?)
            };
            let row = |vm: Answer<FleetVm>| Row {
                server: servers.get(&vm.server_uuid.to_string()).cloned(),
                image: vm.index.image_uuid.as_ref().and_then(|uuid| images.get(uuid).cloned()),
                vm,
            };
            Ok(vms.into_iter().map(row).collect())
        })
        .await
}

async fn image_names(client: &Client) -> Result<BTreeMap<String, String>, CliError> {
    let images: Vec<Manifest> = client.get("/images", &[]).await?;
    let named =
        |image: Manifest| (image.uuid.to_string(), format!("{}@{}", image.name, image.version));
    Ok(images.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm(status: &str) -> FleetVm {
        let vm = json!({
            "uuid": uuid::Uuid::nil(), "state": "running", "max_physical_memory": 1280, "quota": 2,
            "server_uuid": uuid::Uuid::nil(), "server_status": status, "ram": 256,
            "disk_mib": 4096, "tags": { "role": "db", "n": 1 }, "ips": ["10.0.0.5", "dhcp"],
        });
        serde_json::from_value(vm).unwrap()
    }

    #[test]
    fn a_machine_of_a_silent_server_is_not_said_to_run() {
        assert_eq!(state(&vm("running")).text, "running");
        let away = state(&vm("unknown"));
        assert_eq!((away.text.as_str(), away.tone), ("unknown (running)", Tone::Bad));
    }

    #[test]
    fn sizes_are_those_that_were_asked_for() {
        let mut vm = vm("running");
        assert_eq!((ram(&vm), disk(&vm)), (Some(256), Some(4096)));
        assert_eq!(tags(&vm).text, "n=1 role=db");
        assert_eq!(ips(&vm).text, "10.0.0.5 dhcp");
        assert_eq!(waiting(&vm).text, "-");
        vm.index.running_with = [("ram", json!(128)), ("vga", Value::Null)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        assert_eq!(waiting(&vm).text, "new ram, vga");
        // An older agent tells neither.
        (vm.index.ram, vm.index.disk_mib) = (None, None);
        assert_eq!((ram(&vm), disk(&vm)), (Some(1280), Some(2048)));
    }
}
