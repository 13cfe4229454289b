//! Snapshots in blobs.
//!
//! ```text
//! snapshots/<instance>/<chain>/000000-<snapshot>.zst   all servers
//!                              000001-<snapshot>.zst   what differs from the one before
//!                              policy-<hash>.json
//! ```
//!
//! So a snapshot costs what changed since the last one that was saved. A chain begins anew when its
//! parts hold half as many servers as the fleet; it is deleted as a whole, by the coordinator that
//! wrote it, once no decision wants any of its snapshots. A snapshot is in the blobs when its part
//! is: the parts before it, and its policy, were written before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_compression::Level;
use async_compression::tokio::bufread::ZstdDecoder;
use async_compression::tokio::write::ZstdEncoder;
use async_compression::zstd::CParameter;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use uuid::Uuid;

use super::history::Held;
use super::{DecisionRecord, Decisions, bad_policy};
use crate::alloc::{Config, Restored, SavedServer, ServerName, Snapshot};
use crate::app::context::Context;
use crate::app::error::AppError;
use crate::app::keys;

/// Servers encoded at a time; then others get their turn.
const PART: usize = 20;
/// Most parts of a chain: a replay reads all up to its own.
const MAX_PARTS: usize = 500;
/// Servers that a chain may hold beside its first part, whatever the fleet's size.
const SMALL: usize = 100;
const ROOT: &str = "snapshots";
/// How far back a part is compressed by what came before: some hundred servers. Powers of two, in
/// bytes.
const WINDOW_LOG: u32 = 18;
/// Size of the compressor's tables, which are made anew for each part: most parts are a few kB. Powers
/// of two, in entries.
const TABLE_LOG: u32 = 14;

/// What a decision was made on, and the policy.
pub(super) struct Kept {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) policy: Arc<Config>,
}

/// The first line of a part; the servers follow, some in a line.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Head {
    /// Places that are empty now.
    gone: Vec<u32>,
    /// The home of each VM that several servers show.
    homes: Vec<(Uuid, ServerName)>,
}

/// What is in one chain's folder.
#[derive(Debug, Default)]
struct Chain {
    /// The snapshots, in the order of their parts.
    parts: Vec<Uuid>,
    policies: BTreeSet<String>,
}

/// The chain that grows.
#[derive(Debug)]
struct Growing {
    chain: Uuid,
    /// What the parts come to.
    last: Arc<Snapshot>,
    /// Members of records that are saved for conditions of policies.
    members: BTreeSet<String>,
    /// Servers in the parts after the first.
    servers: usize,
}

/// What this coordinator has in blobs.
#[derive(Debug)]
pub(super) struct SavedSnapshots {
    /// Its folder.
    folder: String,
    chains: BTreeMap<Uuid, Chain>,
    growing: Option<Growing>,
    /// The folder was looked through: what an earlier process left is known.
    found: bool,
}

impl SavedSnapshots {
    pub(super) fn new(ctx: &Context) -> Self {
        let folder = format!("{ROOT}/{}", ctx.parts.instance);
        Self { folder, chains: BTreeMap::new(), growing: None, found: false }
    }

    /// The chain that a snapshot is in.
    fn chain_of(&self, snapshot: Uuid) -> Option<Uuid> {
        let mut chains = self.chains.iter();
        chains.find(|(_, chain)| chain.parts.contains(&snapshot)).map(|(id, _)| *id)
    }

    /// The chain to which a snapshot under this policy can be added, if it does not begin another.
    fn fitting(&self, held: &Held) -> Option<&Growing> {
        let growing = self.growing.as_ref()?;
        let parts = self.chains.get(&growing.chain)?.parts.len();
        let most = (held.snapshot.len() / 2).max(SMALL);
        let fits = growing.servers < most
            && parts < MAX_PARTS
            && held.policy.members_read().is_subset(&growing.members);
        fits.then_some(growing)
    }
}

fn part_path(folder: &str, chain: Uuid, place: usize, snapshot: Uuid) -> String {
    format!("{folder}/{chain}/{place:06}-{snapshot}.zst")
}

fn policy_path(folder: &str, chain: Uuid, hash: &str) -> String {
    format!("{folder}/{chain}/policy-{hash}.json")
}

/// What a path is: the folder of its coordinator, its chain, and its name there.
fn parts_of(path: &str) -> Option<(&str, Uuid, &str)> {
    let (rest, name) = path.rsplit_once('/')?;
    let (folder, chain) = rest.rsplit_once('/')?;
    Some((folder, chain.parse().ok()?, name))
}

/// The snapshot of a part's name.
fn snapshot_in(name: &str) -> Option<Uuid> {
    name.strip_suffix(".zst")?.split_once('-')?.1.parse().ok()
}

fn broken(path: &str, error: std::io::Error) -> AppError {
    let source = object_store::Error::Generic { store: "memory", source: Box::new(error) };
    AppError::Blob { action: "compress", path: path.to_owned(), source }
}

/// A part: what differs from an earlier snapshot.
async fn encode(
    path: &str,
    snapshot: &Snapshot,
    earlier: Option<&Snapshot>,
    members: &BTreeSet<String>,
) -> Result<(Bytes, usize), AppError> {
    let changes = snapshot.changes_since(earlier);
    let failed = |error| broken(path, error);
    let head = Head { gone: changes.gone, homes: snapshot.homes() };
    let sizes = [
        CParameter::window_log(WINDOW_LOG),
        CParameter::hash_log(TABLE_LOG),
        CParameter::chain_log(TABLE_LOG),
    ];
    let mut encoder = ZstdEncoder::with_quality_and_params(Vec::new(), Level::Default, &sizes);
    encoder.write_all(&keys::encode(&head)).await.map_err(failed)?;
    for places in changes.changed.chunks(PART) {
        encoder.write_all(b"\n").await.map_err(failed)?;
        let servers = snapshot.save(places, members);
        encoder.write_all(&keys::encode(&servers)).await.map_err(failed)?;
        tokio::task::yield_now().await;
    }
    encoder.shutdown().await.map_err(failed)?;
    Ok((encoder.into_inner().into(), changes.changed.len()))
}

/// Lays a part over what the parts before it came to; returns the homes of VMs then.
async fn decode(
    path: &str,
    bytes: &[u8],
    restored: &mut Restored,
) -> Result<Vec<(Uuid, ServerName)>, AppError> {
    let corrupt = |source| AppError::Corrupt { key: path.to_owned(), source };
    let mut lines = BufReader::new(ZstdDecoder::new(bytes)).lines();
    let mut next = async || lines.next_line().await.map_err(|error| broken(path, error));
    let head = next().await?.unwrap_or_default();
    let head: Head = serde_json::from_str(&head).map_err(corrupt)?;
    restored.remove(&head.gone);
    while let Some(line) = next().await? {
        restored.lay(serde_json::from_str::<Vec<SavedServer>>(&line).map_err(corrupt)?);
        tokio::task::yield_now().await;
    }
    Ok(head.homes)
}

impl Decisions {
    /// Writes what a decision was made on, as far as it is not in blobs already.
    pub(super) async fn save(&self, held: &Held) -> Result<(), AppError> {
        let mut saved = self.saved.lock().await;
        self.find_saved(&mut saved).await?;
        let known = saved.chain_of(held.snapshot_id);
        let chain = known.or_else(|| Some(saved.fitting(held)?.chain));
        let chain = chain.unwrap_or_else(|| self.ctx.mint_id());
        // A write that was not waited for to its end may be there all the same, so what a part needs is
        // there before it: a replay takes whichever part of its snapshot it finds.
        self.save_policy(&mut saved, chain, held).await?;
        if known.is_none() {
            self.save_part(&mut saved, chain, held).await?;
        }
        Ok(())
    }

    async fn save_policy(
        &self,
        saved: &mut SavedSnapshots,
        chain: Uuid,
        held: &Held,
    ) -> Result<(), AppError> {
        let path = policy_path(&saved.folder, chain, &held.config_hash);
        let policies = &mut saved.chains.entry(chain).or_default().policies;
        if !policies.contains(&held.config_hash) {
            self.put_blob(&path, keys::encode(held.policy.source())).await?;
            policies.insert(held.config_hash.clone());
        }
        Ok(())
    }

    async fn save_part(
        &self,
        saved: &mut SavedSnapshots,
        chain: Uuid,
        held: &Held,
    ) -> Result<(), AppError> {
        let growing = saved.growing.as_ref().filter(|growing| growing.chain == chain);
        let earlier = growing.map(|growing| Arc::clone(&growing.last));
        let (members, before) = match growing {
            Some(growing) => (growing.members.clone(), growing.servers),
            None => (held.policy.members_read(), 0),
        };
        let place = saved.chains.get(&chain).map_or(0, |chain| chain.parts.len());
        let path = part_path(&saved.folder, chain, place, held.snapshot_id);
        let (bytes, servers) = encode(&path, &held.snapshot, earlier.as_deref(), &members).await?;
        // A part whose outcome is not known may be there: another one of its place would be laid
        // over it. So the chain grows no more unless this one is known to be there.
        saved.growing = None;
        self.put_blob(&path, bytes).await?;
        saved.chains.entry(chain).or_default().parts.push(held.snapshot_id);
        let servers = if place == 0 { 0 } else { before + servers };
        let last = Arc::clone(&held.snapshot);
        saved.growing = Some(Growing { chain, last, members, servers });
        Ok(())
    }

    /// Learns what an earlier process with this coordinator's name left.
    async fn find_saved(&self, saved: &mut SavedSnapshots) -> Result<(), AppError> {
        if saved.found {
            return Ok(());
        }
        for path in self.blobs_under(&saved.folder).await? {
            let Some((_, chain, name)) = parts_of(&path) else { continue };
            let chain = saved.chains.entry(chain).or_default();
            if let Some(snapshot) = snapshot_in(name) {
                chain.parts.push(snapshot);
            } else if let Some(hash) = name.strip_prefix("policy-") {
                chain.policies.insert(hash.trim_end_matches(".json").to_owned());
            }
        }
        saved.found = true;
        Ok(())
    }

    /// The paths under a folder, in order.
    async fn blobs_under(&self, folder: &str) -> Result<Vec<String>, AppError> {
        let failed = |source| AppError::Blob { action: "list", path: folder.to_owned(), source };
        let prefix = Path::from(folder);
        let list = self.ctx.parts.blobs.list(Some(&prefix));
        let mut paths: Vec<String> =
            list.map_ok(|found| found.location.to_string()).try_collect().await.map_err(failed)?;
        paths.sort_unstable();
        Ok(paths)
    }

    /// Deletes the chains of which no decision wants a snapshot any more. What can't be deleted is
    /// found again by the next process.
    pub(super) async fn sweep_snapshots(&self) {
        let mut saved = self.saved.lock().await;
        if let Err(error) = self.find_saved(&mut saved).await {
            return tracing::warn!(%error, "cannot look for snapshots of decisions");
        }
        let wanted = self.history.lock().wanted();
        let growing = saved.growing.as_ref().map(|growing| growing.chain);
        let useless = |(id, chain): &(&Uuid, &Chain)| {
            // The last parts are those of the newest decisions.
            Some(**id) != growing && !chain.parts.iter().rev().any(|part| wanted.contains(part))
        };
        let useless: Vec<Uuid> = saved.chains.iter().filter(useless).map(|(id, _)| *id).collect();
        for id in useless {
            let Some(chain) = saved.chains.remove(&id) else { continue };
            for (place, snapshot) in chain.parts.iter().enumerate().rev() {
                self.delete_blob(&part_path(&saved.folder, id, place, *snapshot)).await;
            }
            for hash in &chain.policies {
                self.delete_blob(&policy_path(&saved.folder, id, hash)).await;
            }
        }
    }

    /// What a decision was made on.
    ///
    /// # Errors
    /// [`AppError::SnapshotNotKept`], [`AppError::Blob`], [`AppError::Corrupt`].
    pub(super) async fn snapshot_of(&self, record: &DecisionRecord) -> Result<Kept, AppError> {
        let id = record.decision.id;
        let not_kept = || AppError::SnapshotNotKept(id);
        let (held, wanted) = {
            let history = self.history.lock();
            (history.held(id), history.wants(id))
        };
        if !wanted {
            return Err(not_kept());
        }
        if let Some(Held { snapshot, policy, .. }) = held {
            return Ok(Kept { snapshot, policy });
        }
        let snapshot = record.snapshot_id.ok_or_else(not_kept)?;
        // Another coordinator may have written it.
        let paths = self.blobs_under(ROOT).await?;
        let is_part = |path: &&String| {
            parts_of(path).and_then(|(_, _, name)| snapshot_in(name)) == Some(snapshot)
        };
        let last = paths.iter().find(is_part).ok_or_else(not_kept)?;
        let (folder, chain, _) = parts_of(last).ok_or_else(not_kept)?;
        let policy = policy_path(folder, chain, &record.config_hash);
        let source = self.get_blob(&policy).await?.ok_or_else(not_kept)?;
        let corrupt = |source| AppError::Corrupt { key: policy.clone(), source };
        let source: Value = serde_json::from_slice(&source).map_err(corrupt)?;
        let policy = Config::new(&source["expression"], &source["defaults"], record.host_os());
        // A policy of another version may name algorithms that this one lacks.
        let policy = Arc::new(policy.map_err(|error| bad_policy("config", &error))?);
        let chain_folder = format!("{folder}/{chain}/");
        let in_chain = |path: &&String| path.starts_with(&chain_folder) && path <= &last;
        let mut restored = Restored::default();
        let mut homes = Vec::new();
        for path in paths.iter().filter(in_chain).filter(|path| path.ends_with(".zst")) {
            let bytes = self.get_blob(path).await?.ok_or_else(not_kept)?;
            homes = decode(path, &bytes, &mut restored).await?;
        }
        Ok(Kept { snapshot: restored.snapshot(&homes, &policy), policy })
    }

    async fn get_blob(&self, path: &str) -> Result<Option<Bytes>, AppError> {
        let failed = |source| AppError::Blob { action: "read", path: path.to_owned(), source };
        match self.ctx.parts.blobs.get(&Path::from(path)).await {
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            got => Ok(Some(got.map_err(failed)?.bytes().await.map_err(failed)?)),
        }
    }
}
