//! `docker_copy`: files of a container to or from one client that connects to the port in the answer,
//! or only what is at a path.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use serde_json::{Value, json};

use super::docker_exec::{CONNECT, DOCKER_TASKS, must_run};
use super::machine;
use super::steps::{Row, steps};
use super::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::compute::InsideRoot;
use crate::sessions::copy::{self, Direction, Place};

const LIMIT: Duration = Duration::from_secs(60);
/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4095;

/// The kind; parameters `uuid`, `path`, `mode`, `no_overwrite_dir`; the first two of these also in
/// `payload`, the old way.
#[derive(Debug)]
pub struct DockerCopy;

impl Handler for DockerCopy {
    // A session leaves nothing behind that a journal could bring back.
    fn kind(&self) -> Kind {
        Kind::query("docker_copy", DOCKER_TASKS, LIMIT)
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Containers)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("path".to_owned(), json!("/etc"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let said = |name: &str| match params.get(name) {
            None | Some(Value::Null) => params.get("payload").and_then(|payload| payload.get(name)),
            said => said,
        };
        let path = said("path").and_then(Value::as_str).filter(|path| {
            (1..=MAX_PATH_BYTES).contains(&path.len())
                && !path.contains('\0')
                && !path.split('/').any(|part| part == "..")
        });
        let path = path.ok_or_else(|| {
            let problem = format!("must be a path without `..`, of at most {MAX_PATH_BYTES} bytes");
            TaskFailure::bad_param("path", problem)
        })?;
        let no_overwrite_dir = match params.get("no_overwrite_dir") {
            None | Some(Value::Null) => false,
            Some(value) => lenient::flag(value).ok_or_else(|| {
                TaskFailure::bad_param("no_overwrite_dir", "must be true or false")
            })?,
        };
        let direction = match said("mode").unwrap_or(&Value::Null) {
            Value::Null => Some(Direction::Read),
            Value::String(mode) if mode == "read" => Some(Direction::Read),
            Value::String(mode) if mode == "write" => Some(Direction::Write { no_overwrite_dir }),
            Value::String(mode) if mode == "stat" => None,
            _ => return Err(TaskFailure::bad_param("mode", "must be read, write or stat")),
        };
        Ok(Plan::of(Vec::new(), Copy { vm, path: path.to_owned(), direction }, STEPS))
    }
}

const STEPS: &[Row<Copy>] = steps![("open", 100, open)];

#[derive(Debug)]
struct Copy {
    vm: VmUuid,
    path: String,
    /// None: only what is there is told.
    direction: Option<Direction>,
}

impl Copy {
    async fn open(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        must_run(ctx, self.vm, "docker_copy: VM is not running, cannot copy").await?;
        let InsideRoot { folder: root, ids } = ctx.drivers.compute.root(self.vm).await?;
        let (path, direction) = (self.path.clone(), self.direction);
        let look = move || -> Result<Place, DriverError> {
            let place = copy::look(root, &path)?.with_ids(ids);
            if matches!(direction, Some(Direction::Write { .. })) {
                place.must_be_folder()?;
            }
            Ok(place)
        };
        #[expect(clippy::disallowed_methods, reason = "a guest's disk may be waited for")]
        let looked = tokio::task::spawn_blocking(look).await;
        let failed = |error| DriverError::failed("look at a file of a guest", error);
        let place = looked.map_err(failed)??;
        let stat = json!(place.stat);
        let mut answer = match direction {
            None => json!({}),
            Some(direction) => {
                let serve = move |peer| place.serve(peer, direction);
                json!(ctx.drivers.sessions.open(CONNECT, serve).await?)
            }
        };
        answer["containerPathStat"] = stat;
        ctx.finish_with(answer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(name: &str, value: Value) {
        let mut params = DockerCopy.example();
        params.insert(name.to_owned(), value);
        let failure = DockerCopy.plan(&params).map(drop).unwrap_err();
        assert_eq!(failure.details.unwrap()["field"], name);
    }

    #[test]
    fn bad_parameters_are_refused_by_field() {
        DockerCopy.plan(&DockerCopy.example()).unwrap();
        for path in ["", "../etc", "/a/../../etc/passwd", "a\0b", &"x".repeat(5000)] {
            check_refused("path", json!(path));
        }
        check_refused("mode", json!("append"));
        check_refused("no_overwrite_dir", json!("perhaps"));
        let mut old = machine::example();
        old.insert("payload".to_owned(), json!({ "path": "/etc", "mode": "stat" }));
        DockerCopy.plan(&old).unwrap();
    }
}
