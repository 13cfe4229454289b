//! One kind of record: where it is in the store, and how it is read, listed and changed. Indices
//! in memory are fed apart from this, by [`Feed`](crate::store::Feed).

use std::fmt::Display;
use std::marker::PhantomData;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::error::AppError;
use super::keys;
use crate::store::{Expect, Held, MAX_PAGE, Revision, Write};

/// The records under one prefix, all of one type.
#[derive(Debug)]
pub(super) struct Records<T> {
    prefix: &'static str,
    of: PhantomData<fn() -> T>,
}

/// Some records in the order of their keys.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// Those that can be read; the others are set aside by name.
    pub(super) records: Vec<(String, Held<T>)>,
    /// Where the next page begins; `None` at the end.
    pub(super) next: Option<String>,
    /// The newest commit that it shows anything of. It may not have come to the followers yet.
    pub(super) newest: Revision,
}

impl<T: Serialize + DeserializeOwned> Records<T> {
    /// The records whose keys begin with this.
    pub(super) const fn under(prefix: &'static str) -> Self {
        Self { prefix, of: PhantomData }
    }

    /// The key of a record.
    pub(super) fn key(&self, id: impl Display) -> String {
        format!("{}{id}", self.prefix)
    }

    /// Writes a record.
    pub(super) fn put(&self, id: impl Display, expect: Expect, record: &T) -> Write {
        Write::put(self.key(id), expect, keys::encode(record))
    }

    /// Removes a record.
    pub(super) fn delete(&self, id: impl Display, expect: Expect) -> Write {
        Write::delete(self.key(id), expect)
    }

    /// One record.
    ///
    /// # Errors
    /// [`AppError::Store`]; [`AppError::Corrupt`] when it can't be read.
    pub(super) async fn get(
        &self,
        ctx: &Context,
        id: impl Display,
    ) -> Result<Option<Held<T>>, AppError> {
        let Some(stored) = ctx.parts.store.get(&self.key(id)).await? else { return Ok(None) };
        let value = keys::decode(&stored)?;
        Ok(Some(Held { value, revision: stored.revision }))
    }

    /// At most `limit` records after a key.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub(super) async fn page(
        &self,
        ctx: &Context,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<T>, AppError> {
        let page = ctx.parts.store.list(self.prefix, after, limit).await?;
        let revisions = page.records.iter().map(|record| record.revision);
        let newest = revisions.fold(page.revision, Revision::max);
        let read = |record: crate::store::Record| {
            let value = self.read(ctx, &record.key, &record.value)?;
            Some((record.key, Held { value, revision: record.revision }))
        };
        let records = page.records.into_iter().filter_map(read).collect();
        Ok(Page { records, next: page.next, newest })
    }

    /// All records.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub(super) async fn all(&self, ctx: &Context) -> Result<Vec<(String, Held<T>)>, AppError> {
        let mut records = Vec::new();
        let mut after = None;
        loop {
            let page = self.page(ctx, after.as_deref(), MAX_PAGE).await?;
            records.extend(page.records);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(records),
            }
        }
    }

    fn read(&self, ctx: &Context, key: &str, value: &Bytes) -> Option<T> {
        ctx.feed.damaged().decode(key, value)
    }
}
