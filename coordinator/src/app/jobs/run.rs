//! Running jobs: claiming what nobody runs, step after step, each written before it begins.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::Instrument as _;
use uuid::Uuid;

use super::kind::{Kind, Step, StepContext, StepFailure};
use super::record::{JobRecord, Place};
use super::{GUARDS, JOBS, Jobs};
use crate::app::error::AppError;
use crate::store::{Expect, Held, Revision, StoreError};

/// Jobs that one coordinator runs at a time; others wait, or are claimed by its peers.
const MAX_RUNNING: usize = 256;
/// Tries of a step (the reference's `retry: 1`).
const TRIES: u32 = 2;
/// Longest time that a job may be run; what cleans up after it comes on top.
const MAX_RUN: Duration = Duration::from_hours(2);
/// Before a failed step is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Before the store is asked again.
const STORE_PAUSE: Duration = Duration::from_millis(500);

impl Jobs {
    /// Claims the open jobs that nobody runs and starts them. Safe at any time, on any
    /// coordinator.
    ///
    /// # Errors
    /// [`AppError::Store`]; what is left is found again.
    pub(crate) async fn tick(self: &Arc<Self>) -> Result<(), AppError> {
        let mut members = None;
        for (_, Held { value: uuid, .. }) in GUARDS.all(&self.ctx).await? {
            {
                let running = self.running.lock();
                if running.contains(&uuid) || running.len() >= MAX_RUNNING {
                    continue;
                }
            }
            let (job, revision) = match self.record_of(uuid).await {
                Ok(found) => found,
                // It ended, and was deleted, between the two reads.
                Err(AppError::JobNotFound) => continue,
                Err(error) => return Err(error),
            };
            if job.execution.has_ended() {
                continue;
            }
            if let Some(claim) = &job.claim
                && claim.instance != self.ctx.parts.instance
            {
                let members = match &members {
                    Some(members) => members,
                    None => members.insert(self.ctx.members().await?),
                };
                if members.contains(&claim.instance) {
                    continue;
                }
            }
            self.take(job, revision).await?;
        }
        Ok(())
    }

    async fn take(
        self: &Arc<Self>,
        mut job: JobRecord,
        revision: Revision,
    ) -> Result<(), AppError> {
        job.claim = Some(self.claim());
        let write = JOBS.put(job.uuid, Expect::At(revision), &job);
        match self.ctx.parts.store.commit(vec![write]).await {
            Ok(revision) => self.spawn_job(job, revision),
            // Somebody else was first.
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn spawn_job(self: &Arc<Self>, job: JobRecord, revision: Revision) {
        let uuid = job.uuid;
        if !self.running.lock().insert(uuid) {
            return;
        }
        let span =
            tracing::info_span!("job", %uuid, name = job.name, server_uuid = %job.server_uuid);
        let running = Running { jobs: Arc::clone(self), uuid };
        let work = async move {
            let jobs = Arc::clone(&running.jobs);
            let context = StepContext { jobs: jobs.clone(), job, revision, place: Place::Chain(0) };
            tokio::select! {
                biased;
                () = jobs.ctx.cancel.cancelled() => {}
                () = drive(context) => {}
            }
            drop(running);
        };
        drop(self.ctx.tracker.spawn(work.instrument(span)));
    }
}

/// A job that this coordinator runs, until dropped.
struct Running {
    jobs: Arc<Jobs>,
    uuid: Uuid,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.jobs.running.lock().remove(&self.uuid);
        // There may be room for another one.
        self.jobs.wake.notify_one();
    }
}

/// Runs a job until it ends or is no longer ours.
async fn drive(mut ctx: StepContext) {
    let Some(kind) = Kind::named(&ctx.job.name) else {
        tracing::error!("this version does not know this kind of job");
        // Not given back: it would be claimed again at once. A restart looks again.
        return std::future::pending().await;
    };
    loop {
        let now = ctx.jobs.ctx.parts.clock.wall();
        let Some(place) = ctx.job.next() else {
            ctx.job.settle(now);
            if write(&mut ctx, true).await {
                tracing::info!(execution = ctx.job.execution.as_str(), "job ended");
                return;
            }
            if !reload(&mut ctx).await {
                return;
            }
            continue;
        };
        let step = kind.step(&ctx.job, place);
        if step.is_some_and(|step| !(step.when)(&ctx.job)) {
            ctx.job.skip(place, now);
            continue;
        }
        ctx.place = place;
        ctx.job.begin(place, now);
        if !write(&mut ctx, false).await {
            if !reload(&mut ctx).await {
                return;
            }
            continue;
        }
        run(&mut ctx, step, place).await;
    }
}

/// Runs one try of a step and notes its outcome in the context's record; the next write takes it
/// along, and a crash before that repeats the step.
async fn run(ctx: &mut StepContext, step: Option<&Step>, place: Place) {
    let before = ctx.jobs.ctx.parts.clock.monotonic();
    try_step(ctx, step, place).await;
    let spent = ctx.jobs.ctx.parts.clock.monotonic().saturating_sub(before);
    ctx.job.elapsed_ms += u64::try_from(spent.as_millis()).unwrap_or(u64::MAX);
}

/// The try and, after a failure, the pause before the next.
async fn try_step(ctx: &mut StepContext, step: Option<&Step>, place: Place) {
    let outcome = match step {
        Some(step) => attempt(ctx, step, place).await,
        None => Err(StepFailure::fatal("this version does not have this step")),
    };
    let now = ctx.jobs.ctx.parts.clock.wall();
    let Err(failure) = outcome else {
        ctx.job.succeed(place, now);
        return;
    };
    let name = ctx.job.step(place).name.clone();
    let tries = if failure.fatal { 0 } else { TRIES };
    if ctx.job.fail(place, now, &failure.message, tries) {
        tracing::warn!(step = name, error = failure.message, "a step failed");
        recall(ctx, place).await;
    } else {
        tracing::info!(step = name, error = failure.message, "a step is tried again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn attempt(ctx: &mut StepContext, step: &Step, place: Place) -> Result<(), StepFailure> {
    let left = MAX_RUN.saturating_sub(Duration::from_millis(ctx.job.elapsed_ms));
    let limit = Duration::from_secs(step.timeout_s);
    let (limit, whole) = match place {
        Place::Chain(_) if left < limit => (left, true),
        _ => (limit, false),
    };
    let work = AssertUnwindSafe((step.run)(ctx)).catch_unwind();
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(StepFailure::fatal("the step met a defect")),
        Err(_) if whole => {
            let limit = MAX_RUN.as_secs();
            Err(StepFailure::fatal(format!("the job was run for {limit} s, which is the limit")))
        }
        Err(_) => {
            let limit = step.timeout_s;
            Err(StepFailure { message: format!("not done within {limit} s"), fatal: false })
        }
    }
}

/// A step was given up: its task must not be carried out later, when nobody expects it any more.
/// One that its agent has begun may be beyond recall.
async fn recall(ctx: &StepContext, place: Place) {
    let Some((id, _)) = &ctx.job.step(place).task else { return };
    match ctx.jobs.tasks.cancel(id, &crate::app::Expected::ANY).await {
        Ok(()) => tracing::info!(task_id = %id, "cancelled the task of a step that was given up"),
        Err(error) => tracing::debug!(task_id = %id, %error, "the step's task is left alone"),
    }
}

/// Writes the record, and removes the guard with the last write; `false` when it is not known to
/// be written.
async fn write(ctx: &mut StepContext, last: bool) -> bool {
    let job = &ctx.job;
    let mut writes = vec![JOBS.put(job.uuid, Expect::At(ctx.revision), job)];
    if last {
        let guard = format!("{}/{}", job.server_uuid, job.name);
        writes.push(GUARDS.delete(guard, Expect::Any));
    }
    match ctx.jobs.ctx.parts.store.commit(writes).await {
        Ok(revision) => {
            ctx.revision = revision;
            true
        }
        Err(error) => {
            tracing::warn!(%error, "cannot write a job");
            false
        }
    }
}

/// Takes over what the store holds; `false` when the job is no longer ours. A step that was begun
/// there is run again.
async fn reload(ctx: &mut StepContext) -> bool {
    loop {
        tokio::time::sleep(STORE_PAUSE).await;
        match ctx.jobs.record_of(ctx.job.uuid).await {
            Ok((job, revision)) => {
                let ours =
                    job.claim == ctx.job.claim || job.claim.as_ref() == Some(&ctx.jobs.claim());
                let ours = ours && !job.execution.has_ended();
                if !ours {
                    tracing::info!("the job has another owner, or has ended");
                }
                (ctx.job, ctx.revision) = (job, revision);
                return ours;
            }
            Err(AppError::JobNotFound) => return false,
            Err(error) => tracing::warn!(%error, "cannot read a job"),
        }
    }
}
