//! Boot parameters: of each server in its record, and the default record that new servers
//! inherit from (`boot/default`).
//!
//! Modules that would make a record large are kept in a blob; the record then holds
//! `{"blob", "bytes"}` in their place.

mod params;

use std::sync::Arc;

use bytes::Bytes;
use muster_shared::ids::ServerUuid;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use serde_json::{Map, Value, json};

use super::error::AppError;
use super::expected::Expected;
use super::status::ATTEMPTS;
use super::tasks::is_conflict;
use super::{App, keys};
use crate::store::{Expect, Revision, Write};
use params::Whose;
pub use params::{BootChange, Mode};

/// Modules up to this size stay in the record, bytes of JSON.
const INLINE_MODULES_BYTES: usize = 32 * 1024;

/// Whose boot parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootOwner {
    /// The default record.
    Default,
    /// A server.
    Server(ServerUuid),
}

impl BootOwner {
    fn whose(self) -> Whose {
        match self {
            Self::Default => Whose::Default,
            Self::Server(_) => Whose::Server,
        }
    }
}

impl App {
    /// Boot parameters as `GET /boot/…` shows them, and the version of their record.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Store`], [`AppError::Blob`].
    pub async fn boot_get(
        &self,
        owner: BootOwner,
    ) -> Result<(Map<String, Value>, String), AppError> {
        let (record, revision) = match owner {
            BootOwner::Default => self.boot_default().await?,
            BootOwner::Server(server) => {
                let held = self.fleet.with(server, |entry| entry.record.clone()).flatten();
                let held = held.ok_or(AppError::ServerNotFound(server))?;
                ((*held.value).clone(), held.revision)
            }
        };
        let modules = self.boot_modules(&record).await?;
        let reply = params::reply(&record, owner.whose(), modules, &self.config.boot);
        Ok((reply, revision.to_string()))
    }

    /// The default record and its revision.
    async fn boot_default(&self) -> Result<(Map<String, Value>, Revision), AppError> {
        match self.parts.store.get(keys::BOOT_DEFAULT).await? {
            Some(stored) => Ok((keys::decode(&stored)?, stored.revision)),
            // Only when somebody removed it from the store: it is made at start.
            None => Ok((params::first_default(None), Revision::default())),
        }
    }

    /// Makes the default record of a new installation.
    pub(super) async fn boot_found(&self) -> Result<(), AppError> {
        if self.parts.store.get(keys::BOOT_DEFAULT).await?.is_some() {
            return Ok(());
        }
        let platform = match self.platforms().await {
            Ok(platforms) => platforms.newest().or_else(|| {
                // Of several without a time in their names none is the newest.
                let own = self.config.host_platform.clone();
                own.filter(|own| platforms.contains(own))
            }),
            Err(error) => {
                tracing::warn!(%error, "the default record gets no platform");
                None
            }
        };
        let record = params::first_default(platform.as_deref());
        let write = Write::put(keys::BOOT_DEFAULT, Expect::Absent, keys::encode(&record));
        match self.parts.store.commit(vec![write]).await {
            // Another coordinator was first.
            Err(error) if !is_conflict(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Lays over a new server's record what it inherits.
    pub(super) async fn boot_inherit(
        &self,
        record: &mut Map<String, Value>,
    ) -> Result<(), AppError> {
        let (default, _) = self.boot_default().await?;
        params::inherit(record, &default, &self.config.boot);
        Ok(())
    }

    /// The default record as `GET /servers/default` shows it, and its version.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Blob`].
    pub async fn boot_default_record(&self) -> Result<(Map<String, Value>, String), AppError> {
        let (record, revision) = self.boot_default().await?;
        let mut view = Map::new();
        view.insert("uuid".to_owned(), json!("default"));
        for name in ["default_console", "serial", "boot_params", "kernel_flags"] {
            view.extend(record.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        let modules = self.boot_modules(&record).await?.unwrap_or_else(|| json!([]));
        view.insert("boot_modules".to_owned(), modules);
        let platform = record.get("boot_platform").cloned();
        view.insert("boot_platform".to_owned(), platform.unwrap_or_else(|| json!("")));
        view.insert("status".to_owned(), json!("unknown"));
        view.insert("last_heartbeat".to_owned(), Value::Null);
        view.insert("score".to_owned(), json!(0));
        Ok((view, revision.to_string()))
    }

    /// Changes boot parameters.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`]; [`AppError::RefusedArgument`] for an unknown platform;
    /// [`AppError::InvalidArgument`] for bad modules; [`AppError::Invalid`] when it grows too
    /// large; [`AppError::Changed`]; [`AppError::Store`], [`AppError::Blob`].
    pub async fn boot_change(
        &self,
        owner: BootOwner,
        mode: Mode,
        change: &BootChange,
        expected: &Expected,
    ) -> Result<(), AppError> {
        let given = change.boot_modules.as_deref().map(params::check_modules).transpose()?;
        let mut newest = None;
        if let Some(platform) = &change.platform {
            if !self.platform_exists(platform).await? {
                let text = format!("Platform '{platform}' does not exist");
                return Err(AppError::RefusedArgument(text));
            }
        } else if mode == Mode::Replace {
            newest = self.platforms().await?.newest();
        }
        let modules = match given {
            Some(modules) => Some(self.boot_keep(owner, modules).await?),
            None => None,
        };
        let whose = owner.whose();
        let apply = |record: &mut Map<String, Value>| {
            params::apply(record, whose, mode, change, modules.as_ref(), newest.as_deref())
        };
        let changed = match owner {
            BootOwner::Default => self.boot_default_change(expected, apply).await,
            BootOwner::Server(server) => {
                let old = self.server_change(server, expected, apply).await;
                old.map(Arc::unwrap_or_clone)
            }
        };
        match changed {
            Ok(old) => {
                if old.get("boot_modules") != modules.as_ref()
                    && (modules.is_some() || mode == Mode::Replace)
                {
                    self.boot_drop(&old).await;
                }
                Ok(())
            }
            Err(error) => {
                if let Some(modules) = modules {
                    let unused = Map::from_iter([("boot_modules".to_owned(), modules)]);
                    self.boot_drop(&unused).await;
                }
                Err(error)
            }
        }
    }

    /// As [`App::server_change`], for the default record.
    async fn boot_default_change(
        &self,
        expected: &Expected,
        change: impl Fn(&mut Map<String, Value>) -> Result<(), AppError>,
    ) -> Result<Map<String, Value>, AppError> {
        for _ in 0..ATTEMPTS {
            let (old, revision) = self.boot_default().await?;
            expected.check(revision)?;
            let mut record = old.clone();
            change(&mut record)?;
            if record == old {
                return Ok(old);
            }
            let expect =
                if revision == Revision::default() { Expect::Absent } else { Expect::At(revision) };
            let write = Write::put(keys::BOOT_DEFAULT, expect, keys::encode(&record));
            match self.parts.store.commit(vec![write]).await {
                Ok(_) => return Ok(old),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(AppError::Busy("the default record changes too fast".to_owned()))
    }

    /// What a record keeps of checked modules: themselves, or a reference to a blob.
    async fn boot_keep(&self, owner: BootOwner, modules: Vec<Value>) -> Result<Value, AppError> {
        let modules = Value::Array(modules);
        let json = modules.to_string();
        if json.len() <= INLINE_MODULES_BYTES {
            return Ok(modules);
        }
        let name = match owner {
            BootOwner::Default => "default".to_owned(),
            BootOwner::Server(server) => server.to_string(),
        };
        let path = format!("boot/{name}/{}", self.parts.entropy.uuid());
        let bytes = json.len();
        let payload = PutPayload::from_bytes(Bytes::from(json));
        let put = self.parts.blobs.put(&Path::from(path.as_str()), payload).await;
        put.map_err(|source| AppError::Blob { action: "write", path: path.clone(), source })?;
        Ok(json!({ "blob": path, "bytes": bytes }))
    }

    /// A server's modules, wherever they are; `None` when it has none.
    ///
    /// # Errors
    /// [`AppError::Blob`], [`AppError::Corrupt`].
    pub async fn boot_modules_of(&self, server: ServerUuid) -> Result<Option<Value>, AppError> {
        match self.fleet.with(server, |entry| entry.record.clone()).flatten() {
            Some(held) => self.boot_modules(&held.value).await,
            None => Ok(None),
        }
    }

    async fn boot_modules(&self, record: &Map<String, Value>) -> Result<Option<Value>, AppError> {
        let Some(path) = blob_of(record) else { return Ok(record.get("boot_modules").cloned()) };
        let failed = |source| AppError::Blob { action: "read", path: path.to_owned(), source };
        let got = self.parts.blobs.get(&Path::from(path)).await.map_err(failed)?;
        let bytes = got.bytes().await.map_err(failed)?;
        let modules = serde_json::from_slice(&bytes);
        modules.map(Some).map_err(|source| AppError::Corrupt { key: path.to_owned(), source })
    }

    /// Removes the blob of a record that is gone or has other modules now.
    pub(super) async fn boot_drop(&self, record: &Map<String, Value>) {
        if let Some(path) = blob_of(record)
            && let Err(error) = self.parts.blobs.delete(&Path::from(path)).await
        {
            tracing::warn!(path, %error, "cannot delete a blob");
        }
    }
}

/// Where a record's modules are, if they are not in it.
fn blob_of(record: &Map<String, Value>) -> Option<&str> {
    record.get("boot_modules")?.get("blob")?.as_str()
}
