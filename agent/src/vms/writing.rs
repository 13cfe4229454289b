//! How a record is changed: on disk first, then in memory, one change at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};

use super::VmRecords;
use super::table::Entry;
use crate::drivers::DriverError;

/// The right to change the records, one at a time.
pub(super) struct Writing {
    guard: OwnedMutexGuard<()>,
    content: Arc<Mutex<BTreeMap<VmUuid, Entry>>>,
    changes: watch::Sender<u64>,
}

impl Writing {
    /// Until it is dropped nobody else changes a record.
    pub(super) fn new(
        guard: OwnedMutexGuard<()>,
        content: Arc<Mutex<BTreeMap<VmUuid, Entry>>>,
        changes: watch::Sender<u64>,
    ) -> Self {
        Self { guard, content, changes }
    }

    /// Makes a change on disk and then in memory. It goes on to its end also when its caller does
    /// not wait for it any more: the two never differ.
    pub(super) async fn finish<T, F>(
        self,
        change: impl FnOnce(Arc<Mutex<BTreeMap<VmUuid, Entry>>>) -> F,
    ) -> Result<T, DriverError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DriverError>> + Send + 'static,
    {
        let Self { guard, content, changes } = self;
        let change = change(content);
        let work = async move {
            let done = change.await;
            drop(guard);
            if done.is_ok() {
                changes.send_modify(|version| *version += 1);
            }
            done
        };
        let done = tokio::spawn(work).await;
        done.map_err(|error| DriverError::failed("change a VM record", error))?
    }
}

/// What becomes of a new record that could not be written. It may be there all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfNotWritten {
    /// It is removed, with its copy.
    Remove,
    /// It stays: it tells of a VM that was here before.
    Leave,
}

impl IfNotWritten {
    pub(super) async fn apply(self, records: &dyn VmRecords, vm: VmUuid, why: &DriverError) {
        let anothers = matches!(why, DriverError::Refused { code: Code::VmExists, .. });
        if self == Self::Leave || anothers {
            return;
        }
        if let Err(error) = records.remove(vm).await {
            let error = Chain(&error).to_string();
            tracing::error!(vm_uuid = %vm, error, "cannot take back a VM record");
        }
    }
}

/// Later than before, whatever the clock says: coordinators tell by it which of two is the newer.
pub(super) fn later_than(before: &str, now: Timestamp) -> Timestamp {
    let before = before.parse::<Timestamp>().ok();
    let next = before.and_then(|before| before.checked_add(SignedDuration::from_millis(1)).ok());
    next.map_or(now, |next| next.max(now))
}

#[cfg(test)]
mod tests {
    use muster_shared::clock::iso;

    use super::*;

    #[test]
    fn a_clock_that_is_set_back_makes_no_record_older() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let before = iso(at(5_000));
        assert_eq!(later_than(&before, at(7_000)), at(7_000));
        for now in [5_000, 1_000] {
            assert_eq!(later_than(&before, at(now)), at(5_001));
        }
        assert_eq!(later_than("", at(1_000)), at(1_000));
    }
}
