//! Who is let in: a submitted task is refused, known already, or gets its place among the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use muster_shared::kv::Change;
use muster_shared::wire::{Code, Intake, Ticket};
use serde_json::Value;

use super::journal;
use super::live::{Live, SeenTicket, Shared};
use super::record::{Origin, Phase, Record, State, bounded_error, fingerprint};
use super::runner::{Engine, MAX_JOURNAL_BYTES, MAX_UNACKED, Refusal, Submission};
use super::{Class, Handler, Lock, Params, Plan, TaskFailure, VmView};

/// Resources whose newest token is remembered; beyond, the oldest token goes.
const MAX_TICKETS: usize = 10_000;
/// Longest name of a ticket's resource, bytes; it is part of a key.
const MAX_RESOURCE_BYTES: usize = 400;

impl Engine {
    /// Takes a task; returns once it is durable (queries: once it is queued). Also for a task
    /// that was submitted before, whatever has become of it.
    ///
    /// # Errors
    /// [`Refusal`]: it will not run.
    pub async fn submit(self: &Arc<Self>, submission: Submission) -> Result<(), Refusal> {
        self.offer(submission)?.admitted().await
    }

    /// The first half of [`Self::submit`]: gives the task its place among the others.
    ///
    /// # Errors
    /// [`Refusal`]: it will not run.
    pub fn offer(self: &Arc<Self>, submission: Submission) -> Result<Offer, Refusal> {
        let mut shared = self.shared.lock();
        match self.known(&shared, &submission)? {
            Known::Live(live) => return Ok(Offer(Some(live))),
            Known::Ended => return Ok(Offer(None)),
            Known::New => {}
        }
        if let Some(refusal) = shared.refusals.get(&submission.id) {
            return Err(refusal.clone());
        }
        // Whoever stored the task is told until that is stored, too.
        let stored = submission.origin == Origin::Coordinator && !submission.volatile;
        let remembered = stored.then(|| submission.id.clone());
        let refusal = match self.admit(&mut shared, submission) {
            Ok(live) => return Ok(Offer(Some(live))),
            Err(refusal) => refusal,
        };
        drop(shared);
        if let Some(id) = remembered {
            self.remember_refusal(id, refusal.clone());
        }
        Err(refusal)
    }

    fn known(&self, shared: &Shared, wanted: &Submission) -> Result<Known, Refusal> {
        let reused = |found: &str| {
            if found == fingerprint(&wanted.task, &wanted.params) {
                return Ok(());
            }
            let text = format!("task {} exists with another kind or parameters", wanted.id);
            Err(Refusal::new(Code::TaskIdReused, text))
        };
        if let Some(live) = shared.live.get(&wanted.id) {
            reused(&live.record.lock().fingerprint)?;
            return Ok(Known::Live(live.clone()));
        }
        if let Some(ended) = shared.ended.get(&wanted.id) {
            // A damaged record has no fingerprint; its task must not run again all the same.
            if !ended.fingerprint.is_empty() {
                reused(&ended.fingerprint)?;
            }
            return Ok(Known::Ended);
        }
        Ok(Known::New)
    }

    fn admit(
        self: &Arc<Self>,
        shared: &mut Shared,
        wanted: Submission,
    ) -> Result<Arc<Live>, Refusal> {
        let Some(handler) = self.parts.registry.get(&wanted.task) else {
            let text = format!("Unknown task, '{}'", wanted.task);
            return Err(Refusal::new(Code::NotSupported, text));
        };
        let mutates = handler.kind().class == Class::Mutate;
        if let Some(why) = self.given_up.get().filter(|_| mutates) {
            return Err(Refusal::new(Code::JournalFull, why));
        }
        if shared.stopping {
            return Err(Refusal::new(Code::Draining, "the agent is stopping"));
        }
        // The whole was let in, and a drain waits for it.
        let is_part = wanted.part_of.is_some();
        let taken = match self.intake_of(shared) {
            _ if is_part => true,
            Intake::Accepting => true,
            Intake::Paused | Intake::Other => !mutates,
            Intake::Draining | Intake::Drained => !mutates || handler.follows_drain(),
        };
        if !taken {
            return Err(Refusal::new(
                Code::Draining,
                "CN Agent is not accepting tasks for maintenance",
            ));
        }
        if mutates && (shared.unacked.len() >= MAX_UNACKED || shared.bytes >= MAX_JOURNAL_BYTES) {
            let text = "the journal is full of results that no coordinator has acknowledged";
            return Err(Refusal::new(Code::JournalFull, text));
        }
        if let Some(ticket) = &wanted.ticket {
            check_ticket(shared, ticket)?;
        }
        let planned = self
            .plan(handler, &wanted.params)
            .and_then(|plan| self.missing(handler).map_or(Ok(plan), Err));
        let (plan, refused) = match planned {
            Ok(plan) => (plan, None),
            Err(failure) => (Plan::default(), Some(failure)),
        };
        let (queue, class) = (self.parts.registry.queue_of(handler), handler.kind().class);
        let order = &mut shared.order;
        match &wanted.part_of {
            None => order
                .enqueue(&wanted.id, queue, class, &plan.locks)
                .map_err(|full| Refusal::new(Code::QueueFull, full.to_string()))?,
            Some(whole) => order
                .start_part(&wanted.id, queue, class, &plan.locks, whole)
                .map_err(|problem| Refusal::new(Code::InternalError, problem.to_string()))?,
        }
        let seq = shared.next_seq;
        shared.next_seq += 1;
        let volatile = wanted.volatile && !mutates;
        let ticket = wanted.ticket.clone().map(|ticket| seen(shared, ticket));
        let mut record = self.new_record(seq, &plan, wanted);
        record.error = refused.map(|failure| bounded_error(failure.into()));
        let live = self.live(handler, record, plan, volatile, ticket);
        if is_part {
            live.granted.notify_one();
        }
        shared.live.insert(live.record.lock().id.clone(), live.clone());
        self.spawn(self.clone().drive(live.clone()));
        Ok(live)
    }

    fn new_record(&self, seq: u64, plan: &Plan, wanted: Submission) -> Record {
        let mut vms = plan.locks.iter().filter_map(|lock| match lock {
            Lock::Vm(vm) => Some(*vm),
            Lock::ServerExclusive | Lock::Image(_) | Lock::ImageUse(_) => None,
        });
        // One about many VMs is about none of them.
        let vm = vms.next().filter(|_| vms.next().is_none());
        // The uuid of a task about an image alone is no VM's.
        let about_image =
            plan.locks.iter().any(|lock| matches!(lock, Lock::Image(_) | Lock::ImageUse(_)));
        let named = wanted.params.get("uuid").filter(|_| !about_image).and_then(Value::as_str);
        Record {
            fingerprint: fingerprint(&wanted.task, &wanted.params),
            id: wanted.id,
            seq,
            req_id: wanted.req_id,
            task: wanted.task,
            parent_id: wanted.part_of,
            origin: wanted.origin,
            vm: vm.or_else(|| named.and_then(|uuid| uuid.parse().ok())),
            params: wanted.params,
            state: State::Queued,
            phase: Phase::Apply,
            step: None,
            attempt: 0,
            boot_id: self.parts.boot_id.clone(),
            instance_id: self.parts.instance_id,
            created_at: self.parts.clock.wall(),
            started_at: None,
            finished_at: None,
            deadline_ms: wanted.deadline_ms,
            result: Value::Null,
            notes: Value::Null,
            error: None,
            params_bytes: 0,
            result_bytes: 0,
            notes_bytes: 0,
        }
    }

    /// Refuses a kind that this node can't do. A task that had begun when the agent went down is not
    /// asked: it may have done something, and its steps say what is missing.
    fn missing(&self, handler: &dyn Handler) -> Option<TaskFailure> {
        let need = handler.needs()?;
        let why = need.missing(&self.parts.drivers)?;
        let (kind, capability) = (handler.kind().name, need.name());
        let text = format!("{kind}: this node has no {capability}: {why}");
        Some(TaskFailure::new(Code::NotSupported, text).with_details(
            serde_json::json!({ "restCode": Code::NotSupported, "capability": capability }),
        ))
    }

    /// The kinds that can be done here, by name.
    #[must_use]
    pub fn offered(&self) -> Vec<&'static dyn Handler> {
        let drivers = &self.parts.drivers;
        let has = |handler: &&'static dyn Handler| {
            handler.needs().is_none_or(|need| need.missing(drivers).is_none())
        };
        self.parts.registry.offered().filter(has).collect()
    }

    /// Plans, with the VMs that there are now; a panic there is a failure like any other.
    pub(super) fn plan(
        &self,
        handler: &'static dyn Handler,
        params: &Params,
    ) -> Result<Plan, TaskFailure> {
        let vms = VmView::new(&self.parts.drivers.vms);
        let whole = || {
            let mut plan = handler.plan(params)?;
            plan.locks.extend(handler.locks(params, &vms));
            Ok(plan)
        };
        catch_unwind(AssertUnwindSafe(whole)).unwrap_or_else(|panic| {
            let text = format!("planning panicked: {}", super::limits::panic_text(&*panic));
            Err(TaskFailure::new(Code::InternalError, text))
        })
    }

    /// The changes that make a new task durable; of a query only the ticket, if it has one.
    pub(super) fn admission_changes(live: &Live) -> Vec<Change> {
        let mut changes = Vec::new();
        if live.durable() {
            let mut record = live.record.lock();
            changes.extend(journal::put_params(&mut record));
            changes.push(journal::put_record(&record));
        }
        if let Some(SeenTicket { ticket, forgotten }) = &live.ticket {
            changes.extend(forgotten.as_deref().map(journal::forget_ticket));
            changes.push(journal::put_ticket(&ticket.resource, &ticket.token));
        }
        changes
    }
}

/// A task that has its place and is on its way to the disk, or that was submitted before.
#[derive(Debug)]
pub struct Offer(pub(super) Option<Arc<Live>>);

impl Offer {
    /// Waits until the task is durable.
    ///
    /// # Errors
    /// It could not be made durable and will not run.
    pub async fn admitted(&self) -> Result<(), Refusal> {
        let Some(live) = &self.0 else { return Ok(()) };
        live.admission.wait().await.clone()
    }

    /// Whether it is in the journal, and so survives this process.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.durable())
    }

    /// Whether it had ended before it was offered.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.is_none()
    }
}

enum Known {
    New,
    Live(Arc<Live>),
    Ended,
}

fn check_ticket(shared: &Shared, ticket: &Ticket) -> Result<(), Refusal> {
    if ticket.resource.len() > MAX_RESOURCE_BYTES {
        return Err(Refusal::new(Code::StaleTicket, "the ticket's resource has too long a name"));
    }
    if let Some(newest) = shared.tickets.get(&ticket.resource)
        && *newest > ticket.token
    {
        let text = format!("a newer ticket for {} was seen already", ticket.resource);
        return Err(Refusal::new(Code::StaleTicket, text));
    }
    Ok(())
}

/// Remembers a ticket's token; when that is one too many, the oldest of all is forgotten.
fn seen(shared: &mut Shared, ticket: Ticket) -> SeenTicket {
    let mut forgotten = None;
    if shared.tickets.len() >= MAX_TICKETS && !shared.tickets.contains_key(&ticket.resource) {
        // Tokens are revisions of the coordinators' store, so the smallest is the oldest.
        let oldest = shared.tickets.iter().min_by_key(|(_, token)| **token);
        forgotten = oldest.map(|(resource, _)| resource.clone());
        forgotten.as_ref().and_then(|resource| shared.tickets.remove(resource));
    }
    shared.tickets.insert(ticket.resource.clone(), ticket.token);
    SeenTicket { ticket, forgotten }
}
