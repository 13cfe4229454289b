//! `GET /why/ticket/<uuid>`: who has the turn, what it does with it, and who waits in a circle.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::api::ticket::{Ticket, TicketStatus};
use muster_shared::ids::{TicketUuid, VmUuid};
use serde_json::{Value, json};

use super::Why;
use super::deadlock::Graph;
use crate::app::error::AppError;
use crate::app::tickets::TicketRecord;

impl Why {
    /// Why it is not a ticket's turn, or what is done with it.
    ///
    /// # Errors
    /// [`AppError::TicketNotFound`], [`AppError::Store`].
    pub(crate) async fn ticket(&self, uuid: TicketUuid) -> Result<Value, AppError> {
        let ticket = self.tickets.get(uuid).await?.value;
        let queue = self.tickets.queue(&ticket.queue);
        let place = queue.iter().position(|other| other.uuid == uuid);
        let holder = queue.first().filter(|_| ticket.status.is_open());
        let tasks = holder.map(|holder| self.tasks_under(holder)).unwrap_or_default();
        let waiting_for = match (ticket.status, holder, tasks.first()) {
            (TicketStatus::Queued, Some(holder), _) => {
                Some(format!("ticket {} to be released or to expire", holder.uuid))
            }
            (TicketStatus::Active, _, Some(task)) => Some(format!(
                "its holder, whose task {} waits for {}",
                task["id"].as_str().unwrap_or_default(),
                task["waiting_for"].as_str().unwrap_or_default(),
            )),
            (TicketStatus::Active, _, None) => Some("its holder to release it".to_owned()),
            _ => None,
        };
        let status = ticket.status.as_str();
        let text = match &waiting_for {
            None => format!("the ticket is {status}; nothing is pending"),
            Some(what) => format!("the ticket is {status} and is waiting for {what}"),
        };
        let waits = self.tickets.waits();
        Ok(json!({
            "kind": "ticket",
            "id": uuid,
            "status": status,
            "waiting_for": waiting_for,
            "text": text,
            "queue": { "server_uuid": ticket.queue.server_uuid, "scope": ticket.queue.scope,
                       "id": ticket.queue.id, "length": queue.len() },
            // The holder has place 0.
            "place": place,
            "action": ticket.action,
            "reqid": ticket.reqid,
            "expires_at": ticket.expires_at,
            "waiters": waits.iter().filter(|(waited, _)| *waited == uuid).count(),
            "holder": holder.map(|holder| &holder.ticket),
            "holder_tasks": tasks,
            "deadlock": self.ticket_deadlock(uuid, &waits),
        }))
    }

    /// The open tasks that run under a ticket: those that name it, and those about its VM.
    fn tasks_under(&self, ticket: &Ticket) -> Vec<Value> {
        let vm: Option<VmUuid> =
            if ticket.queue.scope == "vm" { ticket.queue.id.parse().ok() } else { None };
        let mut tasks = Vec::new();
        for open in self.tasks.table.ids().iter().filter_map(|id| self.tasks.table.get(id)) {
            let named = open.record.ticket_uuid == Some(ticket.uuid);
            if named || (vm.is_some() && open.record.vm_uuid == vm) {
                tasks.push(json!({
                    "id": open.record.id, "task": open.record.task,
                    "server_uuid": open.record.server_uuid,
                    "names_the_ticket": named, "waiting_for": self.tasks.waits_for(&open),
                }));
            }
        }
        // What names the ticket comes first.
        tasks.sort_by_key(|task| task["names_the_ticket"] != json!(true));
        tasks
    }

    /// The circle that a ticket is in or waits for; null when there is none.
    fn ticket_deadlock(
        &self,
        uuid: TicketUuid,
        waits: &[(TicketUuid, Option<TicketUuid>)],
    ) -> Value {
        let queues = self.tickets.queues();
        let Some(circle) = graph_of(&queues, waits).circle_from(uuid) else { return Value::Null };
        let by_uuid: BTreeMap<_, _> =
            queues.iter().flatten().map(|ticket| (ticket.uuid, ticket)).collect();
        let tickets: Vec<&Arc<TicketRecord>> =
            circle.iter().filter_map(|uuid| by_uuid.get(uuid).copied()).collect();
        let shown = |ticket: &Arc<TicketRecord>| {
            format!("{} ({}, {})", ticket.uuid, ticket.queue, ticket.status.as_str())
        };
        let mut names: Vec<_> = tickets.iter().map(|ticket| shown(ticket)).collect();
        names.extend(names.first().cloned());
        json!({
            "cycle": circle,
            "text": format!("{}; it ends when one of them is released or expires",
                            names.join(" waits for ")),
            "tickets": tickets.iter().map(|record| &record.ticket).collect::<Vec<_>>(),
        })
    }
}

fn graph_of(
    queues: &[Vec<Arc<TicketRecord>>],
    waits: &[(TicketUuid, Option<TicketUuid>)],
) -> Graph {
    let mut graph = Graph::default();
    let mut jobs: BTreeMap<&str, Vec<TicketUuid>> = BTreeMap::new();
    let mut job_of = BTreeMap::new();
    for queue in queues {
        for pair in queue.windows(2) {
            graph.waits(pair[1].uuid, pair[0].uuid);
        }
        for ticket in queue {
            if let Some(job) = ticket.extra.get("workflow_job_uuid").and_then(Value::as_str) {
                jobs.entry(job).or_default().push(ticket.uuid);
                job_of.insert(ticket.uuid, job);
            }
        }
    }
    for (waited, holds) in waits {
        let of_job = job_of.get(waited).and_then(|job| jobs.get(job)).into_iter().flatten();
        for held in of_job.chain(holds) {
            graph.waits(*held, *waited);
        }
    }
    graph
}
