//! `muster events`: prints what happens, as it happens.

use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use muster_shared::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::CliError;
use crate::cell::{Cell, safe};
use crate::client::Client;
use crate::output::{Output, compact, terminal_width, write_out};
use crate::pick;
use crate::table::shortened;

/// Before it connects again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest line of the stream that is taken, bytes.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster events                          everything, until interrupted
  muster events --kind task --server cn1 a server's tasks, and how they end
  muster -o json events --kind job       one JSON object per line, for programs

Lines begin with the time of day (UTC); `-o wide` shows whole events and their ids, for --after. A
lost connection is re-established and the stream resumes where it stopped; `reset` means that events
were missed in between.")]
pub(crate) struct Args {
    /// Only these kinds.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["server", "vm", "task", "progress", "ticket", "job", "alarm"]
    )]
    kind: Vec<String>,
    /// Only events about this server.
    #[arg(long)]
    server: Option<String>,
    /// Only events about this VM.
    #[arg(long)]
    vm: Option<String>,
    /// Only events about this task: its id or the beginning of it.
    #[arg(long)]
    task: Option<String>,
    /// Resumes after the event with this id.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Exits after this many events.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    if !args.kind.is_empty() {
        query.push(("kind", args.kind.join(",")));
    }
    if let Some(name) = &args.server {
        query.push(("server_uuid", pick::server(client, name).await?.record.uuid.to_string()));
    }
    if let Some(name) = &args.vm {
        query.push(("vm_uuid", pick::vm(client, name).await?.vm.uuid.to_string()));
    }
    if let Some(task) = &args.task {
        query.push(("task", pick::task(client, task).await?));
    }
    let mut reader = Reader { id: args.after, ..Reader::default() };
    let mut left = args.limit.unwrap_or(usize::MAX);
    let mut connected = false;
    while left > 0 {
        match follow(client, output, &query, &mut reader, &mut left).await {
            Ok(()) => connected = true,
            Err(CliError::Unreachable { .. }) if connected => {}
            Err(other) => return Err(other),
        }
        if left > 0 {
            tokio::time::sleep(RETRY).await;
        }
    }
    Ok(())
}

/// Prints the events of one connection until it ends.
async fn follow(
    client: &Client,
    output: &Output,
    query: &[(&str, String)],
    reader: &mut Reader,
    left: &mut usize,
) -> Result<(), CliError> {
    let mut query = query.to_vec();
    query.extend(reader.id.clone().map(|id| ("last_event_id", id)));
    let mut body = client.stream("/events", &query).await?;
    reader.line.clear();
    while let Some(Ok(chunk)) = body.next().await {
        for byte in chunk {
            let Some(event) = reader.take(byte) else { continue };
            show(output, &event)?;
            *left -= 1;
            if *left == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn show(output: &Output, event: &Event) -> Result<(), CliError> {
    if output.is_json() {
        let line = json!({ "id": event.id, "event": event.name, "data": event.data });
        return output.line(&line);
    }
    let text = safe(&event.text(SystemClock::new().wall(), output.is_wide()));
    match terminal_width().filter(|_| !output.is_wide()) {
        Some(width) => write_out(&shortened(&text, width)),
        None => write_out(&text),
    }
}

/// An event as it was received.
#[derive(Debug, Default, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: Value,
}

impl Event {
    /// A line for people: when it happened, or came, and what it says.
    fn text(&self, now: Timestamp, whole: bool) -> String {
        let members = || self.data.as_object().into_iter().flatten();
        let times = ["finished_at", "timestamp", "since"];
        let time = times.iter().find_map(|name| self.data[name].as_str());
        let time = time.and_then(|time| time.parse::<Timestamp>().ok()).unwrap_or(now);
        let pair = |(name, value): (&String, &Value)| {
            let plain = !value.is_null() && name != "revision" && !times.contains(&name.as_str());
            let name = name.strip_suffix("_uuid").unwrap_or(name);
            (plain || whole).then(|| match value.as_str() {
                Some(id) if !whole && id.parse::<Uuid>().is_ok() => {
                    format!("{name}={}", Cell::id(&id).text)
                }
                _ => format!("{name}={}", compact(value)),
            })
        };
        let pairs: Vec<String> = members().filter_map(pair).collect();
        let id = self.id.as_deref().filter(|_| whole).map(|id| format!("{id} "));
        let time = time.strftime("%H:%M:%S");
        format!("{}{time} {:<8} {}", id.unwrap_or_default(), self.name, pairs.join(" "))
    }
}

/// Takes a stream of server-sent events apart.
#[derive(Debug, Default)]
struct Reader {
    line: Vec<u8>,
    name: String,
    data: String,
    /// The last id seen.
    id: Option<String>,
}

impl Reader {
    /// The event that this byte completes.
    fn take(&mut self, byte: u8) -> Option<Event> {
        if byte != b'\n' {
            if self.line.len() < MAX_LINE_BYTES {
                self.line.push(byte);
            }
            return None;
        }
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            let data = serde_json::from_str(&data).ok()?;
            return Some(Event { id: self.id.clone(), name, data });
        }
        match line.split_once(": ") {
            Some(("id", value)) => self.id = Some(value.to_owned()),
            Some(("event", value)) => value.clone_into(&mut self.name),
            Some(("data", value)) => self.data.push_str(value),
            // A comment.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_when_what_happened_to_which() {
        let data = json!({
            "revision": "1.3", "vm_uuid": "e5a32d94-1111-4111-8111-111111111111",
            "state": "running", "alias": null, "timestamp": "2026-05-01T10:03:05.000Z",
        });
        let event = Event { id: Some("1.3.1".to_owned()), name: "vm".to_owned(), data };
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(event.text(now, false), "10:03:05 vm       vm=e5a32d94 state=running");
        let whole = event.text(now, true);
        assert!(whole.starts_with("1.3.1 10:03:05") && whole.contains("-111111111111"), "{whole}");
    }

    #[test]
    fn blocks_become_events() {
        let mut reader = Reader::default();
        let text = ": still here\nid: 1.2\n\nid: 1.3.1\nevent: vm\ndata: {\"a\":1}\n\n";
        let events: Vec<Event> = text.bytes().filter_map(|byte| reader.take(byte)).collect();
        let data = json!({ "a": 1 });
        assert_eq!(events, [Event { id: Some("1.3.1".to_owned()), name: "vm".to_owned(), data }]);
        assert_eq!(reader.id.as_deref(), Some("1.3.1"));
    }
}
