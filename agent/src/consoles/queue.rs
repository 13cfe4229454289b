//! What waits for one viewer. Bounded: who does not read loses the oldest bytes, and nobody waits.

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{End, Event};

/// Bytes that wait for a viewer.
pub(super) const LIMIT_BYTES: usize = 128 * 1024;
/// Pieces that wait for a viewer: output, and notices between it.
const LIMIT_PIECES: usize = 64;

#[derive(Debug)]
enum Piece {
    Output(BytesMut),
    Notice(String),
}

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Piece>,
    bytes: usize,
    skipped: usize,
    end: Option<End>,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
}

impl Waiting {
    fn trim(&mut self) {
        while self.bytes > LIMIT_BYTES || self.pieces.len() > LIMIT_PIECES {
            let excess = self.bytes.saturating_sub(LIMIT_BYTES);
            let Some(Piece::Output(output)) = self.pieces.front_mut() else {
                self.pieces.pop_front();
                continue;
            };
            // Over the limit of pieces alone, the whole piece goes.
            let cut = if excess == 0 { output.len() } else { excess.min(output.len()) };
            output.advance(cut);
            let empty = output.is_empty();
            self.bytes -= cut;
            self.skipped += cut;
            if empty {
                self.pieces.pop_front();
            }
        }
    }

    fn take(&mut self, room: usize) -> Option<Result<Event, End>> {
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            let text = format!("{skipped} bytes were skipped: they were not read in time");
            return Some(Ok(Event::Notice(text)));
        }
        let event = match self.pieces.front_mut() {
            Some(Piece::Output(output)) => {
                let bytes = output.split_to(room.min(output.len())).freeze();
                let empty = output.is_empty();
                self.bytes -= bytes.len();
                if empty {
                    self.pieces.pop_front();
                }
                Event::Output(bytes)
            }
            Some(Piece::Notice(text)) => {
                let text = std::mem::take(text);
                self.pieces.pop_front();
                Event::Notice(text)
            }
            None => return self.end.clone().map(Err),
        };
        Some(Ok(event))
    }
}

impl Queue {
    pub(super) fn output(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        match waiting.pieces.back_mut() {
            Some(Piece::Output(last)) => last.extend_from_slice(bytes),
            _ => waiting.pieces.push_back(Piece::Output(BytesMut::from(bytes))),
        }
        waiting.bytes += bytes.len();
        waiting.trim();
        drop(waiting);
        self.news.notify_one();
    }

    pub(super) fn notice(&self, text: &str) {
        let mut waiting = self.waiting.lock();
        waiting.pieces.push_back(Piece::Notice(text.to_owned()));
        waiting.trim();
        drop(waiting);
        self.news.notify_one();
    }

    pub(super) fn end(&self, end: End) {
        self.waiting.lock().end = Some(end);
        self.news.notify_one();
    }

    pub(super) async fn next(&self, room: usize) -> Result<Event, End> {
        loop {
            let taken = self.waiting.lock().take(room);
            match taken {
                Some(event) => return event,
                None => self.news.notified().await,
            }
        }
    }
}
