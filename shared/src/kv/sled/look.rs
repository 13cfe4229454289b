//! A look at a log before sled may write to it.
//!
//! sled repairs a log when it opens it: what lies behind the first thing it can't read is zeroed,
//! even if that is everything. So a log is first opened as a copy; only if all that was
//! acknowledged is there, sled gets the log itself.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::super::acknowledged::Acknowledged;
use super::super::ledger::Ledger;
use super::super::{KvError, damaged, io_error};
use super::{FORMAT, LOG, layout, open_db, sled_error};

/// Kept free while the copy is there.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// Looks at the map in `path`, if there is one.
///
/// # Errors
/// [`KvError::Damaged`], [`KvError::InUse`], [`KvError::Io`]; the files are as they were.
pub(super) fn check(path: &Path, cache_bytes: u64) -> Result<(), KvError> {
    let acknowledged = Acknowledged::read(path)?;
    let marked = path.join("format").exists();
    let log = match File::open(path.join(LOG)) {
        Ok(log) => log,
        Err(e) if e.kind() == io::ErrorKind::NotFound && acknowledged.is_none() && !marked => {
            return Ok(());
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(damaged(path, "the log is gone"));
        }
        Err(e) => return Err(io_error("open the log of", e)),
    };
    if log.try_lock().is_err() {
        return Err(KvError::InUse { path: path.display().to_string() });
    }
    let bytes = size(path)?;
    let stat = nix::sys::statvfs::statvfs(path).map_err(|e| io_error("measure", e.into()))?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    if free < bytes.saturating_add(RESERVE_BYTES) {
        // Whoever can free room may be what this map is for, so a start is worth more.
        tracing::warn!(
            path = %path.display(), free_bytes = free, needed_bytes = bytes,
            "no room for a copy: the log is opened without a look at it"
        );
        return Ok(());
    }
    let copy = Copy::make(path)?;
    // sled's own lock is on the copy.
    drop(log);
    let db = open_db(&copy.0, cache_bytes).map_err(|error| in_folder(path, error))?;
    survey(&db, path, marked, acknowledged).map_err(|error| in_folder(path, error))
}

/// Whether the open map has all that was acknowledged.
fn survey(
    db: &sled::Db,
    path: &Path,
    marked: bool,
    acknowledged: Option<u64>,
) -> Result<(), KvError> {
    let format = db.open_tree("format").map_err(|e| sled_error("open", e))?;
    if marked && format.get(FORMAT).map_err(|e| sled_error("read", e))?.is_none() {
        return Err(damaged(path, "what was written first is gone"));
    }
    let found = read_all(db)?;
    let Some(ledger) = layout::ledger(db)? else {
        // Nothing was written yet, or by a version that kept no ledger.
        let written = acknowledged.is_some_and(|groups| groups > 0);
        return if written { Err(damaged(path, "its ledger is gone")) } else { Ok(()) };
    };
    if let Some(difference) = ledger.difference(&found) {
        return Err(damaged(path, &difference));
    }
    match acknowledged {
        Some(groups) if groups > ledger.groups => {
            let detail = format!("it ends at group {} of {groups}", ledger.groups);
            Err(damaged(path, &detail))
        }
        _ => Ok(()),
    }
}

fn read_all(db: &sled::Db) -> Result<Ledger, KvError> {
    let count = std::panic::AssertUnwindSafe(|| layout::count(db));
    std::panic::catch_unwind(count).unwrap_or_else(|_| {
        let detail = "sled panicked when it read them".to_owned();
        Err(KvError::Corrupt { key: "(all)".to_owned(), detail })
    })
}

/// An error found in a copy, said of the original.
fn in_folder(path: &Path, error: KvError) -> KvError {
    if error.is_damage() {
        let detail = match &error {
            KvError::Damaged { detail, .. } => detail.clone(),
            other => other.to_string(),
        };
        return damaged(path, &detail);
    }
    error
}

/// A copy of a map's folder beside it, removed in the end.
struct Copy(PathBuf);

impl Copy {
    fn make(path: &Path) -> Result<Self, KvError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".look");
        let failed = |e| io_error("copy", e);
        let copy = Self(PathBuf::from(name));
        // Left by a process that was killed.
        copy.remove().map_err(failed)?;
        copy_folder(path, &copy.0).map_err(failed)?;
        Ok(copy)
    }

    fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a copy of a log");
        }
    }
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    crate::folders::make_private(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Bytes of the files in a map's folder.
fn size(folder: &Path) -> Result<u64, KvError> {
    let failed = |e| io_error("measure", e);
    let mut total = 0;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.metadata().map_err(failed)?;
        total += if kind.is_dir() { size(&entry.path())? } else { kind.len() };
    }
    Ok(total)
}
