//! Deletes ended tasks once they are old or too many, in batches, so that it never holds up other
//! writers.

use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use muster_shared::api::task::TaskStatus;
use muster_shared::ids::TaskId;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::record::TaskRecord;
use super::{TASKS, Tasks};
use crate::app::error::AppError;
use crate::app::history::History;
use crate::app::keys;
use crate::app::records::Page;
use crate::store::{Expect, Held, Write};

/// Tasks deleted in one commit.
const BATCH: usize = 50;

impl Tasks {
    /// Whether more ended tasks are kept than their limits allow.
    pub(crate) fn history_is_over(&self) -> bool {
        self.table.history().is_over(self.ctx.config.task_history)
    }

    /// Counts what the store holds of ended tasks.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub(crate) async fn history_measure(&self) -> Result<(), AppError> {
        self.table.measured(History::measure(&self.ctx, keys::TASKS).await?);
        Ok(())
    }

    /// Deletes the tasks that ended longer than the retention ago, and the oldest while more are
    /// kept than the limits allow. Returns how many.
    ///
    /// # Errors
    /// [`AppError::Store`]; what was deleted before stays deleted.
    pub async fn sweep(&self) -> Result<usize, AppError> {
        let mut deleted = 0;
        let mut after: Option<String> = None;
        loop {
            let page = TASKS.page(&self.ctx, after.as_deref(), BATCH).await?;
            let (writes, ids, young) = self.sweep_page(&page);
            if !writes.is_empty() {
                match self.ctx.feed.commit(writes).await {
                    Ok(_) => {}
                    // Another coordinator sweeps, too.
                    Err(error) if error.is_conflict() => continue,
                    Err(error) => return Err(error.into()),
                }
                deleted += ids.len();
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

    /// What is to be deleted of a page, and whether all that follow are to be kept.
    fn sweep_page(&self, page: &Page<TaskRecord>) -> (Vec<Write>, Vec<TaskId>, bool) {
        let now = self.ctx.believed();
        let limits = self.ctx.config.task_history;
        let mut history = self.table.history();
        let (mut writes, mut ids) = (Vec::new(), Vec::new());
        for (key, Held { value: record, revision }) in &page.records {
            let is_old = |at: &str| is_old(at, now, self.ctx.config.task_retention);
            let over = history.is_over(limits);
            if !over && !is_old(&record.timestamp) {
                // Keys are in order of creation: all that follow are younger.
                return (writes, ids, true);
            }
            let ended_at = record.finished_at.as_deref().unwrap_or(&record.timestamp);
            if record.status != TaskStatus::Active && (over || is_old(ended_at)) {
                history.remove();
                writes.push(Write::delete(key.clone(), Expect::At(*revision)));
                ids.push(record.id.clone());
            }
        }
        (writes, ids, false)
    }

    async fn delete_blobs(&self, prefix: &str) {
        let prefix = Path::from(prefix);
        let mut list = self.ctx.parts.blobs.list(Some(&prefix));
        while let Some(found) = list.next().await {
            let Ok(found) = found else { return };
            if let Err(error) = self.ctx.parts.blobs.delete(&found.location).await {
                tracing::warn!(path = %found.location, %error, "cannot delete a blob");
            }
        }
    }
}

fn is_old(timestamp: &str, now: Timestamp, keep: Duration) -> bool {
    let Ok(made) = timestamp.parse::<Timestamp>() else { return false };
    now.duration_since(made) > jiff::SignedDuration::try_from(keep).unwrap_or_default()
}
