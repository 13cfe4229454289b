//! What is too large for a task's record: parameters, and members of results.

use bytes::Bytes;
use muster_shared::api::Object;
use muster_shared::api::task::Blob;
use muster_shared::ids::TaskId;
use muster_shared::wire::{INLINE_EDGE_BYTES, MAX_INLINE_BYTES};
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use serde_json::{Value, json};

use super::Tasks;
use super::record::{Params, TaskRecord};
use crate::app::error::AppError;
use crate::app::keys;
use crate::store::MAX_VALUE_BYTES;

/// Parameters up to this size stay in the record, bytes.
const INLINE_PARAMS_BYTES: usize = 32 * 1024;
/// Room for what else a record holds, bytes.
const ENVELOPE_BYTES: usize = 8 * 1024;

impl Tasks {
    /// Puts large parameters aside.
    pub(super) async fn store_params(
        &self,
        id: &TaskId,
        params: Object,
    ) -> Result<Params, AppError> {
        let json = keys::encode(&params);
        if json.len() <= INLINE_PARAMS_BYTES {
            return Ok(Params::Inline(params));
        }
        let path = format!("tasks/{id}/params");
        self.put_blob(&path, json).await?;
        Ok(Params::Blob(path))
    }

    /// Reads parameters back.
    pub(crate) async fn load_params(&self, params: &Params) -> Result<Object, AppError> {
        match params {
            Params::Inline(params) => Ok(params.clone()),
            Params::Blob(path) => {
                let failed = |source| AppError::Blob { action: "read", path: path.clone(), source };
                let got =
                    self.ctx.parts.blobs.get(&Path::from(path.as_str())).await.map_err(failed)?;
                let bytes = got.bytes().await.map_err(failed)?;
                serde_json::from_slice(&bytes)
                    .map_err(|source| AppError::Corrupt { key: path.clone(), source })
            }
        }
    }

    /// Removes parameters that nobody needs any more.
    pub(super) async fn drop_params(&self, params: &Params) {
        if let Params::Blob(path) = params
            && let Err(error) = self.ctx.parts.blobs.delete(&Path::from(path.as_str())).await
        {
            tracing::warn!(path, %error, "cannot delete a blob");
        }
    }

    async fn put_blob(&self, path: &str, bytes: Bytes) -> Result<(), AppError> {
        let put = self.ctx.parts.blobs.put(&Path::from(path), PutPayload::from_bytes(bytes)).await;
        put.map(drop).map_err(|source| AppError::Blob {
            action: "write",
            path: path.to_owned(),
            source,
        })
    }

    /// Moves text members that do not fit to blobs, leaving their two ends, until the record fits
    /// the store.
    pub(super) async fn shrink(&self, record: &mut TaskRecord) -> Result<(), AppError> {
        let id = record.id.clone();
        let mut limit = MAX_INLINE_BYTES;
        for number in 0.. {
            let size = keys::encode(record).len();
            let fits = size <= MAX_VALUE_BYTES - ENVELOPE_BYTES;
            let largest = event_of(record).and_then(|event| largest_text(event, limit));
            let Some(name) = largest else {
                if fits || limit == 0 {
                    break;
                }
                // Everything over its own limit is out and it still does not fit.
                limit = if limit > INLINE_EDGE_BYTES * 2 { INLINE_EDGE_BYTES * 2 } else { 0 };
                continue;
            };
            let path = format!("tasks/{id}/{number}");
            let Some(text) = event_of(record).and_then(|event| take_edges(event, &name, &path))
            else {
                break;
            };
            self.put_blob(&path, Bytes::from(text)).await?;
        }
        self.shrink_whole(record).await
    }

    /// The last resort for a result made of very many small members.
    async fn shrink_whole(&self, record: &mut TaskRecord) -> Result<(), AppError> {
        if keys::encode(record).len() <= MAX_VALUE_BYTES - ENVELOPE_BYTES {
            return Ok(());
        }
        let path = format!("tasks/{}/result", record.id);
        let Some(event) = event_of(record) else { return Ok(()) };
        let json = keys::encode(event);
        *event = json!(blob(&path, json.len()));
        self.put_blob(&path, json).await
    }
}

/// What the agent returned, wherever the record has it.
fn event_of(record: &mut TaskRecord) -> Option<&mut Value> {
    match record.result.as_mut() {
        Some(result) => Some(result),
        None => Some(&mut record.history.first_mut()?.event),
    }
}

fn blob(path: &str, size: usize) -> Blob {
    Blob { blob: path.to_owned(), bytes: u64::try_from(size).unwrap_or(u64::MAX) }
}

/// The name of the largest text member over `limit` bytes.
fn largest_text(event: &Value, limit: usize) -> Option<String> {
    let texts = event.as_object()?.iter().filter_map(|(name, v)| Some((name, v.as_str()?.len())));
    let (name, _) = texts.filter(|(_, len)| *len > limit.max(1024)).max_by_key(|(_, len)| *len)?;
    Some(name.clone())
}

/// Replaces a text by its two ends and a reference; returns the whole text.
fn take_edges(event: &mut Value, name: &str, path: &str) -> Option<String> {
    let members = event.as_object_mut()?;
    let text = members.get(name)?.as_str()?.to_owned();
    let edge = INLINE_EDGE_BYTES.min(text.len() / 4);
    let head = &text[..text.floor_char_boundary(edge)];
    let tail = &text[text.ceil_char_boundary(text.len() - edge)..];
    members.insert(name.to_owned(), json!(format!("{head}\n…\n{tail}")));
    members.insert(format!("{name}_blob"), json!(blob(path, text.len())));
    Some(text)
}
