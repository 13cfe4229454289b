//! `muster vm export`: a machine with the content of its disks, as one file.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, IsTerminal as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::ValueHint;
use indicatif::{ProgressBar, ProgressStyle};
use muster_shared::api::task::TaskStarted;
use muster_shared::api::transfer::{VmExport, VmPiece};
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::export::{
    Event, FORMAT, Header, Place, ReadError, Reader, Role, VERSION, Volume, Writer,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::cell::size;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::patience::patiently;
use crate::vm::Target;
use crate::vm_snapshot::Quiesce;
use crate::{CliError, wait};

/// Longest time that a snapshot may take.
const SNAPSHOT_LIMIT: std::time::Duration = std::time::Duration::from_secs(900);
const SECONDS_PER_HOUR: u64 = 3600;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The export is of a snapshot, which is taken first and deleted at the end, so that the VM may be started
meanwhile. A VM that runs needs --live: what its guest has not written to its disks is not in the export,
as after a power cut, unless --quiesce guest has the guest agent write it.
FILE.partial holds what was copied; the same command goes on with it. `vm import` reads the file.
It holds the VM's metadata, secrets among them. Examples:
  muster vm export web1 web1.muster
  muster vm export db1 db1.muster --live --quiesce guest
  muster vm export web1 > web1.muster")]
pub(crate) struct Args {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,

    /// File to write [default: stdout].
    #[arg(value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// Exports a VM that runs.
    #[arg(long, conflicts_with = "snapshot")]
    live: bool,

    /// How the guest is made still while the snapshot is taken: its file systems by the guest agent in it
    /// (`guest`), its CPUs (`pause`), or not at all.
    #[arg(long, value_enum, default_value_t = Quiesce::None, requires = "live")]
    quiesce: Quiesce,

    /// Exports the VM as it was at this snapshot, which stays.
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,

    /// Hours after which the snapshot goes if nobody ends the export.
    #[arg(long, value_name = "HOURS", default_value_t = 24,
        value_parser = clap::value_parser!(u64).range(1..=720))]
    keep: u64,

    /// Overwrites an existing file.
    #[arg(long, requires = "file")]
    force: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    if args.file.is_none() && std::io::stdout().is_terminal() {
        let text = "the export would go to the terminal: name a file";
        return Err(CliError::Usage(text.to_owned()));
    }
    if let Some(file) = args.file.as_ref().filter(|file| !args.force && file.exists()) {
        let text = format!("{} exists; --force overwrites it", file.display());
        return Err(CliError::Usage(text));
    }
    let target = Target::find(client, &args.vm).await?;
    match &args.file {
        Some(file) => to_file(client, output, &args, &target, file).await,
        None => to_stdout(client, &args, &target).await,
    }
}

async fn to_stdout(client: &Client, args: &Args, target: &Target) -> Result<(), CliError> {
    let header = begin(client, args, target).await?;
    let interrupted = || CliError::Interrupted {
        goes_on: "the export is not complete".to_owned(),
        hint: "with a FILE, an export goes on where it stopped".to_owned(),
    };
    let failed = |source| CliError::File { action: "write to", path: "stdout".into(), source };
    let copied = wait::unless_interrupted(interrupted, async {
        let to = BufWriter::new(std::io::stdout().lock());
        let mut writer = Writer::begin(to, &header).map_err(failed)?;
        copy(client, target, &header, &mut writer, failed).await?;
        writer.end().map(drop).map_err(failed)
    });
    // Nobody can go on with it.
    let copied = copied.await;
    end(client, args, target, &header).await;
    copied
}

async fn to_file(
    client: &Client,
    output: &Output,
    args: &Args,
    target: &Target,
    file: &Path,
) -> Result<(), CliError> {
    let partial = beside(file);
    let write = |source| CliError::File { action: "write", path: partial.clone(), source };
    let (header, mut writer) = match Found::at(&partial, target)? {
        Found::Nothing => {
            let header = begin(client, args, target).await?;
            let to = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&partial)
                .map_err(write)?;
            let writer = Writer::begin(BufWriter::new(to), &header).map_err(write)?;
            (header, Some(writer))
        }
        Found::Part(header, place) => {
            let mut to = OpenOptions::new().write(true).open(&partial).map_err(write)?;
            to.set_len(place.at).map_err(write)?;
            to.seek(SeekFrom::End(0)).map_err(write)?;
            (*header, Some(Writer::go_on(BufWriter::new(to), place)))
        }
        Found::Whole(header) => (*header, None),
    };
    if let Some(mut writer) = writer.take() {
        let interrupted = || CliError::Interrupted {
            goes_on: format!("{} has what was copied", partial.display()),
            hint: "the same command goes on with it".to_owned(),
        };
        wait::unless_interrupted(interrupted, async {
            copy(client, target, &header, &mut writer, write).await?;
            let to = writer.end().map_err(write)?;
            to.into_inner().map_err(|error| write(error.into_error()))?.sync_all().map_err(write)
        })
        .await?;
    }
    std::fs::rename(&partial, file).map_err(write)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    synced.map_err(write)?;
    end(client, args, target, &header).await;
    let bytes = std::fs::metadata(file).map_err(write)?.len();
    let sentence = format!("{} is in {}: {}", target.shown(), file.display(), shown(bytes));
    output.done(&sentence, &json!({ "vm_uuid": target.uuid, "file": file, "bytes": bytes }))
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn shown(bytes: u64) -> String {
    size(bytes as f64)
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// What an earlier export left.
enum Found {
    Nothing,
    Part(Box<Header>, Place),
    Whole(Box<Header>),
}

impl Found {
    /// Reads all of it: what is gone on with has to be as it was written.
    fn at(path: &Path, target: &Target) -> Result<Self, CliError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(source) => {
                return Err(CliError::File { action: "read", path: path.to_owned(), source });
            }
        };
        let mut reader = Reader::new(BufReader::new(file));
        let mut header = None;
        let ended = loop {
            match reader.next_event() {
                Ok(Some(Event::Header(found))) => header = Some(found),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(ReadError::Cut { .. }) => break false,
                Err(_) if reader.place().at == 0 => break false,
                Err(error) => {
                    let text = format!("{}: {error}; remove it to begin again", path.display());
                    return Err(CliError::Usage(text));
                }
            }
        };
        let Some(header) = header else { return Ok(Self::Nothing) };
        if header.vm_uuid != target.uuid {
            let text =
                format!("{} is of VM {}; remove it to begin again", path.display(), header.vm_uuid);
            return Err(CliError::Usage(text));
        }
        Ok(if ended { Self::Whole(header) } else { Self::Part(header, reader.place()) })
    }
}

/// Takes the snapshot and asks what there is.
async fn begin(client: &Client, args: &Args, target: &Target) -> Result<Header, CliError> {
    let runs = target.state.as_deref() != Some("stopped");
    let snapshot = match &args.snapshot {
        Some(name) => name.clone(),
        None if runs && !args.live => {
            let text = format!(
                "{} is {}: stop it, or export it as it is with --live",
                target.shown(),
                target.state.as_deref().unwrap_or("in no known state")
            );
            return Err(CliError::Usage(text));
        }
        None => {
            let unique = SeededEntropy::from_os().uuid().simple().to_string();
            let name = format!("export-{}", &unique[..12]);
            let body = json!({
                "snapshot_name": name, "quiesce": args.quiesce.word(),
                "expires_s": args.keep * SECONDS_PER_HOUR,
            });
            let started: TaskStarted = client.put(&target.path("/snapshots"), &body).await?;
            let title = format!("snapshot {}", target.shown());
            wait::finished(client, &title, started.id.as_str(), SNAPSHOT_LIMIT).await?;
            name
        }
    };
    let query = [("snapshot_name", snapshot.clone())];
    let path = target.path("/export");
    let export: VmExport = patiently(async || client.get(&path, &query).await).await?;
    Ok(Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        exported_at: export.exported_at,
        muster_version: env!("CARGO_PKG_VERSION").to_owned(),
        server_uuid: target.server,
        vm_uuid: target.uuid,
        snapshot,
        live: args.snapshot.is_none() && runs,
        vm: export.vm,
        volumes: export.volumes,
    })
}

/// Deletes the snapshot that was taken for this. If that fails, it goes by itself.
async fn end(client: &Client, args: &Args, target: &Target, header: &Header) {
    if args.snapshot.as_ref() == Some(&header.snapshot) {
        return;
    }
    let segment = header.snapshot.replace('%', "%25");
    let path = target.path(&format!("/snapshots/{segment}"));
    let deleted = async {
        let started = patiently(async || client.delete::<TaskStarted>(&path).await).await?;
        let title = format!("delete the snapshot of {}", target.shown());
        wait::finished(client, &title, started.id.as_str(), SNAPSHOT_LIMIT).await
    };
    if let Err(error) = deleted.await {
        warn(&format!("snapshot {} is left, and expires: {error}", header.snapshot));
    }
}

async fn copy<W: Write>(
    client: &Client,
    target: &Target,
    header: &Header,
    writer: &mut Writer<W>,
    failed: impl Fn(std::io::Error) -> CliError,
) -> Result<(), CliError> {
    let bar = bar("export", &header.volumes);
    let path = target.path("/export/piece");
    let place = writer.place();
    for (number, volume) in header.volumes.iter().enumerate().skip(place.volume) {
        let mut from = if number == place.volume { place.offset } else { 0 };
        while from < volume.size_bytes {
            bar.set_position(passed(&header.volumes, number, from));
            let mut query =
                vec![("snapshot_name", header.snapshot.clone()), ("offset", from.to_string())];
            if let Role::Disk(_) = volume.role {
                query.push(("disk", volume.number.to_string()));
            }
            let piece: VmPiece = patiently(async || client.get(&path, &query).await).await?;
            let data = checked(&piece, volume, from)?;
            if !data.is_empty() {
                writer.data(number, piece.offset, &data).map_err(&failed)?;
            }
            from = piece.next;
        }
    }
    writer.flush().map_err(&failed)?;
    bar.finish_and_clear();
    Ok(())
}

/// The piece's bytes, if it is one that was asked for.
fn checked(piece: &VmPiece, volume: &Volume, from: u64) -> Result<Vec<u8>, CliError> {
    let bad = |why: &str| {
        let text = format!("{} from byte {from} on: {why}", volume.role);
        Err(CliError::Ended(text))
    };
    let Ok(data) = BASE64_STANDARD.decode(&piece.data) else {
        return bad("what arrived is not base64");
    };
    if !piece.sha256.eq_ignore_ascii_case(&hex::encode(Sha256::digest(&data))) {
        return bad("what arrived is damaged");
    }
    if piece.size_bytes != volume.size_bytes {
        return bad("it has another size now");
    }
    let end = u64::try_from(data.len()).ok().and_then(|length| piece.offset.checked_add(length));
    let within = piece.offset >= from
        && end.is_some_and(|end| end <= piece.next)
        && piece.next > from
        && piece.next <= volume.size_bytes;
    if within { Ok(data) } else { bad("another piece arrived") }
}

/// Bytes of all volumes up to a place in one of them.
pub(crate) fn passed(volumes: &[Volume], number: usize, offset: u64) -> u64 {
    let before = volumes.iter().take(number).map(|volume| volume.size_bytes);
    before.fold(offset, u64::saturating_add)
}

/// A progress bar over all volumes.
pub(crate) fn bar(title: &'static str, volumes: &[Volume]) -> ProgressBar {
    let bar = match passed(volumes, volumes.len(), 0) {
        // Of a VM without disks there is nothing to watch.
        0 => ProgressBar::hidden(),
        size if std::io::stderr().is_terminal() => ProgressBar::new(size),
        _ => ProgressBar::hidden(),
    };
    let template =
        "{prefix} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(title);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(change: impl FnOnce(&mut VmPiece)) -> VmPiece {
        let mut piece = VmPiece {
            size_bytes: 1000,
            offset: 100,
            next: 102,
            sha256: hex::encode(Sha256::digest("ok")),
            data: "b2s=".to_owned(),
        };
        change(&mut piece);
        piece
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut VmPiece), why: &str) {
        let volume = Volume { role: Role::Disk(0), size_bytes: 1000, number: 0 };
        let error = checked(&piece(change), &volume, 50).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("disk 0 from byte 50"), "{error}");
    }

    #[test]
    fn only_what_was_asked_for_is_written() {
        let volume = Volume { role: Role::Disk(0), size_bytes: 1000, number: 0 };
        assert_eq!(checked(&piece(|_| ()), &volume, 50).unwrap(), b"ok");
        check_refused(|piece| piece.data = "b2t=".to_owned(), "base64");
        check_refused(|piece| piece.data = "b2sh".to_owned(), "damaged");
        check_refused(|piece| piece.size_bytes = 999, "another size");
        check_refused(|piece| piece.offset = 49, "another piece");
        check_refused(|piece| piece.next = 101, "another piece");
        check_refused(|piece| piece.next = 1001, "another piece");
        // It would be asked for for ever.
        let nothing = |piece: &mut VmPiece| {
            (piece.offset, piece.next) = (50, 50);
            piece.data = String::new();
            piece.sha256 = hex::encode(Sha256::digest(""));
        };
        check_refused(nothing, "another piece");
    }
}
