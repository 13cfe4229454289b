//! `/events`: what happens, as server-sent events.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Method;
use http::header::{CACHE_CONTROL, HeaderValue};
use serde_json::json;

use super::MAX_EVENT_STREAMS_OF_CLIENT;
use super::error::ApiError;
use super::places::Share;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use crate::app::events::{EventFilter, EventKind, Item, Position, Subscription};

const EVENT_STREAM: &str = "text/event-stream";
const LAST_EVENT_ID: &str = "last-event-id";

const PARAMS: &[Param] = &[
    Param::new(
        "kind",
        &[Rule::Optional, Rule::StringType],
        "Only of these kinds: server, vm, task, progress, ticket, job, alarm; comma-separated",
    ),
    Param::new("server_uuid", &[Rule::Optional, Rule::Uuid], "Only about this server"),
    Param::new("vm_uuid", &[Rule::Optional, Rule::Uuid], "Only about this VM"),
    Param::new("task", &[Rule::Optional, Rule::StringType], "Only about the task of this id"),
    Param::new(
        "last_event_id",
        &[Rule::Optional, Rule::StringType],
        "After this event; the header Last-Event-ID takes precedence",
    ),
];
const HEADERS: &[Param] =
    &[Param::new(LAST_EVENT_ID, &[Rule::Optional, Rule::StringType], "After this event")];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/events", "EventStream", events)
            .summary("Events as they happen (server-sent events); can be resumed")
            .params(PARAMS)
            .headers(HEADERS)
            .errors(&[503])
            .returns_bytes(EVENT_STREAM),
    ]
}

async fn events(request: Request) -> Result<Response, ApiError> {
    let mut kinds = BTreeSet::new();
    for word in request.text("kind").into_iter().flat_map(|text| text.split(',')) {
        let kind: EventKind = word.trim().parse().map_err(|()| {
            let names: Vec<_> = EventKind::ALL.iter().map(|(_, name)| *name).collect();
            ApiError::invalid("kind", format!("must be of {}", names.join(", ")))
        })?;
        kinds.insert(kind);
    }
    let task = request.text("task").map(|text| {
        text.parse().map_err(|_| ApiError::invalid("task", "must be the id of a task"))
    });
    let filter = EventFilter {
        kinds,
        server: request.text("server_uuid").and_then(|text| text.parse().ok()),
        vm: request.text("vm_uuid").and_then(|text| text.parse().ok()),
        task: task.transpose()?,
    };
    let header = request.headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok());
    let after = header.or_else(|| request.text("last_event_id")).filter(|text| !text.is_empty());
    let after = after.map(|text| {
        let bad = |()| ApiError::invalid("last_event_id", "must be the id of an event");
        text.parse::<Position>().map_err(bad)
    });
    let most = MAX_EVENT_STREAMS_OF_CLIENT;
    let share = request.share(&request.shell.event_streams, most, "event streams")?;
    let subscription = request.app.events.subscribe(filter, after.transpose()?).await?;
    // Ends with the listener: nobody waits for a stream that never ends by itself.
    let leaving = request.shell.leaving.clone();
    let blocks = stream::unfold((subscription, share), next).take_until(leaving.cancelled_owned());
    Ok(Response::endless(EVENT_STREAM, blocks.map(Ok).boxed())
        .header(CACHE_CONTROL, HeaderValue::from_static("no-store")))
}

/// The next block; a stream's share of its client's is over with the stream.
async fn next(mut reading: (Subscription, Share)) -> Option<(Bytes, (Subscription, Share))> {
    let item = reading.0.next().await?;
    Some((Bytes::from(block(item)), reading))
}

/// One block of the stream. A block without data only moves the reader's position.
fn block(item: Item) -> String {
    match item {
        Item::Change(position, change) => {
            let kind = change.body.kind().as_str();
            format!("id: {position}\nevent: {kind}\ndata: {}\n\n", json!(change))
        }
        Item::Progress(change) => {
            let kind = change.body.kind().as_str();
            format!("event: {kind}\ndata: {}\n\n", json!(change))
        }
        Item::Reset(position, reason) => {
            let data = json!({ "revision": position.to_string(), "reason": reason });
            format!("id: {position}\nevent: reset\ndata: {data}\n\n")
        }
        Item::Idle(position) => format!(": still here\nid: {position}\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::events::{Change, EventBody, VmEvent};

    #[test]
    fn blocks_are_server_sent_events() {
        let position: Position = "1.7.2".parse().unwrap();
        let state = Some("two\nlines".to_owned());
        let body = EventBody::Vm(Box::new(VmEvent { state, ..VmEvent::default() }));
        let change = Change { body, revision: None };
        let shown = block(Item::Change(position, change.clone()));
        assert!(shown.starts_with("id: 1.7.2\nevent: vm\ndata: {"), "{shown}");
        assert!(shown.contains("\"state\":\"two\\nlines\"") && shown.ends_with("}\n\n"), "{shown}");
        assert!(block(Item::Progress(change)).starts_with("event: vm\ndata: "));
        assert_eq!(block(Item::Idle(position)), ": still here\nid: 1.7.2\n\n");
        assert!(block(Item::Reset(position, "x")).contains("event: reset\n"));
    }
}
