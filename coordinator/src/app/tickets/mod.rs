//! The waitlist: tickets that take turns (sdc-cnapi `lib/models/waitlist.js`).
//!
//! ```text
//! request ──► writer ──► one transaction ──► the store's feed ──► index ──► who waits
//! ```
//!
//! The records are the truth: `ticket/<uuid>`, `queue/<server>/<hash>` and the counter that gives
//! tickets their order. [`draft`] decides, [`writer`] writes, [`index`] follows. Several
//! coordinators may do so on one store.

mod draft;
mod expiry;
mod fence;
mod index;
mod list;
mod record;
mod writer;

use std::net::IpAddr;
use std::sync::Arc;

use muster_shared::api::FieldError;
use muster_shared::api::Object;
use muster_shared::api::ticket::{QueueName, TicketCreated, TicketServer, TicketStatus};
use muster_shared::ids::TicketUuid;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

pub(crate) use fence::Fence;
pub use list::TicketFilter;
pub use record::{Due, TicketRecord};

use super::context::Context;
use super::error::AppError;
use super::records::Records;
use super::{Expected, keys};
use crate::store::{Follow, Held};
use draft::{Effect, MAX_QUEUE, NewTicket, Op};
use index::Index;
use writer::{Job, QUEUE};

const TICKETS: Records<TicketRecord> = Records::under(keys::TICKETS);
/// Open tickets of all queues together.
const MAX_OPEN: usize = 20_000;
/// Of them, those that one client made.
const MAX_OPEN_OF_CLIENT: usize = MAX_OPEN / 2;
/// Largest ticket, bytes of JSON.
const MAX_TICKET_BYTES: usize = 32 * 1024;
/// What the answer about a new ticket shows of its queue, bytes.
const MAX_SHOWN_BYTES: usize = 256 * 1024;
/// A ticket without its `extra`, about.
const TICKET_BYTES: usize = 512;
/// Longest `scope`, bytes; it is a part of the resource's name that agents keep.
const MAX_SCOPE_BYTES: usize = 64;
/// Longest `id`, bytes; as above.
const MAX_ID_BYTES: usize = 256;
/// Tickets that are deleted at a time when all of a server's are.
const DELETE_BATCH: usize = 90;

/// What this coordinator holds of the waitlist.
#[derive(Debug)]
pub struct Tickets {
    ctx: Arc<Context>,
    index: Arc<Index>,
    ops: mpsc::Sender<Job>,
    /// Until the writer takes it.
    inbox: Mutex<Option<mpsc::Receiver<Job>>>,
}

impl Tickets {
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        let (ops, inbox) = mpsc::channel(QUEUE);
        Self { ctx, index: Arc::default(), ops, inbox: Mutex::new(Some(inbox)) }
    }

    /// What the store's feed tells of tickets.
    pub(crate) fn follower(&self) -> Arc<dyn Follow> {
        Arc::clone(&self.index) as Arc<dyn Follow>
    }

    /// Who waits for a ticket here, and the ticket that each holds meanwhile.
    pub(crate) fn waits(&self) -> Vec<(TicketUuid, Option<TicketUuid>)> {
        self.index.waits()
    }

    /// The open tickets of one queue; the first has the turn.
    pub(crate) fn queue(&self, name: &QueueName) -> Vec<Arc<TicketRecord>> {
        self.index.queue(name)
    }

    /// The open tickets of every queue.
    pub(crate) fn queues(&self) -> Vec<Vec<Arc<TicketRecord>>> {
        self.index.queues()
    }
}

/// What a client says of a ticket that it wants.
#[derive(Clone, Debug)]
pub struct TicketRequest {
    /// Its queue.
    pub queue: QueueName,
    /// When it is to end by itself.
    pub expires_at: String,
    /// What the client means to do.
    pub action: Option<String>,
    /// The client's own.
    pub extra: Object,
    /// The request.
    pub req_id: String,
    /// The client's address, or for IPv6 its network; `None` on a unix socket.
    pub client: Option<IpAddr>,
}

impl TicketRequest {
    fn check(&self) -> Result<(), AppError> {
        let mut errors = Vec::new();
        let mut limit = |field: &str, bytes: usize, most: usize| {
            if bytes > most {
                errors.push(FieldError::new(field, format!("value is over {most} bytes")));
            }
        };
        limit("scope", self.queue.scope.len(), MAX_SCOPE_BYTES);
        limit("id", self.queue.id.len(), MAX_ID_BYTES);
        limit("expires_at", self.expires_at.len(), MAX_ID_BYTES);
        limit("action", self.action.as_ref().map_or(0, String::len), MAX_ID_BYTES);
        limit("extra", keys::encode(&self.extra).len(), MAX_TICKET_BYTES);
        if errors.is_empty() { Ok(()) } else { Err(AppError::Invalid(errors)) }
    }
}

/// The answer about a new ticket: the queue's first tickets and its own. A whole queue is 160 MiB
/// at worst, for each ticket that joins it.
fn shown(uuid: TicketUuid, queue: &[Arc<TicketRecord>]) -> TicketCreated {
    let of_others = queue.iter().filter(|record| record.uuid != uuid);
    let mut bytes = 0;
    let fits = |record: &&Arc<TicketRecord>| {
        bytes += TICKET_BYTES + keys::encode(&record.ticket.extra).len();
        bytes <= MAX_SHOWN_BYTES
    };
    let mut tickets: Vec<_> = of_others.take_while(fits).map(|one| one.ticket.clone()).collect();
    tickets.extend(queue.iter().filter(|one| one.uuid == uuid).map(|one| one.ticket.clone()));
    let left_out = queue.len() - tickets.len();
    TicketCreated { uuid, queue: tickets, queue_left_out: (left_out > 0).then_some(left_out) }
}

impl Tickets {
    /// Puts a new ticket into its queue.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::Busy`] when the queue, the waitlist or the client's part
    /// of it is full,
    /// [`AppError::Store`].
    pub async fn create(&self, request: TicketRequest) -> Result<TicketCreated, AppError> {
        request.check()?;
        if self.index.open() >= MAX_OPEN {
            return Err(AppError::Busy(format!("there are {MAX_OPEN} open tickets")));
        }
        if self.index.open_of(request.client) >= MAX_OPEN_OF_CLIENT {
            let text = format!("this client has made {MAX_OPEN_OF_CLIENT} open tickets");
            return Err(AppError::Busy(text));
        }
        let uuid = TicketUuid(self.ctx.parts.entropy.uuid());
        let queue = request.queue.clone();
        let new = NewTicket {
            uuid,
            queue: request.queue,
            expires_at: request.expires_at,
            action: request.action,
            extra: request.extra,
            reqid: request.req_id,
            client: request.client,
        };
        match self.op(Op::Create(Box::new(new))).await? {
            Effect::Full => Err(AppError::Busy(format!("there are {MAX_QUEUE} tickets in line"))),
            Effect::Done | Effect::NotFound | Effect::Changed => {
                let mut queue = self.index.queue(&queue);
                if queue.iter().all(|ticket| ticket.uuid != uuid) {
                    // It was over at once; the client looks for it all the same.
                    match self.get(uuid).await {
                        Ok(held) => queue.push(held.value),
                        // Deleted meanwhile: it was made, and that is what was asked.
                        Err(AppError::TicketNotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(shown(uuid, &queue))
            }
        }
    }

    /// One ticket and its version.
    ///
    /// # Errors
    /// [`AppError::TicketNotFound`], [`AppError::Store`], [`AppError::Corrupt`].
    pub async fn get(&self, uuid: TicketUuid) -> Result<Held<Arc<TicketRecord>>, AppError> {
        if let Some(held) = self.index.get(uuid) {
            return Ok(held);
        }
        // Another coordinator may have made it just now.
        let held = TICKETS.get(&self.ctx, uuid).await?.ok_or(AppError::TicketNotFound(uuid))?;
        Ok(Held { value: Arc::new(held.value), revision: held.revision })
    }

    /// Ends a ticket, whatever its status; the next of its queue becomes active.
    ///
    /// # Errors
    /// [`AppError::TicketNotFound`], [`AppError::Changed`], [`AppError::Busy`],
    /// [`AppError::Store`].
    pub async fn release(&self, uuid: TicketUuid, expected: Expected) -> Result<(), AppError> {
        let done = self.op(Op::Release(uuid, expected)).await?;
        ended(uuid, done)
    }

    /// Removes a ticket; the next of its queue becomes active.
    ///
    /// # Errors
    /// As [`Tickets::release`].
    pub async fn delete(&self, uuid: TicketUuid, expected: Expected) -> Result<(), AppError> {
        let done = self.op(Op::Delete(uuid, expected)).await?;
        ended(uuid, done)
    }

    /// Removes all tickets that a waitlist has now, whatever their status.
    ///
    /// # Errors
    /// [`AppError::Busy`], [`AppError::Store`]; some may be removed then.
    pub async fn delete_all(&self, server: TicketServer) -> Result<(), AppError> {
        let all = self.index.of_server(server);
        // The youngest first: so nobody's turn comes while the queues are emptied.
        let uuids: Vec<_> = all.iter().rev().map(|ticket| ticket.uuid).collect();
        for batch in uuids.chunks(DELETE_BATCH) {
            self.all(batch, |uuid| Op::Delete(uuid, Expected::ANY)).await?;
        }
        Ok(())
    }

    /// Does the same with several tickets, in their order.
    async fn all(
        &self,
        uuids: &[TicketUuid],
        op: impl Fn(TicketUuid) -> Op,
    ) -> Result<(), AppError> {
        let ops = uuids.iter().map(|uuid| self.op_patient(op(*uuid)));
        futures_util::future::try_join_all(ops).await?;
        Ok(())
    }

    /// Returns once a ticket is active, or can't become so any more. `holds`: the ticket that the
    /// client says it holds meanwhile, for finding deadlocks.
    ///
    /// # Errors
    /// [`AppError::NoSuchTicket`], [`AppError::TicketExpired`], [`AppError::Busy`] when too many
    /// wait, [`AppError::Store`], [`AppError::Stopping`].
    pub async fn wait(&self, uuid: TicketUuid, holds: Option<TicketUuid>) -> Result<(), AppError> {
        let index = &self.index;
        let waiter = index.wait(uuid, holds);
        let waiter = waiter.ok_or_else(|| AppError::Busy("too many wait".to_owned()))?;
        if index.get(uuid).is_none() && TICKETS.get(&self.ctx, uuid).await?.is_some() {
            // Another coordinator made it just now.
            self.ctx.feed.catch_up().await?;
        }
        let mut first = true;
        loop {
            match index.get(uuid).map(|held| held.value.status) {
                Some(TicketStatus::Active | TicketStatus::Finished) => return Ok(()),
                Some(TicketStatus::Expired) if first => {
                    return Err(AppError::TicketExpired(format!("ticket {uuid} is expired")));
                }
                Some(TicketStatus::Expired) => {
                    return Err(AppError::TicketExpired("ticket has expired".to_owned()));
                }
                None => return Err(AppError::NoSuchTicket(uuid)),
                Some(TicketStatus::Queued) => {}
            }
            first = false;
            tokio::select! {
                biased;
                () = self.ctx.cancel.cancelled() => return Err(AppError::Stopping),
                () = waiter.changed() => {}
            }
        }
    }

    /// The open tickets of every server that promise room for a VM, in order of creation.
    #[must_use]
    pub fn provisioning(&self) -> Vec<Arc<TicketRecord>> {
        self.index.provisioning()
    }

    /// Has an operation written and waits until the index shows it.
    async fn op(&self, op: Op) -> Result<Effect, AppError> {
        let (done, outcome) = oneshot::channel();
        match self.ops.try_send(Job { op, done }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(AppError::Busy("too many changes of the waitlist wait".to_owned()));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(AppError::Stopping),
        }
        self.outcome(outcome).await
    }

    /// As [`Tickets::op`], but waits for its turn however many wait.
    async fn op_patient(&self, op: Op) -> Result<Effect, AppError> {
        let (done, outcome) = oneshot::channel();
        let sent = self.ops.send(Job { op, done }).await;
        sent.map_err(|_| AppError::Stopping)?;
        self.outcome(outcome).await
    }

    async fn outcome(
        &self,
        outcome: oneshot::Receiver<Result<Effect, AppError>>,
    ) -> Result<Effect, AppError> {
        tokio::select! {
            biased;
            done = outcome => done.unwrap_or(Err(AppError::Stopping)),
            () = self.ctx.cancel.cancelled() => Err(AppError::Stopping),
        }
    }
}

fn ended(uuid: TicketUuid, effect: Effect) -> Result<(), AppError> {
    match effect {
        Effect::Done => Ok(()),
        Effect::NotFound => Err(AppError::TicketNotFound(uuid)),
        Effect::Changed => Err(AppError::Changed),
        Effect::Full => Err(AppError::Busy("the queue is full".to_owned())),
    }
}
