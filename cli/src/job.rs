//! `muster job`: work in several steps on one server, which coordinators carry through.

use std::time::Duration;

use clap::Subcommand;
use muster_shared::clock::{Clock as _, SystemClock};
use serde_json::Value;

use crate::client::Client;
use crate::output::{Output, member};
use crate::{CliError, pick};

/// Between two looks at a job.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists jobs, the newest first.
    List {
        /// Only those of this server.
        #[arg(long)]
        server: Option<String>,
        /// Only those there.
        #[arg(long, value_parser = ["queued", "running", "succeeded", "failed"])]
        execution: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Shows a job with its steps.
    Get {
        /// The job's uuid.
        uuid: String,
    },
    /// Waits until a job has ended; fails if it failed.
    Wait {
        /// The job's uuid.
        uuid: String,
        /// Longest wait, seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        timeout: u64,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server, execution, limit } => {
            let server = match server {
                Some(name) => Some(pick::uuid(&pick::server(client, &name).await?)?.to_owned()),
                None => None,
            };
            let limit = Some(limit.clamp(1, 1_000).to_string());
            let filters = [("server_uuid", server), ("execution", execution), ("limit", limit)];
            let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            output.list(
                &client.get("/jobs", &query).await?,
                &[
                    ("UUID", member!("uuid")),
                    ("NAME", member!("name")),
                    ("EXECUTION", member!("execution")),
                    ("CREATED", member!("created_at")),
                    ("SERVER", member!("target")),
                    ("STEP", step),
                ],
            )
        }
        Args::Get { uuid } => output.object(&client.get(&format!("/jobs/{uuid}"), &[]).await?),
        Args::Wait { uuid, timeout } => {
            let job = finished(client, &uuid, Duration::from_secs(timeout)).await?;
            output.done(&format!("job {uuid}: succeeded"), &job)
        }
    }
}

/// Waits until the job has ended; returns its record.
///
/// # Errors
/// [`CliError::TaskFailed`] if it ended in failure, [`CliError::Timeout`] if it did not end.
pub(crate) async fn finished(
    client: &Client,
    uuid: &str,
    limit: Duration,
) -> Result<Value, CliError> {
    let clock = SystemClock::new();
    loop {
        match client.get(&format!("/jobs/{uuid}"), &[]).await {
            Ok(job) if job["execution"] == "succeeded" => return Ok(job),
            Ok(job) if job["execution"] == "failed" => {
                let message = reason(&job);
                return Err(CliError::TaskFailed { id: uuid.to_owned(), message });
            }
            // It may be restarting, and the job goes on then.
            Ok(_) | Err(CliError::Unreachable { .. }) => {}
            Err(other) => return Err(other),
        }
        if clock.monotonic() >= limit {
            let limit = limit.as_secs();
            return Err(CliError::Timeout(format!("job {uuid} is not done after {limit} s")));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Why a job failed, as its record says.
fn reason(job: &Value) -> String {
    let last = job["chain_results"].as_array().and_then(|all| all.last());
    let text =
        |step: &Value| Some(format!("{}: {}", step["name"].as_str()?, step["error"].as_str()?));
    last.and_then(text).unwrap_or_else(|| "no reason given".to_owned())
}

/// The step that a job is at.
fn step(job: &Value) -> String {
    let steps = job["steps"].as_array().into_iter().flatten();
    let mut open =
        steps.filter(|step| matches!(step["state"].as_str(), Some("running" | "failed")));
    open.next().and_then(|step| step["name"].as_str()).unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_reason_is_the_last_result() {
        let job = json!({ "chain_results": [
            { "name": "a", "error": "" }, { "name": "b", "error": "refused" },
        ], "steps": [{ "name": "a", "state": "ok" }, { "name": "b", "state": "failed" }] });
        assert_eq!(reason(&job), "b: refused");
        assert_eq!(step(&job), "b");
        assert_eq!(
            (reason(&json!({})), step(&json!({}))),
            ("no reason given".to_owned(), "-".to_owned())
        );
    }
}
