//! The roster's shell: calls its tick, and writes the statuses that it wants.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::api::server::ServerRecord;
use muster_shared::ids::ServerUuid;

use super::pause;
use crate::app::{App, AppError, keys};
use crate::roster::authority::{Plan, plan};
use crate::roster::{RosterRecord, Status, Via};
use crate::store::{Expect, Revision, StoreError, Write};

/// Servers whose status is written in one commit; each needs up to two writes.
const BATCH: usize = 40;

pub(super) async fn tick(app: Arc<App>) {
    loop {
        tokio::time::sleep(app.ctx.config.roster.tick).await;
        let now = app.ctx.parts.clock.monotonic();
        let (pending, tally) = {
            let mut roster = app.roster.lock();
            roster.tick(now);
            (!roster.pending(1).is_empty(), roster.tally())
        };
        app.ctx.metrics.count_heartbeats(tally);
        if pending {
            app.roster.wake.notify_one();
        }
    }
}

pub(super) async fn write(app: Arc<App>) {
    loop {
        let pending = app.roster.lock().pending(BATCH);
        if pending.is_empty() {
            app.roster.wake.notified().await;
            continue;
        }
        if let Err(error) = write_batch(&app, &pending).await {
            app.ctx.metrics.status_put_failures.inc();
            tracing::warn!(%error, "cannot write statuses");
            pause(&app).await;
        }
    }
}

/// One server's new records.
struct Change {
    server: ServerUuid,
    roster: RosterRecord,
    /// Without its transitional status, if that is over.
    record: Option<ServerRecord>,
}

async fn write_batch(app: &App, pending: &[(ServerUuid, Status, Via)]) -> Result<(), AppError> {
    let members = app.ctx.members().await?;
    let mut changes = Vec::new();
    for (server, wanted, via) in pending {
        // None when another coordinator decides, or the store says it already.
        changes.extend(planned(app, &members, *server, *wanted, *via));
    }
    if changes.is_empty() {
        return Ok(());
    }
    let mut writes = Vec::new();
    for change in &changes {
        writes.extend(writes_of(app, change));
    }
    match app.ctx.feed.commit(writes).await {
        Ok(_) => {
            for change in changes {
                applied(app, change);
            }
            Ok(())
        }
        Err(StoreError::Conflict { key }) => {
            match key.starts_with(keys::SERVERS) {
                true => app.ctx.metrics.server_put_etag_failures.inc(),
                false => app.ctx.metrics.status_put_etag_failures.inc(),
            };
            // The batch is tried again with what the store holds now.
            app.ctx.feed.catch_up().await?;
            pause(app).await;
            Ok(())
        }
        Err(error) => {
            if changes.iter().any(|change| change.record.is_some()) {
                app.ctx.metrics.server_put_failures.inc();
            }
            Err(error.into())
        }
    }
}

fn planned(
    app: &App,
    members: &BTreeSet<String>,
    server: ServerUuid,
    wanted: Status,
    via: Via,
) -> Option<Change> {
    let Some(entry) = app.fleet.get(server).filter(|entry| entry.record.is_some()) else {
        app.roster.lock().written(server, None);
        return None;
    };
    let old = entry.roster.as_ref().map(|held| &held.value);
    match plan(old, &app.ctx.parts.instance, members, wanted, via) {
        Plan::Write => {}
        Plan::Keep => {
            app.roster.lock().written(server, Some(wanted));
            return None;
        }
        Plan::NotOurs => {
            app.ctx.metrics.usurped_heartbeaters.inc();
            app.roster.lock().yielded(server);
            return None;
        }
    }
    let last_heartbeat = app.roster.lock().last_heartbeat(server);
    let same = old.filter(|old| old.status == wanted);
    let roster = RosterRecord {
        status: wanted,
        since: same.map_or_else(|| app.ctx.parts.clock.wall(), |old| old.since),
        last_heartbeat: last_heartbeat.or_else(|| old.and_then(|old| old.last_heartbeat)),
        via,
        authority: app.ctx.authority(),
        unknown: old.map(|old| old.unknown.clone()).unwrap_or_default(),
    };
    let was_unknown = old.is_none_or(|old| old.status == Status::Unknown);
    let record = entry.record.as_ref().filter(|held| {
        let transitional = held.value.transitional_status.as_deref().is_some_and(|t| !t.is_empty());
        wanted == Status::Running && was_unknown && transitional
    });
    let record = record.map(|held| {
        let mut record = (*held.value).clone();
        record.transitional_status = None;
        record
    });
    Some(Change { server, roster, record })
}

fn writes_of(app: &App, change: &Change) -> Vec<Write> {
    let (roster_at, record_at) = app
        .fleet
        .with(change.server, |entry| {
            let at = |revision: Option<Revision>| revision.map_or(Expect::Absent, Expect::At);
            (
                at(entry.roster.as_ref().map(|held| held.revision)),
                at(entry.record.as_ref().map(|held| held.revision)),
            )
        })
        .unwrap_or((Expect::Absent, Expect::Absent));
    let key = keys::roster(change.server);
    let mut writes = vec![Write::put(key, roster_at, keys::encode(&change.roster))];
    if let Some(record) = &change.record {
        writes.push(Write::put(keys::server(change.server), record_at, keys::encode(record)));
    }
    writes
}

fn applied(app: &App, change: Change) {
    let Change { server, roster, record } = change;
    let status = roster.status;
    if record.is_some() {
        app.ctx.metrics.server_put.inc();
    }
    app.fleet.note(server, |entry| entry.status_writes += 1);
    app.ctx.counters.status_writes.inc();
    app.ctx.metrics.status_put.inc();
    tracing::info!(server_uuid = %server, status = status.as_str(), "server status changed");
}
