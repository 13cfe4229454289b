//! Feeds the store's changes to everything that is kept in memory.

use std::sync::Arc;

use super::pause;
use crate::app::App;

pub(super) async fn run(app: Arc<App>) {
    loop {
        app.ctx.feed.run().await;
        tracing::info!("the store's watch ended; reading everything again");
        while let Err(error) = app.ctx.feed.load().await {
            tracing::warn!(%error, "cannot read the store again");
            pause(&app).await;
        }
    }
}
