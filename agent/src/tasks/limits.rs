//! One step within its limits: the task's deadline, a cancel, and a panic end it, and nothing else.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_shared::wire::Code;
use tokio::time::{Sleep, sleep, timeout};

use super::live::{Live, Stop};
use super::{Step, TaskContext, TaskFailure};

/// How long a step that was told to stop may take to stop by itself.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest undo of one step.
const UNDO_LIMIT: Duration = Duration::from_secs(600);

/// Applies a step under the task's deadline; a panic is a failure; a cancel is obeyed.
pub(super) async fn apply(
    live: &Live,
    ctx: &TaskContext,
    step: &dyn Step,
    deadline: Pin<&mut Sleep>,
) -> Result<(), TaskFailure> {
    let is_cancelled = || *live.stop.lock() == Some(Stop::Cancelled);
    if is_cancelled() {
        return Err(cancelled());
    }
    let mut applied = pin!(AssertUnwindSafe(step.apply(ctx)).catch_unwind());
    let patience = async {
        live.cancelled.cancelled().await;
        sleep(STOP_GRACE).await;
    };
    tokio::select! {
        biased;
        done = &mut applied => match done {
            // Whatever it returned: it was told to stop, and may not have done all.
            _ if is_cancelled() => Err(cancelled()),
            Ok(result) => result,
            Err(panic) => {
                let text = format!("step {} panicked: {}", step.name(), panic_text(&*panic));
                tracing::error!(step = step.name(), "a step panicked");
                Err(TaskFailure::new(Code::InternalError, text))
            }
        },
        () = deadline => {
            ctx.cancelled.cancel();
            // It gets the chance to stop in order; if not, it is dropped, as in a crash.
            drop(timeout(STOP_GRACE, &mut applied).await);
            Err(TaskFailure::new(Code::Timeout, format!("step {} ran over the deadline", step.name())))
        }
        () = patience => Err(cancelled()),
    }
}

/// The failure of a task that was cancelled.
pub(super) fn cancelled() -> TaskFailure {
    TaskFailure::new(Code::Cancelled, "the task was cancelled")
}

/// Undoes a step; a panic is a failure.
pub(super) async fn undo(ctx: &TaskContext, step: &dyn Step) -> Result<(), TaskFailure> {
    let failed = |text| Err(TaskFailure::new(Code::InternalError, text));
    match timeout(UNDO_LIMIT, AssertUnwindSafe(step.undo(ctx)).catch_unwind()).await {
        Ok(Ok(undone)) => undone,
        Ok(Err(panic)) => failed(format!("panicked: {}", panic_text(&*panic))),
        Err(_) => failed(format!("took over {} s", UNDO_LIMIT.as_secs())),
    }
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
