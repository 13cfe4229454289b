//! `machine_export` and `machine_export_read`: what a VM was at one of its snapshots, for clients that
//! copy it piece by piece. Nothing is kept between the pieces, so that a copy goes on after any of
//! them, whatever became of the agent meanwhile.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::clock::iso;
use muster_shared::export::{self, Volume};
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::container;
use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure, snapshot};
use crate::drivers::storage::Role;
use crate::vm_record::disks::numbered;
use crate::vms::{VmRecord, payload};

const OPERATION: &str = "export";
/// Longest time for one piece.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest time for a look at all volumes: the files of a container are packed first.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(300);

/// What there is to be copied; parameters `uuid`, `snapshot_name`.
#[derive(Debug)]
pub struct MachineExport;

/// A piece; parameters `uuid`, `snapshot_name`, `disk` (its number; without, what the firmware
/// keeps, or all files of a container), `offset`.
#[derive(Debug)]
pub struct MachineExportRead;

impl Handler for MachineExport {
    fn kind(&self) -> Kind {
        Kind::query("machine_export", machine::MACHINE_QUERY, DESCRIBE_LIMIT)
    }

    fn example(&self) -> Params {
        snapshot::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), Export::of(params)?, DESCRIBE))
    }
}

impl Handler for MachineExportRead {
    fn kind(&self) -> Kind {
        Kind::query("machine_export_read", machine::MACHINE_QUERY, LIMIT)
    }

    fn example(&self) -> Params {
        let mut params = snapshot::example();
        params.insert("disk".to_owned(), json!(0));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let volume = match params.get("disk").filter(|value| !value.is_null()) {
            None => Role::Firmware,
            Some(value) => {
                let number = lenient::number(value).and_then(|number| u32::try_from(number).ok());
                let problem = "must be the number of a disk";
                Role::Disk(number.ok_or_else(|| TaskFailure::bad_param("disk", problem))?)
            }
        };
        let from = offset(params)?;
        let read = Read { export: Export::of(params)?, volume, from };
        Ok(Plan::of(Vec::new(), read, READ))
    }
}

/// The parameter `offset`, bytes.
pub(super) fn offset(params: &Params) -> Result<u64, TaskFailure> {
    let offset = match params.get("offset") {
        None | Some(Value::Null) => Some(0),
        Some(value) => lenient::number(value),
    };
    offset.ok_or_else(|| TaskFailure::bad_param("offset", "must be a number of bytes"))
}

const DESCRIBE: &[Row<Export>] = steps![("describe", 100, describe)];
const READ: &[Row<Read>] = steps![("read", 100, read)];

#[derive(Debug)]
struct Export {
    vm: VmUuid,
    name: String,
}

impl Export {
    fn of(params: &Params) -> Result<Self, TaskFailure> {
        Ok(Self { vm: machine::vm(params)?, name: snapshot::name(params)? })
    }

    /// The record of a VM that has the snapshot.
    fn record(&self, ctx: &TaskContext) -> Result<VmRecord, TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        let mut complete = record.snapshots.iter().filter(|known| known.complete);
        if !complete.any(|known| known.name == self.name) {
            return Err(snapshot::not_found(OPERATION, self.vm, &self.name));
        }
        Ok(record)
    }

    async fn describe(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = self.record(ctx)?;
        snapshot::on_every_disk(ctx, OPERATION, &record, &self.name).await?;
        let on_disk = snapshot::on_disk(&self.name);
        let storage = &ctx.drivers.storage;
        let having = storage.snapshots(self.vm).await.map_err(failed(OPERATION))?;
        let has = |volume| having.iter().any(|s| s.volume == volume && s.name == on_disk);
        let mut wanted = Vec::new();
        if record.is_container() {
            let image = container::must_have_root(ctx, OPERATION, self.vm).await?;
            let image = container::installed(ctx, OPERATION, image).await?;
            let packed = storage.pack_root(self.vm, &on_disk, &image.root).await;
            packed.map_err(failed(OPERATION))?;
            wanted.push((export::Role::Root, 0, Role::Root));
        }
        if has(Role::Firmware) {
            wanted.push((export::Role::Firmware, 0, Role::Firmware));
        }
        for (index, (number, disk)) in (0..).zip(numbered(record.list("disks"))) {
            if !disk.as_object().is_some_and(payload::is_cdrom) {
                wanted.push((export::Role::Disk(index), number, Role::Disk(number)));
            }
        }
        let mut volumes = Vec::new();
        for (role, number, volume) in wanted {
            // From the end on: only its size is asked for.
            let piece = storage.read_snapshot(self.vm, volume, &on_disk, u64::MAX).await;
            let size_bytes = piece.map_err(failed(OPERATION))?.size_bytes;
            volumes.push(Volume { role, size_bytes, number });
        }
        if !volumes.iter().any(|volume| volume.role != export::Role::Firmware) {
            let text = format!("{OPERATION} error: VM {} has no disks", self.vm);
            return Err(refuse(Code::DatasetNotFound, text));
        }
        ctx.finish_with(json!({
            "exported_at": iso(ctx.drivers.clock.wall()),
            "vm": payload::copy(&record.properties, &volumes),
            "volumes": volumes,
        }));
        Ok(())
    }
}

#[derive(Debug)]
struct Read {
    export: Export,
    volume: Role,
    from: u64,
}

impl Read {
    async fn read(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Export { vm, name } = &self.export;
        let volume = match self.volume {
            Role::Firmware if self.export.record(ctx)?.is_container() => Role::Root,
            volume => volume,
        };
        self.export.record(ctx)?;
        let on_disk = snapshot::on_disk(name);
        let piece = ctx.drivers.storage.read_snapshot(*vm, volume, &on_disk, self.from).await;
        let piece = piece.map_err(failed(OPERATION))?;
        ctx.finish_with(json!({
            "size_bytes": piece.size_bytes,
            "offset": piece.offset,
            "next": piece.next,
            "sha256": hex::encode(Sha256::digest(&piece.data)),
            "data": BASE64_STANDARD.encode(&piece.data),
        }));
        Ok(())
    }
}
