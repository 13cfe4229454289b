//! `machine_update`: changes a VM's properties. What the hypervisor reads only when it starts is
//! named in `pending_reboot`, unless the VM is restarted for it.

mod disks;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::vm::Reboot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::disks::Disks;
use super::fits;
use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, TaskContext, TaskFailure, guest_nics};
use crate::drivers::compute::LIMITED_BY;
use crate::drivers::storage::{RootWishes, bytes_of, is_device};
use crate::node::Drivers;
use crate::vm_record::disks::{numbered, with_number};
use crate::vm_record::image_of;
use crate::vms::at_start::{self, is_read_at_start, published};
use crate::vms::{VmRecord, live_disks, live_nics, payload, volumes};

const OPERATION: &str = "vmadm.update";
/// Properties that networks have to be able to give.
const OF_NETWORKS: [&str; 3] = ["firewall_enabled", "firewall_rules", "nics"];

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

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
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
        // Held until its disks are made: an image that was found here does not go before.
        let images = new_images(params).into_iter().map(Lock::ImageUse);
        let locks = images.chain([Lock::Vm(vm)]).collect();
        Ok(Plan::of(locks, Update { vm, reboot }, STEPS))
    }
}

const STEPS: &[Row<Update>] = steps![
    ("check", 10, check),
    ("grow", 20, grow),
    ("image", 30, bring_images),
    ("disks", 45, settle_disks, undo unsettle_disks),
    ("nics", 60, settle_nics, undo unsettle_nics),
    ("memory", 70, set_memory, undo reset_memory),
    ("root", 72, change_root, undo unchange_root),
    ("record", 75, record),
    ("stop", 85, stop),
    ("start", 93, start),
    ("purge", 97, purge),
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
    /// What becomes of its disks, if anything.
    disks: Option<Disks>,
    /// Memory that the guest is to have while it runs, MiB, and what it was to have before.
    memory: Option<(u64, u64)>,
    /// The NICs change while the guest runs, and whether any come or go.
    live_nics: Option<bool>,
    /// Addresses of NICs that the guest was given while it ran, and not told the addresses of.
    untold: Vec<String>,
    /// The VM is restarted.
    reboot: bool,
    /// What takes effect when the VM starts next; it runs.
    pending_reboot: Vec<String>,
}

impl Notes {
    /// These properties, changed.
    fn changed(&self, mut properties: Map<String, Value>) -> Map<String, Value> {
        set(&mut properties, self.changes.clone());
        for (name, changes) in &self.members {
            let (Some(Value::Object(object)), Value::Object(changes)) =
                (properties.get_mut(name), changes)
            else {
                continue;
            };
            set(object, changes.clone());
        }
        properties
    }
}

impl Update {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        let entropy = &ctx.drivers.entropy;
        let old = &record.properties;
        let new = payload::update(old, &ctx.params, || machine::fresh_mac(entropy.u64()))?;
        ctx.drivers.vms.check_addresses(self.vm, &new)?;
        let differs = |name: &&str| old.get(*name) != new.get(*name);
        if published(old) != published(&new) || OF_NETWORKS.iter().any(differs) {
            ctx.drivers.networks.check(&new).await?;
        }
        let (changes, members) = (changes(old, &new), members(old, &new));
        fits::check(&changes, &ctx.drivers.compute.abilities())?;
        let running = machine::runs(ctx, self.vm).await?;
        let grow = grown(old, &new);
        let was = at_start::in_force(&record);
        let changed = changes.keys().chain(members.keys());
        let mut at_start: Vec<String> =
            changed.filter(|name| is_read_at_start(name, &was, &new)).cloned().collect();
        let always = self.reboot == Reboot::Always && !at_start.is_empty();
        let about_nics = names_nics(&ctx.params)
            || names_firewall(&ctx.params) && (has_firewall(old) || has_firewall(&new));
        let live_nics = match running && !always && about_nics {
            true => self.live_nics(ctx, &record, &new).await?,
            false => None,
        };
        let rewired = live_nics::differ(list(&was, "nics"), list(&new, "nics"));
        let needed = self.reboot == Reboot::IfNeeded && rewired && live_nics == Some(false);
        let reboot = running && (always || needed);
        if reboot {
            machine::disks(ctx, OPERATION, &record).await?;
        }
        let disks = self.plan_disks(ctx, &record, &new, running && !reboot).await?;
        if disks.as_ref().is_some_and(Disks::is_live) {
            at_start.retain(|name| name != "disks");
        }
        let memory = memory(&ctx.params, &new, old).filter(|_| running && !reboot);
        let live_nics = live_nics.filter(|_| !reboot);
        if live_nics.is_some() {
            // What waits of them shows once it is known how they are connected.
            at_start.retain(|name| name != "nics");
        }
        // Also of one that is restarted: it may not stop.
        let pending_reboot = if running { at_start } else { Vec::new() };
        let untold = Vec::new();
        let notes = Notes {
            changes,
            members,
            grow,
            disks,
            memory,
            live_nics,
            untold,
            reboot,
            pending_reboot,
        };
        ctx.note(&notes)
    }

    /// Whether NICs can come and go while the guest runs; `None`: it does not run.
    async fn live_nics(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
        new: &Map<String, Value>,
    ) -> Result<Option<bool>, TaskFailure> {
        let present = ctx.drivers.compute.nics(self.vm).await.map_err(failed(OPERATION))?;
        let running = live_nics::running(record);
        Ok(present.map(|present| live_nics::can_have(&present, running, new)))
    }

    async fn grow(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Drivers { compute, storage, .. } = ctx.drivers.as_ref();
        for (index, size_mib) in ctx.notes::<Notes>()?.grow {
            let size_bytes = bytes_of(size_mib).map_err(failed(OPERATION))?;
            let disks = storage.disks(self.vm).await.map_err(failed(OPERATION))?;
            let mut disks = disks.iter().filter(|disk| disk.index == index);
            // Who has a file open makes it larger, and hears of a device that has become so.
            if disks.any(|disk| is_device(&disk.path)) {
                storage.grow_disk(self.vm, index, size_mib).await.map_err(failed(OPERATION))?;
                compute.grow_disk(self.vm, index, size_bytes).await.map_err(failed(OPERATION))?;
            } else {
                compute.grow_disk(self.vm, index, size_bytes).await.map_err(failed(OPERATION))?;
                storage.grow_disk(self.vm, index, size_mib).await.map_err(failed(OPERATION))?;
            }
        }
        Ok(())
    }

    async fn settle_nics(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let mut notes: Notes = ctx.notes()?;
        let Some(hot) = notes.live_nics else { return Ok(()) };
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let (running, mut wanted) =
            (live_nics::running(&record), notes.changed(record.properties.clone()));
        let nics = live_nics::live(running, list(&wanted, "nics"), hot);
        wanted.insert("nics".to_owned(), nics.into());
        let attached = guest_nics::settle(ctx, self.vm, &wanted).await;
        let attached = attached.map_err(failed(OPERATION))?;
        let untold = live_nics::untold(running, list(&wanted, "nics")).into_iter();
        let untold = untold.filter(|mac| guest_nics::is_on_bridge(&attached, mac));
        notes.untold = untold.map(str::to_owned).collect();
        ctx.note(&notes)
    }

    /// Unless the record has the change: then the guest is to have it.
    async fn unsettle_nics(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Ok(notes) = ctx.notes::<Notes>() else { return Ok(()) };
        if notes.live_nics.is_none() {
            return Ok(());
        }
        let mut record = machine::record(ctx, OPERATION, self.vm)?;
        if notes.changed(record.properties.clone()) == record.properties {
            return Ok(());
        }
        // Its own devices alone: one that waits for the next start goes on waiting.
        let nics = live_nics::live(live_nics::running(&record), record.list("nics"), false);
        record.properties.insert("nics".to_owned(), nics.into());
        let settled = guest_nics::settle(ctx, self.vm, &record.properties).await;
        settled.map(drop).map_err(failed(OPERATION))
    }

    async fn set_memory(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some((wanted, _)) = ctx.notes::<Notes>()?.memory else { return Ok(()) };
        ctx.drivers.compute.set_memory(self.vm, wanted).await.map_err(failed(OPERATION))
    }

    /// Unless the record has the change.
    async fn reset_memory(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Ok(Notes { memory: Some((wanted, before)), .. }) = ctx.notes() else { return Ok(()) };
        if machine::record(ctx, OPERATION, self.vm)?.number("ram") == Some(wanted) {
            return Ok(());
        }
        ctx.drivers.compute.set_memory(self.vm, before).await.map_err(failed(OPERATION))
    }

    async fn change_root(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some((_, wanted)) = self.root_wishes(ctx, &ctx.notes()?)? else { return Ok(()) };
        let changed = ctx.drivers.storage.change_root(self.vm, &wanted).await;
        changed.map_err(failed(OPERATION))
    }

    /// Unless the record has the change.
    async fn unchange_root(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Ok(notes) = ctx.notes::<Notes>() else { return Ok(()) };
        let Some((before, _)) = self.root_wishes(ctx, &notes)? else { return Ok(()) };
        let changed = ctx.drivers.storage.change_root(self.vm, &before).await;
        changed.map_err(failed(OPERATION))
    }

    /// How a container's root is kept by its record, and how it is to be; `None`: that is the same.
    fn root_wishes(
        &self,
        ctx: &TaskContext,
        notes: &Notes,
    ) -> Result<Option<(RootWishes, RootWishes)>, TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let wanted = RootWishes::of(&notes.changed(record.properties.clone()));
        let before = RootWishes::of(&record.properties);
        Ok((record.is_container() && before != wanted).then_some((before, wanted)))
    }

    async fn record(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let notes: Notes = ctx.notes()?;
        let found = match notes.grow.is_empty() && notes.disks.is_none() {
            true => Vec::new(),
            false => ctx.drivers.storage.disks(self.vm).await.map_err(failed(OPERATION))?,
        };
        let apply = |record: &mut VmRecord| {
            volumes::resize(record, &found);
            let had = live_disks::running(record).to_vec();
            if let Some(disks) = &notes.disks {
                disks.note(record, &found);
            }
            at_start::keep(record, &notes.pending_reboot);
            let running = live_nics::running(record).to_vec();
            record.properties = notes.changed(std::mem::take(&mut record.properties));
            if let Some(disks) = &notes.disks {
                disks.keep(record, &had);
            }
            if let Some(hot) = notes.live_nics {
                let live = live_nics::live(&running, record.list("nics"), hot);
                at_start::keep_devices(
                    record,
                    "nics",
                    live_nics::known(&running, &live, &notes.untold),
                );
            }
        };
        ctx.drivers.vms.update(self.vm, apply).await?;
        // Also when nothing changed: an earlier attempt may have got no further than the record.
        let record = machine::record(ctx, OPERATION, self.vm)?;
        if ctx.params.keys().any(|name| LIMITED_BY.contains(&name.as_str())) {
            ctx.drivers.compute.limit(&record).await.map_err(failed(OPERATION))?;
        }
        let waits = |name: &str| at_start::running_with(&record, None).contains_key(name);
        if ctx.params.contains_key("vnc_password") && !waits("vnc_password") {
            ctx.drivers.compute.set_password(&record).await.map_err(failed(OPERATION))?;
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
        let entry = ctx.drivers.vms.entry(self.vm);
        let memory_mib = entry.and_then(|entry| entry.observed.live()?.memory_mib);
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let waiting = at_start::running_with(&record, memory_mib);
        let Notes { mut pending_reboot, changes, disks, live_nics, .. } = ctx.notes()?;
        if disks.is_some_and(|disks| disks.is_live()) && changes.contains_key("disks") {
            pending_reboot.push("disks".to_owned());
        }
        if live_nics.is_some() && changes.contains_key("nics") {
            pending_reboot.push("nics".to_owned());
        }
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

/// Whether an update is about NICs; it may be one that failed halfway, and is asked for again.
fn names_nics(params: &Params) -> bool {
    let given = |name: &str| params.get(name).is_some_and(|value| !value.is_null());
    ["add_nics", "remove_nics", "update_nics"].into_iter().any(given)
}

/// Whether an update is about what the firewall's rules are, or which of them are for the VM.
fn names_firewall(params: &Params) -> bool {
    ["firewall_enabled", "firewall_rules", "set_tags", "remove_tags"]
        .into_iter()
        .any(|name| params.contains_key(name))
}

fn has_firewall(vm: &Map<String, Value>) -> bool {
    vm.get("firewall_enabled").is_some_and(|enabled| *enabled == true)
}

fn grown(old: &Map<String, Value>, new: &Map<String, Value>) -> BTreeMap<u32, u64> {
    let size = |disk: &Value| disk["size"].as_u64().unwrap_or(0);
    let grows = |(number, new): (u32, &Value)| {
        let old = with_number(list(old, "disks"), number)?;
        (size(new) > size(old)).then(|| (number, size(new)))
    };
    numbered(list(new, "disks")).filter_map(grows).collect()
}

/// Memory that an update asks for, and what there was before, MiB; it may be one that failed halfway, and
/// is asked for again.
fn memory(
    params: &Params,
    new: &Map<String, Value>,
    old: &Map<String, Value>,
) -> Option<(u64, u64)> {
    let ram = |vm: &Map<String, Value>| vm.get("ram").and_then(Value::as_u64);
    let asks = params.get("ram").is_some_and(|ram| !ram.is_null());
    ram(new).zip(ram(old)).filter(|_| asks)
}

/// Images of disks that come. What is no image is refused when the update is looked at.
fn new_images(params: &Params) -> Vec<ImageUuid> {
    let disks = params.get("add_disks").and_then(Value::as_array);
    let mut images: Vec<ImageUuid> = disks.into_iter().flatten().filter_map(image_of).collect();
    images.sort_unstable();
    images.dedup();
    images
}
