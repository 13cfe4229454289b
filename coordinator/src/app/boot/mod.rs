//! Boot parameters: of each server in its record, and the default record that new servers
//! inherit from (`boot/default`).
//!
//! Modules that would make a record large are kept in a blob; the record then holds
//! `{"blob", "bytes"}` in their place.

mod params;

use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::boot::{BootModule, BootModules, BootParams, BootRecord};
use muster_shared::api::server::{DefaultServer, ServerRecord, ServerStatus};
use muster_shared::ids::ServerUuid;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::error::AppError;
use super::expected::Expected;
use super::fleet::Fleet;
use super::keys;
use super::platforms::PlatformCatalog;
use super::records::Records;
use crate::store::{Expect, Revision};
use params::Whose;
pub use params::{BootChange, Mode};

/// The record `boot/default`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct DefaultRecord {
    #[serde(flatten)]
    boot: BootRecord,
    /// What another version keeps in the record.
    #[serde(flatten)]
    unknown: Object,
}

impl DefaultRecord {
    /// Of a new installation whose newest platform is this.
    fn first(platform: Option<&str>) -> Self {
        Self { boot: params::first_default(platform), unknown: Object::new() }
    }
}

const BOOT: Records<DefaultRecord> = Records::under(keys::BOOT);
/// The record that new servers inherit from.
const DEFAULT: &str = "default";
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

/// Boot parameters; see the module.
#[derive(Debug)]
pub struct Boot {
    ctx: Arc<Context>,
    fleet: Arc<Fleet>,
    platforms: Arc<PlatformCatalog>,
}

impl Boot {
    pub(super) fn new(
        ctx: Arc<Context>,
        fleet: Arc<Fleet>,
        platforms: Arc<PlatformCatalog>,
    ) -> Self {
        Self { ctx, fleet, platforms }
    }

    /// Boot parameters as `GET /boot/…` shows them, and the version of their record.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Store`], [`AppError::Blob`].
    pub async fn get(&self, owner: BootOwner) -> Result<(BootParams, String), AppError> {
        let settings = &self.ctx.config.boot;
        match owner {
            BootOwner::Default => {
                let (DefaultRecord { boot: record, .. }, revision) = self.default_record().await?;
                let modules = self.modules(&record).await?;
                Ok((params::reply(&record, None, modules, settings), revision.to_string()))
            }
            BootOwner::Server(server) => {
                let held = self.fleet.with(server, |entry| entry.record.clone()).flatten();
                let held = held.ok_or(AppError::ServerNotFound(server))?;
                let record = &held.value;
                let modules = self.modules(&record.boot).await?;
                let reply = params::reply(&record.boot, Some(&record.hostname), modules, settings);
                Ok((reply, held.revision.to_string()))
            }
        }
    }

    /// The default record and its revision.
    async fn default_record(&self) -> Result<(DefaultRecord, Revision), AppError> {
        match BOOT.get(&self.ctx, DEFAULT).await? {
            Some(held) => Ok((held.value, held.revision)),
            // Only when somebody removed it from the store: it is made at start.
            None => Ok((DefaultRecord::first(None), Revision::default())),
        }
    }

    /// Makes the default record of a new installation.
    pub(super) async fn found(&self) -> Result<(), AppError> {
        if BOOT.get(&self.ctx, DEFAULT).await?.is_some() {
            return Ok(());
        }
        let platform = match self.platforms.all().await {
            Ok(platforms) => platforms.newest().or_else(|| {
                // Of several without a time in their names none is the newest.
                let own = self.ctx.config.host_platform.clone();
                own.filter(|own| platforms.contains(own))
            }),
            Err(error) => {
                tracing::warn!(%error, "the default record gets no platform");
                None
            }
        };
        let record = DefaultRecord::first(platform.as_deref());
        let write = BOOT.put(DEFAULT, Expect::Absent, &record);
        match self.ctx.parts.store.commit(vec![write]).await {
            // Another coordinator was first.
            Err(error) if !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Lays over a new server's record what it inherits.
    pub(super) async fn inherit(&self, record: &mut BootRecord) -> Result<(), AppError> {
        let (default, _) = self.default_record().await?;
        params::inherit(record, &default.boot, &self.ctx.config.boot);
        Ok(())
    }

    /// The default record as `GET /servers/default` shows it, and its version.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Blob`].
    pub async fn default_server(&self) -> Result<(DefaultServer, String), AppError> {
        let (DefaultRecord { boot: record, .. }, revision) = self.default_record().await?;
        let boot_modules = self.modules(&record).await?.unwrap_or_default();
        let view = DefaultServer {
            uuid: "default",
            default_console: record.default_console,
            serial: record.serial,
            boot_params: record.boot_params,
            kernel_flags: record.kernel_flags,
            boot_modules,
            boot_platform: record.boot_platform.unwrap_or_default(),
            status: ServerStatus::Unknown,
            last_heartbeat: None,
            score: 0,
        };
        Ok((view, revision.to_string()))
    }

    /// Changes boot parameters.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`]; [`AppError::RefusedArgument`] for an unknown platform;
    /// [`AppError::InvalidArgument`] for bad modules; [`AppError::Invalid`] when it grows too
    /// large; [`AppError::Changed`]; [`AppError::Store`], [`AppError::Blob`].
    pub async fn change(
        &self,
        owner: BootOwner,
        mode: Mode,
        change: &BootChange,
        expected: &Expected,
    ) -> Result<(), AppError> {
        let given = change.boot_modules.as_deref().map(params::check_modules).transpose()?;
        let mut newest = None;
        if let Some(platform) = &change.platform {
            if !self.platforms.exists(platform).await? {
                let text = format!("Platform '{platform}' does not exist");
                return Err(AppError::RefusedArgument(text));
            }
        } else if mode == Mode::Replace {
            newest = self.platforms.all().await?.newest();
        }
        let modules = match given {
            Some(modules) => Some(self.keep(owner, modules).await?),
            None => None,
        };
        let whose = owner.whose();
        let apply = |record: &mut BootRecord| {
            params::apply(record, whose, mode, change, modules.as_ref(), newest.as_deref())
        };
        let changed = match owner {
            BootOwner::Default => self.change_default(expected, apply).await,
            BootOwner::Server(server) => {
                let apply = |record: &mut ServerRecord| apply(&mut record.boot);
                let old = self.fleet.change_record(server, expected, apply).await;
                old.map(|old| old.boot.clone())
            }
        };
        match changed {
            Ok(BootRecord { boot_modules: old, .. }) => {
                if old != modules && (modules.is_some() || mode == Mode::Replace) {
                    self.drop_modules(old.as_ref()).await;
                }
                Ok(())
            }
            Err(error) => {
                self.drop_modules(modules.as_ref()).await;
                Err(error)
            }
        }
    }

    /// As [`Fleet::change_record`], for the default record.
    async fn change_default(
        &self,
        expected: &Expected,
        change: impl Fn(&mut BootRecord) -> Result<(), AppError>,
    ) -> Result<BootRecord, AppError> {
        let attempt = || async {
            let (old, revision) = self.default_record().await?;
            expected.check(revision)?;
            let mut record = old.clone();
            change(&mut record.boot)?;
            if record != old {
                let made = revision != Revision::default();
                let expect = if made { Expect::At(revision) } else { Expect::Absent };
                let write = BOOT.put(DEFAULT, expect, &record);
                self.ctx.parts.store.commit(vec![write]).await?;
            }
            Ok(old.boot)
        };
        self.ctx.retry("the default record", attempt).await
    }

    /// What a record keeps of checked modules: themselves, or a reference to a blob.
    async fn keep(
        &self,
        owner: BootOwner,
        modules: Vec<BootModule>,
    ) -> Result<BootModules, AppError> {
        let json = keys::encode(&modules);
        if json.len() <= INLINE_MODULES_BYTES {
            return Ok(BootModules::Inline(modules));
        }
        let name = match owner {
            BootOwner::Default => "default".to_owned(),
            BootOwner::Server(server) => server.to_string(),
        };
        let path = format!("boot/{name}/{}", self.ctx.parts.entropy.uuid());
        let bytes = json.len();
        let payload = PutPayload::from_bytes(json);
        let put = self.ctx.parts.blobs.put(&Path::from(path.as_str()), payload).await;
        put.map_err(|source| AppError::Blob { action: "write", path: path.clone(), source })?;
        Ok(BootModules::Blob { blob: path, bytes })
    }

    /// A server's modules, wherever they are; `None` when it has none.
    ///
    /// # Errors
    /// [`AppError::Blob`], [`AppError::Corrupt`].
    pub async fn modules_of(
        &self,
        server: ServerUuid,
    ) -> Result<Option<Vec<BootModule>>, AppError> {
        match self.fleet.with(server, |entry| entry.record.clone()).flatten() {
            Some(held) => self.modules(&held.value.boot).await,
            None => Ok(None),
        }
    }

    async fn modules(&self, record: &BootRecord) -> Result<Option<Vec<BootModule>>, AppError> {
        let path = match &record.boot_modules {
            None => return Ok(None),
            Some(BootModules::Inline(modules)) => return Ok(Some(modules.clone())),
            Some(BootModules::Blob { blob, .. }) => blob,
        };
        let failed = |source| AppError::Blob { action: "read", path: path.clone(), source };
        let got = self.ctx.parts.blobs.get(&Path::from(path.as_str())).await.map_err(failed)?;
        let bytes = got.bytes().await.map_err(failed)?;
        let modules = serde_json::from_slice(&bytes);
        modules.map(Some).map_err(|source| AppError::Corrupt { key: path.clone(), source })
    }

    /// Removes the blob of modules whose record is gone or has others now.
    pub(super) async fn drop_modules(&self, modules: Option<&BootModules>) {
        if let Some(BootModules::Blob { blob, .. }) = modules
            && let Err(error) = self.ctx.parts.blobs.delete(&Path::from(blob.as_str())).await
        {
            tracing::warn!(path = blob, %error, "cannot delete a blob");
        }
    }
}
