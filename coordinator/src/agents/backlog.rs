//! What sessions have read and not handled: how much one may have, and all of them together.
//!
//! Frames wait as the text that they came as, and are parsed when it is their turn: parsed, one can
//! be forty times as large. Each kind of room has a budget of its own, and who has a place for a
//! parsed frame never waits for one for a text, so that they can't wait for each other.

use muster_shared::json_bounds;

use crate::budget::{Budget, Hold};

/// Frames of one session that wait.
pub(super) const MAX_FRAMES: usize = 64;
/// What the frames of one session that wait may hold: two of the largest.
const SESSION_BYTES: u32 = 4 << 20;
/// What the frames of all sessions that wait may hold.
const TEXT_BYTES: u32 = 64 << 20;
/// What all frames that are being handled may hold.
const PARSED_BYTES: u32 = 64 << 20;
/// What a waiting frame takes beside its text.
const FRAME_BYTES: usize = 256;

/// What the frames of all sessions share.
#[derive(Debug)]
pub(super) struct Frames {
    texts: Budget,
    parsed: Budget,
}

impl Default for Frames {
    fn default() -> Self {
        Self { texts: Budget::new(TEXT_BYTES), parsed: Budget::new(PARSED_BYTES) }
    }
}

impl Frames {
    /// Room for a frame that is to be parsed, as soon as there is some. Cancel-safe.
    pub(super) async fn parse(&self, text: &str) -> Hold {
        let bytes = text.len();
        self.parsed.take(json_bounds::weight(bytes, json_bounds::values(text.as_bytes()))).await
    }
}

/// A frame that waits, with its place.
#[derive(Debug)]
pub(super) struct Waiting {
    /// What the agent sent.
    pub(super) text: String,
    _places: (Hold, Hold),
}

/// The places of one session.
#[derive(Debug)]
pub(super) struct Backlog(Budget);

impl Default for Backlog {
    fn default() -> Self {
        Self(Budget::new(SESSION_BYTES))
    }
}

impl Backlog {
    /// Whether all that had a place was handled.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_free()
    }

    /// A place for a frame, as soon as there is one. Cancel-safe, but for the frame.
    pub(super) async fn place(&self, frames: &Frames, text: String) -> Box<Waiting> {
        let bytes = text.len().saturating_add(FRAME_BYTES);
        // The session's first: who waits for itself must not stand before others.
        let own = self.0.take(bytes).await;
        Box::new(Waiting { _places: (own, frames.texts.take(bytes).await), text })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_session_waits_for_its_own_frames_and_holds_up_no_other() {
        let frames = Frames::default();
        let (flooding, other) = (Backlog::default(), Backlog::default());
        let large = || "x".repeat(1 << 20);
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(flooding.place(&frames, large()).await);
        }
        let mut fourth = Box::pin(flooding.place(&frames, large()));
        assert!(poll!(&mut fourth).is_pending());
        assert!(poll!(Box::pin(other.place(&frames, large()))).is_ready());
        waiting.pop();
        assert!(poll!(fourth).is_ready());
    }

    #[tokio::test]
    async fn what_frames_become_is_bounded_for_all_together() {
        let frames = Frames::default();
        let zeros = format!("[{}0]", "0,".repeat(240_000));
        let mut parsed = Vec::new();
        for _ in 0..2 {
            parsed.push(frames.parse(&zeros).await);
        }
        assert!(poll!(Box::pin(frames.parse(&zeros))).is_pending());
        assert!(poll!(Box::pin(frames.parse("{}"))).is_ready());
        parsed.clear();
        assert!(poll!(Box::pin(frames.parse(&zeros))).is_ready());
    }
}
