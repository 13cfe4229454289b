//! The local HTTP over a real socket: the reference's errors, and who may do what.

use std::sync::Arc;

use muster_shared::config::ListenAddress;
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::kv::MemKv;
use muster_shared::link::memory::listener;
use muster_shared::threads::SameRuntime;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Listeners, Local, make_token};
use crate::tasks::HANDLERS;
use crate::tasks::machine_tests::Host;
use crate::tasks::registry::Registry;
use crate::{Agent, AgentConfig, AgentParts};

struct Served {
    address: std::net::SocketAddr,
    token: String,
    folder: tempfile::TempDir,
    stop: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve() -> Served {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let entropy: SharedEntropy = Arc::new(SeededEntropy::new(1));
    let parts = AgentParts {
        clock: host.clock.clone(),
        entropy: entropy.clone(),
        threads: Arc::new(SameRuntime),
        kv: Arc::new(MemKv::default()),
        dialer: Arc::new(listener().0),
        feed: drivers.report.clone(),
        drivers,
        registry: Registry::new(HANDLERS),
        faults: None,
    };
    let config = AgentConfig {
        server_uuid: Uuid::nil().into(),
        boot_id: "boot-1".to_owned(),
        instance_id: Uuid::nil(),
        coordinators: Vec::new(),
        task_ceiling: crate::TASK_CEILING,
        image_gc: None,
    };
    let agent = Arc::new(Agent::start(config, parts).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let listen: ListenAddress = "127.0.0.1:0".parse().unwrap();
    let listeners = Listeners::bind(&listen, &folder.path().join("agent.sock")).await.unwrap();
    let address = listeners.address().unwrap();
    let token = make_token(&folder.path().join("local.token"), &entropy).unwrap();
    let local = Arc::new(Local::new(agent, host.clock.clone(), token.clone()));
    let stop = CancellationToken::new();
    tokio::spawn(listeners.serve(local, stop.clone()));
    Served { address, token, folder, stop }
}

/// Sends one request; returns the status and the body as JSON (null if it is none).
async fn ask(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\
         {headers}\r\n{body}"
    );
    io.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("server: Compute Node Agent"), "{answer}");
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, serde_json::from_str(body).unwrap_or_default())
}

impl Served {
    async fn tcp(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        ask(TcpStream::connect(self.address).await.unwrap(), request, headers, body).await
    }

    async fn root(&self, request: &str, headers: &str, body: &str) -> (u16, Value) {
        let socket = self.folder.path().join("agent.sock");
        ask(UnixStream::connect(socket).await.unwrap(), request, headers, body).await
    }
}

#[tokio::test]
async fn whoever_takes_the_places_of_tcp_keeps_nobody_off_the_unix_socket() {
    let served = serve().await;
    let mut waiting = Vec::new();
    for _ in 0..super::TCP_CONNECTIONS {
        waiting.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut another = TcpStream::connect(served.address).await.unwrap();
    let mut nothing = Vec::new();
    // An error is a reset, which refuses as well.
    drop(another.read_to_end(&mut nothing).await);
    assert!(nothing.is_empty());
    let socket = UnixStream::connect(served.folder.path().join("agent.sock")).await.unwrap();
    let (status, _) = ask(socket, "GET /ping", "", "").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn tasks_are_refused_as_the_reference_refuses_them() {
    let served = serve().await;
    let other = format!("x-server-uuid: {}\r\n", Uuid::max());
    for (headers, body, status, code, message) in [
        ("", r#"{"params":{}}"#, 409, "InvalidArgument", "Missing key 'task'"),
        ("", r#"{"task":5,"params":{}}"#, 409, "InvalidArgument", "'task' must be a string"),
        ("", r#"{"task":"nop","params":[]}"#, 409, "InvalidArgument", "'params' must be an object"),
        ("", r#"{"task":"nop"}"#, 409, "InvalidArgument", "Missing key 'params'"),
        ("", r#"{"task":"x","params":{}}"#, 404, "ResourceNotFound", "Unknown task, 'x'"),
        (other.as_str(), r#"{"task":"nop","params":{}}"#, 500, "InternalError", ""),
        ("", "{", 400, "InvalidContent", ""),
    ] {
        let (got, answer) = served.root("POST /tasks", headers, body).await;
        assert_eq!((got, answer["code"].as_str()), (status, Some(code)), "{body}");
        assert!(answer["message"].as_str().unwrap().contains(message), "{answer}");
    }
    let mut io = TcpStream::connect(served.address).await.unwrap();
    let token = &served.token;
    let head = format!(
        "POST /tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    io.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    io.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn tasks_run_to_their_end_or_beside() {
    let served = serve().await;
    let done = served.root("POST /tasks?task=nop", "", r#"{"params":{}}"#).await;
    assert_eq!(done, (200, json!({})));
    let body = r#"{"task":"nop","params":{"error":"why"}}"#;
    let (status, answer) = served.root("POST /tasks", "", body).await;
    assert_eq!((status, &answer["error"]), (500, &json!("why")));
    assert_eq!(answer["details"]["restCode"], "NopFailed");
    let body = r#"{"task":"nop","params":{"sleep":600}}"#;
    let (status, answer) = served.root("POST /tasks?async=true", "", body).await;
    assert_eq!(status, 202);
    let id = answer["id"].as_str().unwrap();
    assert_eq!(served.tcp(&format!("GET /tasks/{id}/wait?timeout=0"), "", "").await.0, 504);
    assert_eq!(served.root(&format!("POST /tasks/{id}/cancel"), "", "").await.0, 202);
    let (status, record) = served.tcp(&format!("GET /tasks/{id}/wait"), "", "").await;
    assert_eq!((status, &record["state"]), (200, &json!("cancelled")));
    assert_eq!(served.tcp("GET /tasks/none", "", "").await.0, 404);
    let (_, history) = served.tcp("GET /history", "", "").await;
    assert_eq!(history.as_array().unwrap().len(), 3);
    let (_, list) = served.tcp("GET /tasks?status=failed", "", "").await;
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!(served.tcp("GET /tasks?status=weird", "", "").await.0, 409);
    assert_eq!(served.tcp("GET /tasks?status=active", "", "").await, (200, json!([])));
    let mut io = TcpStream::connect(served.address).await.unwrap();
    let request = format!("GET /tasks/{id}/log HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    let log = answer.split_once("\r\n\r\n").unwrap().1;
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["name"], "start");
    assert_eq!(served.tcp("GET /tasks/none/log", "", "").await.0, 404);
}

#[tokio::test]
async fn looking_is_free_and_changing_needs_the_token_or_the_user() {
    let served = serve().await;
    for path in
        ["ping", "history", "status", "tasks", "queues", "vms", "sysinfo", "metrics", "logs"]
    {
        assert_eq!(served.tcp(&format!("GET /{path}"), "", "").await.0, 200, "{path}");
    }
    let (status, bad) = served.tcp("GET /logs?level=loud", "", "").await;
    assert_eq!((status, &bad["code"]), (409, &json!("InvalidArgument")));
    let (_, status) = served.tcp("GET /status", "", "").await;
    assert_eq!(status["muster"]["active_tasks"], 0, "{status}");
    assert_eq!(served.tcp("GET /nonsense", "", "").await.0, 404);
    assert_eq!(served.root("DELETE /tasks", "", "").await.0, 405);
    assert_eq!(served.tcp("POST /pause", "", "").await.0, 403);
    assert_eq!(served.tcp("POST /pause", "authorization: Bearer no\r\n", "").await.0, 403);
    let token = format!("authorization: Bearer {}\r\n", served.token);
    assert_eq!(served.tcp("POST /pause", &token, "").await.0, 204);
    let body = format!(r#"{{"task":"machine_destroy","params":{{"uuid":"{}"}}}}"#, Uuid::max());
    let (status, answer) = served.root("POST /tasks", "", &body).await;
    assert_eq!((status, &answer["code"]), (503, &json!("ServiceUnavailable")));
    assert_eq!(served.tcp("GET /ping", "", "").await.1["draining"], true);
    assert_eq!(served.root("POST /tasks", "", r#"{"task":"nop","params":{}}"#).await.0, 200);
    assert_eq!(served.root("POST /resume", "", "").await.0, 204);
}
