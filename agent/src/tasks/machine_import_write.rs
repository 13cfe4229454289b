//! `machine_import_write` and `machine_import_state`: pieces of the disks of a VM that is being
//! imported, and up to where they are there. A piece that comes twice does no harm.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::machine::{self, failed, refuse};
use super::machine_export::offset;
use super::machine_import::{self, role};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::storage::MAX_PIECE_BYTES;
use crate::vm_record::Importing;
use crate::vms::VmRecord;

const OPERATION: &str = "import";
/// Longest time for one piece, with the disk's cache written out.
const LIMIT: Duration = Duration::from_secs(300);

/// Up to where everything is there; parameter `uuid`.
#[derive(Debug)]
pub struct MachineImportState;

/// Writes a piece; parameters `uuid`, `boot` (refused with `ImportInterrupted` when the host was booted
/// since it told that: pieces may be lost then), `volume` (of the import's, from 0), `offset`, `data` (base64),
/// `sha256` (of the data) and `durable` (everything up to the end of this piece is there for good
/// when it returns). Pieces come in order.
#[derive(Debug)]
pub struct MachineImportWrite;

impl Handler for MachineImportState {
    fn kind(&self) -> Kind {
        Kind::query("machine_import_state", machine::MACHINE_QUERY, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), State { vm: machine::vm(params)? }, STATE))
    }
}

impl Handler for MachineImportWrite {
    fn kind(&self) -> Kind {
        Kind::query("machine_import_write", machine::MACHINE_QUERY, LIMIT)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("volume".to_owned(), json!(0));
        params.insert("data".to_owned(), json!("b2s="));
        params.insert("sha256".to_owned(), json!(hex::encode(Sha256::digest("ok"))));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let volume = params.get("volume").and_then(lenient::number);
        let volume = volume.and_then(|volume| usize::try_from(volume).ok());
        let volume = volume.ok_or_else(|| TaskFailure::bad_param("volume", "must be a number"))?;
        let data = params.get("data").and_then(Value::as_str).unwrap_or_default();
        let data = BASE64_STANDARD.decode(data).ok();
        let data = data.filter(|data| data.len() <= MAX_PIECE_BYTES).ok_or_else(|| {
            let problem = format!("must be base64 of at most {MAX_PIECE_BYTES} bytes");
            TaskFailure::bad_param("data", problem)
        })?;
        let sha256 = params.get("sha256").and_then(Value::as_str).unwrap_or_default();
        if !sha256.eq_ignore_ascii_case(&hex::encode(Sha256::digest(&data))) {
            return Err(TaskFailure::bad_param("sha256", "is not that of the data"));
        }
        let write = Write {
            vm: machine::vm(params)?,
            volume,
            offset: offset(params)?,
            data,
            durable: machine::flag(params, "durable")?,
            boot: params.get("boot").and_then(Value::as_str).map(str::to_owned),
        };
        Ok(Plan::of(Vec::new(), write, WRITE))
    }
}

const STATE: &[Row<State>] = steps![("tell", 100, tell)];
const WRITE: &[Row<Write>] = steps![("write", 100, write)];

#[derive(Debug)]
struct State {
    vm: VmUuid,
}

impl State {
    async fn tell(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let importing = machine_import::importing(ctx, OPERATION, self.vm)?;
        ctx.finish_with(told(ctx, &importing));
        Ok(())
    }
}

fn told(ctx: &TaskContext, importing: &Importing) -> Value {
    json!({
        "boot": ctx.drivers.vms.boot_id(),
        "export": importing.export, "volume": importing.volume, "offset": importing.offset,
        "until": importing.until,
    })
}

#[derive(Debug)]
struct Write {
    vm: VmUuid,
    volume: usize,
    offset: u64,
    data: Vec<u8>,
    durable: bool,
    boot: Option<String>,
}

impl Write {
    async fn write(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let importing = machine_import::importing(ctx, OPERATION, self.vm)?;
        let boot_id = ctx.drivers.vms.boot_id();
        if self.boot.as_deref().is_some_and(|boot| boot != boot_id) {
            let text = format!(
                "{OPERATION} error: the server was booted anew: what was not durable may be lost"
            );
            return Err(refuse(Code::ImportInterrupted, text));
        }
        let Some(volume) = importing.volumes.get(self.volume) else {
            let text = format!("{OPERATION} error: there is no volume {}", self.volume);
            return Err(refuse(Code::InvalidParameters, text));
        };
        let fill = |role, offset, data, durable| {
            ctx.drivers.storage.fill(self.vm, role, offset, data, durable)
        };
        let written = fill(role(volume.role), self.offset, &self.data[..], self.durable).await;
        written.map_err(failed(OPERATION))?;
        if !self.durable {
            ctx.finish_with(told(ctx, &importing));
            return Ok(());
        }
        // Those before it may have pieces that are not durable yet.
        let before = importing.volume.min(self.volume)..self.volume;
        for volume in importing.volumes.get(before).unwrap_or_default() {
            fill(role(volume.role), 0, &[][..], true).await.map_err(failed(OPERATION))?;
        }
        let length = u64::try_from(self.data.len()).unwrap_or(u64::MAX);
        let place = (self.volume, self.offset.saturating_add(length));
        let until = machine_import::until(ctx);
        let note = |record: &mut VmRecord| {
            // It may have ended meanwhile.
            let Some(importing) = &mut record.importing else { return };
            if (importing.volume, importing.offset) < place {
                (importing.volume, importing.offset) = place;
            }
            importing.until = until;
        };
        let record = ctx.drivers.vms.update(self.vm, note).await?;
        ctx.finish_with(
            record.importing.as_ref().map_or(Value::Null, |importing| told(ctx, importing)),
        );
        Ok(())
    }
}
