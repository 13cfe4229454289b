//! The reading half of a session: signs of life for the roster, frames for the worker.
//!
//! It never waits for the store. A heartbeat is the reader's own, and so is a short report that
//! comes while the worker has nothing to do: that is memory's work, and most frames are such. When
//! the worker falls behind, the reader waits for it and takes the silence that this causes upon
//! itself.
//!
//! It is a task of its own: thousands of frames a second arrive, and each wakes nothing else.

use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::error_chain::Chain;
use muster_shared::link::{Frame, FrameStream, LinkError, next_heard};
use muster_shared::wire::{Code, FromAgent, Heartbeat, decode};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::backlog::{Backlog, Waiting};
use super::registry::Ending;
use super::reports::{Reports, short_report};
use super::session::{Garbage, Session, say};

/// A heartbeat is not longer, bytes; it is the reader's, everything else the worker's.
const MAX_HEARTBEAT_BYTES: usize = 512;

/// Reads from one connection.
pub(super) struct Reader {
    pub(super) session: Session,
    pub(super) stream: Box<dyn FrameStream>,
    pub(super) work: mpsc::Sender<Box<Waiting>>,
    pub(super) reports: Arc<Mutex<Reports>>,
    pub(super) garbage: Garbage,
    pub(super) end: watch::Sender<Ending>,
}

impl Reader {
    /// Reads to the end of the connection. After asking the writer to close it, keeps reading, as
    /// the close handshake needs that.
    pub(super) async fn run(mut self) {
        let backlog = Backlog::default();
        loop {
            let frame = match self.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => return self.broken(&error).await,
            };
            let Frame::Text(text) = frame else {
                let text = "binary frames belong on a stream";
                self.session.refuse(None, Code::Malformed, text.to_owned());
                self.garbage.seen();
                continue;
            };
            if let Some(heartbeat) = heartbeat(&text) {
                self.heartbeat(&heartbeat);
                continue;
            }
            // Nothing that came before is waiting, so nothing is overtaken; without its worker the
            // connection has had its turn.
            if backlog.is_empty()
                && !self.work.is_closed()
                && let Some(status) = short_report(&text)
            {
                self.reports.lock().take(&self.session, status);
                continue;
            }
            let session = &self.session;
            let frame = session.vouching(backlog.place(&session.agents.frames, text)).await;
            if session.vouching(self.work.send(frame)).await.is_err() {
                return;
            }
        }
    }

    /// The next frame. A slow frame holds back the heartbeats behind it; its bytes stand for them.
    async fn next(&mut self) -> Result<Option<Frame>, LinkError> {
        let Session { incoming, server, id, .. } = &self.session;
        next_heard(&mut *self.stream, || incoming.heard(*server, *id)).await
    }

    async fn broken(self, error: &LinkError) {
        tracing::info!(
            parent: &self.session.span,
            error = %Chain(error), "the agent's connection ended"
        );
        if matches!(error, LinkError::TooLarge { .. }) {
            say(&self.end, (1009, "a frame is over the limit")).await;
        }
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) {
        let Session { agents, incoming, server, .. } = &self.session;
        let now = agents.parts.clock.wall();
        let skew = heartbeat.ts.parse::<Timestamp>().ok().map(|theirs| {
            i64::try_from(theirs.duration_since(now).as_millis()).unwrap_or(i64::MAX)
        });
        incoming.heartbeat(*server, skew);
    }
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
