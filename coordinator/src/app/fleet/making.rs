//! VMs that are being made. Such a VM has its home before any server reports it: another one that
//! has heard its uuid can't be first.

use muster_shared::ids::{ServerUuid, VmUuid};
use serde::{Deserialize, Serialize};

use super::Inner;
use crate::app::keys;
use crate::store::{Damaged, Event};

/// How far a create is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::app) enum PlaceState {
    Creating,
    Done,
}

/// The part of the record `place/<vm>` that says where a VM will be.
#[derive(Deserialize)]
struct Place {
    server_uuid: ServerUuid,
    state: PlaceState,
}

impl Inner {
    /// The store has this of a VM's place now.
    pub(super) fn take_place(&mut self, change: &Event, damaged: &Damaged) {
        let Event { key, value, .. } = change;
        let Some(vm) = keys::last::<VmUuid>(key) else { return };
        let Some(value) = value else { return self.is_not_made(vm) };
        let Some(place) = damaged.decode::<Place>(key, value) else { return };
        // One whose create has ended well stays until a report shows it. Of those that have ended
        // before this coordinator began, most are where they were made and some have moved.
        if place.state == PlaceState::Creating {
            self.making.insert(vm, place.server_uuid);
        }
    }

    /// Nobody makes the VM any more; who claimed it may have it.
    fn is_not_made(&mut self, vm: VmUuid) {
        if self.making.remove(&vm).is_some() && !self.home.contains_key(&vm) {
            self.leave_to_others(vm);
        }
    }
}
