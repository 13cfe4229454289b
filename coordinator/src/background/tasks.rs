//! Regular work on tasks: sending what waits, ending what was never taken, deleting what is old.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;

/// How often open tasks are looked at.
const TICK: Duration = Duration::from_secs(1);
/// How often old tasks are deleted.
const SWEEP: Duration = Duration::from_hours(1);

pub(super) async fn tick(app: Arc<App>) {
    loop {
        tokio::time::sleep(TICK).await;
        app.tasks_tick().await;
    }
}

pub(super) async fn dispatch(app: Arc<App>) {
    app.tasks_dispatch().await;
}

pub(super) async fn retention(app: Arc<App>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match app.tasks_sweep().await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted old tasks"),
            Err(error) => tracing::warn!(%error, "cannot delete old tasks"),
        }
    }
}
