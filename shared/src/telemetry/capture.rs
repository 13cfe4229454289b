//! Puts what is logged into the ring, with what the spans around it say.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::ring::{LogRing, NewLine};
use crate::api::Object;
use crate::api::log::Level;
use crate::secrets::masked_members;
use crate::wire::logs::TASK;

/// Longest text of a message or a field, bytes; the rest is cut off.
const MAX_TEXT: usize = 4096;
/// Most fields of a line, those of its spans included.
const MAX_FIELDS: usize = 32;
/// All texts of a line's fields together, bytes.
const MAX_FIELD_BYTES: usize = 8192;

/// The layer.
#[derive(Debug)]
pub(super) struct Capture {
    ring: Arc<LogRing>,
}

impl Capture {
    pub(super) fn new(ring: Arc<LogRing>) -> Self {
        Self { ring }
    }
}

/// The message and the fields of a span or an event.
#[derive(Clone, Debug, Default)]
struct Recorded {
    message: String,
    fields: Object,
}

impl<S> Layer<S> for Capture
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut recorded = Recorded::default();
        attributes.record(&mut recorded);
        span.extensions_mut().insert(recorded);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(recorded) = span.extensions_mut().get_mut::<Recorded>() {
            values.record(recorded);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut recorded = Recorded::default();
        event.record(&mut recorded);
        // The innermost span knows best, and the event better.
        for span in context.event_scope(event).into_iter().flatten() {
            let extensions = span.extensions();
            let Some(outer) = extensions.get::<Recorded>() else { continue };
            // A reader of the log must not be logged: each look would be news for the next one.
            if span.name() == "task" && outer.fields.text("task") == Some(TASK) {
                return;
            }
            for (name, value) in &outer.fields {
                recorded.fields.set_default(name, value.clone());
            }
        }
        self.ring.push(new_line(event, recorded));
    }
}

fn new_line(event: &Event<'_>, recorded: Recorded) -> NewLine {
    let Recorded { message, mut fields } = recorded;
    let mut taken = |name| match fields.remove(name) {
        Some(Value::String(id)) if !id.is_empty() => Some(id),
        _ => None,
    };
    let (task_id, vm_uuid) = (taken("task_id"), taken("vm_uuid"));
    let mut fields = Object::from(masked_members(fields.as_map()));
    let (mut count, mut bytes) = (0, 0);
    fields.retain(|name, value| {
        count += 1;
        bytes += name.len() + value.as_str().map_or(0, str::len);
        count <= MAX_FIELDS && bytes <= MAX_FIELD_BYTES
    });
    let metadata = event.metadata();
    let target = metadata.target().to_owned();
    NewLine { level: level(*metadata.level()), target, message, task_id, vm_uuid, fields }
}

fn level(level: tracing::Level) -> Level {
    match level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

impl Recorded {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.set(field.name(), value);
    }

    fn text(&mut self, field: &Field, text: String) {
        let text = cut(text);
        if field.name() == "message" {
            self.message = text;
        } else {
            self.set(field, text);
        }
    }
}

impl Visit for Recorded {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }
}

/// At most [`MAX_TEXT`] of it, and a sign that there was more.
fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt as _;
    use uuid::Uuid;

    use super::*;
    use crate::api::log::LogLine;
    use crate::clock::SystemClock;
    use crate::wire::logs::LogQuery;

    /// The lines that are kept of what `work` logs.
    async fn kept(work: impl FnOnce()) -> Vec<LogLine> {
        let ring = Arc::new(LogRing::new(Uuid::nil(), Arc::new(SystemClock::new())));
        let subscriber = tracing_subscriber::registry().with(Capture::new(Arc::clone(&ring)));
        tracing::subscriber::with_default(subscriber, work);
        ring.read(&LogQuery::default()).await.lines
    }

    #[tokio::test]
    async fn a_line_has_what_its_spans_say() {
        let lines = kept(|| {
            let outer = tracing::info_span!("agent", server_uuid = "s", attempt = 1);
            let _outer = outer.entered();
            let task = tracing::info_span!(
                "task",
                task_id = "t",
                task = "nop",
                vm_uuid = "",
                late = tracing::field::Empty
            );
            task.record("late", true);
            let _task = task.entered();
            tracing::warn!(attempt = 2, error = %"no\nroom", "it failed");
        })
        .await;
        let line = &lines[0];
        assert_eq!((line.level, line.message.as_str()), (Level::Warn, "it failed"));
        assert_eq!((line.task_id.as_deref(), &line.vm_uuid), (Some("t"), &None));
        let fields = json!({
            "attempt": 2, "error": "no\nroom", "task": "nop", "late": true, "server_uuid": "s",
        });
        assert_eq!(json!(line.fields), fields);
        assert!(line.target.ends_with("capture::tests"), "{}", line.target);
    }

    #[tokio::test]
    async fn a_line_is_bounded_and_keeps_no_secret() {
        let lines = kept(|| {
            let long = "ä".repeat(MAX_TEXT);
            tracing::info!(token = "t0p", root_pw = %"x", a = long, b = long, c = long, "{long}");
        })
        .await;
        let line = json!(lines[0]);
        assert!(line.to_string().len() < 3 * MAX_TEXT + 512, "{}", line.to_string().len());
        assert!(line["message"].as_str().unwrap().ends_with("ä…"));
        assert_eq!(
            (&line["fields"]["token"], &line["fields"]["root_pw"]),
            (&json!("***"), &json!("***"))
        );
    }

    #[tokio::test]
    async fn who_reads_the_log_does_not_read_of_it() {
        let lines = kept(|| {
            let _reader = tracing::info_span!("task", task_id = "t", task = TASK).entered();
            tracing::info!("task begins");
        })
        .await;
        assert_eq!(lines, []);
    }
}
