//! Which tasks may run now: queues with limits first, then locks. Pure.
//!
//! A task waits in its queue (first come, first served) for one of its places, and with a place
//! for all of its locks at once. It gets them when nobody who runs, and nobody who has waited
//! longer, wants one of them; so there is no deadlock and nobody starves. A part of a task that runs
//! waits for nothing, see [`super::subtask`].

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::ids::{ImageUuid, TaskId, VmUuid};

use super::{Class, Lock, Queue};

/// Tasks that may wait in one queue.
pub const MAX_DEPTH: usize = 256;

/// The queue is at its depth limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_DEPTH} tasks wait in queue {0} already")]
pub struct QueueFull(pub &'static str);

/// A part wants what the task that it is a part of does not hold, or that one has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {0} does not hold what its subtask works on")]
pub struct NotCovered(pub TaskId);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    HasPlace,
    Running,
}

#[derive(Debug)]
struct Job {
    id: TaskId,
    queue: Queue,
    wants: Wants,
    stage: Stage,
    /// The number of the task that it is a part of, in the end; its own if it is a part of none.
    /// Those of one root are in nobody's way among themselves.
    root: u64,
}

/// What a job holds, in a form that answers "does this conflict" by set operations.
#[derive(Clone, Debug, Default)]
struct Wants {
    server: Server,
    images: BTreeSet<ImageUuid>,
    image_uses: BTreeSet<ImageUuid>,
    vms: BTreeSet<VmUuid>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Server {
    #[default]
    Untouched,
    Shared,
    Exclusive,
}

impl Wants {
    fn new(class: Class, locks: &[Lock]) -> Self {
        let mut wants = Self::default();
        if class == Class::Mutate {
            wants.server = Server::Shared;
        }
        for lock in locks {
            match *lock {
                Lock::ServerExclusive => wants.server = Server::Exclusive,
                Lock::Image(image) => drop(wants.images.insert(image)),
                Lock::ImageUse(image) => drop(wants.image_uses.insert(image)),
                Lock::Vm(vm) => drop(wants.vms.insert(vm)),
            }
        }
        wants
    }

    /// Whether who holds this may do what wants that.
    fn covers(&self, part: &Self) -> bool {
        let used = || self.images.union(&self.image_uses).copied().collect::<BTreeSet<_>>();
        self.server == Server::Exclusive
            || part.server <= self.server
                && part.vms.is_subset(&self.vms)
                && part.images.is_subset(&self.images)
                && part.image_uses.is_subset(&used())
    }

    fn conflicts(&self, other: &Self) -> bool {
        let servers = matches!(
            (self.server, other.server),
            (Server::Exclusive, Server::Shared | Server::Exclusive)
                | (Server::Shared, Server::Exclusive)
        );
        let images = !self.images.is_disjoint(&other.images)
            || !self.images.is_disjoint(&other.image_uses)
            || !self.image_uses.is_disjoint(&other.images);
        servers || images || !self.vms.is_disjoint(&other.vms)
    }
}

/// How a queue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Tasks that run.
    pub running: usize,
    /// Tasks that wait, for a place or for locks.
    pub waiting: usize,
}

/// The order of all tasks that have not ended.
#[derive(Debug, Default)]
pub struct Order {
    next: u64,
    jobs: BTreeMap<u64, Job>,
    numbers: BTreeMap<TaskId, u64>,
}

impl Order {
    /// Puts a task at the end of its queue.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing changed.
    pub fn enqueue(
        &mut self,
        id: &TaskId,
        queue: Queue,
        class: Class,
        locks: &[Lock],
    ) -> Result<(), QueueFull> {
        if self.depth(queue.name).waiting >= MAX_DEPTH {
            return Err(QueueFull(queue.name));
        }
        self.restore(id, queue, class, locks);
        Ok(())
    }

    /// Like [`Self::enqueue`] for a task that was accepted before a restart: never refused.
    pub fn restore(&mut self, id: &TaskId, queue: Queue, class: Class, locks: &[Lock]) {
        let (root, wants) = (self.next, Wants::new(class, locks));
        self.add(Job { id: id.clone(), queue, wants, stage: Stage::Waiting, root });
    }

    /// Of the next number.
    fn add(&mut self, job: Job) {
        self.numbers.insert(job.id.clone(), self.next);
        self.jobs.insert(self.next, job);
        self.next += 1;
    }

    /// Starts a part of another task at once: it works under that one's locks.
    ///
    /// # Errors
    /// [`NotCovered`]; nothing changed.
    pub fn start_part(
        &mut self,
        id: &TaskId,
        queue: Queue,
        class: Class,
        locks: &[Lock],
        of: &TaskId,
    ) -> Result<(), NotCovered> {
        let whole = self.numbers.get(of).and_then(|number| self.jobs.get(number));
        let wants = Wants::new(class, locks);
        let root = whole.filter(|whole| whole.wants.covers(&wants)).map(|whole| whole.root);
        let Some(root) = root else { return Err(NotCovered(of.clone())) };
        self.add(Job { id: id.clone(), queue, wants, stage: Stage::Running, root });
        Ok(())
    }

    /// Moves everybody on who can; returns the tasks that run from now on.
    pub fn advance(&mut self) -> Vec<TaskId> {
        let mut places: BTreeMap<&'static str, usize> = BTreeMap::new();
        let in_place = |(number, job): &(&u64, &Job)| {
            // Parts take none.
            job.stage != Stage::Waiting && job.root == **number
        };
        for (_, job) in self.jobs.iter().filter(in_place) {
            *places.entry(job.queue.name).or_default() += 1;
        }
        for job in self.jobs.values_mut().filter(|job| job.stage == Stage::Waiting) {
            let used = places.entry(job.queue.name).or_default();
            if *used < job.queue.max_concurrent {
                *used += 1;
                job.stage = Stage::HasPlace;
            }
        }
        let running = self.jobs.values().filter(|job| job.stage == Stage::Running);
        let mut ahead: Vec<(u64, Wants)> =
            running.map(|job| (job.root, job.wants.clone())).collect();
        let mut started = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.stage == Stage::HasPlace) {
            let is_free =
                |(root, other): &(u64, Wants)| *root == job.root || !other.conflicts(&job.wants);
            if ahead.iter().all(is_free) {
                job.stage = Stage::Running;
                started.push(job.id.clone());
            }
            ahead.push((job.root, job.wants.clone()));
        }
        started
    }

    /// A task has ended or no longer wants to run.
    pub fn remove(&mut self, id: &TaskId) {
        if let Some(number) = self.numbers.remove(id) {
            self.jobs.remove(&number);
        }
    }

    /// Whether the task was started by [`Self::advance`].
    #[must_use]
    pub fn is_running(&self, id: &TaskId) -> bool {
        let job = self.numbers.get(id).and_then(|number| self.jobs.get(number));
        job.is_some_and(|job| job.stage == Stage::Running)
    }

    /// How a queue stands.
    #[must_use]
    pub fn depth(&self, queue: &str) -> Depth {
        let mut depth = Depth::default();
        for job in self.jobs.values().filter(|job| job.queue.name == queue) {
            if job.stage == Stage::Running {
                depth.running += 1;
            } else {
                depth.waiting += 1;
            }
        }
        depth
    }

    /// Tasks that run and hold one of the VMs that `id` wants.
    #[must_use]
    pub fn in_the_way_of(&self, id: &TaskId) -> Vec<TaskId> {
        let Some(job) = self.numbers.get(id).and_then(|number| self.jobs.get(number)) else {
            return Vec::new();
        };
        let holds = |other: &&Job| {
            other.stage == Stage::Running
                && other.id != *id
                && !other.wants.vms.is_disjoint(&job.wants.vms)
        };
        self.jobs.values().filter(holds).map(|other| other.id.clone()).collect()
    }

    /// Images that tasks hold or wait for.
    #[must_use]
    pub fn images(&self) -> BTreeSet<ImageUuid> {
        let wanted = |job: &Job| job.wants.images.union(&job.wants.image_uses).copied().collect();
        self.jobs.values().flat_map(|job| -> BTreeSet<_> { wanted(job) }).collect()
    }

    /// Tasks that wait.
    #[must_use]
    pub fn waiting(&self) -> Vec<TaskId> {
        let waits = |job: &&Job| job.stage != Stage::Running;
        self.jobs.values().filter(waits).map(|job| job.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use uuid::Uuid;

    const QUEUE: Queue = Queue { name: "q", max_concurrent: 2, max_wait: Duration::from_secs(1) };
    const WIDE: Queue =
        Queue { name: "wide", max_concurrent: 100, max_wait: Duration::from_secs(1) };

    fn id(n: usize) -> TaskId {
        format!("t{n}").parse().unwrap()
    }

    fn vm(n: u128) -> Lock {
        Lock::Vm(VmUuid(Uuid::from_u128(n)))
    }

    #[test]
    fn a_queue_gives_its_places_in_order() {
        let mut order = Order::default();
        for n in 0..4 {
            order.enqueue(&id(n), QUEUE, Class::Query, &[]).unwrap();
        }
        assert_eq!(order.advance(), [id(0), id(1)]);
        order.remove(&id(1));
        assert_eq!(order.advance(), [id(2)]);
        assert_eq!(order.depth("q"), Depth { running: 2, waiting: 1 });
    }

    #[test]
    fn tasks_of_one_vm_run_one_after_the_other_and_others_beside() {
        let mut order = Order::default();
        order.enqueue(&id(0), WIDE, Class::Mutate, &[vm(1)]).unwrap();
        order.enqueue(&id(1), WIDE, Class::Mutate, &[vm(1)]).unwrap();
        order.enqueue(&id(2), WIDE, Class::Mutate, &[vm(2)]).unwrap();
        assert_eq!(order.advance(), [id(0), id(2)]);
        assert_eq!(order.in_the_way_of(&id(1)), [id(0)]);
        order.remove(&id(0));
        assert_eq!(order.advance(), [id(1)]);
    }

    #[test]
    fn an_exclusive_task_waits_for_all_and_holds_back_all_but_queries() {
        let mut order = Order::default();
        order.enqueue(&id(0), WIDE, Class::Mutate, &[]).unwrap();
        order.enqueue(&id(1), WIDE, Class::Mutate, &[Lock::ServerExclusive]).unwrap();
        order.enqueue(&id(2), WIDE, Class::Mutate, &[]).unwrap();
        order.enqueue(&id(3), WIDE, Class::Query, &[]).unwrap();
        assert_eq!(order.advance(), [id(0), id(3)]);
        order.remove(&id(0));
        assert_eq!(order.advance(), [id(1)]);
        order.remove(&id(1));
        assert_eq!(order.advance(), [id(2)]);
    }

    #[test]
    fn tasks_that_use_an_image_run_together_and_never_beside_one_that_wants_it_alone() {
        let image = ImageUuid(Uuid::from_u128(1));
        let mut order = Order::default();
        let uses = |n| [Lock::Vm(VmUuid(Uuid::from_u128(n))), Lock::ImageUse(image)];
        order.enqueue(&id(0), WIDE, Class::Mutate, &uses(0)).unwrap();
        order.enqueue(&id(1), WIDE, Class::Mutate, &uses(1)).unwrap();
        order.enqueue(&id(2), WIDE, Class::Mutate, &[Lock::Image(image)]).unwrap();
        order.enqueue(&id(3), WIDE, Class::Mutate, &uses(3)).unwrap();
        order.enqueue(&id(4), WIDE, Class::Mutate, &[vm(4)]).unwrap();
        assert_eq!(order.advance(), [id(0), id(1), id(4)]);
        order.remove(&id(0));
        assert_eq!(order.advance(), []);
        order.remove(&id(1));
        assert_eq!(order.advance(), [id(2)]);
        order.remove(&id(2));
        assert_eq!(order.advance(), [id(3)]);
    }

    #[test]
    fn a_part_runs_at_once_under_the_locks_of_the_whole() {
        let mut order = Order::default();
        order.enqueue(&id(0), QUEUE, Class::Mutate, &[vm(1)]).unwrap();
        order.enqueue(&id(1), QUEUE, Class::Mutate, &[vm(1)]).unwrap();
        order.enqueue(&id(2), QUEUE, Class::Mutate, &[Lock::ServerExclusive]).unwrap();
        assert_eq!(order.advance(), [id(0)]);
        // Others wait for the whole already, and its queue is full.
        order.start_part(&id(10), QUEUE, Class::Mutate, &[vm(1)], &id(0)).unwrap();
        assert!(order.is_running(&id(10)));
        order.start_part(&id(11), QUEUE, Class::Query, &[], &id(10)).unwrap();
        for locks in [&[vm(2)][..], &[Lock::ServerExclusive], &[vm(1), vm(2)]] {
            let refused = order.start_part(&id(12), QUEUE, Class::Mutate, locks, &id(0));
            assert_eq!(refused, Err(NotCovered(id(0))));
        }
        let gone = order.start_part(&id(12), QUEUE, Class::Query, &[], &id(9));
        assert_eq!(gone, Err(NotCovered(id(9))));
        assert_eq!(order.advance(), []);
        // One that the whole left behind is still in the way of the others.
        order.remove(&id(0));
        assert_eq!(order.advance(), []);
        order.remove(&id(11));
        order.remove(&id(10));
        assert_eq!(order.advance(), [id(1)]);
        order.remove(&id(1));
        assert_eq!(order.advance(), [id(2)]);
        let image = |n| ImageUuid(Uuid::from_u128(n));
        let locks = [vm(1), Lock::Image(image(1)), Lock::ImageUse(image(2))];
        order.start_part(&id(13), QUEUE, Class::Mutate, &locks, &id(2)).unwrap();
    }

    #[test]
    fn a_whole_that_goes_on_after_a_restart_does_not_wait_for_its_part() {
        let mut order = Order::default();
        order.restore(&id(0), QUEUE, Class::Mutate, &[vm(1)]);
        order.start_part(&id(1), QUEUE, Class::Mutate, &[vm(1)], &id(0)).unwrap();
        assert_eq!(order.advance(), [id(0)]);
    }

    #[test]
    fn a_full_queue_refuses_but_takes_back_what_was_accepted_before() {
        let mut order = Order::default();
        for n in 0..MAX_DEPTH {
            order.enqueue(&id(n), QUEUE, Class::Query, &[]).unwrap();
        }
        assert_eq!(order.enqueue(&id(900), QUEUE, Class::Query, &[]), Err(QueueFull("q")));
        order.restore(&id(900), QUEUE, Class::Query, &[]);
        assert_eq!(order.depth("q").waiting, MAX_DEPTH + 1);
    }

    /// Whether it is of the small queue, whether it wants the server, VMs, and an image with
    /// whether it wants that alone.
    fn job() -> impl Strategy<Value = (bool, bool, Vec<u128>, Option<(u128, bool)>)> {
        let vms = prop::collection::vec(0u128..4, 0..3);
        let image = prop::option::of((0u128..2, any::<bool>()));
        (any::<bool>(), prop::bool::weighted(0.1), vms, image)
    }

    proptest! {
        /// Everybody runs in the end, never more than the limit, never two with one lock.
        #[test]
        fn all_run_and_never_against_each_other(
            jobs in prop::collection::vec(job(), 1..40),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let mut order = Order::default();
            let mut locks = BTreeMap::new();
            for (n, (small, exclusive, vms, image)) in jobs.iter().enumerate() {
                let mut wants: Vec<Lock> = vms.iter().map(|n| vm(*n)).collect();
                if *exclusive {
                    wants.push(Lock::ServerExclusive);
                }
                if let Some((n, alone)) = image {
                    let image = ImageUuid(Uuid::from_u128(*n));
                    wants.push(if *alone { Lock::Image(image) } else { Lock::ImageUse(image) });
                }
                let queue = if *small { QUEUE } else { WIDE };
                order.enqueue(&id(n), queue, Class::Mutate, &wants).unwrap();
                locks.insert(id(n), Wants::new(Class::Mutate, &wants));
            }
            let mut running = order.advance();
            let mut ended = 0;
            for pick in picks {
                if running.is_empty() {
                    break;
                }
                prop_assert!(order.depth("q").running <= 2);
                for (i, a) in running.iter().enumerate() {
                    for b in &running[i + 1..] {
                        prop_assert!(!locks[a].conflicts(&locks[b]));
                    }
                }
                let gone = running.remove(pick.index(running.len()));
                order.remove(&gone);
                ended += 1;
                running.extend(order.advance());
            }
            prop_assert_eq!(ended, jobs.len());
        }
    }
}
