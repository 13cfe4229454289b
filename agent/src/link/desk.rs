//! Where messages of coordinators are understood: turned into calls of the task engine, answered
//! into the connection's outbox. Runs on the agent's own runtime.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::wire::{
    Accepted, Code, Dispatch, Error, FromCoordinator, OPERATOR, Outcome, StreamOpen, TaskResult,
    Welcome, feature, job_owner,
};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::outbox::Outbox;
use super::pump::{self, Samples};
use super::{LinkParts, Links, stream};
use crate::tasks::record::Origin;
use crate::tasks::{Engine, Refusal, Standing, Submission};

/// The query that the coordinator's `task-history` endpoint is made of; answered here, because it
/// is about the engine itself.
pub(super) const TASK_HISTORY: &str = "task_history";
/// Byte streams at a time.
const MAX_STREAMS: usize = 64;
/// Longest wait for a query's result before it is given up (its own deadline comes first).
const VOLATILE_LIMIT: Duration = Duration::from_secs(3600);

/// From sessions to the desk.
#[derive(Debug)]
pub(super) enum ToDesk {
    /// A coordinator has welcomed this agent.
    Connected { id: u64, url: Url, welcome: Welcome, outbox: Arc<Outbox> },
    /// It says something.
    Message { id: u64, message: FromCoordinator },
    /// The connection is gone; `replaced`: because the coordinator has a newer one of this server.
    Disconnected { id: u64, replaced: bool },
}

#[derive(Debug)]
struct Session {
    url: Url,
    instance: String,
    outbox: Arc<Outbox>,
    gone: CancellationToken,
}

/// Knows every connection.
#[derive(Debug)]
pub(super) struct Desk {
    links: Weak<Links>,
    parts: Arc<LinkParts>,
    sessions: BTreeMap<u64, Session>,
    /// Coordinators, by the URL of the connection that gave way to a newer one of this server.
    replaced: BTreeMap<Url, String>,
    samples: Arc<Samples>,
    stop: CancellationToken,
    streams: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn new(links: &Arc<Links>) -> Self {
        let samples = Samples::new(links.parts.engine.clone(), links.parts.feed.clone());
        Self {
            links: Arc::downgrade(links),
            parts: links.parts.clone(),
            sessions: BTreeMap::new(),
            replaced: BTreeMap::new(),
            samples,
            stop: links.stop.clone(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(links) = self.links.upgrade() {
            links.tracker.spawn(work);
        }
    }

    pub(super) async fn run(mut self, mut at_desk: mpsc::Receiver<ToDesk>) {
        self.spawn(self.samples.clone().run(self.stop.clone()));
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                message = at_desk.recv() => message,
            };
            match message {
                Some(ToDesk::Connected { id, url, welcome, outbox }) => {
                    self.connected(id, url, &welcome, outbox);
                }
                Some(ToDesk::Message { id, message }) => self.message(id, message),
                Some(ToDesk::Disconnected { id, replaced }) => self.disconnected(id, replaced),
                None => break,
            }
        }
    }

    fn disconnected(&mut self, id: u64, replaced: bool) {
        let Some(session) = self.sessions.remove(&id) else { return };
        session.gone.cancel();
        if replaced {
            self.replaced.insert(session.url, session.instance);
        } else if let Some(links) = self.links.upgrade() {
            links.dial_aliases_of(&session.url);
        }
    }

    /// The other URL, if any, whose connection to this coordinator gives way to a new one.
    fn other_way(&mut self, url: &Url, instance: &str) -> Option<Url> {
        self.replaced.remove(url);
        let open = self.sessions.values().map(|session| (&session.url, &session.instance));
        let mut all = open.chain(&self.replaced);
        let other = all.find(|(other, of)| *of == instance && *other != url)?.0.clone();
        self.replaced.remove(&other);
        Some(other)
    }

    fn connected(&mut self, id: u64, url: Url, welcome: &Welcome, outbox: Arc<Outbox>) {
        tracing::info!(%url, instance = welcome.instance, "connected to a coordinator");
        let Some(links) = self.links.upgrade() else { return };
        if let Some(older) = self.other_way(&url, &welcome.instance) {
            links.same_coordinator(&older, &url);
        }
        let members: Vec<Url> =
            welcome.members.iter().filter_map(|member| member.parse().ok()).collect();
        links.follow(&members);
        let gone = self.stop.child_token();
        let pump = pump::Pump {
            engine: self.parts.engine.clone(),
            clock: self.parts.clock.clone(),
            sysinfo: self.parts.feed.sysinfo(),
            known_hash: welcome.sysinfo_hash.clone(),
            samples: self.samples.clone(),
            outbox: outbox.clone(),
            gone: gone.clone(),
            began: self.parts.clock.monotonic(),
            repeats: welcome.capabilities.iter().any(|name| name == feature::REFUSALS),
        };
        self.spawn(pump.run());
        let engine = self.parts.engine.clone();
        let (ids, answers) = (welcome.open_task_ids.clone(), outbox.clone());
        self.spawn(async move { tell_standing(&engine, ids, &answers).await });
        let instance = welcome.instance.clone();
        self.sessions.insert(id, Session { url, instance, outbox, gone });
    }

    fn message(&self, id: u64, message: FromCoordinator) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (engine, outbox) = (self.parts.engine.clone(), session.outbox.clone());
        match message {
            FromCoordinator::Dispatch(dispatch) => self.dispatch(*dispatch, outbox),
            FromCoordinator::Acknowledge(ack) => engine.acknowledge(&ack.id),
            FromCoordinator::Cancel(cancel) => match engine.cancel(&cancel.id) {
                Ok(()) => outbox.control(Accepted { id: cancel.id, intake: None }),
                Err(refusal) => outbox.control(error(&cancel.id, &refusal)),
            },
            FromCoordinator::Pause(pause) => self.spawn(async move {
                let owner = pause.owner.as_deref().unwrap_or(OPERATOR);
                let done = engine.pause(owner, &pause.reason).await;
                answer(&engine, &outbox, pause.token, done);
            }),
            FromCoordinator::Resume(resume) => self.spawn(async move {
                let done = engine.resume(resume.owner.as_deref()).await;
                answer(&engine, &outbox, resume.token, done);
            }),
            FromCoordinator::Drain(drain) => self.spawn(async move {
                let ttl = Duration::from_secs(drain.ttl_s);
                let owner = drain.owner.unwrap_or_else(|| job_owner(&drain.token));
                let done = engine.drain(&owner, &drain.reason, &drain.token, ttl).await;
                answer(&engine, &outbox, drain.token, done);
            }),
            FromCoordinator::Sysinfo(_) => {
                let feed = self.parts.feed.clone();
                self.spawn(async move {
                    let document = feed.refresh().await;
                    outbox.sysinfo(pump::sysinfo_message(&document));
                });
            }
            // The session's.
            FromCoordinator::Heartbeat(_) => {}
            FromCoordinator::Status(_) => self.samples.full(&outbox),
            FromCoordinator::StreamOpen(open) => self.stream(open, session),
            FromCoordinator::Error(Error { id: Some(id), code: Code::UnknownTask, .. }) => {
                if let Ok(id) = id.parse() {
                    engine.disowned(&id);
                }
            }
            FromCoordinator::Error(e) => {
                tracing::warn!(code = %e.code, id = e.id, message = e.message, "coordinator error");
            }
            FromCoordinator::Welcome(_) => outbox.control(Error {
                id: None,
                code: Code::Malformed,
                message: "a second welcome".to_owned(),
            }),
        }
    }

    fn dispatch(&self, dispatch: Dispatch, outbox: Arc<Outbox>) {
        let engine = self.parts.engine.clone();
        if dispatch.task == TASK_HISTORY {
            self.spawn(async move { tell_history(&engine, dispatch.id, &outbox).await });
            return;
        }
        let volatile = dispatch.volatile;
        let id = dispatch.id.clone();
        let submission = Submission {
            id: dispatch.id,
            req_id: dispatch.req_id,
            task: dispatch.task,
            params: dispatch.params,
            deadline_ms: dispatch.deadline_ms,
            ticket: dispatch.ticket,
            volatile,
            origin: Origin::Coordinator,
            part_of: None,
        };
        // Taken in the order in which they came; only the wait for the disk is apart.
        let offer = match engine.offer(submission) {
            Ok(offer) => offer,
            Err(refusal) => {
                outbox.control(error(&id, &refusal));
                return;
            }
        };
        self.spawn(async move {
            match offer.admitted().await {
                Ok(()) if offer.is_durable() => {
                    outbox.control(Accepted { id: id.clone(), intake: None })
                }
                // It has ended, or ends with this process: its result says all.
                Ok(()) => {}
                Err(refusal) => {
                    outbox.control(error(&id, &refusal));
                    return;
                }
            }
            // Others are sent by the pump until acknowledged.
            if volatile || offer.has_ended() {
                engine.wait(&id, VOLATILE_LIMIT).await;
                if let Some(result) = engine.result(&id).await {
                    push(&outbox, result).await;
                }
            }
        });
    }

    fn stream(&self, open: StreamOpen, session: &Session) {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            session.outbox.control(Error {
                id: Some(open.stream_id.to_string()),
                code: Code::QueueFull,
                message: format!("{MAX_STREAMS} streams are open already"),
            });
            return;
        };
        let (parts, url) = (self.parts.clone(), session.url.clone());
        let (outbox, stop) = (session.outbox.clone(), self.stop.clone());
        self.spawn(async move {
            stream::run(&parts, &url, open, &outbox, &stop).await;
            drop(permit);
        });
    }
}

pub(super) fn error(id: &TaskId, refusal: &Refusal) -> Error {
    Error { id: Some(id.to_string()), code: refusal.code.clone(), message: refusal.message.clone() }
}

fn answer(engine: &Engine, outbox: &Outbox, token: TaskId, done: Result<(), Refusal>) {
    match done {
        Ok(()) => outbox.control(Accepted { id: token, intake: Some(engine.intake()) }),
        Err(refusal) => outbox.control(error(&token, &refusal)),
    }
}

/// Answers for every task that the coordinator believes to be open.
async fn tell_standing(engine: &Engine, ids: Vec<TaskId>, outbox: &Outbox) {
    for id in ids {
        match engine.standing(&id).await {
            Standing::UnderWay => outbox.control(Accepted { id, intake: None }),
            Standing::InMemory => {}
            Standing::Refused(refusal) => outbox.control(error(&id, &refusal)),
            Standing::Ended => match engine.result(&id).await {
                Some(result) => push(outbox, result).await,
                None => outbox.control(unknown(id)),
            },
            Standing::Unknown => outbox.control(unknown(id)),
        }
    }
}

fn unknown(id: TaskId) -> Error {
    Error {
        id: Some(id.into()),
        code: Code::UnknownTask,
        message: "this agent has no such task".to_owned(),
    }
}

async fn tell_history(engine: &Engine, id: TaskId, outbox: &Outbox) {
    let result = TaskResult {
        id,
        status: Outcome::Complete,
        result: Value::Array(engine.history().await),
        error: None,
        finished_at: String::new(),
    };
    push(outbox, result).await;
}

/// Queues a result as soon as there is room. On a connection that has died there never is; the
/// outbox is dropped then, and so is whoever waits here, at the latest when the agent stops.
async fn push(outbox: &Outbox, result: TaskResult) {
    const LIMIT: Duration = Duration::from_secs(30);
    let room = async {
        while !outbox.try_result(result.clone()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(LIMIT, room).await.is_err() {
        tracing::debug!(task_id = %result.id, "a result was not taken by its connection");
    }
}
