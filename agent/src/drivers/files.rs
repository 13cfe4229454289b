//! Files that survive a power cut, for the drivers that keep something on disk.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs;
use tokio::io::AsyncWriteExt as _;

use super::DriverError;

/// A failure of the file system; a full disk is the refusal `StoreFull`.
#[must_use]
pub fn failed(action: &str, path: &Path, error: io::Error) -> DriverError {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded) {
        let text = format!("no space left to {action} {}", path.display());
        return super::storage::store_full(text);
    }
    DriverError::failed(format!("{action} {}", path.display()), error)
}

/// Makes a folder and its parents; durable when it returns.
///
/// # Errors
/// The file system failed.
pub async fn make_folder(path: &Path) -> Result<(), DriverError> {
    if fs::metadata(path).await.is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(path).await;
    made.map_err(|e| failed("create folder", path, e))?;
    match path.parent() {
        Some(parent) => sync_folder(parent).await,
        None => Ok(()),
    }
}

/// Makes the names in a folder durable.
///
/// # Errors
/// The file system failed.
pub async fn sync_folder(path: &Path) -> Result<(), DriverError> {
    let sync = async { fs::File::open(path).await?.sync_all().await };
    sync.await.map_err(|e| failed("sync folder", path, e))
}

/// Makes the content of a file durable.
///
/// # Errors
/// The file system failed.
pub async fn sync_file(path: &Path) -> Result<(), DriverError> {
    let sync = async { fs::OpenOptions::new().write(true).open(path).await?.sync_all().await };
    sync.await.map_err(|e| failed("sync", path, e))
}

/// Gives a file its final name; durable when it returns. The content must be durable already.
///
/// # Errors
/// The file system failed.
pub async fn rename(from: &Path, to: &Path) -> Result<(), DriverError> {
    fs::rename(from, to).await.map_err(|e| failed("rename to", to, e))?;
    match to.parent() {
        Some(parent) => sync_folder(parent).await,
        None => Ok(()),
    }
}

/// Replaces a file as a whole: after a crash it has the old content or the new one.
///
/// # Errors
/// The file system failed; the old content is untouched and the temporary file gone.
pub async fn write(path: &Path, content: &[u8]) -> Result<(), DriverError> {
    let temporary = temporary(path);
    let written = async {
        let mut file = fs::File::create(&temporary).await?;
        file.write_all(content).await?;
        file.flush().await?;
        file.sync_all().await
    };
    if let Err(error) = written.await {
        remove(&temporary).await?;
        return Err(failed("write", path, error));
    }
    rename(&temporary, path).await
}

/// The name under which a file is made before it gets its own: `.<name>.tmp` beside it.
#[must_use]
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Removes a file; a missing one is no error. Not yet durable.
///
/// # Errors
/// The file system failed.
pub async fn remove(path: &Path) -> Result<(), DriverError> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes a folder with all that is in it, following no link; a missing one is no error. Not yet
/// durable.
///
/// # Errors
/// The file system failed.
pub async fn remove_folder(path: &Path) -> Result<(), DriverError> {
    match fs::remove_dir_all(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove folder", path, error))
        }
        _ => Ok(()),
    }
}

/// As [`remove_folder`], and durable: no power cut brings it back.
///
/// # Errors
/// The file system failed.
pub async fn remove_folder_durably(path: &Path) -> Result<(), DriverError> {
    remove_folder(path).await?;
    // Also of one that is gone: who removed it may have died before this.
    match path.parent() {
        Some(folder) if fs::try_exists(folder).await.unwrap_or(true) => sync_folder(folder).await,
        _ => Ok(()),
    }
}

/// The whole content of a small file; `None` when there is none.
///
/// # Errors
/// The file system failed.
pub async fn read(path: &Path) -> Result<Option<Vec<u8>>, DriverError> {
    match fs::read(path).await {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, error)),
    }
}

/// The entries of a folder, sorted by name; none when the folder is missing.
///
/// # Errors
/// The file system failed.
pub async fn list(folder: &Path) -> Result<Vec<PathBuf>, DriverError> {
    let mut entries = match fs::read_dir(folder).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", folder, error)),
    };
    let mut paths = Vec::new();
    loop {
        match entries.next_entry().await {
            Ok(Some(entry)) => paths.push(entry.path()),
            Ok(None) => break,
            Err(error) => return Err(failed("list", folder, error)),
        }
    }
    paths.sort();
    Ok(paths)
}

/// The first bytes of a file, at most `count`.
///
/// # Errors
/// The file system failed.
pub async fn head(path: &Path, count: u64) -> Result<Vec<u8>, DriverError> {
    use tokio::io::AsyncReadExt as _;
    let read = async {
        let mut start = Vec::new();
        fs::File::open(path).await?.take(count).read_to_end(&mut start).await?;
        Ok(start)
    };
    read.await.map_err(|e| failed("read", path, e))
}

/// Size and free space of the file system that holds `path`, bytes, as `df` counts them: blocks that
/// are kept back for others are no part of it.
///
/// # Errors
/// The file system failed.
pub fn space(path: &Path) -> Result<Space, DriverError> {
    let found = nix::sys::statvfs::statvfs(path)
        .map_err(|e| failed("read the free space of", path, e.into()))?;
    let block_bytes = found.fragment_size();
    let used = found.blocks().saturating_sub(found.blocks_free());
    let available = found.blocks_available();
    Ok(Space {
        size_bytes: used.saturating_add(available).saturating_mul(block_bytes),
        available_bytes: available.saturating_mul(block_bytes),
    })
}

/// [`space`], beside the async threads: a file system that hangs does not answer this either.
///
/// # Errors
/// The file system failed.
#[expect(clippy::disallowed_methods, reason = "the other calls here do the same within tokio")]
pub async fn space_beside(path: &Path) -> Result<Space, DriverError> {
    let owned = path.to_owned();
    let asked = tokio::task::spawn_blocking(move || space(&owned)).await;
    asked.map_err(|error| DriverError::failed("read the free space", error))?
}

/// What a file takes on disk, bytes: holes are not counted.
///
/// # Errors
/// The file system failed.
pub async fn allocated_bytes(path: &Path) -> Result<u64, DriverError> {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK_BYTES: u64 = 512;
    let found = fs::metadata(path).await.map_err(|e| failed("look at", path, e))?;
    Ok(found.blocks().saturating_mul(BLOCK_BYTES))
}

/// What a file that may be removed meanwhile takes on disk, bytes; none when it is not there.
///
/// # Errors
/// The file system failed.
pub async fn used_bytes(path: &Path) -> Result<u64, DriverError> {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK_BYTES: u64 = 512;
    match fs::symlink_metadata(path).await {
        Ok(found) => Ok(found.blocks().saturating_mul(BLOCK_BYTES)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(failed("read the size of", path, error)),
    }
}

/// Space of a file system, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Used and available together.
    pub size_bytes: u64,
    /// Free for this agent.
    pub available_bytes: u64,
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::Code;

    use super::*;

    #[tokio::test]
    async fn a_write_replaces_the_whole_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        write(&path, b"a long first content").await.unwrap();
        write(&path, b"second").await.unwrap();
        assert_eq!(read(&path).await.unwrap().unwrap(), b"second");
        assert_eq!(list(folder.path()).await.unwrap(), vec![path.clone()]);
        remove(&path).await.unwrap();
        remove(&path).await.unwrap();
        assert_eq!(read(&path).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_full_disk_is_store_full() {
        // /dev/full answers every write as a full disk does.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        std::os::unix::fs::symlink("/dev/full", temporary(&path)).unwrap();
        let refused = write(&path, b"content").await.unwrap_err();
        assert!(
            matches!(refused, DriverError::Refused { code: Code::StoreFull, .. }),
            "{refused:?}"
        );
        assert_eq!(list(folder.path()).await.unwrap(), Vec::<PathBuf>::new());
    }
}
