//! `muster image export`: an image's file, as it was imported.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt as _;
use muster_shared::api::image::Manifest;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::cell::size;
use crate::client::Client;
use crate::image::bar;
use crate::output::Output;
use crate::{CliError, pick, wait};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The file is the one that was uploaded, compressed or not; its checksum is verified. Examples:
  muster image export debian@12 debian.qcow2
  muster -o json image get debian@12 > manifest.json
  muster --context lab image import debian.qcow2 --manifest manifest.json")]
pub(crate) struct Export {
    /// Name, `NAME@VERSION`, uuid or its beginning.
    image: String,

    /// File to write.
    file: PathBuf,

    /// Overwrites an existing file.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Export) -> Result<(), CliError> {
    if !args.force && args.file.exists() {
        let text = format!("{} exists; --force overwrites it", args.file.display());
        return Err(CliError::Usage(text));
    }
    let image = pick::only_image(client, &args.image).await?;
    let interrupted = || CliError::Interrupted {
        goes_on: "the image was not exported".to_owned(),
        hint: "no file was written".to_owned(),
    };
    // Of an export that does not end nothing is left.
    let (partial, written) =
        wait::unless_interrupted(interrupted, fetch(client, &image, &args.file)).await?;
    let failed = |error: tempfile::PersistError| unwritable(&args.file)(error.error);
    if args.force {
        partial.persist(&args.file).map_err(failed)?;
    } else {
        partial.persist_noclobber(&args.file).map_err(failed)?;
    }
    let file = args.file.display().to_string();
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let sentence =
        format!("{}@{} is in {file}: {}", image.name, image.version, size(written as f64));
    output.done(&sentence, &json!({ "uuid": image.uuid, "file": file, "bytes": written }))
}

/// Fetches the file to the folder of `path`; its size.
async fn fetch(
    client: &Client,
    image: &Manifest,
    path: &Path,
) -> Result<(NamedTempFile<File>, u64), CliError> {
    let wanted = image.files.first();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut partial =
        NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(unwritable(path))?;
    let bar = bar("download", wanted.and_then(|file| file.size).unwrap_or(0));
    let source = format!("/images/{}/file", image.uuid);
    let mut stream = client.stream(&source, &[]).await?;
    let (mut hash, mut written) = (Sha256::new(), 0);
    while let Some(chunk) = stream.try_next().await.map_err(|error| client.lost(error))? {
        hash.update(&chunk);
        partial.write_all(&chunk).map_err(unwritable(path))?;
        written += u64::try_from(chunk.len()).unwrap_or_default();
        bar.set_position(written);
    }
    bar.finish_and_clear();
    let sum = hex::encode(hash.finalize());
    match wanted.and_then(|file| file.sha256.as_deref()) {
        Some(wanted) if wanted != sum => Err(CliError::Ended(format!(
            "what arrived is damaged: its sha256 is {sum}, expected {wanted}"
        ))),
        _ => Ok((partial, written)),
    }
}

fn unwritable(path: &Path) -> impl Fn(std::io::Error) -> CliError + '_ {
    |source| CliError::File { action: "write", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::Connection;

    /// Fetches a file of `abc` that should have this checksum; how many files are there then.
    async fn fetched(sha256: &str) -> (Result<u64, CliError>, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc";
            stream.write_all(answer).await.unwrap();
        });
        let client = Client::new(&Connection { url: Some(url), ..Connection::default() }).unwrap();
        let image = serde_json::from_value(json!({
            "v": 2, "uuid": uuid::Uuid::nil(), "name": "x", "version": "1", "type": "zvol",
            "os": "linux", "state": "active", "files": [{ "size": 3, "sha256": sha256 }],
        }));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.raw");
        let fetched = fetch(&client, &image.unwrap(), &path).await;
        let written = fetched.map(|(partial, written)| {
            assert_eq!(std::fs::read(partial.path()).unwrap(), b"abc");
            written
        });
        (written, std::fs::read_dir(folder.path()).unwrap().count())
    }

    #[tokio::test]
    async fn a_damaged_file_is_refused_and_leaves_nothing() {
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fetched(sum).await.0.unwrap(), 3);
        let (damaged, left) = fetched(&"0".repeat(64)).await;
        let damaged = damaged.unwrap_err().to_string();
        assert!(damaged.contains("is damaged") && left == 0, "{left}: {damaged}");
    }
}
