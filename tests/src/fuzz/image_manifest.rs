//! Manifests of images: a client's at the coordinator (`app::image_manifest`), a repository's at
//! the agent (`drivers::images`).

use muster_agent::drivers::images::manifest;
use muster_coordinator::app::image_manifest;
use muster_shared::api::Object;
use muster_shared::api::image::{ImageState, Manifest};
use muster_shared::ids::ImageUuid;
use serde_json::{Value, json};

/// Reads a manifest on both sides.
pub fn run(data: &[u8]) {
    let Ok(given) = serde_json::from_slice::<Value>(data) else { return };
    let named = given.get("uuid").and_then(Value::as_str).and_then(|uuid| uuid.parse().ok());
    let image: ImageUuid = named.unwrap_or_else(|| uuid::Uuid::from_u128(1).into());
    // Refusing it is as good; what counts is that it returns.
    drop(manifest::parse(image, &given));
    let Value::Object(members) = given else { return };
    let Ok(accepted) = image_manifest::accept(Object::from(members), || image) else { return };
    assert_eq!((accepted.v, accepted.state), (2, ImageState::Unactivated));
    assert!(accepted.files.iter().all(|file| file.sha256.is_none() && file.size.is_none()));
    let stored = json!(accepted);
    let read: Manifest = serde_json::from_value(stored).expect("a record that is written is read");
    assert_eq!(read, accepted, "a manifest is not what it is stored as");
}
