//! Disks: made over the file of an image or blank, made larger, destroyed.

use std::path::Path;
use std::time::Duration;

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};

use super::stamp::Stamp;
use super::{FileStorage, index_of, run, stamp, virtual_size};
use crate::drivers::storage::{self, Disk, DiskSpec, MIN_FREE_BYTES, Storage as _};
use crate::drivers::{DriverError, files};

/// An empty qcow2 file is written in milliseconds; a disk that hangs this long is broken.
pub(super) const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

impl FileStorage {
    pub(super) async fn make_disk(
        &self,
        spec: &DiskSpec,
        owner: &TaskId,
    ) -> Result<Disk, DriverError> {
        storage::check_pool(spec, &self.pools())?;
        self.marker.check().await?;
        let folder = self.folder(spec.vm);
        let path = folder.join(format!("disk{}.qcow2", spec.index));
        if tokio::fs::try_exists(&path).await.map_err(|e| files::failed("look for", &path, e))? {
            return match stamp(&path).await? {
                Some(stamp) if stamp.task_id == *owner => {
                    self.disk_at(spec.vm, path, spec.index).await
                }
                _ => Err(storage::disk_exists(spec, &self.pools())),
            };
        }
        let image_bytes = match spec.image {
            Some(image) => Some(self.image_bytes(image).await?),
            None => None,
        };
        let size_bytes = storage::disk_size(spec, image_bytes)?;
        let free_bytes = files::space_beside(&self.vols).await?.available_bytes;
        if free_bytes < MIN_FREE_BYTES {
            let text = format!("{free_bytes} bytes are free in {}", self.vols.display());
            return Err(storage::store_full(text));
        }
        files::make_folder(&folder).await?;
        let stamp = Stamp {
            server_uuid: self.config.server_uuid,
            cluster_id: self.config.cluster.id(),
            vm_uuid: spec.vm,
            task_id: owner.clone(),
            image_uuid: spec.image,
        };
        let stamp = serde_json::to_vec(&stamp).expect("a stamp has only string keys");
        let stamp_path = path.with_extension("json");
        let temporary = files::temporary(&path);
        files::remove(&temporary).await?;
        // At once: the disk has its name last, so it has none without its stamp.
        let (stamped, made) = tokio::join!(
            files::write(&stamp_path, &stamp),
            self.qemu_img_create(&temporary, spec.image, size_bytes)
        );
        if let Err(error) = stamped.and(made) {
            files::remove(&temporary).await?;
            files::remove(&stamp_path).await?;
            return Err(error);
        }
        files::sync_file(&temporary).await?;
        files::rename(&temporary, &path).await?;
        self.disk_at(spec.vm, path, spec.index).await
    }

    /// Virtual size of an image's file.
    async fn image_bytes(&self, image: ImageUuid) -> Result<u64, DriverError> {
        let path = self.images.join(format!("{image}.qcow2"));
        // The manifest is written last, see drivers::images::file.
        if files::read(&path.with_extension("json")).await?.is_none() {
            return Err(storage::image_not_installed(image));
        }
        virtual_size(&path).await
    }

    /// Makes an empty qcow2 file.
    pub(in crate::drivers::storage) async fn qemu_img_create(
        &self,
        path: &Path,
        image: Option<ImageUuid>,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        let mut argv = vec!["qemu-img".to_owned(), "create".into(), "-q".into()];
        argv.extend(["-f".to_owned(), "qcow2".into()]);
        if let Some(image) = image {
            // Relative to the disk, so that the data folder can be moved as a whole.
            let base = match self.borrows_images() {
                true => self.images.join(format!("{image}.qcow2")).display().to_string(),
                false => format!("../../images/{image}.qcow2"),
            };
            argv.extend(["-b".to_owned(), base]);
            argv.extend(["-F".to_owned(), "qcow2".into()]);
        }
        argv.push(path.display().to_string());
        argv.push(size_bytes.to_string());
        run(&self.exec, argv, CREATE_TIMEOUT).await.map(drop)
    }

    pub(super) async fn destroy_all(
        &self,
        vm: VmUuid,
        owner: Option<&TaskId>,
    ) -> Result<(), DriverError> {
        let folder = self.folder(vm);
        let entries = files::list(&folder).await?;
        if entries.is_empty() && !folder.exists() {
            return Ok(());
        }
        self.check_idle(vm).await?;
        let mut kept = false;
        let stamps = entries.iter().filter(|path| path.extension().is_some_and(|e| e == "json"));
        for path in stamps {
            let disk = path.with_extension("qcow2");
            // A damaged stamp names no owner: only a destroy of everything removes it.
            let theirs = match (owner, stamp(&disk).await) {
                (None, _) => false,
                (Some(owner), Ok(Some(stamp))) => stamp.task_id != *owner,
                (Some(_), _) => true,
            };
            if theirs {
                kept = true;
                continue;
            }
            // The stamp goes last: what is left after a crash still has an owner.
            files::remove(&files::temporary(&disk)).await?;
            files::remove(&disk).await?;
            // Inodes are used again.
            self.sizes.forget(&disk);
            files::remove(path).await?;
        }
        if owner.is_none() {
            for path in &entries {
                files::remove(path).await?;
                self.sizes.forget(path);
            }
        }
        let unstamped = entries.iter().any(|path| index_of(path).is_some() && path.exists());
        if kept || unstamped {
            return files::sync_folder(&folder).await;
        }
        tokio::fs::remove_dir_all(&folder)
            .await
            .map_err(|e| files::failed("remove folder", &folder, e))?;
        files::sync_folder(&self.vols).await
    }

    pub(super) async fn enlarge(
        &self,
        vm: VmUuid,
        index: u32,
        size_mib: u64,
    ) -> Result<(), DriverError> {
        let path = self.folder(vm).join(format!("disk{index}.qcow2"));
        let wanted = storage::bytes_of(size_mib)?;
        if virtual_size(&path).await? < wanted {
            let argv = ["qemu-img", "resize", "-q", "-f", "qcow2"].map(str::to_owned);
            let argv = argv.into_iter().chain([path.display().to_string(), wanted.to_string()]);
            run(&self.exec, argv, CREATE_TIMEOUT).await?;
        }
        // Also of one that its guest's hypervisor has made larger.
        self.sizes.forget(&path);
        files::sync_file(&path).await
    }
}
