//! `machine_import`: makes a VM whose disks are to be filled with what another one had. It is
//! `provisioning` until [`machine_import_end`](super::machine_import_end).

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::export::{MAX_VOLUMES, Role, Volume};
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::machine_create::{self, MachineCreate};
use super::{Handler, Kind, OnFailure, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::storage;
use crate::vm_record::Importing;
use crate::vms::payload::{is_cdrom, is_container};

/// An import is given up when nothing durable has come for so long.
const PATIENCE: Duration = Duration::from_hours(24);
/// Longest name of an export, bytes.
const MAX_NAME_BYTES: usize = 256;
/// No firmware keeps more, bytes.
const MAX_FIRMWARE_BYTES: u64 = 64 * MIB;

/// The kind; parameters as of `machine_create`, and `import`: `export` names what it is made from,
/// `volumes` says what will be filled.
#[derive(Debug)]
pub struct MachineImport;

impl Handler for MachineImport {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_import", machine_create::queue(), Duration::from_secs(3600))
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    fn example(&self) -> Params {
        let mut params = MachineCreate.example();
        let volume = json!({ "role": "disk", "index": 0, "size_bytes": 64 * MIB });
        let import = json!({ "export": "one", "volumes": [volume] });
        params.insert("import".to_owned(), import);
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let mut params = params.clone();
        let import = params.shift_remove("import");
        let import = import.ok_or_else(|| TaskFailure::bad_param("import", "is missing"))?;
        let import = Import::deserialize(import)
            .map_err(|error| TaskFailure::bad_param("import", error.to_string()))?;
        machine_create::plan(&params, Some(import))
    }
}

/// What is to be imported.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Import {
    pub(super) export: String,
    pub(super) volumes: Vec<Volume>,
}

impl Import {
    /// Refuses what does not fit the VM.
    pub(super) fn check(&self, properties: &Map<String, Value>) -> Result<(), TaskFailure> {
        let bad = |problem: String| Err(TaskFailure::bad_param("import", problem));
        if !(1..=MAX_NAME_BYTES).contains(&self.export.len()) {
            return bad(format!("export must have 1 to {MAX_NAME_BYTES} bytes"));
        }
        if self.volumes.is_empty() || self.volumes.len() > MAX_VOLUMES {
            return bad(format!("there must be 1 to {MAX_VOLUMES} volumes"));
        }
        if self.volumes.windows(2).any(|two| two[0].role >= two[1].role) {
            return bad("the volumes are not in order".to_owned());
        }
        let has_root = self.volumes.iter().any(|volume| volume.role == Role::Root);
        if has_root != is_container(properties) || (has_root && self.volumes.len() > 1) {
            return bad(
                "containers have a root folder and nothing else, others have none".to_owned()
            );
        }
        let disks = properties.get("disks").and_then(Value::as_array);
        let disks = disks.map_or(&[] as &[Value], Vec::as_slice);
        for volume in &self.volumes {
            let index = match volume.role {
                Role::Firmware if properties.get("bootrom") != Some(&json!("uefi")) => {
                    return bad("its firmware keeps nothing: bootrom is not uefi".to_owned());
                }
                Role::Firmware if !(1..=MAX_FIRMWARE_BYTES).contains(&volume.size_bytes) => {
                    return bad("what its firmware keeps has no usual size".to_owned());
                }
                Role::Firmware | Role::Root => continue,
                Role::Disk(index) => index,
            };
            let disk = usize::try_from(index).ok().and_then(|index| disks.get(index));
            let size_mib = disk.and_then(|disk| disk.get("size")?.as_u64());
            if size_mib != Some(volume.size_bytes.div_ceil(MIB)) {
                return bad(format!("disk {index} of the VM has another size than its volume"));
            }
        }
        for (index, disk) in disks.iter().enumerate() {
            let is_filled = |volume: &Volume| {
                volume.role == Role::Disk(u32::try_from(index).unwrap_or(u32::MAX))
            };
            let cdrom = disk.as_object().is_some_and(is_cdrom);
            if !cdrom && disk.get("image_uuid").is_some() {
                return bad(format!("disk {index} is to be filled and has an image"));
            }
            if !cdrom && !self.volumes.iter().any(is_filled) {
                return bad(format!("nothing is to be filled into disk {index}"));
            }
        }
        Ok(())
    }

    /// As it is noted of a VM that waits for its content.
    pub(super) fn begun(&self, ctx: &TaskContext) -> Importing {
        Importing {
            export: self.export.clone(),
            volumes: self.volumes.clone(),
            volume: 0,
            offset: 0,
            until: until(ctx),
        }
    }
}

/// When an import that came on now is given up.
pub(super) fn until(ctx: &TaskContext) -> String {
    let now = ctx.drivers.clock.wall();
    iso(now.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX))
}

/// A volume of an export, as storage names it.
pub(super) fn role(role: Role) -> storage::Role {
    match role {
        Role::Firmware => storage::Role::Firmware,
        Role::Disk(index) => storage::Role::Disk(index),
        Role::Root => storage::Role::Root,
    }
}

/// The record of an import under way.
pub(super) fn importing(
    ctx: &TaskContext,
    operation: &'static str,
    vm: muster_shared::ids::VmUuid,
) -> Result<Importing, TaskFailure> {
    let record = super::machine::record(ctx, operation, vm)?;
    record.importing.filter(|_| !record.destroying).ok_or_else(|| {
        let text = format!("{operation} error: VM {vm} is not being imported");
        super::machine::refuse(Code::VmNotUsable, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(change: &Value, problem: &str) {
        let mut params = MachineImport.example();
        params.extend(change.as_object().unwrap().clone());
        let refused = MachineImport.plan(&params).map(drop).unwrap_err();
        assert!(refused.message.contains(problem), "{problem}: {refused:?}");
    }

    #[test]
    fn what_does_not_fit_the_vm_is_refused() {
        MachineImport.plan(&MachineImport.example()).map(drop).unwrap();
        let volume = |index: u32, mib: u64| json!({ "role": "disk", "index": index, "size_bytes": mib * MIB });
        let of = |volumes: Value| json!({ "import": { "export": "one", "volumes": volumes } });
        check_refused(&json!({ "import": null }), "import");
        check_refused(&json!({ "import": { "export": "", "volumes": [volume(0, 64)] } }), "bytes");
        check_refused(&of(json!([])), "volumes");
        check_refused(&of(json!([volume(0, 65)])), "another size");
        check_refused(&of(json!([volume(0, 64), volume(0, 64)])), "not in order");
        check_refused(&of(json!([volume(0, 64), volume(1, 64)])), "another size");
        let firmware = json!({ "role": "firmware", "size_bytes": 1 });
        check_refused(&of(json!([firmware, volume(0, 64)])), "not uefi");
        let mut two = of(json!([volume(0, 64)]));
        two["disks"] = json!([{ "size": 64 }, { "size": 64 }]);
        check_refused(&two, "nothing is to be filled into disk 1");
        let mut imaged = of(json!([volume(0, 64)]));
        imaged["disks"] = json!([{ "size": 64, "image_uuid": uuid::Uuid::nil() }]);
        check_refused(&imaged, "has an image");
    }
}
