//! Records as JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Expect, Record, Revision, Store, StoreError, Write};

/// Why a record could not be read as its type.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TypedError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The value is not what this version of Muster writes there.
    #[error("record {key} can't be read")]
    Decode {
        /// The record's key.
        key: String,
        /// What is wrong.
        #[source]
        source: std::sync::Arc<serde_json::Error>,
    },
}

/// Reads a record's value.
///
/// # Errors
/// [`TypedError::Decode`].
pub fn decode<T: DeserializeOwned>(record: &Record) -> Result<T, TypedError> {
    serde_json::from_slice(&record.value)
        .map_err(|e| TypedError::Decode { key: record.key.clone(), source: e.into() })
}

/// Reads one record and its revision; `None` if absent.
///
/// # Errors
/// [`TypedError`].
pub async fn get_json<T: DeserializeOwned>(
    store: &dyn Store,
    key: &str,
) -> Result<Option<(T, Revision)>, TypedError> {
    match store.get(key).await? {
        Some(record) => Ok(Some((decode(&record)?, record.revision))),
        None => Ok(None),
    }
}

/// A write of a value as JSON.
///
/// # Panics
/// When `value` has map keys that are not strings: record types have none.
pub fn put_json<T: Serialize>(key: impl Into<String>, expect: Expect, value: &T) -> Write {
    let bytes = serde_json::to_vec(value).expect("record types serialize to JSON");
    Write::put(key, expect, bytes)
}
