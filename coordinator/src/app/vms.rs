//! The fleet-wide VM index: answers also for servers that are away.

use std::collections::BTreeMap;

use muster_shared::api::vm::{FleetVm, Vm};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::{VmReport, digest};
use serde_json::Value;

use super::error::AppError;
use super::expected::Expected;
use super::fleet::{Entry, Fleet};

/// Most VMs in one answer.
pub(super) const MAX_LIMIT: usize = 1_000;
/// Of a report's digest in a version.
const VERSION_DIGITS: usize = 16;

/// Which VMs; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct VmFilter {
    /// In this state.
    pub state: Option<String>,
    /// Of this owner.
    pub owner: Option<String>,
    /// Of this name.
    pub alias: Option<String>,
    /// On this server.
    pub server: Option<ServerUuid>,
    /// Of this brand.
    pub brand: Option<String>,
    /// With these tags; values as text.
    pub tags: BTreeMap<String, String>,
    /// At most this many.
    pub limit: Option<usize>,
    /// After skipping this many.
    pub offset: usize,
    /// After this VM.
    pub marker: Option<VmUuid>,
}

impl VmFilter {
    fn fits(&self, server: ServerUuid, report: &VmReport) -> bool {
        let is = |wanted: &Option<String>, have: &str| wanted.as_ref().is_none_or(|w| w == have);
        is(&self.state, &report.vm.state)
            && is(&self.owner, &report.vm.owner_uuid)
            && is(&self.brand, &report.vm.brand)
            && self.alias.as_ref().is_none_or(|alias| report.index.alias.as_ref() == Some(alias))
            && self.server.is_none_or(|wanted| wanted == server)
            && self.tags.iter().all(|(name, value)| {
                report.index.tags.get(name).is_some_and(|tag| text_of(tag) == *value)
            })
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Fleet {
    /// VMs in uuid order.
    #[must_use]
    pub fn vm_list(&self, filter: &VmFilter) -> Vec<FleetVm> {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        let mut found = Vec::new();
        let mut skip = filter.offset;
        self.for_each_vm(filter.marker, |_, server, entry, report| {
            if filter.fits(server, report) {
                if skip > 0 {
                    skip -= 1;
                } else {
                    found.push(view(server, entry, report));
                }
            }
            found.len() < limit
        });
        found
    }

    /// One VM.
    ///
    /// # Errors
    /// [`AppError::VmNotFound`].
    pub fn vm_get(&self, vm: VmUuid) -> Result<FleetVm, AppError> {
        let (server, report) = self.vm(vm).ok_or(AppError::VmNotFound(vm))?;
        let view = self.with(server, |entry| view(server, entry, &report));
        view.ok_or(AppError::VmNotFound(vm))
    }

    /// Version of a VM: its report's digest, for `ETag`.
    #[must_use]
    pub fn vm_version(&self, vm: VmUuid) -> Option<String> {
        let (_, report) = self.vm(vm)?;
        let mut version = digest(&BTreeMap::from([(vm, (*report).clone())]));
        version.truncate(VERSION_DIGITS);
        Some(version)
    }

    /// Fails unless a VM is as the client expects; what is asked of its agent then is decided on
    /// that. The agent may still find another VM: its report is never newer than the VM.
    ///
    /// # Errors
    /// [`AppError::Changed`], also for a VM that no server reported.
    pub fn vm_expected(&self, vm: VmUuid, expected: &Expected) -> Result<(), AppError> {
        if *expected == Expected::ANY {
            return Ok(());
        }
        expected.check(self.vm_version(vm).ok_or(AppError::Changed)?)
    }

    /// The VMs of one server, as CNAPI's VmList shows them.
    #[must_use]
    pub fn vms_of(&self, server: ServerUuid) -> Vec<Vm> {
        let all = self.with(server, |entry| entry.cnapi_vms());
        all.unwrap_or_default().into_values().collect()
    }
}

/// CNAPI's nine members, the index, and where the VM is.
fn view(server: ServerUuid, entry: &Entry, report: &VmReport) -> FleetVm {
    FleetVm {
        vm: Vm::from(&report.vm),
        index: report.index.clone(),
        server_uuid: server,
        server_status: entry.heard(),
    }
}
