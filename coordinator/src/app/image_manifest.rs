//! What a client's IMGAPI manifest must look like.

use muster_shared::api::Object;
use muster_shared::api::image::{ImageFile, ImageState, Manifest};
use muster_shared::ids::ImageUuid;
use serde_json::{Value, json};

/// The only manifest version.
const VERSION: u64 = 2;
const TYPES: [&str; 6] = ["zone-dataset", "lx-dataset", "lxd", "zvol", "docker", "other"];
/// What a manifest may say (sdc-imgapi, docs/index.md); what else one asks for would not come.
const MEMBERS: [&str; 38] = [
    "v",
    "uuid",
    "owner",
    "name",
    "version",
    "description",
    "homepage",
    "eula",
    "icon",
    "error",
    "state",
    "disabled",
    "public",
    "published_at",
    "expires_at",
    "type",
    "os",
    "origin",
    "files",
    "acl",
    "requirements",
    "users",
    "billing_tags",
    "traits",
    "tags",
    "generate_passwords",
    "inherited_directories",
    "nic_driver",
    "disk_driver",
    "cpu_type",
    "image_size",
    "channels",
    "urn",
    "vendor_uuid",
    "creator_uuid",
    "creator_name",
    "platform_type",
    "cloud_name",
];
/// Of requests, not of manifests: who asks, and where; there is one account and one channel.
const CONTEXT: [&str; 2] = ["account", "channel"];
/// What a file may be: a disk, or containers.
const DISKS: [&str; 2] = ["raw", "qcow2"];
const CONTAINERS: [&str; 2] = ["oci-archive", "docker-archive"];
/// Types of images of which containers are made.
const CONTAINER_TYPES: [&str; 2] = ["docker", "lx-dataset"];
const SYSTEMS: [&str; 6] = ["smartos", "linux", "windows", "bsd", "illumos", "other"];

/// What is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadManifest {
    /// The member.
    pub field: String,
    /// Its fault.
    pub problem: String,
}

impl BadManifest {
    /// A fault of a member.
    pub(super) fn new(field: &str, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into() }
    }
}

/// Checks a client's manifest; returns what of it is kept, for an image that has no file yet.
/// `fresh` is its uuid if it names none.
///
/// # Errors
/// [`BadManifest`] for the first fault.
pub fn accept(
    mut manifest: Object,
    fresh: impl FnOnce() -> ImageUuid,
) -> Result<Manifest, BadManifest> {
    manifest.retain(|name, _| !CONTEXT.contains(&name));
    if let Some((stranger, _)) = manifest.iter().find(|(name, _)| !MEMBERS.contains(&name.as_str()))
    {
        return Err(BadManifest::new(stranger, "is not a member of a manifest"));
    }
    if manifest.get("v").is_some_and(|version| version.as_u64() != Some(VERSION)) {
        return Err(BadManifest::new("v", "must be 2"));
    }
    text(&manifest, "name", true, 512)?;
    text(&manifest, "version", true, 128)?;
    text(&manifest, "description", false, 512)?;
    text(&manifest, "homepage", false, 128)?;
    one_of(&manifest, "type", &TYPES)?;
    one_of(&manifest, "os", &SYSTEMS)?;
    let uuid = uuid(&manifest, "uuid")?.unwrap_or_else(fresh);
    uuid_or_absent(&manifest, "owner")?;
    uuid_or_absent(&manifest, "origin")?;
    for name in ["requirements", "tags", "traits"] {
        if manifest.get(name).is_some_and(|value| !value.is_object()) {
            return Err(BadManifest::new(name, "must be an object"));
        }
    }
    for name in ["public", "disabled"] {
        if manifest.get(name).is_some_and(|value| !value.is_boolean()) {
            return Err(BadManifest::new(name, "must be true or false"));
        }
    }
    if manifest.get("image_size").is_some_and(|size| size.as_u64().is_none_or(|mib| mib == 0)) {
        return Err(BadManifest::new("image_size", "must be a positive number of MiB"));
    }
    check_files(&manifest)?;
    // State and files follow from what happens to the image, not from what a client says.
    manifest.remove("published_at");
    let files = manifest.remove("files").map(|files| file_hints(&files));
    manifest.set("v", VERSION);
    manifest.set("uuid", json!(uuid));
    manifest.set("state", ImageState::Unactivated.as_str());
    manifest.set_default("public", false);
    manifest.set_default("disabled", false);
    let mut manifest: Manifest =
        manifest.read().map_err(|error| BadManifest::new("", error.to_string()))?;
    manifest.files = files.into_iter().filter(|file| *file != ImageFile::default()).collect();
    Ok(manifest)
}

fn check_files(manifest: &Object) -> Result<(), BadManifest> {
    let entries = match manifest.get("files") {
        None => return Ok(()),
        Some(Value::Array(entries)) if entries.len() <= 1 => entries,
        Some(_) => return Err(BadManifest::new("files", "must be an array of one file")),
    };
    let Some(entry) = entries.first() else { return Ok(()) };
    let Value::Object(entry) = entry else {
        return Err(BadManifest::new("files[0]", "must be an object"));
    };
    let Some(format) = entry.get("format") else { return Ok(()) };
    let format = format.as_str().unwrap_or_default();
    let of_containers = CONTAINERS.contains(&format);
    if !of_containers && !DISKS.contains(&format) {
        let known = [DISKS, CONTAINERS].concat().join(", ");
        return Err(BadManifest::new("files[0].format", format!("must be one of {known}")));
    }
    let kind = manifest.text("type").unwrap_or_default();
    if of_containers && !CONTAINER_TYPES.contains(&kind) {
        let types = CONTAINER_TYPES.join(" or ");
        let problem = format!("is {format}: the image's type must be {types} then");
        return Err(BadManifest::new("files[0].format", problem));
    }
    Ok(())
}

/// What a client's manifest says about its file beyond what an upload finds out.
fn file_hints(files: &Value) -> ImageFile {
    let hint = |name: &str| files.get(0)?.get(name).cloned();
    let guid = hint("dataset_guid").map(|guid| ("dataset_guid".to_owned(), guid));
    ImageFile {
        format: hint("format").and_then(|format| Some(format.as_str()?.to_owned())),
        others: guid.into_iter().collect(),
        ..ImageFile::default()
    }
}

fn text(
    manifest: &Object,
    name: &str,
    required: bool,
    max_bytes: usize,
) -> Result<(), BadManifest> {
    match manifest.get(name) {
        None if !required => Ok(()),
        None => Err(BadManifest::new(name, "is missing")),
        Some(Value::String(text)) if text.is_empty() && required => {
            Err(BadManifest::new(name, "must not be empty"))
        }
        Some(Value::String(text)) if text.chars().any(|c| c.is_control() && c != '\n') => {
            Err(BadManifest::new(name, "must not have control characters"))
        }
        Some(Value::String(text)) if text.contains('\n') && name != "description" => {
            Err(BadManifest::new(name, "must be one line"))
        }
        Some(Value::String(text)) if text.len() <= max_bytes => Ok(()),
        Some(Value::String(_)) => {
            Err(BadManifest::new(name, format!("must have at most {max_bytes} bytes")))
        }
        Some(_) => Err(BadManifest::new(name, "must be a string")),
    }
}

fn one_of(manifest: &Object, name: &str, known: &[&str]) -> Result<(), BadManifest> {
    match manifest.text(name) {
        Some(value) if known.contains(&value) => Ok(()),
        _ => Err(BadManifest::new(name, format!("must be one of {}", known.join(", ")))),
    }
}

fn uuid(manifest: &Object, name: &str) -> Result<Option<ImageUuid>, BadManifest> {
    let bad = || BadManifest::new(name, "must be a UUID");
    match manifest.get(name) {
        None => Ok(None),
        Some(value) => value.as_str().ok_or_else(bad)?.parse().map(Some).map_err(|_| bad()),
    }
}

fn uuid_or_absent(manifest: &Object, name: &str) -> Result<(), BadManifest> {
    uuid(manifest, name).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Object {
        let members = [("name", "base"), ("version", "1"), ("type", "zvol"), ("os", "linux")];
        members.into_iter().collect()
    }

    fn fresh() -> ImageUuid {
        uuid::Uuid::from_u128(7).into()
    }

    #[track_caller]
    fn check(name: &str, value: Value, field: &str) {
        let mut manifest = good();
        manifest.set(name, value);
        assert_eq!(accept(manifest, fresh).unwrap_err().field, field);
    }

    #[test]
    fn faults_are_named() {
        check("v", json!(1), "v");
        check("name", json!(""), "name");
        check("name", json!(3), "name");
        check("version", json!("x".repeat(200)), "version");
        check("type", json!("iso"), "type");
        check("os", json!(null), "os");
        check("uuid", json!("x"), "uuid");
        check("owner", json!("x"), "owner");
        check("image_size", json!(0), "image_size");
        check("tags", json!([]), "tags");
        check("public", json!("yes"), "public");
        check("name", json!("a\u{1b}[2J"), "name");
        check("name", json!("a\nb"), "name");
        check("description", json!("a\rb"), "description");
        check("source", json!("https://example.org"), "source");
        check("files", json!([{}, {}]), "files");
        check("files", json!([{ "format": "vmdk" }]), "files[0].format");
        check("files", json!([{ "format": "oci-archive" }]), "files[0].format");
    }

    #[test]
    fn images_of_containers_say_so_twice() {
        for format in CONTAINERS {
            let mut manifest = good();
            manifest.set("type", "docker");
            manifest.set("files", json!([{ "format": format }]));
            let kept = accept(manifest, fresh).unwrap();
            assert_eq!((&*kept.kind, kept.files[0].format.as_deref()), ("docker", Some(format)));
        }
    }

    #[test]
    fn requests_say_more_than_manifests_keep() {
        let mut manifest = good();
        manifest.set("account", "x");
        manifest.set("description", "two\nlines");
        manifest.set("users", json!([{ "name": "root" }]));
        let kept = json!(accept(manifest, fresh).unwrap());
        assert_eq!((&kept["account"], &kept["users"][0]["name"]), (&Value::Null, &json!("root")));
    }

    #[test]
    fn clients_set_neither_state_nor_checksums() {
        let mut manifest = good();
        manifest.set("state", "active");
        manifest.set("files", json!([{ "sha256": "00", "format": "qcow2" }]));
        let kept = accept(manifest, fresh).unwrap();
        assert_eq!((kept.uuid, kept.v, kept.state), (fresh(), 2, ImageState::Unactivated));
        assert_eq!(json!(kept.files), json!([{ "format": "qcow2" }]));
    }
}
