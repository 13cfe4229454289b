//! `muster task`: work that was accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use jiff::Timestamp;
use muster_shared::api::task::{Task, TaskStatus};
use muster_shared::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cell::{Cell, Tone, span};
use crate::client::Client;
use crate::output::{Item, Output, print};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick, task_get, wait};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists tasks, newest first.
    List {
        /// Only those of this server.
        #[arg(long)]
        server: Option<String>,
        /// Only those about this VM.
        #[arg(long)]
        vm: Option<String>,
        /// Only those with this status.
        #[arg(long, value_parser = ["active", "complete", "failure"])]
        status: Option<String>,
        /// Only those of this kind, e.g. `machine_create`.
        #[arg(long)]
        kind: Option<String>,
        /// Maximum number of tasks.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows a task with its steps and its result.
    Get {
        /// The task's id.
        id: String,
    },
    /// Waits for tasks to end; fails if one fails.
    Wait {
        /// The tasks' ids.
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All tasks that are active now.
        #[arg(long)]
        all: bool,
        /// Maximum wait in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        timeout: u64,
    },
    /// Cancels a task, if it can still be stopped.
    Cancel {
        /// The task's id.
        id: String,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server, vm, status, kind, limit, list } => {
            let server = match server {
                Some(name) => Some(pick::server(client, &name).await?.record.uuid.to_string()),
                None => None,
            };
            let vm = match vm {
                Some(name) => Some(vm_or_gone(client, &name).await?),
                None => None,
            };
            let filters = [("server_uuid", server), ("status", status), ("task", kind)];
            let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            output
                .list(&list, async || {
                    let mut tasks = newest(client, &query).await?;
                    if let Some(vm) = &vm {
                        tasks.retain(|task| task.vm_uuid.is_some_and(|of| of.to_string() == *vm));
                    }
                    tasks.truncate(limit);
                    rows(client, output, tasks).await
                })
                .await
        }
        Args::Get { id } => {
            let id = pick::task(client, &id).await?;
            let task: Answer<Task> = client.get(&format!("/tasks/{id}"), &[]).await?;
            if output.is_json() {
                output.object(task.json())
            } else {
                task_get::show(client, &task).await
            }
        }
        Args::Wait { ids, all, timeout } => {
            let mut tasks = Vec::new();
            for id in ids {
                tasks.push(pick::task(client, &id).await?);
            }
            if all {
                let active = [("status", "active".to_owned())];
                let active = newest(client, &active).await?;
                tasks.extend(active.iter().map(|task| task.id.to_string()));
            }
            wait_for(client, output, &tasks, Duration::from_secs(timeout)).await
        }
        Args::Cancel { id } => {
            let id = pick::task(client, &id).await?;
            let answer: Value = client.post(&format!("/tasks/{id}/cancel"), &json!({})).await?;
            // One that no agent had yet has ended by now.
            let task: Task = client.get(&format!("/tasks/{id}"), &[]).await?;
            let text = if task.status == TaskStatus::Active {
                format!("task {id}: cancelling; `muster task wait {id}`")
            } else {
                format!("task {id}: ended: {}", wait::reason(&task))
            };
            output.done(&text, &answer)
        }
    }
}

/// Waits for each. What fails stops no other; the first failure is returned, the others are
/// reported at once.
async fn wait_for(
    client: &Client,
    output: &Output,
    ids: &[String],
    limit: Duration,
) -> Result<(), CliError> {
    let clock = SystemClock::new();
    let (mut ended, mut first) = (Vec::new(), None);
    for id in ids {
        let left = limit.saturating_sub(clock.monotonic());
        match wait::finished(client, &format!("task {id}"), id, left).await {
            Ok(task) => {
                if !output.is_json() {
                    print(&format!("task {id}: complete"))?;
                }
                ended.push(task.json().clone());
            }
            Err(stop @ CliError::Interrupted { .. }) => return Err(stop),
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => error.report(output.is_json()),
        }
    }
    if output.is_json() {
        let one = ids.len() == 1 && ended.len() == 1;
        output.object(&if one { ended.remove(0) } else { Value::Array(ended) })?;
    } else if ids.is_empty() {
        print("there are no active tasks")?;
    }
    first.map_or(Ok(()), Err)
}

/// The newest first, as the coordinator does not list them.
async fn newest(client: &Client, query: &[(&str, String)]) -> Result<Vec<Answer<Task>>, CliError> {
    let id = |task: &Answer<Task>| task.id.to_string();
    let mut tasks = client.get_all("/tasks", query, id).await?;
    tasks.reverse();
    Ok(tasks)
}

/// The machine's uuid; one that is gone has to be named by that.
async fn vm_or_gone(client: &Client, name: &str) -> Result<String, CliError> {
    match pick::vm(client, name).await {
        Ok(vm) => Ok(vm.vm.uuid.to_string()),
        Err(CliError::NotFound(_)) if name.parse::<uuid::Uuid>().is_ok() => Ok(name.to_owned()),
        Err(other) => Err(other),
    }
}

/// A task, and what its server and machine are called.
struct Row {
    task: Answer<Task>,
    server: Option<String>,
    vm: Option<String>,
}

async fn rows(
    client: &Client,
    output: &Output,
    tasks: Vec<Answer<Task>>,
) -> Result<Vec<Row>, CliError> {
    // Programs get the records alone.
    let (servers, vms) = if output.is_json() {
        (BTreeMap::new(), BTreeMap::new())
    } else {
        (pick::hostnames(client).await?, pick::aliases(client).await?)
    };
    let row = |task: Answer<Task>| Row {
        server: servers.get(&task.server_uuid.to_string()).cloned(),
        vm: task.vm_uuid.and_then(|vm| vms.get(&vm.to_string()).cloned()),
        task,
    };
    Ok(tasks.into_iter().map(row).collect())
}

impl Item for Row {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |row: &Self| Cell::id(&row.task.id)),
        Column::new("TASK", |row: &Self| Cell::text(&row.task.task)).cut(),
        Column::new("VM", |row: &Self| match (&row.vm, &row.task.vm_uuid) {
            (Some(alias), _) => Cell::text(alias),
            (None, Some(uuid)) => Cell::id(uuid),
            (None, None) => Cell::dash(),
        })
        .cut(),
        Column::new("STATUS", |row: &Self| match row.task.status {
            TaskStatus::Active => Cell::state("active").tone(Tone::Busy),
            status => Cell::state(status.as_str()),
        }),
        Column::new("AGE", |row: &Self| {
            let age = Cell::since(Some(&row.task.timestamp));
            Cell { text: age.text.replace(" ago", ""), ..age }
        }),
        Column::new("TOOK", |row: &Self| took(&row.task)).spare(3),
        Column::new("SERVER", |row: &Self| match &row.server {
            Some(name) => Cell::text(name),
            None => Cell::id(&row.task.server_uuid),
        })
        .cut()
        .spare(2),
        Column::new("REASON", |row: &Self| match row.task.status {
            TaskStatus::Failure => Cell::text(wait::reason(&row.task)),
            TaskStatus::Active => Cell::maybe(row.task.waiting_for.as_ref()),
            TaskStatus::Complete => Cell::text(""),
        })
        .cut()
        .spare(1),
        Column::new("REQUEST", |row: &Self| Cell::id(&row.task.req_id)).wide(),
        Column::new("TICKET", |row: &Self| {
            row.task.ticket_uuid.as_ref().map_or_else(Cell::dash, Cell::id)
        })
        .wide(),
    ];

    fn id(&self) -> String {
        self.task.id.to_string()
    }

    fn json(&self) -> &Value {
        self.task.json()
    }
}

/// From its beginning to its end.
fn took(task: &Task) -> Cell {
    let at = |time: &str| time.parse::<Timestamp>().ok();
    let ends = at(&task.timestamp).zip(task.finished_at.as_deref().and_then(at));
    let Some((from, to)) = ends else { return Cell::dash() };
    let seconds = u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "only compared")]
    let rank = Some(seconds as f64);
    Cell { rank, right: true, ..Cell::text(span(seconds)) }
}
