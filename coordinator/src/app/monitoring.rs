//! The fleet in a few numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::api::server::ServerStatus;
use muster_shared::api::vm::Heard;

use super::fields::shown_status;
use super::fleet::Fleet;
use super::placement::Placement;
use super::tasks::Tasks;
use crate::alloc::Unreserved;

/// States of VMs that are counted by name; what else an agent may say is `other`.
const VM_STATES: [&str; 6] =
    ["running", "stopped", "provisioning", "incomplete", "failed", UNKNOWN_STATE];
/// Nobody can tell the state of a VM whose server is not heard.
const UNKNOWN_STATE: &str = "unknown";
/// Kinds of tasks that are counted by name, so that whoever makes tasks can't make metrics grow.
const MAX_TASK_KINDS: usize = 100;
/// What has no name of its own.
const OTHER: &str = "other";

/// How many there are of each.
#[derive(Clone, Debug, Default)]
pub struct FleetCounts {
    /// Registered servers, by status.
    pub servers: BTreeMap<&'static str, u64>,
    /// VMs, by state.
    pub vms: BTreeMap<&'static str, u64>,
    /// Open tasks, by kind.
    pub open_tasks: BTreeMap<String, u64>,
    /// What new VMs can get, of all servers together.
    pub room: Unreserved,
}

/// The fleet as monitoring sees it.
#[derive(Debug)]
pub(crate) struct Monitoring {
    pub(super) fleet: Arc<Fleet>,
    pub(super) placement: Arc<Placement>,
    pub(super) tasks: Arc<Tasks>,
}

impl Monitoring {
    /// Counts everything; takes a while with thousands of servers.
    #[must_use]
    pub(crate) fn counts(&self) -> FleetCounts {
        let statuses = [ServerStatus::Running, ServerStatus::Unknown, ServerStatus::Rebooting];
        let mut counts = FleetCounts {
            // Those of which there is none are shown as well.
            servers: statuses.into_iter().map(|status| (status.as_str(), 0)).collect(),
            vms: VM_STATES.into_iter().map(|state| (state, 0)).collect(),
            open_tasks: bounded(self.tasks.table.count_by_kind()),
            room: self.placement.room(),
        };
        self.fleet.for_each(|_, entry| {
            let Some(record) = &entry.record else { return };
            let status = shown_status(entry.stored_status(), &record.value);
            *counts.servers.entry(status.as_str()).or_default() += 1;
        });
        self.fleet.for_each_vm(None, |_, _, entry, report| {
            let shown = match entry.heard() {
                Heard::Running => report.vm.state.as_str(),
                Heard::Unknown => UNKNOWN_STATE,
            };
            let state = VM_STATES.into_iter().find(|state| *state == shown).unwrap_or(OTHER);
            *counts.vms.entry(state).or_default() += 1;
            true
        });
        counts
    }
}

/// The kinds with the most tasks; the rest of them together.
fn bounded(kinds: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    if kinds.len() <= MAX_TASK_KINDS {
        return kinds;
    }
    let mut sorted: Vec<_> = kinds.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest = sorted.split_off(MAX_TASK_KINDS);
    let others = rest.iter().map(|(_, count)| count).sum();
    sorted.into_iter().chain([(OTHER.to_owned(), others)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_kinds_are_shown_together() {
        let kinds = (0..150).map(|n| (format!("kind{n:03}"), if n < 100 { 2 } else { 1 }));
        let kept = bounded(kinds.collect());
        assert_eq!(kept.len(), MAX_TASK_KINDS + 1);
        assert_eq!((kept["kind099"], kept[OTHER]), (2, 50));
        let few = BTreeMap::from([("nop".to_owned(), 1)]);
        assert_eq!(bounded(few.clone()), few);
    }
}
