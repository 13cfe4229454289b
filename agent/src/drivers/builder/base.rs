//! An image that a Dockerfile begins with, as `buildah` reads it: an OCI layout of one layer.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::drivers::images::RuntimeConfig;
use crate::drivers::{DriverError, files};

/// The folder of a layout while it is made.
#[derive(Debug)]
pub(super) struct Layout(PathBuf);

impl Layout {
    /// Makes the folder.
    pub(super) async fn make(folder: PathBuf) -> Result<Self, DriverError> {
        let layout = Self(folder);
        files::make_folder(&layout.blobs()).await?;
        Ok(layout)
    }

    fn blobs(&self) -> PathBuf {
        self.0.join("blobs/sha256")
    }

    /// Where the layer goes, uncompressed.
    pub(super) fn layer(&self) -> PathBuf {
        self.blobs().join("layer")
    }

    /// Describes the layer that is there.
    pub(super) async fn finish(
        &self,
        layer_bytes: u64,
        layer_sha256: &str,
        runtime: &RuntimeConfig,
    ) -> Result<(), DriverError> {
        files::rename(&self.layer(), &self.blobs().join(layer_sha256)).await?;
        let described = "application/vnd.oci.image.config.v1+json";
        let config = self.blob(&runtime.configuration(layer_sha256), described).await?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{layer_sha256}"), "size": layer_bytes,
            }],
        });
        let manifest = self.blob(&manifest, "application/vnd.oci.image.manifest.v1+json").await?;
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        self.file(&self.0.join("index.json"), &index).await?;
        self.file(&self.0.join("oci-layout"), &json!({ "imageLayoutVersion": "1.0.0" })).await
    }

    /// Writes a document under its checksum; returns what refers to it.
    async fn blob(&self, document: &Value, media_type: &str) -> Result<Value, DriverError> {
        let text = document.to_string();
        let sum = hex::encode(Sha256::digest(&text));
        self.file(&self.blobs().join(&sum), document).await?;
        let size = text.len();
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size }))
    }

    async fn file(&self, path: &Path, document: &Value) -> Result<(), DriverError> {
        let written: io::Result<()> = tokio::fs::write(path, document.to_string()).await;
        written.map_err(|error| files::failed("write", path, error))
    }
}
