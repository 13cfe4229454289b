//! `muster package`: sizes of machines under a name.

use std::path::PathBuf;

use clap::Subcommand;
use muster_shared::api::Object;
use muster_shared::api::package::Package;
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::confirm::meant;
use crate::output::{Item, Output, compact};
use crate::page::Page;
use crate::table::{Column, ListArgs};
use crate::vm_create::{pair, positive};
use crate::{CliError, document, pick, spec_file};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the packages.
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows a package.
    Get {
        /// Name, uuid or its beginning.
        package: String,
    },
    /// Creates a package.
    Create(Create),
    /// Changes a package; existing VMs keep their sizes.
    Update(Update),
    /// Deletes packages; existing VMs keep their sizes.
    Delete {
        /// Names, uuids or their beginnings.
        #[arg(required = true, value_name = "PACKAGE")]
        packages: Vec<String>,
        /// Skips the confirmation; without a terminal there is none.
        #[arg(long, short)]
        yes: bool,
        /// Succeeds even if a package does not exist.
        #[arg(long)]
        if_exists: bool,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster package create small --ram 1024 --disk 10 --vcpus 1
  muster package create fast --file fast.yaml --trait ssd=true")]
pub(crate) struct Create {
    /// Name: letters, digits, `_`, `.` and `-`.
    name: String,

    /// Uuid, e.g. the one it has elsewhere [default: a random one].
    #[arg(long)]
    uuid: Option<uuid::Uuid>,

    #[command(flatten)]
    members: Members,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster package update small --ram 2048
  muster package update small --unset cpu_cap --unset traits")]
pub(crate) struct Update {
    /// Name, uuid or its beginning.
    package: String,

    #[command(flatten)]
    members: Members,

    /// Removes a member, named as in the API; may be repeated.
    #[arg(long, value_name = "MEMBER")]
    unset: Vec<String>,
}

/// What can be said of a package.
#[derive(Debug, Default, clap::Args)]
struct Members {
    /// Memory, MiB.
    #[arg(long, value_name = "MIB", value_parser = positive())]
    ram: Option<u64>,

    /// Disk, GiB.
    #[arg(long, value_name = "GIB", value_parser = positive())]
    disk: Option<u64>,

    /// Virtual CPUs.
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    vcpus: Option<u64>,

    /// CPU limit, percent of one core.
    #[arg(long, value_name = "PERCENT", value_parser = positive())]
    cpu_cap: Option<u64>,

    /// Memory plus swap, MiB.
    #[arg(long, value_name = "MIB", value_parser = positive())]
    max_swap: Option<u64>,

    /// Threads.
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    max_lwps: Option<u64>,

    /// Disk I/O weight relative to other VMs.
    #[arg(long, value_name = "WEIGHT")]
    io_priority: Option<u64>,

    /// How its VMs are spread over servers: `min-ram`, `max-ram`, `random` or `min-owner`.
    #[arg(long, value_name = "HOW")]
    spread: Option<String>,

    /// Trait that a server needs to host its VMs; may be repeated.
    #[arg(long = "trait", value_name = "KEY=VALUE", value_parser = pair)]
    traits: Vec<(String, String)>,

    /// Version, for information only.
    #[arg(long)]
    version: Option<String>,

    /// What it is for.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,

    /// YAML or JSON file with members named as in the API, `-` for stdin; flags override it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Members {
    /// As the API takes them, over those of the file. Traits are sent whole, so those that there
    /// are stay beside the named ones.
    fn read(&self, traits: Option<&Object>) -> Result<Map<String, Value>, CliError> {
        let mut members = match &self.file {
            Some(path) => document::object(path, &spec_file::text(path)?)?,
            None => Map::new(),
        };
        let numbers = [
            ("max_physical_memory", self.ram),
            ("quota", self.disk.map(|gib| gib.saturating_mul(1024))),
            ("vcpus", self.vcpus),
            ("cpu_cap", self.cpu_cap),
            ("max_swap", self.max_swap),
            ("max_lwps", self.max_lwps),
            ("zfs_io_priority", self.io_priority),
        ];
        let numbers = numbers.into_iter().map(|(name, number)| (name, number.map(Value::from)));
        let texts = [
            ("alloc_server_spread", &self.spread),
            ("version", &self.version),
            ("description", &self.description),
        ];
        let texts = texts.into_iter().map(|(name, text)| (name, text.clone().map(Value::from)));
        for (name, value) in numbers.chain(texts) {
            members.extend(value.map(|value| (name.to_owned(), value)));
        }
        if !self.traits.is_empty() {
            let of_file = members.get("traits").and_then(Value::as_object).cloned();
            let mut all = of_file.or_else(|| traits.cloned().map(Map::from)).unwrap_or_default();
            for (name, value) in &self.traits {
                let value = value.parse().map_or_else(|_| json!(value), Value::Bool);
                all.insert(name.clone(), value);
            }
            members.insert("traits".to_owned(), Value::Object(all));
        }
        Ok(members)
    }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { list } => {
            let fetch = async || client.get::<Vec<Answer<Package>>>("/packages", &[]).await;
            output.list(&list, fetch).await
        }
        Args::Get { package } => {
            let package = pick::package(client, &package).await?;
            if output.is_json() { output.object(package.json()) } else { page(&package).print() }
        }
        Args::Create(args) => {
            let mut members = args.members.read(None)?;
            members.insert("name".to_owned(), json!(args.name));
            members.extend(args.uuid.map(|uuid| ("uuid".to_owned(), json!(uuid))));
            let made: Answer<Package> = client.post("/packages", &Value::Object(members)).await?;
            let sentence = format!("package {} ({}) created", made.name, made.uuid);
            output.done(&sentence, made.json())
        }
        Args::Update(args) => update(client, output, args).await,
        Args::Delete { packages, yes, if_exists } => {
            delete(client, output, &packages, yes, if_exists).await
        }
    }
}

async fn update(client: &Client, output: &Output, args: Update) -> Result<(), CliError> {
    let package = pick::package(client, &args.package).await?;
    let mut members = args.members.read(package.traits.as_ref())?;
    members.extend(args.unset.into_iter().map(|name| (name, Value::Null)));
    if members.is_empty() {
        let text = "nothing to change; see `muster package update --help`";
        return Err(CliError::Usage(text.to_owned()));
    }
    let names: Vec<&str> = members.keys().map(String::as_str).collect();
    let sentence = format!("package {}: {} changed", package.name, names.join(", "));
    let path = format!("/packages/{}", package.uuid);
    let changed: Value = client.post(&path, &Value::Object(members)).await?;
    output.done(&sentence, &changed)
}

/// Nothing is deleted unless all are found, and the person says so.
async fn delete(
    client: &Client,
    output: &Output,
    names: &[String],
    yes: bool,
    if_exists: bool,
) -> Result<(), CliError> {
    let find = async |name: &str| pick::package(client, name).await;
    let packages = pick::each(names, if_exists, |package| package.uuid, find).await?;
    let uuids: Vec<_> = packages.iter().map(|package| package.uuid).collect();
    if uuids.is_empty() {
        return output.done("nothing to delete", &json!(uuids));
    }
    let shown =
        |package: &Answer<Package>| format!("{} ({})", package.name, Cell::id(&package.uuid).text);
    let shown = packages.iter().map(shown).collect::<Vec<_>>().join(", ");
    meant(&format!("Delete {shown}? Existing VMs keep their sizes."), yes)?;
    for uuid in &uuids {
        client.delete::<()>(&format!("/packages/{uuid}")).await?;
    }
    output.done(&format!("deleted {shown}"), &json!(uuids))
}

impl Item for Answer<Package> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |package: &Self| Cell::id(&package.uuid)),
        Column::new("NAME", |package: &Self| Cell::text(&package.name)).cut(),
        Column::new("RAM", |package: &Self| Cell::mib(Some(package.max_physical_memory))),
        Column::new("DISK", |package: &Self| Cell::mib(package.quota)),
        Column::new("VCPUS", |package: &Self| Cell::of(&package.vcpus)),
        Column::new("CPU CAP", |package: &Self| Cell::of(&package.cpu_cap)).spare(2),
        Column::new("DESCRIPTION", |package: &Self| Cell::maybe(package.description.as_ref()))
            .cut()
            .spare(1),
        Column::new("VERSION", |package: &Self| Cell::maybe(package.version.as_ref())).wide(),
        Column::new("SWAP", |package: &Self| Cell::mib(package.max_swap)).wide(),
        Column::new("SPREAD", |package: &Self| Cell::maybe(package.alloc_server_spread.as_ref()))
            .wide(),
        Column::new("TRAITS", |package: &Self| Cell::maybe(package.traits.as_ref().map(pairs)))
            .cut()
            .wide(),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}

fn pairs(traits: &Object) -> String {
    let pairs = traits.iter().map(|(name, value)| format!("{name}={}", compact(value)));
    pairs.collect::<Vec<_>>().join(" ")
}

fn page(package: &Package) -> Page {
    let count = |count: Option<u64>| count.map(|count| count.to_string());
    let mut page = Page::new(format!("package {}", package.name));
    page.group("Package")
        .line("Id", package.uuid.to_string())
        .maybe("Version", package.version.as_ref())
        .maybe("Description", package.description.as_ref());
    page.group("Each VM gets")
        .line("RAM", Cell::mib(Some(package.max_physical_memory)).text)
        .maybe("Disk", package.quota.map(|mib| Cell::mib(Some(mib)).text))
        .maybe("vCPUs", count(package.vcpus))
        .maybe("CPU", package.cpu_cap.map(|cap| format!("limited to {cap} % of one core in total")))
        .maybe("Memory and swap", package.max_swap.map(|mib| Cell::mib(Some(mib)).text))
        .maybe("Threads", count(package.max_lwps))
        .maybe("Disk priority", count(package.zfs_io_priority));
    page.group("Where it goes")
        .maybe("Spread", package.alloc_server_spread.as_ref())
        .maybe("Traits", package.traits.as_ref().map(pairs));
    for (name, value) in [
        ("overprovision_cpu", json!(package.overprovision_cpu)),
        ("overprovision_memory", json!(package.overprovision_memory)),
        ("overprovision_storage", json!(package.overprovision_storage)),
        ("overprovision_network", json!(package.overprovision_network)),
        ("overprovision_io", json!(package.overprovision_io)),
        ("min_platform", json!(package.min_platform)),
    ] {
        page.maybe(name, Some(compact(&value)).filter(|_| !value.is_null()));
    }
    page.next(format!("muster vm create --package {} --image IMAGE", package.name));
    page.next(format!("muster capacity --package {}", package.name));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Package {
        let package = json!({
            "name": "small", "uuid": uuid::Uuid::nil(), "max_physical_memory": 512, "quota": 10240,
            "cpu_cap": 150, "traits": { "ssd": true }, "overprovision_cpu": 4,
        });
        serde_json::from_value(package).unwrap()
    }

    #[test]
    fn a_package_is_told_with_what_a_machine_gets() {
        let text = page(&package()).text(None);
        assert!(text.starts_with("package small\n"), "{text}");
        for part in [
            "512 MiB",
            "10 GiB",
            "limited to 150 %",
            "ssd=true",
            "overprovision_cpu  4",
            "vm create --package small",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("vCPUs") && !text.contains("min_platform"), "{text}");
    }

    #[test]
    fn flags_become_members_in_the_units_of_the_api() {
        let members = Members {
            ram: Some(512),
            disk: Some(2),
            io_priority: Some(0),
            spread: Some("random".to_owned()),
            traits: vec![
                ("ssd".to_owned(), "true".to_owned()),
                ("zone".to_owned(), "a".to_owned()),
            ],
            ..Members::default()
        };
        let expected = json!({
            "max_physical_memory": 512, "quota": 2048, "zfs_io_priority": 0,
            "alloc_server_spread": "random", "traits": { "ssd": true, "zone": "a" },
        });
        assert_eq!(Value::Object(members.read(None).unwrap()), expected);
        let there = Object::from_iter([("gpu", true), ("ssd", false)]);
        let traits = members.read(Some(&there)).unwrap()["traits"].clone();
        assert_eq!(traits, json!({ "gpu": true, "ssd": true, "zone": "a" }));
    }

    #[test]
    fn flags_win_over_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "max_physical_memory: 256\noverprovision_cpu: 2\n").unwrap();
        let path = Some(file.path().to_owned());
        let members = Members { ram: Some(512), file: path, ..Members::default() };
        let expected = json!({ "max_physical_memory": 512, "overprovision_cpu": 2 });
        assert_eq!(Value::Object(members.read(None).unwrap()), expected);
        std::fs::write(file.path(), "- 1\n").unwrap();
        assert_eq!(members.read(None).unwrap_err().exit_code(), 2);
    }
}
