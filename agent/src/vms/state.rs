//! `state` and `zone_state` of a VM, as a function of its record and of what its process does.

use super::{StorageState, VmRecord};
use crate::drivers::compute::Activity;

/// The two words in which a VM's state is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// What clients look at.
    pub state: &'static str,
    /// What the host shows.
    pub zone_state: &'static str,
}

/// The state that follows from a record and the process, if there is one.
#[must_use]
pub fn of(record: &VmRecord, activity: Option<Activity>) -> State {
    let running = activity.is_some();
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
    } else if let Some(activity) = activity {
        activity.word()
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

    const RUNS: Option<Activity> = Some(Activity::Running);

    #[track_caller]
    fn check(
        change: impl FnOnce(&mut VmRecord),
        activity: Option<Activity>,
        expected: (&str, &str),
    ) {
        let mut record = record(1);
        record.provisioning = false;
        record.storage = StorageState::Complete;
        change(&mut record);
        let State { state, zone_state } = of(&record, activity);
        assert_eq!((state, zone_state), expected);
    }

    #[test]
    fn states_follow_from_record_and_observation() {
        check(|_| {}, RUNS, ("running", "running"));
        check(|_| {}, None, ("stopped", "installed"));
        check(|r| r.storage = StorageState::None, None, ("configured", "configured"));
        check(|r| r.storage = StorageState::Incomplete, None, ("incomplete", "incomplete"));
        check(|r| r.provisioning = true, RUNS, ("provisioning", "running"));
        check(|r| r.provisioning = true, None, ("provisioning", "installed"));
        check(|r| r.failed = true, None, ("failed", "installed"));
        let stopping = |r: &mut VmRecord| r.stopping_until = Some("2026-01-01".to_owned());
        check(stopping, RUNS, ("stopping", "shutting_down"));
        check(stopping, Some(Activity::Paused), ("stopping", "shutting_down"));
        check(stopping, None, ("stopped", "installed"));
        check(|r| r.destroying = true, RUNS, ("configured", "shutting_down"));
        check(|r| r.destroying = true, None, ("configured", "configured"));
    }

    #[test]
    fn a_process_whose_cpus_stand_still_does_not_run() {
        for (activity, state) in [
            (Activity::Prelaunch, "prelaunch"),
            (Activity::Paused, "paused"),
            (Activity::IoError, "io-error"),
            (Activity::Panicked, "panicked"),
            (Activity::Broken, "internal-error"),
        ] {
            check(|_| {}, Some(activity), (state, "running"));
        }
    }
}
