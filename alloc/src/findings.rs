//! What algorithms find for those after them, and the methods by which they say so.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Run;
use crate::promises::DiskPromise;
use crate::ratios::RatioPolicy;
use crate::request::{Package, Request};
use crate::server::Unreserved;
use crate::validate::Locality;
use crate::vm::Vm;

/// Which VMs algorithms see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vms {
    /// None: `load-server-vms` has not run.
    NotLoaded,
    /// Those that servers report.
    Loaded,
    /// And the promised ones.
    Promised,
}

/// Where `unreserved_*` of a server comes from.
#[derive(Clone, Debug)]
pub(super) enum Left {
    /// Not computed yet.
    Unknown,
    /// The snapshot's sums fit.
    Fast,
    /// Computed for this request, by slot.
    Computed(Arc<Vec<Unreserved>>),
}

/// What `calculate-locality` found.
#[derive(Clone, Debug, Default)]
pub(crate) struct RackLocality {
    pub(crate) strict: bool,
    pub(crate) near: Vec<u32>,
    pub(crate) far: Vec<u32>,
    pub(crate) near_racks: Vec<String>,
    pub(crate) far_racks: Vec<String>,
}

/// VMs that `calculate-recent-vms` adds to a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtraVms {
    pub(crate) vms: Vec<Arc<Vm>>,
    pub(crate) disk: DiskPromise,
}

/// What algorithms have found so far, beside the servers that are left and their scores.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    pub(super) vms: Vms,
    pub(super) policy: RatioPolicy,
    pub(super) left: Left,
    /// The package as algorithms changed it.
    pub(super) package: Option<Package>,
    /// Percent of a core.
    pub(super) cpu_cap: Option<f64>,
    pub(super) locality: Option<Locality>,
    pub(super) racks: Option<RackLocality>,
    /// By slot.
    pub(super) extra: BTreeMap<u32, ExtraVms>,
}

impl Findings {
    /// What is known before any algorithm ran: what the request says.
    pub(super) fn new(request: &Request) -> Self {
        Self {
            vms: Vms::NotLoaded,
            policy: RatioPolicy::Own,
            left: Left::Unknown,
            package: request.package.clone(),
            cpu_cap: request.vm.cpu_cap,
            locality: request.vm.locality.clone(),
            racks: None,
            extra: BTreeMap::new(),
        }
    }
}

impl Run<'_> {
    pub(crate) fn findings(&self) -> &Findings {
        &self.found
    }

    /// Goes back to what had been found.
    pub(crate) fn set_findings(&mut self, found: Findings) {
        self.found = found;
    }

    /// Which VMs are seen so far.
    pub(crate) fn sees(&self) -> Vms {
        self.found.vms
    }

    /// Lets later algorithms see these VMs.
    pub(crate) fn see(&mut self, vms: Vms) {
        self.found.vms = vms;
    }

    /// Lets later algorithms see a server with more VMs, or more disk promised.
    pub(crate) fn extra(&mut self, slot: u32) -> &mut ExtraVms {
        self.found.extra.entry(slot).or_default()
    }

    /// Forgets the VMs that were added to the servers left; the disk they were counted for stays.
    pub(crate) fn drop_extra_vms(&mut self) {
        for slot in self.list.iter() {
            if let Some(extra) = self.found.extra.get_mut(slot) {
                extra.vms.clear();
            }
        }
    }

    /// How much of a server's resources may be promised.
    pub(crate) fn policy(&self) -> RatioPolicy {
        self.found.policy
    }

    pub(crate) fn set_policy(&mut self, policy: RatioPolicy) {
        self.found.policy = policy;
    }

    /// The package as algorithms changed it.
    pub(crate) fn package(&self) -> Option<&Package> {
        self.found.package.as_ref()
    }

    pub(crate) fn package_mut(&mut self) -> Option<&mut Package> {
        self.found.package.as_mut()
    }

    /// Percent of a core.
    pub(crate) fn cpu_cap(&self) -> Option<f64> {
        self.found.cpu_cap
    }

    pub(crate) fn set_cpu_cap(&mut self, percent: Option<f64>) {
        self.found.cpu_cap = percent;
    }

    /// Which VMs to be near to and far from.
    pub(crate) fn locality(&self) -> Option<&Locality> {
        self.found.locality.as_ref()
    }

    pub(crate) fn set_locality(&mut self, locality: Locality) {
        self.found.locality = Some(locality);
    }

    pub(crate) fn racks(&self) -> Option<&RackLocality> {
        self.found.racks.as_ref()
    }

    pub(crate) fn set_racks(&mut self, racks: RackLocality) {
        self.found.racks = Some(racks);
    }

    /// Whether what servers have left was computed.
    pub(crate) fn knows_left(&self) -> bool {
        !matches!(self.found.left, Left::Unknown)
    }
}
