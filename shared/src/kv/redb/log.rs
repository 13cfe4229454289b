//! The log: the groups of commits that the database does not have yet.
//!
//! A group is one frame, synced before its commits are acknowledged: one write behind the other,
//! where the database would write pages all over its file. Two files take turns. While the database
//! takes over what one of them holds, frames go to the other; what was taken over is written over.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::{Buf as _, Bytes};
use xxhash_rust::xxh3::Xxh3;

use super::super::committer::Changes;
use super::super::{KvError, io_error, sync_dir};

const FILES: [&str; 2] = ["log.0", "log.1"];
/// A frame begins at a multiple of this: what a disk writes as a whole holds one frame only, so that
/// a torn write can't harm the frame before it.
const BLOCK: usize = 4_096;
/// Log, number of the group, bytes of the body, checksum of all this: 64 bits each.
const HEAD: usize = 32;
/// In place of a value's length: the key was removed.
const REMOVED: u32 = u32::MAX;

/// The open log of a map.
#[derive(Debug)]
pub(super) struct Log {
    id: u64,
    files: [File; 2],
    /// Which of them takes frames.
    active: usize,
    /// Where the next frame begins.
    end: u64,
    frame: Vec<u8>,
}

/// What a log holds beyond the database.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By number, without a gap.
    pub(super) groups: Vec<(u64, Changes)>,
    /// The first group behind a gap: those between were acknowledged and can't be read.
    pub(super) beyond: Option<u64>,
}

impl Log {
    /// Begins an empty log in a map's folder. An earlier one there is emptied. The id is one that no
    /// other log of the map has.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub(super) fn create(folder: &Path, id: u64) -> Result<Self, KvError> {
        let create = |name| File::create(folder.join(name)).map_err(failed);
        let files = [create(FILES[0])?, create(FILES[1])?];
        for file in &files {
            file.sync_all().map_err(failed)?;
        }
        sync_dir(folder)?;
        Ok(Self { id, files, active: 0, end: 0, frame: Vec::new() })
    }

    /// Writes a group and returns once it survives a power cut.
    ///
    /// # Errors
    /// [`KvError::Io`]; whether the group is in the log is unknown then.
    pub(super) fn append(&mut self, number: u64, changes: &Changes) -> Result<(), KvError> {
        encode(&mut self.frame, self.id, number, changes);
        let file = &self.files[self.active];
        file.write_all_at(&self.frame, self.end).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        self.end += long(self.frame.len());
        Ok(())
    }

    /// Has the next frames go to the other file, over what is there: the database must have it.
    pub(super) fn turn(&mut self) {
        self.active = 1 - self.active;
        self.end = 0;
    }

    /// Reads what a log holds behind a group.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub(super) fn read(folder: &Path, id: u64, group: u64) -> Result<Found, KvError> {
        let mut all = BTreeMap::new();
        for name in FILES {
            match std::fs::read(folder.join(name)) {
                Ok(content) => all.extend(frames(&content, id)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("read a file of", error)),
            }
        }
        let mut found = Found::default();
        for (number, changes) in all.split_off(&(group + 1)) {
            if number != group + 1 + long(found.groups.len()) {
                found.beyond = Some(number);
                break;
            }
            found.groups.push((number, changes));
        }
        Ok(found)
    }

    /// Removes the log of a map whose database has everything.
    ///
    /// # Errors
    /// [`KvError::Io`].
    pub(super) fn remove(folder: &Path) -> Result<(), KvError> {
        for name in FILES {
            match std::fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

fn failed(error: io::Error) -> KvError {
    io_error("write to the log of", error)
}

fn long(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Bytes that a frame takes whose changes have so many bytes.
pub(super) fn frame_bytes(changes: u64, bytes: u64) -> u64 {
    let body = bytes.saturating_add(changes.saturating_mul(8));
    body.saturating_add(long(HEAD + BLOCK))
}

fn checksum(head: &[u8], body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(head);
    hash.update(body);
    hash.digest()
}

fn encode(frame: &mut Vec<u8>, id: u64, number: u64, changes: &Changes) {
    frame.clear();
    frame.resize(HEAD, 0);
    let length = |bytes: &Bytes| u32::try_from(bytes.len()).unwrap_or(REMOVED);
    for (key, value) in changes {
        frame.extend(length(key).to_be_bytes());
        frame.extend(value.as_ref().map_or(REMOVED, length).to_be_bytes());
        frame.extend_from_slice(key);
        frame.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let body = long(frame.len() - HEAD);
    for (slot, number) in frame.chunks_mut(8).zip([id, number, body]) {
        slot.copy_from_slice(&number.to_be_bytes());
    }
    let sum = checksum(&frame[..HEAD - 8], &frame[HEAD..]);
    frame[HEAD - 8..HEAD].copy_from_slice(&sum.to_be_bytes());
    frame.resize(frame.len().next_multiple_of(BLOCK), 0);
}

/// The frames of a log in a file, wherever they begin: behind the newest one are older ones, and
/// behind one that can't be read there may be others.
fn frames(content: &[u8], id: u64) -> Vec<(u64, Changes)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < content.len() {
        let bytes = match decode(&content[at..], id) {
            Some((number, changes, bytes)) => {
                found.push((number, changes));
                bytes
            }
            None => BLOCK,
        };
        at += bytes.next_multiple_of(BLOCK);
    }
    found
}

/// The frame at the beginning of some bytes: its number, its changes, and how many bytes it has.
fn decode(bytes: &[u8], id: u64) -> Option<(u64, Changes, usize)> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let mut numbers = head;
    if numbers.get_u64() != id {
        return None;
    }
    let (number, length) = (numbers.get_u64(), usize::try_from(numbers.get_u64()).ok()?);
    let mut body = rest.get(..length)?;
    if numbers.get_u64() != checksum(&head[..HEAD - 8], body) {
        return None;
    }
    let mut changes = Changes::new();
    while !body.is_empty() {
        let (key, value) = (body.try_get_u32().ok()?, body.try_get_u32().ok()?);
        let mut take = |length: u32| {
            let (taken, rest) = body.split_at_checked(usize::try_from(length).ok()?)?;
            body = rest;
            Some(Bytes::copy_from_slice(taken))
        };
        let key = take(key)?;
        let value = if value == REMOVED { None } else { Some(take(value)?) };
        changes.insert(key, value);
    }
    Some((number, changes, HEAD + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 7;

    fn changes(number: u64, bytes: usize) -> Changes {
        let value = Bytes::from(vec![number.to_be_bytes()[7]; bytes]);
        [("a".into(), Some(value)), (Bytes::from(number.to_string()), None)].into()
    }

    fn numbers(found: &Found) -> Vec<u64> {
        found.groups.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn what_was_written_is_read_in_its_order_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), ID).unwrap();
        let bytes = |number: u64| usize::try_from(number).unwrap() * 1_500;
        for number in 1..=9 {
            // 1 to 3, then 4 to 6 to the other file, then 7 to 9 over 1 to 3.
            if number % 3 == 1 && number > 1 {
                log.turn();
            }
            log.append(number, &changes(number, bytes(number))).unwrap();
        }
        let found = Log::read(dir.path(), ID, 3).unwrap();
        let want: Vec<_> = (4..=9).map(|number| (number, changes(number, bytes(number)))).collect();
        assert_eq!((&found.groups, found.beyond), (&want, None));
        assert_eq!(numbers(&Log::read(dir.path(), ID, 7).unwrap()), [8, 9]);
        assert_eq!(Log::read(dir.path(), ID, 2).unwrap().beyond, Some(4), "3 is written over");
        assert_eq!(numbers(&Log::read(dir.path(), ID + 1, 3).unwrap()), [0; 0], "of another log");
        Log::remove(dir.path()).unwrap();
        Log::remove(dir.path()).unwrap();
        assert!(Log::read(dir.path(), ID, 3).unwrap().groups.is_empty());
    }

    #[test]
    fn a_frame_that_is_torn_is_not_there_and_one_that_is_lost_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), ID).unwrap();
        (1..=3).for_each(|number| log.append(number, &changes(number, 6_000)).unwrap());
        let path = dir.path().join(FILES[0]);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 3 * 2 * BLOCK);
        for at in 0..whole.len() {
            let frame = at / (2 * BLOCK);
            if at % (2 * BLOCK) >= HEAD + 6_000 + 1 + 1 + 16 {
                continue;
            }
            let mut content = whole.clone();
            content[at] ^= 1 << (at % 8);
            std::fs::write(&path, &content).unwrap();
            let found = Log::read(dir.path(), ID, 0).unwrap();
            assert_eq!(numbers(&found), (1..=long(frame)).collect::<Vec<_>>(), "byte {at}");
            assert_eq!(found.beyond, (frame < 2).then(|| long(frame) + 2), "byte {at}");
        }
        std::fs::write(&path, &whole[..whole.len() - 2 * BLOCK + 40]).unwrap();
        let found = Log::read(dir.path(), ID, 0).unwrap();
        assert_eq!((numbers(&found), found.beyond), (vec![1, 2], None));
    }
}
