//! Decisions: a record of each in the store, and their snapshots for as long as replays want them.
//!
//! `history` is what is known of the records, `snapshots` saves what was decided on, `replay`
//! decides again. A background job writes the last snapshots to blobs and forgets them in memory: a
//! fleet that changes shares little with its earlier snapshots. A clean stop writes what is left.
//! Both histories are bounded.

mod history;
mod record;
mod replay;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::api::allocation::{AskedBy, Decision, DecisionDetail};
use muster_shared::secrets::masked_members;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use uuid::Uuid;

use super::context::Context;
use super::error::AppError;
use super::keys;
use super::records::Records;
use crate::alloc::{Config, Options, Outcome, Recent};
use crate::store::{
    Damaged, Event, Expect, Follow, MAX_VALUE_BYTES, Record, Store, StoreError, Write, read_all,
};
use history::{Held, History};
pub(super) use record::DecisionRecord;
pub(super) use replay::bad_policy;
use snapshots::SavedSnapshots;

const ALLOCATIONS: Records<DecisionRecord> = Records::under(keys::ALLOCATIONS);
/// Room for what a record holds beside the request, bytes.
const ENVELOPE_BYTES: usize = 64 * 1024;
/// Records deleted in one commit.
const BATCH: usize = 100;
/// Longest wait for the snapshots that are written when the application stops.
const FLUSH: Duration = Duration::from_secs(20);

#[async_trait]
impl Follow for Decisions {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(keys::ALLOCATIONS)
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        read_all(store, &[keys::ALLOCATIONS]).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let mut history = self.history.lock();
        history.forget();
        for Record { key, value, .. } in records.values() {
            history.stored(key, Some(value), damaged);
        }
        self.wake.notify_one();
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut history = self.history.lock();
        for Event { key, value, .. } in changes {
            history.stored(key, value.as_ref(), damaged);
        }
        self.wake.notify_one();
    }
}

/// What a step of the background job came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryStep {
    /// A snapshot was saved.
    Saved,
    /// There is none to save.
    AllSaved,
    /// There may be some, but many decisions are made just now.
    Later,
}

/// The history, and how its background job is woken.
#[derive(Debug)]
pub struct Decisions {
    ctx: Arc<Context>,
    history: Mutex<History>,
    /// One snapshot is written at a time: each builds on those before it.
    saved: tokio::sync::Mutex<SavedSnapshots>,
    pub(crate) wake: Notify,
}

fn request_path(id: Uuid) -> String {
    format!("allocations/{id}/request.json")
}

impl Decisions {
    pub(super) fn new(ctx: Arc<Context>) -> Self {
        let saved = tokio::sync::Mutex::new(SavedSnapshots::new(&ctx));
        Self { ctx, history: Mutex::default(), saved, wake: Notify::new() }
    }

    /// How the allocator is to decide, now or again.
    pub(super) fn options(&self, seed: Option<u64>, recent: &Value) -> Options {
        Options {
            order: self.ctx.config.allocation.order,
            only_ready: true,
            // Clients keep numbers in doubles.
            seed: seed.unwrap_or_else(|| self.ctx.parts.entropy.u64() >> 11),
            recent: Recent::from_json(recent),
        }
    }

    /// The write that makes a decision durable; a large request and a snapshot that was asked to be
    /// kept are in blobs when this returns.
    pub(in crate::app) async fn write(
        &self,
        record: &mut DecisionRecord,
        outcome: &Outcome,
        policy: &Arc<Config>,
    ) -> Result<Write, AppError> {
        record.snapshot_id = Some(self.history.lock().name_of(outcome.snapshot(), &self.ctx));
        let request = keys::encode(&record.request);
        if request.len() > MAX_VALUE_BYTES - ENVELOPE_BYTES {
            self.put_blob(&request_path(record.decision.id), request).await?;
            record.request = None;
        }
        if record.decision.keep {
            let held = Held::of(record, outcome, policy);
            self.history.lock().ask_for(held.snapshot_id);
            self.save(&held).await?;
        }
        Ok(ALLOCATIONS.put(record.decision.id, Expect::Absent, record))
    }

    /// Removes what a decision that was not committed has left in blobs.
    pub(super) async fn forget(&self, record: &DecisionRecord) {
        self.history.lock().asked_for(record.snapshot_id);
        if record.request.is_none() {
            self.delete_blob(&request_path(record.decision.id)).await;
        }
    }

    /// The decision is durable.
    pub(in crate::app) fn made(
        &self,
        record: &DecisionRecord,
        outcome: &Outcome,
        policy: &Arc<Config>,
    ) {
        let asked_by = match record.decision.kind {
            AskedBy::Allocate => "allocate",
            AskedBy::Vms => "create",
        };
        self.ctx.metrics.count_placement(asked_by, outcome.server.is_some());
        let mut history = self.history.lock();
        history.asked_for(record.snapshot_id);
        if !record.decision.keep {
            history.add(Held::of(record, outcome, policy), self.ctx.now());
        }
        drop(history);
        self.wake.notify_one();
    }

    async fn put_blob(&self, path: &str, bytes: Bytes) -> Result<(), AppError> {
        let put = self.ctx.parts.blobs.put(&Path::from(path), PutPayload::from_bytes(bytes)).await;
        let failed = |source| AppError::Blob { action: "write", path: path.to_owned(), source };
        put.map(drop).map_err(failed)
    }

    /// One step of the background job: deletes what is over the bounds and saves one snapshot, if
    /// it is time for it.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Blob`]; it is tried again.
    pub(crate) async fn step(&self) -> Result<HistoryStep, AppError> {
        self.sweep().await?;
        if !self.history.lock().is_due(self.ctx.now()) {
            return Ok(HistoryStep::Later);
        }
        Ok(if self.save_next().await? { HistoryStep::Saved } else { HistoryStep::AllSaved })
    }

    /// Writes what is only in memory: the application stops, and nothing is decided any more.
    pub(crate) async fn flush(&self) {
        let all = async {
            loop {
                match self.save_next().await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        return tracing::warn!(%error, "snapshots of decisions are lost");
                    }
                }
            }
        };
        if tokio::time::timeout(FLUSH, all).await.is_err() {
            tracing::warn!("snapshots of decisions are lost: writing them takes too long");
        }
    }

    /// Writes the newest snapshot that is only in memory; `false` when there is none.
    async fn save_next(&self) -> Result<bool, AppError> {
        let next = self.history.lock().unsaved();
        let Some(held) = next else { return Ok(false) };
        self.save(&held).await?;
        self.history.lock().saved(held.id, self.ctx.now());
        Ok(true)
    }

    /// `GET /allocations/:id`: the record, secrets of the request masked.
    ///
    /// # Errors
    /// [`AppError::AllocationNotFound`], [`AppError::Store`], [`AppError::Blob`].
    pub async fn get(&self, id: Uuid) -> Result<DecisionDetail, AppError> {
        let mut record = self.record_of(id).await?;
        record.request = record.request.map(|request| masked_members(request.as_map()).into());
        Ok(record.into_detail())
    }

    /// A decision as it is stored, with its request.
    pub(super) async fn record_of(&self, id: Uuid) -> Result<DecisionRecord, AppError> {
        let held = ALLOCATIONS.get(&self.ctx, id).await?;
        let mut record = held.ok_or(AppError::AllocationNotFound(id))?.value;
        if record.request.is_none() {
            let path = request_path(id);
            let failed = |source| AppError::Blob { action: "read", path: path.clone(), source };
            let got = self.ctx.parts.blobs.get(&Path::from(path.as_str())).await.map_err(failed)?;
            let bytes = got.bytes().await.map_err(failed)?;
            record.request = serde_json::from_slice(&bytes)
                .map_err(|source| AppError::Corrupt { key: path.clone(), source })?;
        }
        Ok(record)
    }

    /// `GET /allocations`: the newest decisions, newest first.
    pub fn list(&self, limit: usize, before: Option<Uuid>) -> Vec<Decision> {
        self.history.lock().list(limit, before)
    }

    /// Deletes the oldest decisions over the bound, all of them, and snapshots that no decision
    /// wants any more.
    ///
    /// # Errors
    /// [`AppError::Store`]; the rest is tried again.
    async fn sweep(&self) -> Result<(), AppError> {
        loop {
            let over = self.history.lock().over(self.ctx.config.allocation.history, BATCH);
            if over.is_empty() {
                break;
            }
            let writes = over.iter().map(|(id, _)| ALLOCATIONS.delete(id, Expect::Any));
            self.ctx.feed.commit(writes.collect()).await?;
            for (id, _) in over.iter().filter(|(_, has_blob)| *has_blob) {
                self.delete_blob(&request_path(*id)).await;
            }
        }
        self.sweep_snapshots().await;
        Ok(())
    }

    async fn delete_blob(&self, path: &str) {
        match self.ctx.parts.blobs.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => tracing::warn!(path, %error, "cannot delete a blob"),
        }
    }
}
