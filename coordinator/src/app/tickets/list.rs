//! Lists of tickets.

use std::sync::Arc;

use muster_shared::api::ticket::{Ticket, TicketServer};

use super::{TicketRecord, Tickets};

/// Most tickets in one answer.
const MAX_LIMIT: usize = 1_000;

/// Which tickets of a waitlist, and in which order.
#[derive(Clone, Debug, Default)]
pub struct TicketFilter {
    /// Sorted by this member; by creation when it is none of a ticket's.
    pub attribute: Option<String>,
    /// The last first.
    pub descending: bool,
    /// At most this many.
    pub limit: Option<usize>,
    /// After skipping this many.
    pub offset: usize,
}

impl Tickets {
    /// Tickets of all statuses.
    #[must_use]
    pub fn list(&self, server: TicketServer, filter: &TicketFilter) -> Vec<Arc<TicketRecord>> {
        let mut tickets = self.index.of_server(server);
        if let Some(key) = filter.attribute.as_deref().and_then(sort_key) {
            // Stable: equal ones stay in order of creation.
            tickets.sort_by_cached_key(|ticket| key(ticket));
        }
        if filter.descending {
            tickets.reverse();
        }
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        tickets.into_iter().skip(filter.offset).take(limit).collect()
    }
}

/// How to sort by a member; `None` for `created_at`, which is how they come, and for others.
fn sort_key(attribute: &str) -> Option<fn(&Ticket) -> String> {
    Some(match attribute {
        "updated_at" => |ticket| ticket.updated_at.clone(),
        "expires_at" => |ticket| ticket.expires_at.clone(),
        "id" => |ticket| ticket.queue.id.clone(),
        "scope" => |ticket| ticket.queue.scope.clone(),
        "status" => |ticket| ticket.status.as_str().to_owned(),
        "action" => |ticket| ticket.action.clone().unwrap_or_default(),
        "uuid" => |ticket| ticket.uuid.to_string(),
        _ => return None,
    })
}
