//! What an image builds on: those images are here before it, the oldest first.

use futures_util::future::BoxFuture;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use super::{Images, Installed, origin_of};
use crate::drivers::DriverError;
use crate::drivers::storage::qcow2::content::MAX_ORIGINS;

/// The manifest of an image, once it is known.
pub(super) type ManifestFuture<'a> = BoxFuture<'a, Result<Value, DriverError>>;

/// The images that one of this manifest builds on, its own origin first.
pub(super) async fn chain<'a>(
    image: ImageUuid,
    manifest: &Value,
    manifest_of: &(dyn Fn(ImageUuid) -> ManifestFuture<'a> + Send + Sync),
) -> Result<Vec<ImageUuid>, DriverError> {
    let invalid = |problem: &str| {
        let text = format!("manifest of image {image}: {problem}");
        DriverError::refused(Code::InvalidManifest, text)
    };
    let mut found = Vec::new();
    let mut next = origin_of(manifest);
    while let Some(origin) = next {
        if origin == image || found.contains(&origin) {
            return Err(invalid("what it builds on builds on it"));
        }
        if found.len() >= MAX_ORIGINS {
            return Err(invalid(&format!("it builds on more than {MAX_ORIGINS} others")));
        }
        found.push(origin);
        next = origin_of(&manifest_of(origin).await?);
    }
    Ok(found)
}

/// How many images one would build on that has this one as its origin.
///
/// # Errors
/// `OriginNotInstalled`: one of them is not here; `OriginHasNoFinalSnapshot`; the host could not be read.
pub async fn depth(images: &dyn Images, origin: ImageUuid) -> Result<usize, DriverError> {
    let Installed { manifest, .. } = images.origin(origin).await?;
    let of = |other| -> ManifestFuture<'_> {
        Box::pin(async move { Ok(images.origin(other).await?.manifest) })
    };
    Ok(chain(origin, &manifest, &of).await?.len() + 1)
}

/// `OriginNotInstalled`.
#[must_use]
pub fn not_installed(origin: ImageUuid) -> DriverError {
    let text = format!("image {origin}, of which the difference is wanted, is not installed here");
    DriverError::refused(Code::OriginNotInstalled, text)
}

/// `OriginHasNoFinalSnapshot`.
#[must_use]
pub fn no_final_snapshot(origin: ImageUuid) -> DriverError {
    let text = format!("image {origin}, of which the difference is wanted, has no snapshot @final");
    DriverError::refused(Code::OriginHasNoFinalSnapshot, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn image(number: u128) -> ImageUuid {
        ImageUuid(uuid::Uuid::from_u128(number))
    }

    /// Of an image with this number, where each builds on the one that follows.
    async fn of(number: u128, origins: &BTreeMap<u128, u128>) -> Result<usize, String> {
        let manifest = |number: u128| match origins.get(&number) {
            Some(origin) => json!({ "origin": image(*origin) }),
            None => json!({}),
        };
        let of = |other: ImageUuid| -> ManifestFuture<'_> {
            let manifest = manifest(other.0.as_u128());
            Box::pin(async { Ok(manifest) })
        };
        match chain(image(number), &manifest(number), &of).await {
            Ok(found) => Ok(found.len()),
            Err(DriverError::Refused { code, .. }) => Err(code.to_string()),
            Err(other) => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn chains_end_and_are_bounded() {
        let most = u128::try_from(MAX_ORIGINS).unwrap();
        let line: BTreeMap<u128, u128> = (0..=most).map(|n| (n, n + 1)).collect();
        assert_eq!(of(most + 1, &line).await, Ok(0));
        assert_eq!(of(1, &line).await, Ok(MAX_ORIGINS));
        assert_eq!(of(0, &line).await, Err("InvalidManifest".to_owned()));
        for circle in [[(0, 1), (1, 0)], [(0, 1), (1, 1)]] {
            assert_eq!(of(0, &circle.into()).await, Err("InvalidManifest".to_owned()));
        }
    }
}
