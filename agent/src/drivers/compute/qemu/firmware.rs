//! UEFI beside BIOS: firmware of the host, with variables of each VM's own.

use std::path::{Path, PathBuf};

use muster_shared::wire::Code;
use serde_json::json;

use super::folder::GuestFolder;
use crate::drivers::{DriverError, files};
use crate::vms::VmRecord;

/// Where Debian's package `ovmf` puts it.
pub(super) const FOLDER: &str = "/usr/share/OVMF";
/// Code and the variables it starts with, the newer form first.
const NAMES: [(&str, &str); 2] =
    [("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"), ("OVMF_CODE.fd", "OVMF_VARS.fd")];

/// UEFI firmware on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Firmware {
    code: PathBuf,
    variables: PathBuf,
}

impl Firmware {
    /// What there is in a folder.
    pub(super) fn find(folder: &Path) -> Option<Self> {
        let paths = NAMES.map(|(code, variables)| (folder.join(code), folder.join(variables)));
        let mut found = paths.into_iter().filter(|(code, vars)| code.is_file() && vars.is_file());
        found.next().map(|(code, variables)| Self { code, variables })
    }
}

/// Whether a VM wants UEFI.
pub(super) fn is_uefi(vm: &VmRecord) -> bool {
    vm.text("bootrom") == Some("uefi")
}

/// The files with which one VM starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmFirmware {
    code: PathBuf,
    /// The VM's own.
    variables: PathBuf,
}

impl VmFirmware {
    /// Makes the VM's variables if it has none yet; `None` for a VM with BIOS.
    ///
    /// # Errors
    /// `NotSupported` where the firmware is missing; the copy could not be written.
    pub(super) async fn of(
        vm: &VmRecord,
        folder: &GuestFolder,
    ) -> Result<Option<Self>, DriverError> {
        Self::with(vm, folder, Path::new(FOLDER)).await
    }

    async fn with(
        vm: &VmRecord,
        folder: &GuestFolder,
        installed: &Path,
    ) -> Result<Option<Self>, DriverError> {
        if !is_uefi(vm) {
            return Ok(None);
        }
        let firmware = Firmware::find(installed).ok_or_else(missing)?;
        let own = folder.uefi_variables();
        let exists = own.try_exists().map_err(|error| files::failed("find", &own, error))?;
        if !exists {
            // A moment ago it was there.
            let fresh = files::read(&firmware.variables).await?.ok_or_else(missing)?;
            files::write(&own, &fresh).await?;
        }
        Ok(Some(Self { code: firmware.code, variables: own }))
    }

    /// Options of the command line: what follows the machine type, and the devices' contents.
    pub(super) fn options(&self) -> (&'static str, [String; 2]) {
        let node = |name: &str, path: &Path, read_only: bool| {
            let file = json!({ "driver": "file", "filename": path, "read-only": read_only });
            let node =
                json!({ "driver": "raw", "node-name": name, "read-only": read_only, "file": file });
            node.to_string()
        };
        let nodes = [node("uefi0", &self.code, true), node("uefi1", &self.variables, false)];
        (",pflash0=uefi0,pflash1=uefi1", nodes)
    }
}

/// `NotSupported`.
pub(super) fn missing() -> DriverError {
    let text = format!("bootrom uefi: there is no firmware in {FOLDER}: install the package ovmf");
    DriverError::refused(Code::NotSupported, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    #[tokio::test]
    async fn variables_are_copied_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let guest = GuestFolder::new(&folder.path().join("run"), folder.path(), record(1).uuid);
        guest.make().unwrap();
        let mut vm = record(1);
        let installed = folder.path().join("OVMF");
        assert_eq!(VmFirmware::with(&vm, &guest, &installed).await.unwrap(), None);
        vm.properties.insert("bootrom".to_owned(), json!("uefi"));
        let missing = VmFirmware::with(&vm, &guest, &installed).await.unwrap_err();
        assert!(missing.to_string().contains("ovmf"), "{missing}");

        std::fs::create_dir(&installed).unwrap();
        for (name, content) in [("OVMF_CODE.fd", "code"), ("OVMF_VARS.fd", "fresh")] {
            std::fs::write(installed.join(name), content).unwrap();
        }
        let first = VmFirmware::with(&vm, &guest, &installed).await.unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&first.variables).unwrap(), "fresh");
        std::fs::write(&first.variables, "changed by the guest").unwrap();
        let again = VmFirmware::with(&vm, &guest, &installed).await.unwrap().unwrap();
        assert_eq!(again, first);
        assert_eq!(std::fs::read_to_string(&again.variables).unwrap(), "changed by the guest");
        let (_, [code, variables]) = again.options();
        assert!(code.contains("\"read-only\":true") && variables.contains("\"read-only\":false"));
    }
}
