//! `muster capacity`: how many more machines of a size fit, and what is stranded then.

use std::path::Path;

use muster_shared::api::allocation::{Plan, PlannedFleet, PlannedServer, Sizes};
use muster_shared::vm::DEFAULT_BRAND;
use serde_json::{Number, Value, json};

use crate::answer::Answer;
use crate::cell::{self, Cell};
use crate::client::Client;
use crate::output::{Output, member, print};
use crate::table::Column;
use crate::{CliError, document, pick, plain, spec_file};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
LEFT is what can still be allocated, STRANDED what remains of it once no more VMs fit: memory, disk
and percent of a core. Each VM takes its own memory plus the hypervisor's (1 GiB for brand kvm), and
10 GiB of disk must stay free when it is placed. Example:
  muster capacity --ram 4096 --disk 40 --vcpus 2
  muster capacity --package small")]
pub(crate) struct Args {
    /// Memory, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    ram: u64,

    /// Disk, GiB.
    #[arg(long, value_name = "GIB", default_value_t = 10)]
    disk: u64,

    /// Virtual CPUs.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    vcpus: u64,

    /// Package instead of these sizes: name, uuid or its beginning; or a file that describes one
    /// (with a slash, or ending in `.json` or `.yaml`).
    #[arg(long, conflicts_with_all = ["ram", "disk", "vcpus"])]
    package: Option<String>,

    /// Considers only this server; may be repeated.
    #[arg(long = "server")]
    servers: Vec<String>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    // By the policy under which `muster vm create` places; a file's package has ratios of its own.
    let mut body = match args.package.as_deref().map(|package| (package, file(package))) {
        Some((_, Some(path))) => asked(read(path)?, false),
        Some((name, None)) => {
            let package = pick::package(client, name).await?;
            json!({
                "vm": { "brand": DEFAULT_BRAND }, "package": package.name, "nic_tags": [],
                "create": true,
            })
        }
        None => {
            let package = json!({
                "max_physical_memory": args.ram, "quota": args.disk.saturating_mul(1024),
                "cpu_cap": args.vcpus.saturating_mul(100), "vcpus": args.vcpus,
            });
            asked(package, true)
        }
    };
    if !args.servers.is_empty() {
        let mut uuids = Vec::new();
        for name in &args.servers {
            uuids.push(pick::server(client, name).await?.record.uuid);
        }
        body["servers"] = json!(uuids);
    }
    let plan: Answer<Plan> = client.post("/capacity/plan", &body).await?;
    if output.is_json() {
        return output.object(plan.json());
    }
    let columns: &[Column<PlannedServer>] = &[
        Column::new("ID", |server: &PlannedServer| Cell::id(&server.server_uuid)),
        Column::new("NAME", |server: &PlannedServer| Cell::maybe(server.hostname.as_ref())).cut(),
        Column::new("FITS", member!(PlannedServer: fits)),
        Column::new("LIMITED BY", |server: &PlannedServer| {
            Cell::maybe(server.limited_by.as_deref().map(plain::limit))
        })
        .cut(),
        Column::new("LEFT", |server: &PlannedServer| Cell::text(sizes(&server.unreserved))),
        Column::new("STRANDED", |server: &PlannedServer| Cell::text(sizes(&server.stranded)))
            .spare(1),
    ];
    output.table(&plan.servers, columns)?;
    let PlannedFleet { fits, servers, stranded, .. } = &plan.fleet;
    let stranded = sizes(stranded);
    let of = if *servers == 1 { "server" } else { "servers" };
    print(&format!("{fits} more fit on {servers} {of}; stranded: {stranded}"))
}

/// Whether `--package` is a file.
fn file(package: &str) -> Option<&Path> {
    let path = Path::new(package);
    let of_file = |ending: &std::ffi::OsStr| ["json", "yaml", "yml"].iter().any(|it| ending == *it);
    (package.contains('/') || path.extension().is_some_and(of_file)).then_some(path)
}

/// What is asked about a package that is not kept.
fn asked(package: Value, create: bool) -> Value {
    let vm = vm(&package);
    json!({ "vm": vm, "package": with_ratios(package), "nic_tags": [], "create": create })
}

/// Without overprovisioning ratios the reference's filters would let everything pass.
fn with_ratios(mut package: Value) -> Value {
    for (name, ratio) in
        [("overprovision_cpu", 4), ("overprovision_memory", 1), ("overprovision_storage", 1)]
    {
        if package.get(name).is_none() {
            package[name] = json!(ratio);
        }
    }
    package
}

/// The VM that the package makes.
fn vm(package: &Value) -> Value {
    let brand = package.get("brand").cloned().unwrap_or_else(|| json!(DEFAULT_BRAND));
    let quota = package["quota"].as_u64().map(|mib| mib / 1024);
    json!({
        "ram": package["max_physical_memory"], "cpu_cap": package["cpu_cap"], "quota": quota,
        "vcpus": package["vcpus"], "brand": brand,
    })
}

fn sizes(left: &Sizes) -> String {
    let mib = |mib: &Number| cell::size(mib.as_f64().unwrap_or_default() * 1024.0 * 1024.0);
    format!("{} / {} / {} %", mib(&left.ram), mib(&left.disk), left.cpu)
}

fn read(path: &Path) -> Result<Value, CliError> {
    Ok(Value::Object(document::object(path, &spec_file::text(path)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_told_from_a_name() {
        for path in ["./small", "small.json", "dir/small", "a.yaml", "a.yml"] {
            assert_eq!(file(path), Some(Path::new(path)));
        }
        for name in ["small", "small-1.2", "json", "929bdb5b-4232-48b6-a4ec-d94cbc265ab2"] {
            assert_eq!(file(name), None, "{name}");
        }
    }

    #[test]
    fn a_package_becomes_a_machine() {
        let package = with_ratios(json!({ "max_physical_memory": 512, "quota": 2048 }));
        assert_eq!(package["overprovision_memory"], 1);
        let vm = vm(&package);
        assert_eq!(
            (&vm["ram"], &vm["quota"], &vm["brand"]),
            (&json!(512), &json!(2), &json!("kvm"))
        );
    }
}
