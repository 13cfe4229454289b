//! The waitlist: of each queue, the oldest open ticket and no other is active.

use std::collections::BTreeMap;

use muster_shared::ids::TicketUuid;
use serde_json::Value;

use super::{Verdict, Violation, text};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Ticket {
    queue: String,
    status: String,
    seq: u64,
}

impl Ticket {
    fn is_open(&self) -> bool {
        matches!(self.status.as_str(), "queued" | "active")
    }
}

/// Every ticket that is stored.
#[derive(Debug, Default)]
pub struct Tickets {
    tickets: BTreeMap<TicketUuid, Ticket>,
    /// Queues that changed since they were looked at.
    changed: Vec<String>,
}

impl Tickets {
    pub(super) fn put(&mut self, value: &Value) -> Verdict {
        let Ok(uuid) = text(value, "uuid").parse::<TicketUuid>() else {
            return Err(Violation::new("records-are-readable", value));
        };
        // The queue's members stand in the record, or in a member of their own.
        let queue = if value["queue"].is_object() { &value["queue"] } else { value };
        let part = |name| text(queue, name);
        let queue = format!("{}/{}/{}", part("server_uuid"), part("scope"), part("id"));
        let seq = value["seq"].as_u64().unwrap_or(0);
        let ticket = Ticket { queue: queue.clone(), status: text(value, "status"), seq };
        let is_open = ticket.is_open();
        let before = self.tickets.insert(uuid, ticket);
        self.changed.push(queue);
        if is_open && before.is_some_and(|before| !before.is_open()) {
            let detail = format!("{uuid} had ended and is open again");
            return Err(Violation::new("ticket-ends-once", detail));
        }
        Ok(())
    }

    pub(super) fn deleted(&mut self, uuid: &str) {
        if let Some(ticket) = uuid.parse().ok().and_then(|uuid| self.tickets.remove(&uuid)) {
            self.changed.push(ticket.queue);
        }
    }

    /// Looks at the queues that changed.
    pub(super) fn check(&mut self) -> Verdict {
        for queue in std::mem::take(&mut self.changed) {
            let open = self.tickets.iter().filter(|(_, t)| t.queue == queue && t.is_open());
            let mut open: Vec<_> = open.collect();
            open.sort_by_key(|(_, ticket)| ticket.seq);
            let active = open.iter().filter(|(_, ticket)| ticket.status == "active").count();
            if active > 1 {
                let detail = format!("{queue}: {open:?}");
                return Err(Violation::new("one-ticket-is-active", detail));
            }
            if open.first().is_some_and(|(_, ticket)| ticket.status != "active") {
                let detail = format!("{queue}: {open:?}");
                return Err(Violation::new("oldest-ticket-is-active", detail));
            }
        }
        Ok(())
    }

    pub(super) fn answered(&self, uuid: TicketUuid) -> Verdict {
        if self.tickets.contains_key(&uuid) {
            return Ok(());
        }
        let detail = format!("a client was told of {uuid}, which is not in the store");
        Err(Violation::new("answered-ticket-is-stored", detail))
    }

    /// Whether a ticket is the active one of its queue.
    #[must_use]
    pub fn is_active(&self, uuid: TicketUuid) -> bool {
        self.tickets.get(&uuid).is_some_and(|ticket| ticket.status == "active")
    }

    /// Open tickets.
    #[must_use]
    pub fn open(&self) -> Vec<TicketUuid> {
        let open = self.tickets.iter().filter(|(_, ticket)| ticket.is_open());
        open.map(|(uuid, _)| *uuid).collect()
    }
}
