//! `machine_create`: makes a VM from an image and starts it, or leaves nothing behind.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::VmUuid;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::container::{self, check_able};
use super::fits;
use super::machine::{self, failed, refuse};
use super::machine_import::{self as import, Import};
use super::steps::{Row, steps};
use super::wait_guest;
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::compute::GuestSignal;
use crate::drivers::storage::{self, Disk, DiskSpec, Role, RootWishes, Wishes};
use crate::vms::{self, StorageState, VmRecord, payload};

const OPERATION: &str = "vmadm.create";
/// Time a guest that is being undone has to go.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The kind; parameters are the VM's properties, `keep_failed` and `idempotent`.
#[derive(Debug)]
pub struct MachineCreate;

impl Handler for MachineCreate {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_create", queue(), Duration::from_secs(3600))
    }

    fn cancellable(&self) -> bool {
        true
    }

    /// With `keep_failed` too: the undo is what marks the VM then.
    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("brand".to_owned(), json!("kvm"));
        params.insert("disks".to_owned(), json!([{ "size": 64, "model": "virtio" }]));
        params.insert("nics".to_owned(), json!([{ "nic_tag": "admin" }]));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        plan(params, None)
    }
}

/// What makes a VM; with `import` its disks are blank, and it waits for what is on them.
pub(super) fn plan(params: &Params, import: Option<Import>) -> Result<Plan, TaskFailure> {
    let vm = machine::vm(params)?;
    let properties = payload::create(params)?;
    if let Some(import) = &import {
        import.check(&properties)?;
    }
    let starts = import.is_none();
    let job = Create {
        vm,
        waits_for_guest: wait_guest::is_wanted(&properties)?,
        fingerprint: fingerprint(&properties),
        properties,
        keep_failed: machine::flag(params, "keep_failed")?,
        idempotent: machine::flag(params, "idempotent")?,
        import,
        made: Mutex::default(),
    };
    // Held until its disks are made: an image that was found here does not go before.
    let images = payload::images(&job.properties).into_iter().map(Lock::ImageUse);
    let locks = images.chain([Lock::Vm(vm)]).collect();
    let plan = Plan::of(locks, job, STEPS);
    Ok(plan.only_if(starts, "boot").only_if(starts, "wait_provisioned").only_if(!starts, "fill"))
}

/// The queue of what makes whole disks.
pub(super) fn queue() -> Queue {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Queue {
        name: "machine_creation",
        max_concurrent: (cpus / 4).max(2),
        max_wait: Duration::from_secs(1800),
    }
}

fn fingerprint(properties: &Map<String, Value>) -> String {
    // Sorted, so that the order in which a client sends them does not matter.
    let sorted: std::collections::BTreeMap<_, _> = properties.iter().collect();
    let json = serde_json::to_vec(&sorted).expect("properties have only string keys");
    hex::encode(Sha256::digest(json))
}

const STEPS: &[Row<Create>] = steps![
    ("validate", 5, validate),
    ("reserve", 20, reserve, undo release),
    ("image", 50, image),
    ("storage", 60, storage, undo undo_storage),
    ("fill", 62, fill),
    ("network", 65, network),
    ("config", 75, config, undo undo_config),
    ("boot", 90, boot, undo kill),
    ("wait_provisioned", 95, wait_provisioned),
    ("commit", 100, commit),
];

#[derive(Debug)]
struct Create {
    vm: VmUuid,
    properties: Map<String, Value>,
    fingerprint: String,
    keep_failed: bool,
    idempotent: bool,
    /// It ends once the guest says that it is set up.
    waits_for_guest: bool,
    /// What its disks are to be filled with.
    import: Option<Import>,
    /// Its disks, if this run of the task made them and has not started it yet.
    made: Mutex<Option<Vec<Disk>>>,
}

/// Made when the guest is started.
#[derive(Debug, Serialize, Deserialize)]
struct Notes {
    /// Until when the guest is waited for.
    waits_until: Timestamp,
}

impl Create {
    /// The record, if this task made it; nothing else may be changed or removed. There is none as
    /// well when an equal VM was there before: then all that is left is to return it.
    fn ours(&self, ctx: &TaskContext) -> Option<VmRecord> {
        ctx.drivers.vms.get(self.vm).filter(|record| record.create_task == ctx.task_id)
    }

    /// An earlier VM of the same payload, which an idempotent create returns.
    fn is_repeat_of(&self, record: &VmRecord) -> bool {
        let usable = !record.destroying && !record.failed;
        self.idempotent && usable && record.fingerprint == self.fingerprint
    }

    async fn validate(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        match drivers.vms.get(self.vm) {
            Some(record) if record.create_task == ctx.task_id || self.is_repeat_of(&record) => {
                return Ok(());
            }
            Some(_) => return Err(vm_exists(self.vm)),
            None => {}
        }
        let abilities = drivers.compute.abilities();
        check_able(&self.properties, &abilities)?;
        fits::check(&self.properties, &abilities)?;
        if self.properties.get("bootrom").is_some_and(|rom| rom == "uefi") && !abilities.uefi {
            let text = "bootrom uefi: this node has no such firmware (package ovmf)";
            return Err(refuse(Code::NotSupported, text));
        }
        self.check_pools(&drivers.storage.pools())?;
        drivers.networks.check(&self.properties).await?;
        drivers.vms.check_addresses(self.vm, &self.properties)?;
        // Left by something that has no record: not ours to take over.
        if drivers.compute.observe(self.vm).await?.is_running() {
            return Err(refuse(Code::VmExists, vms::orphaned(self.vm).to_string()));
        }
        let left = drivers.storage.roles(self.vm).await?;
        if left.iter().any(|role| *role != Role::Firmware) {
            let pool = self.properties.get("zpool").and_then(Value::as_str).unwrap_or_default();
            let text = format!("Dataset {pool}/{} exists.", self.vm);
            return Err(refuse(Code::DatasetExists, text));
        }
        Ok(())
    }

    /// Every pool that VM and disks name is one of these.
    fn check_pools(&self, pools: &[String]) -> Result<(), TaskFailure> {
        let disks = self.properties.get("disks").and_then(Value::as_array);
        let of_disks = disks
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(index, disk)| (format!("disks.{index}.zpool"), disk.get("zpool")));
        let of_vm = ("zpool".to_owned(), self.properties.get("zpool"));
        for (field, pool) in std::iter::once(of_vm).chain(of_disks) {
            let Some(name) = pool.and_then(Value::as_str) else { continue };
            if storage::find_pool(pools, name).is_none() {
                return Err(TaskFailure::bad_param(&field, storage::no_pool(name, pools)));
            }
        }
        Ok(())
    }

    async fn reserve(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match ctx.drivers.vms.get(self.vm) {
            Some(record) if record.create_task == ctx.task_id || self.is_repeat_of(&record) => {
                return Ok(());
            }
            Some(_) => return Err(vm_exists(self.vm)),
            None => {}
        }
        let mut properties = self.properties.clone();
        let name = json!(self.vm);
        let zonename = properties.entry("zonename").or_insert(name).clone();
        properties.entry("hostname").or_insert(zonename);
        let pool = properties.get("zpool").and_then(Value::as_str).unwrap_or_default();
        let pools = ctx.drivers.storage.pools();
        if let Some(pool) = storage::find_pool(&pools, pool).map(|pool| json!(pool)) {
            properties.insert("zpool".to_owned(), pool);
        }
        let now = iso(ctx.drivers.clock.wall());
        properties.insert("create_timestamp".to_owned(), json!(now));
        let mut record = VmRecord::new(self.vm, ctx.task_id.clone(), properties);
        record.fingerprint.clone_from(&self.fingerprint);
        ctx.drivers.vms.create(record).await?;
        Ok(())
    }

    async fn image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        let made = container::made(&self.properties);
        for image in payload::images(&self.properties) {
            // The share of this step in the whole task.
            let progress = |percent: u8| ctx.progress(20 + percent.min(100) / 10 * 3);
            machine::bring_image(ctx, image, made, &progress).await?;
        }
        Ok(())
    }

    async fn storage(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        let drivers = &ctx.drivers;
        let spare = match container::made(&self.properties) {
            machine::MadeOf::Root => {
                container::spare_ids(ctx, OPERATION, container::image(&self.properties)?).await?
            }
            machine::MadeOf::Disk => None,
        };
        let incomplete = |record: &mut VmRecord| record.storage = StorageState::Incomplete;
        let record = container::give_ids(ctx, self.vm, spare, incomplete).await?;
        if record.is_container() {
            let (image, wishes) =
                (container::image(&self.properties)?, RootWishes::of(&record.properties));
            let made = drivers.storage.create_root(self.vm, image, &wishes, &ctx.task_id).await;
            made.map_err(failed(OPERATION))?;
        }
        let pools = drivers.storage.pools();
        let mut made = Vec::new();
        for (index, disk) in (0..).zip(record.list("disks")) {
            let size_mib = match disk.get("size").and_then(Value::as_u64) {
                None => self.size_by_quota(ctx, disk).await?,
                given => given,
            };
            let image = payload::image_of(disk);
            let named = disk.get("zpool").and_then(Value::as_str).or(record.text("zpool"));
            let pool = named.and_then(|name| storage::find_pool(&pools, name)).map(str::to_owned);
            let wishes = Wishes::of(disk);
            let spec = DiskSpec { vm: self.vm, index, pool, image, size_mib, wishes };
            made.push(drivers.storage.create_disk(&spec, &ctx.task_id).await?);
        }
        let machine_type = drivers.compute.machine_type(&record);
        let complete = |record: &mut VmRecord| {
            record.storage = StorageState::Complete;
            machine::describe_disks(record, &made);
            // Its start would write the record once more for these alone.
            if self.import.is_none() && record.flag("autoboot") {
                machine::note_start(record, machine_type, &ctx.task_id);
            }
        };
        drivers.vms.update(self.vm, complete).await?;
        *self.made.lock() = Some(made);
        Ok(())
    }

    /// A disk of the image that the VM as a whole names is as large as its quota, or as the image
    /// if that is larger. `None`: the disk is none of those, or there is no quota.
    async fn size_by_quota(
        &self,
        ctx: &TaskContext,
        disk: &Value,
    ) -> Result<Option<u64>, TaskFailure> {
        let quota_mib = payload::quota_mib(&self.properties);
        let (Some(image), Some(quota_mib)) = (payload::image_of(disk), quota_mib) else {
            return Ok(None);
        };
        if self.properties.get("image_uuid") != disk.get("image_uuid") {
            return Ok(None);
        }
        let image = ctx.drivers.images.get(image).await.map_err(failed(OPERATION))?;
        let least_mib = image.map_or(0, |image| image.size_bytes.div_ceil(MIB));
        Ok(Some(quota_mib.max(least_mib)))
    }

    /// The record, if the VM that this task made is to go.
    fn unwanted(&self, ctx: &TaskContext) -> Option<VmRecord> {
        self.ours(ctx).filter(|_| !self.keep_failed)
    }

    async fn undo_storage(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.unwanted(ctx).is_none_or(|record| record.storage == StorageState::None) {
            return Ok(());
        }
        let drivers = &ctx.drivers;
        let destroyed = drivers.storage.destroy_disks(self.vm, Some(&ctx.task_id)).await;
        destroyed.map_err(failed(OPERATION))?;
        let destroyed = drivers.storage.destroy_root(self.vm, Some(&ctx.task_id)).await;
        destroyed.map_err(failed(OPERATION))?;
        drivers.vms.update(self.vm, |record| record.storage = StorageState::None).await?;
        Ok(())
    }

    /// Lets clients fill its volumes.
    async fn fill(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let (Some(import), Some(_)) = (&self.import, self.ours(ctx)) else { return Ok(()) };
        for volume in &import.volumes {
            let (role, bytes) = (import::role(volume.role), volume.size_bytes);
            let begun = ctx.drivers.storage.begin_fill(self.vm, role, bytes, &ctx.task_id).await;
            begun.map_err(failed(OPERATION))?;
        }
        Ok(())
    }

    /// Fixes addresses, once and for all.
    async fn network(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        let entropy = &ctx.drivers.entropy;
        let fix = |record: &mut VmRecord| {
            let Some(Value::Array(nics)) = record.properties.get_mut("nics") else { return };
            for nic in nics.iter_mut().filter_map(Value::as_object_mut) {
                if !nic.contains_key("mac") {
                    nic.insert("mac".to_owned(), json!(machine::fresh_mac(entropy.u64())));
                }
            }
        };
        ctx.drivers.vms.update(self.vm, fix).await?;
        Ok(())
    }

    async fn config(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        // Where its NICs will be is found out when it starts, and the metadata made anew.
        let record = machine::for_guest(machine::record(ctx, OPERATION, self.vm)?, &[]);
        ctx.drivers.compute.prepare(&record).await.map_err(failed(OPERATION))
    }

    async fn undo_config(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match self.unwanted(ctx) {
            Some(_) => machine::clean_up(ctx, OPERATION, self.vm, true).await,
            None => Ok(()),
        }
    }

    async fn boot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_some_and(|record| record.flag("autoboot")) {
            let how = machine::Start { made: self.made.lock().take(), boot: None };
            machine::start_with(ctx, OPERATION, self.vm, how).await?;
            ctx.note(&Notes { waits_until: self.patience(ctx) })?;
        }
        Ok(())
    }

    /// Until when a guest that starts now is waited for.
    fn patience(&self, ctx: &TaskContext) -> Timestamp {
        let now = ctx.drivers.clock.wall();
        now.saturating_add(wait_guest::PATIENCE).unwrap_or(Timestamp::MAX)
    }

    async fn wait_provisioned(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let ours = self.ours(ctx).filter(|record| record.flag("autoboot"));
        if !self.waits_for_guest || ours.is_none() {
            return Ok(());
        }
        let Notes { waits_until } = ctx.notes()?;
        // A guest that starts once more has its time once more.
        let until = if ctx.rebooted { self.patience(ctx) } else { waits_until };
        if ctx.rebooted && !machine::runs(ctx, self.vm).await? {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        wait_guest::wait(ctx, OPERATION, self.vm, until).await
    }

    /// Also of one that is kept: its processes are not.
    async fn kill(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        let compute = &ctx.drivers.compute;
        machine::signal(ctx, self.vm, GuestSignal::Kill).await.map_err(failed(OPERATION))?;
        if !compute.wait_stopped(self.vm, KILL_TIMEOUT).await.map_err(failed(OPERATION))? {
            let text = format!("{OPERATION} error: the process of VM {} does not end", self.vm);
            return Err(refuse(Code::VmNotStopped, text));
        }
        machine::clean_up(ctx, OPERATION, self.vm, false).await?;
        machine::runs(ctx, self.vm).await?;
        Ok(())
    }

    async fn commit(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_some() {
            // Also of a VM that is not started now: this boot is over for it.
            let boot_id = ctx.drivers.vms.boot_id().to_owned();
            let importing = self.import.as_ref().map(|import| import.begun(ctx));
            let commit = |record: &mut VmRecord| {
                record.provisioning = importing.is_some();
                record.importing = importing;
                record.boot_id = Some(boot_id);
            };
            ctx.drivers.vms.update(self.vm, commit).await?;
            machine::runs(ctx, self.vm).await?;
        }
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }

    /// Keeps the failed VM for a look at it.
    async fn keep(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let keep = |record: &mut VmRecord| {
            record.failed = true;
            record.provisioning = false;
        };
        ctx.drivers.vms.update(self.vm, keep).await?;
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }

    /// Removes the record, unless something that it names could not be removed before.
    async fn release(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.ours(ctx).is_none() {
            return Ok(());
        }
        if self.keep_failed {
            return self.keep(ctx).await;
        }
        let drivers = &ctx.drivers;
        let mut result = drivers.vms.result(self.vm);
        let left = drivers.compute.observe(self.vm).await?.is_running()
            || drivers.storage.root(self.vm).await?.is_some()
            || !drivers.storage.disks(self.vm).await?.is_empty();
        if left {
            return self.keep(ctx).await;
        }
        drivers.vms.remove(self.vm).await.map_err(failed(OPERATION))?;
        result["vm"]["state"] = json!("failed");
        ctx.finish_with(result);
        Ok(())
    }
}

fn vm_exists(vm: VmUuid) -> TaskFailure {
    let failure = TaskFailure::from(vms::exists(vm));
    refuse(failure.code, failure.message)
}
