//! An agent that behaves as cn-agent 2.15 does: it POSTs its signs of life, and is called back by
//! HTTP. Written from what is known of its wire, not from its code.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use muster_tests::daemon::{Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

const PAUSED: &str = "CN Agent is not accepting tasks for maintenance";
/// Errors that the agent takes for orders of the test.
const HANG_UP: &str = "hang up";
const HANG: &str = "hang";
const HOLD: &str = "hold";
const REDIRECT: &str = "redirect";

#[derive(Default)]
struct State {
    paused: bool,
    history: Vec<Value>,
    vms: serde_json::Map<String, Value>,
    /// Of each `POST /tasks`: `x-server-uuid` and `x-request-id`.
    callers: Vec<(String, String)>,
}

/// Requests that the coordinator has open to one agent at most.
const MAX_OPEN: usize = 32;

/// The agent of one server.
struct OldAgent {
    uuid: String,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// Whether the held tasks may end.
    released: watch::Sender<bool>,
}

impl OldAgent {
    /// Serves, registers, and gives signs of life for as long as the test runs.
    async fn start(client: &Client) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let agent = Arc::new(Self {
            uuid: fresh_uuid(),
            address: listener.local_addr().expect("bound"),
            state: Arc::default(),
            changed: Arc::default(),
            released: watch::Sender::new(false),
        });
        let serving = Arc::clone(&agent);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let agent = Arc::clone(&serving);
                let service = service_fn(move |request| Arc::clone(&agent).answer(request));
                let http = hyper::server::conn::http1::Builder::new();
                // A connection that ends badly is the caller's to notice.
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        agent.register(client).await;
        tokio::spawn(Arc::clone(&agent).live(Client::new(client.base())));
        agent.wait_running(client).await;
        agent
    }

    fn path(&self, rest: &str) -> String {
        format!("/servers/{}{rest}", self.uuid)
    }

    async fn register(&self, client: &Client) {
        let sysinfo = json!({
            "UUID": self.uuid, "Hostname": "old", "Live Image": "20240502T000000Z",
            "System Type": "SunOS", "Boot Time": "1700000000", "MiB of Memory": "8182",
            "SDC Version": "7.0", "Setup": "true", "CPU Total Cores": 8, "VM Capable": true,
            "CN Agent IP": self.address.ip(), "CN Agent Port": self.address.port(),
            "Network Interfaces": { "e0": {
                "MAC Address": "00:0c:29:00:00:01", "ip4addr": "127.0.0.1", "Link Status": "up",
                "NIC Names": ["admin"],
            } },
        });
        let agents = json!({ "agents": [{ "name": "cn-agent", "version": "2.15.0" }] });
        client.post(&self.path("/sysinfo"), &json!({ "sysinfo": sysinfo })).await.expect(200);
        client.post(&self.path(""), &agents).await.expect(204);
    }

    async fn live(self: Arc<Self>, client: Client) {
        loop {
            let status = {
                let state = self.state.lock();
                json!({
                    "vms": state.vms,
                    "zpoolStatus": { "zones": { "bytes_available": 1, "bytes_used": 1 } },
                    "meminfo": {
                        "availrmem_bytes": 1_u64 << 32, "arcsize_bytes": 0, "total_bytes": 1_u64 << 33,
                    },
                    "diskinfo": {
                        "kvm_zvol_used_bytes": 0, "kvm_zvol_volsize_bytes": 0,
                        "kvm_quota_bytes": 0, "kvm_quota_used_bytes": 0, "zone_quota_bytes": 0,
                        "zone_quota_used_bytes": 0, "cores_quota_bytes": 0,
                        "cores_quota_used_bytes": 0, "installed_images_used_bytes": 0,
                        "pool_size_bytes": 1_u64 << 40, "pool_alloc_bytes": 0,
                        "system_used_bytes": 0,
                    },
                    "boot_time": "2023-11-14T22:13:20.000Z",
                    "timestamp": "2026-01-01T00:00:00.000Z",
                })
            };
            // A coordinator that is being restarted takes the next ones.
            let empty = json!({});
            drop(
                client.try_send(Method::POST, &self.path("/events/heartbeat"), Some(&empty)).await,
            );
            drop(client.try_send(Method::POST, &self.path("/events/status"), Some(&status)).await);
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    async fn wait_running(&self, client: &Client) {
        wait_for("the server runs", Duration::from_secs(30), || async {
            let server = client.get(&self.path("")).await;
            let runs = server.json["status"] == "running";
            if runs { Ok(()) } else { Err(server.text) }
        })
        .await;
    }

    /// How often it was told to do something.
    fn asked(&self) -> usize {
        self.state.lock().callers.len()
    }

    /// An error hangs up.
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (status, body) = match (request.method(), request.uri().path()) {
            (&Method::POST, "/tasks") => self.run(request).await?,
            (&Method::GET, "/history") => (200, Some(json!(self.state.lock().history))),
            (&Method::POST, "/pause") => {
                self.state.lock().paused = true;
                (204, None)
            }
            (&Method::POST, "/resume") => {
                self.state.lock().paused = false;
                (204, None)
            }
            _ => (404, Some(json!({ "code": "ResourceNotFound", "message": "no such route" }))),
        };
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let mut answer =
            Response::builder().status(status).header("content-type", "application/json");
        if status == 302 {
            answer = answer.header("location", "/tasks");
        }
        Ok(answer.body(Full::new(body)).expect("a plain answer"))
    }

    async fn run(&self, request: Request<Incoming>) -> std::io::Result<(u16, Option<Value>)> {
        let header = |name: &str| {
            let value = request.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let caller = (header("x-server-uuid"), header("x-request-id"));
        let body = request.into_body().collect().await.map_err(std::io::Error::other)?;
        let body: Value = serde_json::from_slice(&body.to_bytes())?;
        {
            let mut state = self.state.lock();
            state.callers.push(caller);
            if state.paused {
                let refused = json!({ "code": "ServiceUnavailable", "message": PAUSED });
                return Ok((503, Some(refused)));
            }
        }
        let (task, params) = (&body["task"], &body["params"]);
        let (status, result) = match task.as_str() {
            Some("nop") => match params["error"].as_str() {
                Some(HANG_UP) => return Err(std::io::ErrorKind::ConnectionAborted.into()),
                Some(HANG) => std::future::pending().await,
                Some(REDIRECT) => return Ok((302, None)),
                Some(HOLD) => {
                    let mut released = self.released.subscribe();
                    released.wait_for(|it| *it).await.expect("the agent lives as long");
                    (200, json!({}))
                }
                Some(error) => (500, json!({ "error": error })),
                None => (200, json!({})),
            },
            Some("machine_create") => {
                let vm = json!({
                    "uuid": params["uuid"], "owner_uuid": params["owner_uuid"],
                    "brand": params["brand"], "state": "running", "zone_state": "running",
                    "quota": 10, "max_physical_memory": params["max_physical_memory"],
                    "last_modified": "2026-01-01T00:00:00.000Z",
                });
                let uuid = params["uuid"].as_str().unwrap_or_default().to_owned();
                self.state.lock().vms.insert(uuid, vm.clone());
                self.changed.notify_one();
                (200, json!({ "vm": vm }))
            }
            _ => {
                let text = format!("Unknown task, '{}'", task.as_str().unwrap_or_default());
                (404, json!({ "code": "ResourceNotFound", "message": text }))
            }
        };
        self.state.lock().history.push(json!({
            "started_at": "2026-01-01T00:00:00.000Z", "finished_at": "2026-01-01T00:00:01.000Z",
            "task": task, "pid": 4711, "params": params, "status": "finished",
            "errorCount": usize::from(status != 200), "messages": [], "log": [],
        }));
        Ok((status, Some(result)))
    }
}

fn coordinator() -> Coordinator {
    Coordinator::with_settings(&[r#"legacy_agents.networks=["127.0.0.0/8"]"#])
}

async fn nop(client: &Client, agent: &OldAgent, params: &Value) -> Value {
    let started = client.post(&agent.path("/nop"), params).await.expect(200);
    client.wait_task(started["id"].as_str().expect("an id"), 60).await
}

fn error_of(task: &Value) -> &str {
    assert_eq!(task["status"], "failure", "{task:#}");
    task["history"][0]["event"]["error"]["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn an_old_agent_does_what_it_is_told() {
    let coordinator = coordinator();
    let client = coordinator.client();
    let agent = OldAgent::start(&client).await;

    let done = nop(&client, &agent, &json!({})).await;
    assert_eq!(done["status"], "complete", "{done:#}");
    assert_eq!(done["history"][0]["name"], "finish");
    let caller = agent.state.lock().callers[0].clone();
    assert_eq!(caller, (agent.uuid.clone(), done["req_id"].as_str().unwrap().to_owned()));
    assert_eq!(error_of(&nop(&client, &agent, &json!({ "error": "boom" })).await), "boom");

    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "owner_uuid": fresh_uuid(), "brand": "joyent-minimal",
        "max_physical_memory": 128, "image_uuid": fresh_uuid(),
        "image": { "files": [{ "compression": "gzip" }] },
    });
    let started = client.post(&agent.path("/vms"), &payload).await.expect(200);
    let made = client.complete_task(started["id"].as_str().unwrap(), 60).await;
    assert_eq!(made["vm"]["uuid"], json!(vm), "{made:#}");
    wait_for("the VM is reported", Duration::from_secs(30), || async {
        let vms = client.get(&agent.path("/vms")).await;
        if vms.json[0]["uuid"] == json!(vm) { Ok(()) } else { Err(vms.text) }
    })
    .await;

    let history = client.get(&agent.path("/task-history")).await.expect(200);
    assert_eq!(history, json!(agent.state.lock().history));
    let kinds: Vec<_> = history.as_array().unwrap().iter().map(|one| &one["task"]).collect();
    assert_eq!(kinds, ["nop", "nop", "machine_create"]);

    client.post(&agent.path("/cn-agent/pause"), &json!({})).await.expect(204);
    assert_eq!(error_of(&nop(&client, &agent, &json!({})).await), PAUSED);
    client.post(&agent.path("/cn-agent/resume"), &json!({})).await.expect(204);
    assert_eq!(nop(&client, &agent, &json!({})).await["status"], "complete");
}

#[tokio::test]
async fn a_task_is_sent_once_at_most() {
    let mut coordinator = coordinator();
    let client = coordinator.client();
    let agent = OldAgent::start(&client).await;
    let lost = nop(&client, &agent, &json!({ "error": HANG_UP })).await;
    assert!(error_of(&lost).ends_with("outcome unknown"), "{lost:#}");
    assert_eq!((agent.asked(), &lost["error"]["code"]), (1, &json!("TaskLost")));

    // Killed while the agent works, the coordinator can't learn what became of the task.
    let started = client.post(&agent.path("/nop"), &json!({ "error": HANG })).await.expect(200);
    wait_for("the agent is asked", Duration::from_secs(30), || async {
        if agent.asked() == 2 { Ok(()) } else { Err(agent.asked()) }
    })
    .await;
    coordinator.kill9();
    coordinator.restart();
    let ended = client.wait_task(started["id"].as_str().unwrap(), 60).await;
    assert!(error_of(&ended).ends_with("outcome unknown"), "{ended:#}");
    agent.wait_running(&client).await;
    assert_eq!(nop(&client, &agent, &json!({})).await["status"], "complete");
    assert_eq!(agent.asked(), 3);
}

#[tokio::test]
async fn requests_to_one_agent_are_bounded_and_the_rest_waits() {
    let coordinator = coordinator();
    let client = coordinator.client();
    let agent = OldAgent::start(&client).await;
    // No redirect is followed: whoever answers could send a task anywhere.
    let redirected = nop(&client, &agent, &json!({ "error": REDIRECT })).await;
    assert_eq!(error_of(&redirected), "the agent answered 302 Found");
    assert_eq!(agent.asked(), 1);

    let mut ids = Vec::new();
    for _ in 0..MAX_OPEN + 8 {
        let started = client.post(&agent.path("/nop"), &json!({ "error": HOLD })).await.expect(200);
        ids.push(started["id"].as_str().expect("an id").to_owned());
    }
    wait_for("all places are taken", Duration::from_secs(30), || async {
        if agent.asked() == 1 + MAX_OPEN { Ok(()) } else { Err(agent.asked()) }
    })
    .await;
    // What needs no place is answered while they are taken, and after it no more were sent.
    client.post(&agent.path("/cn-agent/resume"), &json!({})).await.expect(204);
    assert_eq!(agent.asked(), 1 + MAX_OPEN);
    agent.released.send_replace(true);
    for id in &ids {
        assert_eq!(client.wait_task(id, 60).await["status"], "complete");
    }
    assert_eq!(agent.asked(), 1 + ids.len(), "each once");
}

#[tokio::test]
async fn nobody_is_called_outside_the_networks() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = OldAgent::start(&client).await;
    let started = client.post(&agent.path("/nop"), &json!({})).await.expect(200);
    let path = format!("/tasks/{}", started["id"].as_str().unwrap());
    let task = client.get(&path).await.expect(200);
    assert_eq!(task["status"], "active", "{task:#}");
    // Only what was never sent can be cancelled without its agent.
    client.post(&format!("{path}/cancel"), &json!({})).await.expect(202);
    assert_eq!(agent.asked(), 0);
}
