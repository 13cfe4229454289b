//! `muster vm update` and `muster vm reprovision`.

use std::path::PathBuf;

use muster_shared::api::vm::FleetVm;
use muster_shared::ids::VmUuid;
use muster_shared::vm::{Reboot, VmChange};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::Output;
use crate::vm::Target;
use crate::vm_create::{object, pair, read_object, set_restart};
use crate::wait::WaitArgs;
use crate::{CliError, known, pick};

const AFTER_HELP: &str = "\
Examples:
  muster vm update web1 --alias web2 --tag role=db --remove-tag old
  muster vm update web1 --ram 2048 --vcpus 2      takes effect when the guest starts next
  muster vm update web1 --restart on-failure:3
  muster vm update web1 --file change.json

The file holds members of the API's update: properties, set_tags, add_nics and so on.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Update {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,

    /// JSON file with more members, `-` for stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// New name.
    #[arg(long)]
    alias: Option<String>,

    /// Memory, MiB.
    #[arg(long, value_name = "MIB")]
    ram: Option<u64>,

    /// Virtual CPUs.
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u64>,

    /// CPU limit, percent of one core; 0 for no limit; placement then counts 100 per virtual CPU.
    #[arg(long, value_name = "PERCENT")]
    cpu_cap: Option<u64>,

    /// Sets a tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
    tags: Vec<(String, String)>,

    /// Removes a tag; may be repeated.
    #[arg(long = "remove-tag", value_name = "KEY")]
    remove_tags: Vec<String>,

    /// Sets metadata that the guest can read; may be repeated.
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Removes metadata; may be repeated.
    #[arg(long = "remove-metadata", value_name = "KEY")]
    remove_metadata: Vec<String>,

    /// What to do when the guest ends or panics by itself: `never`, `on-failure`, `on-failure:N` (N
    /// starts in a row at most) or `always`.
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,

    /// Restarts the guest for what takes effect when it starts, and for interfaces that come or go.
    #[arg(long)]
    reboot: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Reprovision {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,

    /// Image of the new boot disk: name, `NAME@VERSION` or uuid.
    #[arg(long)]
    image: String,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Update) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let base = args.file.as_deref().map(read_object).transpose()?.unwrap_or_default();
    if let Some(path) = &args.file {
        known::check(path, &base, known::CHANGE)?;
    }
    let body = payload(&args, base)?;
    if body.keys().all(|name| name == "reboot") {
        return Err(CliError::Usage("nothing to change; see `muster vm update --help`".to_owned()));
    }
    if let Some(alias) = body.get("alias").and_then(Value::as_str) {
        refuse_second(client, &target, alias).await?;
    }
    let answer = client.post(&target.path("/update"), &Value::Object(body)).await?;
    let title = format!("update {}", target.shown());
    target.follow(client, output, args.wait, &title, &answer).await
}

pub(crate) async fn reprovision(
    client: &Client,
    output: &Output,
    Reprovision { vm, image, wait }: Reprovision,
) -> Result<(), CliError> {
    let target = Target::find(client, &vm).await?;
    let image = pick::image(client, &image).await?;
    let body = json!({ "image_uuid": image.uuid });
    let answer = client.post(&target.path("/reprovision"), &body).await?;
    let title = format!("reprovision {}", target.shown());
    target.follow(client, output, wait, &title, &answer).await
}

/// Refuses a name that another machine of this owner has: nobody could name either of them.
pub(crate) async fn refuse_second(
    client: &Client,
    target: &Target,
    alias: &str,
) -> Result<(), CliError> {
    let query = [("alias", alias.to_owned())];
    let there = client.get_all("/vms", &query, pick::vm_uuid).await?;
    match namesake(&there, target.uuid, target.owner.as_deref()) {
        None => Ok(()),
        Some(other) => Err(CliError::Usage(format!(
            "{} of the same owner is already named {alias:?}",
            Target::of(other).shown()
        ))),
    }
}

fn namesake<'a>(
    there: &'a [Answer<FleetVm>],
    uuid: VmUuid,
    owner: Option<&str>,
) -> Option<&'a FleetVm> {
    let mut others = there.iter().filter(|other| other.vm.uuid != uuid);
    others.find(|other| other.vm.owner_uuid.as_deref() == owner).map(|other| &**other)
}

/// Flags win over the file.
fn payload(args: &Update, file: Map<String, Value>) -> Result<Map<String, Value>, CliError> {
    let change = VmChange {
        alias: args.alias.clone(),
        ram: args.ram,
        vcpus: args.vcpus,
        cpu_cap: args.cpu_cap,
        set_tags: object(&args.tags),
        remove_tags: args.remove_tags.clone(),
        set_customer_metadata: object(&args.metadata),
        remove_customer_metadata: args.remove_metadata.clone(),
        // A guest is not restarted unless somebody said so, here or in the file.
        reboot: match (args.reboot, file.contains_key("reboot")) {
            (true, _) => Some(Reboot::Always),
            (false, true) => None,
            (false, false) => Some(Reboot::Never),
        },
    };
    let mut body = change.over(file);
    if let Some(policy) = &args.restart {
        set_restart(&mut body, "set_internal_metadata", policy)?;
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: Update,
    }

    #[test]
    fn flags_become_members_and_win_over_the_file() {
        let words = [
            "x",
            "web1",
            "--alias",
            "a",
            "--tag",
            "k=v",
            "--remove-tag",
            "o",
            "--reboot",
            "--restart",
            "always",
        ];
        let args = Alone::parse_from(words).args;
        let base =
            Map::from_iter([("alias".to_owned(), json!("file")), ("quota".to_owned(), json!(5))]);
        let expected = json!({
            "alias": "a", "quota": 5, "set_tags": { "k": "v" }, "remove_tags": ["o"],
            "reboot": "always", "set_internal_metadata": { "muster:restart_policy": "always" },
        });
        assert_eq!(Value::Object(payload(&args, base).unwrap()), expected);
    }

    #[test]
    fn only_another_machine_of_the_owner_has_the_name() {
        let vm = |n: u128, owner: &str| {
            let vm = json!({
                "uuid": uuid::Uuid::from_u128(n), "owner_uuid": owner, "alias": "web1",
                "server_uuid": uuid::Uuid::nil(), "server_status": "running",
            });
            serde_json::from_value::<Answer<FleetVm>>(vm).unwrap()
        };
        let uuid = |n: u128| VmUuid(uuid::Uuid::from_u128(n));
        let there = [vm(1, "a"), vm(2, "b")];
        assert!(namesake(&there, uuid(1), Some("a")).is_none());
        assert_eq!(namesake(&there, uuid(3), Some("b")).unwrap().vm.uuid, uuid(2));
        assert!(namesake(&there, uuid(3), Some("c")).is_none());
    }

    #[test]
    fn no_guest_restarts_unless_somebody_said_so() {
        let reboot = |words: &[&str], file: Value| {
            let args = Alone::parse_from([&["x", "web1"], words].concat()).args;
            let Value::Object(file) = file else { panic!("an object") };
            payload(&args, file).unwrap().remove("reboot")
        };
        let nics = || json!({ "add_nics": [{ "nic_tag": "admin" }] });
        assert_eq!(reboot(&[], nics()), Some(json!("never")));
        assert_eq!(reboot(&["--reboot"], nics()), Some(json!("always")));
        assert_eq!(reboot(&[], json!({ "reboot": "if_needed" })), Some(json!("if_needed")));
    }
}
