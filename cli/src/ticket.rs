//! `muster ticket`: places in the waitlist's queues.

use std::time::Duration;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use muster_shared::api::ticket::{Ticket, TicketCreated};
use muster_shared::clock::{Clock as _, SystemClock, iso};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::output::{Item, Output};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick, ticket_get};

/// Tickets in a page; the coordinator's limit.
const PAGE: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists tickets in any status, oldest first.
    List {
        /// Tickets of this server's waitlist instead of the global one.
        #[arg(long)]
        server: Option<String>,
        /// Only those with this status.
        #[arg(long, value_parser = ["queued", "active", "expired", "finished"])]
        status: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows a ticket.
    Get {
        /// The ticket's uuid, or its beginning.
        uuid: String,
    },
    /// Creates a ticket in the queue for this server, scope and id.
    #[command(after_help = "\
Example, to lock a VM for at most ten minutes:
  uuid=$(muster -o json ticket create --server cn1 --scope vm --id \"$vm\" | jq -r .uuid)
  muster ticket wait \"$uuid\"
  …
  muster ticket release \"$uuid\"")]
    Create {
        /// Uses this server's waitlist instead of the global one.
        #[arg(long)]
        server: Option<String>,
        /// Type of resource, e.g. `vm`.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        scope: String,
        /// Which resource, e.g. a VM's uuid.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        id: String,
        /// What you intend to do, shown to others.
        #[arg(long)]
        action: Option<String>,
        /// Seconds until the ticket expires.
        #[arg(long, value_name = "SECONDS", default_value_t = 600,
            value_parser = clap::value_parser!(u64).range(1..))]
        expires_in: u64,
    },
    /// Waits until a ticket is active.
    Wait {
        /// The ticket's uuid, or its beginning.
        uuid: String,
        /// A ticket you hold while waiting, so that `muster why ticket` can detect deadlocks.
        #[arg(long, value_name = "UUID")]
        holding: Option<String>,
        /// Maximum wait in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        timeout: u64,
    },
    /// Releases a ticket; the next one in the queue becomes active.
    Release {
        /// The ticket's uuid, or its beginning.
        uuid: String,
    },
    /// Deletes a ticket, or all tickets of a waitlist; the next one in each queue becomes active.
    Delete {
        /// The ticket's uuid, or its beginning.
        #[arg(required_unless_present = "all")]
        uuid: Option<String>,
        /// All tickets of the waitlist, active ones included.
        #[arg(long, conflicts_with = "uuid")]
        all: bool,
        /// With --all: this server's waitlist instead of the global one.
        #[arg(long, requires = "all")]
        server: Option<String>,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server, status, list } => {
            let path = waitlist(client, server).await?;
            output
                .list(&list, async || {
                    let mut tickets = all(client, &path).await?;
                    if let Some(status) = &status {
                        tickets.retain(|ticket| ticket.status.as_str() == status);
                    }
                    Ok(tickets)
                })
                .await
        }
        Args::Get { uuid } => {
            let uuid = pick::ticket(client, &uuid).await?;
            ticket_get::run(client, output, &uuid).await
        }
        Args::Create { server, scope, id, action, expires_in } => {
            let expires_at = SystemClock::new().wall() + Duration::from_secs(expires_in);
            let mut body = json!({ "scope": scope, "id": id, "expires_at": iso(expires_at) });
            if let Some(action) = action {
                body["action"] = json!(action);
            }
            let path = waitlist(client, server).await?;
            let answer: Answer<TicketCreated> = client.post(&path, &body).await?;
            output.done(&created(&answer), answer.json())
        }
        Args::Wait { uuid, holding, timeout } => {
            let uuid = pick::ticket(client, &uuid).await?;
            let limit = Duration::from_secs(timeout);
            let holding = holding.map(|uuid| ("x-muster-ticket", uuid));
            let what = format!("ticket {uuid} to become active");
            let path = format!("/tickets/{uuid}/wait");
            client.wait(&path, holding, limit, &what).await?;
            output.done(&format!("ticket {uuid}: active"), &json!({ "uuid": uuid }))
        }
        Args::Release { uuid } => {
            let uuid = pick::ticket(client, &uuid).await?;
            client.put::<()>(&format!("/tickets/{uuid}/release"), &json!({})).await?;
            output.done(&format!("ticket {uuid}: released"), &json!({ "uuid": uuid }))
        }
        Args::Delete { uuid: Some(uuid), .. } => {
            let uuid = pick::ticket(client, &uuid).await?;
            client.delete::<()>(&format!("/tickets/{uuid}")).await?;
            output.done(&format!("ticket {uuid}: deleted"), &json!({ "uuid": uuid }))
        }
        Args::Delete { uuid: None, server, .. } => {
            let path = waitlist(client, server).await?;
            client.delete::<()>(&format!("{path}?force=true")).await?;
            output.done("all tickets: deleted", &json!({}))
        }
    }
}

/// Path of a server's waitlist, or of the one about all servers.
async fn waitlist(client: &Client, server: Option<String>) -> Result<String, CliError> {
    Ok(match server {
        Some(name) => {
            format!("/servers/{}/tickets", pick::server(client, &name).await?.record.uuid)
        }
        None => "/servers/default/tickets".to_owned(),
    })
}

async fn all(client: &Client, path: &str) -> Result<Vec<Answer<Ticket>>, CliError> {
    let mut tickets = Vec::new();
    loop {
        let query = [("limit", PAGE.to_string()), ("offset", tickets.len().to_string())];
        let page: Vec<_> = client.get(path, &query).await?;
        let full = page.len() >= PAGE;
        tickets.extend(page);
        if !full {
            return Ok(tickets);
        }
    }
}

/// What became of a new ticket.
fn created(answer: &TicketCreated) -> String {
    let TicketCreated { uuid, queue, queue_left_out } = answer;
    match queue.iter().position(|ticket| ticket.uuid == *uuid) {
        Some(0) | None => format!("ticket {uuid}: active"),
        Some(shown) => {
            let before = shown + queue_left_out.unwrap_or(0);
            format!("ticket {uuid}: queued, {before} before it; `muster ticket wait {uuid}`")
        }
    }
}

impl Item for Answer<Ticket> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("TICKET", |ticket: &Self| Cell::id(&ticket.uuid)),
        Column::new("SCOPE", |ticket: &Self| Cell::text(&ticket.queue.scope)).cut(),
        Column::new("ID", |ticket: &Self| Cell::text(&ticket.queue.id)).cut(),
        Column::new("STATUS", |ticket: &Self| Cell::state(ticket.status.as_str())),
        Column::new("ACTION", |ticket: &Self| Cell::of(&ticket.action)).cut().spare(2),
        Column::new("AGE", |ticket: &Self| Cell::since(Some(&ticket.created_at))).spare(1),
        Column::new("EXPIRES", |ticket: &Self| Cell::since(Some(&ticket.expires_at))).spare(3),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_ticket_s_place_is_told() {
        let uuid = |n: u8| uuid::Uuid::from_u128(n.into());
        let ticket = |n: u8| {
            json!({
                "uuid": uuid(n), "server_uuid": "default", "scope": "s", "id": "i",
                "expires_at": "3000", "created_at": "", "updated_at": "", "status": "queued",
            })
        };
        let created = |n: u8, queue: &[Value]| {
            let answer = json!({ "uuid": uuid(n), "queue": queue });
            created(&serde_json::from_value(answer).unwrap())
        };
        let b = uuid(2);
        let queued = format!("ticket {b}: queued, 1 before it; `muster ticket wait {b}`");
        assert_eq!(created(2, &[ticket(1), ticket(2)]), queued);
        let long = json!({ "uuid": b, "queue": [ticket(1), ticket(2)], "queue_left_out": 40 });
        let long = super::created(&serde_json::from_value(long).unwrap());
        assert!(long.contains("queued, 41 before it"), "{long}");
        assert_eq!(created(1, &[ticket(1)]), format!("ticket {}: active", uuid(1)));
    }
}
