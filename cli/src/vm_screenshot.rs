//! `muster vm screenshot`: a picture of what a machine shows.

use std::path::PathBuf;

use futures_util::StreamExt as _;
use serde_json::json;

use crate::CliError;
use crate::client::Client;
use crate::output::Output;
use crate::vm::{MACHINE, Target};

/// Longest picture that is taken, bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Saves what the VM's display shows now as a PNG; the guest does not notice. Useful when a VM does not
boot: boot loaders and kernels print their errors there. Guests that use their serial port print to
`muster vm console` instead. Example:
  muster vm screenshot web1 -f web1.png")]
pub(crate) struct Args {
    #[arg(help = MACHINE)]
    vm: String,

    /// File to write, which must not exist yet [default: the VM's name with `.png`].
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Overwrites an existing file.
    #[arg(long)]
    force: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let route = target.path("/screenshot");
    let mut chunks = client.stream(&route, &[]).await?;
    let mut png = Vec::new();
    while let Some(chunk) = chunks.next().await {
        png.extend(chunk.map_err(|error| client.lost(error))?);
        if png.len() > MAX_BYTES {
            let message = format!("a picture of more than {} MiB", MAX_BYTES / 1024 / 1024);
            return Err(CliError::Server { status: 200, message });
        }
    }
    let path = args.file.unwrap_or_else(|| PathBuf::from(format!("{}.png", args.vm)));
    write(&path, &png, args.force).map_err(|source| CliError::File {
        action: "write",
        path: path.clone(),
        source,
    })?;
    let bytes = png.len();
    let sentence = format!("{}: {bytes} bytes", path.display());
    output.done(&sentence, &json!({ "file": path, "bytes": bytes }))
}

fn write(path: &std::path::Path, png: &[u8], replace: bool) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::File::options();
    if replace {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.write(true).open(path)?.write_all(png)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_if_that_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.png");
        write(&path, b"longer", false).unwrap();
        let refused = write(&path, b"new", false).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
        write(&path, b"new", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
