//! What algorithms find for those after them, and the methods by which they say so.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::promises::DiskPromise;
use crate::ratios::RatioPolicy;
use crate::remaining::Remaining;
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
pub(crate) enum Left {
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
    vms: Vms,
    policy: RatioPolicy,
    left: Left,
    /// The package as algorithms changed it.
    package: Option<Package>,
    /// Percent of a core.
    cpu_cap: Option<f64>,
    locality: Option<Locality>,
    racks: Option<RackLocality>,
    /// By slot.
    extra: BTreeMap<u32, ExtraVms>,
}

impl Findings {
    /// What is known before any algorithm ran: what the request says.
    pub(crate) fn new(request: &Request) -> Self {
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

    /// Which VMs are seen so far.
    pub(crate) fn sees(&self) -> Vms {
        self.vms
    }

    /// Lets later algorithms see these VMs.
    pub(crate) fn see(&mut self, vms: Vms) {
        self.vms = vms;
    }

    /// Lets later algorithms see a server with more VMs, or more disk promised.
    pub(crate) fn extra(&mut self, slot: u32) -> &mut ExtraVms {
        self.extra.entry(slot).or_default()
    }

    /// What a server has more.
    pub(crate) fn extra_of(&self, slot: u32) -> Option<&ExtraVms> {
        self.extra.get(&slot)
    }

    /// Whether any server has more.
    pub(crate) fn has_extra(&self) -> bool {
        !self.extra.is_empty()
    }

    /// The servers that have more.
    pub(crate) fn extra_slots(&self) -> impl Iterator<Item = u32> {
        self.extra.keys().copied()
    }

    /// Forgets the VMs that were added to these servers; the disk they were counted for stays.
    pub(crate) fn drop_extra_vms(&mut self, of: &Remaining) {
        let extra = self.extra.iter_mut().filter(|(slot, _)| of.has(**slot));
        extra.for_each(|(_, extra)| extra.vms.clear());
    }

    /// How much of a server's resources may be promised.
    pub(crate) fn policy(&self) -> RatioPolicy {
        self.policy
    }

    pub(crate) fn set_policy(&mut self, policy: RatioPolicy) {
        self.policy = policy;
    }

    /// The package as algorithms changed it.
    pub(crate) fn package(&self) -> Option<&Package> {
        self.package.as_ref()
    }

    pub(crate) fn package_mut(&mut self) -> Option<&mut Package> {
        self.package.as_mut()
    }

    /// Percent of a core.
    pub(crate) fn cpu_cap(&self) -> Option<f64> {
        self.cpu_cap
    }

    pub(crate) fn set_cpu_cap(&mut self, percent: Option<f64>) {
        self.cpu_cap = percent;
    }

    /// Which VMs to be near to and far from.
    pub(crate) fn locality(&self) -> Option<&Locality> {
        self.locality.as_ref()
    }

    pub(crate) fn set_locality(&mut self, locality: Locality) {
        self.locality = Some(locality);
    }

    pub(crate) fn racks(&self) -> Option<&RackLocality> {
        self.racks.as_ref()
    }

    pub(crate) fn set_racks(&mut self, racks: RackLocality) {
        self.racks = Some(racks);
    }

    /// Where what servers have left comes from.
    pub(crate) fn left(&self) -> &Left {
        &self.left
    }

    pub(crate) fn set_left(&mut self, left: Left) {
        self.left = left;
    }
}
