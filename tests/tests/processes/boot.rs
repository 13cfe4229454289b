//! Boot parameters and platforms, as operators and the boot service see them.

use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use serde_json::{Value, json};

const OLD: &str = "20250101T000000Z";
const NEW: &str = "20260101T000000Z";

fn start() -> Coordinator {
    let platforms = format!("boot.platforms=[\"{OLD}:smartos\", \"{NEW}\"]");
    Coordinator::with_settings(&[&platforms])
}

async fn register(client: &Client) -> String {
    let uuid = fresh_uuid();
    let sysinfo = json!({ "sysinfo": {
        "UUID": uuid, "Hostname": "cn1", "Live Image": OLD, "Setup": "true",
        "Boot Time": "1700000000", "MiB of Memory": "8182",
    }});
    client.post(&format!("/servers/{uuid}/sysinfo"), &sysinfo).await.expect(200);
    uuid
}

#[tokio::test]
async fn platforms_are_listed_and_checked() {
    let coordinator = start();
    let client = coordinator.client();
    let all = client.get("/platforms").await.expect(200);
    assert_eq!(all, json!({ OLD: {}, NEW: { "latest": true } }));
    let with_os = client.get("/platforms?os=true").await.expect(200);
    assert_eq!(
        with_os,
        json!({
            OLD: { "latest": true, "os": "smartos" }, NEW: { "latest": true, "os": "linux" },
        })
    );
    let bad = client.get("/platforms?os=maybe").await;
    assert_eq!((bad.status.as_u16(), &bad.json["code"]), (409, &json!("InvalidParameters")));
    let bad = client.get("/platforms?name=x").await;
    assert_eq!((bad.status.as_u16(), &bad.json["code"]), (409, &json!("InvalidArgument")));

    let server = register(&client).await;
    let path = format!("/servers/{server}");
    let unknown = client.post(&path, &json!({ "boot_platform": "latest" })).await;
    assert_eq!(unknown.status, 409);
    assert_eq!(unknown.json["message"], "failed to find given platform image, latest");
    client.post(&path, &json!({ "boot_platform": OLD })).await.expect(204);
    let boot = client.get(&format!("/boot/{server}")).await.expect(200);
    assert_eq!(boot["platform"], OLD);
}

#[tokio::test]
async fn without_configured_platforms_there_is_the_one_of_the_host() {
    let coordinator = Coordinator::with_settings(&[]);
    let client = coordinator.client();
    let all = client.get("/platforms").await.expect(200);
    let own = all.as_object().and_then(|all| all.keys().next()).expect("one").clone();
    let default = client.get("/boot/default").await.expect(200);
    assert_eq!(default["platform"], own);
    assert_eq!(client.get("/servers/default").await.expect(200)["boot_platform"], own);
    client.put("/boot/default", &default).await.expect(204);
    let server = register(&client).await;
    let boot = client.get(&format!("/boot/{server}")).await.expect(200);
    assert_eq!(boot["platform"], own);
    client.put(&format!("/boot/{server}"), &boot).await.expect(204);
}

#[tokio::test]
async fn new_servers_inherit_the_default_as_it_is_then() {
    let mut coordinator = start();
    let client = coordinator.client();
    let default = client.get("/boot/default").await.expect(200);
    let expected = json!({
        "platform": NEW, "kernel_args": { "smt_enabled": true }, "kernel_flags": {},
        "boot_modules": [], "default_console": "serial", "serial": "ttyb",
    });
    assert_eq!(default, expected);
    let module = json!({ "path": "etc/x", "content": "aGVsbG8=" });
    let change = json!({
        "kernel_args": { "a": "b", "n": 1 }, "kernel_flags": { "-k": true }, "serial": null,
        "platform": OLD, "boot_modules": [module],
    });
    client.post("/boot/default", &change).await.expect(204);
    coordinator.kill9();
    coordinator.restart();

    let server = register(&client).await;
    client.put("/boot/default", &json!({})).await.expect(204);
    let boot = client.get(&format!("/boot/{server}")).await.expect(200);
    let expected = json!({
        "platform": OLD,
        "kernel_args": { "hostname": "cn1", "a": "b", "n": 1, "smt_enabled": true },
        "kernel_flags": { "-k": true }, "boot_modules": [], "default_console": "serial",
        "serial": "ttyb",
    });
    assert_eq!(boot, expected);
    let default = client.get("/boot/default").await.expect(200);
    let expected =
        json!({ "kernel_args": { "smt_enabled": true }, "kernel_flags": {}, "boot_modules": [] });
    assert_eq!(default, expected);
    let record = client.get("/servers/default").await.expect(200);
    assert_eq!((&record["uuid"], &record["score"]), (&json!("default"), &json!(0)));
}

#[tokio::test]
async fn put_replaces_post_merges_and_null_deletes() {
    let coordinator = start();
    let client = coordinator.client();
    let server = register(&client).await;
    let path = format!("/boot/{server}");
    let put = json!({ "boot_params": { "a": 1, "b": 2 }, "kernel_values": { "-d": "x" } });
    client.put(&path, &put).await.expect(204);
    let boot = client.get(&path).await.expect(200);
    assert_eq!(
        boot,
        json!({
            "platform": NEW, "kernel_args": { "hostname": "cn1", "a": 1, "b": 2 },
            "kernel_flags": { "-d": "x" }, "boot_modules": [],
        })
    );
    let post = json!({
        "params": { "a": null, "c": true }, "kernel_flags": { "-d": null }, "serial": "ttya",
        "default_console": null, "no such member": 1,
    });
    client.post(&path, &post).await.expect(204);
    let boot = client.get(&path).await.expect(200);
    assert_eq!(
        boot,
        json!({
            "platform": NEW, "kernel_args": { "hostname": "cn1", "b": 2, "c": true },
            "kernel_flags": {}, "boot_modules": [], "default_console": "", "serial": "ttya",
        })
    );
    client.get(&format!("/boot/{}", fresh_uuid())).await.expect(404);
    client.get("/boot/latest").await.expect(409);
}

#[tokio::test]
async fn many_modules_are_kept_beside_the_record() {
    let mut coordinator = start();
    let client = coordinator.client();
    let server = register(&client).await;
    let path = format!("/boot/{server}");
    let content = "A".repeat(5460);
    let modules: Vec<Value> = (0..1_000)
        .map(|n| json!({ "path": format!("m/{n}"), "content": content, "type": "base64" }))
        .collect();
    client.post(&path, &json!({ "boot_modules": modules })).await.expect(204);
    coordinator.kill9();
    coordinator.restart();
    let boot = client.get(&path).await.expect(200);
    assert_eq!(boot["boot_modules"], json!(modules));
    let whole = client.get(&format!("/servers/{server}")).await.expect(200);
    assert_eq!(whole["boot_modules"].as_array().map(Vec::len), Some(1_000));
    let list = client.get("/servers").await;
    assert!(list.text.len() < 10_000, "a list does not carry large modules");
    client.post(&path, &json!({ "serial": "ttya" })).await.expect(204);
    let boot = client.get(&path).await.expect(200);
    assert_eq!(boot["boot_modules"].as_array().map(Vec::len), Some(1_000));
    client.put(&path, &json!({})).await.expect(204);
    assert_eq!(client.get(&path).await.expect(200)["boot_modules"], json!([]));
    let blobs = std::fs::read_dir(coordinator.data_dir().join("blobs/boot").join(&server));
    assert_eq!(blobs.map(Iterator::count).unwrap_or(0), 0, "the blob is gone");
}

#[tokio::test]
async fn bad_input_names_the_field_and_changes_nothing() {
    let coordinator = start();
    let client = coordinator.client();
    let server = register(&client).await;
    for path in [format!("/boot/{server}"), "/boot/default".to_owned()] {
        let before = client.get(&path).await.expect(200);
        for (field, body) in [
            ("platform", json!({ "platform": 1 })),
            ("platform", json!({ "platform": " x" })),
            ("kernel_args", json!({ "kernel_args": [] })),
            ("kernel_flags", json!({ "kernel_flags": "-k" })),
            ("boot_modules", json!({ "boot_modules": {} })),
            ("serial", json!({ "serial": 5 })),
            ("default_console", json!({ "default_console": [] })),
            (
                "kernel_args",
                json!({ "kernel_args": { "a": "x".repeat(60_000), "b": "y".repeat(10_000) } }),
            ),
        ] {
            for answer in [client.put(&path, &body).await, client.post(&path, &body).await] {
                assert_eq!(answer.status, 409, "{field}: {}", answer.text);
                assert_eq!(answer.json["errors"][0]["field"], field, "{}", answer.text);
            }
        }
        for (message, body) in [
            ("Platform 'latest' does not exist", json!({ "platform": "latest" })),
            (
                "Values provided for boot_modules contain errors: \
                 Contents for module 'a' must be base64 encoded",
                json!({ "boot_modules": [{ "path": "a", "content": "?" }] }),
            ),
        ] {
            let answer = client.post(&path, &body).await;
            assert_eq!(answer.status, 409);
            assert_eq!(answer.json["code"], "InvalidArgument");
            assert_eq!(answer.json["message"], message);
        }
        let large = format!("{{\"kernel_args\":{{\"a\":\"{}\"}}}}", "x".repeat(9 << 20));
        let sent =
            client.send_bytes(reqwest::Method::PUT, &path, "application/json", large.into_bytes());
        sent.await.expect(413);
        assert_eq!(client.get(&path).await.expect(200), before);
    }
}

#[tokio::test]
async fn a_write_can_ask_for_a_version() {
    let coordinator = start();
    let client = coordinator.client();
    let server = register(&client).await;
    let http = reqwest::Client::new();
    for path in [format!("/boot/{server}"), "/boot/default".to_owned()] {
        let etag = client.get(&path).await.headers["etag"].clone();
        let write = async |args: Value| {
            let url = format!("{}{path}", client.base());
            let request = http.post(url).header("if-match", etag.clone());
            request.json(&json!({ "kernel_args": args })).send().await.expect("an answer").status()
        };
        assert_eq!(write(json!({ "first": true })).await, 204);
        assert_eq!(write(json!({ "second": true })).await, 412);
        let args = client.get(&path).await.expect(200)["kernel_args"].clone();
        assert_eq!((&args["first"], &args["second"]), (&json!(true), &Value::Null));
    }
}
