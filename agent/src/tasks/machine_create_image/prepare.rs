//! The script by which a VM prepares itself before an image is made of its disk, and how all that it
//! did is taken back.
//!
//! The VM is stopped, every volume gets a snapshot, and the guest is started with the script among
//! its metadata. It says how far it is by metadata keys of its own, and shuts down. Once the image is
//! made, or something failed, the disks are rolled back to the snapshot.
//!
//! From before that start until the disks are rolled back the VM's record says that they are to be
//! ([`VmRecord::rolling_back_to`]): whatever becomes of the task, nobody takes them for what their
//! owner had, and the agent rolls them back by itself. The snapshot stays as long as that.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::snapshot::{self, BEFORE_PREPARE};
use super::super::stopping::{self, Stop};
use super::{Make, Notes, OPERATION, Params, TaskContext, TaskFailure, cancelled};
use crate::metadata::keys::OPERATOR_SCRIPT;
use crate::tasks::machine::{self, failed, refuse};
use crate::vms::restart::Power;
use crate::vms::{VmRecord, payload};

/// Longest time for each of the three stages: until the script says that it runs, until it says how
/// it ended, and until the guest has shut down.
const STAGE: Duration = Duration::from_secs(300);
/// For the stop before and what is around the stages.
const AROUND: Duration = Duration::from_secs(600);
/// What a task with a script takes more than one without.
pub(super) const TAKES: Duration = STAGE.saturating_mul(3).saturating_add(AROUND);

const CUSTOMER: &str = "customer_metadata";
const INTERNAL: &str = "internal_metadata";
/// The key by which the script says how far it is: [`RUNNING`], [`SUCCESS`] or [`ERROR`].
const STATE: &str = "prepare-image:state";
/// What went wrong, for people.
const PROBLEM: &str = "prepare-image:error";
const RUNNING: &str = "running";
const SUCCESS: &str = "success";
const ERROR: &str = "error";
/// Most of its complaint that is passed on, characters.
const MAX_PROBLEM_CHARS: usize = 1000;

/// The parameter `prepare_image_script`. A flag that is off asks for none.
pub(super) fn script(params: &Params) -> Result<Option<String>, TaskFailure> {
    match params.get("prepare_image_script") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(script)) if !script.trim().is_empty() => Ok(Some(script.clone())),
        Some(value) if lenient::flag(value) == Some(false) => Ok(None),
        Some(_) => {
            Err(TaskFailure::bad_param("prepare_image_script", "must be the text of a script"))
        }
    }
}

/// What of the VM's record a prepared boot changes, as it was before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Before {
    pub(super) was_running: bool,
    power: Power,
    /// Whole: the guest that writes to it is forgotten with its disks.
    customer_metadata: Option<Value>,
    /// The script that the operator had set.
    script: Option<Value>,
    /// A boot order with `once=` is used up by a start.
    boot: Option<Value>,
}

impl Before {
    fn of(record: &VmRecord, was_running: bool) -> Self {
        let property = |name: &str| record.properties.get(name).cloned();
        Self {
            was_running,
            power: record.power,
            customer_metadata: property(CUSTOMER),
            script: property(INTERNAL).and_then(|internal| internal.get(OPERATOR_SCRIPT).cloned()),
            boot: property("boot"),
        }
    }

    fn put_back(&self, record: &mut VmRecord) {
        record.power = self.power;
        put(&mut record.properties, CUSTOMER, self.customer_metadata.clone());
        put(&mut record.properties, "boot", self.boot.clone());
        if let Some(Value::Object(internal)) = record.properties.get_mut(INTERNAL) {
            put(internal, OPERATOR_SCRIPT, self.script.clone());
        }
    }
}

fn put(object: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(object.insert(name.to_owned(), value)),
        None => drop(object.shift_remove(name)),
    }
}

/// What the script has said so far.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Runs,
    Succeeded,
    Failed(String),
}

impl Said {
    fn of(record: &VmRecord) -> Self {
        match record.customer_metadata(STATE).and_then(Value::as_str) {
            Some(RUNNING) => Self::Runs,
            Some(SUCCESS) => Self::Succeeded,
            Some(ERROR) => {
                let problem = record.customer_metadata(PROBLEM).and_then(Value::as_str);
                let problem = problem.unwrap_or("it says nothing of its error");
                Self::Failed(problem.chars().take(MAX_PROBLEM_CHARS).collect())
            }
            _ => Self::Nothing,
        }
    }
}

/// Why a stage ended.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Said,
    Ended,
    TimeOver,
}

impl Make {
    /// The agent was restarted while the VM was prepared: in which state it left the guest can't be
    /// told, so that everything is taken back.
    pub(super) fn goes_on(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if self.script.is_none() || !ctx.resumed {
            return Ok(());
        }
        let text = "the agent was restarted while an image with a prepare script was made";
        Err(TaskFailure::new(Code::Interrupted, text))
    }

    /// Whether the VM can be prepared, and what has to be put back later.
    pub(super) async fn before(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
    ) -> Result<Option<Before>, TaskFailure> {
        let Some(script) = &self.script else { return Ok(None) };
        payload::internal_metadata(&record.properties, &metadata(script))?;
        Ok(Some(Before::of(record, machine::runs(ctx, self.vm).await?)))
    }

    fn noted(ctx: &TaskContext) -> Option<Before> {
        ctx.notes::<Notes>().ok()?.before
    }

    pub(super) async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        if !Self::noted(ctx).is_some_and(|before| before.was_running) {
            return Ok(());
        }
        // Whatever becomes of the task, it is to run again.
        let again = |record: &mut VmRecord| record.start_when_rolled_back = true;
        ctx.drivers.vms.update(self.vm, again).await?;
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let at_most = machine::stop_timeout(&record);
        let until = ctx.drivers.clock.wall().saturating_add(at_most).unwrap_or(Timestamp::MAX);
        let how = Stop { force: false, until, at_most };
        stopping::stop(ctx, OPERATION, self.vm, how).await
    }

    /// The VM runs again if it ran, unless its disks are not its owner's yet.
    pub(super) async fn start(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(before) = Self::noted(ctx) else { return Ok(()) };
        let Some(record) = ctx.drivers.vms.get(self.vm) else { return Ok(()) };
        if before.was_running && record.rolling_back_to.is_none() {
            machine::start(ctx, OPERATION, self.vm).await?;
        }
        Ok(())
    }

    pub(super) async fn start_again(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        self.start(ctx).await?;
        machine::runs(ctx, self.vm).await?;
        Ok(())
    }

    pub(super) async fn snapshot_before(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        // What a lost task left under this name holds what the disks had then.
        snapshot::remove(ctx, self.vm, BEFORE_PREPARE).await.map_err(failed(OPERATION))?;
        snapshot::take(ctx, self.vm, BEFORE_PREPARE).await.map_err(failed(OPERATION))
    }

    /// The snapshot goes once nobody needs it.
    pub(super) async fn drop_before(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(record) = ctx.drivers.vms.get(self.vm) else { return Ok(()) };
        if record.rolling_back_to.as_deref() == Some(BEFORE_PREPARE) {
            let text = "the disks are still to be rolled back to it; the agent does it by itself";
            return Err(refuse(Code::VmNotUsable, text));
        }
        snapshot::remove(ctx, self.vm, BEFORE_PREPARE).await.map_err(failed(OPERATION))
    }

    pub(super) async fn forget_before(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        self.drop_before(ctx).await
    }

    /// Runs the guest with the script until it has shut down.
    pub(super) async fn prepare(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        let Some(script) = &self.script else { return Ok(()) };
        let was_running = Self::noted(ctx).is_some_and(|before| before.was_running);
        let record = machine::record(ctx, OPERATION, self.vm)?;
        let internal = payload::internal_metadata(&record.properties, &metadata(script))?;
        let begin = |record: &mut VmRecord| {
            record.rolling_back_to = Some(BEFORE_PREPARE.to_owned());
            record.properties.insert(INTERNAL.to_owned(), internal);
            if let Some(Value::Object(customer)) = record.properties.get_mut(CUSTOMER) {
                customer.retain(|key, _| key != STATE && key != PROBLEM);
            }
        };
        ctx.drivers.vms.update(self.vm, begin).await?;
        machine::start(ctx, OPERATION, self.vm).await?;
        let again = |record: &mut VmRecord| record.start_when_rolled_back = was_running;
        ctx.drivers.vms.update(self.vm, again).await?;
        self.stages(ctx).await?;
        self.clean_up(ctx).await
    }

    async fn stages(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vm = self.vm;
        let refused = |code: Code, what: String| {
            Err(refuse(code, format!("{OPERATION} error: the prepare script of VM {vm} {what}")))
        };
        let (mut said, stage) = self.until(ctx, |said| *said != Said::Nothing).await?;
        if said == Said::Nothing {
            let what = format!("did not say that it runs ({STATE}={RUNNING}) {}", stage.when());
            return refused(Code::PrepareImageDidNotRun, what);
        }
        let mut stage = stage;
        if said == Said::Runs {
            (said, stage) = self.until(ctx, |said| *said != Said::Runs).await?;
        }
        match said {
            Said::Succeeded => {}
            Said::Failed(problem) => {
                return refused(Code::PrepareImageError, format!("failed: {problem}"));
            }
            Said::Nothing | Said::Runs => {
                let what = format!("did not say how it ended ({STATE}={SUCCESS}) {}", stage.when());
                return refused(Code::PrepareImageError, what);
            }
        }
        let ends = ctx.drivers.compute.wait_stopped(vm, STAGE);
        let stopped = ctx.cancelled.run_until_cancelled(ends).await.ok_or_else(cancelled)?;
        if stopped.map_err(failed(OPERATION))? {
            return Ok(());
        }
        let what = format!("did not shut the VM down within {} s", STAGE.as_secs());
        refused(Code::PrepareImageError, what)
    }

    /// Until the script has said something that is `enough`, the guest has ended, or the time of a
    /// stage is over: what it said last, and which of them.
    async fn until(
        &self,
        ctx: &TaskContext,
        enough: impl Fn(&Said) -> bool,
    ) -> Result<(Said, Stage), TaskFailure> {
        let drivers = &ctx.drivers;
        let deadline = drivers.clock.monotonic().saturating_add(STAGE);
        let mut changes = drivers.vms.subscribe();
        let mut has_ended = false;
        loop {
            changes.mark_unchanged();
            let said = Said::of(&machine::record(ctx, OPERATION, self.vm)?);
            let left = deadline.saturating_sub(drivers.clock.monotonic());
            if enough(&said) {
                return Ok((said, Stage::Said));
            }
            if has_ended || left.is_zero() {
                return Ok((said, if has_ended { Stage::Ended } else { Stage::TimeOver }));
            }
            tokio::select! {
                biased;
                () = ctx.cancelled.cancelled() => return Err(cancelled()),
                // The record of this or another VM.
                Ok(()) = changes.changed() => {}
                // What it said last is looked at once more.
                stopped = drivers.compute.wait_stopped(self.vm, left) => {
                    has_ended = stopped.map_err(failed(OPERATION))?;
                }
            }
        }
    }

    /// No process is left, nor what it had outside storage.
    async fn clean_up(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let how = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        stopping::stop(ctx, OPERATION, self.vm, how).await
    }

    /// Brings disks and record back to what they were before the script. Nothing happens to a VM that
    /// was not begun with, or is done with: it may run again.
    pub(super) async fn take_back(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let Some(record) = ctx.drivers.vms.get(self.vm) else { return Ok(()) };
        if record.rolling_back_to.as_deref() != Some(BEFORE_PREPARE) {
            return Ok(());
        }
        let before = Self::noted(ctx).ok_or_else(|| {
            TaskFailure::new(Code::InternalError, "what the VM was before is not noted")
        })?;
        let vms = &ctx.drivers.vms;
        let begin = |record: &mut VmRecord| {
            before.put_back(record);
            record.start_when_rolled_back = before.was_running;
        };
        vms.update(self.vm, begin).await?;
        self.clean_up(ctx).await?;
        let storage = &ctx.drivers.storage;
        let rolled_back = storage.roll_back(self.vm, &snapshot::on_disk(BEFORE_PREPARE)).await;
        rolled_back.map_err(failed(OPERATION))?;
        let disks = storage.disks(self.vm).await.map_err(failed(OPERATION))?;
        let done = |record: &mut VmRecord| {
            // The guest may have said something until it had ended.
            before.put_back(record);
            record.rolling_back_to = None;
            machine::describe_disks(record, &disks);
        };
        vms.update(self.vm, done).await?;
        Ok(())
    }

    pub(super) async fn restore(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.goes_on(ctx)?;
        self.take_back(ctx).await
    }
}

impl Stage {
    fn when(self) -> String {
        match self {
            Self::Ended => "before the guest ended".to_owned(),
            Self::Said | Self::TimeOver => format!("within {} s", STAGE.as_secs()),
        }
    }
}

fn metadata(script: &str) -> Map<String, Value> {
    Map::from_iter([(OPERATOR_SCRIPT.to_owned(), json!(script))])
}
