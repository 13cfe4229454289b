//! `muster ticket get`: a ticket for people.

use muster_shared::api::ticket::{Ticket, TicketStatus};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, compact};
use crate::page::{Page, when};
use crate::{CliError, pick};

pub(crate) async fn run(client: &Client, output: &Output, uuid: &str) -> Result<(), CliError> {
    let ticket: Answer<Ticket> = client.get(&format!("/tickets/{uuid}"), &[]).await?;
    if output.is_json() {
        return output.object(ticket.json());
    }
    let server = match ticket.queue.server_uuid.0 {
        Some(server) => {
            let name = pick::hostnames(client).await?.remove(&server.to_string());
            name.map_or_else(|| server.to_string(), |name| format!("{name} ({server})"))
        }
        None => "all servers".to_owned(),
    };
    page(&ticket, &server).print()
}

fn page(ticket: &Ticket, server: &str) -> Page {
    let Ticket { uuid, queue, .. } = ticket;
    let state = match ticket.status {
        TicketStatus::Queued => "queued behind others",
        TicketStatus::Active => "active",
        TicketStatus::Expired => "expired",
        TicketStatus::Finished => "released",
    };
    let mut page = Page::new(format!("the ticket for {} {} is {state}", queue.scope, queue.id));
    page.group("Ticket")
        .line("Id", uuid.to_string())
        .line("Scope", &queue.scope)
        .line("Id in scope", &queue.id)
        .line("Waitlist", server)
        .maybe("Action", ticket.action.as_ref())
        .line("Created", when(&ticket.created_at))
        .line("Changed", when(&ticket.updated_at))
        .line("Expires", when(&ticket.expires_at))
        .maybe("Request", Some(&ticket.reqid).filter(|id| !id.is_empty()));
    page.group("From its client");
    for (name, value) in &ticket.extra {
        page.line(name, compact(value));
    }
    match ticket.status {
        TicketStatus::Queued => {
            page.next(format!("muster why {uuid}")).next(format!("muster ticket wait {uuid}"));
        }
        TicketStatus::Active => {
            page.next(format!("muster ticket release {uuid}"));
        }
        TicketStatus::Expired | TicketStatus::Finished => {}
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(status: &str) -> String {
        let ticket = json!({
            "uuid": uuid::Uuid::from_u128(7), "server_uuid": "default", "scope": "vm", "id": "web1",
            "expires_at": "3000-01-01T00:00:00.000Z", "created_at": "2026-01-01T00:00:00.000Z",
            "updated_at": "2026-01-01T00:00:00.000Z", "status": status, "action": "resize",
            "extra": { "who": "ops", "steps": [1, 2] },
        });
        page(&serde_json::from_value(ticket).unwrap(), "all servers").text(Some(80))
    }

    #[test]
    fn a_ticket_is_told_by_its_state() {
        let queued = text("queued");
        assert!(queued.starts_with("the ticket for vm web1 is queued behind others\n"), "{queued}");
        assert!(queued.contains("Next\n  muster why 00000000-"), "{queued}");
        let active = text("active");
        assert!(active.contains("Waitlist     all servers\n"), "{active}");
        assert!(active.contains("Action       resize\n"), "{active}");
        assert!(active.contains("(3000-01-01T00:00:00.000Z)\n"), "{active}");
        assert!(active.contains("steps  [1,2]\n"), "{active}");
        assert!(active.contains("muster ticket release "), "{active}");
        for over in ["expired", "finished"] {
            assert!(!text(over).contains("Next"), "{over}");
        }
        assert!(text("finished").contains(" is released\n"));
    }
}
