//! `muster image import`: a disk image and its manifest into the repository.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueHint;
use futures_util::TryStreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use muster_shared::api::image::Manifest;
use muster_shared::vm::NOBODY;
use reqwest::Body;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use crate::answer::Answer;
use crate::client::Client;
use crate::image_source::Source;
use crate::output::Output;
use crate::vm_create::read_object;
use crate::{CliError, wait};

/// What a file may be.
const FORMATS: [&str; 4] = ["raw", "qcow2", "oci-archive", "docker-archive"];
/// Those of containers.
const OF_CONTAINERS: [&str; 2] = ["oci-archive", "docker-archive"];

/// Piece in which a file is read.
const CHUNK_BYTES: usize = 256 * 1024;

#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
A URL is downloaded here first, to $TMPDIR or /var/tmp. Examples:
  muster image import guest.qcow2.gz --manifest manifest.json
  muster image import disk.raw.zst --name debian --version 12.1
  muster image import https://cloud.debian.org/images/cloud/bookworm/latest/\\
debian-12-generic-amd64.qcow2 --name debian --version 12
  muster image import web.tar.gz --format docker-archive --name web --version 3
  muster --context lab image list
  muster image import debian@12 --from lab")]
pub(crate) struct Import {
    /// Disk image: raw or qcow2, or with --format one of containers, optionally compressed with gzip,
    /// bzip2, xz or zstd. A file, an http:// or https:// URL, or with --from the name of an image.
    #[arg(value_name = "FILE|URL|IMAGE", value_hint = ValueHint::FilePath)]
    source: String,

    /// Copies the image from another coordinator: a context or a URL.
    #[arg(long, value_name = "CONTEXT|URL", conflicts_with_all = ["manifest", "sha256"])]
    from: Option<String>,

    /// IMGAPI manifest (JSON).
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Name; overrides the manifest's.
    #[arg(long)]
    name: Option<String>,

    /// Version; overrides the manifest's.
    #[arg(long)]
    version: Option<String>,

    /// Operating system; overrides the manifest's [default: linux].
    #[arg(long)]
    os: Option<String>,

    /// What the file is; overrides the manifest's [default: a disk, raw or qcow2]. An oci-archive is an
    /// OCI image layout as tar, a docker-archive what `docker save` writes.
    #[arg(long, value_parser = FORMATS)]
    format: Option<String>,

    /// Refuses the image unless its file has this checksum.
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Import) -> Result<(), CliError> {
    named(&args)?;
    let source =
        wait::unless_interrupted(not_imported, Source::of(&args.source, args.from.as_deref()))
            .await?;
    let (sha256, size) = checksum(&source.path).await?;
    is_expected(&args, &sha256)?;
    let given = args.manifest.as_deref().map(read_object).transpose()?.or(source.manifest.clone());
    let manifest = manifest(&args, given.unwrap_or_default(), &sha256)?;
    let there: Vec<Answer<Manifest>> = client.get("/images", &[]).await?;
    refuse_second(&there, &manifest)?;
    let made: Manifest = client.post("/images", &manifest).await?;
    let uuid = made.uuid;
    let path = format!("/images/{uuid}");
    let interrupted = || CliError::Interrupted {
        goes_on: "the image is not complete".to_owned(),
        hint: format!("`muster image delete {uuid}` removes the record"),
    };
    let done = wait::unless_interrupted(interrupted, async {
        let query = [("compression", source.compression.to_owned()), ("sha256", sha256)];
        let body = file_body(&source.path, size).await?;
        client.upload(&format!("{path}/file"), &query, size, body).await?;
        client.post::<Value>(&format!("{path}?action=activate"), &json!({})).await
    });
    match done.await {
        Ok(active) => {
            let name = format!("{}@{}", made.name, made.version);
            output.done(&format!("image {name} ({uuid}) imported and active"), &active)
        }
        Err(failed) => match client.delete::<()>(&path).await {
            Ok(()) => Err(match failed {
                CliError::Interrupted { .. } => not_imported(),
                other => other,
            }),
            Err(left) => {
                left.report(output.is_json());
                Err(failed)
            }
        },
    }
}

/// Ctrl-C, when nothing of the import is left.
fn not_imported() -> CliError {
    CliError::Interrupted {
        goes_on: "the image was not imported".to_owned(),
        hint: "nothing of it is left in the repository".to_owned(),
    }
}

/// Refuses an image without a name before anything is fetched.
fn named(args: &Import) -> Result<(), CliError> {
    let has_manifest = args.manifest.is_some() || args.from.is_some();
    if !has_manifest && (args.name.is_none() || args.version.is_none()) {
        let text = "an image needs --name and --version, or a --manifest with both";
        return Err(CliError::Usage(text.to_owned()));
    }
    Ok(())
}

fn is_expected(args: &Import, sha256: &str) -> Result<(), CliError> {
    match &args.sha256 {
        Some(wanted) if !wanted.eq_ignore_ascii_case(sha256) => Err(CliError::Usage(format!(
            "{} is not what was expected: its sha256 is {sha256}, expected {wanted}",
            args.source
        ))),
        _ => Ok(()),
    }
}

/// Refuses an image under a name and version that another one has: nobody could tell them apart.
fn refuse_second(there: &[Answer<Manifest>], manifest: &Value) -> Result<(), CliError> {
    let same = |image: &&Answer<Manifest>| {
        let named = (Some(image.name.as_str()), Some(image.version.as_str()));
        named == (manifest["name"].as_str(), manifest["version"].as_str())
    };
    match there.iter().find(same) {
        None => Ok(()),
        Some(image) => Err(CliError::Usage(format!(
            "image {}@{} already exists ({}): choose another --version, or delete that one",
            image.name, image.version, image.uuid
        ))),
    }
}

/// The manifest to register: the given one with the flags' values, checked against the file.
fn manifest(
    args: &Import,
    mut manifest: Map<String, Value>,
    sha256: &str,
) -> Result<Value, CliError> {
    if let Some(wanted) = manifest.get("files").and_then(|files| files[0]["sha256"].as_str())
        && wanted != sha256
    {
        let file = &args.source;
        let text = format!(
            "{file} does not match the manifest: its sha256 is {sha256}, expected {wanted}"
        );
        return Err(CliError::Usage(text));
    }
    let given = [("name", &args.name), ("version", &args.version), ("os", &args.os)];
    for (name, value) in given {
        if let Some(value) = value {
            manifest.insert(name.to_owned(), json!(value));
        }
    }
    if let Some(format) = &args.format {
        let mut file = match manifest.get("files").map(|files| &files[0]) {
            Some(Value::Object(file)) => file.clone(),
            _ => Map::new(),
        };
        file.insert("format".to_owned(), json!(format));
        manifest.insert("files".to_owned(), json!([file]));
    }
    let format = manifest.get("files").and_then(|files| files[0]["format"].as_str());
    let kind = match format {
        Some(format) if OF_CONTAINERS.contains(&format) => "docker",
        _ => "zvol",
    };
    let defaults =
        [("v", json!(2)), ("owner", json!(NOBODY)), ("type", json!(kind)), ("os", json!("linux"))];
    for (name, value) in defaults {
        manifest.entry(name).or_insert(value);
    }
    Ok(Value::Object(manifest))
}

fn unreadable(path: &Path) -> impl Fn(std::io::Error) -> CliError + '_ {
    |source| CliError::File { action: "read", path: path.to_owned(), source }
}

async fn checksum(path: &Path) -> Result<(String, u64), CliError> {
    let failed = unreadable(path);
    let mut file = File::open(path).await.map_err(&failed)?;
    let bar = bar("checksum", file.metadata().await.map_err(&failed)?.len());
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut size = 0_u64;
    loop {
        let count = file.read(&mut buffer).await.map_err(&failed)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        size += u64::try_from(count).unwrap_or_default();
        bar.set_position(size);
    }
    bar.finish_and_clear();
    Ok((hex::encode(hash.finalize()), size))
}

async fn file_body(path: &Path, size: u64) -> Result<Body, CliError> {
    let file = File::open(path).await.map_err(unreadable(path))?;
    let bar = bar("upload", size);
    let stream = ReaderStream::with_capacity(file, CHUNK_BYTES);
    let counted = stream.inspect_ok(move |chunk| {
        bar.inc(u64::try_from(chunk.len()).unwrap_or_default());
    });
    Ok(Body::wrap_stream(counted))
}

/// Hidden when stderr is no terminal.
pub(crate) fn bar(title: &'static str, size: u64) -> ProgressBar {
    let bar = ProgressBar::new(size);
    let template = "{prefix:>8} {bar:24} {bytes}/{total_bytes} {bytes_per_sec}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(title);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(manifest: Option<&str>) -> Import {
        Import {
            source: "disk.raw.zst".into(),
            manifest: manifest.map(PathBuf::from),
            name: Some("debian".into()),
            version: Some("12.1".into()),
            ..Import::default()
        }
    }

    #[test]
    fn flags_make_a_manifest_or_change_one() {
        let made = manifest(&import(None), Map::new(), "00").unwrap();
        assert_eq!(
            (&made["name"], &made["os"], &made["v"]),
            (&json!("debian"), &json!("linux"), &json!(2))
        );
        let given = json!({ "name": "x", "os": "other", "files": [{ "sha256": "00" }] });
        let given = given.as_object().unwrap();
        let made = manifest(&import(Some("m.json")), given.clone(), "00").unwrap();
        assert_eq!((&made["name"], &made["os"]), (&json!("debian"), &json!("other")));
        manifest(&import(Some("m.json")), given.clone(), "11").unwrap_err();
        let nameless = Import { name: None, ..import(None) };
        let refused = named(&nameless).unwrap_err();
        assert!(refused.exit_code() == 2 && refused.to_string().contains("--name"), "{refused}");
    }

    #[test]
    fn a_format_says_what_the_image_is_of() {
        let of = |format: &str, given: Value| {
            let import = Import { format: Some(format.to_owned()), ..import(None) };
            manifest(&import, given.as_object().unwrap().clone(), "00").unwrap()
        };
        let made = of("docker-archive", json!({ "files": [{ "sha256": "00" }] }));
        let file = json!({ "sha256": "00", "format": "docker-archive" });
        assert_eq!((&made["type"], &made["files"]), (&json!("docker"), &json!([file])));
        assert_eq!(of("raw", json!({}))["type"], "zvol");
        assert_eq!(of("oci-archive", json!({ "type": "lx-dataset" }))["type"], "lx-dataset");
    }

    #[test]
    fn a_checksum_that_differs_is_refused() {
        let sum = "ba78".to_owned();
        let wanted = Import { sha256: Some("BA78".to_owned()), ..import(None) };
        is_expected(&wanted, &sum).unwrap();
        let refused = is_expected(&wanted, "00").unwrap_err().to_string();
        assert!(refused.contains("expected BA78"), "{refused}");
    }

    #[test]
    fn a_name_and_version_stand_for_one_image() {
        let image = json!({
            "v": 2, "uuid": uuid::Uuid::nil(), "name": "debian", "version": "12", "type": "zvol",
            "os": "linux", "state": "active", "published_at": "2026-03-01T00:00:00.000Z",
        });
        let there = [serde_json::from_value::<Answer<Manifest>>(image).unwrap()];
        let refused = refuse_second(&there, &json!({ "name": "debian", "version": "12" }));
        assert!(refused.unwrap_err().to_string().contains("debian@12"));
        refuse_second(&there, &json!({ "name": "debian", "version": "13" })).unwrap();
        refuse_second(&there, &json!({ "name": "other", "version": "12" })).unwrap();
    }

    #[tokio::test]
    async fn checksum_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        let (sum, size) = checksum(file.path()).await.unwrap();
        assert!(sum.starts_with("ba7816bf8f01cfea") && size == 3, "{sum} {size}");
        let missing = checksum(Path::new("/nonexistent")).await.unwrap_err();
        assert_eq!(missing.exit_code(), 2);
    }
}
