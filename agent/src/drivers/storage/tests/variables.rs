//! What firmware keeps.

use super::*;

#[tokio::test]
async fn the_simulated_driver_keeps_what_firmware_keeps() {
    let pool = SimPool::default();
    let storage = SimStorage::new(pool.clone(), Faults::none());
    of_variables(&storage, Path::new("/sim/firmware.fd")).await;
    assert!(pool.firmware().is_empty());
}

#[track_caller]
fn tool(words: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "the file is changed as a guest does it")]
    let done = std::process::Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(done.success(), "{words:?}");
}

#[tokio::test]
async fn the_file_driver_keeps_what_firmware_keeps() {
    let node = Node::new().await;
    let storage = node.file(Arc::new(SystemExec::new())).await;
    // As large as OVMF's: no multiple of what qcow2 counts in.
    let template = node.folder.path().join("template.fd");
    std::fs::write(&template, vec![0xff; 540_672]).unwrap();
    of_variables(&storage, &template).await;
    assert_eq!(node.vols(), Vec::<String>::new());

    storage.create_disk(&spec(vm(6), 0, None, Some(1)), &task("one")).await.unwrap();
    let path = storage.variables(vm(6), &template).await.unwrap().path;
    let (path, raw) = (path.to_str().unwrap(), node.folder.path().join("raw"));
    let content = || {
        tool(&["qemu-img", "convert", "-O", "raw", path, raw.to_str().unwrap()]);
        std::fs::read(&raw).unwrap()
    };
    assert_eq!(content(), std::fs::read(&template).unwrap());
    let change = |pattern: &str| {
        tool(&["qemu-io", "-f", "qcow2", "-c", &format!("write -q -P {pattern} 0 512"), path]);
    };
    change("1");
    storage.create_snapshot(vm(6), "vmsnap-a", &ALL).await.unwrap();
    change("2");
    assert_eq!(content()[0], 2);
    storage.roll_back(vm(6), "vmsnap-a").await.unwrap();
    assert_eq!(content()[0], 1);
}
