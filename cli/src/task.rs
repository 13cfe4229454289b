//! `muster task`: work that was accepted.

use std::time::Duration;

use clap::Subcommand;
use muster_shared::api::task::{Task, TaskStatus};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, member};
use crate::{CliError, pick, wait};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists tasks, the newest first.
    List {
        /// Only those of this server.
        #[arg(long)]
        server: Option<String>,
        /// Only those with this status.
        #[arg(long, value_parser = ["active", "complete", "failure"])]
        status: Option<String>,
        /// Only those of this kind, e.g. `machine_create`.
        #[arg(long)]
        kind: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Shows a task with its steps and its result.
    Get {
        /// The task's id.
        id: String,
    },
    /// Waits until a task has ended; fails if it failed.
    Wait {
        /// The task's id.
        id: String,
        /// Longest wait, seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        timeout: u64,
    },
    /// Asks a task to stop, if its kind allows that.
    Cancel {
        /// The task's id.
        id: String,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server, status, kind, limit } => {
            let server = match server {
                Some(name) => Some(pick::server(client, &name).await?.record.uuid.to_string()),
                None => None,
            };
            let filters = [("server_uuid", server), ("status", status), ("task", kind)];
            let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            // The coordinator lists the oldest first.
            let id = |task: &Answer<Task>| task.id.to_string();
            let mut tasks = client.get_all("/tasks", &query, id).await?;
            tasks.reverse();
            tasks.truncate(limit);
            list(output, &tasks)
        }
        Args::Get { id } => output.object(&client.get(&format!("/tasks/{id}"), &[]).await?),
        Args::Wait { id, timeout } => {
            let limit = Duration::from_secs(timeout);
            let task = wait::finished(client, &format!("task {id}"), &id, limit).await?;
            output.done(&format!("task {id}: complete"), task.json())
        }
        Args::Cancel { id } => {
            let answer: Value = client.post(&format!("/tasks/{id}/cancel"), &json!({})).await?;
            // One that no agent had yet has ended by now.
            let task: Task = client.get(&format!("/tasks/{id}"), &[]).await?;
            let text = if task.status == TaskStatus::Active {
                format!("task {id}: asked to stop; `muster task wait {id}`")
            } else {
                format!("task {id}: ended: {}", wait::reason(&task))
            };
            output.done(&text, &answer)
        }
    }
}

fn list(output: &Output, tasks: &[Answer<Task>]) -> Result<(), CliError> {
    output.list(
        tasks,
        &[
            ("ID", member!(id)),
            ("TASK", member!(task)),
            ("STATUS", member!(status)),
            ("CREATED", member!(timestamp)),
            ("SERVER", member!(server_uuid)),
            ("REASON", |task| match task.status {
                TaskStatus::Failure => wait::reason(task),
                TaskStatus::Active | TaskStatus::Complete => String::new(),
            }),
        ],
    )
}
