//! Simulated images: a repository in memory from which simulated nodes install.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::clock::SharedClock;
use muster_shared::ids::ImageUuid;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{ImageUsage, Images, Installed};
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
    /// `images.manifest`, `images.fetch`, `images.install`, `images.list`, `images.note_use`,
    /// `images.remove`.
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

    async fn remove(&self, image: ImageUuid) -> Result<(), DriverError> {
        let _one = self.working.lock().await;
        self.faults.call("images.remove", || self.pool.remove_image(image)).await
    }
}
