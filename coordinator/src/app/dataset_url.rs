//! What `machine_create` is told about where its image can be had (sdc-cnapi
//! `lib/endpoints/vms.js`): hints for agents that fetch from an IMGAPI. Only where one is
//! configured.

use std::sync::Arc;

use muster_shared::ids::{ImageUuid, ServerUuid};
use serde_json::{Map, Value, json};
use url::Url;

use super::context::Context;
use super::error::AppError;
use super::fleet::Fleet;
use super::images::Images;

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

    /// Members that are added to the parameters of a VM made from `image`, whose manifest the
    /// client sent along.
    ///
    /// # Errors
    /// [`AppError::Imgapi`]: its name does not resolve, or the image's origin is unknown.
    pub(crate) async fn hints(
        &self,
        image: &str,
        manifest: &Value,
    ) -> Result<Map<String, Value>, AppError> {
        let mut hints = Map::new();
        let Some(imgapi) = &self.ctx.config.imgapi_url else { return Ok(hints) };
        let base = resolved(imgapi).await?;
        add(&mut hints, "dataset", &base, image, manifest);
        if let Some(origin) = manifest.get("origin").and_then(Value::as_str) {
            let unknown = || AppError::Imgapi("failed to fetch origin manifest".to_owned());
            let uuid: ImageUuid = origin.parse().map_err(|_| unknown())?;
            let found = self.images.get(uuid).await.map_err(|error| {
                tracing::warn!(%error, image_uuid = %uuid, "no manifest of an image's origin");
                unknown()
            })?;
            let found = Value::Object(found.manifest);
            add(&mut hints, "dataset_origin", &base, origin, &found);
            hints.insert("dataset_origin_uuid".to_owned(), json!(origin));
            hints.insert("origin".to_owned(), found);
        }
        Ok(hints)
    }

    /// Whether the server's platform is so old that it wants `default_gateway`.
    #[must_use]
    pub(crate) fn wants_default_gateway(&self, server: ServerUuid) -> bool {
        let sysinfo = self.fleet.sysinfo_of(server);
        let version = sysinfo.get("SDC Version").and_then(Value::as_str);
        !version.and_then(|text| text.parse::<f64>().ok()).is_some_and(|version| version >= 7.0)
    }
}

/// Adds `default_gateway`, the gateway of the primary NIC, if there is one.
pub(crate) fn add_default_gateway(params: &mut Map<String, Value>) {
    let nics = params.get("nics").and_then(Value::as_array);
    let primary = nics.and_then(|nics| nics.iter().find(|nic| nic["primary"] == true));
    if let Some(gateway) = primary.and_then(|nic| nic.get("gateway")).cloned() {
        params.insert("default_gateway".to_owned(), gateway);
    }
}

fn add(hints: &mut Map<String, Value>, prefix: &str, base: &str, image: &str, manifest: &Value) {
    hints.insert(format!("{prefix}_url"), json!(format!("{base}/images/{image}/file")));
    if let Some(compression) = manifest["files"][0].get("compression") {
        hints.insert(format!("{prefix}_url_compression"), compression.clone());
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
        let mut params = Map::from_iter([("nics".to_owned(), nics)]);
        add_default_gateway(&mut params);
        assert_eq!(params["default_gateway"], "b");
        let mut none = Map::new();
        add_default_gateway(&mut none);
        assert!(none.is_empty());
    }
}
