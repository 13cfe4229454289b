use std::path::PathBuf;

use super::table::{FirstTable, Snapshot, snapshots};
use super::*;
use crate::host::{Command, Exec as _, SystemExec};

/// A folder with files as `qemu-img` and `qemu-io` make them.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn run(&self, line: &str) {
        // Names of files begin with a slash for the folder.
        let folder = self.0.path().display().to_string();
        let word = |word: &str| match word.strip_prefix('/') {
            Some(name) => format!("{folder}/{name}"),
            None => word.replace('~', " "),
        };
        let argv = line.split(' ').map(word);
        let command = Command::new(argv, std::time::Duration::from_secs(60));
        let (exec, never) = (SystemExec::new(), tokio_util::sync::CancellationToken::new());
        exec.run(&command, &never).await.unwrap().checked(line).unwrap();
    }

    /// All of a snapshot, as the pieces have it, and how many pieces there were.
    async fn read(&self, name: &str, snapshot: &str) -> (Vec<u8>, Vec<(u64, usize)>) {
        let mut content = Content::open(&self.at(name), snapshot).await.unwrap();
        let mut bytes = Vec::new();
        let mut pieces = Vec::new();
        let mut from = 0;
        loop {
            let piece = content.piece(from).await.unwrap();
            bytes.resize(usize::try_from(piece.size_bytes).unwrap(), 0);
            let at = usize::try_from(piece.offset).unwrap();
            bytes[at..at + piece.data.len()].copy_from_slice(&piece.data);
            if !piece.data.is_empty() {
                pieces.push((piece.offset, piece.data.len()));
                assert!(piece.data.len() <= MAX_PIECE_BYTES);
            }
            assert!(piece.next > from || piece.next == piece.size_bytes);
            from = piece.next;
            if from == piece.size_bytes {
                return (bytes, pieces);
            }
        }
    }

    /// The same as `qemu-img` converts it.
    async fn converted(&self, name: &str, snapshot: &str) -> Vec<u8> {
        let line =
            format!("qemu-img convert -f qcow2 -l snapshot.name={snapshot} -O raw /{name} /raw");
        self.run(&line).await;
        std::fs::read(self.at("raw")).unwrap()
    }
}

#[tokio::test]
async fn a_snapshot_is_read_as_qemu_reads_it() {
    let folder = Folder::new();
    // The base is packed, in small clusters, and shorter than what is based on it.
    folder.run("qemu-img create -q -f raw /base.raw 3M").await;
    for write in ["write~-P~17~0~100k", "write~-P~18~1M~64k", "write~-P~19~3068k~4k"] {
        folder.run(&format!("qemu-io -f raw -c {write} /base.raw")).await;
    }
    for (packing, cluster) in [("zlib", 4096), ("zstd", 65536)] {
        for left in ["base.qcow2", "disk.qcow2"] {
            std::fs::remove_file(folder.at(left)).ok();
        }
        let options = format!("compression_type={packing},cluster_size={cluster}");
        folder
            .run(&format!("qemu-img convert -c -f raw -O qcow2 -o {options} /base.raw /base.qcow2"))
            .await;
        // A name that is relative, as the driver writes it.
        folder.run("qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 /disk.qcow2 200M").await;
        for write in ["write~-P~1~50k~10k", "write~-z~1M~64k", "write~-P~2~150M~2M"] {
            folder.run(&format!("qemu-io -f qcow2 -c {write} /disk.qcow2")).await;
        }
        folder.run("qemu-img snapshot -c one /disk.qcow2").await;
        for write in ["write~-P~9~0~200M", "discard~0~1M"] {
            folder.run(&format!("qemu-io -f qcow2 -c {write} /disk.qcow2")).await;
        }
        folder.run("qemu-img resize -q /disk.qcow2 300M").await;
        folder.run("qemu-img snapshot -c two /disk.qcow2").await;
        let (bytes, pieces) = folder.read("disk.qcow2", "one").await;
        assert_eq!(bytes.len(), 200 << 20);
        // It has the snapshot's content, in the size of today.
        let converted = folder.converted("disk.qcow2", "one").await;
        assert!(bytes == converted[..bytes.len()], "{packing}: it differs");
        let stored: usize = pieces.iter().map(|(_, length)| *length).sum();
        assert!(stored < 4 << 20, "{packing}: holes are read as data: {pieces:?}");
        let (bytes, _) = folder.read("disk.qcow2", "two").await;
        assert!(bytes == folder.converted("disk.qcow2", "two").await, "{packing}: two differs");
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let folder = Folder::new();
    folder.run("qemu-img create -q -f qcow2 /disk.qcow2 1M").await;
    let none = Content::open(&folder.at("disk.qcow2"), "one").await.unwrap_err();
    assert!(matches!(none, ContentError::NoSnapshot { .. }), "{none}");
    let gone = Content::open(&folder.at("gone.qcow2"), "one").await.unwrap_err();
    assert!(matches!(gone, ContentError::Io { .. }), "{gone}");
    std::fs::write(folder.at("raw"), [7; 4096]).unwrap();
    let raw = Content::open(&folder.at("raw"), "one").await.unwrap_err();
    assert!(matches!(raw, ContentError::Bad { .. }), "{raw}");
}

#[test]
fn a_table_of_snapshots_is_read_or_refused() {
    let mut table = vec![0; 80];
    table[..8].copy_from_slice(&0x5_0000_u64.to_be_bytes());
    table[8..12].copy_from_slice(&3_u32.to_be_bytes());
    table[12..16].copy_from_slice(&[0, 1, 0, 3]);
    table[36..40].copy_from_slice(&16_u32.to_be_bytes());
    table[48..56].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    table[56..60].copy_from_slice(b"1one");
    let one = Snapshot {
        name: b"one".to_vec(),
        first_table: FirstTable { at: 0x5_0000, entries: 3 },
        size_bytes: Some(1 << 20),
    };
    assert_eq!(snapshots(&table, 1).unwrap(), [one]);
    assert_eq!(snapshots(&table, 0).unwrap(), []);
    // The second one would begin at 64, and is cut.
    snapshots(&table, 2).unwrap_err();
    snapshots(&table[..50], 1).unwrap_err();
}
