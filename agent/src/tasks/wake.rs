//! What an agent does by itself after its start: tasks for its VMs, and noticing guests that end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_shared::backoff::Backoff;
use muster_shared::ids::VmUuid;

use super::record::Origin;
use super::runner::{Engine, Submission};
use crate::vms::room;
use crate::vms::startup::{self, Chore};

/// Pauses before what failed is tried again.
const AGAIN: Backoff =
    Backoff { first: Duration::from_secs(5), factor: 2.0, cap: Duration::from_secs(300) };
/// VMs started or destroyed at the same time.
const AT_ONCE: usize = 4;
/// Longest wait for one of them before the next takes its place.
const PATIENCE: Duration = Duration::from_secs(300);

impl Engine {
    /// Starts the VMs that are to start with the host, finishes destroys that were cut off, and
    /// follows the guests from now on. Call once, after [`Engine::recover`]; returns at once.
    pub async fn wake(self: &Arc<Self>) {
        let drivers = Arc::clone(&self.parts.drivers);
        self.spawn(startup::watch(Arc::clone(&drivers), self.closing.clone()));
        self.spawn(room::run(Arc::clone(&drivers), self.closing.clone()));
        let chores = startup::chores(&drivers, &self.busy_vms()).await;
        let engine = Arc::clone(self);
        self.spawn(async move {
            let work = engine.clone().do_chores(chores);
            // What is left over is found again by the next start.
            engine.closing.clone().run_until_cancelled(work).await;
        });
    }

    /// Does what is due, again and again as long as it is: a pool may come late, and a node that
    /// is paused takes no tasks.
    async fn do_chores(self: Arc<Self>, mut chores: Vec<Chore>) {
        let drivers = &self.parts.drivers;
        let mut attempt = 0;
        loop {
            futures_util::stream::iter(chores.clone())
                .for_each_concurrent(AT_ONCE, |chore| self.clone().do_chore(chore))
                .await;
            chores.retain(|chore| startup::is_due(drivers, chore));
            if chores.is_empty() {
                return;
            }
            let pause = AGAIN.delay(attempt, 1.0);
            tracing::warn!(chores = chores.len(), ?pause, "not everything is started or destroyed");
            attempt += 1;
            tokio::time::sleep(pause).await;
        }
    }

    /// VMs that tasks under way work on.
    fn busy_vms(&self) -> BTreeSet<VmUuid> {
        let shared = self.shared.lock();
        shared.live.values().filter_map(|live| live.record.lock().vm).collect()
    }

    async fn do_chore(self: Arc<Self>, chore: Chore) {
        let id = self.new_id();
        let submission = Submission {
            id: id.clone(),
            req_id: String::new(),
            task: chore.task.to_owned(),
            params: chore.params,
            deadline_ms: None,
            ticket: None,
            volatile: false,
            origin: Origin::Local,
        };
        match self.submit(submission).await {
            Ok(()) => drop(self.wait(&id, PATIENCE).await),
            Err(refusal) => {
                let task = chore.task;
                tracing::warn!(task, code = %refusal.code, "a task of the agent's own was refused");
            }
        }
    }
}
