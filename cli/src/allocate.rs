//! `muster allocate`: where a machine would go, by the coordinator or (`--offline`) by itself.

use muster_shared::api::allocation::{Allocated, AllocationStep, LeastChange, Remaining};
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::vm::NOBODY;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, compact};
use crate::{CliError, allocate_offline, pick};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is reserved. Examples:
  muster allocate --ram 4096 --disk 40 --vcpus 2
  muster allocate --offline fleet.json
      One document {servers, tickets, config?, request}; prints one line of JSON.
  muster allocate --offline --jsonl --time < cases.jsonl
      Lines of the types config, dc and case; prints one line of JSON per case.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) offline: allocate_offline::OfflineArgs,

    /// Memory, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    ram: u64,

    /// Disk, GiB.
    #[arg(long, value_name = "GIB", default_value_t = 1)]
    disk: u64,

    /// Virtual CPUs.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    vcpus: u64,

    /// Image, for what it demands of a server.
    #[arg(long)]
    image: Option<String>,

    /// Owner, for spreading an owner's machines.
    #[arg(long, value_name = "UUID")]
    owner: Option<uuid::Uuid>,

    /// Consider only this server; may be repeated.
    #[arg(long = "server")]
    servers: Vec<String>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let owner = args.owner.map_or_else(|| NOBODY.to_owned(), |owner| owner.to_string());
    // The API wants a uuid of the machine that would be made.
    let machine = SeededEntropy::from_os().uuid();
    let cpu_cap = args.vcpus.saturating_mul(100);
    let mut body = json!({
        "vm": { "vm_uuid": machine.to_string(), "owner_uuid": owner, "ram": args.ram, "quota": args.disk, "cpu_cap": cpu_cap,
            "vcpus": args.vcpus, "brand": "kvm" },
        "package": { "max_physical_memory": args.ram, "quota": args.disk * 1024,
            "cpu_cap": cpu_cap, "vcpus": args.vcpus },
        "image": {},
        "nic_tags": [],
    });
    if let Some(name) = &args.image {
        body["image"] = pick::image(client, name).await?.json().clone();
    }
    if !args.servers.is_empty() {
        let mut uuids = Vec::new();
        for name in &args.servers {
            uuids.push(pick::server(client, name).await?.record.uuid);
        }
        body["servers"] = json!(uuids);
    }
    let answered = client.post::<Answer<Allocated>>("/allocate?reserve=false", &body).await;
    if let Err(CliError::Refused { body, .. }) = &answered {
        print_refusal(output, body)?;
    }
    let answer = answered?;
    if output.is_json() {
        return output.object(answer.json());
    }
    print_steps(answer.steps.as_deref())?;
    let server = &answer.server.record;
    crate::output::print(&format!("chosen: {} ({})", server.uuid, server.hostname))
}

/// What is read of a refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    steps: Option<Vec<AllocationStep>>,
    least_changes: Vec<LeastChange>,
}

/// Why no server fits, and what would help.
fn print_refusal(output: &Output, refusal: &Value) -> Result<(), CliError> {
    if output.is_json() {
        return output.object(refusal);
    }
    // One without these members is told as any other.
    let refusal = Refusal::deserialize(refusal).unwrap_or_default();
    print_steps(refusal.steps.as_deref())?;
    for (place, change) in refusal.least_changes.iter().enumerate() {
        if place == 0 {
            crate::output::print("it would fit, with one of:")?;
        }
        crate::output::print(&format!("  {}", change.text))?;
    }
    Ok(())
}

fn print_steps(steps: Option<&[AllocationStep]>) -> Result<(), CliError> {
    for step in steps.into_iter().flatten() {
        crate::output::print(&describe(step))?;
    }
    Ok(())
}

/// A step: how many servers remain, and why others do not.
fn describe(step: &AllocationStep) -> String {
    let remaining = step.remaining.as_ref().map_or(0, Remaining::count);
    let mut text = format!("{remaining:>5} left  {}", step.step);
    for (server, reason) in step.reasons.iter().flatten() {
        text.push_str(&format!("\n            {server}: {}", compact(reason)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_name_who_dropped_out_and_why() {
        let step = json!({ "step": "Servers with enough RAM", "remaining": ["a"],
            "reasons": { "b": "256 MiB requested, 0 MiB unreserved" } });
        let text = "    1 left  Servers with enough RAM\n            \
            b: 256 MiB requested, 0 MiB unreserved";
        assert_eq!(describe(&serde_json::from_value(step).unwrap()), text);
    }
}
