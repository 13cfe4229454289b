//! What was committed and the database does not have yet, for those who read.

use std::collections::BTreeMap;
use std::ops::Bound::Unbounded;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use super::super::committer::Changes;
use super::records;

/// Shared between the committer, the thread that writes to the database, and readers.
pub(super) type SharedRecent = Arc<RwLock<Recent>>;

/// The changes of the groups in the log: of each key the last one.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Later than those that are being settled.
    filling: Changes,
    /// What the database is taking over.
    settling: Arc<Changes>,
}

impl Recent {
    /// Adds a group.
    pub(super) fn add(&mut self, changes: &Changes) {
        self.filling.extend(changes.iter().map(|(key, value)| (key.clone(), value.clone())));
    }

    /// Has the database take over all that was added; what it took over before must be settled.
    pub(super) fn settle(&mut self) -> Arc<Changes> {
        self.settling = Arc::new(std::mem::take(&mut self.filling));
        Arc::clone(&self.settling)
    }

    /// The database has what it was to take over; returned, as nobody is to wait while it is freed.
    #[must_use]
    pub(super) fn settled(&mut self) -> Arc<Changes> {
        std::mem::take(&mut self.settling)
    }

    /// What a key was changed to; `None`: ask the database.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.filling.get(key).or_else(|| self.settling.get(key)).cloned()
    }

    /// The changes of keys that start with `prefix` and are greater than `after`.
    pub(super) fn changes(&self, prefix: &[u8], after: Option<&[u8]>) -> Changes {
        let start = records::start(prefix, after);
        let of = |changes: &Changes| -> Changes {
            let range = changes.range::<[u8], _>((start, Unbounded));
            let range = range.take_while(|(key, _)| key.starts_with(prefix));
            range.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let mut changes: BTreeMap<_, _> = of(&self.settling);
        changes.append(&mut of(&self.filling));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(changes: &[(&'static str, Option<&'static str>)]) -> Changes {
        changes.iter().map(|(key, value)| ((*key).into(), value.map(Bytes::from))).collect()
    }

    #[test]
    fn the_last_change_of_a_key_counts_while_others_are_settled() {
        let mut recent = Recent::default();
        recent.add(&group(&[("a", Some("1")), ("b", Some("1")), ("ba", Some("1"))]));
        let settling = recent.settle();
        recent.add(&group(&[("b", None), ("bb", Some("2"))]));
        assert_eq!(*settling, group(&[("a", Some("1")), ("b", Some("1")), ("ba", Some("1"))]));
        assert_eq!(recent.get(b"a"), Some(Some("1".into())));
        assert_eq!((recent.get(b"b"), recent.get(b"c")), (Some(None), None));
        let all = group(&[("b", None), ("ba", Some("1")), ("bb", Some("2"))]);
        assert_eq!(recent.changes(b"b", None), all);
        assert_eq!(recent.changes(b"b", Some(b"ba")), group(&[("bb", Some("2"))]));
        assert_eq!(recent.changes(b"b", Some(b"a")), all, "a marker before the prefix");
        drop(recent.settled());
        assert_eq!((recent.get(b"a"), recent.get(b"b")), (None, Some(None)));
        assert_eq!(recent.changes(b"", None), group(&[("b", None), ("bb", Some("2"))]));
    }
}
