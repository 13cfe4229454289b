//! What must hold at every moment, whatever crashed (DESIGN §3).

use std::collections::{BTreeMap, BTreeSet};

use muster_coordinator::app::tasks::{TaskRecord, TaskStatus};
use muster_coordinator::roster::RosterRecord;
use muster_coordinator::store::{Record, Revision, records_of};
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::kv::MemKv;

use super::client::Client;
use super::node::AgentNode;
use super::trace::Trace;

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Model {
    synced: Option<(u64, usize)>,
    revisions: BTreeMap<String, Revision>,
    tasks: BTreeMap<TaskId, TaskRecord>,
    rosters: BTreeMap<String, RosterRecord>,
}

impl Model {
    /// Checks everything that may have changed.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(
        &mut self,
        kv: &MemKv,
        agents: &[AgentNode],
        client: &Client,
        trace: &Trace,
    ) -> Result<(), String> {
        // A crash makes a new map, so its counter alone does not tell.
        let acknowledged = client.acknowledged().count();
        let durable = (kv.synced(), acknowledged);
        if self.synced != Some(durable) {
            self.synced = Some(durable);
            self.check_store(kv, trace)?;
            for id in client.acknowledged() {
                if !self.tasks.contains_key(id) {
                    return Err(format!("the acknowledged task {id} is not in the store"));
                }
            }
        }
        check_vms(agents, client)
    }

    fn check_store(&mut self, kv: &MemKv, trace: &Trace) -> Result<(), String> {
        let records = records_of(&kv.durable()).map_err(|e| e.to_string())?;
        let mut keys = BTreeSet::new();
        for record in &records {
            keys.insert(record.key.clone());
            let known = self.revisions.insert(record.key.clone(), record.revision);
            if known == Some(record.revision) {
                continue;
            }
            trace.event(format_args!("stored {} at {}", record.key, record.revision));
            if known.is_some_and(|known| known > record.revision) {
                return Err(format!("{} went back from {known:?}", record.key));
            }
            if record.key.starts_with("task/") {
                self.check_task(record)?;
            } else if record.key.starts_with("roster/") {
                self.check_roster(record)?;
            }
        }
        for id in self.tasks.keys() {
            if !keys.contains(&format!("task/{id}")) {
                return Err(format!("task {id} is gone from the store"));
            }
        }
        self.revisions.retain(|key, _| keys.contains(key));
        Ok(())
    }

    /// A task ends once, and its history has CNAPI's layout.
    fn check_task(&mut self, record: &Record) -> Result<(), String> {
        let task: TaskRecord = serde_json::from_slice(&record.value).map_err(|e| e.to_string())?;
        if let Some(known) = self.tasks.get(&task.id)
            && known.status != TaskStatus::Active
            && *known != task
        {
            return Err(format!("task {} ended twice: {known:?}, then {task:?}", task.id));
        }
        let names: Vec<_> = task.history.iter().filter_map(|e| e["name"].as_str()).collect();
        let expected: &[&str] = match task.status {
            TaskStatus::Active => &[],
            TaskStatus::Complete => &["finish"],
            TaskStatus::Failure => &["error", "finish"],
        };
        if names != expected {
            return Err(format!("task {} has the history {names:?}", task.id));
        }
        self.tasks.insert(task.id.clone(), task);
        Ok(())
    }

    /// A status is written when it changes, or when another life of a coordinator takes over. Two
    /// changes may lie between two looks: then it holds since another moment.
    fn check_roster(&mut self, record: &Record) -> Result<(), String> {
        let roster: RosterRecord =
            serde_json::from_slice(&record.value).map_err(|e| e.to_string())?;
        if let Some(known) = self.rosters.get(&record.key)
            && (known.status, known.since) == (roster.status, roster.since)
            && known.authority == roster.authority
            && known.via == roster.via
        {
            return Err(format!("{} was written without a change: {roster:?}", record.key));
        }
        self.rosters.insert(record.key.clone(), roster);
        Ok(())
    }

    /// Whether every task in the store has ended.
    #[must_use]
    pub fn all_ended(&self) -> bool {
        self.tasks.values().all(|task| task.status != TaskStatus::Active)
    }

    /// The tasks that have not, for a report.
    #[must_use]
    pub fn open_tasks(&self) -> String {
        let open = self.tasks.values().filter(|task| task.status == TaskStatus::Active);
        let show = |t: &TaskRecord| {
            let (sent, accepted) = (t.sent, t.accepted);
            format!("{} {} on {} sent {sent} accepted {accepted}", t.id, t.task, t.server_uuid)
        };
        open.map(show).collect::<Vec<_>>().join(", ")
    }

    /// How many tasks ended well and badly.
    #[must_use]
    pub fn ended(&self) -> (usize, usize) {
        let count = |status| self.tasks.values().filter(|task| task.status == status).count();
        (count(TaskStatus::Complete), count(TaskStatus::Failure))
    }

    /// Every task, by id.
    #[must_use]
    pub fn tasks(&self) -> &BTreeMap<TaskId, TaskRecord> {
        &self.tasks
    }

    /// The revision of every record.
    #[must_use]
    pub fn revisions(&self) -> BTreeMap<String, Revision> {
        self.revisions.clone()
    }

    /// Keys that were written or removed since.
    #[must_use]
    pub fn changed_since(&self, before: &BTreeMap<String, Revision>) -> Vec<String> {
        let keys: BTreeSet<_> = before.keys().chain(self.revisions.keys()).collect();
        let changed = |key: &&String| before.get(*key) != self.revisions.get(*key);
        keys.into_iter().filter(|key| changed(key)).cloned().collect()
    }

    /// The VMs that there must be: created, and not destroyed there since. Ids of tasks are in the
    /// order of their requests.
    fn expected(&self) -> BTreeSet<VmUuid> {
        let mut homes: BTreeMap<VmUuid, ServerUuid> = BTreeMap::new();
        for task in self.tasks.values().filter(|task| task.status == TaskStatus::Complete) {
            let Some(vm) = task.vm_uuid else { continue };
            match task.task.as_str() {
                "machine_create" => drop(homes.insert(vm, task.server_uuid)),
                "machine_destroy" if homes.get(&vm) == Some(&task.server_uuid) => {
                    homes.remove(&vm);
                }
                _ => {}
            }
        }
        homes.into_keys().collect()
    }

    /// Once all tasks have ended, each VM is whole on one host, or there is nothing of it.
    ///
    /// # Errors
    /// What is missing or left.
    pub fn check_settled(&self, agents: &[AgentNode]) -> Result<(), String> {
        let expected = self.expected();
        let mut found: BTreeMap<VmUuid, ServerUuid> = BTreeMap::new();
        for agent in agents {
            let records: BTreeSet<VmUuid> = agent.records.records().into_keys().collect();
            let traces = traces(agent);
            if let Some(vm) = traces.difference(&records).next() {
                let (disks, running) = (agent.pool.disks(), agent.guests.running());
                let prepared = agent.guests.leftovers();
                return Err(format!(
                    "VM {vm} left something on host {} (disks {disks:?}, running {running:?}, \
                     prepared {prepared:?})",
                    agent.number
                ));
            }
            for vm in &records {
                let disks = agent.pool.disks().keys().filter(|(of, _)| of == vm).count();
                if disks == 0 {
                    return Err(format!("VM {vm} on host {} has no disk", agent.number));
                }
                if let Some(left) = agent.pool.stashed().into_keys().find(|(of, _)| of == vm) {
                    return Err(format!("VM {vm} on host {} has a stash {left:?}", agent.number));
                }
                check_snapshots(agent, *vm)?;
                if let Some(other) = found.insert(*vm, agent.server) {
                    return Err(format!("VM {vm} is on {other} and on {}", agent.server));
                }
            }
        }
        let found: BTreeSet<VmUuid> = found.into_keys().collect();
        if found != expected {
            let (more, less): (Vec<_>, Vec<_>) =
                (found.difference(&expected).collect(), expected.difference(&found).collect());
            let about = |vm: &VmUuid| more.contains(&vm) || less.contains(&vm);
            let tasks: Vec<_> = self
                .tasks
                .values()
                .filter(|task| task.vm_uuid.as_ref().is_some_and(about))
                .collect();
            return Err(format!(
                "VMs nobody has a task for: {more:?}; VMs missing: {less:?}; their tasks: {tasks:#?}"
            ));
        }
        Ok(())
    }
}

/// Every disk has the snapshots of the record, and no others.
fn check_snapshots(agent: &AgentNode, vm: VmUuid) -> Result<(), String> {
    let records = agent.records.records();
    let known = records.get(&vm).into_iter().flat_map(|record| &record.snapshots);
    let known: BTreeSet<String> = known.map(|known| format!("vmsnap-{}", known.name)).collect();
    for ((of, index), disk) in agent.pool.disks() {
        let found: BTreeSet<String> = disk.snapshots.into_iter().map(|(name, _)| name).collect();
        if of == vm && found != known {
            return Err(format!("disk {index} of VM {vm} has {found:?}, its record {known:?}"));
        }
    }
    Ok(())
}

/// VMs of which there is something on a host.
fn traces(agent: &AgentNode) -> BTreeSet<VmUuid> {
    let disks = agent.pool.disks().into_keys().map(|(vm, _)| vm);
    disks.chain(agent.guests.running().into_keys()).chain(agent.guests.leftovers()).collect()
}

/// A VM is on one host at most, and its process was not started more often than asked.
fn check_vms(agents: &[AgentNode], client: &Client) -> Result<(), String> {
    let mut homes: BTreeMap<VmUuid, usize> = BTreeMap::new();
    for agent in agents {
        for vm in traces(agent) {
            if let Some(other) = homes.insert(vm, agent.number) {
                return Err(format!("VM {vm} is on host {other} and on host {}", agent.number));
            }
        }
    }
    for vm in client.placed() {
        let starts: u64 = agents.iter().map(|agent| agent.guests.starts(*vm)).sum();
        let boots: u64 = agents.iter().map(AgentNode::reboots).sum();
        if starts > client.starts(*vm) + boots {
            let asked = client.starts(*vm);
            return Err(format!("VM {vm} was started {starts} times, asked for {asked}"));
        }
    }
    Ok(())
}
