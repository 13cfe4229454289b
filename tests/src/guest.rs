//! The tiny guest image, and getting it into a coordinator.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::Client;
use crate::repository;

/// Longest wait for a guest to boot, or to say something: it is emulated, and shares its processor with
/// whatever else runs. A quiet machine takes a tenth of it.
pub const BOOT: Duration = Duration::from_secs(240);

/// Variable that names the folder of the image where the repository is not.
pub const IMAGE_DIR: &str = "MUSTER_TEST_GUEST_DIR";

/// The folder `scripts/build-guest-image.sh` fills.
///
/// # Panics
/// If the image has not been built.
#[must_use]
pub fn image_dir() -> PathBuf {
    let elsewhere = std::env::var_os(IMAGE_DIR).map(PathBuf::from);
    let dir = elsewhere.unwrap_or_else(|| repository().join("target/guest"));
    assert!(
        dir.join("manifest.json").is_file(),
        "no guest image in {}: run scripts/build-guest-image.sh first",
        dir.display()
    );
    dir
}

/// The image's manifest.
///
/// # Panics
/// If it can't be read.
#[must_use]
pub fn manifest() -> Value {
    let text = std::fs::read_to_string(image_dir().join("manifest.json")).expect("manifest");
    serde_json::from_str(&text).expect("the manifest is JSON")
}

/// The compressed image file that the manifest describes.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn image_file() -> PathBuf {
    let names = ["muster-guest.qcow2.xz", "muster-guest.raw.xz", "muster-guest.qcow2.gz"];
    let dir = image_dir();
    names.iter().map(|n| dir.join(n)).find(|p| p.is_file()).expect("a compressed image file")
}

/// Uploads and activates the tiny guest image; returns its uuid.
///
/// # Panics
/// If the coordinator refuses any of it.
pub async fn import(client: &Client) -> String {
    let manifest = manifest();
    let uuid = manifest["uuid"].as_str().expect("the manifest has a uuid").to_owned();
    client.post("/images", &manifest).await.expect(200);
    let file = &manifest["files"][0];
    let query = format!(
        "/images/{uuid}/file?compression={}&sha256={}",
        file["compression"].as_str().unwrap_or("none"),
        file["sha256"].as_str().expect("the manifest has a checksum"),
    );
    let bytes = std::fs::read(image_file()).expect("image file");
    let octets = "application/octet-stream";
    client.send_bytes(Method::PUT, &query, octets, bytes).await.expect(200);
    client.post(&format!("/images/{uuid}?action=activate"), &json!({})).await.expect(200);
    uuid
}

/// Longest wait for an answer that may never come.
const ANSWER: Duration = Duration::from_secs(5);

/// What a guest hands out at `ADDRESS:PORT` under this path: the content; or why there is none.
///
/// # Errors
/// It does not answer within 5 s, or not with 200.
pub fn page(address: &str, path: &str) -> Result<String, String> {
    let fetch = || {
        let address = address.parse().map_err(std::io::Error::other)?;
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = fetch().map_err(|error| error.to_string())?;
    match text.split_once("\r\n\r\n") {
        Some((head, content)) if head.contains(" 200 ") => Ok(content.trim().to_owned()),
        _ => Err(text),
    }
}
