//! `muster vm create`.

use std::path::{Path, PathBuf};

use muster_shared::api::vm::VmPlaced;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::ids::VmUuid;
use muster_shared::units::format_mib;
use muster_shared::vm::{Firmware, Publish, SpecDisk, SpecFile, SpecNetwork};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::spec_file::{self, Named};
use crate::wait::WaitArgs;
use crate::{CliError, allocate, pick, refusal};

const AFTER_HELP: &str = "\
Examples:
  muster vm create --image muster-guest --alias web1
  muster vm create --image base@2.1 --ram 2048 --vcpus 2 --disk 20 \\
      --tag role=db --ssh-key ~/.ssh/id_ed25519.pub --user-script setup.sh
  muster vm create --cdrom debian-installer --disk 20 --uefi --alias db1
  muster vm create --image base --package small --ram 4096
  muster vm create --image base --restart on-failure:3
  muster vm create --image base --publish 2222:22 --publish 0.0.0.0:8080:80
  muster vm create --file vm.yaml --name web2

Flags override the file. Its fields are described in vm-spec.md; `muster vm schema` prints its JSON
schema.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Image to start from: name, `NAME@VERSION` or uuid.
    #[arg(long, required_unless_present_any = ["file", "cdrom"])]
    image: Option<String>,

    /// CD to boot from first, e.g. an installer: an image, named as with --image. Without --image
    /// the VM gets an empty disk to install to.
    #[arg(long, value_name = "IMAGE")]
    cdrom: Option<String>,

    /// Boots with UEFI instead of BIOS; the node needs the package ovmf.
    #[arg(long)]
    uefi: bool,

    /// YAML or JSON spec file, `-` for stdin.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Name, shown in lists and given to the guest as its hostname.
    #[arg(long, visible_alias = "name")]
    alias: Option<String>,

    /// Package with the sizes to use; flags override them: name, uuid or its beginning.
    #[arg(long)]
    package: Option<String>,

    /// Memory, MiB [default: the package's, else 256].
    #[arg(long, value_name = "MIB", value_parser = positive())]
    ram: Option<u64>,

    /// Disk, GiB; the image's size if that is larger [default: the package's, else 1].
    #[arg(long, value_name = "GIB", value_parser = positive())]
    disk: Option<u64>,

    /// Virtual CPUs [default: the package's, else 1].
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    vcpus: Option<u64>,

    /// CPU limit, percent of one core [default: the package's, else 100 for each virtual CPU].
    #[arg(long, value_name = "PERCENT", value_parser = positive())]
    cpu_cap: Option<u64>,

    /// What to do when the guest ends or panics by itself: `never`, `on-failure`, `on-failure:N` (N
    /// starts in a row at most) or `always` [default: never].
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
    tags: Vec<(String, String)>,

    /// Metadata that the guest can read; may be repeated.
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Public key that may log in as the image's first user (root, debian, ubuntu, …); may be
    /// repeated.
    #[arg(long = "ssh-key", value_name = "FILE")]
    ssh_keys: Vec<PathBuf>,

    /// Script that the guest runs at boot.
    #[arg(long, value_name = "FILE")]
    user_script: Option<PathBuf>,

    /// Network to connect to, by its NIC tag; may be repeated.
    #[arg(long = "network", value_name = "TAG")]
    networks: Vec<String>,

    /// Publishes a guest port on the node: `[ADDRESS:]PORT:GUEST_PORT[/udp]`; without an address,
    /// on the node's loopback only. May be repeated.
    #[arg(long = "publish", value_name = "PORT")]
    publish: Vec<Publish>,

    /// Owner of the VM.
    #[arg(long, value_name = "UUID")]
    owner: Option<uuid::Uuid>,

    /// Uuid of the new VM [default: a random one].
    #[arg(long)]
    uuid: Option<uuid::Uuid>,

    /// Type of VM [default: kvm].
    #[arg(long)]
    brand: Option<String>,

    /// Only shows where the VM would be placed.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let spec = args.file.as_deref().map(spec_file::read).transpose()?.unwrap_or_default();
    let spec = with_flags(spec, &args)?;
    let disk_image = spec.disks.first().and_then(|disk| disk.image.as_ref());
    if spec.image.is_none() && spec.cdrom.is_none() && disk_image.is_none() {
        let text = "no image given: use --image, or `image` in the file";
        return Err(CliError::Usage(text.to_owned()));
    }
    let mut vm = spec_file::payload(&spec, &Named::find(client, &spec).await?);
    vm.uuid = args.uuid.map(VmUuid);
    let body = Value::Object(vm.into_members());
    if args.dry_run {
        return dry_run(client, output, body).await;
    }
    let answered: Result<Answer<VmPlaced>, CliError> = client.post("/vms", &body).await;
    if let Err(CliError::Refused { code, body, .. }) = &answered
        && code == "NoAllocatableServersError"
    {
        say_why(client, output, body).await?;
    }
    let answer = answered?;
    let VmPlaced { vm_uuid: uuid, id: task, server_uuid: server } = &*answer;
    let name = body["alias"].as_str().map_or_else(|| uuid.to_string(), str::to_owned);
    let title = format!("create {name}");
    let sentence = match args.wait.follow(client, &title, task).await? {
        None => format!("{title}: VM {uuid}, task {task}"),
        Some(_) => {
            let names = pick::hostnames(client).await?;
            let server = server.to_string();
            let server = names.get(&server).unwrap_or(&server);
            format!("{title}: VM {uuid} runs on {server}")
        }
    };
    output.done(&sentence, answer.json())
}

/// Where it would go, by the policy of a create.
async fn dry_run(client: &Client, output: &Output, mut vm: Value) -> Result<(), CliError> {
    let networks = vm["networks"].as_array().into_iter().flatten();
    let tag = |network: &Value| network.get("nic_tag").unwrap_or(network).clone();
    let tags: Vec<Value> = networks.map(tag).collect();
    if vm["uuid"].is_null() {
        vm["uuid"] = json!(SeededEntropy::from_os().uuid());
    }
    vm["vm_uuid"] = vm["uuid"].clone();
    let package = vm.as_object_mut().and_then(|vm| vm.shift_remove("package"));
    let mut body = json!({ "vm": vm, "image": {}, "nic_tags": tags, "create": true });
    if let Some(package) = package {
        body["package"] = package;
    }
    allocate::ask(client, output, &body, false).await
}

/// Why no server takes it.
async fn say_why(client: &Client, output: &Output, body: &Value) -> Result<(), CliError> {
    if output.is_json() {
        return output.object(body);
    }
    let names = pick::hostnames(client).await?;
    for line in refusal::lines(body, &names, false) {
        warn(&line);
    }
    Ok(())
}

/// What the flags say, over what the file does: of lists theirs, of tags and metadata each name.
fn with_flags(file: SpecFile, args: &Args) -> Result<SpecFile, CliError> {
    let mut spec = SpecFile {
        name: args.alias.clone().or(file.name),
        image: args.image.clone().or(file.image),
        cdrom: args.cdrom.clone().or(file.cdrom),
        package: args.package.clone().or(file.package),
        ram: args.ram.map(format_mib).or(file.ram),
        vcpus: args.vcpus.or(file.vcpus),
        cpu_cap: args.cpu_cap.or(file.cpu_cap),
        firmware: args.uefi.then_some(Firmware::Uefi).or(file.firmware),
        restart: args.restart.clone().or(file.restart),
        owner: args.owner.map(|owner| owner.to_string()).or(file.owner),
        brand: args.brand.clone().or(file.brand),
        ..file
    };
    if let Some(size) = args.disk.map(spec_file::gib) {
        match spec.disks.first_mut() {
            Some(first) => first.size = Some(size),
            None => spec.disks = vec![SpecDisk { size: Some(size), ..SpecDisk::default() }],
        }
    }
    if !args.networks.is_empty() {
        let named = |name: &String| SpecNetwork { name: name.clone(), model: None };
        spec.networks = args.networks.iter().map(named).collect();
    }
    if !args.publish.is_empty() {
        spec.publish = args.publish.iter().map(Publish::to_string).collect();
    }
    spec.tags.extend(object(&args.tags));
    spec.metadata.extend(object(&args.metadata));
    for path in &args.ssh_keys {
        spec.ssh_keys.push(spec_file::text(path)?.trim().to_owned());
    }
    if let Some(path) = &args.user_script {
        spec.user_script = Some(spec_file::text(path)?);
    }
    Ok(spec)
}

/// Puts a restart policy among the metadata of this name.
pub(crate) fn set_restart(
    members: &mut Map<String, Value>,
    metadata: &str,
    policy: &str,
) -> Result<(), CliError> {
    match members.entry(metadata).or_insert_with(|| json!({})) {
        Value::Object(metadata) => {
            metadata.insert("muster:restart_policy".to_owned(), json!(policy));
            Ok(())
        }
        _ => Err(CliError::Usage(format!("in the file, {metadata} must be an object"))),
    }
}

/// An object of texts.
pub(crate) fn object(pairs: &[(String, String)]) -> Map<String, Value> {
    pairs.iter().map(|(key, value)| (key.clone(), json!(value))).collect()
}

/// Reads a JSON object from a file.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, CliError> {
    let bad = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    match serde_json::from_str(&spec_file::text(path)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("not a JSON object".to_owned())),
        Err(error) => Err(bad(format!("not JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn spec(line: &[&str], file: Value) -> Value {
        let args = Line::try_parse_from([&["create"], line].concat()).unwrap().args;
        json!(with_flags(serde_json::from_value(file).unwrap(), &args).unwrap())
    }

    #[test]
    fn flags_win_over_the_file() {
        let line = [
            "--image",
            "b",
            "--ram",
            "512",
            "--vcpus",
            "2",
            "--disk",
            "3",
            "--tag",
            "a=b=c",
            "--name",
            "x",
            "--network",
            "n",
            "--publish",
            "2222:22",
            "--uefi",
            "--restart",
            "always",
        ];
        let file = json!({
            "name": "y", "image": "a", "ram": "1GiB", "tags": { "a": 1, "k": "v" }, "cpu_cap": 50,
            "disks": [{ "size": "9GiB", "pool": "p" }, { "size": "1GiB" }],
            "networks": [{ "name": "m" }, { "name": "o" }], "publish": ["8080:80"],
        });
        let expected = json!({
            "name": "x", "image": "b", "ram": "512MiB", "vcpus": 2, "cpu_cap": 50,
            "disks": [{ "size": "3GiB", "pool": "p" }, { "size": "1GiB" }],
            "networks": [{ "name": "n" }], "publish": ["2222:22"], "firmware": "uefi",
            "restart": "always", "tags": { "a": "b=c", "k": "v" },
        });
        assert_eq!(spec(&line, file.clone()), expected);
        assert_eq!(spec(&["--image", "a"], file.clone()), file);
        let packaged = spec(&["--image", "i", "--package", "p"], json!({ "package": "q" }));
        assert_eq!(packaged, json!({ "image": "i", "package": "p" }));
        let sized = spec(&["--image", "i", "--disk", "7"], json!({}));
        assert_eq!(sized, json!({ "image": "i", "disks": [{ "size": "7GiB" }] }));
    }

    #[test]
    fn bad_pairs_and_ports_are_refused() {
        for bad in ["novalue", "=v"] {
            Line::try_parse_from(["create", "--image", "i", "--tag", bad]).unwrap_err();
        }
        let bad = Line::try_parse_from(["create", "--image", "i", "--publish", "80"]).unwrap_err();
        assert!(bad.to_string().contains("GUEST_PORT"), "{bad}");
        Line::try_parse_from(["create"]).unwrap_err();
    }

    #[test]
    fn sizes_of_nothing_are_refused() {
        for flag in ["--ram", "--disk", "--vcpus", "--cpu-cap"] {
            let line = |size| ["create", "--image", "i", flag, size];
            Line::try_parse_from(line("0")).unwrap_err();
            Line::try_parse_from(line("1")).unwrap();
        }
    }
}
