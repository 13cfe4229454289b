//! Agents that do not dial: the original cn-agent POSTs its signs of life and is called back by
//! HTTP. To the rest of the coordinator such a server has a connection like any other while it is
//! heard; what is put on its queue becomes a request.
//!
//! A task is sent once at most, because such an agent would run it twice: it is claimed in the
//! store before its request leaves, and a request without an answer ends it as `outcome unknown`.

mod call;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use muster_shared::api::Object;
use muster_shared::api::server::Sysinfo;
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId};
use muster_shared::lenient;
use muster_shared::wire::{
    Cancel, Code, Dispatch, FromCoordinator, Intake, Outcome, TaskError, TaskResult,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use uuid::Uuid;

use super::registry::{AgentInfo, Capabilities, Ending, Handle, QUEUE, Queued};
use super::{Agents, Incoming, Reply};
use crate::roster::ConnectionId;
use call::{Answered, Call, Unanswered};

/// Port of agents that name none.
const PORT: u16 = 5309;
/// Tag of the network in which agents are called, if they name no address.
const ADMIN: &str = "admin";
/// An agent that was silent for so long is not called any more; its heartbeats come every 5 s.
const SILENCE: Duration = Duration::from_secs(30);
/// The agent's own limit of a task, and what its answer may take on top.
pub(crate) const TASK_TIMEOUT: Duration = Duration::from_secs(3600 + 300);
/// Longest wait for the history, pause and resume.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that one server may have open; further tasks wait.
const MAX_OF_SERVER: usize = 32;
/// Requests that may be open to all servers.
const MAX_OPEN: usize = 1024;

/// The agents that are called.
#[derive(Debug)]
pub(super) struct Legacy {
    peers: Mutex<BTreeMap<ServerUuid, Arc<Peer>>>,
    /// Tasks whose requests are open.
    open: Mutex<BTreeSet<TaskId>>,
    permits: Arc<Semaphore>,
}

impl Default for Legacy {
    fn default() -> Self {
        Self {
            peers: Mutex::default(),
            open: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_OPEN)),
        }
    }
}

/// One of them.
#[derive(Debug)]
struct Peer {
    server: ServerUuid,
    address: SocketAddr,
    connection: ConnectionId,
    /// Monotonic.
    heard_at: Mutex<Duration>,
    permits: Arc<Semaphore>,
}

/// A task's request is open.
struct Posting<'a>(&'a Legacy, TaskId);

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        self.0.open.lock().remove(&self.1);
    }
}

/// Where the agent of a server wants to be called, as its sysinfo says.
#[must_use]
pub(crate) fn address_of(sysinfo: &Sysinfo) -> Option<SocketAddr> {
    let text = |name: &str| sysinfo.others.get(name).and_then(Value::as_str);
    let of_interface = || {
        sysinfo.interfaces.iter().flat_map(Object::iter).find_map(|(_, interface)| {
            let names = interface.get("NIC Names")?.as_array()?;
            names.iter().any(|name| name == ADMIN).then(|| interface.get("ip4addr")?.as_str())?
        })
    };
    let ip = text("CN Agent IP").or_else(of_interface)?.parse().ok()?;
    let port = sysinfo.others.get("CN Agent Port").and_then(lenient::number);
    Some(SocketAddr::new(ip, port.map_or(Some(PORT), |port| u16::try_from(port).ok())?))
}

impl Agents {
    /// A server whose agent may be called at this address gave a sign of life.
    pub(crate) fn heard_of_legacy(
        self: &Arc<Self>,
        server: ServerUuid,
        address: SocketAddr,
        version: Option<String>,
    ) {
        let Some(incoming) = self.incoming.get().and_then(Weak::upgrade) else { return };
        let now = self.parts.clock.monotonic();
        let mut peers = self.legacy.peers.lock();
        if let Some(peer) = peers.get(&server) {
            *peer.heard_at.lock() = now;
            if peer.address != address {
                // The next sign of life begins anew; what is under way goes on.
                self.registry.remove(server, peer.connection);
            }
            return;
        }
        let connection = self.next_connection();
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (end, ending) = watch::channel(None);
        let info = AgentInfo {
            version: version.unwrap_or_default(),
            capabilities: Capabilities::default(),
            boot_id: String::new(),
            agent_instance_id: Uuid::nil(),
            intake: Intake::Accepting,
            connected_at: iso(self.parts.clock.wall()),
        };
        // An agent that dials needs no calls.
        if !self.registry.insert_first(server, Handle { connection, queue, end, info }) {
            return;
        }
        tracing::info!(server_uuid = %server, %address, "tasks of this server go by HTTP");
        let permits = Arc::new(Semaphore::new(MAX_OF_SERVER));
        let heard_at = Mutex::new(now);
        let peer = Arc::new(Peer { server, address, connection, heard_at, permits });
        peers.insert(server, Arc::clone(&peer));
        let session = Session { agents: Arc::clone(self), incoming, peer };
        self.parts.tracker.spawn(session.run(outgoing, ending));
    }

    /// Whether this coordinator has the request of a task open.
    pub(crate) fn is_posting(&self, id: &TaskId) -> bool {
        self.legacy.open.lock().contains(id)
    }
}

#[derive(Clone, Debug)]
struct Session {
    agents: Arc<Agents>,
    incoming: Arc<dyn Incoming>,
    peer: Arc<Peer>,
}

impl Session {
    async fn run(self, mut outgoing: mpsc::Receiver<Queued>, mut ending: watch::Receiver<Ending>) {
        let cancel = self.agents.parts.cancel.clone();
        loop {
            let silent_in = SILENCE.saturating_sub(self.silent_for());
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                // An agent that dials takes its place.
                _ = ending.changed() => break,
                message = outgoing.recv() => match message {
                    Some(message) => self.handle(*message),
                    None => break,
                },
                () = tokio::time::sleep(silent_in) => {
                    if self.silent_for() >= SILENCE {
                        break;
                    }
                }
            }
        }
        let Peer { server, connection, .. } = *self.peer;
        self.agents.registry.remove(server, connection);
        self.agents.waiting.disconnect(server, connection);
        self.agents.legacy.peers.lock().remove(&server);
        tracing::info!(server_uuid = %server, "tasks of this server go by HTTP no longer");
    }

    fn silent_for(&self) -> Duration {
        let now = self.agents.parts.clock.monotonic();
        now.saturating_sub(*self.peer.heard_at.lock())
    }

    /// Begins what the message asks for; what has no counterpart there is left.
    fn handle(&self, message: FromCoordinator) {
        match message {
            FromCoordinator::Dispatch(dispatch) => self.begin(*dispatch),
            FromCoordinator::Pause(pause) => self.control(pause.token, "/pause"),
            FromCoordinator::Drain(drain) => self.control(drain.token, "/pause"),
            FromCoordinator::Resume(resume) => self.control(resume.token, "/resume"),
            FromCoordinator::Cancel(Cancel { id }) => {
                let message = "an agent that is called by HTTP cancels nothing".to_owned();
                self.answer(&id, &Reply::Error { code: Code::NotCancellable, message });
            }
            _ => {}
        }
    }

    fn answer(&self, id: &TaskId, reply: &Reply) {
        self.agents.waiting.resolve(self.peer.server, id, reply);
    }

    /// Runs work as long as the coordinator runs.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.agents.parts.cancel.clone();
        self.agents.parts.tracker.spawn(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Without a place for one more request nothing is sent: who put the task on the queue does so
    /// again.
    fn begin(&self, dispatch: Dispatch) {
        let all = Arc::clone(&self.agents.legacy.permits).try_acquire_owned();
        let own = Arc::clone(&self.peer.permits).try_acquire_owned();
        let (Ok(all), Ok(own)) = (all, own) else {
            let message = "too many requests to the agent are open".to_owned();
            if dispatch.volatile {
                self.answer(&dispatch.id, &Reply::Error { code: Code::QueueFull, message });
            }
            return;
        };
        let session = self.clone();
        self.spawn(async move {
            if dispatch.volatile {
                session.query(dispatch).await;
            } else {
                session.task(dispatch).await;
            }
            drop((all, own));
        });
    }

    async fn query(&self, dispatch: Dispatch) {
        let limit = dispatch.deadline_ms.map_or(TASK_TIMEOUT, Duration::from_millis);
        let answer = if dispatch.task == "task_history" {
            self.call(Method::GET, "/history", Bytes::new(), &dispatch.req_id, limit).await
        } else {
            self.post(&dispatch, limit).await
        };
        let result = result(dispatch.id, answer);
        let id = result.id.clone();
        self.answer(&id, &Reply::Result(Box::new(result)));
    }

    async fn task(&self, dispatch: Dispatch) {
        let legacy = &self.agents.legacy;
        if !legacy.open.lock().insert(dispatch.id.clone()) {
            return;
        }
        let _posting = Posting(legacy, dispatch.id.clone());
        if !self.incoming.clone().claim(self.peer.server, &dispatch.id).await {
            return;
        }
        let answer = self.post(&dispatch, TASK_TIMEOUT).await;
        let result = result(dispatch.id, answer);
        self.answer(&result.id, &Reply::Result(Box::new(result.clone())));
        self.incoming.clone().ended(self.peer.server, result).await;
    }

    async fn post(&self, dispatch: &Dispatch, limit: Duration) -> Result<Answered, Unanswered> {
        let body = json!({ "task": dispatch.task, "params": dispatch.params });
        let body = Bytes::from(body.to_string());
        self.call(Method::POST, "/tasks", body, &dispatch.req_id, limit).await
    }

    async fn call(
        &self,
        method: Method,
        path: &'static str,
        body: Bytes,
        req_id: &str,
        timeout: Duration,
    ) -> Result<Answered, Unanswered> {
        let Peer { server, address, .. } = *self.peer;
        Call { address, method, path, body, server, req_id, timeout }.send().await
    }

    fn control(&self, token: TaskId, path: &'static str) {
        let session = self.clone();
        self.spawn(async move {
            let body = Bytes::from_static(b"{}");
            let answer = session.call(Method::POST, path, body, token.as_str(), CONTROL_TIMEOUT);
            let reply = match answer.await {
                Ok(answer) if answer.status.is_success() => Reply::Accepted,
                Ok(answer) => {
                    let TaskError { code, message, .. } = failure(&answer);
                    Reply::Error { code, message }
                }
                Err(error) => {
                    Reply::Error { code: Code::InternalError, message: error.to_string() }
                }
            };
            session.answer(&token, &reply);
        });
    }
}

/// How a task ended, as its request was answered.
fn result(id: TaskId, answer: Result<Answered, Unanswered>) -> TaskResult {
    let ended = match answer {
        Ok(answer) if answer.status == StatusCode::OK => Ok(answer.body),
        Ok(answer) => Err(failure(&answer)),
        Err(error) => {
            let code = match error {
                Unanswered::NotSent { .. } => Code::NotAccepted,
                Unanswered::Unknown { .. } => Code::TaskLost,
            };
            Err(TaskError { code, message: error.to_string(), details: None })
        }
    };
    let (status, result, error) = match ended {
        Ok(result) => (Outcome::Complete, result, None),
        Err(error) => (Outcome::Failure, Value::Null, Some(error)),
    };
    TaskResult { id, status, result, error, finished_at: String::new() }
}

/// A failed task says `error`, with a code among its details; a refused one `code` and `message`.
fn failure(answer: &Answered) -> TaskError {
    let text = |value: &Value, name: &str| value[name].as_str().map(str::to_owned);
    let Answered { status, body } = answer;
    let message = text(body, "error").or_else(|| text(body, "message"));
    let code = text(&body["details"], "restCode").or_else(|| text(body, "code"));
    let details = body.get("details").filter(|details| !details.is_null()).cloned();
    TaskError {
        code: code.map_or(Code::InternalError, Code::from),
        message: message.unwrap_or_else(|| match *status {
            StatusCode::INTERNAL_SERVER_ERROR => String::new(),
            status => format!("the agent answered {status}"),
        }),
        details,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(sysinfo: Value) -> Option<String> {
        address_of(&serde_json::from_value(sysinfo).unwrap()).map(|address| address.to_string())
    }

    #[test]
    fn an_agent_is_called_where_it_says_or_in_the_admin_network() {
        let answer = json!({ "CN Agent IP": "10.0.0.5", "CN Agent Port": 5310 });
        assert_eq!(address(answer).as_deref(), Some("10.0.0.5:5310"));
        let interfaces = json!({ "Network Interfaces": {
            "e0": { "NIC Names": ["external"], "ip4addr": "192.0.2.1" },
            "e1": { "NIC Names": ["admin"], "ip4addr": "10.0.0.6" },
        } });
        assert_eq!(address(interfaces).as_deref(), Some("10.0.0.6:5309"));
        assert_eq!(address(json!({ "CN Agent IP": "10.0.0.5", "CN Agent Port": 70000 })), None);
        assert_eq!(address(json!({ "CN Agent IP": "cn.example.com" })), None);
        assert_eq!(address(json!({})), None);
    }

    #[track_caller]
    fn ends(status: u16, body: Value, code: &str, message: &str) {
        let status = StatusCode::from_u16(status).unwrap();
        let ended = result("t".parse().unwrap(), Ok(Answered { status, body }));
        let error = ended.error.unwrap();
        assert_eq!((error.code.as_str(), error.message.as_str()), (code, message));
    }

    #[test]
    fn an_answer_says_how_the_task_ended() {
        let status = StatusCode::OK;
        let ended = result("t".parse().unwrap(), Ok(Answered { status, body: json!({ "vm": 1 }) }));
        assert_eq!((ended.status, ended.result), (Outcome::Complete, json!({ "vm": 1 })));
        ends(500, json!({ "error": "boom" }), "InternalError", "boom");
        let gone = json!({ "error": "no VM", "details": { "restCode": "VmNotFound" } });
        ends(500, gone, "VmNotFound", "no VM");
        let paused = json!({ "code": "ServiceUnavailable", "message": "paused" });
        ends(503, paused, "ServiceUnavailable", "paused");
        ends(302, Value::Null, "InternalError", "the agent answered 302 Found");
        let lost = Err(Unanswered::Unknown { reason: "the connection was lost".to_owned() });
        let lost = result("t".parse().unwrap(), lost).error.unwrap();
        assert_eq!(lost.message, "the connection was lost: outcome unknown");
        assert_eq!(lost.code, Code::TaskLost);
    }
}
