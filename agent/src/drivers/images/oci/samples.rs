//! Images of containers, made for tests.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// An entry of a layer.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: EntryType,
    pub(crate) mode: u32,
    pub(crate) content: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
}

impl File {
    fn new(name: &str, kind: EntryType) -> Self {
        Self {
            name: name.as_bytes().to_vec(),
            kind,
            mode: 0o644,
            content: Vec::new(),
            link: Vec::new(),
            attributes: Vec::new(),
        }
    }

    pub(crate) fn plain(name: &str, content: &str) -> Self {
        Self { content: content.as_bytes().to_vec(), ..Self::new(name, EntryType::Regular) }
    }

    pub(crate) fn folder(name: &str) -> Self {
        Self { mode: 0o755, ..Self::new(name, EntryType::Directory) }
    }

    pub(crate) fn link(name: &str, to: &str) -> Self {
        Self { link: to.as_bytes().to_vec(), ..Self::new(name, EntryType::Symlink) }
    }

    pub(crate) fn hard_link(name: &str, to: &str) -> Self {
        Self { link: to.as_bytes().to_vec(), ..Self::new(name, EntryType::Link) }
    }

    pub(crate) fn of_kind(name: &str, kind: EntryType) -> Self {
        Self::new(name, kind)
    }
}

/// A layer without compression.
pub(crate) fn layer(files: &[File]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for file in files {
        if !file.attributes.is_empty() {
            let pairs = file.attributes.iter().map(|(key, value)| (key.as_str(), &value[..]));
            tar.append_pax_extensions(pairs).unwrap();
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(file.kind);
        header.set_mode(file.mode);
        header.set_uid(nix::unistd::getuid().as_raw().into());
        header.set_gid(nix::unistd::getgid().as_raw().into());
        header.set_mtime(1_700_000_000);
        header.set_size(u64::try_from(file.content.len()).unwrap());
        // As they are: the crate's own methods refuse names that attackers choose.
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..file.name.len()].copy_from_slice(&file.name);
        gnu.linkname[..file.link.len()].copy_from_slice(&file.link);
        header.set_cksum();
        tar.append(&header, &file.content[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The members of an archive, to be changed before it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members(pub(crate) Vec<(String, Vec<u8>)>);

impl Members {
    fn add(&mut self, name: &str, content: Vec<u8>) {
        self.0.push((name.to_owned(), content));
    }

    fn blob(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let sum = sha256(&content);
        let descriptor = json!({
            "mediaType": kind, "digest": format!("sha256:{sum}"), "size": content.len(),
        });
        self.add(&format!("blobs/sha256/{sum}"), content);
        descriptor
    }

    /// Writes them as a tar archive.
    pub(crate) fn write(&self, path: &Path) {
        let mut tar = Builder::new(std::fs::File::create(path).unwrap());
        for (name, content) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(u64::try_from(content.len()).unwrap());
            tar.append_data(&mut header, name, &content[..]).unwrap();
        }
        tar.into_inner().unwrap().sync_all().unwrap();
    }
}

/// The architecture of this machine, as images call it.
pub(crate) fn here() -> String {
    oci_spec::image::Arch::default().to_string()
}

/// A configuration with layers of these contents.
pub(crate) fn config(arch: &str, layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|l| format!("sha256:{}", sha256(l))).collect();
    json!({
        "architecture": arch, "os": "linux",
        "config": {
            "Entrypoint": ["/bin/server"], "Cmd": ["--port", "80"], "Env": ["PATH=/bin", "A="],
            "WorkingDir": "/srv", "User": "www:www", "StopSignal": "SIGQUIT",
            "ExposedPorts": { "80/tcp": {}, "443/tcp": {} }, "Labels": { "a": "b" },
        },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    })
}

/// An OCI image layout with one image per configuration, each of all layers, packed by `pack`.
pub(crate) fn layout(
    configs: &[Value],
    layers: &[Vec<u8>],
    pack: impl Fn(&[u8]) -> Vec<u8>,
) -> Members {
    let mut members = Members::default();
    members.add("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }).to_string().into_bytes());
    let layer = |members: &mut Members, layer: &Vec<u8>| {
        members.blob("application/vnd.oci.image.layer.v1.tar+gzip", pack(layer))
    };
    let layers: Vec<_> = layers.iter().map(|one| layer(&mut members, one)).collect();
    let manifests: Vec<_> = configs
        .iter()
        .map(|config| {
            let config = config.to_string().into_bytes();
            let config = members.blob("application/vnd.oci.image.config.v1+json", config);
            let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
            let manifest = manifest.to_string().into_bytes();
            members.blob("application/vnd.oci.image.manifest.v1+json", manifest)
        })
        .collect();
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    members.add("index.json", index.to_string().into_bytes());
    members
}

/// What `docker save` writes of one image.
pub(crate) fn docker(config: &Value, layers: &[Vec<u8>]) -> Members {
    let mut members = Members::default();
    let config = config.to_string().into_bytes();
    let name = format!("{}.json", sha256(&config));
    members.add(&name, config);
    let names: Vec<_> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
    for (name, layer) in names.iter().zip(layers) {
        members.add(name, layer.clone());
    }
    let manifest = json!([{ "Config": name, "RepoTags": ["a:1"], "Layers": names }]);
    members.add("manifest.json", manifest.to_string().into_bytes());
    members
}
