//! `machine_update`: changes a VM's properties. What the hypervisor reads only when it starts is
//! named in `pending_reboot`, unless the VM is restarted for it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::vm::Reboot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::fits;
use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::compute::LIMITED_BY;
use crate::drivers::storage::bytes_of;
use crate::node::Drivers;
use crate::vms::at_start::{self, is_read_at_start, published};
use crate::vms::{VmRecord, payload, volumes};

const OPERATION: &str = "vmadm.update";

/// The kind; parameters `uuid`, `reboot` (`always`, `if_needed`, `never`) and the update payload.
#[derive(Debug)]
pub struct MachineUpdate;

impl Handler for MachineUpdate {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_update", machine::MACHINE_TASKS, Duration::from_secs(600))
    }

    fn preemptible(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("alias".to_owned(), json!("two"));
        params.insert("ram".to_owned(), json!(512));
        params.insert("add_nics".to_owned(), json!([{ "nic_tag": "admin" }]));
        params.insert("reboot".to_owned(), json!("always"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let reboot = Reboot::read(params.get("reboot"))
            .map_err(|problem| TaskFailure::bad_param("reboot", problem))?;
        Ok(Plan::of(vec![Lock::Vm(vm)], Update { vm, reboot }, STEPS))
    }
}

const STEPS: &[Row<Update>] = steps![
    ("check", 20, check),
    ("grow", 40, grow),
    ("record", 75, record),
    ("stop", 85, stop),
    ("start", 95, start),
    ("commit", 100, commit),
];

#[derive(Debug)]
struct Update {
    vm: VmUuid,
    reboot: Reboot,
}

/// What will be done, in absolute terms: the later steps may be repeated.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// What changes, as property and new value; `null` is gone.
    changes: Map<String, Value>,
    /// The same of members of properties that are objects, which may be large.
    members: Map<String, Value>,
    /// Disks that grow, as index and size in MiB.
    grow: BTreeMap<u32, u64>,
    /// The VM is restarted.
    reboot: bool,
    /// What takes effect when the VM starts next; it runs.
    pending_reboot: Vec<String>,
}

impl Update {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        let entropy = &ctx.drivers.entropy;
        let old = &record.properties;
        let new = payload::update(old, &ctx.params, || machine::fresh_mac(entropy.u64()))?;
        ctx.drivers.vms.check_macs(self.vm, &new)?;
        if published(old) != published(&new) || list(old, "nics") != list(&new, "nics") {
            ctx.drivers.networks.check(&new).await?;
        }
        let (changes, members) = (changes(old, &new), members(old, &new));
        fits::check(&changes, &ctx.drivers.compute.abilities())?;
        let running = machine::runs(ctx, self.vm).await?;
        let grow = grown(old, &new);
        let rewired = nic_count(old) != nic_count(&new) || macs(old) != macs(&new);
        let changed = changes.keys().chain(members.keys());
        let at_start = changed.filter(|name| is_read_at_start(name, old, &new));
        let wanted = match self.reboot {
            Reboot::Always => at_start.clone().next().is_some(),
            Reboot::IfNeeded => rewired,
            Reboot::Never => false,
        };
        if running && wanted {
            machine::disks(ctx, OPERATION, &record).await?;
        }
        // Also of one that is restarted: it may not stop.
        let pending_reboot = if running { at_start.cloned().collect() } else { Vec::new() };
        let reboot = running && wanted;
        ctx.note(&Notes { changes, members, grow, reboot, pending_reboot })
    }

    async fn grow(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Drivers { compute, storage, .. } = ctx.drivers.as_ref();
        for (index, size_mib) in ctx.notes::<Notes>()?.grow {
            let size_bytes = bytes_of(size_mib).map_err(failed(OPERATION))?;
            compute.grow_disk(self.vm, index, size_bytes).await.map_err(failed(OPERATION))?;
            storage.grow_disk(self.vm, index, size_mib).await.map_err(failed(OPERATION))?;
        }
        Ok(())
    }

    async fn record(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Notes { changes, members, grow, pending_reboot, .. } = ctx.notes()?;
        let grown = match grow.is_empty() {
            true => Vec::new(),
            false => ctx.drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?,
        };
        let apply = |record: &mut VmRecord| {
            volumes::resize(record, &grown);
            at_start::keep(record, &pending_reboot);
            set(&mut record.properties, changes);
            for (name, changes) in members {
                let (Some(Value::Object(object)), Value::Object(changes)) =
                    (record.properties.get_mut(&name), changes)
                else {
                    continue;
                };
                set(object, changes);
            }
        };
        ctx.drivers.vms.update(self.vm, apply).await?;
        // Also when nothing changed: an earlier attempt may have got no further than the record.
        if ctx.params.keys().any(|name| LIMITED_BY.contains(&name.as_str())) {
            let record = machine::record(ctx, OPERATION, self.vm)?;
            ctx.drivers.compute.limit(&record).await.map_err(failed(OPERATION))?;
        }
        Ok(())
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.notes::<Notes>()?.reboot {
            return Ok(());
        }
        let at_most = machine::STOP_TIMEOUT;
        let until = ctx.started_at.saturating_add(at_most).unwrap_or(Timestamp::MAX);
        stopping::stop(ctx, "vmadm.reboot", self.vm, Stop { force: false, until, at_most }).await
    }

    async fn start(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.notes::<Notes>()?.reboot {
            return Ok(());
        }
        machine::start(ctx, "vmadm.reboot", self.vm).await
    }

    async fn commit(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::runs(ctx, self.vm).await?;
        let waiting = at_start::running_with(&machine::record(ctx, OPERATION, self.vm)?);
        let mut pending_reboot = ctx.notes::<Notes>()?.pending_reboot;
        // What is again as the guest was started does not wait.
        pending_reboot.retain(|name| waiting.contains_key(name));
        let mut result = machine::result(ctx, self.vm);
        result["pending_reboot"] = json!(pending_reboot);
        ctx.finish_with(result);
        Ok(())
    }
}

/// Carries out [`changes`].
fn set(object: &mut Map<String, Value>, changes: Map<String, Value>) {
    for (name, value) in changes {
        if value.is_null() {
            object.shift_remove(&name);
        } else {
            object.insert(name, value);
        }
    }
}

/// The [`changes`] of each property that was an object and still is one.
fn members(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let both = new
        .iter()
        .filter_map(|(name, new)| Some((name, old.get(name)?.as_object()?, new.as_object()?)));
    let different = both.filter(|(_, old, new)| old != new);
    different.map(|(name, old, new)| (name.clone(), changes(old, new).into())).collect()
}

/// What differs: the new value, or `null` where there is none any more; without [`members`].
fn changes(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let kept = |name: &str, value: &Value| {
        let old = old.get(name);
        old == Some(value) || value.is_object() && old.is_some_and(Value::is_object)
    };
    let set = new.iter().filter(|(name, value)| !kept(name, value));
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let set = set.map(|(name, value)| (name.clone(), value.clone()));
    set.chain(gone.map(|name| (name.clone(), Value::Null))).collect()
}

fn list<'a>(vm: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    vm.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn nic_count(vm: &Map<String, Value>) -> usize {
    list(vm, "nics").len()
}

fn macs(vm: &Map<String, Value>) -> Vec<&Value> {
    list(vm, "nics").iter().map(|nic| &nic["mac"]).collect()
}

fn grown(old: &Map<String, Value>, new: &Map<String, Value>) -> BTreeMap<u32, u64> {
    let pairs = (0..).zip(list(old, "disks").iter().zip(list(new, "disks")));
    let size = |disk: &Value| disk["size"].as_u64().unwrap_or(0);
    let grown = pairs.filter(|(_, (old, new))| size(new) > size(old));
    grown.map(|(index, (_, new))| (index, size(new))).collect()
}
