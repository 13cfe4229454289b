//! Readers that bound and sum what goes through them.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use sha2::{Digest as _, Sha256};
use tar::{Archive, Entry};

use super::fault::{Fault, unreadable};

/// Most that the headers of one entry may take, bytes: its names and attributes are held in memory.
const HEADER_BYTES: u64 = 1024 * 1024;

/// What may still be read.
#[derive(Clone, Debug, Default)]
struct Allowance(Rc<Cell<u64>>);

/// Lets no more through than it is allowed to.
#[derive(Debug)]
struct Bounded<R> {
    inner: R,
    left: Allowance,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.0.get();
        if left == 0 {
            return Err(io::Error::other("names or attributes of a file are too long"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left.0.set(left.saturating_sub(u64::try_from(read).unwrap_or(left)));
        Ok(read)
    }
}

impl<R: Seek> Seek for Bounded<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// What is done with an entry.
type Each<'a> = &'a mut dyn FnMut(&mut dyn AnyEntry) -> Result<(), Fault>;

/// Hands each entry of a tar archive to `each`, which need not read it. `what` names the archive for
/// people.
pub(crate) fn entries(what: &str, reader: impl Read, each: Each<'_>) -> Result<(), Fault> {
    let left = Allowance::default();
    let mut archive = Archive::new(Bounded { inner: reader, left: left.clone() });
    walk(what, &left, archive.entries(), &mut |entry| {
        each(entry)?;
        let rest = io::copy(entry, &mut io::sink());
        rest.map(drop).map_err(|error| unreadable(what, &error))
    })
}

/// [`entries`] of an archive in a file; what `each` does not read is jumped over.
pub(crate) fn entries_of_file(
    what: &str,
    file: impl Read + Seek,
    each: Each<'_>,
) -> Result<(), Fault> {
    let left = Allowance::default();
    let mut archive = Archive::new(Bounded { inner: file, left: left.clone() });
    walk(what, &left, archive.entries_with_seek(), each)
}

fn walk<R: Read>(
    what: &str,
    left: &Allowance,
    entries: io::Result<tar::Entries<'_, R>>,
    each: Each<'_>,
) -> Result<(), Fault> {
    let failed = |error: io::Error| unreadable(what, &error);
    let mut entries = entries.map_err(failed)?;
    loop {
        left.0.set(HEADER_BYTES);
        let Some(entry) = entries.next() else { return Ok(()) };
        let mut entry = entry.map_err(failed)?;
        left.0.set(u64::MAX);
        each(&mut entry)?;
    }
}

/// An entry, whatever it is read from.
pub(crate) trait AnyEntry: Read {
    /// What its header says.
    fn header(&self) -> &tar::Header;
    /// Bytes of its content.
    fn size(&self) -> u64;
    /// Where its content lies in the archive.
    fn position(&self) -> u64;
    /// Its name.
    fn name(&self) -> Vec<u8>;
    /// What it links to.
    fn link(&self) -> Option<Vec<u8>>;
    /// Names and values that its header has no room for.
    fn extensions(&mut self) -> io::Result<Vec<(String, Vec<u8>)>>;
}

impl<R: Read> AnyEntry for Entry<'_, R> {
    fn header(&self) -> &tar::Header {
        Entry::header(self)
    }

    fn size(&self) -> u64 {
        Entry::size(self)
    }

    fn position(&self) -> u64 {
        self.raw_file_position()
    }

    fn name(&self) -> Vec<u8> {
        self.path_bytes().into_owned()
    }

    fn link(&self) -> Option<Vec<u8>> {
        self.link_name_bytes().map(std::borrow::Cow::into_owned)
    }

    fn extensions(&mut self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let Some(found) = self.pax_extensions()? else { return Ok(Vec::new()) };
        let owned = found.map(|pair| {
            let pair = pair?;
            let name = pair.key().map_err(io::Error::other)?;
            Ok((name.to_owned(), pair.value_bytes().to_vec()))
        });
        owned.collect()
    }
}

/// Bytes and checksum of what went through a [`Summed`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum(Rc<RefCell<(u64, Sha256)>>);

impl Sum {
    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.borrow().0
    }

    /// Checksum, hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        hex::encode(self.0.borrow().1.clone().finalize())
    }
}

/// Sums what goes through it, and refuses more than `most_bytes`.
#[derive(Debug)]
pub(crate) struct Summed<R> {
    inner: R,
    sum: Sum,
    most_bytes: u64,
    /// Of which `most_bytes` are what is left; errors name it.
    bound_bytes: u64,
}

impl<R> Summed<R> {
    pub(crate) fn new(inner: R, most_bytes: u64) -> Self {
        Self { inner, sum: Sum::default(), most_bytes, bound_bytes: most_bytes }
    }

    /// As [`Summed::new`], where `used_bytes` of a bound are used already.
    pub(crate) fn beside(inner: R, used_bytes: u64, bound_bytes: u64) -> Self {
        let most_bytes = bound_bytes.saturating_sub(used_bytes);
        Self { bound_bytes, ..Self::new(inner, most_bytes) }
    }

    pub(crate) fn sum(&self) -> Sum {
        self.sum.clone()
    }
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let (bytes, hash) = &mut *self.sum.0.borrow_mut();
        *bytes = bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if *bytes > self.most_bytes {
            let text = format!("it holds more than {} bytes", self.bound_bytes);
            return Err(io::Error::other(text));
        }
        hash.update(&buffer[..read]);
        Ok(read)
    }
}
