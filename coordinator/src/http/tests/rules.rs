//! How requests are read and refused.

use proptest::prelude::prop_assert;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Answer, Api, MISSING, RUNNING, STOPPED};

const HEADERS: [&str; 5] = ["date", "server", "x-request-id", "x-response-time", "x-server-name"];

#[track_caller]
fn check_headers(answer: &Answer) {
    for name in HEADERS {
        assert!(answer.headers.contains_key(name), "no {name} in {answer:?}");
    }
    assert_eq!(answer.headers["server"], "Compute Node API");
    assert!(answer.headers["x-response-time"].parse::<u64>().is_ok());
    assert!(answer.headers["date"].ends_with(" GMT"), "{}", answer.headers["date"]);
}

#[tokio::test]
async fn paths_match_exactly_and_all_answers_carry_the_headers() {
    let api = Api::start().await;
    let ping = api.send("GET /ping", b"").await;
    assert_eq!(ping.status, 200);
    assert_eq!(ping.headers["content-type"], "application/json");
    check_headers(&ping);
    assert_eq!(api.send("GET //ping", b"").await.status, 200);
    for path in ["/ping/", "/Ping", "/", "/pin", "/ping/x", "/t", "/%ff", "/t/echo/"] {
        let answer = api.send(&format!("GET {path}"), b"").await;
        answer.expect(404, "ResourceNotFound");
        assert_eq!(answer.value()["message"], format!("{path} does not exist"));
        check_headers(&answer);
    }
    let wrong = api.send("DELETE /ping", b"").await;
    wrong.expect(405, "MethodNotAllowedError");
    assert_eq!(wrong.value()["message"], "DELETE is not allowed");
    assert_eq!(wrong.headers["allow"], "GET");
    check_headers(&wrong);
    let several = api.send("OPTIONS /t/echo", b"").await;
    several.expect(405, "MethodNotAllowedError");
    assert_eq!(several.headers["allow"], "POST, GET, DELETE");
    let nics = format!("POST /t/servers/{MISSING}/vms/nics/update");
    assert_eq!(api.send(&nics, b"").await.status, 200);
}

#[tokio::test]
async fn head_is_get_without_a_body_except_on_aliases_with_effects() {
    let api = Api::start().await;
    let get = api.send("GET /ping", b"").await;
    let head = api.send("HEAD /ping", b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.headers["content-length"], get.headers["content-length"]);
    assert_eq!(head.headers["content-type"], "application/json");
    let pause = format!("/t/servers/{RUNNING}/pause");
    assert_eq!(api.send(&format!("GET {pause}"), b"").await.status, 200);
    let head = api.send(&format!("HEAD {pause}"), b"").await;
    assert_eq!(head.status, 405);
    assert_eq!(head.headers["allow"], "GET, POST");
}

#[tokio::test]
async fn no_page_changes_anything_with_a_get() {
    let api = Api::start().await;
    let pause = format!("/t/servers/{RUNNING}/pause");
    for browser in ["user-agent: Mozilla/5.0", "sec-fetch-dest: image", "referer: http://x/"] {
        let answer = api.send(&format!("GET {pause}|{browser}"), b"").await;
        answer.expect(403, "NotAuthorized");
        let with_id = api.send(&format!("GET {pause}|{browser}|x-request-id: a"), b"").await;
        assert_eq!(with_id.status, 200, "{browser}");
        assert_eq!(api.send(&format!("POST {pause}|{browser}"), b"").await.status, 200);
        assert_eq!(api.send(&format!("GET /ping|{browser}"), b"").await.status, 200);
    }
}

#[tokio::test]
async fn only_http_1_0_needs_no_host() {
    let api = Api::start().await;
    let without = b"GET /ping HTTP/1.1\r\nconnection: close\r\n\r\n";
    api.raw(without).await.expect(400, "InvalidHeader");
    assert_eq!(api.raw(b"GET /ping HTTP/1.0\r\n\r\n").await.status, 200);
    let empty = b"GET /ping HTTP/1.1\r\nhost:\r\nconnection: close\r\n\r\n";
    assert_eq!(api.raw(empty).await.status, 421);
}

#[tokio::test]
async fn request_ids_are_echoed_verbatim() {
    let api = Api::start().await;
    for name in ["x-request-id", "request-id"] {
        let answer = api.send(&format!("GET /t/echo|{name}: not a uuid"), b"").await;
        assert_eq!(answer.headers["x-request-id"], "not a uuid");
        assert_eq!(answer.value()["req_id"], "not a uuid");
    }
    let minted = api.send("GET /ping", b"").await.headers["x-request-id"].clone();
    assert!(minted.parse::<uuid::Uuid>().is_ok(), "{minted}");
    let ignored = "GET /ping|authorization: Basic YTpi|accept-version: ~9|content-md5: x";
    assert_eq!(api.send(ignored, b"").await.status, 200);
}

#[tokio::test]
async fn accept_is_negotiated() {
    let api = Api::start().await;
    for accept in ["*/*", "application/json", "application/octet-stream", "application/javascript"]
    {
        let answer = api.send(&format!("GET /ping|accept: {accept}"), b"").await;
        assert_eq!(answer.status, 200, "{accept}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    let text = api.send("GET /ping|accept: text/plain", b"").await;
    assert_eq!(text.headers["content-type"], "text/plain");
    assert_eq!(text.value()["ready"], true);
    let bare = api.json("POST /t/echo|accept: text/plain", "{").await;
    assert_eq!(bare.status, 400);
    assert!(bare.text().starts_with("Invalid JSON: "), "{}", bare.text());
    let refused = api.send("GET /ping|accept: text/html", b"").await;
    refused.expect(406, "NotAcceptableError");
    assert_eq!(
        refused.value()["message"],
        "Server accepts: application/json,text/plain,application/octet-stream,application/javascript"
    );
    check_headers(&refused);
    assert_eq!(api.send("GET /metrics|accept: text/html", b"").await.status, 200);
}

#[tokio::test]
async fn parameters_are_merged_path_first() {
    let api = Api::start().await;
    let strict = api.json("POST /t/strict/7?n=1&name=", r#"{"n":2,"name":"b","id":"x"}"#).await;
    assert_eq!(strict.params(), json!({"id": "7", "n": "1", "name": "b"}));
    let form = "POST /t/echo|content-type: application/x-www-form-urlencoded; charset=utf-8";
    assert_eq!(
        api.send(form, b"a=1&b[c]=d+e").await.params(),
        json!({"a": "1", "b": {"c": "d e"}})
    );
    let other = "POST /t/echo?a=1|content-type: text/csv";
    assert_eq!(api.send(other, b"a,b").await.params(), json!({"a": "1"}));
    assert_eq!(api.json("DELETE /t/echo", r#"{"a":1}"#).await.params(), json!({"a": 1}));
    assert_eq!(api.json("GET /t/echo?a=1", r#"{"b":1}"#).await.params(), json!({"a": "1"}));
    let twice = api.send("GET /t/echo?a=1&a=2&b[c]=d", b"").await;
    assert_eq!(twice.params(), json!({"a": ["1", "2"], "b": {"c": "d"}}));
    assert_eq!(api.json("POST /t/echo", r#"{"a":1,"a":2}"#).await.params(), json!({"a": 2}));
    assert_eq!(api.json("POST /t/echo", "").await.params(), json!({}));
    let flag = api.send("GET /t/echo?flag=TRUE", b"").await;
    assert_eq!(flag.params(), json!({"flag": true}));
    let decoded = api.send("POST /t/strict/zones%2Fx%20y", b"").await;
    assert_eq!(decoded.params(), json!({"id": "zones/x y"}));
}

#[tokio::test]
async fn bad_bodies_are_refused() {
    let api = Api::start().await;
    for body in ["{", "[1]", "\"text\"", "3", "{\"a\":1}}"] {
        api.json("POST /t/echo", body).await.expect(400, "InvalidContent");
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(80), "]".repeat(80));
    api.json("POST /t/echo", &deep).await.expect(400, "InvalidContent");
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(70_000));
    api.json("POST /t/echo", &long).await.expect(400, "InvalidContent");
    let script = format!("{{\"script\":\"{}\"}}", "x".repeat(70_000));
    assert_eq!(api.json("POST /t/echo", &script).await.status, 200);
}

#[tokio::test]
async fn large_bodies_are_refused_with_or_without_a_length() {
    let api = Api::start().await;
    let large = format!("{{\"script\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    api.json("POST /t/echo", &large).await.expect(413, "RequestEntityTooLarge");
    let head = "POST /t/echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let json = "content-type: application/json\r\n";
    let mut chunked = format!("{head}{json}transfer-encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..32 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&vec![b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    api.raw(&chunked).await.expect(413, "RequestEntityTooLarge");
    // A client that asks first is answered without having sent anything.
    let asks = format!("{head}{json}expect: 100-continue\r\ncontent-length: 9999999\r\n\r\n");
    api.raw(asks.as_bytes()).await.expect(413, "RequestEntityTooLarge");
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let api = Api::start().await;
    let body = format!("{{\"script\":\"{}\"}}", "x".repeat(100_000));
    let head = format!(
        "POST /t/echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-md5: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(&api.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    // The sum is wrong, and ignored.
    assert_eq!(Answer::parse(&answer).status, 200);
}

#[tokio::test]
async fn preconditions_come_in_their_order() {
    let api = Api::start().await;
    let vm = "44444444-4444-4444-8444-444444444444";
    let path = |server: &str, vm: &str| format!("POST /t/servers/{server}/vms/{vm}/update?x=1");
    let message = |answer: Answer| answer.value()["message"].as_str().unwrap().to_owned();
    let bad = api.send(&path("nonsense", "nonsense"), b"").await;
    bad.expect(409, "InvalidArgument");
    assert_eq!(message(bad), "Invalid server_uuid");
    let default = api.send(&path("default", vm), b"").await;
    assert_eq!(message(default), "Invalid server_uuid");
    let missing = api.send(&path(MISSING, "nonsense"), b"").await;
    missing.expect(404, "ResourceNotFound");
    assert_eq!(message(missing), format!("Server {MISSING} not found"));
    let bad_vm = api.send(&path(STOPPED, "nonsense"), b"").await;
    bad_vm.expect(409, "InvalidArgument");
    assert_eq!(message(bad_vm), "Invalid vm_uuid");
    let stopped = api.send(&path(STOPPED, vm), b"").await;
    stopped.expect(409, "ServerNotRunning");
    assert_eq!(message(stopped), "Operation attempted on server which is not running");
    let strange = api.send(&path(RUNNING, vm), b"").await;
    strange.expect(409, "InvalidArgument");
    assert_eq!(message(strange), "x is not an explicitly defined parameter");
    let upper = RUNNING.to_ascii_uppercase();
    let fine = format!("POST /t/servers/{upper}/vms/{vm}/update");
    assert_eq!(api.send(&fine, b"").await.status, 200);
    assert_eq!(api.send("GET /t/servers/default", b"").await.status, 200);
    assert_eq!(api.send(&format!("POST /t/shaped/{MISSING}"), b"").await.status, 200);
    api.send("POST /t/shaped/default", b"").await.expect(409, "InvalidArgument");
}

#[tokio::test]
async fn validation_answers_409_or_the_reference_s_500() {
    let by_default = Api::start().await;
    let reference = Api::with(|config| config.api.validation_status = 500).await;
    for (api, status) in [(by_default, 409), (reference, 500)] {
        let answer = api.json("POST /t/echo?n=5&n=6", r#"{"name":" x"}"#).await;
        answer.expect(status, "InvalidParameters");
        assert_eq!(
            answer.text(),
            concat!(
                r#"{"code":"InvalidParameters","message":"Request parameters failed validation","#,
                r#""errors":[{"field":"n","code":"Invalid","message":"Invalid value for param 'n'"},"#,
                r#"{"field":"name","code":"Invalid","#,
                r#""message":"value contains leading or trailing whitespace"}]}"#
            )
        );
        let bad = api.send("POST /t/shaped/x", b"").await;
        bad.expect(409, "InvalidArgument");
    }
}

#[tokio::test]
async fn empty_answers_have_no_content_type() {
    let api = Api::start().await;
    let nothing = api.send("POST /t/nothing", b"").await;
    assert_eq!(nothing.status, 204);
    assert!(!nothing.headers.contains_key("content-type"), "{nothing:?}");
    assert!(!nothing.headers.contains_key("content-length"), "{nothing:?}");
    let empty = api.send("POST /t/empty", b"").await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    assert!(!empty.headers.contains_key("content-type"), "{empty:?}");
}

#[tokio::test]
async fn a_defect_in_a_handler_is_a_500_and_harms_no_other() {
    let api = Api::start().await;
    let answer = api.send("GET /t/defect", b"").await;
    answer.expect(500, "InternalError");
    check_headers(&answer);
    assert_eq!(api.send("GET /ping", b"").await.status, 200);
}

#[test]
fn whatever_arrives_is_refused_by_a_4xx() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let api = runtime.block_on(Api::start());
    let mut runner = TestRunner::new(Config::with_cases(200));
    let paths = "(/|/t/|/images/|/t/echo|/t/servers/)[ -~]{0,20}";
    let kinds = "application/(json|x-www-form-urlencoded)|multipart/form-data|[ -~]{0,10}";
    let requests =
        ("GET|POST|PUT|DELETE|HEAD|PATCH|G T", paths, kinds, "\\PC{0,40}", "[ -~]{0,20}");
    let outcome = runner.run(&requests, |(method, path, kind, body, accept)| {
        let path = path.replace(['|', ' '], "");
        let (kind, accept) = (kind.replace('|', ""), accept.replace('|', ""));
        let head = format!("{method} {path}|content-type: {kind}|accept: {accept}");
        let answer = runtime.block_on(api.send(&head, body.as_bytes()));
        prop_assert!(answer.status < 500 || path.starts_with("/t/defect"), "{answer:?}");
        Ok(())
    });
    outcome.unwrap();
}

#[tokio::test]
async fn info_diagnostics_and_openapi_answer() {
    let api = Api::start().await;
    assert!(api.send("GET /info", b"").await.value()["version"].is_string());
    assert_eq!(api.send("GET /loglevel", b"").await.value(), json!({"level": 30}));
    let bad = api.json("POST /loglevel", r#"{"level":"loud"}"#).await;
    bad.expect(409, "InvalidParameters");
    let first = api.send("GET /diagnostics", b"").await.value();
    let second = api.send("GET /diagnostics", b"").await.value();
    assert_eq!(first["start_timestamp"], second["start_timestamp"]);
    assert!(first["memory"]["rss"].as_u64().unwrap() > 0);
    let document = api.send("GET /openapi.json", b"").await.value();
    assert_eq!(document["paths"]["/ping"]["get"]["operationId"], "Ping");
}

#[tokio::test]
async fn requests_are_counted_by_operation() {
    let api = Api::with(|config| {
        config.metrics.listen = Some("127.0.0.1:0".parse().unwrap());
    })
    .await;
    api.send("GET /t/echo|user-agent: restify/1.4 (x64-linux)", b"").await;
    api.send("GET /nowhere|user-agent: restify/1.4 (x64-linux)", b"").await;
    let text = api.send("GET /metrics", b"").await.text();
    for part in [
        r#"route="techoget",method="GET",user_agent="restify/1.4",status_code="200",buckets_version="1""#,
        r#"route="unknown",method="GET",user_agent="restify/1.4",status_code="404""#,
        "# TYPE http_requests_completed counter",
        "http_request_duration_seconds_bucket",
        "process_resident_memory_bytes{datacenter=",
        "heartbeating_servers_count",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let separate = Api { address: api.server.metrics_address.clone().unwrap().to_string(), ..api };
    assert!(separate.send("GET /metrics", b"").await.text().contains("http_requests_completed"));
    assert_eq!(separate.send("GET /ping", b"").await.status, 404);
}
