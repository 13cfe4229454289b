//! What an agent does by itself: it keeps its VMs what their records say, see [`reconcile`], and
//! notices guests that end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use muster_shared::backoff::Backoff;
use muster_shared::ids::{TaskId, VmUuid};

use super::Params;
use super::record::Origin;
use super::runner::{Engine, Submission};
use crate::node::{bridges, room, startup};
use crate::vms::VmRecord;
use crate::vms::reconcile::{self, Action, Plan};
use crate::vms::restart::{Power, Restarts};

/// Pauses before what failed is tried again.
const AGAIN: Backoff =
    Backoff { first: Duration::from_secs(5), factor: 2.0, cap: Duration::from_secs(300) };
/// VMs that are worked on at the same time.
const AT_ONCE: usize = 4;
/// Longest wait for one of them before the next takes its place.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often the VMs are looked at when nothing changes.
const PERIOD: Duration = Duration::from_secs(60);
/// A burst of changes is one look.
const SETTLE: Duration = Duration::from_millis(50);

/// What was tried for a VM and did not help.
#[derive(Debug)]
struct Tried {
    action: Action,
    times: u32,
    /// When it is tried again, on the monotonic clock.
    next: Duration,
    problem: Option<String>,
}

/// What is under way: the VM, what is done, and what went wrong at last.
type Work = FuturesUnordered<BoxFuture<'static, (VmUuid, Action, Option<String>)>>;

impl Engine {
    /// Mends what an earlier agent left, then follows the guests and does what the VMs need, until
    /// the engine is closed. Call once, after [`Engine::recover`]; returns at once.
    pub async fn wake(self: &Arc<Self>) {
        let drivers = Arc::clone(&self.parts.drivers);
        self.spawn(startup::watch(Arc::clone(&drivers), self.closing.clone()));
        self.spawn(room::run(Arc::clone(&drivers), self.closing.clone()));
        self.spawn(bridges::keep(drivers.clone(), self.closing.clone()));
        startup::mend(&drivers, &self.busy_vms()).await;
        let engine = Arc::clone(self);
        self.spawn(async move {
            let work = engine.clone().reconcile();
            // What is left over is found again by the next start.
            engine.closing.clone().run_until_cancelled(work).await;
        });
    }

    /// Does what is due, again and again as long as it is: a pool may come late, and a node that
    /// is paused takes no tasks.
    async fn reconcile(self: Arc<Self>) {
        let vms = Arc::clone(&self.parts.drivers.vms);
        let mut changes = vms.subscribe();
        let mut ends = self.watch();
        let mut tried: BTreeMap<VmUuid, Tried> = BTreeMap::new();
        let mut under_way = BTreeMap::new();
        let mut work = Work::new();
        loop {
            changes.mark_unchanged();
            ends.mark_unchanged();
            let mut busy = self.busy_vms();
            busy.extend(under_way.keys());
            let plan = vms.plan(&busy);
            let due: BTreeMap<_, _> = plan.actions.iter().copied().collect();
            tried.retain(|vm, tried| busy.contains(vm) || due.get(vm) == Some(&tried.action));
            self.begin(&plan, &tried, &mut under_way, &work);
            vms.set_concerns(&concerns(&tried));
            let pause = self.until_due(&plan, &tried);
            tokio::select! {
                biased;
                Some((vm, action, problem)) = work.next(), if !work.is_empty() => {
                    under_way.remove(&vm);
                    self.note_try(&mut tried, vm, action, problem);
                }
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
                // A VM that a task held may need something now.
                ended = ends.changed() => {
                    if ended.is_err() {
                        return;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Begins what is due and not under way. VMs start with the host one priority after the other: what
    /// others need may be in those that come first. One that fails holds nobody up.
    fn begin(
        self: &Arc<Self>,
        plan: &Plan,
        tried: &BTreeMap<VmUuid, Tried>,
        under_way: &mut BTreeMap<VmUuid, Action>,
        work: &Work,
    ) {
        let now = self.parts.clock.monotonic();
        // Looked up only for plans that start something: it reads a file.
        let leaving = plan.actions.iter().any(|(_, action)| action.starts())
            && self.parts.drivers.compute.guests_leave();
        let vms = &self.parts.drivers.vms;
        let priority = |vm| vms.get(vm).map_or(i64::MAX, |record| record.boot_priority());
        let starting = under_way.iter().filter(|(_, action)| **action == Action::Boot);
        let mut first = starting.map(|(vm, _)| priority(*vm)).min();
        for &(vm, action) in &plan.actions {
            if leaving && action.starts() {
                continue;
            }
            if under_way.len() >= AT_ONCE {
                return;
            }
            if tried.get(&vm).is_some_and(|tried| tried.next > now) {
                continue;
            }
            if action == Action::Boot {
                let priority = priority(vm);
                if priority > *first.get_or_insert(priority) {
                    continue;
                }
            }
            under_way.insert(vm, action);
            work.push(Box::pin(self.clone().act(vm, action)));
        }
    }

    /// Until something will be due that is not now.
    fn until_due(&self, plan: &Plan, tried: &BTreeMap<VmUuid, Tried>) -> Duration {
        let clock = &self.parts.clock;
        let due = plan.next.map(|next| next.duration_since(clock.wall()));
        let due = due.map(|due| Duration::try_from(due).unwrap_or(Duration::ZERO));
        let now = clock.monotonic();
        let again = tried.values().map(|tried| tried.next.saturating_sub(now));
        // One that waits for a place has its turn when another ends.
        let again = again.filter(|again| !again.is_zero());
        again.chain(due).min().unwrap_or(PERIOD).clamp(SETTLE, PERIOD)
    }

    /// Once it is done for good, nothing is due and this is forgotten.
    fn note_try(
        &self,
        tried: &mut BTreeMap<VmUuid, Tried>,
        vm: VmUuid,
        action: Action,
        problem: Option<String>,
    ) {
        let before = tried.get(&vm).filter(|tried| tried.action == action);
        let times = before.map_or(0, |tried| tried.times);
        let next = self.parts.clock.monotonic().saturating_add(AGAIN.delay(times, 1.0));
        tried.insert(vm, Tried { action, times: times + 1, next, problem });
    }

    /// VMs that tasks under way change.
    fn busy_vms(&self) -> BTreeSet<VmUuid> {
        let shared = self.shared.lock();
        let changing = shared.live.values().filter(|live| live.durable());
        changing.filter_map(|live| live.record.lock().vm).collect()
    }

    async fn act(self: Arc<Self>, vm: VmUuid, action: Action) -> (VmUuid, Action, Option<String>) {
        let done = match action.task() {
            Some(task) => self.act_by_task(vm, action, task).await,
            None => self.update(vm, |record| record.restarts = Restarts::default()).await,
        };
        (vm, action, done.err())
    }

    async fn act_by_task(
        self: &Arc<Self>,
        vm: VmUuid,
        action: Action,
        task: &str,
    ) -> Result<(), String> {
        let record = self.parts.drivers.vms.get(vm);
        let params = reconcile::params(vm, action, record.as_ref());
        let id = self.begin_task(task, params).await?;
        if matches!(action, Action::Restart | Action::Reset) {
            // Not before: a start that was refused is none.
            let counted = |record: &mut VmRecord| {
                // Of a VM that somebody has stopped meanwhile there is nothing to count.
                record.restarts.count += u32::from(record.power == Power::On);
            };
            self.update(vm, counted).await?;
        }
        self.end_of_task(&id).await
    }

    async fn update(
        &self,
        vm: VmUuid,
        change: impl FnOnce(&mut VmRecord) + Send,
    ) -> Result<(), String> {
        let updated = self.parts.drivers.vms.update(vm, change).await;
        updated.map(drop).map_err(|error| error.to_string())
    }

    /// Runs a task of the agent's own.
    ///
    /// # Errors
    /// Why it was refused or failed, for people.
    pub(super) async fn do_task(
        self: &Arc<Self>,
        task: &str,
        params: Params,
    ) -> Result<(), String> {
        let id = self.begin_task(task, params).await?;
        self.end_of_task(&id).await
    }

    /// Has a task of the agent's own accepted.
    async fn begin_task(self: &Arc<Self>, task: &str, params: Params) -> Result<TaskId, String> {
        let id = self.new_id();
        let submission = Submission {
            id: id.clone(),
            req_id: String::new(),
            task: task.to_owned(),
            params,
            deadline_ms: None,
            ticket: None,
            volatile: false,
            origin: Origin::Local,
            part_of: None,
        };
        self.submit(submission).await.map_err(|refusal| refusal.to_string())?;
        Ok(id)
    }

    async fn end_of_task(&self, id: &TaskId) -> Result<(), String> {
        self.wait(id, PATIENCE).await;
        match self.record(id).await.and_then(|record| record.error.clone()) {
            Some(error) => Err(error.message),
            None => Ok(()),
        }
    }
}

fn concerns(tried: &BTreeMap<VmUuid, Tried>) -> Vec<String> {
    let concern = |(vm, tried): (&VmUuid, &Tried)| {
        let problem = tried.problem.as_deref()?;
        let (what, times) = (tried.action.concern(), tried.times);
        Some(format!("VM {vm} {what}: tried {times} times, at last: {problem}"))
    };
    tried.iter().filter_map(concern).collect()
}
