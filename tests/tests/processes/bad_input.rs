//! Bad input gets a 4xx in CNAPI's form, names the field and changes nothing.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::{Answer, Client};
use reqwest::Method;
use serde_json::{Value, json};

#[track_caller]
fn check(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
    assert_eq!(answer.json["code"], code, "{}", answer.text);
    assert!(answer.json["message"].as_str().is_some_and(|m| !m.is_empty()), "{}", answer.text);
}

#[track_caller]
fn check_field(answer: &Answer, field: &str) {
    check(answer, 409, "InvalidParameters");
    let errors = answer.json["errors"].as_array().cloned().unwrap_or_default();
    assert!(errors.iter().any(|e| e["field"] == field), "{field} is not named: {}", answer.text);
}

async fn snapshot(client: &Client) -> (Value, Value, Value) {
    let get = |path: &'static str| async move { client.get(path).await.expect(200) };
    (get("/servers?extras=all").await, get("/vms").await, get("/tasks").await)
}

#[tokio::test]
async fn nothing_bad_is_accepted() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let server = agent.server_uuid.clone();
    let (servers, vms, tasks) = snapshot(&client).await;

    let raw = |path: String, body: &'static [u8]| {
        let client = &client;
        async move { client.send_bytes(Method::POST, &path, "application/json", body.to_vec()).await }
    };
    check(&raw("/vms".into(), b"{").await, 400, "InvalidContent");
    check(&raw("/vms".into(), b"[1]").await, 400, "InvalidContent");
    check(&raw("/vms".into(), b"\"text\"").await, 400, "InvalidContent");
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(80), "]".repeat(80)).into_bytes();
    let answer = client.send_bytes(Method::POST, "/vms", "application/json", deep).await;
    assert!(answer.status.is_client_error(), "{}", answer.text);
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(2 * 1024 * 1024)).into_bytes();
    let answer = client.send_bytes(Method::POST, "/vms", "application/json", large).await;
    assert_eq!(answer.status, 413, "{}", answer.text);

    check_field(&client.post("/vms", &json!({})).await, "image_uuid");
    let bad_ram = json!({ "image_uuid": fresh_uuid(), "ram": "much" });
    check_field(&client.post("/vms", &bad_ram).await, "ram");
    let bad_uuid = json!({ "image_uuid": fresh_uuid(), "ram": 128, "uuid": "x" });
    check_field(&client.post("/vms", &bad_uuid).await, "uuid");

    let nobody = fresh_uuid();
    let unknown = client.get(&format!("/servers/{nobody}")).await;
    check(&unknown, 404, "ResourceNotFound");
    check(&client.get("/servers/not-a-uuid").await, 409, "InvalidArgument");
    let unknown_vm = client.get(&format!("/servers/{server}/vms/{nobody}")).await;
    check(&unknown_vm, 404, "ResourceNotFound");
    check(&client.get(&format!("/vms/{nobody}")).await, 404, "ResourceNotFound");
    check(&client.get(&format!("/tasks/{nobody}")).await, 404, "ResourceNotFound");
    check(&client.get("/no/such/path").await, 404, "ResourceNotFound");
    check(&client.get("/ping/").await, 404, "ResourceNotFound");
    check(&client.delete("/ping").await, 405, "MethodNotAllowedError");
    check(&client.get("/servers?nonsense=1").await, 409, "InvalidArgument");
    check(&client.get("/servers?limit=0").await, 400, "InvalidParameters");
    let update = client.post(&format!("/servers/{server}"), &json!({ "hostname": "x" })).await;
    check(&update, 409, "InvalidArgument");
    let ratio = json!({ "reservation_ratio": "lots" });
    check_field(&client.post(&format!("/servers/{server}"), &ratio).await, "reservation_ratio");
    let wrong = json!({ "sysinfo": { "UUID": nobody } });
    check(
        &client.post(&format!("/servers/{server}/sysinfo"), &wrong).await,
        409,
        "InvalidArgument",
    );
    check_field(&client.post(&format!("/servers/{server}/vms"), &json!({})).await, "uuid");

    let (servers_after, vms_after, tasks_after) = snapshot(&client).await;
    let strip = |all: Value| -> Vec<(Value, Value)> {
        let all = all.as_array().cloned().unwrap_or_default();
        all.iter().map(|s| (s["uuid"].clone(), s["reservation_ratio"].clone())).collect()
    };
    assert_eq!(strip(servers), strip(servers_after));
    assert_eq!(vms, vms_after);
    assert_eq!(tasks, tasks_after);
}

#[tokio::test]
async fn headers_are_as_cnapi_sends_them() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    for path in ["/ping", "/no-such-path"] {
        let answer = client.get(path).await;
        for header in ["date", "server", "x-request-id", "x-response-time", "x-server-name"] {
            assert!(answer.headers.contains_key(header), "{path} has no {header}");
        }
    }
    let ping = client.get("/ping").await.expect(200);
    assert_eq!(ping["ready"], true, "{ping}");
    let wrong = client.delete("/ping").await;
    assert_eq!(wrong.headers["allow"], "GET");
}
