//! Reading jobs, and deleting those that ended long ago.

use std::collections::VecDeque;

use jiff::Timestamp;
use muster_shared::api::job::{Execution, Job};
use muster_shared::ids::ServerUuid;
use uuid::Uuid;

use super::JOBS;
use super::Jobs;
use super::record::JobRecord;
use crate::app::HistoryLimits;
use crate::app::error::AppError;
use crate::app::history::History;
use crate::app::keys;
use crate::store::{Expect, Held, MAX_PAGE, Revision};

/// Most jobs in one answer.
const MAX_LIMIT: usize = 1_000;
/// Most jobs that an answer may skip.
const MAX_OFFSET: usize = 100_000;
/// What is kept of jobs, however young they are.
const MAX_HISTORY: HistoryLimits = HistoryLimits { count: 10_000, bytes: 256 * 1024 * 1024 };
/// Jobs deleted in one commit.
const BATCH: usize = 50;

/// Which jobs; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// About this server.
    pub server: Option<ServerUuid>,
    /// Of this name, with its version.
    pub name: Option<String>,
    /// There.
    pub execution: Option<Execution>,
    /// At most this many.
    pub limit: Option<usize>,
    /// After skipping this many.
    pub offset: usize,
}

impl JobFilter {
    fn fits(&self, job: &JobRecord) -> bool {
        self.server.is_none_or(|server| job.server_uuid == server)
            && self.name.as_ref().is_none_or(|name| job.name == *name)
            && self.execution.is_none_or(|execution| job.execution == execution)
    }
}

impl Jobs {
    /// A job and its revision.
    pub(super) async fn record_of(&self, uuid: Uuid) -> Result<(JobRecord, Revision), AppError> {
        let held = JOBS.get(&self.ctx, uuid).await?.ok_or(AppError::JobNotFound)?;
        Ok((held.value, held.revision))
    }

    /// One job as the workflow API shows it, and its version for `ETag`.
    ///
    /// # Errors
    /// [`AppError::JobNotFound`], [`AppError::Store`].
    pub async fn get(&self, uuid: Uuid) -> Result<(Job, Revision), AppError> {
        let (job, revision) = self.record_of(uuid).await?;
        Ok((job.public(), revision))
    }

    /// Jobs, the newest first.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub async fn list(&self, filter: &JobFilter) -> Result<Vec<Job>, AppError> {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        let offset = filter.offset.min(MAX_OFFSET);
        // Keys are in the order of creation, so the last that fit are wanted.
        let mut newest: VecDeque<JobRecord> = VecDeque::new();
        let mut after: Option<String> = None;
        loop {
            let page = JOBS.page(&self.ctx, after.as_deref(), MAX_PAGE).await?;
            for (_, Held { value: job, .. }) in page.records {
                if filter.fits(&job) {
                    newest.push_front(job);
                    newest.truncate(offset + limit);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        Ok(newest.iter().skip(offset).map(JobRecord::public).collect())
    }

    /// Deletes the jobs that ended longer than the retention of tasks ago, and the oldest while more
    /// than [`MAX_HISTORY`] is kept. Returns how many.
    ///
    /// # Errors
    /// [`AppError::Store`]; what was deleted before stays deleted.
    pub async fn sweep(&self) -> Result<usize, AppError> {
        let keep =
            jiff::SignedDuration::try_from(self.ctx.config.task_retention).unwrap_or_default();
        let now = self.ctx.believed();
        let is_old =
            |at: &str| at.parse::<Timestamp>().is_ok_and(|at| now.duration_since(at) > keep);
        let mut history = History::measure(&self.ctx, keys::JOBS).await?;
        let mut deleted = 0;
        let mut after: Option<String> = None;
        loop {
            let page = JOBS.page(&self.ctx, after.as_deref(), BATCH).await?;
            let mut writes = Vec::new();
            let mut young = false;
            for (_, Held { value: job, revision }) in page.records {
                let over = history.is_over(MAX_HISTORY);
                // What follows was made later, and so ended later.
                young |= !over && !is_old(&job.created_at);
                if job.finished_at.as_deref().is_some_and(|at| over || is_old(at)) {
                    history.remove();
                    writes.push(JOBS.delete(job.uuid, Expect::At(revision)));
                }
            }
            if !writes.is_empty() {
                deleted += writes.len();
                self.ctx.parts.store.commit(writes).await?;
            }
            match page.next {
                Some(next) if !young => after = Some(next),
                _ => return Ok(deleted),
            }
        }
    }
}
