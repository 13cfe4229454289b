//! Keeps this coordinator a member: `members/<instance>` is bound to a lease that is renewed.

use std::sync::Arc;

use serde_json::json;

use super::pause;
use crate::app::{App, keys};
use crate::store::{Action, Expect, StoreError, Write};

/// Takes a lease and binds the membership to it.
pub(crate) async fn join(app: &App) -> Result<(), StoreError> {
    let ttl_ms = u64::try_from(app.ctx.config.lease_ttl.as_millis()).unwrap_or(u64::MAX);
    let lease = app.ctx.parts.store.grant(ttl_ms).await?;
    let member = json!({
        "instance": app.ctx.parts.instance,
        "urls": app.ctx.config.advertised_urls,
        "started_at": app.ctx.parts.clock.wall().to_string(),
    });
    let write = Write {
        key: keys::member(&app.ctx.parts.instance),
        expect: Expect::Any,
        action: Action::Put(keys::encode(&member), Some(lease)),
    };
    app.ctx.parts.store.commit(vec![write]).await?;
    *app.ctx.lease.lock() = lease;
    Ok(())
}

pub(super) async fn run(app: Arc<App>) {
    let period = app.ctx.config.lease_ttl / 3;
    loop {
        tokio::time::sleep(period).await;
        let lease = *app.ctx.lease.lock();
        let renewed = match app.ctx.parts.store.renew(lease).await {
            Err(StoreError::LeaseExpired) => {
                tracing::warn!("the lease expired: this coordinator was away; joining again");
                join(&app).await
            }
            other => other,
        };
        if let Err(error) = renewed {
            tracing::warn!(%error, "cannot renew the lease");
            pause(&app).await;
        }
    }
}
