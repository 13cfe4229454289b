//! A reader of the event stream: it leaves and comes back, and must be told everything once.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use muster_coordinator::http::LocalApi;
use muster_coordinator::store::Revision;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::coordinator::CoordinatorNode;
use super::invariants::{EventSeen, Model, Verdict, Violation};
use super::trace::Trace;

/// One block of the stream.
#[derive(Debug, Default)]
struct Block {
    id: Option<String>,
    event: String,
    data: String,
}

/// A reader.
#[derive(Debug, Default)]
pub struct Reader {
    blocks: Arc<Mutex<Vec<Block>>>,
    reading: Option<AbortHandle>,
    /// Where it is, as it was told.
    position: Option<String>,
    /// Nothing was missed since.
    from: Option<Revision>,
    events: Vec<EventSeen>,
    /// Changes that it was told of, and how often some were missed.
    count: (usize, usize),
}

fn revision(text: &str) -> Option<(Revision, bool)> {
    let mut parts = text.split('.').map(str::parse::<u64>);
    let epoch = parts.next()?.ok()?;
    let counter = parts.next()?.ok()?;
    // Without a third part all changes of the commit are behind.
    Some((Revision { epoch, counter }, parts.next().is_none()))
}

impl Reader {
    /// Begins to read, or goes on where it was.
    pub fn come(&mut self, coordinator: &CoordinatorNode, trace: &Trace) {
        let Some(served) = coordinator.served() else { return };
        self.leave(trace);
        trace.event(format_args!("the reader of events comes, at {:?}", self.position));
        let reading = read(served.api, self.position.clone(), self.blocks.clone());
        self.reading = coordinator.spawn_abortable(reading);
    }

    /// Closes its connection.
    pub fn leave(&mut self, trace: &Trace) {
        if let Some(reading) = self.reading.take() {
            trace.event("the reader of events leaves");
            reading.abort();
        }
    }

    /// Takes what came.
    ///
    /// # Errors
    /// What it was not told.
    pub fn collect(&mut self, model: &Model, trace: &Trace) -> Verdict {
        let blocks = std::mem::take(&mut *self.blocks.lock());
        for block in blocks {
            let Block { id, event, data } = block;
            trace.data(format_args!("event {id:?} {event}"), data.as_bytes());
            let at = id.as_deref().and_then(revision);
            if id.is_some() {
                self.position = id;
            }
            match event.as_str() {
                "reset" => {
                    self.check(model, None)?;
                    (self.from, self.events) = (at.map(|(at, _)| at), Vec::new());
                    self.count.1 += 1;
                }
                // How far the reader is.
                "" => match (self.from, at) {
                    (None, Some((at, _))) => self.from = Some(at),
                    (Some(_), Some((at, true))) => self.check(model, Some(at))?,
                    _ => {}
                },
                kind => self.take(kind, &data),
            }
        }
        Ok(())
    }

    fn take(&mut self, kind: &str, data: &str) {
        let data: Value = serde_json::from_str(data).unwrap_or_default();
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        let (kind, name) = match kind {
            "task" => ("task", "id"),
            "ticket" => ("ticket", "uuid"),
            "server" => ("server", "server_uuid"),
            _ => return,
        };
        if let Some((at, _)) = revision(&text("revision")) {
            self.events.push((at, kind, text(name), text("status")));
            self.count.0 += 1;
        }
    }

    /// Compares what it was told with what happened, up to `to` or what came last.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check(&mut self, model: &Model, to: Option<Revision>) -> Verdict {
        let Some(from) = self.from else { return Ok(()) };
        let last = self.events.last().map_or(from, |event| event.0);
        let happened = model.events_between(from, to.unwrap_or(last));
        // Of a commit that is not over there may be more to come.
        let over = |event: &&EventSeen| to.is_some() || event.0 < last;
        let seen: BTreeSet<&EventSeen> = self.events.iter().collect();
        if let Some(missing) = happened.iter().filter(over).find(|event| !seen.contains(event)) {
            let detail =
                format!("{missing:?} was not delivered; {} others were", self.events.len());
            return Err(Violation::new("events-have-no-gaps", detail));
        }
        let ordered = self.events.windows(2).all(|pair| pair[0].0 <= pair[1].0);
        if !ordered || seen.len() < self.events.len() {
            let detail = format!("out of order or twice: {:?}", self.events);
            return Err(Violation::new("events-are-delivered-once-in-order", detail));
        }
        if let Some(to) = to {
            (self.from, self.events) = (Some(to), Vec::new());
        }
        Ok(())
    }

    /// Changes that it was told of, and how often it was told that some were missed.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        self.count
    }
}

async fn read(api: LocalApi, position: Option<String>, blocks: Arc<Mutex<Vec<Block>>>) {
    let mut request = Request::builder().uri("/events?kind=task,ticket,server");
    if let Some(position) = position {
        request = request.header("last-event-id", position);
    }
    let request = request.body(Full::new(Bytes::new())).expect("positions are digits");
    let mut body = api.call(request).await.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        // One block is one frame.
        let Ok(bytes) = frame.into_data() else { continue };
        let mut block = Block::default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match line.split_once(": ") {
                Some(("id", id)) => block.id = Some(id.to_owned()),
                Some(("event", event)) => event.clone_into(&mut block.event),
                Some(("data", data)) => data.clone_into(&mut block.data),
                _ => {}
            }
        }
        blocks.lock().push(block);
    }
}
