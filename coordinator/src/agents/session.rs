//! One agent's control connection, from its hello to its end.
//!
//! Three parts run side by side, each woken by nothing but its own work: the
//! [reader](super::reader) feeds the roster and never waits for the store; the
//! [worker](super::worker) parses the frames and handles what they say, in order; the
//! [writer](super::writer) sends what the application queued.
//!
//! The worker belongs to the application, not to the connection: what was read is handled to its
//! end, and only then does the server's next connection begin. So a change is never left half
//! made, and nothing overtakes it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream};
use muster_shared::wire::{
    Code, DecodeError, Error as WireError, FromAgent, FromCoordinator, Hello, Welcome, decode,
    feature,
};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, Span};

use super::backlog::MAX_FRAMES;
use super::reader::Reader;
use super::registry::{AgentInfo, Ending, Handle, QUEUE};
use super::turns::Working;
use super::worker::Worker;
use super::writer::{Writer, close};
use super::{Agents, Incoming};
use crate::roster::ConnectionId;

/// A connection on which nothing arrives for this long is closed: its agent is lost long before, and
/// it takes a place.
const QUIET: Duration = Duration::from_secs(90);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(30);
/// Longest wait for what the server's last connection brought to be handled.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of unknown kinds that may come before the hello.
const MAX_BEFORE_HELLO: usize = 16;
/// Frames of a connection that were no messages, before it is closed.
const MAX_PROTOCOL_ERRORS: u32 = 100;
/// How often the reader vouches for an agent whose frames it can't take.
const VOUCH: Duration = Duration::from_millis(500);

/// Runs a session to its end.
pub(super) async fn run(agents: Arc<Agents>, connection: Connection, id: ConnectionId) {
    let Some(incoming) = agents.incoming.get().and_then(Weak::upgrade) else { return };
    let Connection { mut sink, mut stream } = connection;
    let hello = tokio::select! {
        biased;
        () = agents.parts.cancel.cancelled() => return sink.close(1012, "restarting").await,
        hello = tokio::time::timeout(agents.parts.hello_timeout, first(&mut *stream)) => hello,
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
    let session = Session { agents, incoming, server, id, span: span.clone() };
    session.serve(hello, sink, stream).instrument(span).await;
}

async fn first(stream: &mut dyn FrameStream) -> Result<Hello, &'static str> {
    // Kinds of a later version may come first.
    for _ in 0..MAX_BEFORE_HELLO {
        match stream.next().await {
            Ok(Some(Frame::Text(text))) => match decode(&text) {
                Ok(FromAgent::Hello(hello)) => return Ok(hello),
                Err(DecodeError::UnknownKind { .. }) => {}
                Ok(_) | Err(_) => break,
            },
            Ok(Some(Frame::Binary(_))) => break,
            Ok(None) | Err(_) => return Err("closed before its hello"),
        }
    }
    Err("the first message is not a hello")
}

/// What all parts of a session know.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) agents: Arc<Agents>,
    pub(super) incoming: Arc<dyn Incoming>,
    pub(super) server: ServerUuid,
    pub(super) id: ConnectionId,
    /// Where its events belong.
    pub(super) span: Span,
}

/// Frames of a connection that were no messages; too many end it.
#[derive(Clone, Debug)]
pub(super) struct Garbage {
    seen: Arc<AtomicU32>,
    end: watch::Sender<Ending>,
}

impl Garbage {
    fn new(end: watch::Sender<Ending>) -> Self {
        Self { seen: Arc::default(), end }
    }

    /// One more.
    pub(super) fn seen(&self) {
        if self.seen.fetch_add(1, Ordering::Relaxed) >= MAX_PROTOCOL_ERRORS {
            self.end.send_replace(Some((1008, "too many protocol errors")));
        }
    }
}

/// The connection is open for the roster and, once it has its turn, in the registry.
struct Presence(Session);

impl Presence {
    fn new(session: &Session) -> Self {
        session.incoming.connected(session.server, session.id);
        Self(session.clone())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let Session { agents, incoming, server, id, .. } = &self.0;
        agents.registry.remove(*server, *id);
        incoming.closed(*server, *id);
        tracing::info!("agent disconnected");
    }
}

impl Session {
    async fn serve(self, hello: Hello, mut sink: Box<dyn FrameSink>, stream: Box<dyn FrameStream>) {
        if let Some(reason) = self.turns_away(&hello) {
            return close(sink, reason.close_code(), reason.text()).await;
        }
        let presence = Presence::new(&self);
        let Some(turn) = self.turn().await else {
            tracing::warn!("what the agent said before is still being handled");
            return close(sink, 1013, "try again later").await;
        };
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (end, ending) = watch::channel(None);
        let (work, backlog) = mpsc::channel(MAX_FRAMES);
        // First into the queue, so that nothing the application sends can overtake it.
        let welcome = self.welcome();
        let wants_sysinfo =
            welcome.sysinfo_hash.is_empty() || welcome.sysinfo_hash != hello.sysinfo_hash;
        if queue.try_send(Box::new(welcome.into())).is_err() {
            return sink.close(1011, "no room for the welcome").await;
        }
        tracing::info!(version = hello.version, wants_sysinfo, "agent connected");
        let info = AgentInfo {
            version: hello.version,
            capabilities: self.agents.registry.share(hello.capabilities),
            boot_id: hello.boot_id,
            agent_instance_id: hello.agent_instance_id,
            intake: hello.intake,
            connected_at: iso(self.agents.parts.clock.wall()),
        };
        let beats = info.capabilities.iter().any(|name| name == feature::HEARTBEAT);
        let writer = Writer {
            clock: self.agents.parts.clock.clone(),
            cancel: self.agents.parts.cancel.clone(),
            beats,
        };
        let garbage = Garbage::new(end.clone());
        let handle = Handle { connection: self.id, queue, end: end.clone(), info };
        self.agents.registry.insert(self.server, handle);
        let reports = Arc::default();
        let worker = Worker::new(self.clone(), garbage.clone(), Arc::clone(&reports));
        let worker = worker.run(backlog, turn).in_current_span();
        let worker = self.agents.parts.tracker.spawn(worker);
        let _planted = self.agents.parts.planted.worker(worker);
        let session = self.clone();
        let reader = Reader { session, stream, work, reports, garbage, end: end.clone() };
        let mut reader = AbortOnDropHandle::new(self.agents.parts.tracker.spawn(reader.run()));
        tokio::select! {
            biased;
            () = writer.run(sink, outgoing, ending) => {}
            // A reader that panics has said so, and its connection ends as any other.
            _ = &mut reader => {}
            () = self.watch_silence(&end) => {}
        }
        drop((reader, presence));
    }

    /// Ends a connection on which nothing arrives.
    async fn watch_silence(&self, end: &watch::Sender<Ending>) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            look.tick().await;
            let silence = self.incoming.silence(self.server, self.id);
            if silence.is_some_and(|silence| silence >= QUIET) {
                tracing::info!("the agent's connection is silent");
                return say(end, (1008, "silent for too long")).await;
            }
        }
    }

    /// Waits for `what`, during which it is we who do not read.
    pub(super) async fn vouching<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::pin!(what);
        loop {
            match tokio::time::timeout(VOUCH, &mut what).await {
                Ok(done) => return done,
                Err(_) => self.incoming.heard(self.server, self.id),
            }
        }
    }

    /// Ends the server's older connection and waits until what it brought was handled; `None` when
    /// that takes too long.
    async fn turn(&self) -> Option<Working> {
        self.agents.registry.end(self.server);
        let turn = self.vouching(self.agents.turns.take(self.server));
        tokio::time::timeout(TURN_TIMEOUT, turn).await.ok()
    }

    fn welcome(&self) -> Welcome {
        let known = self.incoming.known(self.server);
        Welcome {
            instance: self.agents.parts.instance.clone(),
            capabilities: [feature::HEARTBEAT, feature::REFUSALS].map(str::to_owned).to_vec(),
            members: self.agents.parts.advertised_urls.clone(),
            open_task_ids: known.open_task_ids,
            sysinfo_hash: known.sysinfo_hash,
            cluster: self.incoming.cluster(),
        }
    }

    pub(super) fn send(&self, message: impl Into<FromCoordinator>) {
        if let Err(error) = self.agents.send_on(self.server, self.id, message) {
            tracing::debug!(%error, "message to the agent dropped");
        }
    }

    pub(super) fn refuse(&self, id: Option<String>, code: Code, message: String) {
        self.send(WireError { id, code, message });
    }
}

/// Lets the writer say why the connection ends, after which nothing more of it is read.
pub(super) async fn say(end: &watch::Sender<Ending>, why: (u16, &'static str)) {
    end.send_replace(Some(why));
    end.closed().await;
}
