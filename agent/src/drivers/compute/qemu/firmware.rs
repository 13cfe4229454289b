//! UEFI beside BIOS: firmware of the host, with variables of each VM's own.

use std::path::{Path, PathBuf};

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::drives;
use super::folder::GuestFolder;
use crate::drivers::storage::Variables;
use crate::drivers::{DriverError, files};
use crate::vm_record::VmRecord;

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

/// The hypervisor's name for a VM's variables.
pub(super) const VARIABLES_NODE: &str = "uefi1";

/// What a VM's variables are made from: those of an earlier version of the agent, or fresh ones.
///
/// # Errors
/// `NotSupported` where the firmware is missing.
pub(super) fn template(
    vm: &VmRecord,
    folder: &GuestFolder,
) -> Result<Option<PathBuf>, DriverError> {
    template_of(vm, folder, Path::new(FOLDER))
}

fn template_of(
    vm: &VmRecord,
    folder: &GuestFolder,
    installed: &Path,
) -> Result<Option<PathBuf>, DriverError> {
    if !is_uefi(vm) {
        return Ok(None);
    }
    let earlier = folder.earlier_uefi_variables();
    if earlier.is_file() {
        return Ok(Some(earlier));
    }
    Ok(Some(Firmware::find(installed).ok_or_else(missing)?.variables))
}

/// Whether a process with these arguments has its VM's variables open, in a form that has snapshots.
pub(super) fn is_open_in(argv: &[String]) -> bool {
    let nodes = argv.iter().filter_map(|word| serde_json::from_str::<Value>(word).ok());
    let mut nodes = nodes.filter(|node| node["node-name"] == VARIABLES_NODE);
    nodes.any(|node| node["driver"] == "qcow2")
}

/// The files with which one VM starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmFirmware {
    code: PathBuf,
    /// The VM's own.
    variables: Variables,
}

impl VmFirmware {
    /// `None` for a VM with BIOS.
    ///
    /// # Errors
    /// `NotSupported` where the firmware is missing; there are no variables.
    pub(super) async fn of(
        vm: &VmRecord,
        folder: &GuestFolder,
        variables: Option<&Variables>,
    ) -> Result<Option<Self>, DriverError> {
        if !is_uefi(vm) {
            return Ok(None);
        }
        let firmware = Firmware::find(Path::new(FOLDER)).ok_or_else(missing)?;
        let variables = variables.cloned().ok_or_else(|| {
            DriverError::failed(format!("start VM {}", vm.uuid), "its firmware has no variables")
        })?;
        // Taken over by now; once they are put aside, the next ones are to be fresh.
        files::remove(&folder.earlier_uefi_variables()).await?;
        Ok(Some(Self { code: firmware.code, variables }))
    }

    /// Options of the command line: what follows the machine type, and the devices' contents.
    pub(super) fn options(&self) -> (&'static str, [String; 2]) {
        let node = |name: &str, driver: &str, path: &Path, read_only: bool| {
            let protocol = drives::protocol(path);
            let file = json!({ "driver": protocol, "filename": path, "read-only": read_only });
            let node = json!({
                "driver": driver, "node-name": name, "read-only": read_only, "file": file,
            });
            node.to_string()
        };
        let Variables { path, format } = &self.variables;
        let nodes =
            [node("uefi0", "raw", &self.code, true), node(VARIABLES_NODE, format, path, false)];
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

    #[test]
    fn variables_are_made_from_those_of_earlier_versions_or_from_fresh_ones() {
        let folder = tempfile::tempdir().unwrap();
        let guest = GuestFolder::new(&folder.path().join("run"), folder.path(), record(1).uuid);
        guest.make().unwrap();
        let mut vm = record(1);
        let installed = folder.path().join("OVMF");
        assert_eq!(template_of(&vm, &guest, &installed).unwrap(), None);
        vm.properties.insert("bootrom".to_owned(), json!("uefi"));
        let missing = template_of(&vm, &guest, &installed).unwrap_err();
        assert!(missing.to_string().contains("ovmf"), "{missing}");

        std::fs::create_dir(&installed).unwrap();
        for (name, content) in [("OVMF_CODE.fd", "code"), ("OVMF_VARS.fd", "fresh")] {
            std::fs::write(installed.join(name), content).unwrap();
        }
        let fresh = template_of(&vm, &guest, &installed).unwrap();
        assert_eq!(fresh, Some(installed.join("OVMF_VARS.fd")));
        let earlier = guest.earlier_uefi_variables();
        std::fs::write(&earlier, "changed by the guest").unwrap();
        assert_eq!(template_of(&vm, &guest, &installed).unwrap(), Some(earlier));
    }

    #[test]
    fn a_process_tells_whether_its_variables_have_snapshots() {
        let path = PathBuf::from("/x");
        for (format, has) in [("qcow2", true), ("raw", false)] {
            let variables = Variables { path: path.clone(), format: format.to_owned() };
            let firmware = VmFirmware { code: path.clone(), variables };
            let (_, [code, variables]) = firmware.options();
            assert!(code.contains("\"read-only\":true"), "{code}");
            assert!(variables.contains("\"read-only\":false"), "{variables}");
            let argv = ["-blockdev".to_owned(), code, "-m".to_owned(), "1".to_owned(), variables];
            assert_eq!(is_open_in(&argv), has);
        }
        assert!(!is_open_in(&[]));
    }
}
