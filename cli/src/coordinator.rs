//! `muster coordinator`: how a coordinator is, and what it logs.

use clap::Subcommand;
use muster_shared::api::info::{Diagnostics, LogLevel, Ping, ServiceState, Version};
use serde_json::json;

use crate::CliError;
use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::output::Output;
use crate::page::{Page, when};

/// The levels, and their numbers in the API.
const LEVELS: [(&str, u64); 6] =
    [("trace", 10), ("debug", 20), ("info", 30), ("warn", 40), ("error", 50), ("off", 60)];

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Shows the coordinator: health, version, memory, open tasks.
    Get,
    /// Shows the log level, or changes it until the coordinator restarts.
    Loglevel {
        /// New level.
        #[arg(value_parser = LEVELS.map(|(name, _)| name))]
        level: Option<String>,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Get => get(client, output).await,
        Args::Loglevel { level } => {
            if let Some(level) = &level {
                client.post::<()>("/loglevel", &json!({ "level": level })).await?;
            }
            let level = level_of(&client.get("/loglevel", &[]).await?);
            output.done(level, &json!({ "level": level }))
        }
    }
}

async fn get(client: &Client, output: &Output) -> Result<(), CliError> {
    let ping: Answer<Ping> = client.get("/ping", &[]).await?;
    let version: Version = client.get("/info", &[]).await?;
    let diagnostics: Answer<Diagnostics> = client.get("/diagnostics", &[]).await?;
    let level = level_of(&client.get("/loglevel", &[]).await?);
    if output.is_json() {
        return output.object(&json!({
            "ping": ping.json(), "version": version.version, "log_level": level,
            "diagnostics": diagnostics.json(),
        }));
    }
    page(&ping, &version, &diagnostics, level).print()
}

fn level_of(level: &LogLevel) -> &'static str {
    LEVELS.iter().find(|(_, number)| *number == level.level).map_or("info", |(name, _)| name)
}

fn page(ping: &Ping, version: &Version, diagnostics: &Diagnostics, level: &str) -> Page {
    let state = match (ping.ready, ping.services.moray) {
        (true, _) => "ready",
        (false, ServiceState::Offline) => "not ready: its store does not work",
        (false, ServiceState::Online) => "not ready",
    };
    let mut page = Page::new(format!("the coordinator is {state}"));
    page.group("Coordinator")
        .line("Version", &version.version)
        .line("Started", when(&diagnostics.start_timestamp))
        .line("Memory", Cell::bytes(Some(diagnostics.memory.rss)).text)
        .line("Log level", level);
    page.group("Open tasks");
    for (kind, tasks) in &diagnostics.task_callbacks {
        page.line(kind, tasks.len().to_string());
    }
    page.next("muster server list").next("muster logs --coordinator --level warn");
    page
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn text(ready: bool, store: &str) -> String {
        let services = json!({ "workflow": "online", "moray": store, "amqp": "online" });
        let diagnostics = json!({
            "start_timestamp": "2026-01-01T00:00:00.000Z", "pendingActivationsByServer": {},
            "memory": { "rss": 64 << 20, "heapTotal": 0, "heapUsed": 0, "external": 0 },
            "taskCallbacks": { "machine_create": [{ "id": uuid::Uuid::nil() }] },
        });
        let read = |value: Value| serde_json::from_value::<Diagnostics>(value).unwrap();
        let ping = serde_json::from_value(json!({ "ready": ready, "services": services })).unwrap();
        let version = Version { version: "1.2.3".to_owned() };
        page(&ping, &version, &read(diagnostics), "debug").text(None)
    }

    #[test]
    fn a_coordinator_is_told_by_its_health() {
        let shown = text(true, "online");
        assert!(shown.starts_with("the coordinator is ready\n"), "{shown}");
        assert!(shown.contains("Memory     64 MiB\n  Log level  debug\n"), "{shown}");
        assert!(shown.contains("Open tasks\n  machine_create  1\n"), "{shown}");
        let broken = text(false, "offline");
        assert!(broken.starts_with("the coordinator is not ready: its store "), "{broken}");
    }
}
