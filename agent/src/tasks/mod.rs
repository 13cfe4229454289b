//! Tasks: what an agent does for others.
//!
//! A task kind is one file here plus one line in [`HANDLERS`]. Its [`Handler`] checks the
//! parameters and plans a sequence of named, idempotent [`Step`]s; the runner journals around each
//! of them, so that a task survives a crash: it is resumed at its step, or undone in reverse.

mod admission;
pub mod agents_uninstall;
pub mod command_execute;
mod container;
mod container_image;
mod control;
pub mod docker_build;
pub mod docker_copy;
pub mod docker_exec;
pub mod docker_stats;
mod ending;
#[cfg(test)]
mod engine_tests;
mod events;
#[cfg(test)]
mod fault_matrix_tests;
mod finished;
mod fits;
pub mod folder;
mod guest_disks;
mod guest_nics;
pub mod image_delete;
pub mod image_ensure_present;
pub mod image_gc;
pub mod image_get;
mod intake;
pub mod journal;
mod limits;
mod live;
mod machine;
pub mod machine_boot;
#[cfg(test)]
mod machine_change_tests;
#[cfg(test)]
mod machine_container_tests;
pub mod machine_create;
pub mod machine_create_image;
pub mod machine_create_snapshot;
#[cfg(test)]
mod machine_create_tests;
pub mod machine_delete_snapshot;
pub mod machine_destroy;
#[cfg(test)]
mod machine_disks_tests;
#[cfg(test)]
mod machine_engine_tests;
pub mod machine_exec;
pub mod machine_export;
#[cfg(test)]
mod machine_export_tests;
pub mod machine_file;
#[cfg(test)]
mod machine_firmware_tests;
pub mod machine_import;
pub mod machine_import_end;
pub mod machine_import_write;
pub mod machine_info;
pub mod machine_kill;
pub mod machine_load;
pub mod machine_login;
#[cfg(test)]
mod machine_nics_tests;
#[cfg(test)]
mod machine_power_tests;
pub mod machine_proc;
#[cfg(test)]
mod machine_real_tests;
pub mod machine_reboot;
pub mod machine_reprovision;
pub mod machine_rollback_snapshot;
pub mod machine_screenshot;
pub mod machine_shutdown;
#[cfg(test)]
mod machine_snapshot_tests;
#[cfg(test)]
mod machine_startup_tests;
#[cfg(test)]
pub(crate) mod machine_tests;
pub mod machine_update;
pub mod machine_update_nics;
#[cfg(test)]
mod machine_volume_tests;
mod need;
pub mod nop;
mod notes;
pub mod order;
pub mod orphan_adopt;
pub mod orphan_remove;
#[cfg(test)]
mod real_fault_matrix_tests;
pub mod record;
mod recover;
pub mod refresh_agents;
mod refusals;
pub mod registry;
mod retention;
mod run;
pub mod runner;
pub mod server_factory_reset;
pub mod server_images;
pub mod server_logs;
pub mod server_orphans;
pub mod server_overprovision_ratio;
pub mod server_reboot;
pub mod server_setup;
#[cfg(test)]
mod server_setup_tests;
pub mod server_sysinfo;
pub mod server_update_nics;
#[cfg(test)]
mod server_update_nics_tests;
pub mod sleep;
mod snapshot;
mod steps;
mod stopping;
pub mod subtask;
mod surplus;
#[cfg(test)]
mod surplus_tests;
pub mod test_subtask;
pub mod unsupported;
pub mod vms_usage;
mod wait_guest;
mod wake;
pub mod zfs;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

pub use self::admission::Offer;
pub use self::control::{Counts, Filter, Standing};
pub use self::need::Need;
pub use self::refusals::Refused;
pub use self::runner::{Engine, EngineParts, Refusal, Submission};
pub use self::subtask::Subtasks;

pub use crate::failure::TaskFailure;
use crate::node::Drivers;
use crate::vms::{VmRecord, VmTable};

/// Parameters of a task, as the client sent them.
pub type Params = Map<String, Value>;

/// Every task kind this agent knows. A new kind is one file and one line here.
pub static HANDLERS: &[&dyn Handler] = &[
    &agents_uninstall::AgentsUninstall,
    &command_execute::CommandExecute,
    &docker_build::DockerBuild,
    &docker_copy::DockerCopy,
    &docker_exec::DockerExec,
    &docker_stats::DockerStats,
    &image_delete::ImageDelete,
    &image_ensure_present::ImageEnsurePresent,
    &image_get::ImageGet,
    &machine_boot::MachineBoot,
    &machine_create::MachineCreate,
    &machine_create_image::MachineCreateImage,
    &machine_create_snapshot::MachineCreateSnapshot,
    &machine_delete_snapshot::MachineDeleteSnapshot,
    &machine_destroy::MachineDestroy,
    &machine_exec::MachineExec,
    &machine_export::MachineExport,
    &machine_export::MachineExportRead,
    &machine_file::MachineFileRead,
    &machine_file::MachineFileWrite,
    &machine_import::MachineImport,
    &machine_import_end::MachineImportEnd,
    &machine_import_write::MachineImportState,
    &machine_import_write::MachineImportWrite,
    &machine_info::MachineInfo,
    &machine_kill::MachineKill,
    &machine_load::MachineLoad,
    &machine_login::MachineLogin,
    &machine_proc::MachineProc,
    &machine_reboot::MachineReboot,
    &machine_reprovision::MachineReprovision,
    &machine_rollback_snapshot::MachineRollbackSnapshot,
    &machine_screenshot::MachineScreenshot,
    &machine_shutdown::MachineShutdown,
    &machine_update::MachineUpdate,
    &machine_update_nics::MachineUpdateNics,
    &nop::Nop,
    &orphan_adopt::OrphanAdopt,
    &orphan_remove::OrphanRemove,
    &refresh_agents::RefreshAgents,
    &server_overprovision_ratio::ServerOverprovisionRatio,
    &server_factory_reset::ServerFactoryReset,
    &server_images::ServerImageList,
    &server_logs::ServerLogs,
    &server_orphans::ServerOrphans,
    &server_reboot::ServerReboot,
    &server_setup::ServerSetup,
    &server_sysinfo::ServerSysinfo,
    &server_update_nics::ServerUpdateNics,
    &sleep::Sleep,
    &test_subtask::TestSubtask,
    &vms_usage::VmsUsage,
    &zfs::clone_dataset::ZfsCloneDataset,
    &zfs::create_dataset::ZfsCreateDataset,
    &zfs::destroy_dataset::ZfsDestroyDataset,
    &zfs::get_properties::ZfsGetProperties,
    &zfs::list_datasets::ZfsListDatasets,
    &zfs::list_datasets::ZfsListSnapshots,
    &zfs::list_pools::ZfsListPools,
    &zfs::rename_dataset::ZfsRenameDataset,
    &zfs::rollback_dataset::ZfsRollbackDataset,
    &zfs::set_properties::ZfsSetProperties,
    &zfs::snapshot_dataset::ZfsSnapshotDataset,
    &unsupported::AGENT_INSTALL,
    &unsupported::MACHINE_MIGRATE,
    &unsupported::RECOVERY_CONFIG,
];

/// Whether a task changes anything, which decides about journal, drain and pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Changes the node; journaled; refused while paused or draining.
    Mutate,
    /// Only reads; kept in memory; always served.
    Query,
}

/// A group of task kinds that share a limit of concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name in `GET /queues`, e.g. `machine_tasks`.
    pub name: &'static str,
    /// Tasks that run at the same time.
    pub max_concurrent: usize,
    /// Longest wait for a place, then `QueueTimeout`.
    pub max_wait: Duration,
}

/// What is the same for all tasks of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name on the wire.
    pub name: &'static str,
    /// Whether it changes the node.
    pub class: Class,
    /// The queue it waits in.
    pub queue: Queue,
    /// Longest run time, unless its parameters say more, see [`Handler::deadline`].
    pub limit: Duration,
}

impl Kind {
    /// A kind that changes the node.
    #[must_use]
    pub const fn mutate(name: &'static str, queue: Queue, limit: Duration) -> Self {
        Self { name, class: Class::Mutate, queue, limit }
    }

    /// A kind that only reads.
    #[must_use]
    pub const fn query(name: &'static str, queue: Queue, limit: Duration) -> Self {
        Self { name, class: Class::Query, queue, limit }
    }
}

/// What a task holds while it runs; always taken in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lock {
    /// The whole server, for itself alone.
    ServerExclusive,
    /// One image, for itself alone.
    Image(ImageUuid),
    /// One image that must stay, beside others who use it too.
    ImageUse(ImageUuid),
    /// One VM.
    Vm(VmUuid),
}

/// What to do with a task whose step failed, or that can't go on after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Undo the steps made, in reverse, and fail with the reason.
    Undo,
    /// Leave what was made and fail with the reason.
    Keep,
    /// As [`Self::Keep`]. Past the point of no return the VM's record says what is left to be done,
    /// and the reconciler does it.
    Forward,
}

/// How tasks of a kind are planned.
pub trait Handler: fmt::Debug + Send + Sync + 'static {
    /// The kind.
    fn kind(&self) -> Kind;

    /// Longest run time of a task with these parameters.
    fn deadline(&self, params: &Params) -> Duration {
        let _: &Params = params;
        self.kind().limit
    }

    /// Whether `cancel` may stop it while it runs (steps then see [`TaskContext::cancelled`]).
    fn cancellable(&self) -> bool {
        false
    }

    /// Whether it cuts short the wait of a [`Handler::preemptible`] task that holds the same VM
    /// (whose [`TaskContext::hurried`] is then set). It still runs only after that one has ended.
    fn preempts(&self, params: &Params) -> bool {
        let _: &Params = params;
        false
    }

    /// Whether its waits may be cut short, see [`Handler::preempts`].
    fn preemptible(&self) -> bool {
        false
    }

    /// What this version lacks to do it. Such a kind checks its parameters, fails with
    /// `NotSupported`, and is not announced to coordinators.
    fn lacks(&self) -> Option<&'static str> {
        None
    }

    /// What of the node it can't do without. Where that is missing the kind is as one that
    /// [lacks](Handler::lacks) something.
    fn needs(&self) -> Option<Need> {
        None
    }

    /// Whether a node that is being drained takes it all the same: it is what the drain was for.
    fn follows_drain(&self) -> bool {
        false
    }

    /// Whether it frees space: on a full pool it is made durable in the reserve.
    fn frees_room(&self) -> bool {
        false
    }

    /// Parameters that [`Handler::plan`] accepts and that lead to the longest plan. From them
    /// come the list of fault points and the test that every kind has to pass.
    fn example(&self) -> Params {
        Params::new()
    }

    /// What a failure leads to.
    fn on_failure(&self, params: &Params) -> OnFailure {
        let _: &Params = params;
        OnFailure::Keep
    }

    /// Checks the parameters and says which locks and steps the task needs. Touches nothing.
    ///
    /// # Errors
    /// A failure that names the bad parameter; the task then ends without having started.
    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure>;

    /// Locks that follow from what VMs there are, beside those of the [plan](Handler::plan). Told
    /// when the task comes, and again after a restart.
    fn locks(&self, params: &Params, vms: &VmView<'_>) -> Vec<Lock> {
        let _: (&Params, &VmView<'_>) = (params, vms);
        Vec::new()
    }
}

/// The records of VMs, to look at.
#[derive(Clone, Copy, Debug)]
pub struct VmView<'a>(&'a VmTable);

impl<'a> VmView<'a> {
    /// Of this table.
    #[must_use]
    pub fn new(vms: &'a VmTable) -> Self {
        Self(vms)
    }

    /// The VMs whose record is as wanted.
    #[must_use]
    pub fn which(&self, wanted: impl Fn(&VmRecord) -> bool) -> Vec<VmUuid> {
        self.0.which(|entry| wanted(&entry.record))
    }
}

/// What a task will do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Held for the whole run.
    pub locks: Vec<Lock>,
    /// Run in order.
    pub steps: Vec<Box<dyn Step>>,
}

/// One step: safe to repeat, and so is its undo, because either may run again after a crash.
#[async_trait]
pub trait Step: fmt::Debug + Send + Sync {
    /// Name in the journal; never reused for another meaning.
    fn name(&self) -> &'static str;

    /// Brings the node to the state after this step. Once it returned, its effects must be
    /// durable: it is not run again after a crash unless the journal had not recorded its end.
    ///
    /// # Errors
    /// The task fails with it.
    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure>;

    /// Brings it back; also called for the step that failed, which may be half done. Removes only
    /// what this task made.
    ///
    /// # Errors
    /// The undo goes on with the other steps; the failure is added to the task's reason.
    async fn undo(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let _: &TaskContext = ctx;
        Ok(())
    }

    /// Progress of the whole task once this step is done, in percent.
    fn progress(&self) -> u8 {
        0
    }
}

/// Receives what a task wants the world to know while it runs.
pub trait EventSink: fmt::Debug + Send + Sync {
    /// `name` is `progress` or a name of the task's own; lossy.
    fn event(&self, name: &str, event: Value);
}

/// What a step works with.
#[derive(Debug)]
pub struct TaskContext {
    /// The task; stamped as owner on everything it creates.
    pub task_id: TaskId,
    /// Its parameters.
    pub params: Params,
    /// Who asked for it.
    pub origin: record::Origin,
    /// The way to the outside.
    pub drivers: Arc<Drivers>,
    /// When the task started; deadlines that must survive a restart count from here.
    pub started_at: jiff::Timestamp,
    /// True if the host was rebooted since the task started.
    pub rebooted: bool,
    /// True if an earlier life of the agent had begun it.
    pub resumed: bool,
    /// Cancelled when the task is to stop early: it is cancelled, or its time is over.
    pub cancelled: CancellationToken,
    /// Cancelled when its waits are to be short, see [`Handler::preempts`]; it goes on after them.
    pub hurried: CancellationToken,
    /// It hurried the task that held its VM.
    pub hurries: bool,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
    /// Runs other tasks as parts of this one.
    pub subtasks: Arc<dyn Subtasks>,
    /// What the task will return; a step sets members of it. Journaled with each step.
    pub result: Mutex<Value>,
    /// See `TaskContext::note`.
    pub notes: Mutex<Value>,
}

impl TaskContext {
    /// Reports progress, in percent.
    pub fn progress(&self, percent: u8) {
        self.events.event("progress", serde_json::json!({ "value": percent.min(100) }));
    }

    /// Sets the whole result.
    pub fn finish_with(&self, result: Value) {
        *self.result.lock() = result;
    }
}
