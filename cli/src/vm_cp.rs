//! `muster vm cp`: files into a machine's guest, and out of it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::api::vm::{FilePiece, FileWritten};
use serde_json::json;

use crate::CliError;
use crate::client::Client;
use crate::output::Output;
use crate::vm::Target;

/// Bytes that are written at a time: in base64 they fit into a text of a request.
const PIECE_BYTES: usize = 45 * 1024;
/// Largest file, bytes: piece by piece more takes too long.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs the guest agent in the guest (package qemu-guest-agent); it reads and writes as its user, usually
root. One file at a time, of at most 64 MiB; `-` is stdin or stdout. A file in the guest is replaced, and
incomplete if the command fails. Examples:
  muster vm cp site.conf web1:/etc/nginx/conf.d/site.conf
  muster vm cp web1:/var/log/syslog syslog")]
pub(crate) struct Args {
    /// File, or VM:PATH of one in a guest.
    from: String,

    /// File, or VM:PATH of one in a guest.
    to: String,

    /// Overwrites an existing file here.
    #[arg(long)]
    force: bool,
}

/// A VM and a path in its guest.
#[derive(Debug, PartialEq, Eq)]
struct InGuest<'a> {
    vm: &'a str,
    path: &'a str,
}

/// A name with a slash before any colon is a file of ours.
fn in_guest(text: &str) -> Option<InGuest<'_>> {
    let (vm, path) = text.split_once(':')?;
    (!vm.is_empty() && !vm.contains('/') && !path.is_empty()).then_some(InGuest { vm, path })
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let bytes = match (in_guest(&args.from), in_guest(&args.to)) {
        (None, Some(to)) => upload(client, &args.from, &to).await?,
        (Some(from), None) => {
            let bytes = download(client, &from, &args.to, args.force).await?;
            if args.to == "-" {
                return Ok(());
            }
            bytes
        }
        _ => {
            let text = "one of the two must be VM:PATH, and the other a file here";
            return Err(CliError::Usage(text.to_owned()));
        }
    };
    let sentence = format!("{}: {bytes} bytes", args.to);
    output.done(&sentence, &json!({ "from": args.from, "to": args.to, "bytes": bytes }))
}

fn failed(action: &'static str, path: &str) -> impl Fn(std::io::Error) -> CliError {
    let path = PathBuf::from(path);
    move |source| CliError::File { action, path: path.clone(), source }
}

async fn upload(client: &Client, from: &str, to: &InGuest<'_>) -> Result<u64, CliError> {
    let read = failed("read", from);
    let mut file: Box<dyn Read + Send> = match from {
        "-" => Box::new(std::io::stdin()),
        path => Box::new(std::fs::File::open(path).map_err(&read)?),
    };
    let target = Target::find(client, to.vm).await?;
    let mut offset = 0;
    loop {
        let mut piece = Vec::new();
        let most = u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX);
        file.by_ref().take(most).read_to_end(&mut piece).map_err(&read)?;
        // An empty file is made with its first piece.
        if piece.is_empty() && offset > 0 {
            return Ok(offset);
        }
        let data = BASE64_STANDARD.encode(&piece);
        let body = json!({ "path": to.path, "offset": offset, "data": data });
        let written: FileWritten = client.put(&target.path("/file"), &body).await?;
        offset += written.bytes;
        if piece.len() < PIECE_BYTES {
            return Ok(offset);
        }
        check_size(offset)?;
    }
}

async fn download(
    client: &Client,
    from: &InGuest<'_>,
    to: &str,
    force: bool,
) -> Result<u64, CliError> {
    let target = Target::find(client, from.vm).await?;
    let path = target.path("/file");
    let write = failed("write", to);
    let mut file: Option<Box<dyn Write + Send>> = None;
    let mut offset = 0;
    loop {
        let query = [("path", from.path.to_owned()), ("offset", offset.to_string())];
        let piece: FilePiece = client.get(&path, &query).await?;
        let bytes = BASE64_STANDARD.decode(piece.data).unwrap_or_default();
        // Made once it is known that there is such a file in the guest.
        let file = match &mut file {
            Some(file) => file,
            none => none.insert(created(to, force).map_err(&write)?),
        };
        if bytes.is_empty() {
            file.flush().map_err(&write)?;
            return Ok(offset);
        }
        file.write_all(&bytes).map_err(&write)?;
        offset += u64::try_from(bytes.len()).unwrap_or(0);
        check_size(offset)?;
    }
}

fn created(path: &str, force: bool) -> std::io::Result<Box<dyn Write + Send>> {
    if path == "-" {
        return Ok(Box::new(std::io::stdout()));
    }
    let mut options = std::fs::File::options();
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    Ok(Box::new(options.write(true).open(Path::new(path))?))
}

fn check_size(bytes: u64) -> Result<(), CliError> {
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    let text = format!("the file has more than {} MiB; copy it over the network", MAX_BYTES >> 20);
    Err(CliError::Usage(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_a_guest_is_named_with_its_machine() {
        assert_eq!(in_guest("web1:/etc/motd"), Some(InGuest { vm: "web1", path: "/etc/motd" }));
        assert_eq!(in_guest("web1:C:\\x"), Some(InGuest { vm: "web1", path: "C:\\x" }));
        for ours in ["motd", "./a:b", "/tmp/a:b", ":x", "web1:", "-"] {
            assert_eq!(in_guest(ours), None, "{ours}");
        }
    }
}
