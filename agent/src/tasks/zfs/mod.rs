//! `zfs_*`: datasets, snapshots, properties and pools, for clients that know of them. Offered only
//! where ZFS works.
//!
//! Each change is one atomic operation of ZFS between two looks: before it, at what there is; and,
//! when the agent died around it, at what has become of that. What is known by its name only may be
//! somebody else's by then, so everything is known by its number (`guid`), or by the task that made it.

pub mod clone_dataset;
pub mod create_dataset;
pub mod destroy_dataset;
pub mod get_properties;
pub mod list_datasets;
pub mod list_pools;
mod protection;
pub mod rename_dataset;
pub mod rollback_dataset;
pub mod set_properties;
pub mod snapshot_dataset;
#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use muster_shared::ids::TaskId;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::Value;

use super::record::{MAX_RESULT_BYTES, json_len};
use super::{Kind, Params, Queue, TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::zfs::{Dataset, Name, Properties, Snapshot, TASK_PROPERTY, Wanted};

const CHANGES: Queue =
    Queue { name: "zfs_tasks", max_concurrent: 4, max_wait: Duration::from_secs(600) };
const QUESTIONS: Queue =
    Queue { name: "zfs_query", max_concurrent: 8, max_wait: Duration::from_secs(60) };
/// Longest run, as in the reference.
const LIMIT: Duration = Duration::from_secs(600);

const fn change(name: &'static str) -> Kind {
    Kind::mutate(name, CHANGES, LIMIT)
}

const fn question(name: &'static str) -> Kind {
    Kind::query(name, QUESTIONS, LIMIT)
}

fn text<'a>(params: &'a Params, member: &str) -> Result<&'a str, TaskFailure> {
    match params.get(member) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(TaskFailure::bad_param(member, "must be a text")),
    }
}

/// A member that names something; what is no name is refused as such.
fn named<N: std::str::FromStr>(params: &Params, member: &str) -> Result<N, TaskFailure>
where
    N::Err: std::fmt::Display,
{
    let problem = |error: N::Err| {
        let text = format!("{member}: {error}");
        TaskFailure::new(Code::InvalidName, text)
            .with_details(serde_json::json!({ "field": member }))
    };
    text(params, member)?.parse().map_err(problem)
}

fn dataset(params: &Params, member: &str) -> Result<Dataset, TaskFailure> {
    named(params, member)
}

fn snapshot(params: &Params, member: &str) -> Result<Snapshot, TaskFailure> {
    named(params, member)
}

/// A switch that clients may also send as text; absent it is off.
fn flag(params: &Params, member: &str) -> Result<bool, TaskFailure> {
    match params.get(member) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => lenient::flag(value)
            .ok_or_else(|| TaskFailure::bad_param(member, "must be true or false")),
    }
}

/// Says what was attempted before ZFS's own words.
fn failing(attempt: &str) -> impl Fn(DriverError) -> TaskFailure + use<> {
    let attempt = format!("failed to {attempt}");
    move |error| {
        let failure = TaskFailure::from(error);
        TaskFailure { message: format!("{attempt}: {}", failure.message), ..failure }
    }
}

/// The number of a dataset or snapshot; `None` when there is none.
async fn guid(ctx: &TaskContext, name: &Name) -> Result<Option<String>, DriverError> {
    let wanted = Wanted::of(name.clone(), &["guid"]);
    match ctx.drivers.zfs.zfs.get(&wanted).await {
        Ok(found) => Ok(found.get(&name.to_string()).and_then(|of| of.get("guid")).cloned()),
        Err(DriverError::Refused {
            code: Code::DatasetNotFound | Code::SnapshotNotFound, ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What something that a task makes is stamped with.
fn stamp(task: &TaskId) -> Properties {
    Properties::from([(TASK_PROPERTY.to_owned(), task.to_string())])
}

/// Whether this task made it.
async fn is_own(ctx: &TaskContext, name: &Name) -> Result<bool, DriverError> {
    let wanted = Wanted { only_local: true, ..Wanted::of(name.clone(), &[TASK_PROPERTY]) };
    let found = ctx.drivers.zfs.zfs.get(&wanted).await?;
    let made_by = found.get(&name.to_string()).and_then(|of| of.get(TASK_PROPERTY));
    Ok(made_by.is_some_and(|task| *task == ctx.task_id.to_string()))
}

/// Something was to be made: it is, or is there already and that is as good.
async fn made(
    ctx: &TaskContext,
    name: &Name,
    idempotent: bool,
    done: Result<(), DriverError>,
) -> Result<(), DriverError> {
    let Err(DriverError::Refused { code: Code::DatasetExists, .. }) = &done else { return done };
    if !is_own(ctx, name).await? {
        return if idempotent { Ok(()) } else { done };
    }
    match name {
        // The agent may have died before that.
        Name::Dataset(dataset) => ctx.drivers.zfs.zfs.mount(dataset).await,
        Name::Snapshot(_) => Ok(()),
    }
}

/// Returns a list, if it is not larger than a result may be: one that is cut would be taken for all.
fn finish(ctx: &TaskContext, result: Value) -> Result<(), TaskFailure> {
    let bytes = json_len(&result);
    if bytes > MAX_RESULT_BYTES {
        let text = format!(
            "the answer has {bytes} bytes, over the limit of {MAX_RESULT_BYTES}: ask for less, e.g. \
             of one dataset"
        );
        return Err(TaskFailure::new(Code::InvalidArgument, text));
    }
    ctx.finish_with(result);
    Ok(())
}
