//! Layers, one over the other. Each is read twice: first for its checksums, its size and what it
//! deletes of the layers below, then for its files. So nothing of a damaged layer is written, the room
//! is known before it is taken, and deletions concern the layers below alone, wherever in the archive
//! they stand.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use tokio_util::sync::CancellationToken;

use super::archive::Archive;
use super::layout::Layer;
use crate::drivers::images::room::{self, Room};
use crate::drivers::untar::{
    AnyEntry, Bounds, Fault, Inside, Made, Summed, Tree, entries, host, invalid, place, shown,
    unreadable,
};

const BUFFER_BYTES: usize = 128 * 1024;
/// What a file takes on disk is a multiple of this, bytes.
const BLOCK_BYTES: u64 = 4096;
/// Before the name of a file of a layer below that is deleted.
const WHITEOUT: &[u8] = b".wh.";
/// In a folder of which the layers below have nothing any more.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Before names of what a kind of layers kept for itself.
const INTERNAL: &[u8] = b".wh..wh.";
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// An image that is being unpacked.
pub(super) struct Unpacking<'a> {
    tree: Tree,
    root: PathBuf,
    bounds: &'a Bounds,
    stop: &'a CancellationToken,
    entries: u64,
    bytes: u64,
    written_bytes: u64,
    /// Of files with holes there is more than of their layers.
    whole_bytes: u64,
    devices: u64,
}

/// What a layer takes on disk.
#[derive(Debug, Default)]
struct Needed {
    bytes: u64,
    files: u64,
}

impl<'a> Unpacking<'a> {
    /// Of an image whose files go to `tree`, which is the folder `root`.
    pub(super) fn new(
        tree: Tree,
        root: &Path,
        bounds: &'a Bounds,
        stop: &'a CancellationToken,
    ) -> Self {
        let root = root.to_owned();
        let (entries, bytes, written_bytes, whole_bytes, devices) = (0, 0, 0, 0, 0);
        Self { tree, root, bounds, stop, entries, bytes, written_bytes, whole_bytes, devices }
    }

    /// Lays a layer over the others.
    pub(super) fn add(&mut self, archive: &Archive, layer: &Layer) -> Result<(), Fault> {
        let needed = self.survey(archive, layer)?;
        room::check(&self.root, needed.bytes, "a layer of an image")?;
        room::check_files(&self.root, needed.files, "a layer of an image")?;
        let content = self.content(archive, layer)?;
        let mut room = Room::new(&self.root);
        entries(&layer.member, content, &mut |entry| self.unpack(entry, &mut room))
    }

    /// Makes it durable; returns the bytes that were written.
    pub(super) fn finish(self) -> Result<u64, Fault> {
        if self.devices > 0 {
            tracing::info!(count = self.devices, "devices of an image were left out");
        }
        self.tree.sync(&self.root)?;
        Ok(self.written_bytes)
    }

    /// A layer's content, without compression and within what is still allowed.
    fn content<'l>(
        &self,
        archive: &'l Archive,
        layer: &Layer,
    ) -> Result<Summed<Box<dyn Read + 'l>>, Fault> {
        let part = archive.find(&layer.member)?;
        let decoded = decoder(&layer.member, part)?;
        Ok(Summed::new(decoded, self.bounds.bytes))
    }

    /// Reads a layer for what it is, and applies its deletions.
    fn survey(&mut self, archive: &Archive, layer: &Layer) -> Result<Needed, Fault> {
        let name = &layer.member;
        let part = archive.find(name)?;
        let length = part.len();
        let mut packed = Summed::new(part, u64::MAX);
        let packed_sum = packed.sum();
        let decoded = decoder(name, &mut packed)?;
        let mut content = Summed::beside(decoded, self.bytes, self.bounds.bytes);
        let sum = content.sum();
        let mut needed = Needed::default();
        entries(name, &mut content, &mut |entry| self.look_at(entry, &mut needed))?;
        // What follows the end of an archive counts for the checksums.
        let rest = |reader: &mut dyn Read| {
            io::copy(reader, &mut io::sink()).map_err(|error| unreadable(name, &error))
        };
        rest(&mut content)?;
        drop(content);
        rest(&mut packed)?;
        self.bytes = self.bytes.saturating_add(sum.bytes());
        let damaged =
            |what: String| invalid(format!("{} is damaged: {what}", shown(name.as_bytes())));
        match &layer.expected {
            Some((size, _)) if *size != length => {
                return damaged(format!("{length} bytes in place of {size}"));
            }
            Some((_, wanted)) if *wanted != packed_sum.sha256() => {
                return damaged(format!("sha256 {} in place of {wanted}", packed_sum.sha256()));
            }
            _ => {}
        }
        let found = sum.sha256();
        if found != layer.content_sha256 {
            let wanted = &layer.content_sha256;
            return damaged(format!("its content has the sha256 {found} in place of {wanted}"));
        }
        Ok(needed)
    }

    fn look_at(&mut self, entry: &mut dyn AnyEntry, needed: &mut Needed) -> Result<(), Fault> {
        if self.stop.is_cancelled() {
            return Err(Fault::Stopped);
        }
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return invalid(format!("it has more than {} files", self.bounds.entries));
        }
        if entry.header().entry_type().is_pax_global_extensions() {
            return Ok(());
        }
        // Holes are not in the archive, but in the file.
        self.whole_bytes = self.whole_bytes.saturating_add(entry.size());
        if self.whole_bytes > self.bounds.bytes {
            return invalid(format!("it holds more than {} bytes", self.bounds.bytes));
        }
        let name = entry.name();
        let path = Inside::new(&name, self.bounds)?;
        if let Some((folder, leaf)) = path.split()
            && leaf.as_bytes().starts_with(WHITEOUT)
        {
            return self.delete(&name, &folder, leaf);
        }
        needed.files += 1;
        let blocks = entry.size().div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        needed.bytes = needed.bytes.saturating_add(blocks);
        Ok(())
    }

    fn delete(&mut self, name: &[u8], folder: &Path, leaf: &OsStr) -> Result<(), Fault> {
        let mark = leaf.as_bytes();
        if mark == OPAQUE {
            return self.tree.hide_all(name, folder);
        }
        if mark.starts_with(INTERNAL) {
            return Ok(());
        }
        match &mark[WHITEOUT.len()..] {
            b"" | b"." | b".." => invalid(format!("{} deletes no file", shown(name))),
            hidden => self.tree.hide(name, folder, OsStr::from_bytes(hidden)),
        }
    }

    fn unpack(&mut self, entry: &mut dyn AnyEntry, room: &mut Room) -> Result<(), Fault> {
        if self.stop.is_cancelled() {
            return Err(Fault::Stopped);
        }
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            return Ok(());
        }
        let name = entry.name();
        let path = Inside::new(&name, self.bounds)?;
        if path.split().is_some_and(|(_, leaf)| leaf.as_bytes().starts_with(WHITEOUT)) {
            return Ok(());
        }
        let written = &mut self.written_bytes;
        let made = place(&mut self.tree, &path, entry, b"", self.bounds, &mut |entry, file| {
            *written += fill(&name, entry, file, room)?;
            Ok(())
        })?;
        self.devices += u64::from(made == Made::Device);
        Ok(())
    }
}

/// Takes the compression away that a layer has: that of its first bytes.
fn decoder<'r>(name: &str, packed: impl Read + 'r) -> Result<Box<dyn Read + 'r>, Fault> {
    let mut buffered = BufReader::with_capacity(BUFFER_BYTES, packed);
    let start = buffered.fill_buf().map_err(|error| unreadable(name, &error))?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(buffered)));
    }
    if start.starts_with(&ZSTD) {
        let decoder = zstd::Decoder::with_buffer(buffered);
        let decoder = decoder.map_err(|error| unreadable(name, &error))?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(buffered))
}

/// Copies a file's content; returns its size, bytes.
fn fill(
    name: &[u8],
    entry: &mut dyn AnyEntry,
    file: &mut std::fs::File,
    room: &mut Room,
) -> Result<u64, Fault> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut total_bytes = 0_u64;
    loop {
        let read = entry.read(&mut buffer).map_err(|error| unreadable(&shown(name), &error))?;
        if read == 0 {
            return Ok(total_bytes);
        }
        room.take(read)?;
        let written = file.write_all(&buffer[..read]);
        written.map_err(|error| host("unpack", Path::new(&shown(name)), error))?;
        total_bytes += u64::try_from(read).unwrap_or_default();
    }
}
