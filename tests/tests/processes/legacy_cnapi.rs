//! A Muster agent under a CNAPI that knows no websockets: it takes reports by POST and calls its
//! agents back. Written from what is known of its wire, not from its code.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use muster_tests::daemon::{Agent, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A TCG guest on two busy cores.
const LONG: Duration = Duration::from_secs(120);

/// What was POSTed: the path below the server's, and the body.
type Posts = Arc<Mutex<Vec<(String, Value)>>>;

/// The other side: takes everything, and remembers it.
struct Cnapi {
    address: SocketAddr,
    posts: Posts,
}

impl Cnapi {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let posts = Posts::default();
        let seen = Arc::clone(&posts);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&seen);
                let service = service_fn(move |request| take(request, Arc::clone(&seen)));
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, posts }
    }

    /// The last body that was POSTed there and that is wanted.
    async fn posted(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("a POST to …{path}"), LONG, || async {
            let posts = self.posts.lock();
            let found = posts.iter().rev().find(|(to, body)| to == path && wanted(body));
            found.map(|(_, body)| body.clone()).ok_or_else(|| format!("{:?}", posts.last()))
        })
        .await
    }

    fn paths(&self) -> Vec<String> {
        self.posts.lock().iter().map(|(path, _)| path.clone()).collect()
    }
}

async fn take(
    request: Request<Incoming>,
    seen: Posts,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_owned();
    // /servers/UUID/…
    let below: String = path.split('/').skip(3).map(|part| format!("/{part}")).collect();
    let body = request.into_body().collect().await?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    seen.lock().push((below.clone(), body));
    let status = if below == "/sysinfo" { 200 } else { 204 };
    Ok(Response::builder().status(status).body(Full::default()).expect("a plain answer"))
}

async fn agent_of(cnapi: &Cnapi) -> (Agent, Client) {
    let url = format!("legacy.cnapi_url=http://{}", cnapi.address);
    let settings =
        [url.as_str(), "legacy.listen=127.0.0.1:0", r#"legacy.networks=["127.0.0.0/8"]"#];
    let agent = Agent::with(&[], &settings, &[]);
    let sysinfo = cnapi.posted("/sysinfo", |_| true).await;
    assert_eq!(sysinfo["sysinfo"]["UUID"], json!(agent.server_uuid));
    let port = &sysinfo["sysinfo"]["CN Agent Port"];
    (agent, Client::new(format!("http://127.0.0.1:{port}")))
}

fn task(task: &str, params: &Value) -> Value {
    json!({ "task": task, "params": params })
}

#[tokio::test]
async fn an_agent_reports_by_post() {
    let cnapi = Cnapi::start().await;
    let (agent, called) = agent_of(&cnapi).await;
    cnapi.posted("/events/heartbeat", |body| *body == json!({})).await;
    let status = cnapi.posted("/events/status", |_| true).await;
    let registered = cnapi.paths();
    assert_eq!(registered[..2], ["/sysinfo", ""], "who it is comes first: {registered:?}");
    let agents = cnapi.posted("", |_| true).await;
    let cn_agent = agents["agents"].as_array().unwrap().iter().find(|a| a["name"] == "cn-agent");
    assert!(cn_agent.is_some(), "{agents:#}");
    assert!(status["meminfo"]["total_bytes"].is_u64(), "{status:#}");
    assert!(status["diskinfo"]["pool_size_bytes"].is_u64(), "{status:#}");
    assert_eq!(status["vms"], json!({}));

    // A VM that is made is in the next update, with CNAPI's members and no others.
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "ram": 64, "vcpus": 1, "cpu_cap": 100, "autoboot": false,
        "owner_uuid": fresh_uuid(), "disks": [{ "size": 10 }],
    });
    let made = called.post("/tasks", &task("machine_create", &payload)).await.expect(200);
    assert_eq!(made["vm"]["uuid"], json!(vm));
    let status = cnapi.posted("/events/status", |body| body["vms"].get(&vm).is_some()).await;
    let mut members: Vec<_> = status["vms"][&vm].as_object().unwrap().keys().cloned().collect();
    members.sort();
    let expected = [
        "brand",
        "cpu_cap",
        "last_modified",
        "max_physical_memory",
        "owner_uuid",
        "quota",
        "state",
        "uuid",
        "zone_state",
    ];
    assert_eq!(members, expected);
    drop(agent);
}

#[tokio::test]
async fn an_agent_is_called_for_its_tasks() {
    let cnapi = Cnapi::start().await;
    let (agent, called) = agent_of(&cnapi).await;
    assert_eq!(called.post("/tasks", &task("nop", &json!({}))).await.expect(200), json!({}));
    let failed = called.post("/tasks", &task("nop", &json!({ "error": "boom" }))).await;
    assert_eq!((failed.status.as_u16(), &failed.json["error"]), (500, &json!("boom")));
    let unknown = called.post("/tasks", &task("nope", &json!({}))).await.expect(404);
    let text = "Unknown task, 'nope'";
    assert_eq!(unknown, json!({ "code": "ResourceNotFound", "message": text }));
    let missing = called.post("/tasks", &json!({ "params": {} })).await.expect(409);
    assert_eq!(missing["message"], "Missing key 'task'");

    called.post("/pause", &json!({})).await.expect(204);
    let boot = task("machine_boot", &json!({ "uuid": fresh_uuid() }));
    let refused = called.post("/tasks", &boot).await.expect(503);
    assert_eq!(refused["message"], "CN Agent is not accepting tasks for maintenance");
    called.post("/resume", &json!({})).await.expect(204);

    // A caller that goes away leaves its task to the journal.
    let hasty = reqwest::Client::builder().timeout(Duration::from_millis(300)).build().unwrap();
    let url = format!("{}/tasks", called.base());
    let left = hasty.post(url).json(&task("nop", &json!({ "sleep": 1 }))).send().await;
    assert!(left.unwrap_err().is_timeout());
    let ended = wait_for("the task ends", LONG, || async {
        let history = called.get("/history").await.expect(200);
        let last = history.as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
        let ended = last["params"]["sleep"] == 1 && last["status"] == "finished";
        if ended { Ok(last) } else { Err(history.to_string()) }
    })
    .await;
    assert_eq!((&ended["task"], &ended["errorCount"]), (&json!("nop"), &json!(0)));

    // Nothing but the original's routes is open to other machines.
    for path in ["/tasks", "/sysinfo", "/vms", "/metrics", "/queues"] {
        assert_eq!(called.get(path).await.status, 404, "{path}");
    }
    assert_eq!(called.get("/ping").await.status, 200);
    drop(agent);
}

#[tokio::test]
async fn nobody_else_is_served() {
    let cnapi = Cnapi::start().await;
    let url = format!("legacy.cnapi_url=http://{}", cnapi.address);
    let settings =
        [url.as_str(), "legacy.listen=127.0.0.1:0", r#"legacy.networks=["192.0.2.0/24"]"#];
    let agent = Agent::with(&[], &settings, &[]);
    let sysinfo = cnapi.posted("/sysinfo", |_| true).await;
    let called = format!("http://127.0.0.1:{}", sysinfo["sysinfo"]["CN Agent Port"]);
    Client::new(called).try_send(Method::GET, "/history", None).await.unwrap_err();
    drop(agent);
}
