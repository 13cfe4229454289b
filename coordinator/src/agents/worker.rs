//! Handles what one connection brought, in order, to its end: also after the connection's.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::status::{Status, VmReport, apply};
use muster_shared::wire::{
    Acknowledge, Code, Error as WireError, FromAgent, Intake, Sysinfo, TaskResult,
};
use serde::Deserialize as _;
use tokio::sync::mpsc;

use super::session::Session;
use super::turns::Working;
use super::waiting::Reply;

/// Results of one agent that wait for the store at a time.
const MAX_RESULTS: usize = 64;
/// What is not handled so long after the application was told to stop is left: agents repeat it.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Handles messages in the order in which they came.
pub(super) struct Worker {
    session: Session,
    /// The VMs as this connection's reports say.
    reported: BTreeMap<VmUuid, VmReport>,
    /// `reported` is what the agent thinks it is.
    synced: bool,
    /// A full report was asked for and has not come.
    asked: bool,
}

impl Worker {
    pub(super) fn new(session: Session) -> Self {
        Self { session, reported: BTreeMap::new(), synced: false, asked: false }
    }

    /// Works until the backlog has ended and is empty; `turn` is over then.
    pub(super) async fn run(mut self, backlog: mpsc::Receiver<FromAgent>, turn: Working) {
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
    async fn handle_all(&mut self, mut backlog: mpsc::Receiver<FromAgent>) {
        let mut results = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                Some(()) = results.next() => continue,
                message = backlog.recv(), if results.len() < MAX_RESULTS => message,
            };
            match message {
                Some(FromAgent::Result(task)) => results.push(result(self.session.clone(), task)),
                Some(message) => self.handle(message).await,
                None => break,
            }
        }
        while let Some(()) = results.next().await {}
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
            FromAgent::Status(status) => self.status(*status),
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

    fn status(&mut self, status: Status) {
        let Some(report) = status.report else { return };
        if !report.full && !self.synced {
            return self.ask_for_all();
        }
        let applied = apply(&mut self.reported, &report);
        self.synced = applied.is_ok();
        if applied.is_err() {
            tracing::info!(full = report.full, "a status report does not match its digest");
            return self.ask_for_all();
        }
        self.asked = false;
        if let Some(intake) = report.muster.get("intake")
            && let Ok(intake) = Intake::deserialize(intake)
        {
            self.session.agents.registry.set_intake(self.session.server, intake);
        }
        self.session.incoming.status(self.session.server, report);
    }

    /// Once per loss: the answer is on its way.
    fn ask_for_all(&mut self) {
        if !std::mem::replace(&mut self.asked, true) {
            self.session.send(Box::new(Status { report: None }));
        }
    }
}

async fn result(session: Session, result: TaskResult) {
    let Session { agents, incoming, server, .. } = session;
    let reply = Reply::Result(Box::new(result.clone()));
    let answered = agents.waiting.resolve(server, &result.id, &reply);
    incoming.result(server, result, answered).await;
}
