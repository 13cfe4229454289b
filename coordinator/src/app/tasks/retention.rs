//! Deletes ended tasks once they are old, in batches, so that it never holds up other writers.

use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::record::{TaskRecord, TaskStatus};
use crate::app::error::AppError;
use crate::app::{App, keys};
use crate::store::{Expect, Write};

/// Tasks deleted in one commit.
const BATCH: usize = 50;

impl App {
    /// Deletes the tasks that ended longer than the retention ago. Returns how many.
    ///
    /// # Errors
    /// [`AppError::Store`]; what was deleted before stays deleted.
    pub async fn tasks_sweep(&self) -> Result<usize, AppError> {
        let keep = self.config.task_retention;
        let now = self.parts.clock.wall();
        let mut deleted = 0;
        let mut after: Option<String> = None;
        loop {
            let page = self.parts.store.list(keys::TASKS, after.as_deref(), BATCH).await?;
            let mut writes = Vec::new();
            let mut ids = Vec::new();
            let mut young = false;
            for stored in &page.records {
                let damaged = self.feed.damaged();
                let Some(record) = damaged.decode::<TaskRecord>(&stored.key, &stored.value) else {
                    continue;
                };
                if !is_old(&record.timestamp, now, keep) {
                    // Keys are in order of creation: all that follow are younger.
                    young = true;
                    break;
                }
                if record.status != TaskStatus::Active {
                    writes.push(Write::delete(stored.key.clone(), Expect::At(stored.revision)));
                    ids.push(record.id);
                }
            }
            if !writes.is_empty() {
                deleted += writes.len();
                self.parts.store.commit(writes).await?;
                for id in ids {
                    self.delete_blobs(&format!("tasks/{id}")).await;
                }
            }
            match page.next {
                Some(next) if !young => after = Some(next),
                _ => return Ok(deleted),
            }
        }
    }

    async fn delete_blobs(&self, prefix: &str) {
        let prefix = Path::from(prefix);
        let mut list = self.parts.blobs.list(Some(&prefix));
        while let Some(found) = list.next().await {
            let Ok(found) = found else { return };
            if let Err(error) = self.parts.blobs.delete(&found.location).await {
                tracing::warn!(path = %found.location, %error, "cannot delete a blob");
            }
        }
    }
}

fn is_old(timestamp: &str, now: Timestamp, keep: Duration) -> bool {
    let Ok(made) = timestamp.parse::<Timestamp>() else { return false };
    now.duration_since(made) > jiff::SignedDuration::try_from(keep).unwrap_or_default()
}
