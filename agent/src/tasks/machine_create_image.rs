//! `machine_create_image`: publishes the boot disk of a VM that is stopped, or the files of a container, as
//! an image.
//!
//! They are read from a snapshot that is taken for it. Without a prepare script nothing else of the VM
//! is touched, so that there is nothing to be rolled back: an undo removes the image, the packed file
//! and the snapshot. With one, see [`prepare`].

mod manifest;
mod origin;
mod prepare;

use std::time::Duration;

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use self::manifest::{boot_disk, boot_image};
use self::prepare::Before;
use super::container;
use super::container_image::Archive;
use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::images::VolumeSource;
use crate::drivers::images::manifest::Compression;
use crate::drivers::images::pack::Packed;
use crate::drivers::images::publish::Publication;
use crate::drivers::storage::{self, Role};
use crate::vms::VmRecord;

const OPERATION: &str = "create_image";
const MACHINE_IMAGES: Queue =
    Queue { name: "machine_images", max_concurrent: 1, max_wait: Duration::from_secs(3600) };

/// The kind; parameters `uuid`, `compression` (`none`, `gzip`, `bzip2`, `xz` or `zstd`), `manifest`,
/// `imgapi_url` (the agent's own repository without), `prepare_image_script` (run by the guest before),
/// `incremental` (only what differs from the image that the VM was made from), `max_origin_depth`.
#[derive(Debug)]
pub struct MachineCreateImage;

impl Handler for MachineCreateImage {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_create_image", MACHINE_IMAGES, Duration::from_secs(3600))
    }

    fn deadline(&self, params: &Params) -> Duration {
        let limit = self.kind().limit;
        match prepare::script(params) {
            Ok(Some(_)) => limit.saturating_add(prepare::TAKES),
            Ok(None) | Err(_) => limit,
        }
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("compression".to_owned(), json!("gzip"));
        params.insert("manifest".to_owned(), json!({ "name": "made", "version": "1" }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let deepest = origin::deepest(params)?;
        let incremental = machine::flag(params, "incremental")?.then_some(deepest);
        let script = prepare::script(params)?;
        let word = params.get("compression").and_then(Value::as_str).unwrap_or_default();
        let compression = compression(word).ok_or_else(|| {
            let problem = "must be none, gzip, bzip2, xz or zstd";
            TaskFailure::bad_param("compression", problem)
        })?;
        let manifest = params.get("manifest").and_then(Value::as_object).cloned();
        let manifest =
            manifest.ok_or_else(|| TaskFailure::bad_param("manifest", "must be an object"))?;
        let url = match params.get("imgapi_url").filter(|value| !value.is_null()) {
            None => None,
            Some(url) => {
                let url = url.as_str().and_then(|url| url.parse::<Url>().ok());
                let usable = url.filter(|url| matches!(url.scheme(), "http" | "https"));
                let problem = "must be the URL of a repository";
                Some(usable.ok_or_else(|| TaskFailure::bad_param("imgapi_url", problem))?)
            }
        };
        let prepares = script.is_some();
        let job =
            Make { vm, word: word.to_owned(), compression, manifest, url, script, incremental };
        let plan = Plan::of(vec![Lock::Vm(vm)], job, STEPS);
        Ok(PREPARING.iter().fold(plan, |plan, step| plan.only_if(prepares, step)))
    }
}

/// By its name in IMGAPI.
fn compression(word: &str) -> Option<Compression> {
    Some(match word {
        "none" => Compression::None,
        "bzip2" => Compression::Bzip2,
        "gzip" => Compression::Gzip,
        "xz" => Compression::Xz,
        "zstd" => Compression::Zstd,
        _ => return None,
    })
}

const STEPS: &[Row<Make>] = steps![
    ("check", 5, check),
    ("stop", 7, stop, undo start),
    ("pre_snap", 8, snapshot_before, undo drop_before),
    ("prepare", 9, prepare, undo take_back),
    ("final_snap", 10, snapshot, undo drop_snapshot),
    ("send", 70, send, undo drop_packed),
    ("publish", 95, publish, undo withdraw),
    ("cleanup", 97, cleanup),
    ("restore", 98, restore),
    ("forget", 99, forget_before),
    ("start", 100, start_again),
];
/// Those of them that are for a prepare script.
const PREPARING: [&str; 6] = ["stop", "pre_snap", "prepare", "restore", "forget", "start"];

#[derive(Debug)]
struct Make {
    vm: VmUuid,
    word: String,
    compression: Compression,
    manifest: Map<String, Value>,
    url: Option<Url>,
    /// What the guest is to do before.
    script: Option<String>,
    /// Only the difference is wanted, of an image that builds on at most so many others.
    incremental: Option<usize>,
}

/// Made before anything is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Notes {
    image: ImageUuid,
    manifest: Value,
    /// The number of the disk; that of a container's root has no meaning.
    disk: u32,
    /// What a container was made from.
    #[serde(default)]
    root_of: Option<ImageUuid>,
    /// Of which only the difference is packed.
    #[serde(default)]
    origin: Option<ImageUuid>,
    #[serde(default)]
    packed: Option<Packed>,
    /// With a prepare script.
    #[serde(default)]
    before: Option<Before>,
}

impl Notes {
    fn volume(&self) -> Role {
        if self.root_of.is_some() { Role::Root } else { Role::Disk(self.disk) }
    }
}

impl Make {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        self.goes_on(ctx)?;
        if self.script.is_none() && machine::runs(ctx, self.vm).await? {
            let text = format!("{OPERATION} error: VM {} is not stopped", self.vm);
            return Err(refuse(Code::VmNotStopped, text));
        }
        if record.is_container() {
            return self.check_container(ctx, &record).await;
        }
        let disks = machine::disks(ctx, OPERATION, &record).await?;
        let number = boot_disk(&record);
        let disk = disks.iter().find(|disk| Some(disk.index) == number).ok_or_else(|| {
            let text = format!("{OPERATION} error: VM {} has no disk to boot from", self.vm);
            refuse(Code::DatasetNotFound, text)
        })?;
        let origin = match boot_image(&record) {
            Some(origin) => ctx.drivers.images.get(origin).await.map_err(failed(OPERATION))?,
            None => None,
        };
        let origin = origin.map(|installed| installed.manifest);
        let (image, mut manifest) = self.manifest_of(ctx, &record, origin.as_ref(), "zvol")?;
        manifest["image_size"] = json!(disk.size_bytes.div_ceil(MIB));
        manifest["files"] = json!([{ "format": "raw" }]);
        let origin = self.origin(ctx, &record).await?;
        if let Some(origin) = origin {
            manifest["origin"] = json!(origin);
            manifest["files"] = json!([{ "format": "qcow2" }]);
        }
        let before = self.before(ctx, &record).await?;
        let (disk, root_of, packed) = (disk.index, None, None);
        ctx.note(&Notes { image, manifest, disk, root_of, origin, packed, before })
    }

    async fn check_container(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
    ) -> Result<(), TaskFailure> {
        let problem = match (&self.script, self.incremental) {
            (Some(_), _) => Some("prepare_image_script: no metadata service gives it a script"),
            (None, Some(_)) => Some("incremental: of its files there are only whole images"),
            (None, None) => None,
        };
        if let Some(problem) = problem {
            let text = format!("{OPERATION} error: VM {} is a container. {problem}", self.vm);
            return Err(refuse(Code::NotSupported, text));
        }
        let origin = container::must_have_root(ctx, OPERATION, self.vm).await?;
        let made_from = container::installed(ctx, OPERATION, origin).await?.manifest;
        let (image, mut manifest) = self.manifest_of(ctx, record, Some(&made_from), "docker")?;
        manifest["files"] = json!([{ "format": "docker-archive" }]);
        let root_of = Some(origin);
        let (origin, packed, before) = (None, None, None);
        ctx.note(&Notes { image, manifest, disk: 0, root_of, origin, packed, before })
    }

    async fn snapshot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        let disk = [ctx.notes::<Notes>()?.volume()];
        let name = snapshot_name(ctx);
        let taken = ctx.drivers.storage.create_snapshot(self.vm, &name, &disk).await;
        taken.map_err(failed(OPERATION))
    }

    async fn drop_snapshot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        // Without notes there is none.
        let Ok(notes) = ctx.notes::<Notes>() else { return Ok(()) };
        let (name, disk) = (snapshot_name(ctx), [notes.volume()]);
        let dropped = ctx.drivers.storage.delete_snapshot(self.vm, &name, &disk).await;
        dropped.map_err(failed(OPERATION))
    }

    async fn send(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        let notes: Notes = ctx.notes()?;
        let storage = ctx.drivers.storage.as_ref();
        let progress = |percent: u8| ctx.progress(10 + percent / 10 * 6);
        let (volume, name) = (notes.volume(), snapshot_name(ctx));
        let mut disk = VolumeSource::new(storage, self.vm, volume, name, &progress);
        let packing = async {
            let images = &ctx.drivers.images;
            match (notes.root_of, notes.origin) {
                (None, None) => images.pack(&ctx.task_id, self.compression, &mut disk).await,
                (None, Some(origin)) => {
                    let (task, how) = (&ctx.task_id, self.compression);
                    images.pack_difference(task, how, origin, &mut disk).await
                }
                (Some(origin), _) => {
                    let mut archive = self.archive(ctx, origin, &mut disk).await?;
                    images.pack(&ctx.task_id, self.compression, &mut archive).await
                }
            }
        };
        let packed = match ctx.cancelled.run_until_cancelled(packing).await {
            Some(packed) => packed.map_err(failed(OPERATION))?,
            None => return Err(cancelled()),
        };
        ctx.note(&Notes { packed: Some(packed), ..notes })
    }

    /// What is packed of a container.
    async fn archive<'a>(
        &self,
        ctx: &TaskContext,
        origin: ImageUuid,
        layer: &'a mut VolumeSource<'_>,
    ) -> Result<Archive<'a>, DriverError> {
        let found = ctx.drivers.images.container(origin).await?;
        let found = found.ok_or_else(|| storage::image_not_installed(origin))?;
        let storage = &ctx.drivers.storage;
        let packed = storage.pack_root(self.vm, &snapshot_name(ctx), &found.root).await?;
        Archive::new(layer, &packed, &found.runtime)
            .map_err(|error| DriverError::failed("describe an image", error))
    }

    async fn drop_packed(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.drivers.images.drop_packed(&ctx.task_id).await.map_err(failed(OPERATION))
    }

    async fn publish(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        let Notes { image, manifest, packed, .. } = ctx.notes()?;
        let packed = packed.ok_or_else(|| {
            TaskFailure::new(Code::InternalError, "the packed file of the image is not noted")
        })?;
        let (url, compression) = (self.url.clone(), self.word.clone());
        let what = Publication { url, image, manifest, compression, packed };
        let publishing = ctx.drivers.images.publish(&ctx.task_id, &what);
        let manifest = match ctx.cancelled.run_until_cancelled(publishing).await {
            Some(published) => published.map_err(failed(OPERATION))?,
            None => return Err(cancelled()),
        };
        ctx.finish_with(json!({ "image_uuid": image, "manifest": manifest }));
        Ok(())
    }

    async fn withdraw(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Ok(notes) = ctx.notes::<Notes>() else { return Ok(()) };
        let images = &ctx.drivers.images;
        let withdrawn = images.withdraw(&ctx.task_id, self.url.as_ref(), notes.image).await;
        withdrawn.map_err(failed(OPERATION))
    }

    /// The image is there, whatever becomes of this.
    async fn cleanup(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        self.drop_packed(ctx).await?;
        self.drop_snapshot(ctx).await
    }
}

fn cancelled() -> TaskFailure {
    TaskFailure::new(Code::Cancelled, "making an image was cancelled")
}

/// Hidden from clients; as in the reference, it begins with `imgadm-create-`.
pub(super) fn snapshot_name(ctx: &TaskContext) -> String {
    let name = hex::encode(Sha256::digest(ctx.task_id.as_str()));
    format!("imgadm-create-{}", &name[..16])
}

#[cfg(test)]
pub(super) mod prepare_tests;
#[cfg(test)]
mod tests;
