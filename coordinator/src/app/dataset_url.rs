//! What `machine_create` is told about where its image can be had (sdc-cnapi
//! `lib/endpoints/vms.js`): hints for agents that fetch from an IMGAPI. Only where one is
//! configured.

use std::sync::Arc;

use muster_shared::api::{FieldError, Object};
use muster_shared::ids::{ImageUuid, ServerUuid};
use muster_shared::lenient::if_fits;
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::images::Images;

/// The manifest that a client sends along, as far as it is read.
#[derive(Deserialize)]
struct SentManifest {
    files: Vec<SentFile>,
    #[serde(default, deserialize_with = "if_fits")]
    origin: Option<String>,
}

#[derive(Deserialize)]
struct SentFile {
    compression: Option<Value>,
}

/// Says where images can be had; see the module.
#[derive(Debug)]
pub(crate) struct Datasets {
    ctx: Arc<Context>,
    fleet: Arc<Fleet>,
    images: Arc<Images>,
}

impl Datasets {
    pub(super) fn new(ctx: Arc<Context>, fleet: Arc<Fleet>, images: Arc<Images>) -> Self {
        Self { ctx, fleet, images }
    }

    /// Adds to the parameters of a VM where its image can be had, and what an old platform wants.
    ///
    /// # Errors
    /// [`AppError::Invalid`]: they name no image, or its manifest does not stand beside;
    /// [`AppError::Imgapi`]: its name does not resolve, or the image's origin is unknown.
    pub(crate) async fn complete(
        &self,
        server: ServerUuid,
        params: &mut Object,
    ) -> Result<(), AppError> {
        let (image, manifest) = image_of(params)?;
        self.add_hints(params, &image, manifest).await?;
        if self.wants_default_gateway(server) {
            add_default_gateway(params);
        }
        Ok(())
    }

    async fn add_hints(
        &self,
        params: &mut Object,
        image: &str,
        manifest: SentManifest,
    ) -> Result<(), AppError> {
        let Some(imgapi) = &self.ctx.config.imgapi_url else { return Ok(()) };
        let base = resolved(imgapi).await?;
        let compression = |file: Option<SentFile>| file.and_then(|file| file.compression);
        add(params, "dataset", &base, image, compression(manifest.files.into_iter().next()));
        if let Some(origin) = manifest.origin {
            let unknown = || AppError::Imgapi("failed to fetch origin manifest".to_owned());
            let uuid: ImageUuid = origin.parse().map_err(|_| unknown())?;
            let found = self.images.get(uuid).await.map_err(|error| {
                tracing::warn!(%error, image_uuid = %uuid, "no manifest of an image's origin");
                unknown()
            })?;
            let file = found.manifest.files.first();
            let compression = file.and_then(|file| file.compression.clone()).map(Value::from);
            add(params, "dataset_origin", &base, &origin, compression);
            params.set("dataset_origin_uuid", origin);
            params.set("origin", Object::of(&found.manifest));
        }
        Ok(())
    }

    /// Whether the server's platform is so old that it wants `default_gateway`.
    fn wants_default_gateway(&self, server: ServerUuid) -> bool {
        let version = self.fleet.sysinfo_of(server).sdc_version;
        let version = version.as_ref().and_then(|version| version.as_str()?.parse::<f64>().ok());
        !version.is_some_and(|version| version >= 7.0)
    }
}

/// The image of a VM, or of its first disk, and its manifest.
fn image_of(params: &Object) -> Result<(String, SentManifest), AppError> {
    let disk = params.get("disks").and_then(|disks| disks.get(0)?.get("image_uuid"));
    let image = params.get("image_uuid").or(disk).and_then(Value::as_str);
    let manifest = params.get("image").and_then(|image| SentManifest::deserialize(image).ok());
    match (image, manifest.filter(|manifest| !manifest.files.is_empty())) {
        (Some(image), Some(manifest)) => Ok((image.to_owned(), manifest)),
        (image, manifest) => {
            let bad = [
                ("image_uuid", "value was not a string", image.is_none()),
                ("image", "value is not an image with files", manifest.is_none()),
            ];
            let bad = bad.into_iter().filter(|(_, _, bad)| *bad);
            Err(AppError::Invalid(bad.map(|(name, text, _)| FieldError::new(name, text)).collect()))
        }
    }
}

/// Adds `default_gateway`, the gateway of the primary NIC, if there is one.
fn add_default_gateway(params: &mut Object) {
    let nics = params.get("nics").and_then(Value::as_array);
    let primary = nics.and_then(|nics| nics.iter().find(|nic| nic["primary"] == true));
    if let Some(gateway) = primary.and_then(|nic| nic.get("gateway")).cloned() {
        params.set("default_gateway", gateway);
    }
}

fn add(params: &mut Object, prefix: &str, base: &str, image: &str, compression: Option<Value>) {
    params.set(format!("{prefix}_url"), format!("{base}/images/{image}/file"));
    if let Some(compression) = compression {
        params.set(format!("{prefix}_url_compression"), compression);
    }
}

/// The URL with an address instead of its name, for agents without a resolver.
async fn resolved(imgapi: &Url) -> Result<String, AppError> {
    let failed = || {
        let name = imgapi.host_str().unwrap_or_default();
        AppError::Imgapi(format!("failed to resolve imgapi address {name}"))
    };
    let host = imgapi.host_str().ok_or_else(failed)?;
    let port = imgapi.port_or_known_default().ok_or_else(failed)?;
    // Brackets of an IPv6 address belong to the URL, not to the address.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = tokio::net::lookup_host((name, port)).await.map_err(|error| {
        tracing::warn!(%error, host, "the image repository's name does not resolve");
        failed()
    })?;
    let address = found.next().ok_or_else(failed)?;
    let address = match imgapi.port() {
        Some(_) => address.to_string(),
        None if address.is_ipv6() => format!("[{}]", address.ip()),
        None => address.ip().to_string(),
    };
    let path = imgapi.path().trim_end_matches('/');
    Ok(format!("{}://{address}{path}", imgapi.scheme()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn urls_get_addresses_and_keep_what_else_they_have() {
        let made = |text: &'static str| async move { resolved(&text.parse().unwrap()).await };
        assert_eq!(made("http://127.0.0.1:8080/").await.unwrap(), "http://127.0.0.1:8080");
        assert_eq!(made("http://127.0.0.1/base/").await.unwrap(), "http://127.0.0.1/base");
        assert_eq!(made("http://[::1]").await.unwrap(), "http://[::1]");
        let failed = made("http://no-such-name.invalid").await.unwrap_err().to_string();
        assert!(failed.starts_with("failed to resolve imgapi address"), "{failed}");
    }

    #[test]
    fn the_primary_nic_gives_the_default_gateway() {
        let nics = json!([{ "gateway": "a" }, { "primary": true, "gateway": "b" }]);
        let mut params = Object::from_iter([("nics", nics)]);
        add_default_gateway(&mut params);
        assert_eq!(params.text("default_gateway"), Some("b"));
        let mut none = Object::new();
        add_default_gateway(&mut none);
        assert!(none.is_empty());
    }
}
