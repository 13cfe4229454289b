//! The content of a file: shared with the copy where the file system can do that, else copied with its
//! holes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use crate::drivers::untar::{Fault, host};

/// Copied between two looks whether anybody still wants it, bytes.
const PIECE_BYTES: u64 = 8 << 20;
/// Read and written at once where the kernel can't copy by itself, bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Gives the empty file `to` the content of `from`, which has this size.
pub(super) fn copy(
    from: &File,
    to: &File,
    size_bytes: u64,
    path: &Path,
    stop: &CancellationToken,
) -> Result<(), Fault> {
    if size_bytes == 0 || ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let failed = |error: Errno| host("copy", path, error.into());
    ftruncate(to, size_bytes).map_err(failed)?;
    let mut at = 0;
    while at < size_bytes {
        let (start, end) = match data(from, at) {
            Ok(Some(range)) => range,
            Ok(None) => break,
            // It has no holes that anybody knows.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => (at, size_bytes),
            Err(error) => return Err(failed(error)),
        };
        let end = end.min(size_bytes);
        at = start;
        while at < end {
            if stop.is_cancelled() {
                return Err(Fault::Stopped);
            }
            let copied = piece(from, to, at, (end - at).min(PIECE_BYTES)).map_err(failed)?;
            if copied == 0 {
                // It became shorter.
                return Ok(());
            }
            at += copied;
        }
        at = at.max(end);
    }
    Ok(())
}

/// The next range that is no hole.
fn data(file: &File, at: u64) -> Result<Option<(u64, u64)>, Errno> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

fn piece(from: &File, to: &File, at: u64, bytes: u64) -> Result<u64, Errno> {
    let (mut reads, mut writes) = (at, at);
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    match copy_file_range(from, Some(&mut reads), to, Some(&mut writes), length) {
        Ok(copied) => return Ok(u64::try_from(copied).unwrap_or(0)),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => {}
        Err(error) => return Err(error),
    }
    let known = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut buffer = vec![0; length.min(BUFFER_BYTES)];
    let read = from.read_at(&mut buffer, at).map_err(known)?;
    to.write_all_at(&buffer[..read], at).map_err(known)?;
    Ok(u64::try_from(read).unwrap_or(0))
}
