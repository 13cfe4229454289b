//! `muster image export`: an image's file, as it was imported.

use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::PersistError;

use crate::cell::size;
use crate::client::Client;
use crate::image_source::fetch;
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
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Of an export that does not end nothing is left.
    let arrived = wait::unless_interrupted(interrupted, fetch(client, &image, folder)).await?;
    let failed = |error: PersistError| CliError::File {
        action: "write",
        path: args.file.clone(),
        source: error.error,
    };
    if args.force {
        arrived.file.persist(&args.file).map_err(failed)?;
    } else {
        arrived.file.persist_noclobber(&args.file).map_err(failed)?;
    }
    let file = args.file.display().to_string();
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let shown = size(arrived.size as f64);
    let sentence = format!("{}@{} is in {file}: {shown}", image.name, image.version);
    output.done(&sentence, &json!({ "uuid": image.uuid, "file": file, "bytes": arrived.size }))
}
