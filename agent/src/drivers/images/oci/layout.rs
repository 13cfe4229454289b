//! Which of an archive's members are the image for this node: of an OCI image layout by its index, of
//! a docker archive by `manifest.json`.

use std::collections::BTreeSet;

use oci_spec::image::{
    Arch, Descriptor, Digest, DigestAlgorithm, ImageConfiguration, ImageIndex, ImageManifest, Os,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::RuntimeConfig;
use super::archive::Archive;
use super::config;
use crate::drivers::untar::{Fault, invalid, shown};

/// Most layers of an image.
const MAX_LAYERS: usize = 512;
/// Most images of an index.
const MAX_IMAGES: usize = 256;
/// Indices within each other.
const MAX_NESTED: usize = 3;
const INDICES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFESTS: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// The image of an archive.
#[derive(Debug)]
pub(super) struct Image {
    /// How its containers are run.
    pub(super) runtime: RuntimeConfig,
    /// The lowest first.
    pub(super) layers: Vec<Layer>,
}

/// A layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// The archive's member.
    pub(super) member: String,
    /// Its size and checksum (SHA-256), where the archive says them.
    pub(super) expected: Option<(u64, String)>,
    /// Checksum of its content without compression (SHA-256).
    pub(super) content_sha256: String,
}

/// A member of `manifest.json` of a docker archive.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

/// The image of an archive.
pub(super) fn read(archive: &Archive) -> Result<Image, Fault> {
    if archive.has("oci-layout") && archive.has("index.json") {
        of_layout(archive)
    } else if archive.has("manifest.json") {
        of_docker(archive)
    } else {
        invalid("it is neither an OCI image layout nor a docker archive, as tar")
    }
}

fn of_layout(archive: &Archive) -> Result<Image, Fault> {
    let index: ImageIndex = document(archive, "index.json", None)?;
    let mut manifests = Vec::new();
    collect(archive, &index, 0, &mut manifests)?;
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for manifest in manifests {
        if !seen.insert(manifest.digest().to_string()) {
            continue;
        }
        let read: ImageManifest = blob(archive, &manifest)?;
        let config: ImageConfiguration = blob(archive, read.config())?;
        if config::fits_here(&config) {
            found.push((read, config));
        }
    }
    let (manifest, config) = only(found)?;
    let layer = |layer: &Descriptor, content_sha256| {
        let sha256 = sha256(layer.digest())?;
        let member = format!("blobs/sha256/{sha256}");
        let expected = Some((layer.size(), sha256));
        Ok(Layer { member, expected, content_sha256 })
    };
    image(&config, manifest.layers(), layer)
}

/// The manifests that may be for this node, of an index and of those that it names.
fn collect(
    archive: &Archive,
    index: &ImageIndex,
    depth: usize,
    manifests: &mut Vec<Descriptor>,
) -> Result<(), Fault> {
    for entry in index.manifests() {
        let elsewhere = entry.platform().as_ref().is_some_and(|platform| {
            *platform.os() != Os::Linux || *platform.architecture() != Arch::default()
        });
        let kind = entry.media_type().as_ref();
        if elsewhere {
            continue;
        }
        if MANIFESTS.contains(&kind) {
            manifests.push(entry.clone());
        } else if INDICES.contains(&kind) {
            if depth == MAX_NESTED {
                return invalid(format!("it has more than {MAX_NESTED} indices within each other"));
            }
            let nested: ImageIndex = blob(archive, entry)?;
            collect(archive, &nested, depth + 1, manifests)?;
        }
        if manifests.len() > MAX_IMAGES {
            return invalid(format!("it has more than {MAX_IMAGES} images"));
        }
    }
    Ok(())
}

fn of_docker(archive: &Archive) -> Result<Image, Fault> {
    let saved: Vec<Saved> = document(archive, "manifest.json", None)?;
    if saved.len() > MAX_IMAGES {
        return invalid(format!("it has more than {MAX_IMAGES} images"));
    }
    let mut found = Vec::new();
    for saved in saved {
        // Docker names a configuration by its checksum, other programs as they like.
        let name = saved.config.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".json").unwrap_or(name);
        let is_sum = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let config: ImageConfiguration = document(archive, &saved.config, is_sum.then_some(name))?;
        if config::fits_here(&config) {
            found.push((saved.layers, config));
        }
    }
    let (layers, config) = only(found)?;
    let layer = |member: &String, content_sha256| {
        Ok(Layer { member: member.clone(), expected: None, content_sha256 })
    };
    image(&config, &layers, layer)
}

/// The one that is for this node.
fn only<T>(mut found: Vec<T>) -> Result<T, Fault> {
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (Some(_), more) => invalid(format!(
            "it holds {} images for linux/{}: export one of them alone",
            more + 1,
            Arch::default()
        )),
        (None, _) => {
            Err(Fault::Unsupported(format!("it holds no image for linux/{}", Arch::default())))
        }
    }
}

fn image<T>(
    config: &ImageConfiguration,
    layers: &[T],
    layer: impl Fn(&T, String) -> Result<Layer, Fault>,
) -> Result<Image, Fault> {
    let contents = config.rootfs().diff_ids();
    if contents.len() != layers.len() {
        return invalid(format!(
            "it has {} layers, and its configuration tells of {}",
            layers.len(),
            contents.len()
        ));
    }
    if layers.len() > MAX_LAYERS {
        return invalid(format!("it has more than {MAX_LAYERS} layers"));
    }
    let both = layers.iter().zip(contents).map(|(this, content)| {
        let digest: Result<Digest, _> = content.parse();
        let digest = digest.map_err(|error| Fault::Invalid(format!("{content:?}: {error}")))?;
        layer(this, sha256(&digest)?)
    });
    Ok(Image { runtime: config::runtime(config)?, layers: both.collect::<Result<_, _>>()? })
}

/// A document that a descriptor names.
fn blob<T: DeserializeOwned>(archive: &Archive, descriptor: &Descriptor) -> Result<T, Fault> {
    let sha256 = sha256(descriptor.digest())?;
    document(archive, &format!("blobs/sha256/{sha256}"), Some(&sha256))
}

fn document<T: DeserializeOwned>(
    archive: &Archive,
    name: &str,
    sha256: Option<&str>,
) -> Result<T, Fault> {
    let (content, sum) = archive.document(name)?;
    let found = sum.sha256();
    if sha256.is_some_and(|wanted| wanted != found) {
        return invalid(format!("{} is damaged: its sha256 is {found}", shown(name.as_bytes())));
    }
    serde_json::from_slice(&content)
        .map_err(|error| Fault::Invalid(format!("{}: {error}", shown(name.as_bytes()))))
}

fn sha256(digest: &Digest) -> Result<String, Fault> {
    match digest.algorithm() {
        DigestAlgorithm::Sha256 => Ok(digest.digest().to_owned()),
        other => Err(Fault::Unsupported(format!("it has checksums of the kind {other}"))),
    }
}
