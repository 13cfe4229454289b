//! Fencing: a request that starts a task may name the ticket under which it does so.
//!
//! A client that sleeps past its ticket's expiry and wakes up must not act as if it still held it.
//! The coordinator refuses a ticket that is not active, in the transaction that makes the task.
//! What was on its way already is refused by the agent: the task carries the ticket's token, and
//! the agent refuses a token older than one it has seen for the same queue. The token is the
//! revision of the commit that made the ticket active, so the next holder's is greater.
//!
//! The ticket's name is a part of [`Caller`], without which no task can be started. A job keeps
//! its ticket's name, and every one of its steps is run under it.

use muster_shared::api::ticket::TicketStatus;
use muster_shared::ids::{TicketUuid, VmUuid};
use muster_shared::wire::{self, Token};

use super::{TICKETS, Tickets};
use crate::app::error::AppError;
use crate::app::{Caller, keys};
use crate::store::{Expect, Revision, StoreError, Write};

/// An active ticket under which a task is started.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    /// Which one.
    pub(crate) uuid: TicketUuid,
    /// What the agent is told.
    pub(crate) ticket: wire::Ticket,
}

impl Tickets {
    /// Commits `writes` if the ticket named by the fence is still active: its record has not
    /// changed since it became so.
    ///
    /// # Errors
    /// [`AppError::TicketNotActive`], [`AppError::Store`].
    pub(crate) async fn commit_under(
        &self,
        fence: Option<&Fence>,
        mut writes: Vec<Write>,
    ) -> Result<Revision, AppError> {
        let Some(fence) = fence else { return Ok(self.ctx.feed.commit(writes).await?) };
        let Token { epoch, counter } = fence.ticket.token;
        let key = keys::ticket(fence.uuid);
        writes.push(Write::check(key.clone(), Expect::At(Revision { epoch, counter })));
        self.ctx.feed.commit(writes).await.map_err(|error| match error {
            StoreError::Conflict { key: lost } if lost == key => {
                AppError::TicketNotActive(fence.uuid.to_string())
            }
            error => error.into(),
        })
    }

    /// Refuses a request that names a ticket which is not active.
    ///
    /// # Errors
    /// As [`Tickets::fence`].
    pub async fn check(&self, caller: &Caller) -> Result<(), AppError> {
        self.fence(caller).await.map(drop)
    }

    /// Whether a request names an active ticket for this VM.
    ///
    /// # Errors
    /// As [`Tickets::fence`].
    pub(crate) async fn is_about_vm(&self, caller: &Caller, vm: VmUuid) -> Result<bool, AppError> {
        let Some(fence) = self.fence(caller).await? else { return Ok(false) };
        let queue = &self.get(fence.uuid).await?.value.ticket.queue;
        Ok(queue.scope == "vm" && queue.id.parse() == Ok(vm))
    }

    /// The ticket that a request names; `None` when it names none.
    ///
    /// # Errors
    /// [`AppError::TicketNotActive`], [`AppError::Store`], [`AppError::Corrupt`].
    pub(crate) async fn fence(&self, caller: &Caller) -> Result<Option<Fence>, AppError> {
        let Some(named) = &caller.ticket else { return Ok(None) };
        let refused = || AppError::TicketNotActive(named.clone());
        let uuid: TicketUuid = named.parse().map_err(|_| refused())?;
        // Not from the index: another coordinator may have ended it just now.
        let stored = TICKETS.get(&self.ctx, uuid).await?.ok_or_else(refused)?;
        let ticket = stored.value;
        if ticket.status != TicketStatus::Active {
            return Err(refused());
        }
        let Revision { epoch, counter } = stored.revision;
        let token = Token { epoch, counter };
        let resource = ticket.queue.to_string();
        Ok(Some(Fence { uuid, ticket: wire::Ticket { resource, token } }))
    }
}
