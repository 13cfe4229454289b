//! Whether memory is what the store is.

use std::collections::BTreeSet;

use super::*;
use crate::app::keys;
use crate::app::tasks::TaskRecord;
use crate::app::tickets::TicketRecord;
use crate::store::{Record, list_all};

async fn all(app: &App, prefix: &str) -> Vec<Record> {
    list_all(&*app.ctx.parts.store, prefix).await.unwrap().0
}

/// What is wrong once nothing is under way; each finding names its invariant.
pub(crate) async fn unsound(app: &App) -> Vec<String> {
    app.ctx.feed.catch_up().await.unwrap();
    let mut findings = tasks(app).await;
    findings.extend(promises(app).await);
    findings.extend(servers(app).await);
    findings.extend(tickets(app).await);
    findings
}

async fn tasks(app: &App) -> Vec<String> {
    let marked: BTreeSet<TaskId> =
        all(app, keys::OPEN).await.iter().filter_map(|record| keys::last(&record.key)).collect();
    let mut active = BTreeSet::new();
    for record in all(app, keys::TASKS).await {
        let task: TaskRecord = keys::decode(&record).unwrap();
        if task.status == TaskStatus::Active {
            active.insert(task.id);
        }
    }
    let known: BTreeSet<TaskId> = app.tasks.table.ids().into_iter().collect();
    let mut findings = Vec::new();
    if marked != active {
        findings.push(format!("open tasks: marked {marked:?}, active {active:?}"));
    }
    if known != active {
        findings.push(format!("open tasks: known {known:?}, active {active:?}"));
    }
    findings
}

async fn promises(app: &App) -> Vec<String> {
    let mut stored: BTreeSet<String> = BTreeSet::new();
    for prefix in [keys::PLACES, keys::RESERVATIONS] {
        stored.extend(all(app, prefix).await.into_iter().map(|record| record.key));
    }
    let (known, pending) = app.placement.promises.lock().known();
    let mut findings = Vec::new();
    if known != stored {
        findings.push(format!("promises: known {known:?}, stored {stored:?}"));
    }
    if pending > 0 {
        findings.push(format!("promises: {pending} without a decision that is being stored"));
    }
    findings
}

async fn servers(app: &App) -> Vec<String> {
    let mut findings = Vec::new();
    for record in all(app, keys::SERVERS).await {
        let Some(server) = keys::last::<ServerUuid>(&record.key) else { continue };
        let known = app.fleet.with(server, |entry| entry.record.as_ref().map(|r| r.revision));
        if known.flatten() != Some(record.revision) {
            findings.push(format!("servers: {server} known {known:?}, at {}", record.revision));
        }
    }
    let stored = all(app, keys::VMS).await.len();
    let known = app.fleet.vm_count();
    if stored != known {
        findings.push(format!("VMs: {known} known, {stored} stored"));
    }
    findings
}

async fn tickets(app: &App) -> Vec<String> {
    let mut findings = Vec::new();
    for record in all(app, keys::TICKETS).await {
        let ticket: TicketRecord = keys::decode(&record).unwrap();
        let known = app.tickets.get(ticket.uuid).await.map(|held| held.revision);
        if !matches!(known, Ok(at) if at == record.revision) {
            findings.push(format!("tickets: {} known {known:?}", ticket.uuid));
        }
    }
    findings
}
