//! `muster vm create`.

use std::path::{Path, PathBuf};

use muster_shared::api::vm::VmPlaced;
use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::vm::{DEFAULT_BRAND, DEFAULT_RAM_MIB, NOBODY, VmSpec};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::Output;
use crate::wait::WaitArgs;
use crate::{CliError, pick};

/// Disk of a machine that names none, GiB: smaller than the API's, an image is rarely larger.
const DEFAULT_DISK_GIB: u64 = 1;

const AFTER_HELP: &str = "\
Examples:
  muster vm create --image muster-guest --alias web1
  muster vm create --image base@2.1 --ram 2048 --vcpus 2 --disk 20 \\
      --tag role=db --ssh-key ~/.ssh/id_ed25519.pub --user-script setup.sh
  muster vm create --file vm.json --no-wait --output json

The file holds the members of the API's `POST /vms`; flags win over it.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Image to start from: name, `NAME@VERSION` or uuid.
    #[arg(long, required_unless_present = "file")]
    image: Option<String>,

    /// JSON file with further members, `-` for stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Name, shown in lists and given to the guest as its hostname.
    #[arg(long)]
    alias: Option<String>,

    /// Memory, MiB [default: 256].
    #[arg(long, value_name = "MIB", value_parser = positive())]
    ram: Option<u64>,

    /// Disk, GiB; the image's size if that is larger [default: 1].
    #[arg(long, value_name = "GIB", value_parser = positive())]
    disk: Option<u64>,

    /// Virtual CPUs [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = positive())]
    vcpus: Option<u64>,

    /// Most CPU the machine gets, percent of one core [default: 100 for each virtual CPU].
    #[arg(long, value_name = "PERCENT", value_parser = positive())]
    cpu_cap: Option<u64>,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
    tags: Vec<(String, String)>,

    /// Metadata the guest can read; may be repeated.
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Public key that may log in as root; may be repeated.
    #[arg(long = "ssh-key", value_name = "FILE")]
    ssh_keys: Vec<PathBuf>,

    /// Script the guest runs at boot.
    #[arg(long, value_name = "FILE")]
    user_script: Option<PathBuf>,

    /// Network to connect to, by the name of its nic tag; may be repeated.
    #[arg(long = "network", value_name = "TAG")]
    networks: Vec<String>,

    /// Owner of the machine.
    #[arg(long, value_name = "UUID")]
    owner: Option<uuid::Uuid>,

    /// Uuid of the new machine; without it the coordinator makes one.
    #[arg(long)]
    uuid: Option<uuid::Uuid>,

    /// Kind of machine [default: kvm].
    #[arg(long)]
    brand: Option<String>,

    #[command(flatten)]
    wait: WaitArgs,
}

fn positive() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let image = match &args.image {
        Some(name) => Some(pick::image(client, name).await?.uuid),
        None => None,
    };
    let base = args.file.as_deref().map(read_object).transpose()?.unwrap_or_default();
    let spec = payload(&args, image, base)?;
    let body = Value::Object(spec.into_members());
    let answer: Answer<VmPlaced> = client.post("/vms", &body).await?;
    let VmPlaced { vm_uuid: uuid, id: task, server_uuid: server } = &*answer;
    let name = args.alias.clone().unwrap_or_else(|| uuid.to_string());
    let title = format!("create {name}");
    let sentence = match args.wait.follow(client, &title, task).await? {
        None => format!("{title}: VM {uuid}, task {task}"),
        Some(_) => format!("{title}: VM {uuid} runs on server {server}"),
    };
    output.done(&sentence, answer.json())
}

fn payload(
    args: &Args,
    image: Option<ImageUuid>,
    file: Map<String, Value>,
) -> Result<VmSpec, CliError> {
    let (mut spec, errors) = VmSpec::read(file);
    if !errors.is_empty() {
        let told = errors.iter().map(|error| format!("{}: {}", error.field, error.message));
        let told = told.collect::<Vec<_>>().join("; ");
        return Err(CliError::Usage(format!("in the file, {told}")));
    }
    spec.image_uuid = image.or(spec.image_uuid);
    spec.alias = args.alias.clone().or(spec.alias);
    spec.uuid = args.uuid.map(VmUuid).or(spec.uuid);
    spec.owner_uuid = args.owner.map(|owner| owner.to_string()).or(spec.owner_uuid);
    spec.brand = args.brand.clone().or(spec.brand);
    spec.ram = args.ram.or(spec.ram);
    spec.quota = args.disk.or(spec.quota);
    spec.vcpus = args.vcpus.or(spec.vcpus);
    spec.cpu_cap = args.cpu_cap.or(spec.cpu_cap);
    spec.owner_uuid.get_or_insert_with(|| NOBODY.to_owned());
    spec.brand.get_or_insert_with(|| DEFAULT_BRAND.to_owned());
    // A package brings its own sizes.
    let sized = ["package", "package_uuid", "billing_id"];
    if !sized.iter().any(|name| spec.extra.contains_key(*name)) {
        spec.ram.get_or_insert(DEFAULT_RAM_MIB);
        spec.quota.get_or_insert(DEFAULT_DISK_GIB);
        spec.vcpus.get_or_insert(1);
        spec.cap_cpu();
    }
    if !args.networks.is_empty() {
        spec.extra.insert("networks".to_owned(), json!(args.networks));
    }
    let mut metadata = args.metadata.clone();
    let keys: Vec<_> = args.ssh_keys.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    if !keys.is_empty() {
        let keys: Vec<_> = keys.iter().map(|key| key.trim()).collect();
        metadata.push(("root_authorized_keys".to_owned(), keys.join("\n")));
    }
    if let Some(path) = &args.user_script {
        metadata.push(("user-script".to_owned(), read(path)?));
    }
    add(&mut spec.tags, &args.tags);
    add(&mut spec.customer_metadata, &metadata);
    Ok(spec)
}

fn add(members: &mut Option<Map<String, Value>>, pairs: &[(String, String)]) {
    if !pairs.is_empty() {
        members.get_or_insert_default().extend(object(pairs));
    }
}

/// An object of texts.
pub(crate) fn object(pairs: &[(String, String)]) -> Map<String, Value> {
    pairs.iter().map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn read(path: &Path) -> Result<String, CliError> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    text.map_err(|source| CliError::File { action: "read", path: path.to_owned(), source })
}

/// Reads a JSON object from a file.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, CliError> {
    let bad = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    match serde_json::from_str(&read(path)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad("no JSON object".to_owned())),
        Err(error) => Err(bad(format!("no JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    const IMAGE: &str = "11111111-1111-4111-8111-111111111111";

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn body(line: &[&str], file: Value) -> Value {
        let args = Line::try_parse_from([&["create"], line].concat()).unwrap().args;
        let Value::Object(file) = file else { panic!("an object") };
        let image = args.image.as_ref().map(|uuid| uuid.parse().unwrap());
        Value::Object(payload(&args, image, file).unwrap().into_members())
    }

    #[test]
    fn sizes_have_defaults_and_flags_win() {
        let line = ["--image", IMAGE, "--ram", "512", "--vcpus", "2", "--tag", "a=b=c"];
        let made = body(&line, json!({ "ram": 1, "alias": "x", "tags": { "k": "v" } }));
        assert_eq!(made["ram"], 512);
        assert_eq!(made["cpu_cap"], 200);
        assert_eq!(made["quota"], 1);
        assert_eq!(made["alias"], "x");
        assert_eq!(made["tags"], json!({ "k": "v", "a": "b=c" }));
        assert_eq!(made["owner_uuid"], NOBODY);
    }

    #[test]
    fn package_brings_the_sizes() {
        let made = body(&["--image", IMAGE], json!({ "package": { "ram": 1024 } }));
        assert_eq!(made.get("ram"), None);
        assert_eq!(made["brand"], "kvm");
    }

    #[test]
    fn what_is_wrong_in_the_file_is_named() {
        let args = Line::try_parse_from(["create", "--image", IMAGE]).unwrap().args;
        let Value::Object(file) = json!({ "ram": "much", "tags": { "a": [] } }) else { panic!() };
        let text = payload(&args, None, file).unwrap_err().to_string();
        assert!(text.contains("ram: ") && text.contains("tags: "), "{text}");
    }

    #[test]
    fn bad_pairs_are_refused() {
        for bad in ["novalue", "=v"] {
            Line::try_parse_from(["create", "--image", "i", "--tag", bad]).unwrap_err();
        }
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
