//! `machine_file_read` and `machine_file_write`: a piece of a file in a VM's guest, through its guest
//! agent. Clients copy files of any size piece by piece.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use serde_json::{Value, json};

use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::guest_agent::{self, MAX_CHUNK_BYTES};

const OPERATION: &str = "guest file";
/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4096;
/// Longest time for one piece.
const LIMIT: Duration = Duration::from_secs(120);

/// Reads a piece; parameters `uuid`, `path`, `offset`.
#[derive(Debug)]
pub struct MachineFileRead;

/// Writes a piece; parameters `uuid`, `path`, `offset`, `data` (base64). At 0 the file is made, or
/// emptied.
#[derive(Debug)]
pub struct MachineFileWrite;

impl Handler for MachineFileRead {
    fn kind(&self) -> Kind {
        Kind::query("machine_file_read", machine::MACHINE_QUERY, LIMIT)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("path".to_owned(), json!("/etc/hostname"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), Place::of(params)?, READ))
    }
}

impl Handler for MachineFileWrite {
    fn kind(&self) -> Kind {
        Kind::query("machine_file_write", machine::MACHINE_QUERY, LIMIT)
    }

    fn example(&self) -> Params {
        let mut params = MachineFileRead.example();
        params.insert("data".to_owned(), json!("b2s="));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let data = params.get("data").and_then(Value::as_str);
        let data = data.and_then(|data| BASE64_STANDARD.decode(data).ok());
        let bytes = data.filter(|data| data.len() <= MAX_CHUNK_BYTES).ok_or_else(|| {
            let problem = format!("must be base64 of at most {MAX_CHUNK_BYTES} bytes");
            TaskFailure::bad_param("data", problem)
        })?;
        Ok(Plan::of(Vec::new(), Write { place: Place::of(params)?, bytes }, WRITE))
    }
}

const READ: &[Row<Place>] = steps![("read", 100, read)];
const WRITE: &[Row<Write>] = steps![("write", 100, write)];

/// Where in which file.
#[derive(Debug)]
struct Place {
    vm: VmUuid,
    path: String,
    offset: u64,
}

impl Place {
    fn of(params: &Params) -> Result<Self, TaskFailure> {
        let path = params.get("path").and_then(Value::as_str).unwrap_or_default();
        if !(1..=MAX_PATH_BYTES).contains(&path.len()) || path.contains('\0') {
            let problem = format!("must be a path of at most {MAX_PATH_BYTES} bytes");
            return Err(TaskFailure::bad_param("path", problem));
        }
        let offset = match params.get("offset") {
            None | Some(Value::Null) => Some(0),
            Some(value) => lenient::number(value).filter(|offset| i64::try_from(*offset).is_ok()),
        };
        let offset =
            offset.ok_or_else(|| TaskFailure::bad_param("offset", "must be a number of bytes"))?;
        Ok(Self { vm: machine::vm(params)?, path: path.to_owned(), offset })
    }

    async fn read(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::must_run(ctx, OPERATION, self.vm).await?;
        let piece =
            guest_agent::read(&ctx.drivers.guest_agents, self.vm, &self.path, self.offset).await;
        let piece = piece.map_err(failed(OPERATION))?;
        ctx.finish_with(json!({ "data": BASE64_STANDARD.encode(piece) }));
        Ok(())
    }
}

#[derive(Debug)]
struct Write {
    place: Place,
    bytes: Vec<u8>,
}

impl Write {
    async fn write(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Place { vm, path, offset } = &self.place;
        machine::must_run(ctx, OPERATION, *vm).await?;
        let written =
            guest_agent::write(&ctx.drivers.guest_agents, *vm, path, *offset, &self.bytes).await;
        written.map_err(failed(OPERATION))?;
        ctx.finish_with(json!({ "bytes": self.bytes.len() }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_checked() {
        let plan = |more: Value| {
            let mut all = MachineFileWrite.example();
            all.extend(more.as_object().unwrap().clone());
            let planned = MachineFileWrite.plan(&all).map(drop);
            planned.map_err(|failure| failure.details.unwrap()["field"].clone())
        };
        plan(json!({ "offset": "262144" })).unwrap();
        for (bad, field) in [
            (json!({ "path": "" }), "path"),
            (json!({ "path": "a\u{0}b" }), "path"),
            (json!({ "offset": -1 }), "offset"),
            (json!({ "offset": u64::MAX }), "offset"),
            (json!({ "data": "!" }), "data"),
            (json!({ "data": BASE64_STANDARD.encode(vec![0; MAX_CHUNK_BYTES + 1]) }), "data"),
        ] {
            assert_eq!(plan(bad), Err(json!(field)));
        }
    }
}
