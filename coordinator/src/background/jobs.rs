//! Regular work on jobs: claiming those that nobody runs, deleting old ones.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;

use super::pause;
use crate::app::App;

/// How often jobs without an owner are looked for; a new one rings.
const TICK: Duration = Duration::from_secs(1);
/// How often old jobs are deleted.
const SWEEP: Duration = Duration::from_hours(1);

pub(super) async fn tick(app: Arc<App>) {
    loop {
        if let Err(error) = app.jobs.tick().await {
            tracing::warn!(error = %Chain(&error), "cannot look for jobs");
            pause(&app).await;
        }
        // Either is reason enough to look again.
        drop(tokio::time::timeout(TICK, app.jobs.wake.notified()).await);
    }
}

pub(super) async fn retention(app: Arc<App>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match app.jobs.sweep().await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted old jobs"),
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot delete old jobs"),
        }
    }
}
