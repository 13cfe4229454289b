//! One agent's control connection, from its hello to its end.
//!
//! Three parts run side by side: the reader feeds the roster with every frame and never waits for
//! the store; the worker handles what the frames say, in order; the writer sends what the
//! application queued. When the worker falls behind, the reader waits for it and takes the
//! silence that this causes upon itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream};
use muster_shared::wire::status::{Status, VmReport, apply};
use muster_shared::wire::{
    Code, DecodeError, Error as WireError, FromAgent, FromCoordinator, Heartbeat, Hello, Sysinfo,
    TaskResult, Welcome, decode, encode,
};
use tokio::sync::{mpsc, watch};
use tracing::Instrument as _;

use super::registry::{AgentInfo, Ending, Handle, QUEUE};
use super::waiting::Reply;
use crate::app::App;
use crate::roster::ConnectionId;

/// Messages read but not handled yet.
const BACKLOG: usize = 64;
/// Results of one agent that wait for the store at a time.
const MAX_RESULTS: usize = 64;
/// Longest time for one frame to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Frames of a connection that were no messages, before it is closed.
const MAX_PROTOCOL_ERRORS: u32 = 100;
/// How often the reader vouches for an agent whose frames it can't take.
const VOUCH: Duration = Duration::from_millis(500);

/// Runs a session to its end.
pub(crate) async fn run(app: Arc<App>, connection: Connection, id: ConnectionId) {
    let Connection { mut sink, mut stream } = connection;
    let hello = tokio::select! {
        biased;
        () = app.cancel.cancelled() => return sink.close(1012, "restarting").await,
        hello = tokio::time::timeout(app.config.hello_timeout, first(&mut *stream)) => hello,
    };
    let hello = match hello {
        Ok(Ok(hello)) => hello,
        Ok(Err(reason)) => {
            tracing::warn!(reason, "refused an agent's connection");
            return sink.close(1002, reason).await;
        }
        Err(_) => return sink.close(1002, "no hello in time").await,
    };
    let server = hello.server_uuid;
    let span = tracing::info_span!("agent", server_uuid = %server, connection = id.0);
    Session { app, server, id }.serve(hello, sink, stream).instrument(span).await;
}

async fn first(stream: &mut dyn FrameStream) -> Result<Hello, &'static str> {
    match stream.next().await {
        Ok(Some(Frame::Text(text))) => match decode(&text) {
            Ok(FromAgent::Hello(hello)) => Ok(hello),
            Ok(_) | Err(_) => Err("the first frame is no hello"),
        },
        Ok(Some(Frame::Binary(_))) => Err("the first frame is no hello"),
        Ok(None) | Err(_) => Err("closed before its hello"),
    }
}

/// What all parts of a session know.
#[derive(Clone, Debug)]
struct Session {
    app: Arc<App>,
    server: ServerUuid,
    id: ConnectionId,
}

impl Session {
    async fn serve(self, hello: Hello, sink: Box<dyn FrameSink>, stream: Box<dyn FrameStream>) {
        let app = Arc::clone(&self.app);
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (end, ending) = watch::channel(None);
        let (work, backlog) = mpsc::channel(BACKLOG);
        // First into the queue, so that nothing the application sends can overtake it.
        let welcome = self.welcome();
        let wants_sysinfo =
            welcome.sysinfo_hash.is_empty() || welcome.sysinfo_hash != hello.sysinfo_hash;
        if queue.try_send(welcome.into()).is_err() {
            return;
        }
        tracing::info!(version = hello.version, wants_sysinfo, "agent connected");
        let info = AgentInfo {
            version: hello.version,
            capabilities: hello.capabilities,
            boot_id: hello.boot_id,
            agent_instance_id: hello.agent_instance_id,
            intake: hello.intake,
            connected_at: iso(app.parts.clock.wall()),
        };
        let handle = Handle { connection: self.id, queue, end: end.clone(), info };
        app.agents.registry.insert(self.server, handle);
        app.roster_connected(self.server, self.id);
        let worker = Worker {
            session: self.clone(),
            reported: BTreeMap::new(),
            synced: false,
            asked: false,
        };
        tokio::select! {
            biased;
            () = write(sink, outgoing, ending, &app) => {}
            () = self.read(stream, work, end) => {}
            () = worker.run(backlog) => {}
        }
        app.agents.registry.remove(self.server, self.id);
        app.agents.waiting.disconnect(self.server, self.id);
        app.roster_closed(self.server, self.id);
        tracing::info!("agent disconnected");
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            instance: self.app.parts.instance.clone(),
            capabilities: Vec::new(),
            members: self.app.config.advertised_urls.clone(),
            open_task_ids: self.app.tasks.of_server(self.server),
            sysinfo_hash: self
                .app
                .fleet
                .with(self.server, |entry| entry.sysinfo_hash.clone())
                .unwrap_or_default(),
        }
    }

    fn send(&self, message: impl Into<FromCoordinator>) {
        if let Err(error) = self.app.agents.send_on(self.server, self.id, message) {
            tracing::debug!(%error, "message to the agent dropped");
        }
    }

    async fn result(self, result: TaskResult) {
        let Self { app, server, .. } = &self;
        let reply = Reply::Result(Box::new(result.clone()));
        let asked = app.agents.waiting.resolve(*server, &result.id, &reply);
        // The answer to a query belongs to whoever asked, and to nobody else.
        if !asked || app.tasks.get(&result.id).is_some() {
            app.task_result(*server, result).await;
        }
    }

    fn refuse(&self, id: Option<String>, code: Code, message: String) {
        self.send(WireError { id, code, message });
    }

    /// Reads to the end of the connection. After asking the writer to close it, keeps reading, as
    /// the close handshake needs that.
    async fn read(
        &self,
        mut stream: Box<dyn FrameStream>,
        work: mpsc::Sender<FromAgent>,
        end: watch::Sender<Ending>,
    ) {
        let mut errors = 0;
        loop {
            let frame = match stream.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    tracing::info!(error = %Chain(&error), "the agent's connection ended");
                    return;
                }
            };
            self.app.roster_frame(self.server, self.id);
            let Some(message) = self.decode(frame) else {
                errors += 1;
                if errors > MAX_PROTOCOL_ERRORS {
                    end.send_replace(Some((1008, "too many protocol errors")));
                }
                continue;
            };
            match message {
                FromAgent::Heartbeat(heartbeat) => self.heartbeat(&heartbeat),
                message => {
                    if !self.hand_over(&work, message).await {
                        return;
                    }
                }
            }
        }
    }

    async fn hand_over(&self, work: &mpsc::Sender<FromAgent>, message: FromAgent) -> bool {
        let sending = work.send(message);
        tokio::pin!(sending);
        loop {
            match tokio::time::timeout(VOUCH, &mut sending).await {
                Ok(sent) => return sent.is_ok(),
                // It is we who do not read.
                Err(_) => self.app.roster_frame(self.server, self.id),
            }
        }
    }

    fn decode(&self, frame: Frame) -> Option<FromAgent> {
        let Frame::Text(text) = frame else {
            self.refuse(None, Code::Malformed, "binary frames belong on a stream".to_owned());
            return None;
        };
        match decode(&text) {
            Ok(message) => Some(message),
            Err(error) => {
                let code = match &error {
                    DecodeError::UnknownKind(_) => Code::UnknownKind,
                    DecodeError::TooLarge(_)
                    | DecodeError::NotAMessage(_)
                    | DecodeError::Malformed { .. } => Code::Malformed,
                };
                self.refuse(None, code, Chain(&error).to_string());
                None
            }
        }
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) {
        let now = self.app.parts.clock.wall();
        let skew = heartbeat.ts.parse::<Timestamp>().ok().map(|theirs| {
            i64::try_from(theirs.duration_since(now).as_millis()).unwrap_or(i64::MAX)
        });
        self.app.fleet.note(self.server, |entry| {
            entry.last_heartbeat = Some(now);
            entry.clock_skew_ms = skew;
        });
    }
}

/// Sends what is queued until the connection ends or is to end.
async fn write(
    mut sink: Box<dyn FrameSink>,
    mut outgoing: mpsc::Receiver<FromCoordinator>,
    mut ending: watch::Receiver<Ending>,
    app: &App,
) {
    loop {
        let message = tokio::select! {
            biased;
            () = app.cancel.cancelled() => return close(sink, 1012, "restarting").await,
            (code, reason) = ended(&mut ending) => return close(sink, code, reason).await,
            message = outgoing.recv() => message,
        };
        let Some(message) = message else {
            // A newer connection took this one's place in the registry.
            return close(sink, 4001, "replaced by a newer connection").await;
        };
        let sent = tokio::time::timeout(SEND_TIMEOUT, sink.send(Frame::Text(encode(&message))));
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::info!(error = %Chain(&error), "cannot send to the agent");
                return;
            }
            Err(_) => {
                tracing::info!("the agent does not read");
                return;
            }
        }
    }
}

async fn ended(ending: &mut watch::Receiver<Ending>) -> (u16, &'static str) {
    let end = ending.wait_for(Option::is_some).await;
    end.ok().and_then(|end| *end).unwrap_or((1001, "going away"))
}

async fn close(mut sink: Box<dyn FrameSink>, code: u16, reason: &str) {
    // A peer that does not read is dropped without a close frame.
    tokio::time::timeout(Duration::from_secs(2), sink.close(code, reason)).await.ok();
}

/// Handles messages in the order in which they came.
struct Worker {
    session: Session,
    /// The VMs as this connection's reports say.
    reported: BTreeMap<VmUuid, VmReport>,
    /// `reported` is what the agent thinks it is.
    synced: bool,
    /// A full report was asked for and has not come.
    asked: bool,
}

impl Worker {
    /// Handles messages in order, but for results: each waits for the store, which takes those of
    /// many tasks in one write.
    async fn run(mut self, mut backlog: mpsc::Receiver<FromAgent>) {
        let mut results = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                Some(()) = results.next() => continue,
                message = backlog.recv(), if results.len() < MAX_RESULTS => message,
            };
            match message {
                Some(FromAgent::Result(result)) => {
                    results.push(self.session.clone().result(result))
                }
                Some(message) => self.handle(message).await,
                None => break,
            }
        }
        while let Some(()) = results.next().await {}
    }

    async fn handle(&mut self, message: FromAgent) {
        let Session { app, server, id } = &self.session;
        let server = *server;
        match message {
            FromAgent::Hello(_) => {
                self.session.refuse(None, Code::Malformed, "a second hello".to_owned());
            }
            FromAgent::Heartbeat(_) => {}
            FromAgent::Sysinfo(sysinfo) => self.sysinfo(sysinfo).await,
            FromAgent::Status(status) => self.status(*status),
            FromAgent::Accepted(accepted) => {
                app.task_accepted(server, &accepted.id);
                app.agents.waiting.resolve(server, &accepted.id, &Reply::Accepted);
            }
            FromAgent::Progress(progress) => app.task_progress(server, &progress),
            // See `run`.
            FromAgent::Result(_) => {}
            FromAgent::Error(error) => {
                tracing::debug!(
                    code = %error.code,
                    message = error.message,
                    connection = id.0,
                    "agent refused"
                );
                let Some(about) = error.id.and_then(|id| id.parse::<TaskId>().ok()) else { return };
                app.agents.streams.refused(about.as_str(), &error.code, &error.message);
                let (code, message) = (error.code.clone(), error.message.clone());
                let asked =
                    app.agents.waiting.resolve(server, &about, &Reply::Error { code, message });
                if !asked {
                    app.task_refused(server, &about, &error.code, &error.message).await;
                }
            }
        }
    }

    async fn sysinfo(&self, sysinfo: Sysinfo) {
        let Session { app, server, .. } = &self.session;
        let done = app.sysinfo_from_agent(*server, sysinfo).await;
        if let Err(error) = done {
            tracing::warn!(error = %Chain(&error), "cannot take over the agent's sysinfo");
            self.session.refuse(None, Code::Malformed, error.to_string());
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
        let Session { app, server, .. } = &self.session;
        app.status_report(*server, report);
    }

    /// Once per loss: the answer is on its way.
    fn ask_for_all(&mut self) {
        if !std::mem::replace(&mut self.asked, true) {
            self.session.send(Box::new(Status { report: None }));
        }
    }
}
