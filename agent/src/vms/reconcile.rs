//! What the agent has to do so that its VMs are what their records say. Pure: the engine does it,
//! see [`crate::tasks`].

use std::collections::BTreeSet;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use serde_json::{Map, Value, json};

use super::restart::{self, Power};
use super::{Entry, VmRecord};
use crate::drivers::compute::{Activity, Observed};

/// Something that a VM needs without anybody asking for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A destroy was begun: it is finished.
    Destroy,
    /// Some of its disks are at a snapshot: all of them are brought there.
    RollBack,
    /// It was stopped for a rollback, which is over or was not begun: it is to run again.
    StartAgain,
    /// It is to start with the host, and was not considered in this boot of it.
    Boot,
    /// Its process ended, and its policy wants it back.
    Restart,
    /// Its guest has panicked, and its policy wants it back.
    Reset,
    /// Its guest has other network interfaces than it is to have: it gave one up too late, or a change
    /// could not be undone.
    SettleNics,
    /// The same of its disks; or the file of one that it has no more is still there.
    SettleDisks,
    /// One of its snapshots was to be there for a time, which is over.
    DropSnapshot,
    /// It is being imported, and nothing has come for long.
    GiveUpImport,
    /// It has run for long since it was last restarted.
    ForgetRestarts,
}

/// Parameter of `machine_boot`, `machine_kill` and `machine_import_end`: nobody asked for it, so it
/// does nothing to a VM that its owner has stopped, restarted, or gone on with meanwhile.
pub const BY_ITSELF: &str = "by_itself";

impl Action {
    /// Whether it starts the VM's process.
    #[must_use]
    pub fn starts(self) -> bool {
        matches!(self, Self::StartAgain | Self::Boot | Self::Restart)
    }

    /// The kind of the task that does it, if it takes one.
    #[must_use]
    pub fn task(self) -> Option<&'static str> {
        match self {
            Self::Destroy => Some("machine_destroy"),
            Self::RollBack => Some("machine_rollback_snapshot"),
            Self::StartAgain | Self::Boot | Self::Restart => Some("machine_boot"),
            Self::Reset => Some("machine_kill"),
            Self::SettleNics | Self::SettleDisks => Some("machine_update"),
            Self::DropSnapshot => Some("machine_delete_snapshot"),
            Self::GiveUpImport => Some("machine_import_end"),
            Self::ForgetRestarts => None,
        }
    }

    /// What is amiss as long as it is not done, for people.
    #[must_use]
    pub fn concern(self) -> &'static str {
        match self {
            Self::Destroy => "is to be destroyed",
            Self::RollBack => "is half rolled back to a snapshot",
            Self::StartAgain => "is to run again after its rollback",
            Self::Boot => "is to start with the host",
            Self::Restart => "is to be started again",
            Self::Reset => "has panicked and is to be reset",
            Self::SettleNics => "has other network interfaces than it is to have",
            Self::SettleDisks => "has other disks than it is to have",
            Self::DropSnapshot => "has a snapshot whose time is over",
            Self::GiveUpImport => "is an import that nobody goes on with",
            Self::ForgetRestarts => "has recovered",
        }
    }
}

/// What is to be done, the most urgent first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Now.
    pub actions: Vec<(VmUuid, Action)>,
    /// When something else will be due.
    pub next: Option<Timestamp>,
}

/// Compares what VMs are with what they are to be. Those in `busy` belong to tasks under way.
pub fn plan<'a>(
    entries: impl IntoIterator<Item = &'a Entry>,
    busy: &BTreeSet<VmUuid>,
    boot_id: &str,
    now: Timestamp,
) -> Plan {
    let mut found = Vec::new();
    let mut next: Option<Timestamp> = None;
    for entry in entries {
        let vm = entry.record.uuid;
        if busy.contains(&vm) {
            continue;
        }
        match needed(entry, boot_id, now) {
            Some((action, due)) if due <= now => found.push((order(&entry.record), vm, action)),
            Some((_, due)) => next = Some(next.map_or(due, |next| next.min(due))),
            None => {}
        }
    }
    found.sort();
    Plan { actions: found.into_iter().map(|(_, vm, action)| (vm, action)).collect(), next }
}

/// What one VM needs, and when.
fn needed(entry: &Entry, boot_id: &str, now: Timestamp) -> Option<(Action, Timestamp)> {
    let record = &entry.record;
    if let Some(action) = unfinished(record) {
        return Some((action, now));
    }
    if let Some(importing) = &record.importing {
        return importing.until.parse().ok().map(|until| (Action::GiveUpImport, until));
    }
    if record.provisioning || record.failed {
        return None;
    }
    let own = needed_by_guest(entry, boot_id, now);
    let expiring = expiring(record).map(|(at, _)| (Action::DropSnapshot, at));
    match (own, expiring) {
        // What runs, or is to run, goes before what takes room.
        (Some((action, due)), _) if due <= now => Some((action, due)),
        (own, expiring) => own.into_iter().chain(expiring).min_by_key(|(_, due)| *due),
    }
}

/// The snapshot whose time is over first, and when that is.
fn expiring(record: &VmRecord) -> Option<(Timestamp, &str)> {
    let complete = record.snapshots.iter().filter(|snapshot| snapshot.complete);
    let expiring = complete.filter_map(|snapshot| {
        let at: Timestamp = snapshot.expires_at.as_ref()?.parse().ok()?;
        Some((at, snapshot.name.as_str()))
    });
    expiring.min()
}

/// What becomes of its process.
fn needed_by_guest(entry: &Entry, boot_id: &str, now: Timestamp) -> Option<(Action, Timestamp)> {
    let record = &entry.record;
    match &entry.observed {
        Observed::Running(live) if live.activity == Activity::Panicked => {
            restart::reset_due(record, entry.state_since, now).map(|at| (Action::Reset, at))
        }
        Observed::Running(live) if live.nics_unsettled => Some((Action::SettleNics, now)),
        Observed::Running(live) if live.disks_unsettled => Some((Action::SettleDisks, now)),
        _ if !record.going_disks.is_empty() => Some((Action::SettleDisks, now)),
        Observed::Running(live) => {
            restart::recovered(record, live).map(|at| (Action::ForgetRestarts, at))
        }
        Observed::Stopped(ended) if record.boot_id.as_deref() == Some(boot_id) => {
            restart::due(record, ended, now).map(|at| (Action::Restart, at))
        }
        Observed::Stopped(_) => record.flag("autoboot").then_some((Action::Boot, now)),
    }
}

/// What was begun and has to be finished, whatever became of its task.
#[must_use]
pub fn unfinished(record: &VmRecord) -> Option<Action> {
    if record.destroying {
        return Some(Action::Destroy);
    }
    if record.provisioning || record.failed {
        return None;
    }
    match record.rolling_back_to {
        Some(_) => Some(Action::RollBack),
        None => record.start_when_rolled_back.then_some(Action::StartAgain),
    }
}

/// Whether a VM that does not run is still to be started by the agent itself: since that was
/// planned, somebody may have stopped it for good.
#[must_use]
pub fn is_to_run(record: &VmRecord, boot_id: &str) -> bool {
    let was_considered = record.boot_id.as_deref() == Some(boot_id);
    let wanted = if was_considered { record.power == Power::On } else { record.flag("autoboot") };
    wanted || record.start_when_rolled_back
}

/// By the configured priority, then by age.
fn order(record: &VmRecord) -> (i64, String) {
    let created = record.text("create_timestamp").unwrap_or_default().to_owned();
    (record.boot_priority(), created)
}

/// Parameters of an action's task.
#[must_use]
pub fn params(vm: VmUuid, action: Action, record: Option<&VmRecord>) -> Map<String, Value> {
    let mut params = Map::new();
    params.insert("uuid".to_owned(), json!(vm));
    let snapshot = record.and_then(|record| match action {
        Action::RollBack => record.rolling_back_to.as_deref(),
        Action::DropSnapshot => expiring(record).map(|(_, name)| name),
        _ => None,
    });
    if let Some(name) = snapshot {
        params.insert("snapshot_name".to_owned(), json!(name));
    }
    params.insert("idempotent".to_owned(), json!(true));
    params.insert("include_dni".to_owned(), json!(true));
    if action.starts() || matches!(action, Action::Reset | Action::GiveUpImport) {
        params.insert(BY_ITSELF.to_owned(), json!(true));
    }
    if action == Action::Reset {
        params.insert("signal".to_owned(), json!("SIGHUP"));
    }
    let settled = match action {
        Action::SettleNics => Some("update_nics"),
        Action::SettleDisks => Some("update_disks"),
        _ => None,
    };
    if let Some(settled) = settled {
        // Nothing is to change but what is amiss.
        params.insert(settled.to_owned(), json!([]));
        params.insert("reboot".to_owned(), json!("never"));
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::compute::{Ended, Live};
    use crate::vm_record::{GoingDisk, Importing, SnapshotRecord};
    use crate::vms::restart::{POLICY_KEY, Restarts};
    use crate::vms::sim::record;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn now() -> Timestamp {
        Timestamp::from_millisecond(i64::try_from(NOW_MS).unwrap()).unwrap()
    }

    /// Stopped with an error just now, in this boot of the host; to be started again always.
    fn entry(number: u128, change: impl FnOnce(&mut VmRecord)) -> Entry {
        let mut record = VmRecord {
            provisioning: false,
            boot_id: Some("boot-1".to_owned()),
            power: Power::On,
            ..record(number)
        };
        let metadata = json!({ POLICY_KEY: "always" });
        record.properties.insert("internal_metadata".to_owned(), metadata);
        change(&mut record);
        let ended = Ended { exit_status: Some(1), exited_at_ms: Some(NOW_MS), reason: None };
        Entry { record, observed: Observed::Stopped(ended), state_since: now(), guest: None }
    }

    fn planned(entry: &Entry, boot_id: &str, seconds: i64) -> Option<Action> {
        let now = now() + jiff::Span::new().seconds(seconds);
        let plan = plan([entry], &BTreeSet::new(), boot_id, now);
        plan.actions.first().map(|(_, action)| *action)
    }

    #[test]
    fn a_vm_that_ended_is_restarted_after_its_pause() {
        let vm = entry(1, |_| ());
        assert_eq!(planned(&vm, "boot-1", 0), None);
        assert_eq!(planned(&vm, "boot-1", 1), Some(Action::Restart));
        let first = plan([&vm], &BTreeSet::new(), "boot-1", now());
        assert_eq!(first.next, Some(now() + jiff::Span::new().seconds(1)));
        let busy = BTreeSet::from([vm.record.uuid]);
        let later = now() + jiff::Span::new().seconds(9);
        assert_eq!(plan([&vm], &busy, "boot-1", later), Plan::default());
    }

    #[test]
    fn after_a_boot_of_the_host_only_autoboot_counts() {
        assert_eq!(planned(&entry(1, |_| ()), "boot-2", 9), None);
        let autoboot = |record: &mut VmRecord| {
            record.properties.insert("autoboot".to_owned(), json!(true));
        };
        assert_eq!(planned(&entry(1, autoboot), "boot-2", 0), Some(Action::Boot));
    }

    #[test]
    fn what_is_half_made_is_left_alone_and_what_is_half_destroyed_is_not() {
        for (change, action) in [
            ((|r| r.provisioning = true) as fn(&mut VmRecord), None),
            (|r| r.failed = true, None),
            (|r| r.rolling_back_to = Some("a".to_owned()), Some(Action::RollBack)),
            (|r| r.destroying = true, Some(Action::Destroy)),
            (|r| r.power = Power::Off, None),
            (
                |r| (r.power, r.start_when_rolled_back) = (Power::Off, true),
                Some(Action::StartAgain),
            ),
        ] {
            assert_eq!(planned(&entry(1, change), "boot-1", 9), action);
        }
    }

    #[test]
    fn what_was_to_be_there_for_a_time_goes_when_that_is_over() {
        let at = |seconds: i64| {
            let at = now() + jiff::Span::new().seconds(seconds);
            Some(at.to_string())
        };
        let snapshot = |name: &str, expires_at: Option<String>, complete: bool| SnapshotRecord {
            name: name.to_owned(),
            created_at: String::new(),
            task: "t".parse().unwrap(),
            complete,
            expires_at,
        };
        let vm = entry(1, |record| {
            record.power = Power::Off;
            record.snapshots = vec![
                snapshot("kept", None, true),
                snapshot("later", at(20), true),
                snapshot("soon", at(10), true),
                snapshot("half", at(1), false),
            ];
        });
        assert_eq!(planned(&vm, "boot-1", 9), None);
        assert_eq!(planned(&vm, "boot-1", 10), Some(Action::DropSnapshot));
        let wanted = params(vm.record.uuid, Action::DropSnapshot, Some(&vm.record));
        assert_eq!(wanted["snapshot_name"], "soon");
        // What is to run goes first.
        let vm = entry(1, |record| record.snapshots = vec![snapshot("soon", at(1), true)]);
        assert_eq!(planned(&vm, "boot-1", 9), Some(Action::Restart));
    }

    #[test]
    fn an_import_that_nobody_goes_on_with_is_given_up() {
        let vm = entry(1, |record| {
            record.provisioning = true;
            record.importing = Some(Importing {
                export: "one".to_owned(),
                volumes: Vec::new(),
                volume: 0,
                offset: 0,
                until: (now() + jiff::Span::new().seconds(10)).to_string(),
            });
        });
        assert_eq!(planned(&vm, "boot-1", 9), None);
        assert_eq!(planned(&vm, "boot-2", 10), Some(Action::GiveUpImport));
        let wanted = params(vm.record.uuid, Action::GiveUpImport, Some(&vm.record));
        assert_eq!(wanted[BY_ITSELF], true);
    }

    fn runs(nics_unsettled: bool) -> Observed {
        Observed::Running(Live {
            pid: 1,
            started_at_ms: NOW_MS,
            booted_at_ms: NOW_MS,
            reboots: 0,
            activity: Activity::Running,
            reason: None,
            nics_unsettled,
            disks_unsettled: false,
            memory_mib: None,
        })
    }

    #[test]
    fn a_vm_that_ran_for_long_has_recovered() {
        let mut vm = entry(1, |record| record.restarts = Restarts { count: 4 });
        vm.observed = runs(false);
        assert_eq!(planned(&vm, "boot-1", 599), None);
        assert_eq!(planned(&vm, "boot-1", 600), Some(Action::ForgetRestarts));
        vm.record.restarts = Restarts::default();
        assert_eq!(planned(&vm, "boot-1", 600), None);
    }

    #[test]
    fn a_guest_that_gave_up_a_nic_too_late_gets_it_again() {
        let mut vm = entry(1, |_| ());
        vm.observed = runs(true);
        assert_eq!(planned(&vm, "boot-1", 0), Some(Action::SettleNics));
        let params = params(vm.record.uuid, Action::SettleNics, Some(&vm.record));
        assert_eq!((&params["reboot"], &params["update_nics"]), (&json!("never"), &json!([])));
    }

    #[test]
    fn disks_that_are_amiss_are_settled() {
        let mut vm = entry(1, |_| ());
        let Observed::Running(live) = runs(false) else { panic!("it runs") };
        vm.observed = Observed::Running(Live { disks_unsettled: true, ..live });
        assert_eq!(planned(&vm, "boot-1", 0), Some(Action::SettleDisks));
        let params = params(vm.record.uuid, Action::SettleDisks, Some(&vm.record));
        assert_eq!((&params["reboot"], &params["update_disks"]), (&json!("never"), &json!([])));
        // A file that is left, whether or not the VM runs.
        let left = entry(2, |record| {
            record.power = Power::Off;
            record.going_disks = vec![GoingDisk { index: 1, owner: None }];
        });
        assert_eq!(planned(&left, "boot-1", 0), Some(Action::SettleDisks));
    }

    #[test]
    fn a_vm_whose_guest_panicked_is_reset_as_its_policy_wants() {
        let mut vm = entry(1, |_| ());
        let mut live = Live {
            pid: 1,
            started_at_ms: NOW_MS,
            booted_at_ms: NOW_MS,
            reboots: 0,
            activity: Activity::Panicked,
            reason: None,
            nics_unsettled: false,
            disks_unsettled: false,
            memory_mib: None,
        };
        vm.observed = Observed::Running(live.clone());
        assert_eq!(planned(&vm, "boot-1", 0), None);
        assert_eq!(planned(&vm, "boot-1", 1), Some(Action::Reset));
        // A reset begins anew what its process does not.
        vm.record.restarts = Restarts { count: 1 };
        live.activity = Activity::Running;
        live.booted_at_ms = NOW_MS + 1000;
        vm.observed = Observed::Running(live);
        assert_eq!(planned(&vm, "boot-1", 600), None);
        assert_eq!(planned(&vm, "boot-1", 601), Some(Action::ForgetRestarts));
        let never = json!({ POLICY_KEY: "never" });
        vm.record.properties.insert("internal_metadata".to_owned(), never);
        assert_eq!(planned(&vm, "boot-1", 600), None);
    }

    #[test]
    fn a_vm_that_was_stopped_since_is_not_to_run() {
        let autoboot = |record: &mut VmRecord| {
            record.properties.insert("autoboot".to_owned(), json!(true));
            record.power = Power::Off;
        };
        let off = entry(1, autoboot).record;
        assert!(!is_to_run(&off, "boot-1") && is_to_run(&off, "boot-2"));
        assert!(is_to_run(&entry(1, |_| ()).record, "boot-1"));
        assert!(is_to_run(&VmRecord { start_when_rolled_back: true, ..off }, "boot-1"));
    }

    #[test]
    fn they_come_by_priority_and_then_by_age() {
        let vm = |number, priority: Option<i64>, created: &str| {
            entry(number, |record| {
                record.destroying = true;
                record.properties.insert("create_timestamp".to_owned(), json!(created));
                if let Some(priority) = priority {
                    let metadata = json!({ "muster:boot_priority": priority });
                    record.properties.insert("internal_metadata".to_owned(), metadata);
                }
            })
        };
        let vms = [vm(1, None, "2026-02"), vm(2, None, "2026-01"), vm(3, Some(5), "2026-03")];
        let plan = plan(&vms, &BTreeSet::new(), "boot-1", now());
        let order: Vec<u128> = plan.actions.iter().map(|(vm, _)| vm.0.as_u128()).collect();
        assert_eq!(order, [3, 2, 1]);
    }
}
