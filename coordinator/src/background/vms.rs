//! Writes VM records that changed.

use std::sync::Arc;

use muster_shared::error_chain::Chain;

use super::pause;
use crate::app::{App, AppError};
use crate::store::StoreError;

pub(super) async fn run(app: Arc<App>) {
    loop {
        match app.fleet.save_vms().await {
            Ok(true) => {}
            Ok(false) => app.fleet.vms_wake.notified().await,
            // The end of a task, or another coordinator, was faster.
            Err(AppError::Store(StoreError::Conflict { .. })) => pause(&app).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot write VM records");
                pause(&app).await;
            }
        }
    }
}
