//! Writes memory and disk figures that moved, seldom.

use std::sync::Arc;
use std::time::Duration;

use super::pause;
use crate::app::App;

/// How often it is looked whether figures are due.
const TICK: Duration = Duration::from_secs(2);

pub(super) async fn run(app: Arc<App>) {
    loop {
        match app.fleet.save_figures().await {
            Ok(true) => {}
            Ok(false) => tokio::time::sleep(TICK).await,
            Err(error) => {
                tracing::warn!(%error, "cannot write memory and disk figures");
                pause(&app).await;
            }
        }
    }
}
