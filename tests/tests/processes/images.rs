//! The image repository and what agents do with bad downloads.

use std::time::Duration;

use async_compression::tokio::write::GzipEncoder;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, DISK_LIMIT, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::Client;
use reqwest::Method;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

const OCTETS: &str = "application/octet-stream";

#[tokio::test]
async fn an_upload_with_a_wrong_checksum_leaves_nothing() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let uuid = fresh_uuid();
    let manifest = json!({
        "v": 2, "uuid": uuid, "name": "bad", "version": "1", "type": "zvol", "os": "linux",
    });
    client.post("/images", &manifest).await.expect(200);
    let wrong = hex::encode(Sha256::digest(b"something else"));
    let path = format!("/images/{uuid}/file?compression=none&sha256={wrong}");
    let answer = client.send_bytes(Method::PUT, &path, OCTETS, b"content".to_vec()).await;
    assert!(answer.status.is_client_error(), "{} {}", answer.status, answer.text);
    assert_eq!(client.get(&format!("/images/{uuid}/file")).await.status, 404);
    let activate = client.post(&format!("/images/{uuid}?action=activate"), &json!({})).await;
    assert!(activate.status.is_client_error(), "an image without a file: {}", activate.text);

    let right = hex::encode(Sha256::digest(b"content"));
    let path = format!("/images/{uuid}/file?compression=none&sha256={right}");
    client.send_bytes(Method::PUT, &path, OCTETS, b"content".to_vec()).await.expect(200);
    client.post(&format!("/images/{uuid}?action=activate"), &json!({})).await.expect(200);
    assert_eq!(client.get(&format!("/images/{uuid}/file")).await.text, "content");
    let listed = client.get("/images?name=bad").await.expect(200);
    assert_eq!(listed[0]["uuid"], uuid);
    assert_eq!(client.delete(&format!("/images/{uuid}")).await.status, 204);
    assert_eq!(client.get(&format!("/images/{uuid}")).await.status, 404);
}

#[tokio::test]
async fn images_survive_kill_9() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let uuid = guest::import(&client).await;
    coordinator.kill9();
    coordinator.restart();
    let image = client.get(&format!("/images/{uuid}")).await.expect(200);
    assert_eq!(image["state"], "active");
    let expected = std::fs::metadata(guest::image_file()).unwrap().len();
    let file = client.get(&format!("/images/{uuid}/file")).await;
    assert_eq!(file.headers["content-length"], expected.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_from_a_url_or_from_another_coordinator() {
    let (first, second) = (Coordinator::start(), Coordinator::start());
    let uuid = guest::import(&first.client()).await;
    let url = format!("http://{}", first.address());
    let file = format!("{url}/images/{uuid}/file");
    let sum = hex::encode(Sha256::digest(std::fs::read(guest::image_file()).unwrap()));

    let import = ["image", "import", &file, "--name", "by-url", "--version", "1", "--sha256"];
    let damaged = "0".repeat(64);
    let refused = cli::output(&second, &[&import[..], &[&damaged]].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains(&sum), "{said}");
    assert_eq!(second.client().get("/images?state=all").await.expect(200), json!([]));
    let image = cli::json(&second, &[&import[..], &[&sum]].concat());
    assert_eq!((&image["state"], &image["files"][0]["sha256"]), (&json!("active"), &json!(sum)));

    let image = cli::json(&second, &["image", "import", &uuid, "--from", &url]);
    let original = first.client().get(&format!("/images/{uuid}")).await.expect(200);
    for member in ["uuid", "name", "version", "files", "state"] {
        assert_eq!(image[member], original[member], "{member} of {image:#}");
    }
}

#[tokio::test]
async fn a_corrupt_download_fails_the_task_with_its_reason() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let uuid = guest::import(&client).await;
    corrupt(&coordinator.data_dir().join("blobs"));

    let path = format!("/servers/{}/ensure-image", agent.server_uuid);
    let task = client.post(&path, &json!({ "image_uuid": uuid })).await.expect(200);
    let ended = client.wait_task(task["id"].as_str().unwrap(), 60).await;
    assert_eq!(ended["status"], "failure", "{ended:#}");
    let message = ended["history"][0]["event"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("sha256") || message.contains("checksum"), "{message}");
    let left: Vec<_> = std::fs::read_dir(agent.data_dir().join("images"))
        .map(|dir| dir.flatten().map(|e| e.file_name()).collect())
        .unwrap_or_default();
    assert!(left.iter().all(|f| !f.to_string_lossy().ends_with(".qcow2")), "{left:?}");
}

/// Flips a byte in the middle of every file over 1 MiB below `dir`.
fn corrupt(dir: &std::path::Path) {
    let mut found = 0;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the blobs folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if entry.metadata().expect("metadata").len() > 1024 * 1024 {
                let mut bytes = std::fs::read(&path).expect("readable");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0xff;
                std::fs::write(&path, bytes).expect("writable");
                found += 1;
            }
        }
    }
    assert!(found > 0, "no image file below {}", dir.display());
}

#[tokio::test]
async fn an_unknown_image_fails_the_create_and_leaves_nothing() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = fresh_uuid();
    let vm = fresh_uuid();
    let body = json!({
        "uuid": vm, "brand": "kvm", "ram": 128, "vcpus": 1, "autoboot": false,
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "owner_uuid": fresh_uuid(),
    });
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let task = client.post(&path, &body).await.expect(200);
    let ended = client.wait_task(task["id"].as_str().unwrap(), 60).await;
    assert_eq!(ended["status"], "failure");
    assert!(!agent.data_dir().join("vms").join(format!("{vm}.json")).exists());
    agent.wait_status(&client, "running", Duration::from_secs(60)).await;
}

/// Uploads an image that is small until it is unpacked.
async fn import_zeros(client: &Client, mib: usize) -> String {
    let uuid = fresh_uuid();
    let manifest = json!({
        "v": 2, "uuid": uuid, "name": "zeros", "version": "1", "type": "zvol", "os": "linux",
    });
    client.post("/images", &manifest).await.expect(200);
    let mut encoder = GzipEncoder::new(Vec::new());
    encoder.write_all(&vec![0; mib * 1024 * 1024]).await.expect("memory takes it");
    encoder.shutdown().await.expect("memory takes it");
    let packed = encoder.into_inner();
    let sha256 = hex::encode(Sha256::digest(&packed));
    let path = format!("/images/{uuid}/file?compression=gzip&sha256={sha256}");
    client.send_bytes(Method::PUT, &path, OCTETS, packed).await.expect(200);
    client.post(&format!("/images/{uuid}?action=activate"), &json!({})).await.expect(200);
    uuid
}

#[tokio::test]
async fn a_full_disk_fails_the_image_and_nothing_else() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let guest = guest::import(&client).await;
    let zeros = import_zeros(&client, 64).await;
    for mib in ["24", "44"] {
        let agent = Agent::with(&[&coordinator.agent_url()], &[], &[(DISK_LIMIT, mib)]);
        agent.wait_status(&client, "running", Duration::from_secs(30)).await;
        // The first does not fit as a download, the second fills the disk while it is unpacked.
        for image in [&guest, &zeros] {
            refused_for_space(&client, &agent, image).await;
        }
    }
}

async fn refused_for_space(client: &Client, agent: &Agent, image: &str) {
    let path = format!("/servers/{}/ensure-image", agent.server_uuid);
    let task = client.post(&path, &json!({ "image_uuid": image })).await.expect(200);
    let ended = client.wait_task(task["id"].as_str().expect("a text"), 120).await;
    assert_eq!(ended["status"], "failure", "{ended:#}");
    let error = &ended["history"][0]["event"]["error"];
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("space"), "{message}");

    agent.wait_status(client, "running", Duration::from_secs(60)).await;
    let path = format!("/servers/{}/nop", agent.server_uuid);
    let task = client.post(&path, &json!({})).await.expect(200);
    client.complete_task(task["id"].as_str().expect("a text"), 60).await;
}
