//! Keeps the history of decisions: writes snapshots that are only in memory, deletes what is over
//! the bounds; takes over what servers report; and ends reservations.

use std::sync::Arc;
use std::time::Duration;

use super::pause;
use crate::app::{App, HistoryStep};

/// How often reservations are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Saving a snapshot is followed by so many times as long a rest: requests come first.
const REST: u32 = 4;
/// How long after a decision, and how often in a burst of them, the history is looked at.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) async fn run(app: Arc<App>) {
    loop {
        let before = app.ctx.parts.clock.monotonic();
        match app.decisions.step().await {
            Ok(HistoryStep::Saved) => {
                let elapsed = app.ctx.parts.clock.monotonic().saturating_sub(before);
                tokio::time::sleep(elapsed * REST).await;
            }
            Ok(HistoryStep::AllSaved) => {
                app.decisions.wake.notified().await;
                tokio::time::sleep(SETTLE).await;
            }
            Ok(HistoryStep::Later) => tokio::time::sleep(SETTLE).await,
            Err(error) => {
                tracing::warn!(%error, "cannot keep the history of decisions");
                pause(&app).await;
            }
        }
    }
}

/// Takes over what servers report, so that a decision finds little to take over.
pub(super) async fn intake(app: Arc<App>) {
    loop {
        if app.placement.take_over() {
            tokio::task::yield_now().await;
        } else {
            app.fleet.stale_wake.notified().await;
        }
    }
}

pub(super) async fn reservations(app: Arc<App>) {
    loop {
        tokio::time::sleep(TICK).await;
        if let Err(error) = app.placement.tick().await {
            tracing::warn!(%error, "cannot delete what was reserved");
        }
    }
}
