//! Changes of records: of servers, each a compare-and-swap that is tried again, and of their VMs.

use std::sync::Arc;

use muster_shared::api::server::ServerRecord;
use muster_shared::ids::ServerUuid;

use super::Fleet;
use crate::app::error::AppError;
use crate::app::expected::Expected;
use crate::app::keys;
use crate::app::records::Records;
use crate::store::{Expect, Held, Write};

pub(in crate::app) const SERVERS: Records<ServerRecord> = Records::under(keys::SERVERS);
/// VM records written in one commit.
const VM_BATCH: usize = 100;

impl Fleet {
    /// Version of a server's record, for `ETag`.
    #[must_use]
    pub fn version(&self, server: ServerUuid) -> Option<String> {
        self.with(server, |entry| entry.record.as_ref().map(|r| r.revision.to_string()))?
    }

    /// A server's name, if it is registered.
    #[must_use]
    pub fn hostname(&self, server: ServerUuid) -> Option<String> {
        self.with(server, |entry| entry.record.as_ref().map(|r| r.value.hostname.clone()))?
    }

    /// Changes a record; when nothing changes, nothing is written.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], [`AppError::Store`],
    /// [`AppError::Busy`] after many lost races.
    pub async fn update_record(
        &self,
        server: ServerUuid,
        expected: &Expected,
        change: impl Fn(&mut ServerRecord),
    ) -> Result<(), AppError> {
        let change = |record: &mut ServerRecord| {
            change(record);
            Ok(())
        };
        self.change_record(server, expected, change).await.map(drop)
    }

    /// Changes a record and returns it as it was.
    ///
    /// # Errors
    /// As [`Fleet::update_record`]; what `change` returns.
    pub(in crate::app) async fn change_record(
        &self,
        server: ServerUuid,
        expected: &Expected,
        change: impl Fn(&mut ServerRecord) -> Result<(), AppError>,
    ) -> Result<Arc<ServerRecord>, AppError> {
        let attempt = || async {
            let held = self.held(server, expected)?;
            let mut record = (*held.value).clone();
            change(&mut record)?;
            if record != *held.value {
                let write = SERVERS.put(server, Expect::At(held.revision), &record);
                self.ctx.feed.commit(vec![write]).await?;
            }
            Ok(held.value)
        };
        self.ctx.retry(format!("server {server}"), attempt).await
    }

    /// A server's record, if it is at a version that the client expects.
    fn held(
        &self,
        server: ServerUuid,
        expected: &Expected,
    ) -> Result<Held<Arc<ServerRecord>>, AppError> {
        let held = self.with(server, |entry| entry.record.clone()).flatten();
        let held = held.ok_or(AppError::ServerNotFound(server))?;
        expected.check(held.revision)?;
        Ok(held)
    }

    /// Removes the records of a server itself; those of its VMs stay.
    ///
    /// # Errors
    /// As [`Fleet::update_record`].
    pub(in crate::app) async fn erase_record(
        &self,
        server: ServerUuid,
        expected: &Expected,
    ) -> Result<Arc<ServerRecord>, AppError> {
        let attempt = || async {
            let held = self.held(server, expected)?;
            let writes = vec![
                SERVERS.delete(server, Expect::At(held.revision)),
                Write::delete(keys::sysinfo(server), Expect::Any),
                Write::delete(keys::roster(server), Expect::Any),
                Write::delete(keys::figures(server), Expect::Any),
            ];
            self.ctx.feed.commit(writes).await?;
            Ok(held.value)
        };
        self.ctx.retry(format!("server {server}"), attempt).await
    }

    /// Writes changed VM records, one batch; `true` when more may be left.
    ///
    /// # Errors
    /// [`AppError::Store`]; nothing of the batch was written and it is tried again.
    pub(crate) async fn save_vms(&self) -> Result<bool, AppError> {
        let writes = self.unsaved(VM_BATCH);
        if writes.is_empty() {
            return Ok(false);
        }
        let more = self.unsaved_count() > writes.len();
        match self.ctx.feed.commit(writes).await {
            Ok(_) => Ok(more),
            Err(error) => Err(error.into()),
        }
    }
}
