//! Platform images that servers can boot: those in the configured folder and those registered in
//! the configuration; without either, the one that the coordinator's host runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use muster_shared::api::boot::PlatformOs;
use muster_shared::api::server::ServerRecord;

use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::platform::{LATEST, Platforms};

/// Most entries of the folder that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// The platforms that servers can boot.
#[derive(Debug)]
pub(crate) struct PlatformCatalog {
    ctx: Arc<Context>,
    fleet: Arc<Fleet>,
}

impl PlatformCatalog {
    pub(super) fn new(ctx: Arc<Context>, fleet: Arc<Fleet>) -> Self {
        Self { ctx, fleet }
    }

    /// The platforms there are now; what the coordinator's own host runs when none are configured.
    ///
    /// # Errors
    /// [`AppError::Platforms`]: the folder can't be read.
    pub(crate) async fn all(&self) -> Result<Platforms, AppError> {
        let registered = &self.ctx.config.platforms;
        let mut platforms: BTreeMap<_, _> =
            registered.iter().map(|platform| (platform.name.clone(), platform.os)).collect();
        if let Some(folder) = &self.ctx.config.platforms_dir {
            let failed = |source| AppError::Platforms { path: folder.clone(), source };
            platforms.extend(read(folder).await.map_err(failed)?);
        } else if platforms.is_empty() {
            platforms
                .extend(self.ctx.config.host_platform.clone().map(|own| (own, PlatformOs::Linux)));
        }
        Ok(Platforms(platforms))
    }

    /// Whether a server can be told to boot this platform: there is such a platform, or a server
    /// runs it or is to boot it, so that whoever reads boot parameters may write them back.
    ///
    /// # Errors
    /// As [`PlatformCatalog::all`].
    pub(crate) async fn exists(&self, name: &str) -> Result<bool, AppError> {
        let named = |record: &ServerRecord| {
            let known = [&record.current_platform, &record.boot.boot_platform];
            known.iter().any(|platform| platform.as_deref() == Some(name))
        };
        Ok(self.all().await?.contains(name) || self.fleet.any_record(named))
    }
}

/// `<folder>/<name>/platform/…`, as on a head node.
async fn read(folder: &Path) -> std::io::Result<BTreeMap<String, PlatformOs>> {
    let mut platforms = BTreeMap::new();
    let mut entries = tokio::fs::read_dir(folder).await?;
    for _ in 0..MAX_ENTRIES {
        let Some(entry) = entries.next_entry().await? else { break };
        let Ok(name) = entry.file_name().into_string() else { continue };
        // `latest` is a link; so the type of the entry itself counts.
        if name == LATEST || !entry.file_type().await?.is_dir() {
            continue;
        }
        let linux = tokio::fs::try_exists(entry.path().join("platform/x86_64")).await?;
        platforms.insert(name, if linux { PlatformOs::Linux } else { PlatformOs::SmartOs });
    }
    Ok(platforms)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_folder_is_read_as_on_a_head_node() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            ["20260101T000000Z/platform/x86_64", "20250101T000000Z/platform/i86pc", "custom"]
        {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("a-file"), "").unwrap();
        std::os::unix::fs::symlink("20250101T000000Z", folder.path().join("latest")).unwrap();
        let platforms = Platforms(read(folder.path()).await.unwrap());
        assert_eq!(
            json!(platforms.shown(false)),
            json!({ "20250101T000000Z": {}, "20260101T000000Z": { "latest": true }, "custom": {} })
        );
        assert_eq!(
            json!(platforms.shown(true)),
            json!({
                "20250101T000000Z": { "latest": true, "os": "smartos" },
                "20260101T000000Z": { "latest": true, "os": "linux" },
                "custom": { "os": "smartos" },
            })
        );
        assert!(!platforms.contains("latest"));
        assert!(read(&folder.path().join("missing")).await.is_err());
    }
}
