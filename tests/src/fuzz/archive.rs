//! Archives that somebody sends to be unpacked: layers of images of containers, and files to build images
//! from (`docker_build`, and folders of `docker_copy`, are unpacked by the same code).

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use muster_agent::drivers::{builder, images};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// A block of a tar archive, bytes; where its checksum is.
const BLOCK_BYTES: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// Most that is unpacked: sparse files are longer than their archive.
const MAX_BYTES: u64 = 4 << 20;
/// What must stay as it is.
const KEPT: &str = "kept";

/// Unpacks an archive as a layer, and as the files of a build; both as it is, and with the checksums that its
/// headers would have: else next to nothing would come past them.
pub fn run(data: &[u8]) {
    for data in [data, &sealed(data.to_vec())] {
        check("layer", |folder| {
            let image = folder.join("image.tar");
            std::fs::write(&image, around(data)).expect("a file");
            let unpacked = images::try_unpack(&image, &folder.join("root"), MAX_BYTES);
            std::fs::remove_file(&image).expect("it is there");
            unpacked.is_ok()
        });
        check("context", |folder| {
            let root = folder.join("root");
            std::fs::create_dir(&root).expect("a folder");
            let unpacked = builder::try_unpack(data, &root, MAX_BYTES);
            if unpacked.is_err() {
                std::fs::remove_dir_all(&root).expect("nobody holds it");
            }
            unpacked.is_ok()
        });
    }
}

/// With the checksum that each block would have as a header, where it looks like one.
fn sealed(mut data: Vec<u8>) -> Vec<u8> {
    for block in data.chunks_exact_mut(BLOCK_BYTES) {
        if &block[257..262] != b"ustar" {
            continue;
        }
        block[CHECKSUM].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    data
}

/// A docker archive whose only layer this is.
fn around(layer: &[u8]) -> Vec<u8> {
    let diff_id = format!("sha256:{}", hex::encode(Sha256::digest(layer)));
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let manifest = json!([{ "Config": "config.json", "Layers": ["layer.tar"] }]);
    let mut tar = tar::Builder::new(Vec::new());
    let (config, manifest) = (config.to_string(), manifest.to_string());
    for (name, content) in [
        ("manifest.json", manifest.as_bytes()),
        ("config.json", config.as_bytes()),
        ("layer.tar", layer),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(content.len()).expect("it is small"));
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content).expect("it is in memory");
    }
    tar.into_inner().expect("it is in memory")
}

/// Unpacks in a folder of its own in which there is more than the root.
fn check(what: &str, unpack: impl Fn(&Path) -> bool) {
    // In memory where that can be: everything is made durable.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    let folder = folder.expect("a folder");
    let victim = folder.path().join(KEPT);
    std::fs::create_dir(&victim).expect("a folder");
    std::fs::write(victim.join("file"), "as it was").expect("a file");
    let before = listed(folder.path());
    let is_whole = unpack(folder.path());
    let root = folder.path().join("root");
    assert_eq!(root.exists(), is_whole, "{what}: what failed leaves nothing");
    if is_whole {
        let mut bytes = 0;
        walk(&root, &mut |path, found| {
            let kind = found.file_type();
            assert!(
                !kind.is_block_device() && !kind.is_char_device(),
                "{what}: {} is a device",
                path.display()
            );
            if kind.is_file() {
                bytes += found.len();
            }
        });
        assert!(bytes <= MAX_BYTES, "{what}: {bytes} bytes came out");
        std::fs::remove_dir_all(&root).expect("nobody holds it");
    }
    assert_eq!(listed(folder.path()), before, "{what}: something beside the root has changed");
}

/// What a change would show in: mode, owner, names, length, content.
type Listed = BTreeMap<std::path::PathBuf, (u32, u32, u64, u64, Option<Vec<u8>>)>;

fn listed(folder: &Path) -> Listed {
    let mut all = Listed::new();
    walk(folder, &mut |path, found| {
        let content = found.is_file().then(|| std::fs::read(path).expect("it is there"));
        let length = if found.is_file() { found.len() } else { 0 };
        let names = if found.is_file() { found.nlink() } else { 0 };
        all.insert(path.to_owned(), (found.mode(), found.uid(), names, length, content));
    });
    all
}

fn walk(folder: &Path, each: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let found = std::fs::symlink_metadata(&path).expect("it is there");
            each(&path, &found);
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
}
