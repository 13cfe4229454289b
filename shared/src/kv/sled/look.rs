//! A look at a log before sled may write to it.
//!
//! sled repairs a log when it opens it: what lies behind the first thing it can't read is zeroed,
//! even if that is everything. So a log is first opened as a copy; only if all that was
//! acknowledged is there, sled gets the log itself.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::super::acknowledged::Acknowledged;
use super::super::contents::{Report, Sum};
use super::super::panics::caught;
use super::super::{KvError, damaged, io_error};
use super::{FORMAT, LOG, layout, open_db, sled_error};

/// Kept free while the copy is there.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// Looks at the map in `path`, if there is one.
///
/// # Errors
/// [`KvError::Damaged`], [`KvError::InUse`], [`KvError::Io`]; the files are as they were.
pub(super) fn check(path: &Path, cache_bytes: u64) -> Result<(), KvError> {
    let copy = match LogCopy::make(path) {
        Ok(Some(copy)) => copy,
        Ok(None) => return Ok(()),
        Err(error @ KvError::Full { .. }) => {
            // Whoever can free room may be what this map is for, so a start is worth more.
            let path = path.display();
            tracing::warn!(%path, %error, "the log is opened without a look at a copy of it");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let surveyed = copy.survey(path, cache_bytes, |_, _| {});
    surveyed.map_err(|error| in_folder(path, error))
}

/// Reads all of the map in `path`, which nobody has open. Only the first damage is reported:
/// sled shows nothing of what lies behind it.
///
/// # Errors
/// [`KvError::Full`]: no room for a copy; [`KvError::InUse`], [`KvError::Io`].
pub(in crate::kv) fn verify(
    path: &Path,
    cache_bytes: u64,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<Report, KvError> {
    let mut sum = Sum::default();
    let add = |key: &[u8], value: &[u8]| {
        sum.add(key, value);
        each(key, value);
    };
    let surveyed = match LogCopy::make(path) {
        Ok(Some(copy)) => copy.survey(path, cache_bytes, add),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match surveyed {
        Err(error) if error.is_damage() => Ok(Report::new(sum, vec![error.to_string()])),
        Err(error) => Err(error),
        Ok(()) => Ok(Report::new(sum, Vec::new())),
    }
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
struct LogCopy(PathBuf);

impl LogCopy {
    /// `None`: there is no map yet.
    fn make(path: &Path) -> Result<Option<Self>, KvError> {
        let used = path.join("format").exists() || Acknowledged::read(path)?.is_some();
        let log = match File::open(path.join(LOG)) {
            Ok(log) => log,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !used => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(path, "the log is gone"));
            }
            Err(e) => return Err(io_error("open the log of", e)),
        };
        // Held while it is copied; sled will have a lock on the copy.
        if log.try_lock().is_err() {
            return Err(KvError::InUse { path: path.display().to_string() });
        }
        let needed_bytes = size(path)?.saturating_add(RESERVE_BYTES);
        let stat = nix::sys::statvfs::statvfs(path).map_err(|e| io_error("measure", e.into()))?;
        let free_bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
        if free_bytes < needed_bytes {
            return Err(KvError::Full { free_bytes, needed_bytes });
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".look");
        let failed = |e| io_error("copy", e);
        let copy = Self(PathBuf::from(name));
        // Left by a process that was killed.
        copy.remove().map_err(failed)?;
        copy_folder(path, &copy.0).map_err(failed)?;
        Ok(Some(copy))
    }

    /// Whether the map, a copy of that in `path`, has all that was acknowledged.
    fn survey(
        &self,
        path: &Path,
        cache_bytes: u64,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        // sled panics on some kinds of damage, on others only when what it opened is used.
        caught(|| self.read_all(path, cache_bytes, each)).unwrap_or_else(|panic| {
            Err(damaged(path, &format!("sled panicked when it read the records: {panic}")))
        })
    }

    fn read_all(
        &self,
        path: &Path,
        cache_bytes: u64,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        let acknowledged = Acknowledged::read(path)?;
        let db = open_db(&self.0, cache_bytes)?;
        let format = db.open_tree("format").map_err(|e| sled_error("open", e))?;
        let marked = format.get(FORMAT).map_err(|e| sled_error("read", e))?.is_some();
        if path.join("format").exists() && !marked {
            return Err(damaged(path, "what was written first is gone"));
        }
        let found = layout::count(&db, each)?;
        let Some(ledger) = layout::ledger(&db)? else {
            // Nothing was written yet, or by a version that kept no ledger.
            let written = acknowledged.is_some_and(|groups| groups > 0);
            return if written { Err(damaged(path, "its ledger is gone")) } else { Ok(()) };
        };
        let shortfall = ledger.shortfall(&found, acknowledged);
        shortfall.map_or(Ok(()), |what| Err(damaged(path, &what)))
    }

    fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for LogCopy {
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
