//! One qcow2 file, opened to be read.

use std::io::{self, Read as _, SeekFrom};
use std::path::{Path, PathBuf};

use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::super::{base_name, parse};
use super::table::{
    Entry, FULL_HEADER_BYTES, Layout, MAX_SNAPSHOTS_BYTES, Packing, entries, snapshots,
};
use super::{ContentError, bad};

/// Where a cluster of a layer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Not here: the file that this one is based on has it.
    Nothing,
    Zeros,
    /// From that byte of the file on.
    At(u64),
    /// Packed; what is wanted begins at `skip` of what is unpacked.
    Packed {
        at: u64,
        bytes: u64,
        skip: u64,
    },
}

/// A file.
#[derive(Debug)]
pub(super) struct Layer {
    path: PathBuf,
    file: File,
    /// Nothing of a raw file.
    layout: Option<Layout>,
    pub(super) size_bytes: u64,
    /// What it is based on.
    pub(super) base: Option<PathBuf>,
    /// The second table that was read last, by its place in the first; none where there is none.
    table: Option<(u64, Option<Vec<u64>>)>,
}

impl Layer {
    /// A file as it is, or as it was at a snapshot.
    pub(super) async fn open(path: &Path, snapshot: Option<&str>) -> Result<Self, ContentError> {
        let file = File::open(path).await.map_err(|error| failed(path, error))?;
        let mut layer = Self {
            path: path.to_owned(),
            file,
            layout: None,
            size_bytes: 0,
            base: None,
            table: None,
        };
        // The metadata of a block device do not tell.
        let file_bytes = layer.file.seek(SeekFrom::End(0)).await;
        let file_bytes = file_bytes.map_err(|error| failed(path, error))?;
        let start = layer.take(0, FULL_HEADER_BYTES).await?;
        if let (None, Ok(None)) = (snapshot, parse(&start)) {
            layer.size_bytes = file_bytes;
            return Ok(layer);
        }
        let layout = Layout::read(&start, file_bytes).map_err(|problem| bad(path, problem))?;
        layer.size_bytes = layout.size_bytes;
        layer.layout = Some(layout);
        let base = base_name(&start).map_err(|error| bad(path, error.to_string()))?;
        if let Some(base) = base {
            let name = layer.take(base.offset_bytes, base.length_bytes).await?;
            let name = String::from_utf8(name);
            let name = name.map_err(|_| bad(path, "the name of its base is no text"))?;
            // As QEMU takes it: relative to the file that names it.
            layer.base = Some(path.parent().unwrap_or(Path::new("/")).join(name));
        }
        if let Some(name) = snapshot {
            layer.go_to(layout, name).await?;
        }
        Ok(layer)
    }

    async fn go_to(&mut self, mut layout: Layout, name: &str) -> Result<(), ContentError> {
        let table = self.take(layout.snapshots_at, MAX_SNAPSHOTS_BYTES).await?;
        let found = snapshots(&table, layout.snapshots);
        let found = found.map_err(|problem| bad(&self.path, problem))?;
        let named = found.into_iter().find(|known| known.name == name.as_bytes());
        let named = named.ok_or_else(|| ContentError::NoSnapshot {
            path: self.path.display().to_string(),
            name: name.to_owned(),
        })?;
        layout.first_table = named.first_table;
        layout.size_bytes = named.size_bytes.unwrap_or(layout.size_bytes);
        self.size_bytes = layout.size_bytes;
        self.layout = Some(layout);
        Ok(())
    }

    /// What stands at a byte, and for how many more bytes the same can be said.
    pub(super) async fn look_up(&mut self, at: u64) -> Result<(Mapping, u64), ContentError> {
        let left = self.size_bytes.saturating_sub(at);
        let Some(layout) = self.layout else { return Ok((Mapping::At(at), left)) };
        let of_table = layout.cluster_bits + layout.entry_bits();
        let number = at >> of_table;
        if self.table.as_ref().is_none_or(|(known, _)| *known != number) {
            self.table = Some((number, self.second_table(layout, number).await?));
        }
        let Some((_, Some(table))) = &self.table else {
            let span = (1_u64 << of_table) - at % (1 << of_table);
            return Ok((Mapping::Nothing, span.min(left)));
        };
        let cluster = layout.cluster_bytes();
        let index = (at >> layout.cluster_bits) % (1 << layout.entry_bits());
        let entry = usize::try_from(index).ok().and_then(|index| table.get(index));
        let within = at % cluster;
        let mapping = match layout.entry(entry.copied().unwrap_or(0)) {
            Entry::Nothing => Mapping::Nothing,
            Entry::Zeros => Mapping::Zeros,
            Entry::At(host) => Mapping::At(host.saturating_add(within)),
            Entry::Packed { at, bytes } => Mapping::Packed { at, bytes, skip: within },
        };
        Ok((mapping, (cluster - within).min(left)))
    }

    async fn second_table(
        &mut self,
        layout: Layout,
        number: u64,
    ) -> Result<Option<Vec<u64>>, ContentError> {
        if number >= u64::from(layout.first_table.entries) {
            return Err(bad(&self.path, "its first table is too short"));
        }
        let entry = self.take(layout.first_table.at.saturating_add(number * 8), 8).await?;
        let Some(at) = entries(&entry).first().copied().and_then(Layout::second_table) else {
            return Ok(None);
        };
        let bytes = usize::try_from(layout.cluster_bytes()).unwrap_or(usize::MAX);
        let table = self.take(at, bytes).await?;
        if table.len() < bytes {
            return Err(bad(&self.path, "one of its tables is cut"));
        }
        Ok(Some(entries(&table)))
    }

    /// Fills a buffer of zeros, which lies within one cluster.
    pub(super) async fn read(
        &mut self,
        mapping: &Mapping,
        buffer: &mut [u8],
    ) -> Result<(), ContentError> {
        match *mapping {
            Mapping::Nothing | Mapping::Zeros => Ok(()),
            // What is beyond the end of the file was never written.
            Mapping::At(at) => self.fill(at, buffer).await.map(drop),
            Mapping::Packed { at, bytes, skip } => {
                let Some(layout) = self.layout else { return Ok(()) };
                let packed = self.take(at, usize::try_from(bytes).unwrap_or(usize::MAX)).await?;
                let length = usize::try_from(layout.cluster_bytes()).unwrap_or(usize::MAX);
                let cluster = unpacked(layout.packing, &packed, length);
                let cluster = cluster.map_err(|error| failed(&self.path, error))?;
                let skip = usize::try_from(skip).unwrap_or(usize::MAX);
                let wanted = cluster.get(skip..skip.saturating_add(buffer.len()));
                let wanted = wanted.ok_or_else(|| bad(&self.path, "a cluster is too short"))?;
                buffer.copy_from_slice(wanted);
                Ok(())
            }
        }
    }

    /// At most `length` bytes; fewer where the file ends.
    async fn take(&mut self, at: u64, length: usize) -> Result<Vec<u8>, ContentError> {
        let mut bytes = vec![0; length];
        let read = self.fill(at, &mut bytes).await?;
        bytes.truncate(read);
        Ok(bytes)
    }

    async fn fill(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize, ContentError> {
        let fill = async {
            self.file.seek(SeekFrom::Start(at)).await?;
            let mut filled = 0;
            while filled < buffer.len() {
                match self.file.read(&mut buffer[filled..]).await? {
                    0 => break,
                    read => filled += read,
                }
            }
            Ok(filled)
        };
        fill.await.map_err(|error| failed(&self.path, error))
    }
}

/// A whole cluster. What follows the packed bytes in their last sector is not theirs.
fn unpacked(packing: Packing, packed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    let mut cluster = vec![0; length];
    match packing {
        Packing::Deflate => flate2::read::DeflateDecoder::new(packed).read_exact(&mut cluster)?,
        Packing::Zstd => zstd::Decoder::new(packed)?.single_frame().read_exact(&mut cluster)?,
    }
    Ok(cluster)
}

fn failed(path: &Path, source: io::Error) -> ContentError {
    ContentError::Io { path: path.display().to_string(), source }
}
