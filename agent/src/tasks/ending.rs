//! How an engine stops: because it is told to, or because there is no journal any more.

use std::time::Duration;

use muster_shared::error_chain::Chain;
use tokio_util::sync::CancellationToken;

use super::journal::JournalError;
use super::runner::Engine;

impl Engine {
    /// The journal can't be written: what is in memory may be ahead of the disk, so the process
    /// has to end; see [`Engine::broken`].
    pub(super) fn break_down(&self, error: &JournalError) {
        tracing::error!(error = %Chain(error), "the task journal can't be written, giving up");
        self.broken.cancel();
    }

    /// The journal is lost although it can be written: its folder is gone. From now on no task
    /// begins, and none goes on with its next step.
    pub fn lose_journal(&self, why: impl Into<String>) {
        let why = why.into();
        tracing::error!(why, "tasks can't be journaled any more");
        // The first reason is the one.
        self.given_up.set(why).ok();
        self.touch();
    }

    /// Cancelled when the journal failed: the process must end and start again.
    #[must_use]
    pub fn broken(&self) -> CancellationToken {
        self.broken.clone()
    }

    /// Refuses new tasks, waits for those that run, at most `patience`. What still runs then
    /// goes on from its journaled step after the next start.
    pub async fn shut_down(&self, patience: Duration) {
        self.shared.lock().stopping = true;
        self.closing.cancel();
        self.tracker.close();
        if tokio::time::timeout(patience, self.tracker.wait()).await.is_err() {
            tracing::info!("tasks are left to the next start of the agent");
        }
    }
}
