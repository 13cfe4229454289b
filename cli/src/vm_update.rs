//! `muster vm update` and `muster vm reprovision`.

use std::path::PathBuf;

use muster_shared::vm::{Reboot, VmChange};
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::output::Output;
use crate::vm::Target;
use crate::vm_create::{object, pair, read_object, set_restart};
use crate::wait::WaitArgs;
use crate::{CliError, pick};

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

    /// JSON file with further members, `-` for stdin.
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

    /// Most CPU the machine gets, percent of one core; 0 for no limit.
    #[arg(long, value_name = "PERCENT")]
    cpu_cap: Option<u64>,

    /// Sets a tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
    tags: Vec<(String, String)>,

    /// Removes a tag; may be repeated.
    #[arg(long = "remove-tag", value_name = "KEY")]
    remove_tags: Vec<String>,

    /// Sets metadata the guest can read; may be repeated.
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Removes metadata; may be repeated.
    #[arg(long = "remove-metadata", value_name = "KEY")]
    remove_metadata: Vec<String>,

    /// What becomes of the machine when it ends or panics without being told to: `never`,
    /// `on-failure`, `on-failure:N` (N starts in a row at most) or `always`.
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,

    /// Restarts the guest if that is what lets the change take effect.
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
    let body = payload(&args, base)?;
    if body.is_empty() {
        return Err(CliError::Usage("nothing to change; see `muster vm update --help`".to_owned()));
    }
    let answer = client.post(&target.path("/update"), &Value::Object(body)).await?;
    target.follow(client, output, args.wait, &format!("update {}", args.vm), &answer).await
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
    target.follow(client, output, wait, &format!("reprovision {vm}"), &answer).await
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
        reboot: args.reboot.then_some(Reboot::Always),
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
}
