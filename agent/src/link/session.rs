//! One connection to one coordinator: hello, welcome, heartbeats, lanes out, messages in.
//!
//! Runs on the link's own thread and does nothing that takes long: what messages mean is decided
//! at the [desk](super::desk), behind a bounded channel.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::{SharedClock, iso};
use muster_shared::ids::VmUuid;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream, LinkError, next_heard};
use muster_shared::wire::status::{Report, Status, VmReport, delta};
use muster_shared::wire::{
    Code, Error, FromAgent, FromCoordinator, Heartbeat, Hello, MAX_FRAME_BYTES, Message as _,
    close, decode, encode, feature,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::desk::ToDesk;
use super::outbox::{Outbox, Outgoing};
use crate::drivers::cluster::{Cluster, Foreign};
use crate::report::feed::Sample;

/// Between heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longest wait for the coordinator's welcome.
const WELCOME_LIMIT: Duration = Duration::from_secs(15);
/// Longest time without a byte of a coordinator that gives signs of life every second.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Longest time one frame may take to be taken by the transport; a slow line is no dead one.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// How a session ended.
#[derive(Debug)]
pub(super) enum End {
    /// The agent wanted it.
    Stopped,
    /// The coordinator closed it, with this code.
    Closed(Option<u16>),
    /// It broke, or the coordinator broke the protocol.
    Broken(String),
    /// The coordinator is of another cluster.
    Foreign(Foreign),
}

/// What a session is part of.
#[derive(Debug)]
pub(super) struct SessionParts<'a> {
    pub(super) id: u64,
    pub(super) url: &'a url::Url,
    pub(super) clock: &'a SharedClock,
    pub(super) cluster: &'a Cluster,
    pub(super) desk: &'a mpsc::Sender<ToDesk>,
    pub(super) stop: &'a CancellationToken,
}

/// Carries messages until the connection ends.
pub(super) async fn run(connection: Connection, hello: Hello, parts: &SessionParts<'_>) -> End {
    let Connection { mut sink, mut stream } = connection;
    let outbox = Arc::new(Outbox::default());
    if let Err(error) = send(sink.as_mut(), hello.into()).await {
        return End::Broken(error);
    }
    let end = tokio::select! {
        biased;
        () = parts.stop.cancelled() => End::Stopped,
        error = write(sink.as_mut(), &outbox, parts.clock) => End::Broken(error),
        end = read(stream.as_mut(), &outbox, parts) => end,
    };
    let replaced = matches!(end, End::Closed(Some(close::REPLACED)));
    let gone = ToDesk::Disconnected { id: parts.id, replaced };
    // The desk ends only with the whole agent.
    parts.desk.send(gone).await.ok();
    match &end {
        End::Stopped => Connection { sink, stream }.shutdown(1001, "agent stops").await,
        End::Broken(_) => sink.close(1002, "protocol error").await,
        End::Foreign(_) => sink.close(close::FOREIGN, "another cluster").await,
        End::Closed(_) => {}
    }
    end
}

async fn send(sink: &mut dyn FrameSink, message: FromAgent) -> Result<(), String> {
    let frame = encode(&message);
    if frame.len() > MAX_FRAME_BYTES {
        // The coordinator would close the connection on it.
        tracing::error!(kind = message.kind(), bytes = frame.len(), "a message is too large");
        return Ok(());
    }
    match timeout(SEND_LIMIT, sink.send(Frame::Text(frame))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(text(&error)),
        Err(_) => Err("the coordinator does not read".to_owned()),
    }
}

fn text(error: &LinkError) -> String {
    muster_shared::error_chain::Chain(error).to_string()
}

/// Heartbeats first, then what waits; returns why it can't go on.
async fn write(sink: &mut dyn FrameSink, outbox: &Outbox, clock: &SharedClock) -> String {
    let mut beat = interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seq = 0;
    let mut reported = None;
    loop {
        let message = tokio::select! {
            biased;
            _ = beat.tick() => {
                let heartbeat = Heartbeat { seq, ts: iso(clock.wall()) };
                seq += 1;
                heartbeat.into()
            }
            outgoing = outbox.next() => match outgoing {
                Outgoing::Message(message) => *message,
                Outgoing::Status { sample, full } => report(&mut reported, &sample, full),
            },
        };
        if outbox.overflowed() {
            return "the coordinator does not read what it asked for".to_owned();
        }
        if let Err(error) = send(sink, message).await {
            return error;
        }
    }
}

/// What of a sample is news on this connection.
fn report(
    reported: &mut Option<BTreeMap<VmUuid, VmReport>>,
    sample: &Sample,
    full: bool,
) -> FromAgent {
    let changes = match reported {
        Some(old) if !full => delta(old, &sample.vms),
        _ => Report::whole(&sample.vms),
    };
    *reported = Some(sample.vms.clone());
    let Report { full, vms, digest, .. } = changes;
    let report = Report { full, vms, digest, ..sample.figures.clone() };
    Box::new(Status { report: Some(report) }).into()
}

/// Hands messages to the desk until the connection ends.
async fn read(stream: &mut dyn FrameStream, outbox: &Arc<Outbox>, parts: &SessionParts<'_>) -> End {
    let welcome = match next(stream, outbox, WELCOME_LIMIT).await {
        Ok(Some(FromCoordinator::Welcome(welcome))) => welcome,
        Ok(Some(_)) => return End::Broken("the first message was no welcome".to_owned()),
        Ok(None) => return End::Closed(stream.close_code()),
        Err(error) => return End::Broken(error),
    };
    let beats = welcome.capabilities.iter().any(|name| name == feature::HEARTBEAT);
    // Of an older one only the transport can tell that it is gone.
    let limit = if beats { SILENCE_LIMIT } else { Duration::MAX };
    // Before anything is told: results are for the cluster that wanted them.
    if let Some(theirs) = welcome.cluster
        && let Err(foreign) = parts.cluster.welcomed(theirs).await
    {
        return End::Foreign(foreign);
    }
    let connected =
        ToDesk::Connected { id: parts.id, url: parts.url.clone(), welcome, outbox: outbox.clone() };
    if parts.desk.send(connected).await.is_err() {
        return End::Stopped;
    }
    loop {
        let message = match next(stream, outbox, limit).await {
            Ok(Some(FromCoordinator::Heartbeat(_))) => continue,
            Ok(Some(message)) => message,
            Ok(None) => return End::Closed(stream.close_code()),
            Err(error) => return End::Broken(error),
        };
        // A busy engine holds back the coordinator here, never the heartbeats.
        let message = ToDesk::Message { id: parts.id, message };
        if parts.desk.send(message).await.is_err() {
            return End::Stopped;
        }
    }
}

/// The next frame, unless no byte arrives for so long: then the coordinator is dead, or stands
/// still, or something between it and here does. Time during which nobody read does not count.
async fn frame_within(
    stream: &mut dyn FrameStream,
    silence: Duration,
) -> Result<Option<Frame>, String> {
    let heard = Notify::new();
    let mut next = pin!(next_heard(stream, || heard.notify_one()));
    loop {
        tokio::select! {
            biased;
            frame = &mut next => return frame.map_err(|error| text(&error)),
            waited = timeout(silence, heard.notified()) => if waited.is_err() {
                return Err(format!("nothing was heard for {} s", silence.as_secs()));
            },
        }
    }
}

/// The next message that is one; others are answered with an error.
async fn next(
    stream: &mut dyn FrameStream,
    outbox: &Outbox,
    silence: Duration,
) -> Result<Option<FromCoordinator>, String> {
    loop {
        let Some(frame) = frame_within(stream, silence).await? else { return Ok(None) };
        let (id, code, message) = match frame {
            Frame::Text(frame) => match decode::<FromCoordinator>(&frame) {
                Ok(message) => return Ok(Some(message)),
                Err(error) => {
                    let text = muster_shared::error_chain::Chain(&error).to_string();
                    (error.about().map(str::to_owned), error.code(), text)
                }
            },
            Frame::Binary(_) => {
                (None, Code::Malformed, "a binary frame on the control connection".to_owned())
            }
        };
        if code == Code::UnknownKind {
            // A later version may send many of them.
            tracing::debug!(message, "a message of a kind that this version does not know");
        } else {
            tracing::warn!(%code, message, "a frame of the coordinator was not understood");
        }
        outbox.control(Error { id, code, message });
    }
}
