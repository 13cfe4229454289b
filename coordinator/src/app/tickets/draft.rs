//! The state machine of the waitlist's queues: operations in, one transaction out. Pure.
//!
//! ```text
//! create ──► queued ──► active ──► finished   (release, from any status)
//!               │          │
//!               └──────────┴─────► expired
//! ```
//!
//! A queue that is not empty has exactly one active ticket, the oldest. Whatever ends that ticket
//! activates the next in the same transaction. A queue's record lists its open tickets, oldest
//! first, and every change of its membership rewrites it: two coordinators that change one queue
//! at a time collide there, and one of them starts over.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::ticket::{QueueName, Ticket, TicketStatus};
use muster_shared::clock::iso;
use muster_shared::ids::TicketUuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record::TicketRecord;
use crate::app::{Expected, keys};
use crate::store::{Expect, MAX_COMMIT_BYTES, MAX_COMMIT_WRITES, Revision, Write};

/// Tickets that may be in one queue; its record has to fit a value of the store.
pub(super) const MAX_QUEUE: usize = 5_000;
/// Records that one operation may change: its ticket, the queue, the next ticket.
const MAX_OP_WRITES: usize = 3;
/// Bytes that one operation may add: a full queue and two tickets.
const MAX_OP_BYTES: usize = 300 * 1024;

/// A ticket to be made.
#[derive(Clone, Debug)]
pub(super) struct NewTicket {
    pub(super) uuid: TicketUuid,
    pub(super) queue: QueueName,
    pub(super) expires_at: String,
    pub(super) action: Option<String>,
    pub(super) extra: Object,
    pub(super) reqid: String,
    pub(super) client: Option<IpAddr>,
}

/// A change of the waitlist.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Puts a new ticket at the end of its queue.
    Create(Box<NewTicket>),
    /// Ends a ticket well; with the versions that it may have.
    Release(TicketUuid, Expected),
    /// Removes a ticket, as above.
    Delete(TicketUuid, Expected),
    /// Ends a ticket if it is open and its time is over.
    Expire(TicketUuid),
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// What was asked, or nothing was to be done.
    Done,
    /// There is no such ticket.
    NotFound,
    /// The ticket has another version.
    Changed,
    /// The queue is full.
    Full,
}

/// The record `queue/<server>/<hash>`: the open tickets, oldest first. Absent when there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Queue {
    #[serde(flatten)]
    name: QueueName,
    tickets: Vec<TicketUuid>,
    /// What another version keeps in the record.
    #[serde(flatten)]
    unknown: Object,
}

/// Why an operation can't be decided.
#[derive(Debug)]
pub(super) enum Stuck {
    /// This record has to be loaded first.
    Need(String),
    /// This record can't be read.
    Corrupt(String, serde_json::Error),
    /// This record must exist, since another names it, and does not.
    Lost(String),
}

/// One record as it is and as it is to become.
#[derive(Debug)]
struct Slot {
    at: Option<Revision>,
    was: bool,
    value: Option<Bytes>,
    changed: bool,
}

/// A transaction in the making.
#[derive(Debug)]
pub(super) struct Draft {
    now: Timestamp,
    slots: BTreeMap<String, Slot>,
}

impl Draft {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { now, slots: BTreeMap::new() }
    }

    /// Takes a record that was needed; `None` when it does not exist.
    pub(super) fn load(&mut self, key: String, record: Option<(Bytes, Revision)>) {
        let (value, at) = record.unzip();
        self.slots.insert(key, Slot { at, was: at.is_some(), value, changed: false });
    }

    /// Whether one more operation surely fits the transaction.
    pub(super) fn has_room(&self) -> bool {
        let changed = self.slots.iter().filter(|(_, slot)| slot.changed);
        let (mut writes, mut bytes) = (0, 0);
        for (key, slot) in changed {
            writes += 1;
            bytes += key.len() + slot.value.as_ref().map_or(0, Bytes::len);
        }
        writes + MAX_OP_WRITES <= MAX_COMMIT_WRITES && bytes + MAX_OP_BYTES <= MAX_COMMIT_BYTES
    }

    /// The transaction.
    pub(super) fn writes(self) -> Vec<Write> {
        let mut writes = Vec::new();
        for (key, slot) in self.slots {
            if !slot.changed || (!slot.was && slot.value.is_none()) {
                continue;
            }
            let expect = slot.at.map_or(Expect::Absent, Expect::At);
            writes.push(match slot.value {
                Some(value) => Write::put(key, expect, value),
                None => Write::delete(key, expect),
            });
        }
        writes
    }

    /// Applies an operation.
    ///
    /// # Errors
    /// [`Stuck`]: nothing was changed.
    pub(super) fn apply(&mut self, op: &Op) -> Result<Effect, Stuck> {
        match op {
            Op::Create(new) => self.create(new),
            Op::Release(uuid, expected) => {
                self.end(*uuid, expected, |_| true, Some(TicketStatus::Finished))
            }
            Op::Delete(uuid, expected) => self.end(*uuid, expected, |_| true, None),
            Op::Expire(uuid) => {
                let now = self.now;
                let over = |ticket: &TicketRecord| {
                    ticket.status.is_open() && ticket.due().is_over(&ticket.expires_at, now)
                };
                self.end(*uuid, &Expected::ANY, over, Some(TicketStatus::Expired))
            }
        }
    }

    fn create(&mut self, new: &NewTicket) -> Result<Effect, Stuck> {
        let seq: u64 = self.get(keys::TICKET_SEQ)?.unwrap_or(0);
        let queue: Option<Queue> = self.get(&keys::queue(&new.queue))?;
        let mut queue = queue.unwrap_or_else(|| Queue {
            name: new.queue.clone(),
            tickets: Vec::new(),
            unknown: Object::new(),
        });
        if queue.tickets.len() >= MAX_QUEUE {
            return Ok(Effect::Full);
        }
        let first = queue.tickets.is_empty();
        queue.tickets.push(new.uuid);
        let now = iso(self.now);
        let ticket = Ticket {
            uuid: new.uuid,
            queue: new.queue.clone(),
            expires_at: new.expires_at.clone(),
            created_at: now.clone(),
            updated_at: now,
            status: if first { TicketStatus::Active } else { TicketStatus::Queued },
            action: new.action.clone(),
            extra: new.extra.clone(),
            reqid: new.reqid.clone(),
        };
        let record = TicketRecord { ticket, seq, client: new.client, unknown: Object::new() };
        // The uuid is new; the transaction fails if it is not.
        self.load(keys::ticket(new.uuid), None);
        self.put(&keys::ticket(new.uuid), &record);
        self.put(&keys::queue(&new.queue), &queue);
        self.put(keys::TICKET_SEQ, &(seq + 1));
        Ok(Effect::Done)
    }

    /// Takes a ticket that fits out of its queue and gives it a status; `None` removes it.
    fn end(
        &mut self,
        uuid: TicketUuid,
        expected: &Expected,
        fits: impl FnOnce(&TicketRecord) -> bool,
        status: Option<TicketStatus>,
    ) -> Result<Effect, Stuck> {
        let key = keys::ticket(uuid);
        let Some(mut record) = self.get::<TicketRecord>(&key)? else {
            return Ok(Effect::NotFound);
        };
        let unchanged = self.slots.get(&key).filter(|slot| !slot.changed);
        let at = unchanged.and_then(|slot| slot.at).unwrap_or_default();
        if expected.check(at).is_err() {
            return Ok(Effect::Changed);
        }
        if !fits(&record) {
            return Ok(Effect::Done);
        }
        if record.status.is_open() {
            self.leave(&record)?;
        }
        match status {
            Some(status) => {
                record.ticket.status = status;
                record.ticket.updated_at = iso(self.now);
                self.put(&key, &record);
            }
            None => self.remove(&key),
        }
        Ok(Effect::Done)
    }

    /// Takes a ticket out of its queue; the next becomes active if it was its turn.
    fn leave(&mut self, ticket: &TicketRecord) -> Result<(), Stuck> {
        let key = keys::queue(&ticket.queue);
        let Some(mut queue) = self.get::<Queue>(&key)? else { return Err(Stuck::Lost(key)) };
        let was_first = queue.tickets.first() == Some(&ticket.uuid);
        queue.tickets.retain(|uuid| *uuid != ticket.uuid);
        if was_first && let Some(next) = queue.tickets.first() {
            let next_key = keys::ticket(*next);
            let Some(mut next) = self.get::<TicketRecord>(&next_key)? else {
                return Err(Stuck::Lost(next_key));
            };
            next.ticket.status = TicketStatus::Active;
            next.ticket.updated_at = iso(self.now);
            self.put(&next_key, &next);
        }
        if queue.tickets.is_empty() {
            self.remove(&key);
        } else {
            self.put(&key, &queue);
        }
        Ok(())
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Stuck> {
        let slot = self.slots.get(key).ok_or_else(|| Stuck::Need(key.to_owned()))?;
        let Some(value) = &slot.value else { return Ok(None) };
        match serde_json::from_slice(value) {
            Ok(value) => Ok(Some(value)),
            Err(source) => Err(Stuck::Corrupt(key.to_owned(), source)),
        }
    }

    fn put<T: Serialize>(&mut self, key: &str, value: &T) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.value = Some(keys::encode(value));
            slot.changed = true;
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.value = None;
            slot.changed = true;
        }
    }
}

#[cfg(test)]
mod tests;
