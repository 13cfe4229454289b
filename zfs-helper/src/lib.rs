//! What the agent and `muster-zfs` say to each other: a line of JSON for each request, one for each
//! answer, in order.
//!
//! The program is apart from the agent because a program that links `libzfs_core` does not start
//! where that library is missing: so the same agent runs on hosts with ZFS and on those without.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest line, bytes.
pub const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// From the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Comes back with the answer.
    pub id: u64,
    /// What is to be done.
    #[serde(flatten)]
    pub call: Call,
}

/// One call of `libzfs_core`. Names and properties were checked by whoever sends them. `properties` are
/// users' alone, whose values are texts; `numbers` are ZFS's own, as the kernel counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// Whether ZFS can be used; calls nothing.
    Hello,
    /// `lzc_create` of a file system.
    Create {
        /// Its name.
        dataset: String,
        /// Its properties.
        properties: BTreeMap<String, String>,
        /// Its properties of ZFS's own.
        numbers: BTreeMap<String, u64>,
    },
    /// `lzc_clone`.
    Clone {
        /// The snapshot.
        from: String,
        /// The new dataset.
        to: String,
        /// Its properties.
        properties: BTreeMap<String, String>,
        /// Its properties of ZFS's own.
        numbers: BTreeMap<String, u64>,
    },
    /// `lzc_promote`.
    Promote {
        /// The clone.
        dataset: String,
    },
    /// `lzc_destroy`.
    Destroy {
        /// Its name.
        dataset: String,
    },
    /// `lzc_snapshot`: all at the same moment, or none.
    Snapshot {
        /// Their names, of one pool.
        snapshots: Vec<String>,
        /// Properties of each.
        properties: BTreeMap<String, String>,
    },
    /// `lzc_destroy_snaps`: all or none; those that are missing are passed over.
    DestroySnapshots {
        /// Their names, of one pool.
        snapshots: Vec<String>,
        /// One that is held or cloned goes later.
        deferred: bool,
    },
    /// `lzc_rollback_to`, the newest snapshot.
    Rollback {
        /// The dataset.
        dataset: String,
        /// The snapshot, with the dataset's name.
        snapshot: String,
    },
    /// `lzc_hold`: those that are there, and fails if one is not.
    Hold {
        /// The tag.
        tag: String,
        /// Names of snapshots of one pool.
        snapshots: Vec<String>,
    },
    /// `lzc_release`: those that are held so.
    Release {
        /// The tag.
        tag: String,
        /// Names of snapshots of one pool.
        snapshots: Vec<String>,
    },
    /// Whether a dataset or snapshot is there: done, or failed with `ENOENT`. Any other number says
    /// nothing about it.
    Exists {
        /// Its name.
        name: String,
    },
    /// The size of a volume, or of a snapshot of one, by a program that the kernel runs. Whatever
    /// failed, it says nothing about the volume.
    VolumeSize {
        /// Its pool.
        pool: String,
        /// Its name.
        name: String,
    },
}

impl Call {
    /// Its name, as in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Create { .. } => "create",
            Self::Clone { .. } => "clone",
            Self::Promote { .. } => "promote",
            Self::Destroy { .. } => "destroy",
            Self::Snapshot { .. } => "snapshot",
            Self::DestroySnapshots { .. } => "destroy_snapshots",
            Self::Rollback { .. } => "rollback",
            Self::Hold { .. } => "hold",
            Self::Release { .. } => "release",
            Self::Exists { .. } => "exists",
            Self::VolumeSize { .. } => "volume_size",
        }
    }
}

/// To the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The request's.
    pub id: u64,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Calls of the library since this program was started.
    pub calls: u64,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Done,
    /// It is of this size.
    Size {
        /// Bytes.
        bytes: u64,
    },
    /// Nothing was done.
    Failed {
        /// Linux's number, or one of ZFS's own.
        errno: i32,
        /// Which of several names it was, and their numbers.
        of: BTreeMap<String, i32>,
    },
    /// The library can't be used here; nothing was done.
    Unavailable {
        /// Why.
        reason: String,
    },
    /// The request is not understood; nothing was done.
    Refused {
        /// Why.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_flat_lines() {
        let call = Call::Rollback { dataset: "z/a".to_owned(), snapshot: "z/a@b".to_owned() };
        let line = serde_json::to_string(&Request { id: 7, call: call.clone() }).unwrap();
        assert_eq!(line, r#"{"id":7,"op":"rollback","dataset":"z/a","snapshot":"z/a@b"}"#);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap().call, call);
        let outcome = Outcome::Failed { errno: 17, of: BTreeMap::from([("z@a".to_owned(), 17)]) };
        let line = serde_json::to_string(&Answer { id: 7, outcome, calls: 3 }).unwrap();
        assert_eq!(line, r#"{"id":7,"outcome":"failed","errno":17,"of":{"z@a":17},"calls":3}"#);
        let hello = r#"{"id":1,"op":"hello"}"#;
        assert_eq!(serde_json::from_str::<Request>(hello).unwrap().call, Call::Hello);
    }
}
