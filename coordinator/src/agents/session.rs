//! One agent's control connection, from its hello to its end.
//!
//! Three parts run side by side: the reader feeds the roster and never waits for the store; the
//! [worker](super::worker) parses the frames and handles what they say, in order; the writer sends what the
//! application queued. A short report that comes while the worker has nothing to do is taken over by the
//! reader itself: that is memory's work, and most frames are such. When the worker falls behind, the reader waits for it and takes the
//! silence that this causes upon itself.
//!
//! The worker belongs to the application, not to the connection: what was read is handled to its
//! end, and only then does the server's next connection begin. So a change is never left half
//! made, and nothing overtakes it.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::{SharedClock, iso};
use muster_shared::error_chain::Chain;
use muster_shared::ids::ServerUuid;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream, LinkError, next_heard};
use muster_shared::wire::{
    Code, DecodeError, Error as WireError, FromAgent, FromCoordinator, Heartbeat, Hello, Welcome,
    close::REPLACED, decode, encode, feature,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::backlog::{Backlog, MAX_FRAMES, Waiting};
use super::registry::{AgentInfo, Ending, Handle, QUEUE, Queued};
use super::reports::{Reports, short_report};
use super::turns::Working;
use super::worker::Worker;
use super::{Agents, Incoming};
use crate::roster::ConnectionId;

/// A connection on which nothing has arrived is closed when this is found so often, one and a half
/// minutes after the first time: its agent is lost long before, and it takes a place.
const QUIET_LOOKS: u32 = 4;
/// How often that is looked at. A timer for each frame would cost as much as a short frame itself.
const LOOK: Duration = Duration::from_secs(30);
/// Longest silence of ours.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longest time for one frame to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for what the server's last connection brought to be handled.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages of unknown kinds that may come before the hello.
const MAX_BEFORE_HELLO: usize = 16;
/// Frames of a connection that were no messages, before it is closed.
const MAX_PROTOCOL_ERRORS: u32 = 100;
/// A heartbeat is not longer, bytes; it is the reader's, everything else the worker's.
const MAX_HEARTBEAT_BYTES: usize = 512;
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
    Session { agents, incoming, server, id }.serve(hello, sink, stream).instrument(span).await;
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
        let Session { agents, incoming, server, id } = &self.0;
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
        tokio::select! {
            biased;
            () = writer.run(sink, outgoing, ending) => {}
            () = self.read(stream, work, reports, garbage, end) => {}
        }
        drop(presence);
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

    /// Reads to the end of the connection. After asking the writer to close it, keeps reading, as
    /// the close handshake needs that.
    async fn read(
        &self,
        mut stream: Box<dyn FrameStream>,
        work: mpsc::Sender<Box<Waiting>>,
        reports: Arc<Mutex<Reports>>,
        garbage: Garbage,
        end: watch::Sender<Ending>,
    ) {
        let backlog = Backlog::default();
        let mut silence = Silence::new();
        loop {
            let frame = match self.next(&mut *stream, &mut silence).await {
                Some(Ok(Some(frame))) => frame,
                Some(Ok(None)) => return,
                Some(Err(error)) => {
                    tracing::info!(error = %Chain(&error), "the agent's connection ended");
                    if matches!(error, LinkError::TooLarge { .. }) {
                        return say(&end, (1009, "a frame is over the limit")).await;
                    }
                    return;
                }
                None => {
                    tracing::info!("the agent's connection is silent");
                    return say(&end, (1008, "silent for too long")).await;
                }
            };
            let Frame::Text(text) = frame else {
                let text = "binary frames belong on a stream";
                self.refuse(None, Code::Malformed, text.to_owned());
                garbage.seen();
                continue;
            };
            if let Some(heartbeat) = heartbeat(&text) {
                self.heartbeat(&heartbeat);
                continue;
            }
            // Nothing that came before is waiting, so nothing is overtaken.
            if backlog.is_empty()
                && let Some(status) = short_report(&text)
            {
                reports.lock().take(self, status);
                continue;
            }
            let frame = self.vouching(backlog.place(&self.agents.frames, text)).await;
            if self.vouching(work.send(frame)).await.is_err() {
                return;
            }
        }
    }

    /// The next frame; `None` when nothing at all arrives. A slow frame holds back the heartbeats
    /// behind it; its bytes stand for them.
    async fn next(
        &self,
        stream: &mut dyn FrameStream,
        silence: &mut Silence,
    ) -> Option<Result<Option<Frame>, LinkError>> {
        loop {
            let Silence { timer, looks } = silence;
            let heard = || {
                *looks = 0;
                self.incoming.heard(self.server, self.id);
            };
            tokio::select! {
                biased;
                next = next_heard(stream, heard) => return Some(next),
                () = timer.as_mut() => {}
            }
            silence.looks += 1;
            if silence.looks >= QUIET_LOOKS {
                return None;
            }
            silence.timer.set(tokio::time::sleep(LOOK));
        }
    }

    /// Waits for `what`, during which it is we who do not read.
    async fn vouching<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::pin!(what);
        loop {
            match tokio::time::timeout(VOUCH, &mut what).await {
                Ok(done) => return done,
                Err(_) => self.incoming.heard(self.server, self.id),
            }
        }
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) {
        let now = self.agents.parts.clock.wall();
        let skew = heartbeat.ts.parse::<Timestamp>().ok().map(|theirs| {
            i64::try_from(theirs.duration_since(now).as_millis()).unwrap_or(i64::MAX)
        });
        self.incoming.heartbeat(self.server, skew);
    }
}

/// How long nothing has arrived on a connection.
struct Silence {
    timer: Pin<Box<tokio::time::Sleep>>,
    /// How often it was looked at since something arrived.
    looks: u32,
}

impl Silence {
    fn new() -> Self {
        Self { timer: Box::pin(tokio::time::sleep(LOOK)), looks: 0 }
    }
}

/// Lets the writer say why the connection ends, after which nothing more of it is read.
async fn say(end: &watch::Sender<Ending>, why: (u16, &'static str)) {
    end.send_replace(Some(why));
    end.closed().await;
}

/// The heartbeat that a frame is, if it is one.
fn heartbeat(text: &str) -> Option<Heartbeat> {
    // Reports that nothing changed are as short and as many, and would be parsed twice.
    if text.len() > MAX_HEARTBEAT_BYTES || !text.contains("heartbeat") {
        return None;
    }
    match decode(text) {
        Ok(FromAgent::Heartbeat(heartbeat)) => Some(heartbeat),
        Ok(_) | Err(_) => None,
    }
}

/// The writing half of a session.
struct Writer {
    clock: SharedClock,
    cancel: CancellationToken,
    /// The agent listens to heartbeats.
    beats: bool,
}

impl Writer {
    /// Sends what is queued until the connection ends or is to end.
    async fn run(
        self,
        mut sink: Box<dyn FrameSink>,
        mut outgoing: mpsc::Receiver<Queued>,
        mut ending: watch::Receiver<Ending>,
    ) {
        let mut seq = 0;
        loop {
            let message = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return close(sink, 1012, "restarting").await,
                (code, reason) = ended(&mut ending) => return close(sink, code, reason).await,
                message = outgoing.recv() => message,
                () = tokio::time::sleep(HEARTBEAT), if self.beats => {
                    seq += 1;
                    Some(Box::new(Heartbeat { seq, ts: iso(self.clock.wall()) }.into()))
                }
            };
            let Some(message) = message else {
                // A newer connection took this one's place in the registry.
                return close(sink, REPLACED, "replaced by a newer connection").await;
            };
            let sent = sink.send(Frame::Text(encode(&*message)));
            match tokio::time::timeout(SEND_TIMEOUT, sent).await {
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
}

async fn ended(ending: &mut watch::Receiver<Ending>) -> (u16, &'static str) {
    let end = ending.wait_for(Option::is_some).await;
    end.ok().and_then(|end| *end).unwrap_or((1001, "going away"))
}

async fn close(mut sink: Box<dyn FrameSink>, code: u16, reason: &str) {
    // A peer that does not read is dropped without a close frame.
    tokio::time::timeout(Duration::from_secs(2), sink.close(code, reason)).await.ok();
}
