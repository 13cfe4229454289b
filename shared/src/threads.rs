//! The door to threads: work that must go on while the main runtime is busy.

mod aside;

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

/// A piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Runs a future apart from the caller's runtime.
pub trait Threads: fmt::Debug + Send + Sync + 'static {
    /// Starts `work` under `name`. It ends when the future ends; cancellation is the caller's.
    fn run(&self, name: &str, work: BoxFuture<'static, ()>);

    /// Runs what computes for milliseconds and others wait for, off the threads that serve
    /// everybody.
    fn compute(&self, work: Work);

    /// Runs what may compute for long: little of it at a time, and after everything else that wants
    /// the processors.
    fn compute_aside(&self, work: Work);
}

/// Has the kernel run the calling thread, one of [`Threads::run`], a little later than others: nice 5,
/// a third of their share of a busy processor. For what others wait for only if it falls far behind.
pub fn yield_to_others() {
    aside::lower_priority(5);
}

/// A shared door.
pub type SharedThreads = Arc<dyn Threads>;

/// What `work` computes, see [`Threads::compute`].
///
/// # Panics
/// If the work panics.
pub async fn compute<T: Send + 'static>(
    threads: &dyn Threads,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (work, result) = answering(work);
    threads.compute(work);
    result.await.expect("the work sends its result")
}

/// What `work` computes, see [`Threads::compute_aside`].
///
/// # Panics
/// If the work panics.
pub async fn compute_aside<T: Send + 'static>(
    threads: &dyn Threads,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (work, result) = answering(work);
    threads.compute_aside(work);
    result.await.expect("the work sends its result")
}

fn answering<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (Work, oneshot::Receiver<T>) {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Whoever asked may have gone, before or meanwhile.
        if !done.is_closed() {
            drop(done.send(work()));
        }
    };
    (Box::new(work), result)
}

/// One operating-system thread with a runtime of its own per piece of work.
#[derive(Debug, Default)]
pub struct OsThreads;

impl Threads for OsThreads {
    #[expect(clippy::disallowed_methods, reason = "this is the door to threads")]
    fn run(&self, name: &str, work: BoxFuture<'static, ()>) {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let spawned = builder.spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs only a few descriptors, taken at start")
                .block_on(work);
        });
        if let Err(error) = spawned {
            tracing::error!(%error, thread = name, "cannot start a thread");
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door to threads")]
    fn compute(&self, work: Work) {
        drop(tokio::task::spawn_blocking(work));
    }

    fn compute_aside(&self, work: Work) {
        aside::run(work);
    }
}

/// Runs the work on the caller's own runtime, for simulations, where one thread does everything.
#[derive(Debug, Default)]
pub struct SameRuntime;

impl Threads for SameRuntime {
    fn run(&self, _name: &str, work: BoxFuture<'static, ()>) {
        // The runtime owns the task; dropping the runtime (a simulated crash) ends it.
        drop(tokio::spawn(work));
    }

    fn compute(&self, work: Work) {
        work();
    }

    fn compute_aside(&self, work: Work) {
        work();
    }
}
