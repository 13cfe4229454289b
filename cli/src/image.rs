//! `muster image`: what machines are made from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
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
use crate::cell::Cell;
use crate::client::Client;
use crate::confirm::meant;
use crate::output::{Item, Output, shown};
use crate::table::{Column, ListArgs};
use crate::vm_create::read_object;
use crate::{CliError, image_export, image_get, pick, wait};

/// Piece in which a file is read.
const CHUNK_BYTES: usize = 256 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the images.
    List {
        /// Includes unusable images: disabled ones and unfinished imports.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows an image's manifest.
    Get {
        /// Name, `NAME@VERSION`, uuid or its beginning.
        image: String,
    },
    /// Uploads an image and activates it.
    Import(Import),
    /// Downloads an image's file.
    Export(image_export::Export),
    /// Deletes images from the repository; VMs made from them keep running.
    Delete {
        /// Names, `NAME@VERSION`, uuids or their beginnings.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// Skips the confirmation; without a terminal there is none.
        #[arg(long, short)]
        yes: bool,
        /// Succeeds even if an image does not exist.
        #[arg(long)]
        if_exists: bool,
    },
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster image import guest.qcow2.gz --manifest manifest.json
  muster image import disk.raw.zst --name debian --version 12.1")]
pub(crate) struct Import {
    /// Disk image: raw or qcow2, optionally compressed with gzip, xz or zstd.
    file: PathBuf,

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
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { all, list } => {
            let state = all.then(|| ("state", "all".to_owned()));
            let query: Vec<_> = state.into_iter().collect();
            output
                .list::<Answer<Manifest>>(&list, async || client.get("/images", &query).await)
                .await
        }
        Args::Get { image } => image_get::run(client, output, &image).await,
        Args::Import(args) => import(client, output, args).await,
        Args::Export(args) => image_export::run(client, output, args).await,
        Args::Delete { images, yes, if_exists } => {
            delete(client, output, &images, yes, if_exists).await
        }
    }
}

/// Nothing is deleted unless all are found, and the person says so.
async fn delete(
    client: &Client,
    output: &Output,
    names: &[String],
    yes: bool,
    if_exists: bool,
) -> Result<(), CliError> {
    let find = async |name: &str| pick::only_image(client, name).await;
    let images = pick::each(names, if_exists, |image| image.uuid, find).await?;
    let uuids: Vec<_> = images.iter().map(|image| image.uuid).collect();
    let shown = |image: &Answer<Manifest>| {
        format!("{}@{} ({})", image.name, image.version, Cell::id(&image.uuid).text)
    };
    let shown: Vec<String> = images.iter().map(shown).collect();
    if shown.is_empty() {
        return output.done("nothing to delete", &json!(uuids));
    }
    meant(&format!("Delete {} from the repository?", shown.join(", ")), yes)?;
    for uuid in &uuids {
        client.delete::<()>(&format!("/images/{uuid}")).await?;
    }
    output.done(&format!("deleted {}", shown.join(", ")), &json!(uuids))
}

impl Item for Answer<Manifest> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |image: &Self| Cell::id(&image.uuid)),
        Column::new("NAME", |image: &Self| Cell::text(&image.name)).cut(),
        Column::new("VERSION", |image: &Self| Cell::text(&image.version)).cut(),
        Column::new("STATE", |image: &Self| Cell::state(&shown(&image.state))),
        Column::new("SIZE", |image: &Self| {
            Cell::bytes(image.files.first().and_then(|file| file.size))
        })
        .spare(2),
        Column::new("PUBLISHED", |image: &Self| Cell::since(image.json()["published_at"].as_str()))
            .spare(1),
        Column::new("OS", |image: &Self| Cell::of(&image.json()["os"])).wide(),
        Column::new("TYPE", |image: &Self| Cell::of(&image.json()["type"])).wide(),
        Column::new("OWNER", |image: &Self| Cell::of(&image.json()["owner"])).wide(),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn name(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}

async fn import(client: &Client, output: &Output, args: Import) -> Result<(), CliError> {
    let (sha256, size) = checksum(&args.file).await?;
    let given = args.manifest.as_deref().map(read_object).transpose()?;
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
        let query = [("compression", compression(&args.file).to_owned()), ("sha256", sha256)];
        let body = file_body(&args.file, size).await?;
        client.upload(&format!("{path}/file"), &query, size, body).await?;
        client.post::<Value>(&format!("{path}?action=activate"), &json!({})).await
    });
    match done.await {
        Ok(active) => {
            let name = format!("{}@{}", made.name, made.version);
            output.done(&format!("image {name} ({uuid}) imported and active"), &active)
        }
        Err(failed) => match client.delete::<()>(&path).await {
            // Nothing is left of it.
            Ok(()) => Err(match failed {
                CliError::Interrupted { .. } => CliError::Interrupted {
                    goes_on: "the image was not imported".to_owned(),
                    hint: "nothing of it is left in the repository".to_owned(),
                },
                other => other,
            }),
            Err(left) => {
                left.report(output.is_json());
                Err(failed)
            }
        },
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
        let file = args.file.display();
        let text = format!(
            "{file} does not match the manifest: its sha256 is {sha256}, expected {wanted}"
        );
        return Err(CliError::Usage(text));
    }
    if args.manifest.is_none() && (args.name.is_none() || args.version.is_none()) {
        let text = "an image needs --name and --version, or a --manifest with both";
        return Err(CliError::Usage(text.to_owned()));
    }
    let given = [("name", &args.name), ("version", &args.version), ("os", &args.os)];
    for (name, value) in given {
        if let Some(value) = value {
            manifest.insert(name.to_owned(), json!(value));
        }
    }
    let defaults = [
        ("v", json!(2)),
        ("owner", json!(NOBODY)),
        ("type", json!("zvol")),
        ("os", json!("linux")),
    ];
    for (name, value) in defaults {
        manifest.entry(name).or_insert(value);
    }
    Ok(Value::Object(manifest))
}

/// Compression by the file's name, in IMGAPI's words.
fn compression(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => "gzip",
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => "none",
    }
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
            file: "disk.raw.zst".into(),
            manifest: manifest.map(PathBuf::from),
            name: Some("debian".into()),
            version: Some("12.1".into()),
            os: None,
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
        let refused = manifest(&nameless, Map::new(), "00").unwrap_err();
        assert!(refused.exit_code() == 2 && refused.to_string().contains("--name"), "{refused}");
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

    #[test]
    fn compression_by_name() {
        for (name, wanted) in
            [("a.gz", "gzip"), ("a.raw.xz", "xz"), ("a.zst", "zstd"), ("a", "none")]
        {
            assert_eq!(compression(Path::new(name)), wanted);
        }
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
