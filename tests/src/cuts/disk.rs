//! The log of a process's writes, and what a power cut leaves of them.

#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges, often of one")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use muster_shared::entropy::Entropy;

use super::{MAP, NOTES, OPENED};

/// What a disk may lose of a write is a block of this size.
const PAGE: usize = 4_096;

/// What a cut does to the writes that no finished sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Some are lost, all after them are kept: the disk wrote its cache in another order.
    LosesTheFirst,
    /// Some are kept, all after them are lost.
    LosesTheLast,
    /// Each is kept or lost.
    KeepsAnyHalf,
    /// One is lost.
    LosesOneWrite,
    /// One page of one is lost.
    LosesOnePage,
    /// Each page of each is kept or lost.
    KeepsAnyPages,
}

impl Mode {
    /// Those that lose the beginning come more often: they are the ones that hurt.
    const DRAWN: [Self; 10] = [
        Self::LosesTheFirst,
        Self::KeepsAnyHalf,
        Self::KeepsAnyPages,
        Self::LosesTheFirst,
        Self::LosesOneWrite,
        Self::LosesTheFirst,
        Self::KeepsAnyPages,
        Self::LosesTheLast,
        Self::LosesTheFirst,
        Self::LosesOnePage,
    ];

    /// The parts of each pending write that are kept.
    fn kept(self, lengths: &[usize], entropy: &dyn Entropy) -> Vec<Vec<Range<usize>>> {
        let below = |limit: usize| draw(limit, entropy);
        let (border, one) = (1 + below(lengths.len()), below(lengths.len()));
        let keep = |index: usize| match self {
            Self::LosesTheFirst => index >= border,
            Self::LosesTheLast => index < border,
            Self::KeepsAnyHalf => below(2) == 0,
            Self::LosesOneWrite => index != one,
            Self::LosesOnePage | Self::KeepsAnyPages => true,
        };
        let whole = |(index, &length)| if keep(index) { vec![0..length] } else { vec![] };
        let mut parts: Vec<Vec<Range<usize>>> = lengths.iter().enumerate().map(whole).collect();
        if let (Self::LosesOnePage, Some(&length)) = (self, lengths.get(one)) {
            let page = PAGE * below(length / PAGE);
            parts[one] = vec![0..page.min(length), (page + PAGE).min(length)..length];
        }
        if self == Self::KeepsAnyPages {
            let pages = |&length: &usize| {
                let starts = (0..length).step_by(PAGE).filter(|_| below(2) == 0);
                starts.map(|start| start..(start + PAGE).min(length)).collect()
            };
            parts = lengths.iter().map(pages).collect();
        }
        parts
    }
}

/// A number below `limit`; 0 if that is 0.
pub(super) fn draw(limit: usize, entropy: &dyn Entropy) -> usize {
    let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
    usize::try_from(entropy.u64() % limit).unwrap_or(0)
}

#[derive(Debug)]
enum Operation {
    /// The file has this name now; `true`: that emptied it.
    Opened(PathBuf, bool),
    Written(usize, Range<usize>),
    Truncated(usize),
    SyncBegan(usize),
    SyncEnded(usize),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
    /// A writer's commit was acknowledged.
    Acknowledged {
        writer: u32,
        number: u32,
    },
}

/// What a process did to the files of a folder, in order.
pub(super) struct Recording {
    folder: PathBuf,
    content: Vec<u8>,
    /// With the inode of the file.
    operations: Vec<(u64, Operation)>,
    /// What was done before this counts as durable: the map was opened.
    opened: usize,
}

/// Files as a cut left them.
pub(super) struct Image {
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Bytes that no sync covered.
    pub(super) pending_bytes: usize,
}

impl Image {
    /// Writes the map's files to a new folder.
    pub(super) fn write(&self, to: &Path) -> anyhow::Result<()> {
        for (name, content) in &self.files {
            let path = to.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(to))?;
            std::fs::write(path, content)?;
        }
        Ok(())
    }
}

impl Recording {
    pub(super) fn read(folder: &Path, content: Vec<u8>) -> anyhow::Result<Self> {
        let mut recording =
            Self { folder: folder.to_owned(), content, operations: Vec::new(), opened: 0 };
        let mut notes = None;
        let mut at = 0;
        while at < recording.content.len() {
            let head: &[u8; 32] =
                recording.content[at..].first_chunk().context("a head is cut off")?;
            let words: Vec<u64> = head
                .chunks(8)
                .filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes))
                .collect();
            let [kind, inode, offset, length] = words[..] else { bail!("a head has four words") };
            let offset = usize::try_from(offset)?;
            let range = at + 32..at + 32 + usize::try_from(length)?;
            at = range.end;
            let text = || -> anyhow::Result<String> {
                let bytes = recording.content.get(range.clone()).context("a record is cut off")?;
                Ok(String::from_utf8(bytes.to_vec())?)
            };
            let operation = match kind {
                1 => {
                    let path = PathBuf::from(text()?);
                    if path.ends_with(NOTES) {
                        notes = Some(inode);
                        continue;
                    }
                    Operation::Opened(path, offset != 0)
                }
                2 if notes == Some(inode) => {
                    let note: &[u8; 8] = recording.content[range].first_chunk().context("note")?;
                    let number = |part: Range<usize>| -> anyhow::Result<u32> {
                        Ok(u32::from_ne_bytes(note[part].try_into()?))
                    };
                    let (writer, number) = (number(0..4)?, number(4..8)?);
                    if writer == OPENED {
                        recording.opened = recording.operations.len();
                        continue;
                    }
                    Operation::Acknowledged { writer, number }
                }
                2 => Operation::Written(offset, range),
                3 => Operation::Truncated(offset),
                4 => Operation::SyncBegan(offset),
                5 => Operation::SyncEnded(offset),
                6 => {
                    let both = text()?;
                    let (from, to) = both.split_once('\0').context("two names")?;
                    Operation::Renamed(from.into(), to.into())
                }
                7 => Operation::Removed(text()?.into()),
                other => bail!("an operation {other}"),
            };
            recording.operations.push((inode, operation));
        }
        ensure!(
            recording.opened > 0,
            "the library saw nothing: are the writers linked statically?"
        );
        Ok(recording)
    }

    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The last acknowledged commit of each writer before a moment.
    pub(super) fn acknowledged(&self, moment: usize) -> BTreeMap<u32, u32> {
        let mut last = BTreeMap::new();
        for (_, operation) in &self.operations[..moment] {
            if let Operation::Acknowledged { writer, number } = operation {
                last.insert(*writer, *number);
            }
        }
        last
    }

    /// Moments after the first acknowledged commit, each with what a cut does there.
    pub(super) fn moments(
        &self,
        cuts: usize,
        entropy: &dyn Entropy,
    ) -> impl Iterator<Item = (usize, Mode)> {
        let is_ack =
            |(_, operation): &(u64, Operation)| matches!(operation, Operation::Acknowledged { .. });
        let first = self.operations.iter().position(is_ack).unwrap_or(self.opened);
        let writes: Vec<usize> = (first..self.operations.len())
            .filter(|&n| matches!(self.operations[n].1, Operation::Written(..)))
            .collect();
        let mut chosen: Vec<usize> =
            (0..cuts).map(|_| writes[draw(writes.len(), entropy)]).collect();
        chosen.sort_unstable();
        chosen.into_iter().zip(Mode::DRAWN.into_iter().cycle())
    }

    /// The disk before the first operation.
    pub(super) fn replay(&self) -> Replay<'_> {
        Replay { recording: self, disk: Disk::default(), at: 0 }
    }

    fn length(&self, index: usize) -> usize {
        match &self.operations[index].1 {
            Operation::Written(_, range) => range.len(),
            _ => 0,
        }
    }

    /// Puts a part of a write where it belongs; a file grows with what is written behind its end.
    fn write(&self, content: &mut Vec<u8>, index: usize, part: &Range<usize>) {
        let Operation::Written(offset, range) = &self.operations[index].1 else { return };
        let bytes = &self.content[range.start + part.start..range.start + part.end];
        let to = offset + part.start;
        if bytes.is_empty() {
            return;
        }
        if content.len() < to + bytes.len() {
            content.resize(to + bytes.len(), 0);
        }
        content[to..to + bytes.len()].copy_from_slice(bytes);
    }
}

/// A disk that follows a recording, forwards only.
pub(super) struct Replay<'a> {
    recording: &'a Recording,
    disk: Disk,
    at: usize,
}

impl Replay<'_> {
    /// The files as a cut before operation `moment`, which is not before that of an earlier call,
    /// leaves them; without a `mode`, all of them.
    pub(super) fn image(
        &mut self,
        moment: usize,
        mode: Option<Mode>,
        entropy: &dyn Entropy,
    ) -> Image {
        let recording = self.recording;
        for index in self.at..moment {
            if index == recording.opened {
                self.disk.sync_all(recording, index);
            }
            let (inode, operation) = &recording.operations[index];
            self.disk.apply(recording, index, *inode, operation);
        }
        self.at = self.at.max(moment);
        let pending = self.disk.pending(recording);
        let lengths: Vec<usize> = pending.iter().map(|&index| recording.length(index)).collect();
        let kept: HashMap<usize, Vec<Range<usize>>> = match mode {
            None => pending.iter().zip(&lengths).map(|(&i, &len)| (i, vec![0..len])).collect(),
            Some(mode) => pending.iter().copied().zip(mode.kept(&lengths, entropy)).collect(),
        };
        let mut files = BTreeMap::new();
        for (path, inode) in &self.disk.names {
            let name = path.strip_prefix(&recording.folder).ok().filter(|n| n.starts_with(MAP));
            let Some(name) = name else { continue };
            let file = &self.disk.files[inode];
            let mut content = file.durable.clone();
            for index in &file.pending {
                for part in kept.get(index).into_iter().flatten() {
                    recording.write(&mut content, *index, part);
                }
            }
            files.insert(name.to_owned(), content);
        }
        Image { files, pending_bytes: lengths.iter().sum() }
    }
}

/// Names are taken to be durable at once, in order: a file system's journal keeps them so.
#[derive(Default)]
struct Disk {
    names: BTreeMap<PathBuf, u64>,
    files: HashMap<u64, File>,
    /// Where each sync under way began.
    began: HashMap<usize, usize>,
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    /// Operations since the last sync, by index.
    pending: Vec<usize>,
}

impl Disk {
    fn apply(&mut self, recording: &Recording, index: usize, inode: u64, operation: &Operation) {
        match operation {
            Operation::Opened(path, emptied) => {
                let file = self.files.entry(inode).or_default();
                if *emptied {
                    file.pending.push(index);
                }
                self.names.insert(path.clone(), inode);
            }
            Operation::Written(..) | Operation::Truncated(_) => {
                self.files.entry(inode).or_default().pending.push(index);
            }
            Operation::SyncBegan(number) => {
                self.began.insert(*number, index);
            }
            Operation::SyncEnded(number) => {
                if let Some(began) = self.began.remove(number) {
                    self.sync(recording, inode, began);
                }
            }
            Operation::Renamed(from, to) => {
                if let Some(inode) = self.names.remove(from) {
                    self.names.insert(to.clone(), inode);
                }
            }
            Operation::Removed(path) => {
                self.names.remove(path);
            }
            Operation::Acknowledged { .. } => {}
        }
    }

    fn sync_all(&mut self, recording: &Recording, index: usize) {
        let inodes: Vec<u64> = self.files.keys().copied().collect();
        for inode in inodes {
            self.sync(recording, inode, index);
        }
    }

    /// What was done before operation `began` is durable.
    fn sync(&mut self, recording: &Recording, inode: u64, began: usize) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        let (done, left) = file.pending.iter().partition(|&&index| index < began);
        file.pending = left;
        let done: Vec<usize> = done;
        for index in done {
            match &recording.operations[index].1 {
                Operation::Opened(..) => file.durable.clear(),
                Operation::Truncated(length) => file.durable.resize(*length, 0),
                _ => recording.write(&mut file.durable, index, &(0..recording.length(index))),
            }
        }
    }

    /// The writes that no sync covers, in their order.
    fn pending(&self, recording: &Recording) -> Vec<usize> {
        let named: BTreeSet<&u64> = self.names.values().collect();
        let mut all: Vec<usize> = named
            .into_iter()
            .filter_map(|inode| self.files.get(inode))
            .flat_map(|file| &file.pending)
            .copied()
            .filter(|&index| recording.length(index) > 0)
            .collect();
        all.sort_unstable();
        all
    }
}
