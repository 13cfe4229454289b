//! The file of an image that is made of a container: its files as the only layer of an archive as
//! `docker save` writes it.

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::drivers::DriverError;
use crate::drivers::images::RuntimeConfig;
use crate::drivers::images::pack::{DiskBytes, DiskSource};
use crate::drivers::storage::PackedRoot;

/// A block of a tar archive, bytes.
const BLOCK_BYTES: u64 = 512;
const LAYER: &str = "layer.tar";

/// The archive, around the layer that a source gives.
pub(super) struct Archive<'a> {
    layer: &'a mut dyn DiskSource,
    /// What stands before the layer, until it was given.
    before: Option<Vec<u8>>,
    /// Zeros that stand behind it, until they were given.
    after_bytes: Option<u64>,
}

impl<'a> Archive<'a> {
    /// Of this layer, with the configuration of the image that the container was made from.
    pub(super) fn new(
        layer: &'a mut dyn DiskSource,
        packed: &PackedRoot,
        runtime: &RuntimeConfig,
    ) -> std::io::Result<Self> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |name: &str, content: &Value| {
            let content = content.to_string();
            let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
            tar.append_data(&mut header(size), name, content.as_bytes())
        };
        let layers = [LAYER];
        add("manifest.json", &json!([{ "Config": "config.json", "Layers": layers }]))?;
        add("config.json", &runtime.configuration(&packed.sha256))?;
        let mut layer_header = header(packed.size_bytes);
        layer_header.set_path(LAYER)?;
        layer_header.set_cksum();
        let mut before = tar.get_ref().clone();
        before.extend_from_slice(layer_header.as_bytes());
        let padding = packed.size_bytes.next_multiple_of(BLOCK_BYTES) - packed.size_bytes;
        let after_bytes = Some(padding + 2 * BLOCK_BYTES);
        Ok(Self { layer, before: Some(before), after_bytes })
    }
}

fn header(size_bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size_bytes);
    header
}

#[async_trait]
impl DiskSource for Archive<'_> {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        if let Some(before) = self.before.take() {
            return Ok(Some(DiskBytes::Data(before)));
        }
        match self.layer.next().await? {
            Some(bytes) => Ok(Some(bytes)),
            None => Ok(self.after_bytes.take().map(DiskBytes::Zeros)),
        }
    }
}
