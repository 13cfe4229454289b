//! Chooses servers: keeps the allocator's fleet in step with what is reported and promised.
//!
//! `ask` reads what a client wants, `flow` decides and promises, `decide` answers, `reserve` ends
//! reservations, `peers` keeps coordinators from taking the same room, `history` and `replay` keep
//! decisions, `planning` answers planners, `machine` says what a VM that is made here takes.
//!
//! The allocator takes over a server only when somebody asks for an allocation and the server
//! changed since, so that reports cost it nothing.

mod ask;
mod decide;
mod flow;
mod history;
mod machine;
mod peers;
mod planning;
mod replay;
mod reserve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::api;
use muster_shared::api::Object;
use muster_shared::ids::{ServerUuid, TicketUuid, VmUuid};
use muster_shared::vm::VmSpec;
use serde_json::{Number, Value, json};

pub use ask::Ask;
pub use decide::Decided;
pub(super) use flow::{Decision, Flow, Question, Wanted};
pub(crate) use history::Decisions;
pub(super) use history::taken_down;
pub(super) use peers::{ATTEMPTS, Peers};
pub(super) use reserve::ReservationRecord;

use super::App;
use super::config::AllocationConfig;
use super::error::AppError;
use super::fields::shown_status;
use super::fleet::Entry;
use super::tickets::TicketRecord;
use crate::alloc::{
    self, Config, Detail, Options, Outcome, RatioPolicy, Ratios, Recent, Request, Snapshot,
    Unreserved, num,
};
use crate::store::Revision;

/// The allocator and what it knows.
#[derive(Debug)]
pub(crate) struct Allocator {
    fleet: alloc::Fleet,
    /// The records it took over.
    known: BTreeMap<ServerUuid, (Revision, Revision)>,
    /// The tickets it took over.
    tickets: BTreeMap<TicketUuid, Arc<TicketRecord>>,
    /// What was chosen not long ago, oldest first, for policies that ask: when, and what
    /// [`Recent::from_json`] reads.
    recent: VecDeque<(Duration, Value)>,
}

/// Longest that a choice is remembered.
const MEMORY: Duration = Duration::from_mins(10);
/// Most choices remembered.
const MAX_RECENT: usize = 10_000;

impl Allocator {
    pub(crate) fn new(config: &AllocationConfig) -> Self {
        let fleet = alloc::Fleet::new(&config.policy);
        let (known, tickets) = (BTreeMap::new(), BTreeMap::new());
        Self { fleet, known, tickets, recent: VecDeque::new() }
    }

    pub(super) fn reserve(&mut self, vm: VmUuid, server: ServerUuid, promise: alloc::Extra) {
        self.fleet.reserve(vm.0, &server.into(), promise);
    }

    pub(super) fn release(&mut self, vm: VmUuid) {
        self.fleet.release(vm.0);
    }

    /// Takes over the open tickets that promise room.
    fn take_over_tickets(&mut self, open: Vec<Arc<TicketRecord>>) {
        let mut gone = std::mem::take(&mut self.tickets);
        for ticket in open {
            let uuid = ticket.uuid;
            let known = gone.remove(&uuid);
            // Only what it promises matters; its place in the order of creation stays.
            if !known.is_some_and(|known| known.extra == ticket.extra) {
                self.open_ticket(&ticket);
            }
            self.tickets.insert(uuid, ticket);
        }
        for uuid in gone.into_keys() {
            self.fleet.close_ticket(&uuid.to_string());
        }
    }

    fn open_ticket(&mut self, ticket: &TicketRecord) {
        let Some(server) = ticket.queue.server_uuid.0 else { return };
        // A ticket over HTTP always has an `extra`, if an empty one.
        let extra = alloc::Extra::from_json(&json!(ticket.extra));
        self.fleet.open_ticket(alloc::Ticket {
            uuid: ticket.uuid.to_string(),
            server_uuid: server,
            vm_uuid: ticket.queue.id.to_ascii_lowercase(),
            extra: Some(extra),
        });
    }

    /// Whether an open ticket with figures counts a VM.
    pub(super) fn is_ticketed(&self, vm: VmUuid) -> bool {
        self.fleet.is_ticketed(vm.0)
    }

    /// What was chosen not long ago, as [`Recent::from_json`] reads it; null if the policy does
    /// not ask.
    fn recent(&mut self, policy: &Config, now: Duration) -> Value {
        while self.recent.front().is_some_and(|(at, _)| now.saturating_sub(*at) > MEMORY) {
            self.recent.pop_front();
        }
        if !policy.remembers() {
            return Value::Null;
        }
        let age = |at: &Duration| now.saturating_sub(*at).as_secs_f64() * 1e3;
        let vm = |(at, vm): &(Duration, Value)| json!({ "age_ms": age(at), "vm": vm });
        let server = |(at, vm): &(Duration, Value)| json!({ "age_ms": age(at), "server_uuid": vm["server_uuid"] });
        json!({
            "recent_servers": self.recent.iter().map(server).collect::<Vec<_>>(),
            "recent_vms": self.recent.iter().map(vm).collect::<Vec<_>>(),
        })
    }

    fn remember(&mut self, request: &Request, server: ServerUuid, now: Duration) {
        self.recent.extend(request.recent_vm(server).map(|vm| (now, vm)));
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
    }

    fn take_over(&mut self, server: ServerUuid, entry: Option<&Entry>) {
        let name = server.into();
        let Some((entry, record)) = entry.and_then(|e| Some((e, e.record.as_ref()?))) else {
            self.known.remove(&server);
            return self.fleet.remove_server(&name);
        };
        let sysinfo = entry.sysinfo.as_ref().map(|held| held.revision).unwrap_or_default();
        let versions = (record.revision, sysinfo);
        if self.known.get(&server) != Some(&versions) {
            let mut whole = Object::of(&*record.value);
            whole.set("sysinfo", entry.sysinfo());
            if self.fleet.upsert_server(Arc::new(whole.into())).is_ok() {
                self.known.insert(server, versions);
            }
        }
        let figure = |name: &str| entry.figures.exact(name);
        let vms = entry.vms.values().map(AsRef::as_ref);
        let status = shown_status(entry.stored_status(), &record.value).as_str();
        self.fleet.refresh(&name, status, figure, vms);
    }
}

impl App {
    /// The allocator's view of the fleet as it is now, with all that is promised.
    fn snapshot(&self, allocator: &mut Allocator) -> Arc<Snapshot> {
        allocator.take_over_tickets(self.provisioning_tickets());
        self.reported(allocator)
    }

    /// As [`App::snapshot`], for questions in which promises don't count.
    fn reported(&self, allocator: &mut Allocator) -> Arc<Snapshot> {
        for server in self.fleet.take_stale() {
            let entry = self.fleet.get(server);
            allocator.take_over(server, entry.as_ref());
        }
        allocator.fleet.snapshot()
    }

    /// The overprovision ratios with which capacity is computed; no server has its own.
    pub(super) fn ratios(&self) -> Ratios {
        match self.config.allocation.policy.ratio_policy() {
            RatioPolicy::Forced(ratios) => ratios,
            RatioPolicy::Own => Ratios::DEFAULT,
        }
    }

    /// What is left of a server that could get a VM; `None` for others.
    pub(super) fn capacity_of(&self, server: ServerUuid, entry: &Entry) -> Option<Unreserved> {
        let set_up = entry.record.as_ref()?.value.setup;
        if !set_up || entry.stored_status() != "running" {
            return None;
        }
        let name = server.into();
        let snapshot = self.reported(&mut self.placing.lock().allocator);
        if snapshot.fault(&name).is_some() { None } else { snapshot.unreserved_reported(&name) }
    }

    /// What is asked of the allocator for a VM that this coordinator creates; not on the servers
    /// of `exclude`.
    pub(super) fn question_of_create(
        &self,
        vm: VmUuid,
        spec: &VmSpec,
        exclude: &BTreeSet<ServerUuid>,
    ) -> Result<Question, AppError> {
        let mut body = machine::request(spec);
        if !exclude.is_empty() {
            let mut left = self.fleet.registered();
            left.retain(|server| !exclude.contains(server));
            body.set("servers", json!(left));
        }
        let request = parse(&body)?;
        let wanted = Wanted { vm, body, request, extra: alloc::Extra::of_new_vm(spec) };
        let policy = Arc::clone(&self.config.allocation.placing);
        let ask = Ask { least_changes: false, ..Ask::default() };
        Ok(Question { ask, policy, vms: vec![wanted], making: true })
    }

    fn options(&self, seed: Option<u64>, recent: &Value) -> Options {
        Options {
            order: self.config.allocation.order,
            only_ready: true,
            // Clients keep numbers in doubles.
            seed: seed.unwrap_or_else(|| self.parts.entropy.u64() >> 11),
            recent: Recent::from_json(recent),
        }
    }

    /// `POST /capacity`: what servers have left.
    ///
    /// # Errors
    /// [`AppError::Invalid`].
    pub fn capacity(&self, body: &Object) -> Result<Value, AppError> {
        let servers = alloc::parse_capacity(body.as_map()).map_err(invalid)?;
        let snapshot = self.reported(&mut self.placing.lock().allocator);
        let policy = &self.config.allocation.policy;
        let found = alloc::capacity(&snapshot, servers.as_deref(), policy);
        let mut answer = json!({ "capacities": found.capacities_json() });
        if !found.errors.is_empty() {
            answer["errors"] = Value::Object(found.errors);
        }
        Ok(answer)
    }
}

/// The ratios of a server in CNAPI's form.
pub(super) fn ratios_shown(ratios: &alloc::Ratios) -> api::server::Ratios {
    api::server::Ratios {
        cpu: ratios.cpu.and_then(number),
        ram: ratios.ram.and_then(number),
        disk: ratios.disk.and_then(number),
    }
}

/// A number as JavaScript writes it; none for what is infinite.
pub(super) fn number(value: f64) -> Option<Number> {
    match num::json(value) {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

pub(super) fn insert_unreserved(view: &mut Object, left: Unreserved) {
    for (name, value) in
        [("unreserved_cpu", left.cpu), ("unreserved_ram", left.ram), ("unreserved_disk", left.disk)]
    {
        view.set(name, num::json(value));
    }
}

fn parse(body: &Object) -> Result<Request, AppError> {
    Request::parse(body.as_map()).map_err(invalid)
}

fn invalid(errors: Vec<alloc::FieldError>) -> AppError {
    AppError::Invalid(errors)
}

pub(super) fn no_server(outcome: &Outcome) -> AppError {
    AppError::NoServer {
        reason: outcome.failure(),
        volumes: outcome.failed_for_volumes(),
        steps: outcome.steps_json(Detail::Full),
    }
}
