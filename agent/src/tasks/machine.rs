//! What the task kinds about VMs share: queues, parameters, starting.

use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::{Params, Queue, TaskContext, TaskFailure, container};
use crate::drivers::DriverError;
use crate::drivers::compute::{Activity, ContainerRoot, GuestSignal, Resources};
use crate::drivers::network::{Attached, Backend, Nic};
use crate::drivers::storage::{Disk, Variables};
use crate::vm_record::disks::{numbered, numbers};
use crate::vms::restart::{Power, Restarts};
use crate::vms::told::told;
use crate::vms::{self, VmRecord, payload, volumes};

/// The queue of everything that changes an existing VM.
pub(super) const MACHINE_TASKS: Queue =
    Queue { name: "machine_tasks", max_concurrent: 32, max_wait: Duration::from_secs(600) };
/// The queue of what only reads.
pub(super) const MACHINE_QUERY: Queue =
    Queue { name: "machine_query", max_concurrent: 64, max_wait: Duration::from_secs(60) };

/// Time a guest has to shut down unless the client says otherwise.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(180);
/// The same of a container, and of one that is docker's.
const CONTAINER_STOP_TIMEOUT: Duration = Duration::from_secs(60);
const DOCKER_STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time a client may give it.
const MAX_STOP_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Member of a result: the guest was asked to shut down, did not in its time, and was ended.
pub(super) const FORCED: &str = "forced";

/// The parameters that example plans share.
pub(super) fn example() -> Params {
    let mut params = Params::new();
    params.insert("uuid".to_owned(), json!("6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01"));
    params
}

/// The VM a task is about.
pub(super) fn vm(params: &Params) -> Result<VmUuid, TaskFailure> {
    payload::vm_uuid(params)
}

/// An image among the parameters.
pub(super) fn image(params: &Params, name: &str) -> Result<ImageUuid, TaskFailure> {
    let text = params.get(name).and_then(Value::as_str);
    let text = text.ok_or_else(|| TaskFailure::bad_param(name, "must be a UUID"))?;
    text.to_ascii_lowercase().parse().map_err(|problem| TaskFailure::bad_param(name, problem))
}

/// What is made from an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MadeOf {
    Disk,
    Root,
}

/// Brings an image here from which a disk, or the root of a container, is about to be made.
pub(super) async fn bring_image(
    ctx: &TaskContext,
    image: ImageUuid,
    made: MadeOf,
    progress: &(dyn Fn(u8) + Send + Sync),
) -> Result<(), TaskFailure> {
    let images = &ctx.drivers.images;
    images.ensure(image, progress, &ctx.cancelled).await?;
    let problem = match (images.container(image).await?.is_some(), made) {
        (true, MadeOf::Disk) => Some("one of containers: it holds no disk"),
        (false, MadeOf::Root) => Some("one of a disk: no container is made from it"),
        _ => None,
    };
    if let Some(problem) = problem {
        let text = format!("image {image} is {problem}");
        return Err(TaskFailure::new(Code::ImageInvalid, text));
    }
    if let Err(error) = images.note_use(image).await {
        // At worst the image goes sooner than it should, and is fetched once more.
        tracing::warn!(image_uuid = %image, error = %Chain(&error), "a use was not noted");
    }
    Ok(())
}

/// A random address of the locally administered range.
pub(super) fn fresh_mac(random: u64) -> String {
    let [a, b, c, d, e, ..] = random.to_be_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// Notes the disks that there are: what they are known by, and what clients see of them.
pub(super) fn describe_disks(record: &mut VmRecord, made: &[Disk]) {
    record.volumes = Some(volumes::of(made));
    if let Some(Value::Array(disks)) = record.properties.get_mut("disks") {
        describe(disks, made);
    }
}

/// What clients see of these disks.
pub(super) fn describe(disks: &mut [Value], made: &[Disk]) {
    let numbers = numbers(disks);
    for made in made {
        let place = numbers.iter().position(|number| *number == made.index);
        let disk = place.and_then(|place| disks[place].as_object_mut());
        let Some(disk) = disk else { continue };
        let size_mib = made.size_bytes.div_ceil(muster_shared::units::MIB);
        disk.insert("path".to_owned(), json!(made.path));
        disk.insert("size".to_owned(), json!(size_mib));
        if let Some(identity) = &made.identity {
            disk.insert("zpool".to_owned(), json!(identity.pool));
        }
    }
}

/// A switch among the parameters; false when absent.
pub(super) fn flag(params: &Params, name: &str) -> Result<bool, TaskFailure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => lenient::flag(value)
            .ok_or_else(|| TaskFailure::bad_param(name, "must be true or false")),
    }
}

/// The parameter `timeout`, seconds; `None`: see [`stop_timeout`].
pub(super) fn timeout(params: &Params) -> Result<Option<Duration>, TaskFailure> {
    let value = match params.get("timeout") {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let kind = match value {
        Value::Bool(_) => "boolean",
        Value::Object(_) | Value::Array(_) => "object",
        Value::Number(_) => "number",
        Value::String(_) | Value::Null => "string",
    };
    match lenient::number(value).map(Duration::from_secs) {
        Some(timeout) if timeout <= MAX_STOP_TIMEOUT => Ok(Some(timeout)),
        _ => {
            Err(TaskFailure::bad_param("timeout", format!("Invalid type: \"{kind}\" for timeout")))
        }
    }
}

/// `set_internal_metadata` of an `update` payload, the only update that can come with a start.
pub(super) fn metadata_update(params: &Params) -> Result<Option<Map<String, Value>>, TaskFailure> {
    let update = match params.get("update") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(update)) => update,
        Some(_) => return Err(TaskFailure::bad_param("update", "must be an object")),
    };
    if let Some(other) = update.keys().find(|name| *name != "set_internal_metadata") {
        return Err(TaskFailure::bad_param("update", format!("{other} can't be updated here")));
    }
    match update.get("set_internal_metadata") {
        None => Ok(None),
        Some(Value::Object(set)) if !set.values().any(|v| v.is_object() || v.is_array()) => {
            Ok(Some(set.clone()))
        }
        Some(_) => {
            let problem = "set_internal_metadata must be an object of plain values";
            Err(TaskFailure::bad_param("update", problem))
        }
    }
}

/// Writes a metadata update into the VM's record.
pub(super) async fn apply_metadata(
    ctx: &TaskContext,
    vm: VmUuid,
    set: &Map<String, Value>,
) -> Result<(), TaskFailure> {
    let Some(record) = ctx.drivers.vms.get(vm) else { return Err(vms::not_found(vm).into()) };
    let metadata = payload::internal_metadata(&record.properties, set)?;
    let change = |record: &mut VmRecord| {
        record.properties.insert("internal_metadata".to_owned(), metadata);
    };
    ctx.drivers.vms.update(vm, change).await?;
    Ok(())
}

/// A failure whose code clients also find under CNAPI's name.
pub(super) fn refuse(code: Code, message: impl Into<String>) -> TaskFailure {
    let details = json!({ "restCode": code });
    TaskFailure::new(code, message).with_details(details)
}

/// A driver's failure in the words of the operation, e.g. `vmadm.start error: …`.
pub(super) fn failed(operation: &'static str) -> impl Fn(DriverError) -> TaskFailure {
    move |error| {
        let failure = TaskFailure::from(error);
        let refused = refuse(failure.code, format!("{operation} error: {}", failure.message));
        TaskFailure { cause: failure.cause, ..refused }
    }
}

/// The VM's record.
pub(super) fn record(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
) -> Result<VmRecord, TaskFailure> {
    ctx.drivers.vms.get(vm).ok_or_else(|| failed(operation)(vms::not_found(vm)))
}

/// Whether the VM runs, as the host shows it now.
pub(super) async fn runs(ctx: &TaskContext, vm: VmUuid) -> Result<bool, TaskFailure> {
    let drivers = &ctx.drivers;
    Ok(drivers.vms.observe(drivers.compute.as_ref(), vm).await?.is_running())
}

/// Refuses what makes sense only with a guest that runs.
pub(super) async fn must_run(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
) -> Result<(), TaskFailure> {
    record(ctx, operation, vm)?;
    if runs(ctx, vm).await? {
        return Ok(());
    }
    let state = state(ctx, vm);
    let text = format!("{operation} error: VM {vm} is {state:?}, not running");
    Err(refuse(Code::VmNotRunning, text))
}

/// The word for the VM's state.
pub(super) fn state(ctx: &TaskContext, vm: VmUuid) -> &'static str {
    ctx.drivers.vms.entry(vm).map_or("unknown", |entry| entry.state().state)
}

/// Refuses what makes no sense for a VM that is being made, has failed, is being destroyed, or has
/// disks of different moments.
pub(super) fn usable(operation: &'static str, record: &VmRecord) -> Result<(), TaskFailure> {
    let state = match record {
        VmRecord { destroying: true, .. } => "being destroyed".to_owned(),
        VmRecord { failed: true, .. } => "failed".to_owned(),
        VmRecord { provisioning: true, .. } => "provisioning".to_owned(),
        VmRecord { rolling_back_to: Some(name), .. } => format!(
            "half rolled back to snapshot \"{name}\": a rollback has to reach all its disks first"
        ),
        _ => return Ok(()),
    };
    let text = format!("{operation} error: VM {} is {state}", record.uuid);
    Err(refuse(Code::VmNotUsable, text))
}

/// The record as the hypervisor gets it.
pub(super) fn for_guest(record: VmRecord, nics: &[Attached]) -> VmRecord {
    told(record, |index| {
        let is_bridged =
            |nic: &&Attached| matches!(nic.backend, Backend::Tap { .. } | Backend::Pair { .. });
        let mut taps = nics.iter().filter(is_bridged);
        taps.any(|attached| attached.nic.index == index)
    })
}

/// The VM's disks: all that its record names, or none of them is any good. A guest that comes up
/// without one of them, or with another in its place, may take it for empty, or write to what is
/// not its own.
pub(super) async fn disks(
    ctx: &TaskContext,
    operation: &'static str,
    record: &VmRecord,
) -> Result<Vec<Disk>, TaskFailure> {
    let vm = record.uuid;
    let mut disks = ctx.drivers.storage.disks(vm).await.map_err(failed(operation))?;
    let is_missing = |index: u32| !disks.iter().any(|disk| disk.index == index);
    let mut named = numbered(record.list("disks"));
    if let Some((index, named)) = named.find(|(index, _)| is_missing(*index)) {
        let path = named.get("path").and_then(Value::as_str).unwrap_or("no path is known");
        let text = format!("{operation} error: disk {index} of VM {vm} is missing ({path})");
        return Err(refuse(Code::DatasetNotFound, text));
    }
    let volumes = record.volumes.as_deref().unwrap_or_default();
    if let Some((wanted, found)) = volumes::other_than(volumes, &disks) {
        let text = format!(
            "{operation} error: disk {} of VM {vm} is volume {}, and {} is volume {}",
            wanted.index,
            wanted.identity.uuid,
            found.path.display(),
            found.identity.as_ref().map(|identity| identity.uuid).unwrap_or_default(),
        );
        return Err(refuse(Code::DatasetNotFound, text));
    }
    // The file of one that was removed may still be there.
    let numbers = numbers(record.list("disks"));
    disks.retain(|disk| numbers.contains(&disk.index));
    Ok(disks)
}

/// Starts the VM, or adopts it when it runs already.
pub(super) async fn start(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
) -> Result<(), TaskFailure> {
    start_with(ctx, operation, vm, Start::default()).await
}

/// How a VM is started.
#[derive(Debug, Default)]
pub(super) struct Start<'a> {
    /// Goes before the property of that name.
    pub(super) boot: Option<&'a str>,
    /// All its disks, where they were made a moment ago, which saves a look at them.
    pub(super) made: Option<Vec<Disk>>,
}

/// As [`start`].
pub(super) async fn start_with(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
    how: Start<'_>,
) -> Result<(), TaskFailure> {
    let drivers = &ctx.drivers;
    let record = record(ctx, operation, vm)?;
    let disks = match how.made {
        Some(made) => made,
        None => disks(ctx, operation, &record).await?,
    };
    // It has its own variables open, and gets no others.
    let runs_already = runs(ctx, vm).await?;
    let variables = match runs_already {
        true => None,
        false => variables(ctx, operation, &record).await?,
    };
    let machine_type = drivers.compute.machine_type(&record);
    let failed = failed(operation);
    let nics = Nic::all(&record).map_err(&failed)?;
    let starting = |record: &mut VmRecord| {
        note_start(record, machine_type, &ctx.task_id);
        if !runs_already {
            record.started_with.clear();
        }
    };
    let root = container_root(ctx, operation, &record).await?;
    let (record, nics) =
        tokio::join!(drivers.vms.update(vm, starting), drivers.networks.attach(vm, &nics));
    let (record, nics) = (record?, nics.map_err(&failed)?);
    let mut guest = for_guest(record, &nics);
    let with = Resources { disks, variables, nics, root };
    if let Some(boot) = how.boot {
        guest.properties.insert("boot".to_owned(), json!(boot));
    }
    drivers.compute.start(&guest, &with).await.map_err(&failed)?;
    let boot_id = drivers.vms.boot_id().to_owned();
    let started = |record: &mut VmRecord| {
        record.boot_id = Some(boot_id);
        record.stopping_until = None;
        record.power = Power::On;
        record.start_when_rolled_back = false;
        booted_once(record);
    };
    drivers.vms.update(vm, started).await?;
    runs(ctx, vm).await?;
    Ok(())
}

/// What is noted of a start before it is made.
pub(super) fn note_start(record: &mut VmRecord, machine_type: Option<String>, task: &TaskId) {
    record.machine_type = machine_type;
    record.start_task = Some(task.clone());
}

/// What a container is started from: its root over the files of its image. A container that runs has
/// it already.
async fn container_root(
    ctx: &TaskContext,
    operation: &'static str,
    record: &VmRecord,
) -> Result<Option<ContainerRoot>, TaskFailure> {
    if !record.is_container() {
        return Ok(None);
    }
    let (drivers, vm, failed) = (&ctx.drivers, record.uuid, failed(operation));
    let image = container::must_have_root(ctx, operation, vm).await?;
    let found = container::installed(ctx, operation, image).await?;
    let ids = record.user_ids;
    let path = drivers.storage.mount_root(vm, &found.root, ids).await.map_err(&failed)?;
    Ok(Some(ContainerRoot { path, runtime: found.runtime, ids }))
}

/// Time a guest has to shut down whose client names none.
pub(super) fn stop_timeout(record: &VmRecord) -> Duration {
    match (record.is_container(), record.is_docker()) {
        (false, _) => STOP_TIMEOUT,
        (true, false) => CONTAINER_STOP_TIMEOUT,
        (true, true) => DOCKER_STOP_TIMEOUT,
    }
}

/// What the VM's firmware keeps.
async fn variables(
    ctx: &TaskContext,
    operation: &'static str,
    record: &VmRecord,
) -> Result<Option<Variables>, TaskFailure> {
    let drivers = &ctx.drivers;
    let template = drivers.compute.firmware_template(record).map_err(failed(operation))?;
    let Some(template) = template else { return Ok(None) };
    let variables = drivers.storage.variables(record.uuid, &template).await;
    variables.map(Some).map_err(failed(operation))
}

/// A VM that somebody stops is not started again by its policy, nor after its rollback.
pub(super) async fn keep_off(ctx: &TaskContext, vm: VmUuid) -> Result<(), TaskFailure> {
    let off = |record: &mut VmRecord| {
        record.power = Power::Off;
        record.start_when_rolled_back = false;
        record.restarts = Restarts::default();
    };
    ctx.drivers.vms.update(vm, off).await?;
    Ok(())
}

/// The next boot alone is from this kind of device.
pub(super) fn boot_once(record: &mut VmRecord, letter: &str) {
    booted_once(record);
    let once = format!("once={letter}");
    let boot = match record.text("boot") {
        Some(lasting) => format!("{lasting},{once}"),
        None => once,
    };
    record.properties.insert("boot".to_owned(), json!(boot));
}

/// `once=` in the boot order was for this boot.
fn booted_once(record: &mut VmRecord) {
    let Some(boot) = record.text("boot") else { return };
    let lasting: Vec<&str> = boot.split(',').filter(|word| !word.starts_with("once=")).collect();
    match lasting.join(",") {
        same if same == boot => {}
        none if none.is_empty() => drop(record.properties.shift_remove("boot")),
        lasting => drop(record.properties.insert("boot".to_owned(), json!(lasting))),
    }
}

/// The VM as the task's result, and whether its guest had to be ended.
pub(super) fn result(ctx: &TaskContext, vm: VmUuid) -> Value {
    let mut result = ctx.drivers.vms.result(vm);
    if ctx.result.lock()[FORCED] == true {
        result[FORCED] = json!(true);
    }
    result
}

/// Removes what a stopped VM left outside storage: what the hypervisor had, its logs as well with
/// `purge`, and the host's side of its NICs.
pub(super) async fn clean_up(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
    purge: bool,
) -> Result<(), TaskFailure> {
    ctx.drivers.compute.cleanup(vm, purge).await.map_err(failed(operation))?;
    ctx.drivers.storage.unmount_root(vm).await.map_err(failed(operation))?;
    ctx.drivers.networks.detach(vm).await.map_err(failed(operation))
}

/// Whether the VM's guest gave up, as it was last seen.
pub(super) fn has_panicked(ctx: &TaskContext, vm: VmUuid) -> bool {
    let entry = ctx.drivers.vms.entry(vm);
    entry.is_some_and(|entry| {
        entry.observed.live().is_some_and(|live| live.activity == Activity::Panicked)
    })
}

/// Sends a signal; a VM that is gone needs none.
pub(super) async fn signal(
    ctx: &TaskContext,
    vm: VmUuid,
    signal: GuestSignal,
) -> Result<(), DriverError> {
    match ctx.drivers.compute.signal(vm, signal).await {
        Err(DriverError::Refused { code: Code::VmNotRunning, .. }) => Ok(()),
        other => other,
    }
}
