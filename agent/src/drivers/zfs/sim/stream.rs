//! Streams of simulated snapshots: a line that says what it is, then what it holds.

use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};

use super::super::{Kind, Properties, Receive, Snapshot, StreamOf};
use super::tree::{Tree, node, refuse};
use crate::drivers::DriverError;

/// The first line of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    /// Of the snapshot that is sent.
    guid: u64,
    /// Of the snapshot that the receiver has.
    since: Option<u64>,
    volume_bytes: Option<u64>,
    /// The first byte of the content that is sent, and how many there are in all.
    from: usize,
    whole: usize,
}

/// A stream as bytes.
pub(super) fn of(tree: &mut Tree, what: &StreamOf) -> Result<Vec<u8>, DriverError> {
    let (snapshot, since, from) = match what {
        StreamOf::Whole(snapshot) => (snapshot.clone(), None, 0),
        StreamOf::Changes { since, until } => (until.clone(), Some(tree.taken(since)?.guid), 0),
        StreamOf::Rest(token) => rest(tree, token)?,
    };
    let taken = tree.taken(&snapshot)?;
    let (guid, volume_bytes) = (taken.guid, taken.volume_bytes);
    let head = Head { guid, since, volume_bytes, from, whole: taken.content.len() };
    let mut stream =
        serde_json::to_vec(&head).map_err(|error| DriverError::failed("send", error))?;
    stream.push(b'\n');
    stream.extend(&taken.content[from.min(taken.content.len())..]);
    Ok(stream)
}

/// A token names a snapshot by its number, and how much of it there is already.
fn rest(tree: &Tree, token: &str) -> Result<(Snapshot, Option<u64>, usize), DriverError> {
    let damaged = || DriverError::refused(Code::InvalidArgument, "resume token is corrupt");
    let mut parts = token.split('-').skip(1);
    let guid = parts.next().and_then(|text| u64::from_str_radix(text, 16).ok());
    let from = parts.next().and_then(|text| usize::from_str_radix(text, 16).ok());
    let (Some(guid), Some(from)) = (guid, from) else { return Err(damaged()) };
    for (name, node) in &tree.nodes {
        if let Some(taken) = node.snapshots.iter().find(|taken| taken.guid == guid) {
            return Ok((name.at(&taken.name)?, None, from));
        }
    }
    Err(damaged())
}

/// Receives a stream.
pub(super) fn receive(
    tree: &mut Tree,
    into: &Snapshot,
    how: &Receive,
    data: &[u8],
) -> Result<(), DriverError> {
    let cut = || {
        let text = "cannot receive: checksum mismatch or incomplete stream";
        DriverError::refused(Code::StreamFailed, text)
    };
    let end = data.iter().position(|byte| *byte == b'\n').ok_or_else(cut)?;
    let head: Head = serde_json::from_slice(&data[..end]).map_err(|_| cut())?;
    let data = &data[end + 1..];
    let dataset = into.dataset();
    let kind = head
        .volume_bytes
        .map_or(Kind::Filesystem, |size_bytes| Kind::Volume { size_bytes, sparse: true });
    let known = tree.nodes.get(dataset);
    let goes_on = known.is_some_and(|node| node.partial.is_some());
    match (known, head.since) {
        (Some(node), Some(since))
            if node.snapshots.last().map(|taken| taken.guid) == Some(since) => {}
        (Some(_), _) if goes_on || how.force => {}
        (Some(_), None) => {
            let text =
                format!("cannot receive new filesystem stream: destination '{dataset}' exists");
            return refuse(Code::DatasetExists, text);
        }
        (Some(_), Some(_)) => {
            let text = "cannot receive incremental stream: most recent snapshot does not match";
            return refuse(Code::InvalidArgument, text);
        }
        (None, Some(_)) => return Err(super::tree::no_dataset(dataset)),
        (None, None) => {
            let guid = tree.guid();
            if dataset.parent().is_none_or(|parent| !tree.nodes.contains_key(&parent)) {
                let text = format!("cannot receive '{dataset}': parent does not exist");
                return refuse(Code::DatasetNotFound, text);
            }
            tree.nodes.insert(dataset.clone(), node(kind, guid, Properties::new(), None));
        }
    }
    let node = tree.node_mut(dataset)?;
    let mut content = match node.partial.take() {
        Some((guid, got)) if guid == head.guid && got.len() == head.from => got,
        Some(partial) => {
            node.partial = Some(partial);
            return refuse(Code::StreamFailed, "cannot resume: kernel state does not match stream");
        }
        None if head.from == 0 => Vec::new(),
        None => return refuse(Code::StreamFailed, "cannot resume: there is nothing to go on with"),
    };
    content.extend(data);
    if content.len() < head.whole {
        node.partial = Some((head.guid, content));
        return Err(cut());
    }
    node.content = content;
    node.kind = kind;
    node.local.extend(how.properties.clone());
    tree.snapshot(std::slice::from_ref(into), &Properties::new())?;
    // It is the same snapshot, wherever it lies.
    if let Some(taken) = tree.node_mut(dataset)?.snapshots.last_mut() {
        taken.guid = head.guid;
    }
    Ok(())
}
