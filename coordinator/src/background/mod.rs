//! Jobs that run as long as the coordinator: the driver, and one file per job.
//!
//! A job is a future that ends only when the application stops. One that ends earlier (an error
//! it could not handle, a panic) stops the whole application: a coordinator without its roster is
//! worse than none. To add one: a file here and a line in [`start`], see
//! `docs/adding-a-background-job.md`.

mod allocations;
mod feed;
mod figures;
mod jobs;
mod lease;
mod roster;
mod tasks;
mod tickets;
mod vms;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::App;
pub(crate) use lease::join;

/// Starts every job.
pub(crate) fn start(app: &Arc<App>) {
    // To the end: what is under way when the application stops waits for what it commits.
    drop(tokio::spawn(job(app, "feed", &app.stopped, feed::run)));
    run(app, "lease", lease::run);
    run(app, "roster-tick", roster::tick);
    run(app, "roster-writer", roster::write);
    run(app, "vm-writer", vms::run);
    run(app, "figures-writer", figures::run);
    run(app, "tasks", tasks::tick);
    run(app, "task-dispatch", tasks::dispatch);
    run(app, "jobs", jobs::tick);
    run(app, "job-retention", jobs::retention);
    run(app, "retention", tasks::retention);
    run(app, "waitlist-writer", tickets::write);
    run(app, "waitlist-expiry", tickets::expire);
    run(app, "waitlist-retention", tickets::retention);
    run(app, "allocations", allocations::run);
    run(app, "reservations", allocations::reservations);
}

/// Runs a job until the application is told to stop.
fn run<F, Fut>(app: &Arc<App>, name: &'static str, work: F)
where
    F: FnOnce(Arc<App>) -> Fut + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    app.tracker.spawn(job(app, name, &app.cancel, work));
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
        if !self.app.cancel.is_cancelled() {
            tracing::error!(job = self.name, "a background job ended");
            self.app.failed.cancel();
        }
    }
}

/// Waits between two tries of something that failed.
async fn pause(app: &App) {
    let millis = 200 + app.parts.entropy.u64() % 300;
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
