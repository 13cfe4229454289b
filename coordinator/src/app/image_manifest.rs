//! What a client's IMGAPI manifest must look like.

use muster_shared::ids::ImageUuid;
use serde_json::{Map, Value, json};

/// The only manifest version.
const VERSION: u64 = 2;
const TYPES: [&str; 6] = ["zone-dataset", "lx-dataset", "lxd", "zvol", "docker", "other"];
const SYSTEMS: [&str; 6] = ["smartos", "linux", "windows", "bsd", "illumos", "other"];
/// Members of a file's entry that a client may set; the rest comes from the upload.
const FILE_HINTS: [&str; 2] = ["format", "dataset_guid"];

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

/// Checks a client's manifest; returns its uuid, if it names one, and what of it is kept.
///
/// # Errors
/// [`BadManifest`] for the first fault.
pub(super) fn accept(
    mut manifest: Map<String, Value>,
) -> Result<(Option<ImageUuid>, Map<String, Value>), BadManifest> {
    let version = manifest.get("v").cloned().unwrap_or_else(|| json!(VERSION));
    if version.as_u64() != Some(VERSION) {
        return Err(BadManifest::new("v", "must be 2"));
    }
    manifest.insert("v".to_owned(), json!(VERSION));
    text(&manifest, "name", true, 512)?;
    text(&manifest, "version", true, 128)?;
    text(&manifest, "description", false, 512)?;
    text(&manifest, "homepage", false, 128)?;
    one_of(&manifest, "type", &TYPES)?;
    one_of(&manifest, "os", &SYSTEMS)?;
    let uuid = uuid(&manifest, "uuid")?;
    uuid_or_absent(&manifest, "owner")?;
    uuid_or_absent(&manifest, "origin")?;
    for name in ["requirements", "tags", "traits"] {
        if manifest.get(name).is_some_and(|value| !value.is_object()) {
            return Err(BadManifest::new(name, "must be an object"));
        }
    }
    if manifest.get("image_size").is_some_and(|size| size.as_u64().is_none_or(|mib| mib == 0)) {
        return Err(BadManifest::new("image_size", "must be a positive number of MiB"));
    }
    check_files(&manifest)?;
    let hints = file_hints(&manifest);
    // State and files follow from what happens to the image, not from what a client says.
    for name in ["state", "published_at", "files"] {
        manifest.shift_remove(name);
    }
    manifest.entry("public").or_insert(json!(false));
    manifest.entry("disabled").or_insert(json!(false));
    if !hints.is_empty() {
        manifest.insert("files".to_owned(), json!([hints]));
    }
    Ok((uuid, manifest))
}

fn check_files(manifest: &Map<String, Value>) -> Result<(), BadManifest> {
    let entries = match manifest.get("files") {
        None => return Ok(()),
        Some(Value::Array(entries)) if entries.len() <= 1 => entries,
        Some(_) => return Err(BadManifest::new("files", "must be an array of one file")),
    };
    let Some(entry) = entries.first() else { return Ok(()) };
    let Value::Object(entry) = entry else {
        return Err(BadManifest::new("files[0]", "must be an object"));
    };
    if entry.get("format").is_some_and(|f| !matches!(f.as_str(), Some("raw" | "qcow2"))) {
        return Err(BadManifest::new("files[0].format", "must be \"raw\" or \"qcow2\""));
    }
    Ok(())
}

/// What the manifest says about its file beyond what an upload finds out.
pub(super) fn file_hints(manifest: &Map<String, Value>) -> Map<String, Value> {
    let entry = manifest.get("files").and_then(|files| files.get(0)).and_then(Value::as_object);
    let hint = |name: &&str| Some(((*name).to_owned(), entry?.get(*name)?.clone()));
    FILE_HINTS.iter().filter_map(hint).collect()
}

fn text(
    manifest: &Map<String, Value>,
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
        Some(Value::String(text)) if text.len() <= max_bytes => Ok(()),
        Some(Value::String(_)) => {
            Err(BadManifest::new(name, format!("must have at most {max_bytes} bytes")))
        }
        Some(_) => Err(BadManifest::new(name, "must be a string")),
    }
}

fn one_of(manifest: &Map<String, Value>, name: &str, known: &[&str]) -> Result<(), BadManifest> {
    match manifest.get(name).and_then(Value::as_str) {
        Some(value) if known.contains(&value) => Ok(()),
        _ => Err(BadManifest::new(name, format!("must be one of {}", known.join(", ")))),
    }
}

fn uuid(manifest: &Map<String, Value>, name: &str) -> Result<Option<ImageUuid>, BadManifest> {
    let bad = || BadManifest::new(name, "must be a UUID");
    match manifest.get(name) {
        None => Ok(None),
        Some(value) => value.as_str().ok_or_else(bad)?.parse().map(Some).map_err(|_| bad()),
    }
}

fn uuid_or_absent(manifest: &Map<String, Value>, name: &str) -> Result<(), BadManifest> {
    uuid(manifest, name).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Map<String, Value> {
        let manifest = json!({ "name": "base", "version": "1", "type": "zvol", "os": "linux" });
        manifest.as_object().unwrap().clone()
    }

    #[track_caller]
    fn check(name: &str, value: Value, field: &str) {
        let mut manifest = good();
        manifest.insert(name.to_owned(), value);
        assert_eq!(accept(manifest).unwrap_err().field, field);
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
        check("files", json!([{}, {}]), "files");
        check("files", json!([{ "format": "vmdk" }]), "files[0].format");
    }

    #[test]
    fn clients_set_neither_state_nor_checksums() {
        let mut manifest = good();
        manifest.insert("state".to_owned(), json!("active"));
        manifest.insert("files".to_owned(), json!([{ "sha256": "00", "format": "qcow2" }]));
        let (uuid, kept) = accept(manifest).unwrap();
        assert_eq!(uuid, None);
        assert_eq!(kept.get("state"), None);
        assert_eq!(kept["files"], json!([{ "format": "qcow2" }]));
        assert_eq!(kept["v"], json!(2));
    }
}
