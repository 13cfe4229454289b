//! Byte streams between a coordinator and a guest's device, on a websocket of their own.
//!
//! A sender may have [`WINDOW_BYTES`] on their way; the receiver gives credit back as it consumes.
//! So neither a guest that does not read its console nor a client that does not read its screen
//! makes this process hold more than one window.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream};
use muster_shared::wire::stream::{Control, ENDPOINT_PATH, MAX_DATA_BYTES, PROTOCOL, WINDOW_BYTES};
use muster_shared::wire::{Error, StreamKind, StreamOpen};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::LinkParts;
use super::outbox::Outbox;
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
    let refuse = |code: &str, message: String| {
        let id = Some(open.stream_id.to_string());
        outbox.control(Error { id, code: code.to_owned(), message });
    };
    let port = match open.stream {
        StreamKind::Console => GuestPort::Console,
        StreamKind::Vnc => GuestPort::Vnc,
    };
    let guest = match parts.drivers.compute.open(open.vm_uuid, port).await {
        Ok(guest) => guest,
        Err(DriverError::Refused { code, message }) => return refuse(code, message),
        Err(error) => {
            return refuse("error", muster_shared::error_chain::Chain(&error).to_string());
        }
    };
    let mut target = url.clone();
    target.set_path(&format!("{ENDPOINT_PATH}/{}", open.stream_id));
    let connection = match timeout(OPEN_LIMIT, parts.dialer.dial(&target, PROTOCOL)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            return refuse("error", muster_shared::error_chain::Chain(&error).to_string());
        }
        Err(_) => return refuse("error", "the stream's connection took too long".to_owned()),
    };
    tracing::info!(stream_id = %open.stream_id, vm_uuid = %open.vm_uuid, "stream opened");
    carry(connection, guest, stop).await;
    tracing::info!(stream_id = %open.stream_id, "stream closed");
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
async fn carry(connection: Connection, guest: Box<dyn GuestIo>, stop: &CancellationToken) {
    let Connection { mut sink, mut stream } = connection;
    let flow = Flow::default();
    flow.state.lock().credit = WINDOW_BYTES;
    let (reader, writer) = tokio::io::split(guest);
    let (code, message) = tokio::select! {
        biased;
        () = stop.cancelled() => ("error", "the agent stops".to_owned()),
        end = receive(stream.as_mut(), &flow) => end,
        end = to_guest(writer, &flow) => end,
        end = from_guest(reader, sink.as_mut(), &flow) => end,
    };
    let close = Control::Close { code: code.to_owned(), message };
    if let Ok(text) = serde_json::to_string(&close) {
        // The peer may be the one who ended it.
        sink.send(Frame::Text(text)).await.ok();
    }
    Connection { sink, stream }.shutdown(1000, code).await;
}

type Ended = (&'static str, String);

async fn receive(stream: &mut dyn FrameStream, flow: &Flow) -> Ended {
    loop {
        match stream.next().await {
            Ok(Some(Frame::Binary(bytes))) => {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                let mut state = flow.state.lock();
                state.waiting_bytes = state.waiting_bytes.saturating_add(length);
                if state.waiting_bytes > WINDOW_BYTES {
                    return ("error", "more than a window was sent".to_owned());
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
                Ok(Control::Close { .. }) => return ("done", String::new()),
                // A kind of a later version.
                Err(_) => {}
            },
            Ok(None) => return ("done", String::new()),
            Err(error) => return ("error", error.to_string()),
        }
    }
}

async fn to_guest(mut guest: impl tokio::io::AsyncWrite + Unpin, flow: &Flow) -> Ended {
    loop {
        let next = flow.state.lock().waiting.pop_front();
        let Some(bytes) = next else {
            flow.inbound.notified().await;
            continue;
        };
        if let Err(error) = guest.write_all(&bytes).await {
            return ("done", format!("the guest's device closed: {error}"));
        }
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut state = flow.state.lock();
        state.waiting_bytes = state.waiting_bytes.saturating_sub(length);
        state.consumed = state.consumed.saturating_add(length);
        drop(state);
        flow.outbound.notify_one();
    }
}

async fn from_guest(
    mut guest: impl tokio::io::AsyncRead + Unpin,
    sink: &mut dyn FrameSink,
    flow: &Flow,
) -> Ended {
    let mut buffer = vec![0; MAX_DATA_BYTES];
    loop {
        let (consumed, credit) = {
            let mut state = flow.state.lock();
            (std::mem::take(&mut state.consumed), state.credit)
        };
        if consumed > 0 {
            let window = Control::Window { bytes: consumed };
            let text = serde_json::to_string(&window).unwrap_or_default();
            if let Err(error) = sink.send(Frame::Text(text)).await {
                return ("error", error.to_string());
            }
        }
        let room = usize::try_from(credit).unwrap_or(usize::MAX).min(buffer.len());
        let read = tokio::select! {
            biased;
            () = flow.outbound.notified() => continue,
            read = guest.read(&mut buffer[..room]), if room > 0 => read,
        };
        let length = match read {
            Ok(0) => return ("done", "the guest's device closed".to_owned()),
            Ok(length) => length,
            Err(error) => return ("done", format!("the guest's device closed: {error}")),
        };
        {
            let mut state = flow.state.lock();
            state.credit = state.credit.saturating_sub(u64::try_from(length).unwrap_or(u64::MAX));
        }
        let frame = Frame::Binary(Bytes::copy_from_slice(&buffer[..length]));
        if let Err(error) = sink.send(frame).await {
            return ("error", error.to_string());
        }
    }
}
