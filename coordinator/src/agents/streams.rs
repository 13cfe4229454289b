//! Byte streams: asked for on the control connection, carried on a second websocket that the
//! agent dials, piped to the client's with flow control in both directions.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream, LinkError};
use muster_shared::wire::stream::{Control, MAX_DATA_BYTES, WINDOW_BYTES};
use muster_shared::wire::{Code, StreamKind, StreamOpen};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Agents, CallError, SendError};

/// Longest time for one frame to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Close code for what ends because the coordinator does.
const RESTARTING: u16 = 1012;

/// Why there is no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StreamError {
    /// `VmNotFound`, `VmNotRunning`, …
    pub code: Code,
    /// For people.
    pub message: String,
}

type Opened = Result<Connection, StreamError>;

/// Streams that were asked for and have not come.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<BTreeMap<Uuid, oneshot::Sender<Opened>>>);

impl Streams {
    /// The agent will not open a stream.
    pub(crate) fn refused(&self, id: &str, code: &Code, message: &str) {
        let waiter = id.parse().ok().and_then(|id: Uuid| self.0.lock().remove(&id));
        if let Some(waiter) = waiter {
            let error = StreamError { code: code.clone(), message: message.to_owned() };
            // Whoever waited has given up meanwhile, which is fine.
            waiter.send(Err(error)).ok();
        }
    }
}

impl Agents {
    /// Asks a server's agent for a stream and waits for it to dial.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Stream`] when the agent refuses.
    pub async fn open_stream(
        &self,
        server: ServerUuid,
        vm: VmUuid,
        kind: StreamKind,
    ) -> Result<Connection, CallError> {
        let stream_id = self.parts.entropy.uuid();
        let (tx, rx) = oneshot::channel();
        self.streams.0.lock().insert(stream_id, tx);
        let sent = self.send(server, StreamOpen { stream_id, stream: kind, vm_uuid: vm });
        let opened = match sent {
            Ok(()) => tokio::time::timeout(self.parts.stream_timeout, rx).await,
            Err(error) => {
                self.streams.0.lock().remove(&stream_id);
                return Err(match error {
                    SendError::NotConnected => CallError::NotConnected(server),
                    SendError::Busy => CallError::Busy(server),
                });
            }
        };
        self.streams.0.lock().remove(&stream_id);
        match opened {
            Ok(Ok(Ok(connection))) => Ok(connection),
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(CallError::Stopping),
            Err(_) => Err(CallError::Timeout("the stream".to_owned())),
        }
    }

    /// Takes over the second websocket of a stream; `false` when nobody waits for it.
    #[must_use]
    pub fn accept_stream(&self, stream_id: Uuid, connection: Connection) -> bool {
        let waiter = self.streams.0.lock().remove(&stream_id);
        waiter.is_some_and(|waiter| waiter.send(Ok(connection)).is_ok())
    }

    /// Whether somebody waits for this stream.
    #[must_use]
    pub fn expects_stream(&self, stream_id: Uuid) -> bool {
        self.streams.0.lock().contains_key(&stream_id)
    }
}

/// Carries bytes between a client (plain frames) and an agent (the stream protocol) until either
/// ends or this coordinator stops, which the client is told: the guest goes on, and so may it.
pub(crate) async fn pipe(client: Connection, agent: Connection, stop: &CancellationToken) {
    let Connection { sink: mut to_client, stream: from_client } = client;
    let Connection { sink: to_agent, stream: from_agent } = agent;
    let credit = watch::Sender::new(WINDOW_BYTES);
    let to_agent = tokio::sync::Mutex::new(to_agent);
    let (code, reason) = tokio::select! {
        biased;
        () = stop.cancelled() => (RESTARTING, "the coordinator is stopping".to_owned()),
        end = down(from_agent, &mut *to_client, &to_agent, &credit) => end,
        end = up(from_client, &to_agent, &credit) => end,
    };
    let client = tokio::time::timeout(SEND_TIMEOUT, to_client.close(code, &reason));
    let close = text(&Control::Close { code: Code::StreamDone, message: String::new() });
    let mut to_agent = to_agent.into_inner();
    let agent = async {
        if send(&mut *to_agent, close).await.is_ok() {
            tokio::time::timeout(SEND_TIMEOUT, to_agent.close(1000, "done")).await.ok();
        }
    };
    // Neither waits for the other, which may be gone.
    tokio::join!(client, agent).0.ok();
}

/// From the agent to the client, giving credit back as the client takes the bytes.
async fn down(
    mut from_agent: Box<dyn FrameStream>,
    to_client: &mut dyn FrameSink,
    to_agent: &tokio::sync::Mutex<Box<dyn FrameSink>>,
    credit: &watch::Sender<u64>,
) -> (u16, String) {
    loop {
        match from_agent.next().await {
            Ok(Some(Frame::Binary(bytes))) => {
                let taken = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                if send(to_client, Frame::Binary(bytes)).await.is_err() {
                    return (1001, "the client is gone".to_owned());
                }
                let window = text(&Control::Window { bytes: taken });
                if send(&mut **to_agent.lock().await, window).await.is_err() {
                    return (1011, "the agent is gone".to_owned());
                }
            }
            Ok(Some(Frame::Text(control))) => match serde_json::from_str(&control) {
                Ok(Control::Window { bytes }) => {
                    credit.send_modify(|c| *c = c.saturating_add(bytes).min(WINDOW_BYTES));
                }
                Ok(Control::Notice { message }) => {
                    if send(to_client, Frame::Text(message)).await.is_err() {
                        return (1001, "the client is gone".to_owned());
                    }
                }
                Ok(Control::Close { code, message }) => {
                    let orderly =
                        matches!(code, Code::StreamDone | Code::VmNotRunning | Code::VmNotFound);
                    return (if orderly { 1000 } else { 1011 }, message);
                }
                // A kind of a later version.
                Err(_) => {}
            },
            // An agent that lives says why it ends.
            Ok(None) | Err(_) => return (1011, "the agent is gone".to_owned()),
        }
    }
}

/// From the client to the agent, as far as the agent gave credit.
async fn up(
    mut from_client: Box<dyn FrameStream>,
    to_agent: &tokio::sync::Mutex<Box<dyn FrameSink>>,
    credit: &watch::Sender<u64>,
) -> (u16, String) {
    loop {
        let mut bytes = match from_client.next().await {
            Ok(Some(Frame::Binary(bytes))) => bytes,
            Ok(Some(Frame::Text(text))) => text.into(),
            Ok(None) | Err(_) => return (1000, "the client is gone".to_owned()),
        };
        while !bytes.is_empty() {
            let mut open = credit.subscribe();
            let Ok(available) = open.wait_for(|credit| *credit > 0).await.map(|credit| *credit)
            else {
                return (1011, "the agent is gone".to_owned());
            };
            let available = usize::try_from(available).unwrap_or(MAX_DATA_BYTES);
            let chunk = bytes.split_to(bytes.len().min(MAX_DATA_BYTES).min(available));
            let used = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            credit.send_modify(|credit| *credit = credit.saturating_sub(used));
            let sent = send(&mut **to_agent.lock().await, Frame::Binary(chunk)).await;
            if sent.is_err() {
                return (1011, "the agent is gone".to_owned());
            }
        }
    }
}

fn text(control: &Control) -> Frame {
    Frame::Text(serde_json::to_string(control).expect("a control frame has only string keys"))
}

async fn send(sink: &mut dyn FrameSink, frame: Frame) -> Result<(), LinkError> {
    match tokio::time::timeout(SEND_TIMEOUT, sink.send(frame)).await {
        Ok(sent) => sent,
        Err(_) => Err(LinkError::Broken("the peer does not read".into())),
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::link::memory;

    use super::*;

    #[tokio::test]
    async fn a_viewer_is_told_that_its_coordinator_stops_and_may_come_back() {
        let (client, mut viewer) = memory::pair();
        let (agent, mut guest) = memory::pair();
        let stop = CancellationToken::new();
        let piped = pipe(client, agent, &stop);
        let watched = async {
            guest.sink.send(Frame::Binary("login: ".into())).await.unwrap();
            let first = viewer.stream.next().await.unwrap();
            assert_eq!(first, Some(Frame::Binary("login: ".into())));
            stop.cancel();
            assert_eq!(viewer.stream.next().await.unwrap(), None);
            assert_eq!(viewer.stream.close_code(), Some(RESTARTING));
        };
        tokio::join!(piped, watched);
        // The agent is told as well, and goes on with the guest.
        while let Some(frame) = guest.stream.next().await.unwrap() {
            assert!(matches!(frame, Frame::Text(_)), "{frame:?}");
        }
        assert_eq!(guest.stream.close_code(), Some(1000));
    }
}
