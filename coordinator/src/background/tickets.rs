//! The waitlist's jobs: writing, expiring, deleting what is old.

use std::sync::Arc;
use std::time::Duration;

use super::pause;
use crate::app::App;

/// How often old tickets are deleted.
const SWEEP: Duration = Duration::from_hours(1);
/// Between noticing that a ticket is due and ending it: who makes one whose time is over already
/// is told first that it was active.
const BREATH: Duration = Duration::from_millis(10);

pub(super) async fn write(app: Arc<App>) {
    app.tickets.write().await;
}

pub(super) async fn expire(app: Arc<App>) {
    loop {
        app.tickets.due().await;
        tokio::time::sleep(BREATH).await;
        if let Err(error) = app.tickets.expire().await {
            tracing::warn!(%error, "cannot expire tickets");
            pause(&app).await;
        }
    }
}

pub(super) async fn retention(app: Arc<App>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        match app.tickets.sweep().await {
            Ok(0) => {}
            Ok(deleted) => tracing::info!(deleted, "deleted old tickets"),
            Err(error) => tracing::warn!(%error, "cannot delete old tickets"),
        }
    }
}
