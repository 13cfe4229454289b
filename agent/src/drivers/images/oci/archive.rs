//! A tar archive in a file, read where it lies: its members by name.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::drivers::untar::{
    AnyEntry, Fault, Sum, Summed, entries_of_file, host, invalid, shown, unreadable,
};

/// Most members: an image has few layers, each with a few files of its own.
const MAX_MEMBERS: usize = 20_000;
/// Largest document, bytes.
const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;

/// What the file is called for people.
const WHAT: &str = "the archive";

/// An archive.
#[derive(Debug)]
pub(super) struct Archive {
    file: File,
    members: HashMap<String, Member>,
}

#[derive(Debug)]
enum Member {
    /// Its first byte, and the one after its last.
    File { at: u64, end: u64 },
    /// To another member; old versions of docker store a layer once.
    Link(String),
}

impl Archive {
    /// Reads which members an archive has.
    pub(super) fn open(path: &Path) -> Result<Self, Fault> {
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = opened.map_err(|error| host("open", path, error))?;
        let mut members = HashMap::new();
        let all = Part { file: &file, start: 0, at: 0, end: length };
        entries_of_file(WHAT, all, &mut |entry| {
            let Some((name, member)) = member(entry, length)? else { return Ok(()) };
            if members.len() >= MAX_MEMBERS {
                return invalid(format!("it has more than {MAX_MEMBERS} members"));
            }
            match members.insert(name.clone(), member) {
                Some(_) => invalid(format!("it has two members {}", shown(name.as_bytes()))),
                None => Ok(()),
            }
        })?;
        Ok(Self { file, members })
    }

    /// Whether it has a member.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// A member.
    pub(super) fn find(&self, name: &str) -> Result<Part<'_>, Fault> {
        let missing = || Fault::Invalid(format!("it has no {}", shown(name.as_bytes())));
        let mut member = self.members.get(name).ok_or_else(missing)?;
        if let Member::Link(to) = member {
            member = self.members.get(to).ok_or_else(missing)?;
        }
        match member {
            Member::File { at, end } => {
                Ok(Part { file: &self.file, start: *at, at: *at, end: *end })
            }
            Member::Link(_) => invalid(format!("{} is a link to a link", shown(name.as_bytes()))),
        }
    }

    /// A small member as a whole, and its checksum.
    pub(super) fn document(&self, name: &str) -> Result<(Vec<u8>, Sum), Fault> {
        let mut reader = Summed::new(self.find(name)?, MAX_DOCUMENT_BYTES);
        let mut content = Vec::new();
        reader.read_to_end(&mut content).map_err(|error| unreadable(name, &error))?;
        Ok((content, reader.sum()))
    }
}

/// An entry under the name that others know it by; none for what has no content.
fn member(entry: &mut dyn AnyEntry, length: u64) -> Result<Option<(String, Member)>, Fault> {
    let bytes = entry.name();
    let kind = entry.header().entry_type();
    if kind.is_dir() || kind.is_pax_global_extensions() {
        return Ok(None);
    }
    let Some(name) = std::str::from_utf8(&bytes).ok().and_then(|name| normal("", name)) else {
        return invalid(format!("its member {} has no usable name", shown(&bytes)));
    };
    let member = if kind.is_file() {
        let at = entry.position();
        let end = at.checked_add(entry.size()).filter(|end| *end <= length);
        let Some(end) = end else { return invalid(format!("{} is cut short", shown(&bytes))) };
        Member::File { at, end }
    } else if kind.is_symlink() || kind.is_hard_link() {
        let to = entry.link().and_then(|to| String::from_utf8(to).ok());
        let folder = match name.rsplit_once('/') {
            Some((folder, _)) if kind.is_symlink() => folder,
            _ => "",
        };
        match to.and_then(|to| normal(folder, &to)) {
            Some(to) => Member::Link(to),
            None => return invalid(format!("{} links to what is not in it", shown(&bytes))),
        }
    } else {
        return invalid(format!("its member {} is no file", shown(&bytes)));
    };
    Ok(Some((name, member)))
}

/// A path from `folder` on, without `.` and `..`; none when it leads outside or nowhere.
fn normal(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!parts.is_empty() && !path.starts_with('/')).then(|| parts.join("/"))
}

/// A stretch of a file.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    file: &'a File,
    start: u64,
    at: u64,
    end: u64,
}

impl Part<'_> {
    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.end - self.start
    }
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let most = left.min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += u64::try_from(read).unwrap_or_default();
        Ok(read)
    }
}

impl Seek for Part<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => self.start.checked_add(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
            SeekFrom::End(offset) => self.end.checked_add_signed(offset),
        };
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        self.at = target.filter(|at| *at >= self.start).ok_or_else(outside)?;
        Ok(self.at - self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_members_only() {
        assert_eq!(normal("a/b", "../c/layer.tar").as_deref(), Some("a/c/layer.tar"));
        assert_eq!(normal("", "./index.json").as_deref(), Some("index.json"));
        for outside in ["/etc/passwd", "../../../x", ".", "", "a/.."] {
            assert_eq!(normal("a", outside).filter(|path| path != "a"), None, "{outside}");
        }
    }
}
