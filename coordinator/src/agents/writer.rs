//! The writing half of a session: what the application queued, heartbeats, and the close.

use std::time::Duration;

use muster_shared::clock::{SharedClock, iso};
use muster_shared::error_chain::Chain;
use muster_shared::link::{Frame, FrameSink};
use muster_shared::wire::{Heartbeat, close::REPLACED, encode};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::registry::{Ending, Queued};

/// Longest silence of ours.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Longest time for one frame to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for a close frame to leave.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Writes to one connection.
pub(super) struct Writer {
    pub(super) clock: SharedClock,
    pub(super) cancel: CancellationToken,
    /// The agent listens to heartbeats.
    pub(super) beats: bool,
}

impl Writer {
    /// Sends what is queued until the connection ends or is to end.
    pub(super) async fn run(
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

/// Closes a connection with a code; a peer that does not read is dropped without a close frame.
pub(super) async fn close(mut sink: Box<dyn FrameSink>, code: u16, reason: &str) {
    tokio::time::timeout(CLOSE_TIMEOUT, sink.close(code, reason)).await.ok();
}
