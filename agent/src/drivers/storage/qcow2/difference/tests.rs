use std::path::PathBuf;

use super::super::content::Content;
use super::*;
use crate::host::{Command, Exec as _, SystemExec};

/// More than one second table leads to, and no whole number of clusters.
const SIZE_BYTES: u64 = (ENTRIES + 3) * CLUSTER + 512;

async fn run(line: &[&str]) {
    let command = Command::new(line.iter().copied(), std::time::Duration::from_secs(60));
    let (exec, never) = (SystemExec::new(), tokio_util::sync::CancellationToken::new());
    exec.run(&command, &never).await.unwrap().checked(line[0]).unwrap();
}

/// A file that has sevens in its second cluster and its last bytes, and zeros in its first.
async fn written(folder: &Path) -> PathBuf {
    let path = folder.join("difference.qcow2");
    let mut difference = Difference::create(&path).await.unwrap();
    difference.zeros(0).await.unwrap();
    difference.data(1, &[7; CLUSTER_BYTES]).await.unwrap();
    difference.data(ENTRIES + 3, &[7; 512]).await.unwrap();
    difference.finish(SIZE_BYTES).await.unwrap();
    path
}

#[tokio::test]
async fn qemu_takes_it_for_a_file_over_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path()).await;
    let text = path.display().to_string();
    run(&["qemu-img", "check", "-q", "-f", "qcow2", &text]).await;
    let base = folder.path().join("base");
    let file = std::fs::File::create(&base).unwrap();
    file.set_len(SIZE_BYTES).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[5; 3 * CLUSTER_BYTES], 0).unwrap();
    let (raw, base) = (folder.path().join("raw"), base.display().to_string());
    run(&["qemu-img", "rebase", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", &base, &text]).await;
    let converted = raw.display().to_string();
    run(&["qemu-img", "convert", "-q", "-f", "qcow2", "-O", "raw", &text, &converted]).await;
    let found = std::fs::read(raw).unwrap();
    let mut wanted = vec![0; usize::try_from(SIZE_BYTES).unwrap()];
    wanted[CLUSTER_BYTES..2 * CLUSTER_BYTES].fill(7);
    wanted[2 * CLUSTER_BYTES..3 * CLUSTER_BYTES].fill(5);
    let end = wanted.len();
    wanted[end - 512..].fill(7);
    assert!(found == wanted);
}

#[tokio::test]
async fn what_is_in_it_is_read_without_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path()).await;
    // Eight clusters: the header, two of data, two second tables, the first one, and the counts.
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 * CLUSTER);
    let mut content = Content::open_as_it_is(&path).await.unwrap();
    assert_eq!(content.size_bytes(), SIZE_BYTES);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(own) = content.own(from).await.unwrap() {
        from = own.offset + own.length;
        let sevens = own.data.map(|data| data.iter().all(|byte| *byte == 7));
        found.push((own.offset, own.length, sevens));
    }
    let last = (ENTRIES + 3) * CLUSTER;
    let wanted = [(0, CLUSTER, None), (CLUSTER, CLUSTER, Some(true)), (last, 512, Some(true))];
    assert_eq!(found, wanted);
}

#[tokio::test]
async fn a_disk_without_a_difference_is_a_file_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("same.qcow2");
    Difference::create(&path).await.unwrap().finish(SIZE_BYTES).await.unwrap();
    run(&["qemu-img", "check", "-q", "-f", "qcow2", &path.display().to_string()]).await;
    let mut content = Content::open_as_it_is(&path).await.unwrap();
    assert_eq!(content.own(0).await.unwrap(), None);
}

#[tokio::test]
async fn a_file_that_was_not_finished_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.qcow2");
    let mut difference = Difference::create(&path).await.unwrap();
    difference.data(0, &[7; CLUSTER_BYTES]).await.unwrap();
    drop(difference);
    let start = std::fs::read(&path).unwrap();
    assert_eq!(super::super::parse(&start), Ok(None));
}
