//! `muster image create`: an image from the disk of a machine that is stopped, or prepares itself.

use std::path::PathBuf;

use muster_shared::api::task::TaskStarted;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use serde_json::{Map, Value, json};

use crate::CliError;
use crate::client::Client;
use crate::output::Output;
use crate::spec_file;
use crate::vm::Target;
use crate::wait::WaitArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The image is of the disk that the VM boots from. It holds all that is on it: host keys, logs and logins
among them; take out of the guest what others must not have before it is stopped, or have a script do it,
after which the VM is as it was. Examples:
  muster vm stop build1
  muster image create build1 --name app --version 7
  muster image create web1 --name app --version 8 --prepare clean.sh --incremental")]
pub(crate) struct Create {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,

    /// Name of the image.
    #[arg(long)]
    name: String,

    /// Version of what is in it.
    #[arg(long)]
    version: String,

    /// For people.
    #[arg(long)]
    description: Option<String>,

    /// Operating system [default: that of the image that the VM was made from, or linux].
    #[arg(long)]
    os: Option<String>,

    /// How its file is compressed.
    #[arg(long, value_parser = ["none", "gzip", "bzip2", "xz", "zstd"], default_value = "zstd")]
    compression: String,

    /// Script that the guest runs before; it says how far it is by metadata, and shuts the guest down.
    #[arg(long, value_name = "FILE")]
    prepare: Option<PathBuf>,

    /// Only what differs from the image that the VM was made from; that stays needed.
    #[arg(long)]
    incremental: bool,

    /// Refuse an incremental image that would build on more others than this, one on another.
    #[arg(long, value_name = "N", requires = "incremental")]
    max_origin_depth: Option<u32>,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Create) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let uuid = SeededEntropy::from_os().uuid();
    let body = body(&args, &manifest(&args, uuid, target.owner.as_ref()))?;
    let started: TaskStarted = client.post(&target.path("/images"), &body).await?;
    let title = format!("image {}@{} ({uuid})", args.name, args.version);
    let object = json!({ "image_uuid": uuid, "vm_uuid": target.uuid, "id": started.id });
    args.wait.follow_and_say(client, output, &title, &started, &object).await
}

fn body(args: &Create, manifest: &Map<String, Value>) -> Result<Value, CliError> {
    let mut body = json!({ "compression": args.compression, "manifest": manifest });
    if let Some(path) = &args.prepare {
        body["prepare_image_script"] = json!(spec_file::text(path)?);
    }
    if args.incremental {
        body["incremental"] = json!(true);
    }
    if let Some(depth) = args.max_origin_depth {
        body["max_origin_depth"] = json!(depth);
    }
    Ok(body)
}

fn manifest(args: &Create, uuid: uuid::Uuid, owner: Option<&String>) -> Map<String, Value> {
    let given = [
        ("uuid", Some(json!(uuid))),
        ("name", Some(json!(args.name))),
        ("version", Some(json!(args.version))),
        ("owner", owner.map(|owner| json!(owner))),
        ("description", args.description.as_ref().map(|text| json!(text))),
        ("os", args.os.as_ref().map(|os| json!(os))),
    ];
    let said = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    said.collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Create,
    }

    #[test]
    fn only_what_was_said_is_in_the_manifest() {
        let line = ["create", "vm", "--name", "app", "--version", "7"];
        let args = Line::try_parse_from(line).unwrap().args;
        let made = manifest(&args, uuid::Uuid::nil(), None);
        let wanted = json!({ "uuid": uuid::Uuid::nil(), "name": "app", "version": "7" });
        assert_eq!(Value::Object(made), wanted);
        let said = body(&args, &Map::new()).unwrap();
        assert_eq!(said, json!({ "compression": "zstd", "manifest": {} }));
        let more = [&line[..], &["--incremental", "--max-origin-depth", "3"]].concat();
        let said = body(&Line::try_parse_from(more).unwrap().args, &Map::new()).unwrap();
        assert_eq!((&said["incremental"], &said["max_origin_depth"]), (&json!(true), &json!(3)));
        Line::try_parse_from([&line[..], &["--max-origin-depth", "3"]].concat()).unwrap_err();
        Line::try_parse_from([&line[..], &["--compression", "rar"]].concat()).unwrap_err();
    }
}
