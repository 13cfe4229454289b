//! Uploads of image files: streamed, hashed on the way, adopted with the commit of the record.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use muster_shared::api::image::ImageFile;
use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, WriteMultipart};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::{BLOB_PREFIX, Image, ImageError, Images};
use crate::app::Expected;

/// An upload on which nothing arrives for so long is aborted; there are few places for uploads.
const STALL: Duration = Duration::from_secs(30);
/// Whoever keeps a place comes at least this fast, bytes per second, after a while.
const LEAST_RATE: u64 = 32 * 1024;
const GRACE: Duration = Duration::from_mins(1);
/// Part of an upload that is sent at once; object stores want at least 5 MiB.
const PART_BYTES: usize = 8 * 1024 * 1024;
/// Parts of one upload that are on their way at a time.
const PARTS_IN_FLIGHT: usize = 1;

/// What a client says about a file that it uploads.
#[derive(Clone, Debug, Default)]
pub struct FileClaim {
    /// `none`, `gzip`, `bzip2`, `xz` or `zstd`.
    pub compression: String,
    /// Hexadecimal, if checked.
    pub sha1: Option<String>,
    /// Hexadecimal, if checked.
    pub sha256: Option<String>,
}

impl Images {
    /// Stores an image's file; it replaces an earlier one once it is whole and durable. A failed
    /// upload leaves nothing.
    ///
    /// # Errors
    /// [`ImageError::Checksum`], [`ImageError::Active`] and others; the earlier file stays.
    pub async fn upload(
        &self,
        image: ImageUuid,
        claim: FileClaim,
        expected: &Expected,
        body: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<Image, ImageError> {
        let current = self.expected(image, expected).await?;
        if current.is_active() {
            return Err(ImageError::Active(image));
        }
        let name = format!("{BLOB_PREFIX}/{image}/file-{}", self.ctx.parts.entropy.uuid());
        let path = Path::from(name.as_str());
        let received = self.receive(image, &path, body).await?;
        let adopted = match received.check(&claim) {
            Ok(()) => self.adopt(current, &name, &claim, &received).await,
            Err(error) => Err(error),
        };
        // Where the store can't tell, the record may name the file: if not, the sweep removes it.
        if adopted.as_ref().is_err_and(|error| !error.is_unsure()) {
            self.drop_blob(&name).await;
        }
        adopted
    }

    /// Streams a file into the object store; aborts on any failure.
    async fn receive(
        &self,
        image: ImageUuid,
        path: &Path,
        mut body: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<Received, ImageError> {
        let failed = |source| ImageError::Blob { action: "store", image, source };
        let upload = self.ctx.parts.blobs.put_multipart(path).await.map_err(failed)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut received = Hashing::default();
        let began = self.ctx.now();
        let outcome = loop {
            let next = tokio::time::timeout(STALL, body.next());
            match next.await.unwrap_or_else(|_| Some(Err(io::ErrorKind::TimedOut.into()))) {
                None if received.size_bytes == 0 => break Err(ImageError::Empty),
                None => break Ok(()),
                Some(Err(error)) => break Err(ImageError::Upload(error)),
                Some(Ok(chunk)) => {
                    received.update(&chunk);
                    if self.ctx.now().saturating_sub(began) > longest(received.size_bytes) {
                        break Err(ImageError::Upload(io::ErrorKind::TimedOut.into()));
                    }
                    if let Err(source) = upload.wait_for_capacity(PARTS_IN_FLIGHT).await {
                        break Err(failed(source));
                    }
                    upload.put(chunk);
                }
            }
        };
        match outcome {
            Ok(()) => upload.finish().await.map(|_| received.finish()).map_err(failed),
            Err(error) => {
                if let Err(left) = upload.abort().await {
                    tracing::warn!(image_uuid = %image, error = %Chain(&left),
                        "an aborted upload may have left a part");
                }
                Err(error)
            }
        }
    }

    /// Makes a received file the image's.
    async fn adopt(
        &self,
        mut image: Image,
        name: &str,
        claim: &FileClaim,
        received: &Received,
    ) -> Result<Image, ImageError> {
        let hints = image.manifest.files.pop().unwrap_or_default();
        image.manifest.files = vec![ImageFile {
            compression: Some(claim.compression.clone()),
            sha1: Some(received.sha1.clone()),
            sha256: Some(received.sha256.clone()),
            size: Some(received.size_bytes),
            ..hints
        }];
        let earlier = image.blob.replace(name.to_owned());
        let image = self.replace(image).await?;
        if let Some(earlier) = earlier {
            self.drop_blob(&earlier).await;
        }
        Ok(image)
    }
}

/// How long so many bytes may have taken.
fn longest(bytes: u64) -> Duration {
    GRACE + Duration::from_secs(bytes / LEAST_RATE)
}

/// Checksums of what has arrived so far.
#[derive(Default)]
struct Hashing {
    size_bytes: u64,
    sha1: Sha1,
    sha256: Sha256,
}

impl Hashing {
    fn update(&mut self, chunk: &Bytes) {
        self.size_bytes = self.size_bytes.saturating_add(u64::try_from(chunk.len()).unwrap_or(0));
        self.sha1.update(chunk);
        self.sha256.update(chunk);
    }

    fn finish(self) -> Received {
        Received {
            size_bytes: self.size_bytes,
            sha1: hex::encode(self.sha1.finalize()),
            sha256: hex::encode(self.sha256.finalize()),
        }
    }
}

/// A file that has arrived whole.
struct Received {
    size_bytes: u64,
    sha1: String,
    sha256: String,
}

impl Received {
    fn check(&self, claim: &FileClaim) -> Result<(), ImageError> {
        let pairs = [("sha256", &claim.sha256, &self.sha256), ("sha1", &claim.sha1, &self.sha1)];
        for (kind, expected, found) in pairs {
            if let Some(expected) = expected
                && !expected.eq_ignore_ascii_case(found)
            {
                let (expected, found) = (expected.clone(), found.clone());
                return Err(ImageError::Checksum { kind, expected, found });
            }
        }
        Ok(())
    }
}
