//! Who is alive, as this coordinator hears it, and what the store says of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::ServerUuid;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::context::Context;
use super::keys;
use crate::roster::{Liveness, RosterRecord};
use crate::store::{Damaged, Event, Follow, Record, Store, StoreError, read_all};

/// The state machine, and what wakes the writer of statuses.
#[derive(Debug)]
pub(crate) struct Roster {
    ctx: Arc<Context>,
    liveness: Mutex<Liveness>,
    /// A status may have to be written.
    pub(crate) wake: Notify,
}

impl Roster {
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        let liveness = Mutex::new(Liveness::new(ctx.config.roster, ctx.now()));
        Self { ctx, liveness, wake: Notify::new() }
    }

    /// The state machine.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock()
    }
}

#[async_trait]
impl Follow for Roster {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(keys::ROSTER)
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        read_all(store, &[keys::ROSTER]).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let now = self.ctx.now();
        let mut liveness = self.liveness.lock();
        let mut gone = liveness.servers();
        for record in records.values() {
            let Some(server) = keys::last::<ServerUuid>(&record.key) else { continue };
            let Some(stored) = damaged.decode::<RosterRecord>(&record.key, &record.value) else {
                continue;
            };
            if gone.remove(&server) {
                liveness.written(server, Some(stored.status));
            } else {
                liveness.loaded(server, stored.status, stored.via, now);
            }
        }
        for server in gone {
            liveness.written(server, None);
        }
        self.wake.notify_one();
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut liveness = self.liveness.lock();
        for Event { key, value, .. } in changes {
            let Some(server) = keys::last::<ServerUuid>(key) else { continue };
            match value.as_ref().map(|value| damaged.decode::<RosterRecord>(key, value)) {
                Some(Some(stored)) => liveness.written(server, Some(stored.status)),
                Some(None) => {}
                None => liveness.written(server, None),
            }
        }
        self.wake.notify_one();
    }
}
