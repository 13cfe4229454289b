//! The threads for what can wait. They are few, the kernel runs them after all others, and work
//! stands in line for them: so it takes long without anybody else waiting for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

use parking_lot::Mutex;

use super::Work;

/// Priority of these threads, where 0 is everybody's and 19 the lowest.
const NICE: i32 = 10;
/// Threads at least, so that short work passes long work.
const FEWEST: usize = 2;

/// Where work stands in line, for the whole process, as the processors are; `None` if there can be
/// no threads. Each piece has somebody who waits for it, and those are counted.
static QUEUE: LazyLock<Option<Sender<Work>>> = LazyLock::new(start);
static LINE: Mutex<Option<Receiver<Work>>> = Mutex::new(None);

/// Runs the work on one of the threads.
pub(super) fn run(work: Work) {
    match &*QUEUE {
        Some(queue) => queue.send(work).expect("the threads never end"),
        // Better late than never.
        None => work(),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the door to threads")]
fn start() -> Option<Sender<Work>> {
    // As much waits here as there are requests under way, of which there is a limit.
    let (queue, line) = mpsc::channel();
    *LINE.lock() = Some(line);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (0..FEWEST.max(processors / 2)).filter(|_| {
        let started = Builder::new().name("aside".to_owned()).spawn(serve);
        if let Err(error) = &started {
            tracing::error!(%error, "cannot start a thread");
        }
        started.is_ok()
    });
    (threads.count() > 0).then_some(queue)
}

/// Has the kernel run the calling thread after others, the more so the higher the number.
pub(super) fn lower_priority(nice: i32) {
    // Of the calling thread alone.
    if let Err(error) = rustix::process::setpriority_process(None, nice) {
        tracing::warn!(%error, "work that can wait has the priority of all other work");
    }
}

fn serve() {
    lower_priority(NICE);
    loop {
        let work = LINE.lock().as_ref().and_then(|line| line.recv().ok());
        let Some(work) = work else { return };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            // Whoever waits for it is told; the next work is not to blame.
            tracing::error!("work that was done aside panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use futures_util::future::join_all;

    use crate::threads::{OsThreads, Threads as _, compute_aside};

    #[tokio::test]
    async fn few_at_a_time_at_a_low_priority() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let works = (0..64).map(|n| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            compute_aside(&OsThreads, move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                let nice = rustix::process::getpriority_process(None).unwrap();
                (n, nice)
            })
        });
        let done = join_all(works).await;
        assert_eq!(done.iter().map(|(n, _)| *n).collect::<Vec<_>>(), Vec::from_iter(0..64));
        assert!(done.iter().all(|(_, nice)| *nice >= super::NICE), "{done:?}");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(most.load(Ordering::SeqCst) <= super::FEWEST.max(processors / 2));
    }

    #[tokio::test]
    async fn work_that_panics_ends_nothing_but_itself() {
        for _ in 0..8 {
            let panics = AssertUnwindSafe(compute_aside(&OsThreads, || panic!("on purpose")));
            assert!(panics.catch_unwind().await.is_err());
        }
        assert_eq!(compute_aside(&OsThreads, || 7).await, 7);
    }

    #[tokio::test]
    async fn nothing_is_done_for_whoever_has_left() {
        let (hold, held) = std::sync::mpsc::sync_channel::<()>(0);
        let held = Arc::new(parking_lot::Mutex::new(held));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..super::FEWEST.max(processors / 2) {
            let held = Arc::clone(&held);
            OsThreads.compute_aside(Box::new(move || {
                held.lock().recv().ok();
            }));
        }
        let ran = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ran);
        let work = compute_aside(&OsThreads, move || counted.fetch_add(1, Ordering::SeqCst));
        assert!(work.now_or_never().is_none());
        drop(hold);
        compute_aside(&OsThreads, || ()).await;
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }
}
