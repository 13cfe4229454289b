//! What the agent must know of an IMGAPI manifest before it fetches the image's file.

use muster_shared::ids::ImageUuid;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::drivers::DriverError;

/// How the file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// bzip2.
    Bzip2,
    /// gzip.
    Gzip,
    /// xz.
    Xz,
    /// Zstandard.
    Zstd,
}

/// What the bytes are once they are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Not said: qcow2 if it looks like it, else raw.
    Unknown,
    /// The disk's bytes.
    Raw,
    /// QEMU's format.
    Qcow2,
    /// Containers, see [`CONTAINER_FORMATS`].
    Container,
}

/// How files of containers are called: an OCI image layout and what `docker save` writes, both as tar.
/// Which of them it is its content says.
pub const CONTAINER_FORMATS: [&str; 2] = ["oci-archive", "docker-archive"];
/// Types of images that are of containers when nothing says what their file is.
const CONTAINER_TYPES: [&str; 2] = ["docker", "lx-dataset"];

/// Size and checksums of the file as the repository holds it. Stored beside a partial download,
/// so that it is never continued with another file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Bytes.
    pub size_bytes: u64,
    /// Hexadecimal.
    #[serde(default)]
    pub sha1: Option<String>,
    /// Hexadecimal.
    #[serde(default)]
    pub sha256: Option<String>,
}

/// The image's only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// What must arrive.
    pub expected: Expected,
    /// How it is compressed.
    pub compression: Compression,
    /// What it is then.
    pub format: Format,
    /// The image of which it holds only the difference.
    pub origin: Option<ImageUuid>,
    /// Size of the disk that it holds, bytes; that of its unpacked content if that is raw.
    pub disk_bytes: Option<u64>,
}

/// Reads the manifest of an active image.
///
/// # Errors
/// `ImageNotActive`; `InvalidManifest`: it names another image, or no file with size and
/// checksum; `NotSupported`: formats that this agent can't install.
pub fn parse(image: ImageUuid, manifest: &Value) -> Result<ImageFile, DriverError> {
    super::check_active(image, manifest)?;
    let invalid = |problem: String| {
        DriverError::refused(Code::InvalidManifest, format!("manifest of image {image}: {problem}"))
    };
    let unsupported = |what: String| {
        DriverError::refused(Code::NotSupported, format!("image {image}: {what} is not supported"))
    };
    let named = manifest.get("uuid").and_then(Value::as_str).unwrap_or_default();
    if !named.eq_ignore_ascii_case(&image.to_string()) {
        return Err(invalid(format!("it names image {named:?}")));
    }
    let files = manifest.get("files").and_then(Value::as_array);
    let file = match files.map(Vec::as_slice) {
        Some([file]) => file,
        Some([]) | None => return Err(invalid("it names no file".to_owned())),
        Some(several) => return Err(unsupported(format!("an image of {} files", several.len()))),
    };
    let text = |name: &str| file.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
    let size_bytes = file.get("size").and_then(Value::as_u64).filter(|size| *size > 0);
    let expected = Expected {
        size_bytes: size_bytes.ok_or_else(|| invalid("the file has no size".to_owned()))?,
        sha1: text("sha1"),
        sha256: text("sha256"),
    };
    if expected.sha1.is_none() && expected.sha256.is_none() {
        return Err(invalid("the file has no checksum".to_owned()));
    }
    let compression = match text("compression").as_deref() {
        None | Some("none" | "") => Compression::None,
        Some("bzip2") => Compression::Bzip2,
        Some("gzip") => Compression::Gzip,
        Some("xz") => Compression::Xz,
        Some("zstd") => Compression::Zstd,
        Some(other) => return Err(unsupported(format!("compression {other:?}"))),
    };
    let kind = manifest.get("type").and_then(Value::as_str).unwrap_or_default();
    let format = match text("format").as_deref() {
        None if CONTAINER_TYPES.contains(&kind) => Format::Container,
        None => Format::Unknown,
        Some(name) if CONTAINER_FORMATS.contains(&name) => Format::Container,
        Some("raw") => Format::Raw,
        Some("qcow2") => Format::Qcow2,
        Some(other) => return Err(unsupported(format!("format {other:?}"))),
    };
    let names_origin = manifest.get("origin").is_some_and(|origin| !origin.is_null());
    let origin = super::origin_of(manifest);
    let format = match (origin, format) {
        (None, _) if names_origin => return Err(invalid("its origin is no UUID".to_owned())),
        (Some(origin), _) if origin == image => {
            return Err(invalid("it is its own origin".to_owned()));
        }
        (None, format) => format,
        // The disk's bytes alone can't say which of them are the origin's; and what ZFS sends fits only
        // a snapshot that was received.
        (Some(_), Format::Unknown | Format::Qcow2) => Format::Qcow2,
        (Some(_), Format::Raw | Format::Container) => {
            let what = "a file that is no qcow2 of an image that builds on another one (origin)";
            return Err(unsupported(what.to_owned()));
        }
    };
    let disk_mib = manifest.get("image_size").and_then(Value::as_u64);
    let disk_bytes = disk_mib.and_then(|mib| mib.checked_mul(MIB));
    Ok(ImageFile { expected, compression, format, origin, disk_bytes })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image() -> ImageUuid {
        "01020304-0506-4708-890a-0b0c0d0e0f10".parse().unwrap()
    }

    fn manifest(change: impl FnOnce(&mut Value)) -> Value {
        let mut manifest = json!({
            "v": 2, "uuid": image(), "name": "x", "state": "active", "type": "zvol",
            "files": [{ "size": 10, "sha1": "AB", "compression": "xz", "format": "qcow2" }],
        });
        change(&mut manifest);
        manifest
    }

    #[track_caller]
    fn check_refused(code: &str, change: impl FnOnce(&mut Value)) {
        match parse(image(), &manifest(change)) {
            Err(DriverError::Refused { code: found, .. }) => assert_eq!(found, *code),
            other => panic!("expected {code}, got {other:?}"),
        }
    }

    #[test]
    fn size_checksums_compression_and_format_are_read() {
        let file = parse(image(), &manifest(|_| ())).unwrap();
        let expected = Expected { size_bytes: 10, sha1: Some("ab".to_owned()), sha256: None };
        let whole = ImageFile {
            expected,
            compression: Compression::Xz,
            format: Format::Qcow2,
            origin: None,
            disk_bytes: None,
        };
        assert_eq!(file, whole);
    }

    #[test]
    fn a_difference_is_a_qcow2_file() {
        let origin = "11020304-0506-4708-890a-0b0c0d0e0f10";
        let mut manifest = manifest(|m| m["origin"] = json!(origin));
        manifest["files"][0].as_object_mut().unwrap().remove("format");
        let file = parse(image(), &manifest).unwrap();
        assert_eq!((file.format, file.origin), (Format::Qcow2, origin.parse().ok()));
    }

    #[test]
    fn files_of_containers_are_known_by_format_or_type() {
        let format = |change: fn(&mut Value)| parse(image(), &manifest(change)).unwrap().format;
        for name in CONTAINER_FORMATS {
            let mut manifest = manifest(|_| ());
            manifest["files"][0]["format"] = json!(name);
            assert_eq!(parse(image(), &manifest).unwrap().format, Format::Container);
        }
        let unsaid = |kind: &'static str| {
            let mut manifest = manifest(|m| drop(m["files"][0]["format"].take()));
            manifest["files"][0].as_object_mut().unwrap().remove("format");
            manifest["type"] = json!(kind);
            parse(image(), &manifest).unwrap().format
        };
        assert_eq!((unsaid("docker"), unsaid("zvol")), (Format::Container, Format::Unknown));
        assert_eq!(format(|m| m["type"] = json!("docker")), Format::Qcow2);
    }

    #[test]
    fn what_can_not_be_installed_is_refused_by_name() {
        check_refused("ImageNotActive", |m| m["state"] = json!("unactivated"));
        check_refused("ImageNotActive", |m| m["disabled"] = json!(true));
        check_refused("InvalidManifest", |m| m["uuid"] = json!("other"));
        check_refused("InvalidManifest", |m| m["files"] = json!([]));
        check_refused("InvalidManifest", |m| m["files"] = json!([{ "size": 10 }]));
        check_refused("InvalidManifest", |m| m["files"] = json!([{ "sha1": "ab" }]));
        check_refused("InvalidManifest", |m| m["origin"] = json!(image()));
        check_refused("InvalidManifest", |m| m["origin"] = json!("other"));
        for format in ["raw", "docker-archive", "zfs"] {
            check_refused("NotSupported", |m| {
                m["origin"] = json!("11020304-0506-4708-890a-0b0c0d0e0f10");
                m["files"][0]["format"] = json!(format);
            });
        }
        check_refused("NotSupported", |m| m["files"][0]["compression"] = json!("lzma"));
        check_refused("NotSupported", |m| m["files"][0]["format"] = json!("vmdk"));
        check_refused("InvalidManifest", |m| *m = json!("text"));
    }
}
