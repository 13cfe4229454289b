//! The image repository over HTTP.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::StatusCode;
use muster_shared::clock::{Clock, SystemClock};
use muster_shared::ids::ImageUuid;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::super::{MAX_UPLOADS, MAX_UPLOADS_OF_CLIENT};
use super::{Answer, Api, test_app};
use crate::app::images::FileClaim;

const UUID: &str = "0a0a0a0a-0000-4000-8000-000000000001";

async fn create(api: &Api, uuid: &str, name: &str) -> Answer {
    let manifest = json!({
        "v": 2, "uuid": uuid, "name": name, "version": "1", "type": "zvol", "os": "linux",
        "files": [{ "format": "qcow2" }],
    });
    api.json("POST /images", &manifest.to_string()).await
}

async fn upload(api: &Api, query: &str, bytes: &[u8]) -> Answer {
    let head = format!("PUT /images/{UUID}/file{query}|content-type: application/octet-stream");
    api.send(&head, bytes).await
}

fn sum(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

async fn blobs(api: &Api) -> Vec<String> {
    let found = api.app.parts().blobs.list(None).collect::<Vec<_>>().await;
    found.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
}

#[tokio::test]
async fn an_image_is_made_filled_activated_and_deleted() {
    let api = Api::start().await;
    let created = create(&api, UUID, "base").await;
    assert_eq!(created.status, 200, "{}", created.text());
    assert_eq!(created.value()["state"], "unactivated");
    create(&api, UUID, "again").await.expect(409, "ImageUuidAlreadyExists");
    let early = api.send(&format!("POST /images/{UUID}?action=activate"), b"").await;
    early.expect(409, "NoActivationNoFile");
    api.send(&format!("GET /images/{UUID}/file"), b"").await.expect(404, "ResourceNotFound");

    let first = upload(&api, "?compression=gzip", b"first").await;
    assert_eq!(first.status, 200, "{}", first.text());
    let content = b"second content";
    let second = upload(&api, &format!("?sha256={}", sum(content)), content).await.value();
    assert_eq!(second["files"][0]["size"], content.len());
    assert_eq!(second["files"][0]["sha256"], sum(content));
    assert_eq!(second["files"][0]["sha1"].as_str().unwrap().len(), 40);
    assert_eq!(second["files"][0]["compression"], "none");
    assert_eq!(second["files"][0]["format"], "qcow2");
    assert_eq!(blobs(&api).await.len(), 1, "the first file is gone");

    assert_eq!(api.send("GET /images", b"").await.value(), json!([]));
    let active = api.send(&format!("POST /images/{UUID}?action=activate"), b"").await.value();
    assert_eq!(active["state"], "active");
    assert!(active["published_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(api.send("GET /images?name=base", b"").await.value()[0]["uuid"], UUID);
    assert_eq!(api.send("GET /images?name=~as", b"").await.value()[0]["uuid"], UUID);
    assert_eq!(api.send("GET /images?os=bsd", b"").await.value(), json!([]));
    upload(&api, "", b"third").await.expect(409, "ImageFilesImmutable");

    assert_eq!(api.send(&format!("DELETE /images/{UUID}"), b"").await.status, 204);
    api.send(&format!("GET /images/{UUID}"), b"").await.expect(404, "ResourceNotFound");
    assert_eq!(blobs(&api).await, [""; 0]);
}

#[tokio::test]
async fn failed_uploads_leave_nothing_and_keep_the_earlier_file() {
    let api = Api::start().await;
    create(&api, UUID, "base").await;
    assert_eq!(upload(&api, "", b"good").await.status, 200);
    let before = (blobs(&api).await, api.send(&format!("GET /images/{UUID}"), b"").await.text());
    let wrong = upload(&api, &format!("?sha256={}", sum(b"other")), b"content").await;
    wrong.expect(409, "InvalidParameters");
    assert_eq!(wrong.value()["errors"][0]["field"], "sha256");
    let bad_form = upload(&api, "?sha256=abc", b"content").await;
    bad_form.expect(409, "InvalidParameters");
    upload(&api, "?compression=zip", b"content").await.expect(409, "InvalidParameters");
    upload(&api, "", b"").await.expect(409, "InvalidParameters");
    let head = format!("PUT /images/{UUID}/file HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n");
    let mut cut_off = TcpStream::connect(&api.address).await.unwrap();
    cut_off.write_all(head.as_bytes()).await.unwrap();
    cut_off.write_all(b"a part").await.unwrap();
    drop(cut_off);
    let Api { app, server, .. } = api;
    assert_eq!(server.drain().await, 0, "the upload ended");
    let image: ImageUuid = UUID.parse().unwrap();
    let found = app.images.get(image).await.unwrap();
    assert_eq!(json!(found.manifest).to_string(), before.1);
    let left: Vec<_> = app.parts().blobs.list(None).collect().await;
    assert_eq!(left.len(), before.0.len());
}

#[tokio::test]
async fn downloads_can_be_resumed() {
    let api = Api::start().await;
    create(&api, UUID, "base").await;
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(upload(&api, "", &content).await.status, 200);
    let path = format!("/images/{UUID}/file");
    let whole = api.send(&format!("GET {path}"), b"").await;
    assert_eq!(whole.status, 200);
    assert!(whole.body == content);
    assert_eq!(whole.headers["content-length"], content.len().to_string());
    assert_eq!(whole.headers["etag"], format!("\"{}\"", sum(&content)));
    assert_eq!(whole.headers["accept-ranges"], "bytes");
    let head = api.send(&format!("HEAD {path}"), b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.headers["content-length"], content.len().to_string());
    let rest = api.send(&format!("GET {path}|range: bytes=700000-"), b"").await;
    assert_eq!(rest.status, 206);
    assert!(rest.body == content[700_000..]);
    assert_eq!(rest.headers["content-range"], "bytes 700000-799999/800000");
    let other = format!("GET {path}|range: bytes=700000-|if-range: \"else\"");
    assert_eq!(api.send(&other, b"").await.body.len(), content.len());
    let beyond = api.send(&format!("GET {path}|range: bytes=800000-"), b"").await;
    assert_eq!(beyond.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(beyond.headers["content-range"], "bytes */800000");
}

#[tokio::test]
async fn lists_are_paged_and_faults_are_named() {
    let api = Api::start().await;
    for n in 1..=5 {
        let uuid = format!("0a0a0a0a-0000-4000-8000-00000000000{n}");
        assert_eq!(create(&api, &uuid, "many").await.status, 200);
    }
    let uuids = |answer: Answer| -> Vec<String> {
        let list = answer.value();
        let list = list.as_array().unwrap();
        list.iter().map(|image| image["uuid"].as_str().unwrap()[35..].to_owned()).collect()
    };
    let first = api.send("GET /images?state=all&limit=2", b"").await;
    assert_eq!(uuids(first), ["1", "2"]);
    let marker = "0a0a0a0a-0000-4000-8000-000000000002";
    let rest = api.send(&format!("GET /images?state=all&marker={marker}"), b"").await;
    assert_eq!(uuids(rest), ["3", "4", "5"]);
    for query in ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "owner=x", "marker=x"] {
        let answer = api.send(&format!("GET /images?{query}"), b"").await;
        answer.expect(409, "InvalidParameters");
    }
    let bad = api.json("POST /images", r#"{"name":"x","version":"1","os":"linux"}"#).await;
    bad.expect(409, "InvalidParameters");
    assert_eq!(bad.value()["errors"][0]["field"], "type");
    api.send("GET /images/nonsense", b"").await.expect(404, "ResourceNotFound");
    let unknown = api.send(&format!("POST /images/{UUID}?action=explode"), b"").await;
    unknown.expect(409, "InvalidParameters");
    let stale = api.send(&format!("DELETE /images/{UUID}|if-match: \"0.0\""), b"").await;
    stale.expect(412, "PreconditionFailed");
    let etag = api.send(&format!("GET /images/{UUID}"), b"").await.headers["etag"].clone();
    let fresh = api.send(&format!("DELETE /images/{UUID}|if-match: {etag}"), b"").await;
    assert_eq!(fresh.status, 204);
}

/// A clock two days ahead of the stores in memory.
#[derive(Debug)]
struct InTwoDays(SystemClock);

impl Clock for InTwoDays {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn wall(&self) -> jiff::Timestamp {
        self.0.wall().saturating_add(Duration::from_hours(48)).unwrap()
    }
}

#[tokio::test]
async fn the_sweep_removes_old_files_without_a_record() {
    let app = test_app(Arc::new(InTwoDays(SystemClock::new()))).await;
    let manifest = json!({ "name": "n", "version": "1", "type": "zvol", "os": "linux" });
    let image = app.images.create(muster_shared::api::Object::of(&manifest)).await.unwrap().uuid;
    let body = futures_util::stream::iter([Ok("content".into())]).boxed();
    app.images.upload(image, FileClaim::default(), &crate::app::Expected::ANY, body).await.unwrap();
    let kept = app.parts().blobs.list(None).next().await.unwrap().unwrap().location;
    for name in [format!("images/{image}/file-x"), format!("images/{UUID}/file-y")] {
        app.parts().blobs.put(&name.into(), "left".into()).await.unwrap();
    }
    assert_eq!(app.images.sweep().await.unwrap(), 2);
    let left: Vec<_> = app.parts().blobs.list(None).map(|m| m.unwrap().location).collect().await;
    assert_eq!(left, [kept]);
}

#[tokio::test]
async fn the_sweep_spares_young_files_and_those_with_a_record() {
    let api = Api::start().await;
    create(&api, UUID, "base").await;
    upload(&api, "", b"good").await;
    assert_eq!(api.app.images.sweep().await.unwrap(), 0);
    assert_eq!(blobs(&api).await.len(), 1);
}

/// An upload from one of this machine's addresses of which nothing is sent yet: its connection, or
/// the refusal.
async fn begin_upload(api: &Api, from: u8) -> Result<TcpStream, Answer> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, from], 0).into()).unwrap();
    let mut stream = socket.connect(api.address.parse().unwrap()).await.unwrap();
    let head = format!(
        "PUT /images/{UUID}/file HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
         connection: close\r\ncontent-length: 99\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut said = vec![0; go_on.len()];
    stream.read_exact(&mut said).await.unwrap();
    // Its body is waited for, so it has its place.
    if said == go_on {
        return Ok(stream);
    }
    stream.read_to_end(&mut said).await.unwrap();
    Err(Answer::parse(&said))
}

#[tokio::test]
async fn slow_uploads_of_one_client_leave_places_for_others() {
    let api = Api::start().await;
    create(&api, UUID, "base").await;
    let refuse = async |from: u8, why: &str| {
        let refused = begin_upload(&api, from).await.expect_err("it is refused");
        refused.expect(503, "ServiceUnavailable");
        assert!(refused.text().contains(why), "{}", refused.text());
        assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    };
    let mut slow = Vec::new();
    for _ in 0..MAX_UPLOADS_OF_CLIENT {
        slow.push(begin_upload(&api, 1).await.expect("a place"));
    }
    refuse(1, "this client").await;
    for _ in MAX_UPLOADS_OF_CLIENT..MAX_UPLOADS {
        slow.push(begin_upload(&api, 2).await.expect("another client's place"));
    }
    refuse(3, "too many uploads").await;
    // Whoever goes away gives back both, its own place and that of all.
    drop(slow.swap_remove(0));
    let again = async {
        // The end of the other one is noticed in a moment.
        while begin_upload(&api, 1).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), again).await.expect("its place is free again");
}
