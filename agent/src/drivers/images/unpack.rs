//! From the downloaded file to the qcow2 file that disks are based on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_compression::tokio::bufread::{BzDecoder, GzipDecoder, XzDecoder, ZstdDecoder};
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use tokio::fs;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};
use tokio_util::sync::CancellationToken;

use super::manifest::{Compression, Format, ImageFile};
use super::room::{self, Room};
use crate::drivers::storage::qcow2;
use crate::drivers::{DriverError, files};
use crate::host::{Command, SharedExec};

const BUFFER_BYTES: usize = 256 * 1024;
/// Largest image after unpacking: a small file must not fill the disk by unpacking for ever.
const MAX_UNPACKED_BYTES: u64 = 1 << 40;
/// Converting writes the whole image; slower than this is a broken disk.
const CONVERT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Only a header is written.
const LAY_OVER_TIMEOUT: Duration = Duration::from_secs(60);
/// In the first record of what `zfs send` writes.
const ZFS_STREAM_MAGIC: u64 = 0x2_f5ba_cbac;

/// Files that belong to an install under way.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// The downloaded file.
    pub(super) partial: PathBuf,
    /// Its content without compression.
    pub(super) unpacked: PathBuf,
    /// The result, before it gets its name.
    pub(super) converted: PathBuf,
}

/// Takes the compression of the downloaded file away; returns where its content is.
pub(super) async fn plain<'a>(
    image: ImageUuid,
    file: &ImageFile,
    work: &'a Work,
) -> Result<&'a PathBuf, DriverError> {
    if file.compression == Compression::None {
        return Ok(&work.partial);
    }
    decompress(image, file.compression, &work.partial, &work.unpacked).await?;
    Ok(&work.unpacked)
}

/// Makes the image's qcow2 file from the downloaded one; durable, but not yet under its name.
/// Returns where it is.
pub(super) async fn unpack(
    image: ImageUuid,
    file: &ImageFile,
    work: &Work,
    exec: &SharedExec,
    cancelled: &CancellationToken,
) -> Result<PathBuf, DriverError> {
    let plain = plain(image, file, work).await?;
    let header_bytes = u64::try_from(qcow2::HEADER_BYTES).unwrap_or(u64::MAX);
    let start = files::head(plain, header_bytes).await?;
    if start.is_empty() {
        return Err(invalid(image, "it is empty"));
    }
    if file.format == Format::Unknown && is_zfs_stream(&start) {
        let text =
            format!("image {image}: a ZFS stream is not supported, only disks as qcow2 or raw");
        return Err(DriverError::refused(Code::NotSupported, text));
    }
    let header = match file.format {
        Format::Raw | Format::Container => None,
        Format::Qcow2 | Format::Unknown => {
            qcow2::parse(&start).map_err(|e| invalid(image, &e.to_string()))?
        }
    };
    match header {
        // Such an image would show the guest a file of this host.
        Some(header) if header.refers_to_files => {
            Err(invalid(image, "it refers to a file outside itself"))
        }
        Some(_) => {
            let metadata =
                fs::metadata(plain).await.map_err(|e| files::failed("read", plain, e))?;
            qcow2::check(&start, metadata.len()).map_err(|e| invalid(image, &e.to_string()))?;
            files::sync_file(plain).await?;
            Ok(plain.clone())
        }
        None if file.format == Format::Qcow2 => Err(invalid(image, "it is not a qcow2 file")),
        None => {
            let raw_bytes = files::allocated_bytes(plain).await?;
            room::check(plain, raw_bytes, &work.converted.display().to_string())?;
            convert(plain, &work.converted, exec, cancelled).await?;
            files::sync_file(&work.converted).await?;
            Ok(work.converted.clone())
        }
    }
}

/// Whether a file begins as `zfs send` does, on a machine of either order of bytes.
fn is_zfs_stream(start: &[u8]) -> bool {
    let magic = start.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    magic.is_some_and(|magic| [magic, magic.swap_bytes()].contains(&ZFS_STREAM_MAGIC))
}

/// Makes a file that holds a difference one over the image's origin, which lies beside it; durable
/// when it returns.
pub(super) async fn lay_over(
    file: &Path,
    origin: &Path,
    exec: &SharedExec,
    cancelled: &CancellationToken,
) -> Result<(), DriverError> {
    // Relative to the file, so that the data folder can be moved as a whole.
    let origin = origin.file_name().unwrap_or(origin.as_os_str()).to_string_lossy().into_owned();
    let file_text = file.display().to_string();
    let argv = ["qemu-img", "rebase", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b"];
    let argv = argv.into_iter().chain([origin.as_str(), &file_text]);
    let ran = exec.run(&Command::new(argv, LAY_OVER_TIMEOUT), cancelled).await;
    match ran.and_then(|output| output.checked("qemu-img rebase")) {
        Ok(_) => files::sync_file(file).await,
        Err(error) => Err(DriverError::failed(format!("lay {file_text} over {origin}"), error)),
    }
}

fn invalid(image: ImageUuid, problem: &str) -> DriverError {
    DriverError::refused(Code::ImageInvalid, format!("the file of image {image}: {problem}"))
}

async fn decompress(
    image: ImageUuid,
    compression: Compression,
    from: &Path,
    to: &Path,
) -> Result<(), DriverError> {
    let source = fs::File::open(from).await.map_err(|e| files::failed("open", from, e))?;
    let source = BufReader::with_capacity(BUFFER_BYTES, source);
    let target = fs::File::create(to).await.map_err(|e| files::failed("create", to, e))?;
    let target = BufWriter::with_capacity(BUFFER_BYTES, target);
    match compression {
        Compression::Bzip2 => {
            let mut decoder = BzDecoder::new(source);
            decoder.multiple_members(true);
            copy(image, decoder, target, to).await
        }
        Compression::Gzip => {
            let mut decoder = GzipDecoder::new(source);
            decoder.multiple_members(true);
            copy(image, decoder, target, to).await
        }
        Compression::Xz => {
            let mut decoder = XzDecoder::new(source);
            decoder.multiple_members(true);
            copy(image, decoder, target, to).await
        }
        Compression::Zstd => {
            let mut decoder = ZstdDecoder::new(source);
            decoder.multiple_members(true);
            copy(image, decoder, target, to).await
        }
        Compression::None => copy(image, source, target, to).await,
    }
}

/// Copies all; an error of the reader is the image's fault, one of the writer the disk's.
async fn copy(
    image: ImageUuid,
    mut from: impl AsyncRead + Unpin,
    mut to: BufWriter<fs::File>,
    path: &Path,
) -> Result<(), DriverError> {
    let failed = |e| files::failed("write", path, e);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total_bytes = 0_u64;
    let mut room = Room::new(path);
    loop {
        let read = from.read(&mut buffer).await;
        let read = read.map_err(|e| invalid(image, &format!("it can't be unpacked: {e}")))?;
        if read == 0 {
            break;
        }
        total_bytes = total_bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if total_bytes > MAX_UNPACKED_BYTES {
            return Err(invalid(image, "it unpacks to more than 1 TiB"));
        }
        room.take(read)?;
        to.write_all(&buffer[..read]).await.map_err(failed)?;
    }
    to.flush().await.map_err(failed)
}

async fn convert(
    raw: &Path,
    to: &Path,
    exec: &SharedExec,
    cancelled: &CancellationToken,
) -> Result<(), DriverError> {
    let (from_text, to_text) = (raw.display().to_string(), to.display().to_string());
    let argv = ["qemu-img", "convert", "-q", "-f", "raw", "-O", "qcow2", &from_text, &to_text];
    let command = Command::new(argv, CONVERT_TIMEOUT);
    let ran = exec.run(&command, cancelled).await;
    match ran.and_then(|output| output.checked("qemu-img convert")) {
        Ok(_) => Ok(()),
        Err(error) if error.to_string().contains("No space left on device") => {
            Err(super::super::storage::store_full(format!("no space left for {to_text}")))
        }
        Err(error) => Err(DriverError::failed(format!("convert {from_text} to qcow2"), error)),
    }
}
