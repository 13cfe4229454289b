//! `muster logs`: what agents and coordinators logged of late, and what they log now.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::api::log::{Level, LogLine, LogPage};
use muster_shared::api::task::Task;
use muster_shared::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::answer::Answer;
use crate::cell::{Cell, safe};
use crate::client::Client;
use crate::output::{Output, compact, has_colour, terminal_width, warn, write_out};
use crate::wrap::wrapped;
use crate::{CliError, duration, pick};

/// Lines that are shown if nobody says how many.
const LINES: u16 = 100;
/// Longest wait in one request, seconds.
const WAIT_S: u64 = 25;
/// Between two answers: whoever logs much is read in few requests.
const PAUSE: Duration = Duration::from_millis(300);
/// Before it asks again who did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Fields that only say how a line came about; shown with `-o wide`.
const PLUMBING: [&str; 3] = ["req_id", "server_uuid", "connection"];
/// Of what goes on in the next line.
const INDENT: &str = "  ";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster logs cn1                        the last 100 lines of a node's agent
  muster logs --task 0197a1c2            what its agent logged about a task
  muster logs --vm web1 --follow         about a VM, and new lines until Ctrl-C
  muster logs cn1 --since 10m --level warn
  muster logs --coordinator -o json      one JSON object per line, for programs

Daemons keep their last 2 MiB or so of log lines in memory while they run; the full log of a node is
in its journal (`journalctl -u muster-agent`). log.filter sets what is logged at all. Times are UTC,
from the daemon's clock; `-o wide` shows full times and the module a line comes from. For a guest's
output see `muster vm console`.")]
pub(crate) struct Args {
    /// Node whose agent's log to read: uuid, its beginning, or hostname.
    #[arg(required_unless_present_any = ["task", "vm", "coordinator"])]
    server: Option<String>,
    /// Reads the coordinator's own log.
    #[arg(long, conflicts_with = "server")]
    coordinator: bool,
    /// Only lines about this task; without SERVER, from the agent that runs it.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// Only lines about this VM; without SERVER, from the agent that runs it.
    #[arg(long)]
    vm: Option<String>,
    /// Only lines of this level or above: error, warn, info, debug or trace.
    #[arg(long)]
    level: Option<Level>,
    /// Number of lines, 1 to 1000 [default: 100, or all with --since].
    #[arg(long, short = 'n', value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    lines: Option<u16>,
    /// Only lines newer than this, e.g. `90s`, `10m`, `2h`, `1d`.
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    since: Option<Duration>,
    /// Keeps printing new lines until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let mut log = Log::find(client, output, &args).await?;
    log.begin(&args).await?;
    if !args.follow {
        return Ok(());
    }
    tokio::select! {
        biased;
        ended = log.follow() => ended,
        pressed = tokio::signal::ctrl_c() => {
            pressed.map_err(|source| CliError::Terminal { action: "wait for Ctrl-C", source })
        }
    }
}

/// A log, and how far it was read.
struct Log<'a> {
    client: &'a Client,
    output: &'a Output,
    path: String,
    /// Whose it is.
    hostname: String,
    server_uuid: Option<String>,
    filters: Vec<(&'static str, String)>,
    instance: Uuid,
    next: u64,
}

impl<'a> Log<'a> {
    async fn find(client: &'a Client, output: &'a Output, args: &Args) -> Result<Self, CliError> {
        let mut filters = Vec::new();
        let mut server = args.server.clone();
        if let Some(task) = &args.task {
            let id = pick::task(client, task).await?;
            if server.is_none() && !args.coordinator {
                let task: Answer<Task> = client.get(&format!("/tasks/{id}"), &[]).await?;
                server = Some(task.server_uuid.to_string());
            }
            filters.push(("task", id));
        }
        if let Some(vm) = &args.vm {
            let source_is_given = server.is_some() || args.coordinator;
            // A machine that is gone has lines, too.
            let uuid = match vm.parse::<Uuid>() {
                Ok(uuid) if source_is_given => uuid.to_string(),
                _ => {
                    let vm = pick::vm(client, vm).await?;
                    server.get_or_insert_with(|| vm.server_uuid.to_string());
                    pick::vm_uuid(&vm)
                }
            };
            filters.push(("vm", uuid));
        }
        filters.extend(args.level.map(|level| ("level", level.to_string())));
        let (path, hostname, server_uuid) = match server.filter(|_| !args.coordinator) {
            Some(name) => {
                let server = pick::server(client, &name).await?;
                let uuid = server.record.uuid.to_string();
                (format!("/servers/{uuid}/logs"), server.record.hostname.clone(), Some(uuid))
            }
            None => ("/logs".to_owned(), "coordinator".to_owned(), None),
        };
        let (instance, next) = (Uuid::nil(), 0);
        Ok(Self { client, output, path, hostname, server_uuid, filters, instance, next })
    }

    async fn page(&self, more: &[(&'static str, String)]) -> Result<Answer<LogPage>, CliError> {
        let query = [&self.filters[..], more].concat();
        self.client.get(&self.path, &query).await
    }

    /// Shows what there is.
    async fn begin(&mut self, args: &Args) -> Result<(), CliError> {
        let young = args.since.map(|age| ("max_age", age.as_secs().to_string()));
        let whole = young.is_some() && args.lines.is_none();
        let mut first: Vec<_> = young.clone().into_iter().collect();
        first.push(match whole {
            true => ("after", "0".to_owned()),
            false => ("limit", args.lines.unwrap_or(LINES).to_string()),
        });
        let mut page = self.page(&first).await?;
        loop {
            self.take(&page)?;
            if !whole || page.lines.is_empty() {
                return Ok(());
            }
            let rest = [self.position(), young.clone().into_iter().collect()].concat();
            page = self.page(&rest).await?;
        }
    }

    fn position(&self) -> Vec<(&'static str, String)> {
        vec![("after", self.next.to_string()), ("instance", self.instance.to_string())]
    }

    /// Shows what comes, for ever.
    async fn follow(&mut self) -> Result<(), CliError> {
        let mut away = false;
        loop {
            let mut query = self.position();
            query.push(("wait", WAIT_S.to_string()));
            let page = match self.page(&query).await {
                Ok(page) => page,
                Err(error) if passes(&error) => {
                    if !std::mem::replace(&mut away, true) {
                        warn(&format!("{}: {error}; retrying", self.hostname));
                    }
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(other) => return Err(other),
            };
            away = false;
            if page.instance != self.instance {
                warn(&format!("{} was restarted; its log since then:", self.hostname));
            }
            if page.lost > 0 {
                warn(&format!("{} lines from {} are missing here", page.lost, self.hostname));
            }
            self.take(&page)?;
            if !page.lines.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Shows a page.
    fn take(&mut self, page: &Answer<LogPage>) -> Result<(), CliError> {
        (self.instance, self.next) = (page.instance, page.next);
        if self.output.is_json() {
            let lines = page.json()["lines"].as_array();
            return lines.into_iter().flatten().try_for_each(|line| {
                let mut line = line.clone();
                line["hostname"] = json!(self.hostname);
                line["server_uuid"] = json!(self.server_uuid);
                self.output.line(&line)
            });
        }
        let (wide, width) = (self.output.is_wide(), terminal_width());
        let now = SystemClock::new().wall();
        for line in &page.lines {
            let shown = Shown::of(line, &self.hostname, now, wide);
            write_out(&shown.drawn(width, has_colour()))?;
        }
        Ok(())
    }
}

/// Whether somebody who is away may come back.
fn passes(error: &CliError) -> bool {
    match error {
        CliError::Unreachable { .. } => true,
        CliError::Server { status, .. } => *status != 501,
        _ => false,
    }
}

/// A line for people.
struct Shown {
    level: Level,
    /// Where the level stands in the text.
    at: usize,
    text: String,
}

impl Shown {
    fn of(line: &LogLine, hostname: &str, now: Timestamp, wide: bool) -> Self {
        let time = if wide { line.time.clone() } else { short(&line.time, now) };
        let time = safe(&time);
        let mut text = format!("{time} {:<5} {hostname} ", line.level.as_str().to_uppercase());
        if wide {
            text.push_str(&format!("{} ", line.target));
        }
        text.push_str(&line.message);
        let id = |id: &String| match wide {
            true => id.clone(),
            false => Cell::id(id).text,
        };
        let about = [("task_id", &line.task_id), ("vm", &line.vm_uuid)];
        for (name, of) in about.iter().filter_map(|(name, of)| Some((name, of.as_ref()?))) {
            text.push_str(&format!(" {name}={}", id(of)));
        }
        for (name, value) in &line.fields {
            if wide || !PLUMBING.contains(&name.as_str()) {
                text.push_str(&format!(" {name}={}", quoted(value)));
            }
        }
        Self { level: line.level, at: time.len() + 1, text: safe(&text) }
    }

    fn drawn(&self, width: Option<usize>, colour: bool) -> String {
        let width = width.map(|width| width.saturating_sub(INDENT.len()));
        let text = wrapped(&self.text, width).replace('\n', &format!("\n{INDENT}"));
        let end = self.at + self.level.as_str().len();
        let painted = match self.level {
            Level::Error => Some("31"),
            Level::Warn => Some("33"),
            Level::Debug | Level::Trace => Some("90"),
            Level::Info => None,
        };
        let parts = (text.get(..self.at), text.get(self.at..end), text.get(end..));
        match (painted.filter(|_| colour), parts) {
            (Some(paint), (Some(before), Some(level), Some(after))) => {
                format!("{before}\x1b[{paint}m{level}\x1b[0m{after}")
            }
            _ => text,
        }
    }
}

/// The time of day, with the day unless it is today.
fn short(time: &str, now: Timestamp) -> String {
    let Ok(at) = time.parse::<Timestamp>() else { return time.to_owned() };
    let day = |at: Timestamp| at.strftime("%m-%d").to_string();
    let clock = at.strftime("%H:%M:%S");
    if day(at) == day(now) { clock.to_string() } else { format!("{} {clock}", day(at)) }
}

/// A value, in quotes where it would run into what follows.
fn quoted(value: &Value) -> String {
    let text = compact(value);
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '"');
    if plain { text } else { format!("{text:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: Level, message: &str, fields: &Value) -> LogLine {
        serde_json::from_value(json!({
            "seq": 1, "time": "2026-05-01T10:03:05.123Z", "level": level, "target": "a::b",
            "message": message, "fields": fields,
            "task_id": "0197a1c2-1111-7111-8111-11112222abcd",
        }))
        .unwrap()
    }

    fn text(line: &LogLine, wide: bool) -> String {
        let now = "2026-05-01T20:00:00Z".parse().unwrap();
        Shown::of(line, "cn1", now, wide).drawn(None, false)
    }

    #[test]
    fn people_see_when_how_grave_where_and_what() {
        let fields = json!({ "error": "no room\n", "attempt": 2, "req_id": "r", "empty": "" });
        let line = line(Level::Warn, "it failed\u{1b}[2J", &fields);
        let shown = text(&line, false);
        let want = "10:03:05 WARN  cn1 it failed\\u{1b}[2J task_id=2222abcd \
                    error=\"no room\\n\" attempt=2 empty=\"\"";
        assert_eq!(shown, want);
        let wide = text(&line, true);
        for part in ["2026-05-01T10:03:05.123Z", " a::b ", "req_id=r", "0197a1c2-1111-7111"] {
            assert!(wide.contains(part), "{part}: {wide}");
        }
    }

    #[test]
    fn a_line_of_another_day_says_which() {
        let now = "2026-05-02T01:00:00Z".parse().unwrap();
        assert_eq!(short("2026-05-01T10:03:05.123Z", now), "05-01 10:03:05");
        assert_eq!(short("soon", now), "soon");
    }

    #[test]
    fn only_the_level_is_coloured_and_long_lines_are_broken() {
        let now = "2026-05-01T20:00:00Z".parse().unwrap();
        let line = line(Level::Error, &"word ".repeat(30), &json!({}));
        let drawn = Shown::of(&line, "cn1", now, false).drawn(Some(40), true);
        assert!(drawn.starts_with("10:03:05 \x1b[31mERROR\x1b[0m cn1 word "), "{drawn:?}");
        let plain = drawn.replace("\x1b[31m", "").replace("\x1b[0m", "");
        assert!(plain.lines().count() > 3 && plain.lines().all(|line| line.len() <= 40));
        assert!(plain.lines().skip(1).all(|line| line.starts_with(INDENT)), "{plain}");
    }

    #[test]
    fn who_is_away_may_come_back_and_who_is_too_old_does_not_learn_it() {
        let answered = |status| CliError::Server { status, message: String::new() };
        assert!(passes(&answered(503)) && passes(&answered(500)));
        assert!(!passes(&answered(501)) && !passes(&CliError::NotFound(String::new())));
    }
}
