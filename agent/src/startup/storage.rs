//! The drivers of disks and images, as the configuration wants them.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use muster_shared::clock::SharedClock;
use muster_shared::entropy::SharedEntropy;

use super::{Folders, urls};
use crate::AgentConfig;
use crate::config::{Config, StorageKind};
use crate::drivers::cluster::Cluster;
use crate::drivers::images::{
    self, Credentials, FileImages, FileImagesConfig, Images, ZfsImages, ZfsImagesConfig,
};
use crate::drivers::storage::zfs::{HostDevices, HostMounts, Owner, ZfsStorage, ZfsStorageConfig};
use crate::drivers::storage::{FileStorage, FileStorageConfig, IMAGES, Pools, Storage};
use crate::drivers::zfs::Zfs;
use crate::host::SharedExec;

/// What the drivers are made from.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) folders: &'a Folders,
    pub(super) agent: &'a AgentConfig,
    pub(super) cluster: &'a Arc<Cluster>,
    pub(super) exec: &'a SharedExec,
    pub(super) zfs: &'a Arc<dyn Zfs>,
    pub(super) clock: &'a SharedClock,
    pub(super) entropy: &'a SharedEntropy,
}

impl Parts<'_> {
    /// The pools of the configuration.
    pub(super) async fn storage(&self) -> anyhow::Result<Arc<dyn Storage>> {
        match self.config.storage {
            StorageKind::File => self.files().await,
            StorageKind::Zfs => self.zfs_pools().await,
        }
    }

    async fn files(&self) -> anyhow::Result<Arc<dyn Storage>> {
        let of = |pool: &str, storage_dir: &Path| FileStorageConfig {
            storage_dir: storage_dir.to_owned(),
            data_dir: self.folders.data.clone(),
            server_uuid: self.agent.server_uuid,
            cluster: self.cluster.clone(),
            pool: pool.to_owned(),
        };
        let first = of(&self.config.pool, &self.folders.storage);
        let first = FileStorage::open(first, self.exec.clone()).await;
        let first: Arc<dyn Storage> = Arc::new(first.context("open the storage driver")?);
        let mut more: Vec<Arc<dyn Storage>> = Vec::new();
        for (name, dir) in &self.folders.pools {
            let opened = FileStorage::open(of(name, dir), self.exec.clone()).await;
            let opened = opened.and_then(|opened| opened.with_images_of(&self.folders.storage));
            more.push(Arc::new(opened.with_context(|| format!("open pool {name}"))?));
        }
        Ok(joined(first, more))
    }

    async fn zfs_pools(&self) -> anyhow::Result<Arc<dyn Storage>> {
        let open = async |pool: &str| {
            let config = ZfsStorageConfig {
                pool: pool.to_owned(),
                data_dir: self.folders.data.clone(),
                root: "/".into(),
                roots: self.folders.run.join("roots"),
                owner: self.owner(),
            };
            let devices = Arc::new(HostDevices::new(self.exec.clone()));
            let opened =
                ZfsStorage::open(config, self.zfs.clone(), devices, Arc::new(HostMounts)).await;
            opened.with_context(|| format!("open pool {pool}"))
        };
        let first = Arc::new(open(&self.config.pool).await?);
        let mut more: Vec<Arc<dyn Storage>> = Vec::new();
        for name in self.config.pools.keys() {
            more.push(Arc::new(open(name).await?.with_images_of(first.clone())));
        }
        Ok(joined(first, more))
    }

    fn owner(&self) -> Owner {
        Owner { server_uuid: self.agent.server_uuid, cluster: self.cluster.clone() }
    }

    /// The images of the first pool.
    pub(super) async fn images(
        &self,
        storage: &Arc<dyn Storage>,
        credentials: Credentials,
    ) -> anyhow::Result<Arc<dyn Images>> {
        let (clock, config) = (self.clock, self.config);
        let files = FileImagesConfig {
            storage_dir: self.folders.storage.clone(),
            sources: images::sources(&urls(&config.images.sources), &self.agent.coordinators),
            credentials,
            pool: config.pool.clone(),
            storage: storage.clone(),
        };
        let fetched = FileImages::open(files, self.exec.clone(), clock, self.entropy.clone());
        let fetched = fetched.await.context("open the image store")?;
        if config.storage == StorageKind::File {
            return Ok(Arc::new(fetched));
        }
        let volumes = ZfsImagesConfig {
            pool: config.pool.clone(),
            folder: self.folders.storage.join(IMAGES),
            shown: self.folders.run.join("images"),
            owner: self.owner(),
            storage: storage.clone(),
        };
        let devices = Arc::new(HostDevices::new(self.exec.clone()));
        let zfs = self.zfs.clone();
        let (mounts, clock) = (Arc::new(HostMounts), clock.clone());
        Ok(Arc::new(ZfsImages::new(volumes, fetched, zfs, devices, mounts, clock)))
    }
}

fn joined(first: Arc<dyn Storage>, more: Vec<Arc<dyn Storage>>) -> Arc<dyn Storage> {
    if more.is_empty() { first } else { Arc::new(Pools::new(first, more)) }
}
