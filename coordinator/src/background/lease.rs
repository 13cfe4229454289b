//! Keeps this coordinator a member: `members/<instance>` is bound to a lease that is renewed.

use std::sync::Arc;

use serde_json::json;

use super::pause;
use crate::app::{App, keys};
use crate::store::{Action, Expect, StoreError, Write};

/// Takes a lease and binds the membership to it.
pub(crate) async fn join(app: &App) -> Result<(), StoreError> {
    let ttl_ms = u64::try_from(app.config.lease_ttl.as_millis()).unwrap_or(u64::MAX);
    let lease = app.parts.store.grant(ttl_ms).await?;
    let member = json!({
        "instance": app.parts.instance,
        "urls": app.config.advertised_urls,
        "started_at": app.parts.clock.wall().to_string(),
    });
    let write = Write {
        key: keys::member(&app.parts.instance),
        expect: Expect::Any,
        action: Action::Put(keys::encode(&member), Some(lease)),
    };
    app.parts.store.commit(vec![write]).await?;
    *app.lease.lock() = lease;
    Ok(())
}

pub(super) async fn run(app: Arc<App>) {
    let period = app.config.lease_ttl / 3;
    loop {
        tokio::time::sleep(period).await;
        let lease = *app.lease.lock();
        let renewed = match app.parts.store.renew(lease).await {
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
