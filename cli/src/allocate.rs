//! `muster allocate`: where a machine would go, by the coordinator or (`--offline`) by itself.

use muster_shared::api::allocation::Allocated;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::vm::{DEFAULT_BRAND, DEFAULT_RAM_MIB, NOBODY};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, print};
use crate::spec_file::DEFAULT_DISK_GIB;
use crate::{CliError, allocate_offline, pick, refusal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Decides exactly as `muster vm create` does, but reserves nothing. Examples:
  muster allocate --ram 4096 --disk 40 --vcpus 2 --network admin
  muster allocate --package small
  muster allocate --offline fleet.json
      One document {servers, tickets, config?, request}; prints one line of JSON.
  muster allocate --offline --jsonl --time < cases.jsonl
      Lines of the types config, dc and case; prints one line of JSON per case.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) offline: allocate_offline::OfflineArgs,

    /// Package with the sizes to use; flags override them: name, uuid or its beginning.
    #[arg(long)]
    package: Option<String>,

    /// Memory, MiB [default: the package's, else 256].
    #[arg(long, value_name = "MIB")]
    ram: Option<u64>,

    /// Disk, GiB [default: the package's, else 1].
    #[arg(long, value_name = "GIB")]
    disk: Option<u64>,

    /// Virtual CPUs [default: the package's, else 1].
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u64>,

    /// Network to connect to, by its NIC tag; may be repeated.
    #[arg(long = "network", value_name = "TAG")]
    networks: Vec<String>,

    /// Owner, for spreading an owner's VMs.
    #[arg(long, value_name = "UUID")]
    owner: Option<uuid::Uuid>,

    /// Considers only this server; may be repeated.
    #[arg(long = "server")]
    servers: Vec<String>,

    /// Shows every step, including those that removed no server.
    #[arg(long, short)]
    verbose: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let owner = args.owner.map_or_else(|| NOBODY.to_owned(), |owner| owner.to_string());
    // The API wants a uuid of the machine that would be made.
    let machine = SeededEntropy::from_os().uuid();
    let default = |size: u64| args.package.is_none().then_some(size);
    let mut body = json!({
        "vm": {
            "vm_uuid": machine.to_string(), "owner_uuid": owner,
            "ram": args.ram.or(default(DEFAULT_RAM_MIB)),
            "quota": args.disk.or(default(DEFAULT_DISK_GIB)),
            "vcpus": args.vcpus.or(default(1)), "brand": DEFAULT_BRAND,
        },
        "image": {},
        "nic_tags": args.networks,
        // Under the policy by which `muster vm create` places.
        "create": true,
    });
    if let Some(name) = &args.package {
        body["package"] = json!(pick::package(client, name).await?.name);
    }
    if !args.servers.is_empty() {
        let mut uuids = Vec::new();
        for name in &args.servers {
            uuids.push(pick::server(client, name).await?.record.uuid);
        }
        body["servers"] = json!(uuids);
    }
    ask(client, output, &body, args.verbose).await
}

/// Asks where it would go, and shows the steps that removed servers, or all.
pub(crate) async fn ask(
    client: &Client,
    output: &Output,
    body: &Value,
    verbose: bool,
) -> Result<(), CliError> {
    let answered = client.post::<Answer<Allocated>>("/allocate?reserve=false", body).await;
    let names = pick::hostnames(client).await?;
    if let Err(CliError::Refused { body, .. }) = &answered {
        if output.is_json() {
            output.object(body)?;
        } else {
            for line in refusal::lines(body, &names, verbose) {
                print(&line)?;
            }
        }
    }
    let answer = answered?;
    if output.is_json() {
        return output.object(answer.json());
    }
    for line in refusal::steps(answer.steps.as_deref(), &names, verbose) {
        print(&line)?;
    }
    let server = &answer.server.record;
    print(&format!("chosen: {} ({})", server.hostname, server.uuid))
}
