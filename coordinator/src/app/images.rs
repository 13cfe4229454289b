//! The image repository: IMGAPI manifests as records, files as blobs.
//!
//! ```text
//! create ──▶ unactivated ──(file uploaded, again and again)──▶ unactivated ──activate──▶ active
//! ```
//!
//! A file is uploaded under a name of its own and becomes the image's file when the record that
//! names it is committed; a reader sees the old file or the new one. What a crash leaves behind
//! is a blob without a record, which [`Images::sweep`] removes. Deleting an image does not
//! touch virtual machines made from it: agents install copies.

mod upload;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::image::{ImageState, Manifest};
use muster_shared::clock::iso;
use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _};
use serde::{Deserialize, Serialize};

pub use upload::FileClaim;

use super::context::Context;
use super::error::AppError;
use super::image_manifest::{self, BadManifest};
use super::records::Records;
use super::{Expected, keys};
use crate::store::{Expect, Held, MAX_PAGE, MAX_VALUE_BYTES, Revision, StoreError, Write};

const IMAGES: Records<StoredImage> = Records::under("image/");
const BLOB_PREFIX: &str = "images";
/// Largest manifest: the rest of a record is for the name of its blob.
const MAX_MANIFEST_BYTES: usize = MAX_VALUE_BYTES - 4096;
/// A blob without a record is kept for so long, because its upload may be about to end.
const ORPHAN_AGE: Duration = Duration::from_hours(24);
/// Most images in one answer.
pub const MAX_IMAGES: usize = MAX_PAGE;

/// Why an image operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such image.
    #[error("image {0} not found")]
    NotFound(ImageUuid),
    /// The image has no file yet.
    #[error("image {0} has no file")]
    NoFile(ImageUuid),
    /// The uuid is taken.
    #[error("image {0} exists already")]
    Exists(ImageUuid),
    /// The image is active, so its file stays what it is.
    #[error("image {0} is active, its file can't be replaced")]
    Active(ImageUuid),
    /// Another image holds only what differs from it.
    #[error("image {image} is the origin of image {dependent}")]
    HasDependents {
        /// The image.
        image: ImageUuid,
        /// One that builds on it.
        dependent: ImageUuid,
    },
    /// The manifest is not one.
    #[error("the manifest is not valid")]
    Manifest(#[source] BadManifest),
    /// The uploaded bytes are not those that were announced.
    #[error("{kind} of the uploaded file is {found}, not {expected}")]
    Checksum {
        /// `sha1` or `sha256`.
        kind: &'static str,
        /// What was announced.
        expected: String,
        /// What arrived.
        found: String,
    },
    /// Nothing was uploaded.
    #[error("the uploaded file is empty")]
    Empty,
    /// The upload broke off.
    #[error("the upload ended before its end")]
    Upload(#[source] io::Error),
    /// The image is not at the version that the client named, or changed meanwhile.
    #[error("image {0} was changed meanwhile")]
    Changed(ImageUuid),
    /// Its record can't be read or written.
    #[error("access the record of an image")]
    Record(#[from] AppError),
    /// The object store failed.
    #[error("{action} the file of image {image}")]
    Blob {
        /// What was attempted.
        action: &'static str,
        /// Which.
        image: ImageUuid,
        /// Why.
        #[source]
        source: object_store::Error,
    },
}

/// What the store keeps of an image.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredImage {
    manifest: Manifest,
    /// Name of the file's blob.
    blob: Option<String>,
    /// What another version keeps in the record.
    #[serde(flatten)]
    unknown: Object,
}

/// An image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its uuid.
    pub uuid: ImageUuid,
    /// Its IMGAPI manifest.
    pub manifest: Manifest,
    /// Version of the record.
    pub revision: Revision,
    blob: Option<String>,
    unknown: Object,
}

impl Image {
    /// Whether virtual machines can be made from it.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.manifest.state == ImageState::Active
    }

    fn of(uuid: ImageUuid, held: Held<StoredImage>) -> Self {
        let StoredImage { manifest, blob, unknown } = held.value;
        Self { uuid, manifest, revision: held.revision, blob, unknown }
    }

    fn write(&self, expect: Expect) -> Result<Write, ImageError> {
        let (manifest, blob) = (self.manifest.clone(), self.blob.clone());
        let stored = StoredImage { manifest, blob, unknown: self.unknown.clone() };
        if keys::encode(&stored).len() > MAX_MANIFEST_BYTES {
            return Err(ImageError::Manifest(BadManifest::new("", "the manifest is too large")));
        }
        Ok(IMAGES.put(self.uuid, expect, &stored))
    }
}

/// Which images a list shows.
#[derive(Clone, Debug, Default)]
pub struct ImageFilter {
    /// Exact, or a part of the name after `~`.
    pub name: Option<String>,
    /// Exact; `all` for any; `active` by default.
    pub state: Option<String>,
    /// Exact.
    pub owner: Option<String>,
    /// Exact.
    pub os: Option<String>,
    /// Exact.
    pub kind: Option<String>,
    /// At most so many, at most [`MAX_IMAGES`].
    pub limit: Option<usize>,
    /// Only images after this one, in the order of their uuids.
    pub marker: Option<ImageUuid>,
}

impl ImageFilter {
    fn shows(&self, image: &Manifest) -> bool {
        let fits = |wanted: &Option<String>, have: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| have == Some(wanted))
        };
        let name = match self.name.as_deref().map(|name| (name, name.strip_prefix('~'))) {
            None => true,
            Some((_, Some(part))) => image.name.contains(part),
            Some((whole, None)) => image.name == whole,
        };
        let state = self.state.as_deref().unwrap_or("active");
        name && (state == "all" || image.state.as_str() == state)
            && fits(&self.owner, image.owner.as_deref())
            && fits(&self.os, Some(&image.os))
            && fits(&self.kind, Some(&image.kind))
    }
}

/// An image's file, ready to be read.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// The whole file's size.
    pub size_bytes: u64,
    /// The whole file's checksum, hexadecimal.
    pub sha256: String,
    path: Path,
    image: ImageUuid,
}

impl ImageError {
    /// Whether a commit may have been made all the same.
    fn is_unsure(&self) -> bool {
        matches!(self, Self::Record(AppError::Store(StoreError::Unavailable { .. })))
    }
}

fn store_error(image: ImageUuid, source: StoreError) -> ImageError {
    match source {
        StoreError::Conflict { .. } => ImageError::Changed(image),
        source => AppError::from(source).into(),
    }
}

fn builds_on(manifest: &Manifest, origin: ImageUuid) -> bool {
    let named = manifest.others.get("origin").and_then(|named| named.as_str());
    named.and_then(|named| named.to_ascii_lowercase().parse().ok()) == Some(origin)
}

/// The image repository; see the module.
#[derive(Debug)]
pub struct Images {
    ctx: Arc<Context>,
}

impl Images {
    pub(super) fn new(ctx: Arc<Context>) -> Self {
        Self { ctx }
    }

    /// One image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], or a failure of the store.
    pub async fn get(&self, image: ImageUuid) -> Result<Image, ImageError> {
        let held = IMAGES.get(&self.ctx, image).await?;
        Ok(Image::of(image, held.ok_or(ImageError::NotFound(image))?))
    }

    /// One image, if it is at a version that the client expects. What is written afterwards is
    /// written at this version only.
    async fn expected(&self, image: ImageUuid, expected: &Expected) -> Result<Image, ImageError> {
        let image = self.get(image).await?;
        expected.check(image.revision).map_err(|_| ImageError::Changed(image.uuid))?;
        Ok(image)
    }

    /// The images that a filter shows, in the order of their uuids.
    ///
    /// # Errors
    /// A failure of the store.
    pub async fn list(&self, filter: &ImageFilter) -> Result<Vec<Image>, ImageError> {
        let limit = filter.limit.unwrap_or(MAX_IMAGES).min(MAX_IMAGES);
        let mut after = filter.marker.map(|image| IMAGES.key(image));
        let mut images = Vec::new();
        loop {
            let page = IMAGES.page(&self.ctx, after.as_deref(), MAX_PAGE).await?;
            for (key, held) in page.records {
                if images.len() >= limit {
                    return Ok(images);
                }
                let Some(uuid) = keys::last(&key) else { continue };
                let image = Image::of(uuid, held);
                if filter.shows(&image.manifest) {
                    images.push(image);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(images),
            }
        }
    }

    /// Makes an image without a file from a client's manifest.
    ///
    /// # Errors
    /// [`ImageError::Manifest`], [`ImageError::Exists`], or a failure of the store.
    pub async fn create(&self, manifest: Object) -> Result<Image, ImageError> {
        let fresh = || self.ctx.parts.entropy.uuid().into();
        let manifest = image_manifest::accept(manifest, fresh).map_err(ImageError::Manifest)?;
        let uuid = manifest.uuid;
        let (revision, unknown) = (Revision::default(), Object::new());
        let image = Image { uuid, manifest, revision, blob: None, unknown };
        let write = image.write(Expect::Absent)?;
        match self.ctx.parts.store.commit(vec![write]).await {
            Ok(revision) => Ok(Image { revision, ..image }),
            Err(StoreError::Conflict { .. }) => Err(ImageError::Exists(uuid)),
            Err(source) => Err(store_error(uuid, source)),
        }
    }

    async fn replace(&self, image: Image) -> Result<Image, ImageError> {
        let write = image.write(Expect::At(image.revision))?;
        let revision = self.ctx.parts.store.commit(vec![write]).await;
        let revision = revision.map_err(|source| store_error(image.uuid, source))?;
        Ok(Image { revision, ..image })
    }

    /// Lets virtual machines be made from an image; repeating is harmless.
    ///
    /// # Errors
    /// [`ImageError::NoFile`], [`ImageError::NotFound`], [`ImageError::Changed`], or a failure of
    /// the store.
    pub async fn activate(
        &self,
        image: ImageUuid,
        expected: &Expected,
    ) -> Result<Image, ImageError> {
        let mut image = self.expected(image, expected).await?;
        if image.is_active() {
            return Ok(image);
        }
        if image.blob.is_none() {
            return Err(ImageError::NoFile(image.uuid));
        }
        image.manifest.state = ImageState::Active;
        let now = iso(self.ctx.parts.clock.wall());
        image.manifest.published_at.get_or_insert(now);
        self.replace(image).await
    }

    /// Removes an image and its file.
    ///
    /// # Errors
    /// [`ImageError::NotFound`], [`ImageError::Changed`], [`ImageError::HasDependents`], or a failure
    /// of the store.
    pub async fn delete(&self, image: ImageUuid, expected: &Expected) -> Result<(), ImageError> {
        let image = self.expected(image, expected).await?;
        if let Some(dependent) = self.dependent(image.uuid).await? {
            return Err(ImageError::HasDependents { image: image.uuid, dependent });
        }
        let write = IMAGES.delete(image.uuid, Expect::At(image.revision));
        let deleted = self.ctx.parts.store.commit(vec![write]).await;
        deleted.map_err(|source| store_error(image.uuid, source))?;
        if let Some(blob) = &image.blob {
            self.drop_blob(blob).await;
        }
        Ok(())
    }

    /// An image that builds on this one, if there is any.
    async fn dependent(&self, origin: ImageUuid) -> Result<Option<ImageUuid>, ImageError> {
        let mut after: Option<String> = None;
        loop {
            let page = IMAGES.page(&self.ctx, after.as_deref(), MAX_PAGE).await?;
            let mut others = page.records.into_iter().map(|(_, held)| held.value.manifest);
            if let Some(found) = others.find(|it| builds_on(it, origin)) {
                return Ok(Some(found.uuid));
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// An image's file.
    ///
    /// # Errors
    /// [`ImageError::NoFile`], [`ImageError::NotFound`], or a failure of the store.
    pub async fn file(&self, image: ImageUuid) -> Result<ImageFile, ImageError> {
        let record = self.get(image).await?;
        let blob = record.blob.as_deref().ok_or(ImageError::NoFile(image))?;
        let file = record.manifest.files.first();
        let Some((size_bytes, sha256)) = file.and_then(|file| file.size.zip(file.sha256.clone()))
        else {
            return Err(ImageError::NoFile(image));
        };
        Ok(ImageFile { size_bytes, sha256, path: Path::from(blob), image })
    }

    /// Reads a part of an image's file.
    ///
    /// # Errors
    /// [`ImageError::Blob`] when the object store can't open it.
    pub async fn read(
        &self,
        file: &ImageFile,
        range: std::ops::Range<u64>,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, ImageError> {
        let failed = |source| ImageError::Blob { action: "read", image: file.image, source };
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = self.ctx.parts.blobs.get_opts(&file.path, options).await.map_err(failed)?;
        Ok(found.into_stream().map_err(io::Error::other).boxed())
    }

    /// Removes a blob that no record names any more. A failure is only logged: the sweep comes
    /// again.
    async fn drop_blob(&self, name: &str) {
        match self.ctx.parts.blobs.delete(&Path::from(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => {
                tracing::warn!(blob = name, error = %Chain(&error), "cannot remove a file");
            }
        }
    }

    /// Removes files of uploads that a crash cut off between the file and its record. Call at
    /// start.
    ///
    /// # Errors
    /// A failure of the object store or of the store.
    pub async fn sweep(&self) -> Result<usize, ImageError> {
        let list = self.ctx.parts.blobs.list(Some(&Path::from(BLOB_PREFIX)));
        let mut orphans = std::pin::pin!(self.orphans(list));
        let mut removed = 0;
        while let Some(name) = orphans.next().await {
            self.drop_blob(&name?).await;
            removed += 1;
        }
        Ok(removed)
    }

    fn orphans<'a>(
        &'a self,
        list: BoxStream<'a, object_store::Result<object_store::ObjectMeta>>,
    ) -> impl Stream<Item = Result<String, ImageError>> + 'a {
        let old = self.ctx.parts.clock.wall().saturating_sub(ORPHAN_AGE);
        let old = old.unwrap_or(Timestamp::MIN);
        list.filter_map(move |found| async move {
            let failed = |source| ImageError::Blob {
                action: "list",
                image: ImageUuid(uuid::Uuid::nil()),
                source,
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => return Some(Err(failed(error))),
            };
            if found.last_modified.timestamp() > old.as_second() {
                return None;
            }
            let name = found.location.to_string();
            let image: ImageUuid = name.split('/').nth(1)?.parse().ok()?;
            match self.get(image).await {
                Ok(image) if image.blob.as_deref() == Some(name.as_str()) => None,
                Ok(_) | Err(ImageError::NotFound(_)) => Some(Ok(name)),
                Err(error) => Some(Err(error)),
            }
        })
    }
}
