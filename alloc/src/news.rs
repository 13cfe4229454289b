//! What is new of a server. It is read before the fleet is touched, so that taking it over costs
//! next to nothing: whoever owns the fleet need not wait for records to be parsed.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::wire::status::VmReport;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::figures::Figures;
use crate::server::Parsed;
use crate::vm::Vm;

/// A record without the member `uuid`, or with one that is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server's record needs a uuid")]
pub struct NoUuid;

/// A record, and what was read of it.
pub(crate) type Record = (Arc<Map<String, Value>>, Arc<Parsed>);

/// What is new of a server; what is not said stays as it was.
#[derive(Debug, Default)]
pub struct News {
    pub(crate) record: Option<Record>,
    pub(crate) status: Option<Arc<str>>,
    pub(crate) figures: Option<Figures>,
    /// `None`: gone.
    vms: BTreeMap<Uuid, Option<Arc<Vm>>>,
    /// Those are all VMs.
    all: bool,
}

impl News {
    /// Nothing is new.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another record, in CNAPI's form: the operator's fields and `sysinfo`.
    ///
    /// # Errors
    /// [`NoUuid`]; nothing was noted.
    pub fn set_record(&mut self, record: Arc<Map<String, Value>>) -> Result<(), NoUuid> {
        record.get("uuid").and_then(Value::as_str).ok_or(NoUuid)?;
        let parsed = Arc::new(Parsed::new(&record));
        self.record = Some((record, parsed));
        Ok(())
    }

    /// Another status.
    pub fn set_status(&mut self, status: &str) {
        self.status = Some(status.into());
    }

    /// Other sizes, by their names in a record; `None`: never reported.
    pub fn set_figures(&mut self, figure: impl Fn(&str) -> Option<i64>) {
        let mut figures = Figures::unknown();
        figures.refresh(figure);
        self.figures = Some(figures);
    }

    /// A VM is new or changed.
    pub fn set_vm(&mut self, report: &VmReport) {
        self.vms.insert(report.vm.uuid.0, Some(Arc::new(Vm::from_report(report))));
    }

    /// A VM is gone.
    pub fn remove_vm(&mut self, vm: Uuid) {
        self.vms.insert(vm, None);
    }

    /// The server has no VMs but those that are said.
    pub fn no_other_vms(&mut self) {
        self.all = true;
    }

    /// The VMs then, in the order of their uuids; `None` if nothing about them is new.
    pub(crate) fn vms(&self, known: &[Arc<Vm>]) -> Option<Vec<Arc<Vm>>> {
        let same = |vm: &Arc<Vm>| match self.vms.get(&vm.uuid) {
            Some(Some(news)) => news == vm,
            Some(None) => false,
            None => !self.all,
        };
        let is_new = |uuid: &Uuid| !known.iter().any(|vm| vm.uuid == *uuid);
        let added = self.vms.iter().any(|(uuid, vm)| vm.is_some() && is_new(uuid));
        if !added && known.iter().all(same) {
            return None;
        }
        let kept = known.iter().filter(|vm| !self.all && !self.vms.contains_key(&vm.uuid));
        let said = self.vms.values().flatten();
        let mut vms: Vec<Arc<Vm>> = kept.chain(said).cloned().collect();
        vms.sort_by_key(|vm| vm.uuid);
        // A VM that is as it was stays shared with earlier snapshots.
        for vm in &mut vms {
            if let Some(same) = known.iter().find(|old| old == &vm) {
                *vm = Arc::clone(same);
            }
        }
        Some(vms)
    }
}
