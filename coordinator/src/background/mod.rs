//! Jobs that run as long as the coordinator: the driver, and one file per job.
//!
//! A job is a future that ends only when the application stops. One that ends earlier (an error
//! it could not handle, a panic) stops the whole application: a coordinator without its roster is
//! worse than none. To add one: a file here and a line in `start`, see
//! `docs/adding-a-background-job.md`.

mod allocations;
mod feed;
mod figures;
mod jobs;
mod lease;
mod roster;
mod store;
mod tasks;
mod tickets;
mod vms;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::{App, AppError};

/// Reads what is stored and starts every job of an application made by [`App::new`].
///
/// # Errors
/// [`AppError::Store`], [`AppError::Corrupt`]; nothing runs then.
pub(crate) async fn run(app: &Arc<App>) -> Result<(), AppError> {
    app.load().await?;
    lease::join(app).await?;
    start(app);
    Ok(())
}

fn start(app: &Arc<App>) {
    // To the end: what is under way when the application stops waits for what it commits.
    drop(tokio::spawn(job(app, "feed", &app.ctx.stopped, feed::run)));
    spawn(app, "store", store::watch);
    spawn(app, "lease", lease::run);
    spawn(app, "roster-tick", roster::tick);
    spawn(app, "roster-writer", roster::write);
    spawn(app, "vm-writer", vms::run);
    spawn(app, "figures-writer", figures::run);
    spawn(app, "tasks", tasks::tick);
    spawn(app, "task-dispatch", tasks::dispatch);
    spawn(app, "jobs", jobs::tick);
    spawn(app, "job-retention", jobs::retention);
    spawn(app, "retention", tasks::retention);
    spawn(app, "waitlist-writer", tickets::write);
    spawn(app, "waitlist-expiry", tickets::expire);
    spawn(app, "waitlist-retention", tickets::retention);
    spawn(app, "allocations", allocations::run);
    spawn(app, "intake", allocations::intake);
    spawn(app, "reservations", allocations::reservations);
}

/// Runs a job until the application is told to stop.
fn spawn<F, Fut>(app: &Arc<App>, name: &'static str, work: F)
where
    F: FnOnce(Arc<App>) -> Fut + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    app.ctx.tracker.spawn(job(app, name, &app.ctx.cancel, work));
}

fn job<F, Fut>(
    app: &Arc<App>,
    name: &'static str,
    end: &CancellationToken,
    work: F,
) -> impl Future<Output = ()> + Send + use<F, Fut>
where
    F: FnOnce(Arc<App>) -> Fut + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (work, end) = (work(Arc::clone(app)), end.clone());
    let guard = Guard { app: Arc::clone(app), name };
    async move {
        let _guard = guard;
        tokio::select! {
            biased;
            () = end.cancelled() => {}
            () = work => {}
        }
    }
}

/// Stops the application when its job ends on its own, also by a panic.
struct Guard {
    app: Arc<App>,
    name: &'static str,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.app.ctx.cancel.is_cancelled() {
            tracing::error!(job = self.name, "a background job ended");
            self.app.ctx.failed.cancel();
        }
    }
}

/// Waits between two tries of something that failed.
async fn pause(app: &App) {
    let millis = 200 + app.ctx.parts.entropy.u64() % 300;
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
