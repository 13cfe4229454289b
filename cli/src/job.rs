//! `muster job`: work in several steps on one server, which coordinators carry through.

use std::time::Duration;

use clap::Subcommand;
use muster_shared::api::job::{Execution, Job, Step, StepResult, StepState};
use muster_shared::clock::{Clock as _, SystemClock};
use serde_json::Value;

use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Item, Output};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick, wait};

/// Between two looks at a job.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists jobs, the newest first.
    List {
        /// Only those of this server.
        #[arg(long)]
        server: Option<String>,
        /// Only those in this state.
        #[arg(long, value_parser = ["queued", "running", "succeeded", "failed"])]
        execution: Option<String>,
        /// Maximum number of jobs.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        list: ListArgs,
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
        Args::List { server, execution, limit, list } => {
            let server = match server {
                Some(name) => Some(pick::server(client, &name).await?.record.uuid.to_string()),
                None => None,
            };
            let limit = Some(limit.clamp(1, 1_000).to_string());
            let filters = [("server_uuid", server), ("execution", execution), ("limit", limit)];
            let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            output
                .list(&list, async || {
                    let jobs: Vec<Answer<Job>> = client.get("/jobs", &query).await?;
                    let servers = pick::hostnames(client).await?;
                    let row = |job: Answer<Job>| Row {
                        server: servers.get(&job.target.to_string()).cloned(),
                        job,
                    };
                    Ok(jobs.into_iter().map(row).collect())
                })
                .await
        }
        Args::Get { uuid } => {
            let uuid = pick::job(client, &uuid).await?;
            output.object(&client.get(&format!("/jobs/{uuid}"), &[]).await?)
        }
        Args::Wait { uuid, timeout } => {
            let uuid = pick::job(client, &uuid).await?;
            let job = finished(client, &uuid, Duration::from_secs(timeout)).await?;
            output.done(&format!("job {uuid}: succeeded"), job.json())
        }
    }
}

/// Waits until the job has ended; returns its record.
///
/// # Errors
/// [`CliError::JobFailed`] if it ended in failure, [`CliError::Timeout`] if it did not end.
pub(crate) async fn finished(
    client: &Client,
    uuid: &str,
    limit: Duration,
) -> Result<Answer<Job>, CliError> {
    let goes_on = || {
        let hint =
            format!("`muster job wait {uuid}` waits for it, `muster job get {uuid}` shows it");
        CliError::Interrupted { goes_on: format!("job {uuid} goes on"), hint }
    };
    wait::unless_interrupted(goes_on, ended(client, uuid, limit)).await
}

async fn ended(client: &Client, uuid: &str, limit: Duration) -> Result<Answer<Job>, CliError> {
    let clock = SystemClock::new();
    loop {
        match client.get::<Answer<Job>>(&format!("/jobs/{uuid}"), &[]).await {
            Ok(job) if job.execution == Execution::Succeeded => return Ok(job),
            Ok(job) if job.execution == Execution::Failed => {
                let message = reason(&job);
                return Err(CliError::JobFailed { id: uuid.to_owned(), message });
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
fn reason(job: &Job) -> String {
    let text = |step: &StepResult| format!("{}: {}", step.name, step.error);
    job.chain_results.last().map_or_else(|| "no reason given".to_owned(), text)
}

/// A job, and what its server is called.
struct Row {
    job: Answer<Job>,
    server: Option<String>,
}

impl Item for Row {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |row: &Self| Cell::id(&row.job.uuid)),
        Column::new("NAME", |row: &Self| Cell::text(&row.job.name)).cut(),
        Column::new("STATE", |row: &Self| match row.job.execution {
            Execution::Running => Cell::state("running").tone(Tone::Busy),
            other => Cell::state(other.as_str()),
        }),
        Column::new("AGE", |row: &Self| Cell::since(Some(&row.job.created_at))).spare(2),
        Column::new("SERVER", |row: &Self| match &row.server {
            Some(name) => Cell::text(name),
            None => Cell::id(&row.job.target),
        })
        .cut()
        .spare(1),
        Column::new("STEP", |row: &Self| Cell::text(step(&row.job))).cut().spare(3),
    ];

    fn id(&self) -> String {
        self.job.uuid.to_string()
    }

    fn json(&self) -> &Value {
        self.job.json()
    }
}

/// The step that a job is at.
fn step(job: &Job) -> String {
    let is_open = |step: &&Step| matches!(step.state, StepState::Running | StepState::Failed);
    job.steps.iter().find(is_open).map_or_else(|| "-".to_owned(), |step| step.name.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(results: &Value, steps: &Value) -> Job {
        let job = json!({
            "uuid": uuid::Uuid::nil(), "name": "n", "execution": "failed", "params": {},
            "target": uuid::Uuid::nil(), "created_at": "", "chain_results": results,
            "steps": steps,
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn the_reason_is_the_last_result() {
        let result = |name: &str, error: &str| {
            json!({ "name": name, "result": "", "error": error, "started_at": null,
                    "finished_at": null })
        };
        let step_in = |name: &str, state: &str| {
            json!({ "name": name, "state": state, "attempt": 1, "started_at": null,
                    "finished_at": null, "error": null, "task": null })
        };
        let results = json!([result("a", ""), result("b", "refused")]);
        let failed = job(&results, &json!([step_in("a", "ok"), step_in("b", "failed")]));
        assert_eq!(reason(&failed), "b: refused");
        assert_eq!(step(&failed), "b");
        let none = job(&json!([]), &json!([]));
        assert_eq!((reason(&none), step(&none)), ("no reason given".to_owned(), "-".to_owned()));
    }
}
