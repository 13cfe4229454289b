//! `muster events`: prints what happens, as it happens.

use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::CliError;
use crate::client::Client;
use crate::output::{Output, compact, print};
use crate::pick;

/// Before it connects again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest line of the stream that is taken, bytes.
const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster events                          everything, until interrupted
  muster events --kind task --server cn1 what tasks a server gets, and how they end
  muster -o json events --kind job       one JSON object in a line, for programs

It connects again when the connection ends, and goes on where it was. `reset` says that something
was missed in between.")]
pub(crate) struct Args {
    /// Only these kinds.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["server", "vm", "task", "progress", "ticket", "job", "alarm"]
    )]
    kind: Vec<String>,
    /// Only about this server.
    #[arg(long)]
    server: Option<String>,
    /// Only about this VM.
    #[arg(long)]
    vm: Option<String>,
    /// Only about the task of this id.
    #[arg(long)]
    task: Option<String>,
    /// After the event of this id.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Stops after so many events.
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
    query.extend(args.task.map(|task| ("task", task)));
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
        return print(&line.to_string());
    }
    let members = event.data.as_object().into_iter().flatten();
    let shown = members.filter(|(name, value)| *name != "revision" && !value.is_null());
    let text: Vec<String> =
        shown.map(|(name, value)| format!("{name}={}", compact(value))).collect();
    print(&format!("{:<8} {}", event.name, text.join(" ")))
}

/// An event as it was received.
#[derive(Debug, Default, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: Value,
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
    fn blocks_become_events() {
        let mut reader = Reader::default();
        let text = ": still here\nid: 1.2\n\nid: 1.3.1\nevent: vm\ndata: {\"a\":1}\n\n";
        let events: Vec<Event> = text.bytes().filter_map(|byte| reader.take(byte)).collect();
        let data = json!({ "a": 1 });
        assert_eq!(events, [Event { id: Some("1.3.1".to_owned()), name: "vm".to_owned(), data }]);
        assert_eq!(reader.id.as_deref(), Some("1.3.1"));
    }
}
