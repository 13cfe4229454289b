//! Ends with the store: what is in memory may be ahead of a disk that failed, and only a restart
//! reads again what is really there.

use std::sync::Arc;

use crate::app::App;

/// Returns once the store has failed.
pub(super) async fn watch(app: Arc<App>) {
    app.ctx.parts.store.failed().await;
    tracing::error!("the store's disk failed; this process ends, so that a new one can try");
}
