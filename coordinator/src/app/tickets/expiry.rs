//! What time does to tickets: they expire when they are due, and are deleted long after they
//! ended.

use std::time::Duration;

use jiff::SignedDuration;
use muster_shared::clock::iso;

use super::{Op, Tickets};
use crate::app::Expected;
use crate::app::error::AppError;

/// Tickets that expire or are deleted at a time.
const BATCH: usize = 90;
/// Longest sleep while a ticket may expire: a step of the wall clock is noticed after it.
const LONGEST: Duration = Duration::from_secs(1);
/// Ended tickets are deleted after this long (CNAPI's retention).
const RETENTION: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Ended tickets that are kept; beyond, the oldest are deleted early.
const KEEP_ENDED: usize = 100_000;

impl Tickets {
    /// Expires what is due, at most a batch.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Stopping`].
    pub(crate) async fn expire(&self) -> Result<(), AppError> {
        let over = self.index.over(self.ctx.parts.clock.wall(), BATCH);
        self.all(&over, Op::Expire).await?;
        for uuid in &over {
            tracing::info!(ticket_uuid = %uuid, "ticket expired");
        }
        Ok(())
    }

    /// Returns when a ticket may be due.
    pub(crate) async fn due(&self) {
        loop {
            let index = &self.index;
            let next = index.next_due().map(|at| {
                let left = at.duration_since(self.ctx.parts.clock.wall());
                Duration::try_from(left).unwrap_or(Duration::ZERO)
            });
            let left = match (next, index.has_due_as_text()) {
                (Some(left), false) => left.min(LONGEST),
                (Some(left), true) => return tokio::time::sleep(left.min(LONGEST)).await,
                (None, true) => return tokio::time::sleep(LONGEST).await,
                (None, false) => {
                    index.due_changed.notified().await;
                    continue;
                }
            };
            if left.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = index.due_changed.notified() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Deletes the tickets that ended longer than the retention ago. Returns how many.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Stopping`]; what was deleted before stays deleted.
    pub async fn sweep(&self) -> Result<usize, AppError> {
        let Ok(before) = self.ctx.believed().checked_sub(RETENTION) else { return Ok(0) };
        let old = self.index.old(&iso(before), KEEP_ENDED);
        for batch in old.chunks(BATCH) {
            self.all(batch, |uuid| Op::Delete(uuid, Expected::ANY)).await?;
        }
        Ok(old.len())
    }
}
