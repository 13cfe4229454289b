//! What is on the hosts: each VM whole, on one of them, or nothing of it anywhere.

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::drivers::host::HostAction;
use muster_agent::drivers::network::numbers;
use muster_agent::vms::at_start;
use muster_shared::ids::VmUuid;
use serde_json::Value;

use super::journals::Journals;
use super::{Verdict, Violation};
use crate::sim::node::AgentNode;

/// VMs of which there is something on a host.
fn traces(agent: &AgentNode) -> BTreeSet<VmUuid> {
    let disks = agent.pool.disks().into_keys().map(|(vm, _)| vm);
    disks.chain(agent.guests.running().into_keys()).chain(agent.guests.leftovers()).collect()
}

/// A VM is on one host at most.
pub(super) fn check_homes(agents: &[AgentNode]) -> Verdict {
    let mut homes: BTreeMap<VmUuid, usize> = BTreeMap::new();
    for agent in agents {
        for vm in traces(agent) {
            if let Some(other) = homes.insert(vm, agent.number) {
                let detail = format!("{vm} is on host {other} and on host {}", agent.number);
                return Err(Violation::new("vm-is-on-one-host", detail));
            }
        }
    }
    Ok(())
}

/// No process is started and no host rebooted more often than tasks ask for. Who dies between the
/// effect and its journal has to ask the host again.
pub(super) fn check_effects(agents: &[AgentNode], journals: &Journals) -> Verdict {
    let boots: u64 = agents.iter().map(AgentNode::reboots).sum();
    let mut starts: BTreeMap<VmUuid, u64> = BTreeMap::new();
    for agent in agents {
        for vm in agent.records.records().into_keys() {
            *starts.entry(vm).or_insert(0) += agent.guests.starts(vm);
        }
        let asked = agent.log.actions().iter().filter(|act| **act == HostAction::Reboot).count();
        let asked = u64::try_from(asked).unwrap_or(u64::MAX);
        let taken = |kind| journals.taken(agent.number, kind);
        let taken = taken("server_reboot") + taken("server_factory_reset");
        if asked > taken + journals.deaths(agent.number) {
            let detail =
                format!("host {} was rebooted {asked} times by {taken} tasks", agent.number);
            return Err(Violation::new("effects-happen-once", detail));
        }
    }
    for (vm, starts) in starts {
        let asked = journals.starts(vm);
        if starts > asked + boots {
            let detail = format!("{vm} was started {starts} times by {asked} tasks");
            return Err(Violation::new("effects-happen-once", detail));
        }
    }
    Ok(())
}

/// Each VM that was made and not destroyed is whole on its host; of all others nothing is left.
pub(super) fn check_settled(agents: &[AgentNode], journals: &Journals) -> Verdict {
    let mut found: BTreeMap<VmUuid, usize> = BTreeMap::new();
    for agent in agents {
        let records: BTreeSet<VmUuid> = agent.records.records().into_keys().collect();
        if let Some(vm) = traces(agent).difference(&records).next() {
            let (disks, running) = (agent.pool.disks(), agent.guests.running());
            let prepared = agent.guests.leftovers();
            let detail = format!(
                "{vm} left something on host {} (disks {disks:?}, running {running:?}, prepared \
                 {prepared:?})",
                agent.number
            );
            return Err(Violation::new("nothing-is-left-behind", detail));
        }
        for vm in records {
            check_vm(agent, vm)?;
            found.insert(vm, agent.number);
        }
    }
    if found != *journals.homes() {
        let homes = journals.homes();
        let more: Vec<_> = found.iter().filter(|(vm, at)| homes.get(vm) != Some(at)).collect();
        let less: Vec<_> = homes.iter().filter(|(vm, at)| found.get(vm) != Some(at)).collect();
        let detail = format!("on hosts without a task: {more:?}; made and missing: {less:?}");
        return Err(Violation::new("vms-are-what-tasks-made", detail));
    }
    Ok(())
}

fn check_vm(agent: &AgentNode, vm: VmUuid) -> Verdict {
    let whole = |detail: String| Err(Violation::new("vm-is-whole", detail));
    if !agent.pool.disks().keys().any(|(of, _)| *of == vm) {
        return whole(format!("{vm} on host {} has no disk", agent.number));
    }
    if let Some(left) = agent.pool.stashed().into_keys().find(|(of, _)| *of == vm) {
        return whole(format!("{vm} on host {} has a stash {left:?}", agent.number));
    }
    let records = agent.records.records();
    let known = records.get(&vm).into_iter().flat_map(|record| &record.snapshots);
    let known: BTreeSet<String> = known.map(|known| format!("vmsnap-{}", known.name)).collect();
    for ((of, index), disk) in agent.pool.disks() {
        let found: BTreeSet<String> = disk.snapshots.into_iter().map(|(name, _)| name).collect();
        if of == vm && found != known {
            return whole(format!("disk {index} of {vm} has {found:?}, its record {known:?}"));
        }
    }
    check_nics(agent, vm)
}

/// Its guest has the NICs of its record, but for what waits for its next start.
fn check_nics(agent: &AgentNode, vm: VmUuid) -> Verdict {
    let records = agent.records.records();
    let Some(record) = records.get(&vm).filter(|_| agent.guests.running().contains_key(&vm)) else {
        return Ok(());
    };
    let nics = at_start::in_force(record);
    let nics = nics.get("nics").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let macs = nics.iter().map(|nic| nic["mac"].as_str().unwrap_or_default().to_owned());
    let wanted: BTreeMap<usize, String> = numbers(nics).into_iter().zip(macs).collect();
    let has = agent.guests.nics(vm);
    if has == wanted {
        return Ok(());
    }
    let detail = format!("{vm} on host {} has NICs {has:?}, not {wanted:?}", agent.number);
    Err(Violation::new("vm-is-whole", detail))
}
