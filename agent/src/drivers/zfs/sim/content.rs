//! What simulated volumes and snapshots hold, as their devices show it.

use super::super::{Dataset, Kind, Name};
use super::SimPools;

impl SimPools {
    /// Size of the device of a volume, or of a snapshot of one that lets it be seen, bytes.
    #[must_use]
    pub fn device_bytes(&self, name: &Name) -> Option<u64> {
        let tree = self.0.lock();
        let node = tree.nodes.get(name.dataset())?;
        match (name, node.kind) {
            (Name::Dataset(_), Kind::Volume { size_bytes, .. }) => Some(size_bytes),
            (Name::Dataset(_), Kind::Filesystem) => None,
            (Name::Snapshot(snapshot), _) => {
                let is_visible = node.local.get("snapdev").is_some_and(|value| value == "visible");
                tree.taken(snapshot).ok().filter(|_| is_visible)?.volume_bytes
            }
        }
    }

    /// What stands in a volume or snapshot there: zeros where nothing was written.
    #[must_use]
    pub fn read_piece(&self, name: &Name, offset: u64, length: usize) -> Vec<u8> {
        let tree = self.0.lock();
        let content = match name {
            Name::Dataset(dataset) => tree.nodes.get(dataset).map(|node| &node.content),
            Name::Snapshot(snapshot) => tree.taken(snapshot).ok().map(|taken| &taken.content),
        };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let written = content.and_then(|content| content.get(offset..)).unwrap_or_default();
        let mut piece = written[..written.len().min(length)].to_vec();
        piece.resize(length, 0);
        piece
    }

    /// Writes there.
    pub fn write_piece(&self, dataset: &Dataset, offset: u64, data: &[u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if let (Some(node), Some(end)) =
            (self.0.lock().nodes.get_mut(dataset), offset.checked_add(data.len()))
        {
            node.content.resize(node.content.len().max(end), 0);
            node.content[offset..end].copy_from_slice(data);
        }
    }
}
