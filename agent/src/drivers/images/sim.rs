//! Simulated images: a repository in memory from which simulated nodes install.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::manifest::Compression;
use super::origins::{self, ManifestFuture};
use super::pack::{DiskBytes, DiskSource, Packed};
use super::publish::{Publication, TASK_TAG};
use super::{ContainerImage, ImageUsage, Images, Installed, RuntimeConfig};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;
use crate::drivers::storage::sim::{SimImage, SimPool};

/// What all simulated nodes can install; clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimRepository(Arc<Mutex<BTreeMap<ImageUuid, SimImage>>>);

impl SimRepository {
    /// Publishes an image.
    pub fn publish(&self, uuid: ImageUuid, image: SimImage) {
        self.0.lock().insert(uuid, image);
    }

    /// What is published under a uuid.
    #[must_use]
    pub fn image(&self, uuid: ImageUuid) -> Option<SimImage> {
        self.0.lock().get(&uuid).cloned()
    }
}

/// The driver of one simulated agent.
#[derive(Debug)]
pub struct SimImages {
    pool: SimPool,
    repository: SimRepository,
    faults: Faults,
    clock: SharedClock,
    // One fetch or removal at a time is enough for a simulation.
    working: tokio::sync::Mutex<()>,
}

impl SimImages {
    /// Installs from `repository` into `pool`. Operations in `faults`: `images.get`,
    /// `images.container`, `images.manifest`, `images.fetch`, `images.install`, `images.list`, `images.note_use`,
    /// `images.remove`, `images.pack`, `images.publish`, `images.withdraw`, `images.drop_packed`.
    #[must_use]
    pub fn new(
        pool: SimPool,
        repository: SimRepository,
        clock: SharedClock,
        faults: Faults,
    ) -> Self {
        Self { pool, repository, faults, clock, working: tokio::sync::Mutex::default() }
    }

    async fn fetch(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
    ) -> Result<(), DriverError> {
        let _one = self.working.lock().await;
        if self.pool.images().contains_key(&image) {
            return Ok(());
        }
        let manifest = || {
            let found = self.repository.0.lock().get(&image).cloned();
            found.ok_or_else(|| super::not_found(image, ""))
        };
        let found = self.faults.call("images.manifest", manifest).await?;
        super::check_active(image, &found.manifest)?;
        let manifest_of = |other| -> ManifestFuture<'_> {
            let told = self.repository.image(other).map(|image| image.manifest);
            let told = told.ok_or_else(|| super::not_found(other, ""));
            Box::pin(async { told })
        };
        let origins = origins::chain(image, &found.manifest, &manifest_of).await?;
        for origin in origins.into_iter().rev() {
            let Some(content) = self.repository.image(origin) else { continue };
            if !self.pool.images().contains_key(&origin) {
                let now = self.clock.wall();
                let install = || self.pool.install_at(origin, content, now);
                self.faults.call("images.install", install).await?;
            }
        }
        progress(0);
        self.faults.call("images.fetch", || Ok(())).await?;
        progress(50);
        let now = self.clock.wall();
        self.faults.call("images.install", || self.pool.install_at(image, found, now)).await?;
        progress(100);
        Ok(())
    }
}

#[async_trait]
impl Images for SimImages {
    async fn get(&self, image: ImageUuid) -> Result<Option<Installed>, DriverError> {
        let get = || {
            let found = self.pool.images().remove(&image);
            Ok(found.map(|found| Installed {
                manifest: found.manifest,
                path: format!("/sim/images/{image}.qcow2").into(),
                format: "qcow2".to_owned(),
                size_bytes: found.size_bytes,
            }))
        };
        self.faults.call("images.get", get).await
    }

    async fn container(&self, image: ImageUuid) -> Result<Option<ContainerImage>, DriverError> {
        let container = || {
            let found = self.pool.images().remove(&image);
            let found = found.filter(|found| found.manifest["type"] == "docker");
            Ok(found.map(|found| ContainerImage {
                manifest: found.manifest,
                root: format!("/sim/images/{image}.root").into(),
                runtime: RuntimeConfig::default(),
            }))
        };
        self.faults.call("images.container", container).await
    }

    async fn ensure(
        &self,
        image: ImageUuid,
        progress: &(dyn Fn(u8) + Send + Sync),
        cancelled: &CancellationToken,
    ) -> Result<(), DriverError> {
        match cancelled.run_until_cancelled(self.fetch(image, progress)).await {
            Some(done) => done,
            None => Err(super::cancelled(image)),
        }
    }

    async fn list(&self) -> Result<Vec<ImageUsage>, DriverError> {
        self.faults.call("images.list", || Ok(self.pool.image_usages())).await
    }

    async fn note_use(&self, image: ImageUuid) -> Result<(), DriverError> {
        let now = self.clock.wall();
        let note = || {
            self.pool.note_use(image, now);
            Ok(())
        };
        self.faults.call("images.note_use", note).await
    }

    async fn pack(
        &self,
        task: &TaskId,
        _compression: Compression,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        let mut hash = Sha256::new();
        let mut size_bytes = 0_u64;
        while let Some(bytes) = disk.next().await? {
            match bytes {
                DiskBytes::Zeros(count) => size_bytes = size_bytes.saturating_add(count),
                DiskBytes::Data(data) => {
                    hash.update(&data);
                    size_bytes += u64::try_from(data.len()).unwrap_or(0);
                }
            }
        }
        let pack = || {
            self.pool.pack(task, size_bytes);
            Ok(Packed { size_bytes, sha256: hex::encode(hash.finalize()) })
        };
        self.faults.call("images.pack", pack).await
    }

    async fn pack_difference(
        &self,
        task: &TaskId,
        compression: Compression,
        origin: ImageUuid,
        disk: &mut dyn DiskSource,
    ) -> Result<Packed, DriverError> {
        self.origin(origin).await?;
        self.pack(task, compression, disk).await
    }

    async fn publish(&self, task: &TaskId, what: &Publication) -> Result<Value, DriverError> {
        let publish = || {
            let missing = || DriverError::failed("publish an image", "nothing was packed");
            let size_bytes = self.pool.packed(task).ok_or_else(missing)?;
            let mut repository = self.repository.0.lock();
            if let Some(there) = repository.get(&what.image)
                && there.manifest["tags"][TASK_TAG] != task.as_str()
            {
                let text = format!("image {} exists already", what.image);
                return Err(DriverError::refused(Code::ImageUuidAlreadyExists, text));
            }
            let mut manifest = what.manifest.clone();
            manifest["state"] = Value::from("active");
            let image = SimImage { manifest: manifest.clone(), size_bytes };
            repository.insert(what.image, image);
            Ok(manifest)
        };
        self.faults.call("images.publish", publish).await
    }

    async fn withdraw(
        &self,
        task: &TaskId,
        _url: Option<&Url>,
        image: ImageUuid,
    ) -> Result<(), DriverError> {
        let withdraw = || {
            let mut repository = self.repository.0.lock();
            let theirs = |there: &SimImage| there.manifest["tags"][TASK_TAG] == task.as_str();
            if repository.get(&image).is_some_and(theirs) {
                repository.remove(&image);
            }
            Ok(())
        };
        self.faults.call("images.withdraw", withdraw).await
    }

    async fn drop_packed(&self, task: &TaskId) -> Result<(), DriverError> {
        let drop_it = || {
            self.pool.drop_packed(task);
            Ok(())
        };
        self.faults.call("images.drop_packed", drop_it).await
    }

    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError> {
        let _one = self.working.lock().await;
        self.faults.call("images.remove", || self.pool.remove_image(image)).await
    }
}
