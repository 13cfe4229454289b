//! How snapshots are destroyed, and what keeps them.

use muster_shared::wire::Code;

use super::super::arguments::{by_dataset, texts};
use super::super::error::About;
use super::super::helper::Call;
use super::super::{Snapshot, Wanted, Zfs as _};
use super::CommandZfs;
use crate::drivers::DriverError;

impl CommandZfs {
    pub(super) async fn destroy_all(
        &self,
        snapshots: &[Snapshot],
        deferred: bool,
    ) -> Result<(), DriverError> {
        let call = Call::DestroySnapshots { snapshots: texts(snapshots), deferred };
        let destroyed = match self.atomic(call, About::Snapshots).await {
            Some(done) => done,
            None => self.destroy_by_name(snapshots, deferred).await,
        };
        match destroyed {
            // It says the same of one that is held and of one that is open.
            Err(DriverError::Refused { code: Code::DatasetBusy, message, .. })
                if self.holds(snapshots).await? =>
            {
                let text = format!("{message}: snapshot has user holds");
                Err(DriverError::refused(Code::SnapshotHeld, text))
            }
            done => done,
        }
    }

    /// Those that are not there are no error.
    async fn destroy_by_name(
        &self,
        snapshots: &[Snapshot],
        deferred: bool,
    ) -> Result<(), DriverError> {
        for names in by_dataset(snapshots) {
            let mut arguments = vec!["destroy"];
            arguments.extend(deferred.then_some("-d"));
            arguments.push(&names);
            match self.change("destroy_snapshots", &arguments).await {
                Err(DriverError::Refused {
                    code: Code::SnapshotNotFound | Code::DatasetNotFound,
                    ..
                }) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Whether somebody holds one of these snapshots.
    async fn holds(&self, snapshots: &[Snapshot]) -> Result<bool, DriverError> {
        for snapshot in snapshots {
            let told = self.list(&Wanted::of(snapshot, &["userrefs"])).await;
            let told = match told {
                Err(DriverError::Refused {
                    code: Code::SnapshotNotFound | Code::DatasetNotFound,
                    ..
                }) => Vec::new(),
                told => told?,
            };
            if told.iter().any(|row| row.get("userrefs").is_some_and(|count| count != "0")) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
