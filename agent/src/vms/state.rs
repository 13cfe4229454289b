//! `state` and `zone_state` of a VM, as a function of its record and of whether it runs.

use super::{StorageState, VmRecord};

/// The two words in which a VM's state is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// What clients look at.
    pub state: &'static str,
    /// What the host shows.
    pub zone_state: &'static str,
}

/// The state that follows from a record and an observation.
#[must_use]
pub fn of(record: &VmRecord, running: bool) -> State {
    let stopping = record.stopping_until.is_some() && running;
    let zone_state = match (running, record.storage) {
        (true, _) if stopping || record.destroying => "shutting_down",
        (true, _) => "running",
        // A destroyed VM is on its way back to "a record and nothing else".
        (false, _) if record.destroying => "configured",
        (false, StorageState::None) => "configured",
        (false, StorageState::Incomplete) => "incomplete",
        (false, StorageState::Complete) => "installed",
    };
    let state = if record.destroying {
        "configured"
    } else if record.failed {
        "failed"
    } else if record.provisioning {
        "provisioning"
    } else if stopping {
        "stopping"
    } else if zone_state == "installed" {
        "stopped"
    } else {
        zone_state
    };
    State { state, zone_state }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    #[track_caller]
    fn check(change: impl FnOnce(&mut VmRecord), running: bool, expected: (&str, &str)) {
        let mut record = record(1);
        record.provisioning = false;
        record.storage = StorageState::Complete;
        change(&mut record);
        let State { state, zone_state } = of(&record, running);
        assert_eq!((state, zone_state), expected);
    }

    #[test]
    fn states_follow_from_record_and_observation() {
        check(|_| {}, true, ("running", "running"));
        check(|_| {}, false, ("stopped", "installed"));
        check(|r| r.storage = StorageState::None, false, ("configured", "configured"));
        check(|r| r.storage = StorageState::Incomplete, false, ("incomplete", "incomplete"));
        check(|r| r.provisioning = true, true, ("provisioning", "running"));
        check(|r| r.provisioning = true, false, ("provisioning", "installed"));
        check(|r| r.failed = true, false, ("failed", "installed"));
        let stopping = |r: &mut VmRecord| r.stopping_until = Some("2026-01-01".to_owned());
        check(stopping, true, ("stopping", "shutting_down"));
        check(stopping, false, ("stopped", "installed"));
        check(|r| r.destroying = true, true, ("configured", "shutting_down"));
        check(|r| r.destroying = true, false, ("configured", "configured"));
    }
}
