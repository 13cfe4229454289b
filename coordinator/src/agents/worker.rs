//! Handles what one connection brought, in order, to its end: also after the connection's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use muster_shared::error_chain::Chain;
use muster_shared::ids::TaskId;
use muster_shared::wire::{
    Acknowledge, Code, DecodeError, Error as WireError, FromAgent, Outcome, Sysinfo, TaskError,
    TaskResult, decode,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;

use super::backlog::Waiting;
use super::reports::Reports;
use super::session::{Garbage, Session};
use super::turns::Working;
use super::waiting::Reply;
use crate::budget::Hold;

/// Results of one agent that wait for the store at a time.
const MAX_RESULTS: usize = 64;
/// What is not handled so long after the application was told to stop is left: agents repeat it.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Handles messages in the order in which they came.
pub(super) struct Worker {
    session: Session,
    garbage: Garbage,
    reports: Arc<Mutex<Reports>>,
}

impl Worker {
    /// The reader takes short reports over itself while there is nothing else to handle.
    pub(super) fn new(session: Session, garbage: Garbage, reports: Arc<Mutex<Reports>>) -> Self {
        Self { session, garbage, reports }
    }

    /// Works until the backlog has ended and is empty; `turn` is over then.
    pub(super) async fn run(mut self, backlog: mpsc::Receiver<Box<Waiting>>, turn: Working) {
        let session = self.session.clone();
        let cancel = session.agents.parts.cancel.clone();
        let stopped = async {
            cancel.cancelled().await;
            tokio::time::sleep(LAST_WORK).await;
        };
        tokio::select! {
            biased;
            () = self.handle_all(backlog) => {}
            () = stopped => tracing::warn!("the store did not take all that the agent said"),
        }
        session.agents.waiting.disconnect(session.server, session.id);
        drop(turn);
    }

    /// In order, but for results: each waits for the store, which takes those of many tasks in one
    /// write.
    async fn handle_all(&mut self, mut backlog: mpsc::Receiver<Box<Waiting>>) {
        let mut results = FuturesUnordered::new();
        loop {
            let frame = tokio::select! {
                biased;
                Some(()) = results.next() => continue,
                frame = backlog.recv(), if results.len() < MAX_RESULTS => frame,
            };
            let Some(frame) = frame else { break };
            let room = {
                let room = self.session.agents.frames.parse(&frame.text);
                tokio::pin!(room);
                // Results that are being stored hold what this one may be waiting for.
                loop {
                    tokio::select! {
                        biased;
                        Some(()) = results.next() => {}
                        room = &mut room => break room,
                    }
                }
            };
            match self.decode(&frame) {
                Some(FromAgent::Result(task)) => {
                    results.push(result(self.session.clone(), task, room));
                }
                Some(message) => self.handle(message).await,
                None => {}
            }
        }
        while let Some(()) = results.next().await {}
    }

    /// Parses a frame; one that is not understood is answered.
    fn decode(&self, frame: &Waiting) -> Option<FromAgent> {
        let error = match decode(&frame.text) {
            Ok(message) => return Some(message),
            Err(error) => error,
        };
        if let Some(task) = unreadable(&error) {
            tracing::warn!(task_id = %task.id, %error, "a task's result can't be taken");
            return Some(FromAgent::Result(task));
        }
        let about = error.about().map(str::to_owned);
        self.session.refuse(about, error.code(), Chain(&error).to_string());
        // A later version's message is no error of the peer's.
        if !error.is_message() {
            self.garbage.seen();
        }
        None
    }

    async fn handle(&mut self, message: FromAgent) {
        let Session { agents, incoming, server, .. } = &self.session;
        let server = *server;
        match message {
            FromAgent::Hello(_) => {
                self.session.refuse(None, Code::Malformed, "a second hello".to_owned());
            }
            // The reader's.
            FromAgent::Heartbeat(_) => {}
            FromAgent::Sysinfo(sysinfo) => self.sysinfo(sysinfo).await,
            FromAgent::Status(status) => self.reports.lock().take(&self.session, *status),
            FromAgent::Accepted(accepted) => {
                if let Some(intake) = accepted.intake {
                    agents.registry.set_intake(server, intake);
                }
                incoming.accepted(server, &accepted.id);
                agents.waiting.resolve(server, &accepted.id, &Reply::Accepted);
            }
            FromAgent::Progress(progress) => incoming.progress(server, &progress),
            // See `handle_all`.
            FromAgent::Result(_) => {}
            FromAgent::Error(error) => self.error(error).await,
        }
    }

    async fn error(&self, error: WireError) {
        let Session { agents, incoming, server, id: connection, .. } = &self.session;
        let WireError { id, code, message } = error;
        tracing::debug!(%code, message, "agent refused");
        let Some(about) = id.and_then(|id| id.parse::<TaskId>().ok()) else { return };
        agents.streams.refused(about.as_str(), &code, &message);
        let reply = Reply::Error { code: code.clone(), message: message.clone() };
        if !agents.waiting.resolve(*server, &about, &reply) {
            let from = (*server, *connection);
            let taken = incoming.clone().refused(from, about.clone(), &code, &message).await;
            if taken {
                self.session.send(Acknowledge { id: about });
            }
        }
    }

    async fn sysinfo(&self, sysinfo: Sysinfo) {
        let Session { incoming, server, .. } = &self.session;
        if let Err(error) = incoming.clone().sysinfo(*server, sysinfo).await {
            tracing::warn!(error, "cannot take over the agent's sysinfo");
            self.session.refuse(None, Code::Malformed, error);
        }
    }
}

/// The end of a task whose result nobody here will ever be able to read: its agent would repeat it
/// for ever.
fn unreadable(error: &DecodeError) -> Option<TaskResult> {
    let DecodeError::TooManyValues { kind, about: Some(id) } = error else { return None };
    if kind != "result" {
        return None;
    }
    let failure = TaskError {
        message: "the task has ended, and its result is too large to be taken".to_owned(),
        code: Code::Malformed,
        details: None,
    };
    Some(TaskResult {
        id: id.parse().ok()?,
        status: Outcome::Failure,
        result: Value::Null,
        error: Some(failure),
        finished_at: String::new(),
    })
}

async fn result(session: Session, result: TaskResult, _room: Hold) {
    let Session { agents, incoming, server, .. } = session;
    // Copied for those who wait, and only then: it may be large.
    let answered = agents.waiting.is_awaited(server, &result.id) && {
        let reply = Reply::Result(Box::new(result.clone()));
        agents.waiting.resolve(server, &result.id, &reply)
    };
    incoming.result(server, result, answered).await;
}
