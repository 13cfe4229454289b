//! Names of VMs that are made here: no owner gets two VMs of one name, or nobody could name either.
//! CNAPI's own create, whose clients see to that themselves, is left alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::ids::VmUuid;
use muster_shared::vm::{NOBODY, VmSpec};
use parking_lot::Mutex;

use super::Placement;
use super::create::makes_vm;
use crate::app::error::AppError;
use crate::app::tasks::Params;
use crate::app::vms::VmFilter;

/// An owner and a name.
type Name = (String, String);

/// Names of creates whose tasks are not stored yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<BTreeSet<Name>>>);

/// A name that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Named {
    names: Names,
    name: Name,
}

impl Drop for Named {
    fn drop(&mut self) {
        self.names.0.lock().remove(&self.name);
    }
}

impl Placement {
    /// Takes the VM's name for it; `None` if it has none.
    ///
    /// # Errors
    /// [`AppError::Invalid`]: another VM of this owner has it, or is being made with it.
    pub(super) fn name(&self, spec: &VmSpec) -> Result<Option<Named>, AppError> {
        let Some(alias) = spec.alias.clone() else { return Ok(None) };
        let owner = spec.owner_uuid.as_deref().unwrap_or(NOBODY).to_lowercase();
        let name = (owner.clone(), alias.clone());
        if !self.names.0.lock().insert(name.clone()) {
            return Err(taken("another VM of this owner is being made under this name"));
        }
        // From here on it is given back.
        let named = Named { names: self.names.clone(), name };
        let filter = VmFilter {
            alias: Some(alias),
            owner: Some(owner),
            limit: Some(1),
            ..VmFilter::default()
        };
        if let Some(other) = self.fleet.vm_list(&filter).first() {
            return Err(taken(&format!("VM {} of this owner has this name", other.vm.uuid)));
        }
        match self.being_made(&named.name) {
            Some(other) => Err(taken(&format!("VM {other} of this owner is made under this name"))),
            None => Ok(Some(named)),
        }
    }

    /// A VM of this name whose task is open and which no report shows yet.
    fn being_made(&self, (owner, alias): &Name) -> Option<VmUuid> {
        let table = &self.tasks.table;
        let mut open = table.ids().into_iter().filter_map(|id| table.get(&id));
        open.find_map(|open| {
            let Params::Inline(params) = &open.record.params else { return None };
            let is = |name: &str, wanted: &str| {
                params.get(name).and_then(|value| value.as_str()) == Some(wanted)
            };
            let made = makes_vm(&open.record.task);
            let same = made && is("alias", alias) && is("owner_uuid", owner);
            same.then_some(open.record.vm_uuid).flatten()
        })
    }
}

fn taken(why: &str) -> AppError {
    AppError::invalid("alias", why)
}
