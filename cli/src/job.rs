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
use crate::page::{Page, when};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick, plain, wait};

/// Between two looks at a job.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists jobs, newest first.
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
        /// The job's uuid, or its beginning.
        uuid: String,
    },
    /// Waits for a job to end; fails if the job fails.
    Wait {
        /// The job's uuid, or its beginning.
        uuid: String,
        /// Maximum wait in seconds.
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
            let job: Answer<Job> = client.get(&format!("/jobs/{uuid}"), &[]).await?;
            if output.is_json() {
                return output.object(job.json());
            }
            let server = pick::hostnames(client).await?.remove(&job.target.to_string());
            page(&job, server.as_deref()).print()
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
        let hint = format!(
            "wait for it with `muster job wait {uuid}`, see it with `muster job get {uuid}`"
        );
        CliError::Interrupted { goes_on: format!("job {uuid} continues"), hint }
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

/// The job for people: how it stands, then its steps.
fn page(job: &Job, server: Option<&str>) -> Page {
    let target = job.target.to_string();
    let on = server.unwrap_or(&target);
    let outcome = match job.execution {
        Execution::Failed => format!("failed: {}", reason(job)),
        other => format!("is {}", other.as_str()),
    };
    let mut page = Page::new(format!("{} of {on} {outcome}", job.name));
    page.group("Job")
        .line("Id", job.uuid.to_string())
        .line("Server", format!("{on} ({target})"))
        .line("Created", when(&job.created_at))
        .maybe("Ended", job.finished_at.as_deref().map(when))
        .maybe("Ticket", job.ticket_uuid.map(|uuid| uuid.to_string()))
        .maybe("Asked by", job.params.creator_uuid.as_ref());
    page.group("Steps");
    for step in &job.steps {
        let state = match step.state {
            StepState::Pending => "to be done",
            StepState::Running => "runs",
            StepState::Ok => "done",
            StepState::Failed => "failed",
            StepState::Skipped => "left out",
        };
        let mut words = vec![state.to_owned()];
        if step.attempt > 1 {
            words.push(format!("{} tries", step.attempt));
        }
        words.extend(step.error.clone().filter(|error| !error.is_empty()));
        words.extend(step.task.as_ref().map(|task| format!("task {task}")));
        page.line(&plain::job_step(&step.name), words.join(", "));
    }
    if !job.execution.has_ended() {
        page.next(format!("muster job wait {}", job.uuid));
    }
    for task in job.steps.iter().filter_map(|step| step.task.as_ref()) {
        page.next(format!("muster task get {task}"));
    }
    page
}

/// Why a job failed, as its record says.
fn reason(job: &Job) -> String {
    let text = |step: &StepResult| format!("{}: {}", plain::job_step(&step.name), step.error);
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
    job.steps
        .iter()
        .find(is_open)
        .map_or_else(|| "-".to_owned(), |step| plain::job_step(&step.name))
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
    fn a_job_is_told_with_its_steps() {
        let failed = json!([{ "name": "reboot", "result": "", "error": "refused",
                              "started_at": null, "finished_at": null }]);
        let steps = json!([
            { "name": "check", "state": "ok", "attempt": 1, "started_at": null,
              "finished_at": null, "error": null, "task": null },
            { "name": "reboot", "state": "failed", "attempt": 2, "started_at": null,
              "finished_at": null, "error": "refused", "task": "t1" },
        ]);
        let text = page(&job(&failed, &steps), Some("cn1")).text(None);
        assert!(text.starts_with("n of cn1 failed: reboot: refused\n"), "{text}");
        assert!(text.contains("check   done\n"), "{text}");
        assert!(text.contains("failed, 2 tries, refused, task t1"), "{text}");
        assert!(text.contains("muster task get t1"), "{text}");
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
        let results = json!([result("a", ""), result("cnapi.b_c", "refused")]);
        let failed = job(&results, &json!([step_in("a", "ok"), step_in("cnapi.b_c", "failed")]));
        assert_eq!(reason(&failed), "b c: refused");
        assert_eq!(step(&failed), "b c");
        let none = job(&json!([]), &json!([]));
        assert_eq!((reason(&none), step(&none)), ("no reason given".to_owned(), "-".to_owned()));
    }
}
