//! Byte streams between a coordinator and a guest's device, on a websocket of their own.
//!
//! A sender may have [`WINDOW_BYTES`] on their way; the receiver gives credit back as it consumes.
//! So neither a guest that does not read its console nor a client that does not read its screen
//! makes this process hold more than one window.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream};
use muster_shared::wire::stream::{Control, ENDPOINT_PATH, MAX_DATA_BYTES, PROTOCOL, WINDOW_BYTES};
use muster_shared::wire::{Code, Error, StreamKind, StreamOpen};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::LinkParts;
use super::outbox::Outbox;
use crate::consoles::{Event, Viewer};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestIo, GuestPort};

/// Longest time from the request to the open stream; the coordinator gives it up then.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Serves one stream to its end.
pub(super) async fn run(
    parts: &LinkParts,
    url: &Url,
    open: StreamOpen,
    outbox: &Outbox,
    stop: &CancellationToken,
) {
    let refuse = |code: Code, message: String| {
        let id = Some(open.stream_id.to_string());
        outbox.control(Error { id, code, message });
    };
    let guest = match Guest::open(parts, open.stream, open.vm_uuid).await {
        Ok(guest) => guest,
        Err(DriverError::Refused { code, message, .. }) => return refuse(code, message),
        Err(error) => {
            tracing::warn!(vm_uuid = %open.vm_uuid, error = %Chain(&error), "no stream");
            return refuse(
                Code::StreamFailed,
                format!("the device of VM {} does not answer", open.vm_uuid),
            );
        }
    };
    let mut target = url.clone();
    target.set_path(&format!("{ENDPOINT_PATH}/{}", open.stream_id));
    let connection = match timeout(OPEN_LIMIT, parts.dialer.dial(&target, PROTOCOL)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::warn!(vm_uuid = %open.vm_uuid, error = %Chain(&error), "no stream");
            return refuse(Code::StreamFailed, error.to_string());
        }
        Err(_) => {
            return refuse(Code::StreamFailed, "the stream's connection took too long".to_owned());
        }
    };
    tracing::info!(stream_id = %open.stream_id, vm_uuid = %open.vm_uuid, "stream opened");
    carry(connection, guest, stop).await;
    tracing::info!(stream_id = %open.stream_id, "stream closed");
}

/// The guest's end of a stream.
#[derive(Debug)]
enum Guest {
    Console(Viewer),
    Display(Device),
}

struct Device(Box<dyn GuestIo>);

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Device")
    }
}

impl Guest {
    async fn open(parts: &LinkParts, kind: StreamKind, vm: VmUuid) -> Result<Self, DriverError> {
        Ok(match kind {
            StreamKind::Console => Self::Console(parts.consoles.attach(vm).await?),
            StreamKind::Vnc => {
                Self::Display(Device(parts.drivers.compute.open(vm, GuestPort::Vnc).await?))
            }
            StreamKind::Other => {
                return Err(DriverError::refused(Code::NotSupported, "no stream of this kind"));
            }
        })
    }

    fn split(self) -> (Source, Target) {
        match self {
            Self::Console(viewer) => {
                let viewer = Arc::new(viewer);
                (Source::Console(Arc::clone(&viewer)), Target::Console(viewer))
            }
            Self::Display(Device(io)) => {
                let (reader, writer) = tokio::io::split(io);
                (Source::Display(reader, vec![0; MAX_DATA_BYTES]), Target::Display(writer))
            }
        }
    }
}

/// What comes from the guest.
enum Source {
    Console(Arc<Viewer>),
    Display(ReadHalf<Box<dyn GuestIo>>, Vec<u8>),
}

impl Source {
    /// At most `room` bytes. Cancel-safe.
    async fn next(&mut self, room: usize) -> Result<Event, Ended> {
        match self {
            Self::Console(viewer) => viewer.next(room).await.map_err(|end| (end.code, end.message)),
            Self::Display(reader, buffer) => {
                let room = room.min(buffer.len());
                match reader.read(&mut buffer[..room]).await {
                    Ok(0) => Err((Code::StreamDone, "the guest's device closed".to_owned())),
                    Ok(length) => Ok(Event::Output(Bytes::copy_from_slice(&buffer[..length]))),
                    Err(error) => {
                        Err((Code::StreamDone, format!("the guest's device closed: {error}")))
                    }
                }
            }
        }
    }
}

/// What goes to the guest.
enum Target {
    Console(Arc<Viewer>),
    Display(WriteHalf<Box<dyn GuestIo>>),
}

impl Target {
    async fn write(&mut self, bytes: Bytes) -> Result<(), Ended> {
        match self {
            Self::Console(viewer) => {
                viewer.write(bytes).await;
                Ok(())
            }
            Self::Display(writer) => writer
                .write_all(&bytes)
                .await
                .map_err(|error| (Code::StreamDone, format!("the guest's device closed: {error}"))),
        }
    }
}

/// What the three directions of work share.
#[derive(Debug, Default)]
struct Flow {
    state: Mutex<FlowState>,
    inbound: Notify,
    outbound: Notify,
}

#[derive(Debug, Default)]
struct FlowState {
    /// Received and not yet written to the guest.
    waiting: VecDeque<Bytes>,
    waiting_bytes: u64,
    /// Credit to give back to the peer.
    consumed: u64,
    /// Credit of the peer's that is left to us.
    credit: u64,
}

/// Carries bytes both ways until either side ends.
async fn carry(connection: Connection, guest: Guest, stop: &CancellationToken) {
    let Connection { mut sink, mut stream } = connection;
    let flow = Flow::default();
    flow.state.lock().credit = WINDOW_BYTES;
    let (source, target) = guest.split();
    let (code, message) = tokio::select! {
        biased;
        () = stop.cancelled() => (Code::StreamFailed, "the agent stops".to_owned()),
        end = receive(stream.as_mut(), &flow) => end,
        end = to_guest(target, &flow) => end,
        end = from_guest(source, sink.as_mut(), &flow) => end,
    };
    // The peer may be the one who ended it.
    sink.send(control(&Control::Close { code: code.clone(), message })).await.ok();
    Connection { sink, stream }.shutdown(1000, code.as_str()).await;
}

type Ended = (Code, String);

async fn receive(stream: &mut dyn FrameStream, flow: &Flow) -> Ended {
    loop {
        match stream.next().await {
            Ok(Some(Frame::Binary(bytes))) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                let mut state = flow.state.lock();
                state.waiting_bytes = state.waiting_bytes.saturating_add(length);
                if state.waiting_bytes > WINDOW_BYTES {
                    return (Code::StreamFailed, "more than a window was sent".to_owned());
                }
                state.waiting.push_back(bytes);
                drop(state);
                flow.inbound.notify_one();
            }
            Ok(Some(Frame::Text(text))) => match serde_json::from_str::<Control>(&text) {
                Ok(Control::Window { bytes }) => {
                    let mut state = flow.state.lock();
                    state.credit = state.credit.saturating_add(bytes).min(WINDOW_BYTES);
                    drop(state);
                    flow.outbound.notify_one();
                }
                Ok(Control::Close { .. }) => return (Code::StreamDone, String::new()),
                // Nothing a client says, or a kind of a later version.
                Ok(Control::Notice { .. }) | Err(_) => {}
            },
            Ok(None) => return (Code::StreamDone, String::new()),
            Err(error) => return (Code::StreamFailed, error.to_string()),
        }
    }
}

async fn to_guest(mut guest: Target, flow: &Flow) -> Ended {
    loop {
        let next = flow.state.lock().waiting.pop_front();
        let Some(bytes) = next else {
            flow.inbound.notified().await;
            continue;
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if let Err(ended) = guest.write(bytes).await {
            return ended;
        }
        let mut state = flow.state.lock();
        state.waiting_bytes = state.waiting_bytes.saturating_sub(length);
        state.consumed = state.consumed.saturating_add(length);
        drop(state);
        flow.outbound.notify_one();
    }
}

async fn from_guest(mut guest: Source, sink: &mut dyn FrameSink, flow: &Flow) -> Ended {
    loop {
        let (consumed, credit) = {
            let mut state = flow.state.lock();
            (std::mem::take(&mut state.consumed), state.credit)
        };
        if consumed > 0 {
            let window = control(&Control::Window { bytes: consumed });
            if let Err(error) = sink.send(window).await {
                return (Code::StreamFailed, error.to_string());
            }
        }
        let room = usize::try_from(credit).unwrap_or(usize::MAX).min(MAX_DATA_BYTES);
        let event = tokio::select! {
            biased;
            () = flow.outbound.notified() => continue,
            event = guest.next(room), if room > 0 => event,
        };
        let frame = match event {
            Ok(Event::Output(bytes)) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                let mut state = flow.state.lock();
                state.credit = state.credit.saturating_sub(length);
                drop(state);
                Frame::Binary(bytes)
            }
            Ok(Event::Notice(message)) => control(&Control::Notice { message }),
            Err(ended) => return ended,
        };
        if let Err(error) = sink.send(frame).await {
            return (Code::StreamFailed, error.to_string());
        }
    }
}

fn control(control: &Control) -> Frame {
    Frame::Text(serde_json::to_string(control).unwrap_or_default())
}
