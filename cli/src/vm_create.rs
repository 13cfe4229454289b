//! `muster vm create`.

use std::path::{Path, PathBuf};

use muster_shared::api::vm::VmPlaced;
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::vm::{DEFAULT_BRAND, DEFAULT_RAM_MIB, DiskSpec, NOBODY, VmSpec};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::wait::WaitArgs;
use crate::{CliError, allocate, known, pick, refusal};

/// Disk of a machine that names none, GiB: smaller than the API's, an image is rarely larger.
const DEFAULT_DISK_GIB: u64 = 1;

const AFTER_HELP: &str = "\
Examples:
  muster vm create --image muster-guest --alias web1
  muster vm create --image base@2.1 --ram 2048 --vcpus 2 --disk 20 \\
      --tag role=db --ssh-key ~/.ssh/id_ed25519.pub --user-script setup.sh
  muster vm create --cdrom debian-installer --disk 20 --uefi --alias db1
  muster vm create --image base --restart on-failure:3
  muster vm create --file vm.json --no-wait --output json

The file holds the members of the API's `POST /vms`; flags win over it.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Image to start from: name, `NAME@VERSION` or uuid.
    #[arg(long, required_unless_present_any = ["file", "cdrom"])]
    image: Option<String>,

    /// CD to boot from first, e.g. an installer: an image, named as with --image. Without --image the
    /// machine gets an empty disk, from which it boots later.
    #[arg(long, value_name = "IMAGE", conflicts_with = "file")]
    cdrom: Option<String>,

    /// UEFI firmware instead of a BIOS; the node needs it (package ovmf).
    #[arg(long)]
    uefi: bool,

    /// JSON file with further members, `-` for stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Name, shown in lists and given to the guest as its hostname.
    #[arg(long, visible_alias = "name")]
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

    /// What becomes of the machine when it ends or panics without being told to: `never`,
    /// `on-failure`, `on-failure:N` (N starts in a row at most) or `always` [default: never].
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = pair)]
    tags: Vec<(String, String)>,

    /// Metadata the guest can read; may be repeated.
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,

    /// Public key that may log in as the image's first user (root, debian, ubuntu, …); may be
    /// repeated.
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

    /// Only says where it would go.
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
    let image = image_of(client, args.image.as_deref()).await?;
    let cdrom = image_of(client, args.cdrom.as_deref()).await?;
    let base = args.file.as_deref().map(read_object).transpose()?.unwrap_or_default();
    if let Some(path) = &args.file {
        known::check(path, &base, known::SPEC)?;
    }
    let spec = payload(&args, Images { boot: image, cdrom }, base)?;
    let body = Value::Object(spec.into_members());
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
    let tags = vm["networks"].as_array().cloned().unwrap_or_default();
    if vm["uuid"].is_null() {
        vm["uuid"] = json!(SeededEntropy::from_os().uuid());
    }
    vm["vm_uuid"] = vm["uuid"].clone();
    let body = json!({ "vm": vm, "image": {}, "nic_tags": tags, "create": true });
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

async fn image_of(client: &Client, name: Option<&str>) -> Result<Option<ImageUuid>, CliError> {
    match name {
        Some(name) => Ok(Some(pick::image(client, name).await?.uuid)),
        None => Ok(None),
    }
}

/// The images that the flags name.
#[derive(Clone, Copy, Debug, Default)]
struct Images {
    boot: Option<ImageUuid>,
    cdrom: Option<ImageUuid>,
}

/// A CD beside the first disk, which is empty without an image. The first boot is from the CD.
fn insert_cdrom(spec: &mut VmSpec, cdrom: ImageUuid, disk_gib: u64) {
    let first = match spec.image_uuid {
        Some(_) => DiskSpec { image_uuid: spec.image_uuid, ..DiskSpec::default() },
        None => DiskSpec { size: Some(disk_gib.saturating_mul(1024)), ..DiskSpec::default() },
    };
    let media = Map::from_iter([("media".to_owned(), json!("cdrom"))]);
    let cd = DiskSpec { image_uuid: Some(cdrom), extra: media, ..DiskSpec::default() };
    spec.disks = Some(vec![first, cd]);
    spec.extra.insert("boot".to_owned(), json!("order=cd,once=d"));
}

fn payload(args: &Args, images: Images, file: Map<String, Value>) -> Result<VmSpec, CliError> {
    let (mut spec, errors) = VmSpec::read(file);
    if !errors.is_empty() {
        let told = errors.iter().map(|error| format!("{}: {}", error.field, error.message));
        let told = told.collect::<Vec<_>>().join("; ");
        return Err(CliError::Usage(format!("in the file, {told}")));
    }
    spec.image_uuid = images.boot.or(spec.image_uuid);
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
    if let Some(cdrom) = images.cdrom {
        insert_cdrom(&mut spec, cdrom, args.disk.unwrap_or(DEFAULT_DISK_GIB));
    }
    if args.uefi {
        spec.extra.insert("bootrom".to_owned(), json!("uefi"));
    }
    if let Some(policy) = &args.restart {
        set_restart(&mut spec.extra, "internal_metadata", policy)?;
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
        let uuid = |text: &Option<String>| text.as_ref().map(|uuid| uuid.parse().unwrap());
        let images = Images { boot: uuid(&args.image), cdrom: uuid(&args.cdrom) };
        Value::Object(payload(&args, images, file).unwrap().into_members())
    }

    #[test]
    fn a_cd_is_booted_once_beside_a_disk() {
        let cd = json!({ "image_uuid": IMAGE, "media": "cdrom" });
        let made = body(&["--cdrom", IMAGE, "--disk", "2", "--uefi"], json!({}));
        assert_eq!(made["disks"], json!([{ "size": 2048 }, cd]));
        assert_eq!((&made["boot"], &made["bootrom"]), (&json!("order=cd,once=d"), &json!("uefi")));
        let rescued = body(&["--cdrom", IMAGE, "--image", IMAGE], json!({}));
        assert_eq!(rescued["disks"], json!([{ "image_uuid": IMAGE }, cd]));
        assert_eq!(body(&["--image", IMAGE], json!({})).get("disks"), None);
    }

    #[test]
    fn a_restart_policy_is_kept_with_the_metadata() {
        let file = json!({ "internal_metadata": { "a": "b" } });
        let made = body(&["--image", IMAGE, "--restart", "always"], file);
        let metadata = json!({ "a": "b", "muster:restart_policy": "always" });
        assert_eq!(made["internal_metadata"], metadata);
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
        let text = payload(&args, Images::default(), file).unwrap_err().to_string();
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
