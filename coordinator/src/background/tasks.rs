//! Regular work on tasks: sending what waits, ending what was never taken, deleting what is old.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;

/// How often open tasks are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How often old tasks are deleted.
const SWEEP: Duration = Duration::from_hours(1);
/// How often it is looked whether too many are kept.
const LOOK: Duration = Duration::from_mins(1);
/// Those that are kept for less than that are looked at so often, at most.
const LOOK_AT_LEAST: Duration = Duration::from_secs(1);

pub(super) async fn tick(app: Arc<App>) {
    loop {
        tokio::time::sleep(TICK).await;
        app.tasks.tick().await;
    }
}

pub(super) async fn dispatch(app: Arc<App>) {
    app.tasks.dispatch_news().await;
}

pub(super) async fn retention(app: Arc<App>) {
    let kept = app.ctx.config.task_retention.max(LOOK_AT_LEAST);
    let mut swept = app.ctx.parts.clock.monotonic();
    if let Err(error) = app.tasks.history_measure().await {
        tracing::warn!(%error, "cannot measure the history of tasks");
    }
    loop {
        tokio::time::sleep(LOOK.min(kept)).await;
        let now = app.ctx.parts.clock.monotonic();
        if now.saturating_sub(swept) < SWEEP.min(kept) && !app.tasks.history_is_over() {
            continue;
        }
        swept = now;
        match app.tasks.sweep().await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted old tasks"),
            Err(error) => tracing::warn!(%error, "cannot delete old tasks"),
        }
        if let Err(error) = app.tasks.history_measure().await {
            tracing::warn!(%error, "cannot measure the history of tasks");
        }
    }
}
