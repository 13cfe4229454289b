//! Decisions: a record of each in the store, and their snapshots for as long as replays want them.
//!
//! The last snapshots are shared with the allocator and cost nothing; a background job writes them
//! to blobs, so that a restart does not forget them. Both histories are bounded.

mod replay;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_compression::tokio::bufread::ZstdDecoder;
use async_compression::tokio::write::ZstdEncoder;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use muster_shared::api::Object;
use muster_shared::api::allocation::{AskedBy, Decision, DecisionDetail, StepCount};
use muster_shared::clock::iso;
use muster_shared::secrets::masked_members;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutPayload};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;
use uuid::Uuid;

use super::context::Context;
use super::error::AppError;
use super::keys;
use super::records::Records;
use super::server_view::number;
use crate::alloc::{
    Config, HostOs, Options, Order, Outcome, Recent, Saved, ServerName, Snapshot,
};
use crate::store::{
    Damaged, Event, Expect, Follow, Held as Stored, MAX_VALUE_BYTES, Record, Store, StoreError,
    Write, read_all,
};
pub(super) use replay::bad_policy;

const ALLOCATIONS: Records<DecisionDetail> = Records::under(keys::ALLOCATIONS);
/// Decisions whose snapshots are kept unasked.
const SNAPSHOTS: usize = 100;
/// Servers in one part of a saved snapshot; between parts others get their turn.
const PART: usize = 200;
/// Best servers in a record.
const BEST: usize = 10;
/// Room for what a record holds beside the request, bytes.
const ENVELOPE_BYTES: usize = 64 * 1024;
/// Records deleted in one commit.
const BATCH: usize = 50;

/// The order of servers in which it was decided.
pub(super) fn order_of(record: &DecisionDetail) -> Order {
    if record.shuffled { Order::Shuffled } else { Order::Uuid }
}

fn host_os_of(record: &DecisionDetail) -> HostOs {
    if record.host_os_reference { HostOs::Reference } else { HostOs::Any }
}

/// Takes down a decision; the record is `allocation/<id>`.
pub(super) fn taken_down(
    ctx: &Context,
    kind: AskedBy,
    request: &Object,
    policy: &Config,
    outcome: &Outcome,
) -> DecisionDetail {
    let step = |step: &crate::alloc::Step| StepCount {
        step: step.title().to_owned(),
        algorithm: step.algorithm().map(str::to_owned),
        remaining: u64::try_from(step.remaining_count()).unwrap_or(u64::MAX),
    };
    let best = |(server, score): (ServerName, f64)| Some((server.to_string(), number(score)?));
    let server = outcome.server.as_ref();
    let vm = request.get("vm").and_then(|vm| vm.get("vm_uuid")).and_then(Value::as_str);
    let decision = Decision {
        id: ctx.mint_id(),
        at: iso(ctx.wall()),
        kind,
        vm_uuid: vm.unwrap_or_default().to_owned(),
        server_uuid: server.map(|server| server.server_uuid.to_string()),
        score: server.and_then(|server| number(server.score)),
        failure: server.is_none().then(|| outcome.failure()),
        reserved: false,
        keep: false,
    };
    DecisionDetail {
        decision,
        request: Some(request.clone()),
        config_hash: hash(policy),
        shuffled: ctx.config.allocation.order != Order::Uuid,
        host_os_reference: policy.host_os() == HostOs::Reference,
        seed: outcome.seed,
        recent: Value::Null,
        snapshot_revision: outcome.snapshot().revision(),
        fingerprint: format!("{:016x}", outcome.fingerprint()),
        steps: outcome.steps.iter().map(step).collect(),
        best: outcome.best(BEST).into_iter().filter_map(best).collect(),
    }
}

/// SHA-256 of a policy, hexadecimal.
pub(super) fn hash(policy: &Config) -> String {
    hex::encode(Sha256::digest(policy.source().to_string()))
}

/// A snapshot that is still in memory.
#[derive(Clone, Debug)]
struct Held {
    id: Uuid,
    snapshot: Arc<Snapshot>,
    policy: Arc<Config>,
    /// Where its blob is written.
    saved: bool,
}

/// What this coordinator holds of decisions.
#[derive(Debug, Default)]
struct History {
    held: VecDeque<Held>,
    /// All records, oldest first.
    known: BTreeMap<Uuid, Known>,
}

/// What is known of a stored decision.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its snapshot is kept until the record goes.
    keep: bool,
    /// Its snapshot may be in a blob.
    snapshot: bool,
}

impl History {
    /// The store has this of a decision now; `None`: nothing.
    fn stored(&mut self, key: &str, value: Option<&Bytes>, damaged: &Damaged) {
        let Some(id) = keys::last::<Uuid>(key) else { return };
        match value.map(|value| damaged.decode::<DecisionDetail>(key, value)) {
            Some(Some(record)) => {
                self.known.insert(id, Known { keep: record.decision.keep, snapshot: true });
            }
            Some(None) => {}
            None => {
                self.known.remove(&id);
            }
        }
    }

    fn add(&mut self, id: Uuid, keep: bool, snapshot: Arc<Snapshot>, policy: Arc<Config>) {
        self.held.push_back(Held { id, snapshot, policy, saved: keep });
        if self.held.len() > SNAPSHOTS
            && let Some(oldest) = self.held.pop_front()
            && let Some(known) = self.known.get_mut(&oldest.id)
        {
            known.snapshot = oldest.saved;
        }
    }
}

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
        history.known.clear();
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

/// The history, and how its background job is woken.
#[derive(Debug)]
pub struct Decisions {
    ctx: Arc<Context>,
    history: Mutex<History>,
    pub(crate) wake: Notify,
}

/// The snapshot of a decision, and the policy it was made under.
pub(super) struct Kept {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) policy: Arc<Config>,
}

fn snapshot_path(id: Uuid) -> String {
    format!("allocations/{id}/snapshot.zst")
}

fn request_path(id: Uuid) -> String {
    format!("allocations/{id}/request.json")
}

impl Decisions {
    pub(super) fn new(ctx: Arc<Context>) -> Self {
        Self { ctx, history: Mutex::default(), wake: Notify::new() }
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

    /// The write that makes a decision durable; a large request and a snapshot to keep are in
    /// blobs when this returns.
    pub(in crate::app) async fn write(
        &self,
        record: &mut DecisionDetail,
        outcome: &Outcome,
        policy: &Arc<Config>,
    ) -> Result<Write, AppError> {
        let request = keys::encode(&record.request);
        if request.len() > MAX_VALUE_BYTES - ENVELOPE_BYTES {
            self.put_blob(&request_path(record.decision.id), request).await?;
            record.request = None;
        }
        if record.decision.keep {
            self.snapshot_save(record.decision.id, outcome.snapshot(), policy).await?;
        }
        Ok(ALLOCATIONS.put(record.decision.id, Expect::Absent, record))
    }

    /// Removes what a decision that was not committed has left in blobs.
    pub(super) async fn forget(&self, record: &DecisionDetail) {
        if record.decision.keep {
            self.delete_blob(&snapshot_path(record.decision.id)).await;
        }
        if record.request.is_none() {
            self.delete_blob(&request_path(record.decision.id)).await;
        }
    }

    /// The decision is durable.
    pub(in crate::app) fn made(
        &self,
        record: &DecisionDetail,
        outcome: &Outcome,
        policy: &Arc<Config>,
    ) {
        let (snapshot, policy) = (Arc::clone(outcome.snapshot()), Arc::clone(policy));
        let Decision { id, keep, .. } = record.decision;
        self.history.lock().add(id, keep, snapshot, policy);
        self.wake.notify_one();
    }

    async fn put_blob(&self, path: &str, bytes: Bytes) -> Result<(), AppError> {
        let put = self.ctx.parts.blobs.put(&Path::from(path), PutPayload::from_bytes(bytes)).await;
        let failed = |source| AppError::Blob { action: "write", path: path.to_owned(), source };
        put.map(drop).map_err(failed)
    }

    async fn snapshot_save(
        &self,
        id: Uuid,
        snapshot: &Arc<Snapshot>,
        policy: &Arc<Config>,
    ) -> Result<(), AppError> {
        let path = snapshot_path(id);
        let failed = |error: std::io::Error| AppError::Blob {
            action: "compress",
            path: path.clone(),
            source: object_store::Error::Generic { store: "memory", source: Box::new(error) },
        };
        let mut encoder = ZstdEncoder::new(Vec::new());
        encoder.write_all(&keys::encode(policy.source())).await.map_err(failed)?;
        let mut from = 0;
        loop {
            let part = snapshot.save(policy, from, PART);
            if part.is_empty() {
                break;
            }
            from += part.len();
            encoder.write_all(b"\n").await.map_err(failed)?;
            encoder.write_all(&keys::encode(&part)).await.map_err(failed)?;
            tokio::task::yield_now().await;
        }
        encoder.shutdown().await.map_err(failed)?;
        self.put_blob(&path, encoder.into_inner().into()).await
    }

    /// One step of the background job: deletes what is over the bounds and saves one snapshot;
    /// `false` when there is none to save.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Blob`]; it is tried again.
    pub(crate) async fn step(&self) -> Result<bool, AppError> {
        self.sweep().await?;
        self.snapshot_save_next().await
    }

    /// Writes the oldest snapshot that is only in memory; `false` when there is none.
    async fn snapshot_save_next(&self) -> Result<bool, AppError> {
        let next = self.history.lock().held.iter().find(|held| !held.saved).cloned();
        let Some(held) = next else { return Ok(false) };
        self.snapshot_save(held.id, &held.snapshot, &held.policy).await?;
        let mut history = self.history.lock();
        if let Some(known) = history.held.iter_mut().find(|known| known.id == held.id) {
            known.saved = true;
        }
        Ok(true)
    }

    /// The snapshot of a decision.
    ///
    /// # Errors
    /// [`AppError::SnapshotNotKept`].
    pub(super) async fn snapshot_of(&self, record: &DecisionDetail) -> Result<Kept, AppError> {
        let id = record.decision.id;
        let held = self.history.lock().held.iter().find(|held| held.id == id).cloned();
        if let Some(Held { snapshot, policy, .. }) = held {
            return Ok(Kept { snapshot, policy });
        }
        let path = snapshot_path(id);
        let failed = |source| AppError::Blob { action: "read", path: path.clone(), source };
        let got = match self.ctx.parts.blobs.get(&Path::from(path.as_str())).await {
            Err(object_store::Error::NotFound { .. }) => {
                return Err(AppError::SnapshotNotKept(id));
            }
            got => got.map_err(failed)?,
        };
        let bytes = got.bytes().await.map_err(failed)?;
        let io = |error: std::io::Error| {
            failed(object_store::Error::Generic { store: "memory", source: Box::new(error) })
        };
        let corrupt = |source| AppError::Corrupt { key: path.clone(), source };
        let mut lines = BufReader::new(ZstdDecoder::new(&bytes[..])).lines();
        let first = lines.next_line().await.map_err(io)?.unwrap_or_default();
        let source: Value = serde_json::from_str(&first).map_err(corrupt)?;
        let policy = Config::new(&source["expression"], &source["defaults"], host_os_of(record));
        // A policy of another version may name algorithms that this one lacks.
        let policy = Arc::new(policy.map_err(|error| bad_policy("config", &error))?);
        let mut parts = Vec::new();
        while let Some(line) = lines.next_line().await.map_err(io)? {
            parts.push(serde_json::from_str::<Saved>(&line).map_err(corrupt)?);
            tokio::task::yield_now().await;
        }
        Ok(Kept { snapshot: Saved::restore(parts, &policy), policy })
    }

    /// `GET /allocations/:id`: the record, secrets of the request masked.
    ///
    /// # Errors
    /// [`AppError::AllocationNotFound`], [`AppError::Store`], [`AppError::Blob`].
    pub async fn get(&self, id: Uuid) -> Result<DecisionDetail, AppError> {
        let mut record = self.record_of(id).await?;
        record.request = record.request.map(|request| masked_members(request.as_map()).into());
        Ok(record)
    }

    /// A decision as it is stored, with its request.
    pub(super) async fn record_of(&self, id: Uuid) -> Result<DecisionDetail, AppError> {
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
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub async fn list(
        &self,
        limit: usize,
        before: Option<Uuid>,
    ) -> Result<Vec<Decision>, AppError> {
        let records = ALLOCATIONS.all(&self.ctx).await?;
        let mut views = Vec::new();
        for (_, Stored { value: record, .. }) in records.into_iter().rev() {
            if before.is_none_or(|before| record.decision.id < before) {
                views.push(record.decision);
            }
            if views.len() >= limit {
                break;
            }
        }
        Ok(views)
    }

    /// Deletes the oldest decisions and snapshots over the bounds.
    ///
    /// # Errors
    /// [`AppError::Store`]; the rest is tried again.
    async fn sweep(&self) -> Result<(), AppError> {
        let (records, snapshots) = {
            let history = self.history.lock();
            let over = history.known.len().saturating_sub(self.ctx.config.allocation.history);
            let records: Vec<Uuid> = history.known.keys().copied().take(over.min(BATCH)).collect();
            let unasked = history.known.iter().filter(|(_, known)| known.snapshot && !known.keep);
            let unasked: Vec<Uuid> = unasked.map(|(id, _)| *id).collect();
            let past = unasked.len().saturating_sub(SNAPSHOTS);
            (records, unasked[..past.min(BATCH)].to_vec())
        };
        for id in snapshots {
            self.delete_blob(&snapshot_path(id)).await;
            if let Some(known) = self.history.lock().known.get_mut(&id) {
                known.snapshot = false;
            }
        }
        if records.is_empty() {
            return Ok(());
        }
        let writes = records.iter().map(|id| ALLOCATIONS.delete(id, Expect::Any));
        self.ctx.feed.commit(writes.collect()).await?;
        for id in &records {
            let prefix = Path::from(format!("allocations/{id}"));
            let mut list = self.ctx.parts.blobs.list(Some(&prefix));
            while let Some(Ok(found)) = list.next().await {
                self.delete_blob(found.location.as_ref()).await;
            }
        }
        Ok(())
    }

    async fn delete_blob(&self, path: &str) {
        match self.ctx.parts.blobs.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => tracing::warn!(path, %error, "cannot delete a blob"),
        }
    }
}
