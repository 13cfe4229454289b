//! Writes VM records that changed.

use std::sync::Arc;

use super::pause;
use crate::app::App;

pub(super) async fn run(app: Arc<App>) {
    loop {
        match app.vms_save().await {
            Ok(true) => {}
            Ok(false) => app.vms_wake.notified().await,
            Err(error) => {
                tracing::warn!(%error, "cannot write VM records");
                pause(&app).await;
            }
        }
    }
}
