//! What can be read of a map that nobody has open, damaged or not.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use redb::{ReadOnlyDatabase, ReadableDatabase};

use super::super::acknowledged::Acknowledged;
use super::super::contents::{Report, Sum};
use super::super::ledger::Ledger;
use super::super::{KvError, io_error};
use super::overlay::Overlay;
use super::records::{self, Direction, Failure};
use super::{FILE, NO_LEDGER, builder, guarded, open_over, replay};

/// Reads all of the map in `path`, which nobody has open, without writing; `each` gets every record
/// that is sound.
///
/// # Errors
/// [`KvError::InUse`], [`KvError::Io`].
pub(in crate::kv) fn verify(
    path: &Path,
    cache_bytes: u64,
    each: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<Report, KvError> {
    let mut damages = Vec::new();
    let acknowledged = note(&mut damages, Acknowledged::read(path))?.flatten();
    drop(note(&mut damages, open_over(path, cache_bytes, true))?);
    let mut survey = Survey { path, sum: Sum::default(), damages, last: None, each };
    // Once more without that check, for what can still be read.
    if let Some(db) = note(&mut survey.damages, open_over(path, cache_bytes, false))? {
        let damage = note(&mut survey.damages, replay(&db, path, None))?.flatten();
        survey.damages.extend(damage);
        survey.read_all(&db, acknowledged)?;
    } else if let Some(db) = note(&mut survey.damages, open_read_only(path, cache_bytes))? {
        survey.read_all(&db, acknowledged)?;
    }
    Ok(survey.report())
}

/// What was found of a map that may be damaged.
struct Survey<'a> {
    path: &'a Path,
    sum: Sum,
    damages: Vec<String>,
    /// The last key of the way forward.
    last: Option<Vec<u8>>,
    each: &'a mut dyn FnMut(&[u8], &[u8]),
}

impl Survey<'_> {
    /// Reads what can be read, and compares it with the ledger and what was acknowledged.
    fn read_all(
        &mut self,
        db: &impl ReadableDatabase,
        acknowledged: Option<u64>,
    ) -> Result<(), KvError> {
        let found = self.read(db, Direction::Forward)?;
        if found.is_none() {
            // Of what lies behind a page that can't be read, the other end is found from there.
            self.read(db, Direction::Backward)?;
        }
        let ledger = guarded("check", self.path, || records::ledger(&db.begin_read()?));
        let ledger = note(&mut self.damages, ledger)?;
        if let (Some(found), Some(ledger)) = (found, ledger) {
            let no_ledger = || Some(NO_LEDGER.to_owned());
            let wrong = ledger.map_or_else(no_ledger, |l| l.shortfall(&found, acknowledged));
            self.damages.extend(wrong);
        }
        Ok(())
    }

    /// Reads records until there are no more that were not read before; `None` if that ended in
    /// damage, which is noted.
    fn read(
        &mut self,
        db: &impl ReadableDatabase,
        way: Direction,
    ) -> Result<Option<Ledger>, KvError> {
        let path = self.path;
        let known = self.last.take();
        let read = guarded("check", path, || {
            let found = records::walk(&db.begin_read()?, way, |record| {
                let key = match &record {
                    Ok((key, _)) => *key,
                    Err(Failure::Record { key, .. }) => key.as_slice(),
                    Err(Failure::Engine(_)) => &[],
                };
                if way == Direction::Backward && known.as_deref().is_some_and(|last| key <= last) {
                    return Ok(ControlFlow::Break(()));
                }
                self.last = Some(key.to_vec());
                match record {
                    Ok((key, value)) => {
                        self.sum.add(key, value);
                        (self.each)(key, value);
                    }
                    Err(failure) => {
                        self.damages.push(failure.in_folder("check", path).to_string());
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(found.ledger)
        });
        note(&mut self.damages, read)
    }

    fn report(self) -> Report {
        Report::new(self.sum, self.damages)
    }
}

/// Adds an error that is damage to the list; any other ends the check.
fn note<T>(damages: &mut Vec<String>, outcome: Result<T, KvError>) -> Result<Option<T>, KvError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_damage() => {
            damages.push(error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Opens the map without looking at its pages, which works only if it was closed: after a crash
/// redb has to find out which pages are in use, and that takes all of them.
fn open_read_only(path: &Path, cache_bytes: u64) -> Result<ReadOnlyDatabase, KvError> {
    let file = File::options().read(true).write(true).open(path.join(FILE));
    let file = file.map_err(|e| io_error("open a file of", e))?;
    guarded("open", path, || {
        Ok(builder(cache_bytes).open_read_only_with_backend(Overlay::new(file)?)?)
    })
}
