//! The allocator's fleet, what is promised in it, and what was chosen not long ago.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ServerUuid, TicketUuid, VmUuid};
use serde_json::{Value, json};

use crate::alloc::{self, Config, PlacedVm, Request};
use crate::app::config::AllocationConfig;
use crate::app::tickets::TicketRecord;

/// The allocator and what it knows.
#[derive(Debug)]
pub(super) struct Allocator {
    pub(super) fleet: alloc::Fleet,
    /// The tickets it took over.
    tickets: BTreeMap<TicketUuid, Arc<TicketRecord>>,
    /// What was chosen not long ago, oldest first, for policies that ask, and when.
    recent: VecDeque<(Duration, PlacedVm)>,
}

/// Longest that a choice is remembered.
const MEMORY: Duration = Duration::from_mins(10);
/// Most choices remembered.
const MAX_RECENT: usize = 10_000;

impl Allocator {
    pub(super) fn new(config: &AllocationConfig) -> Self {
        let fleet = alloc::Fleet::new(&config.policy);
        Self { fleet, tickets: BTreeMap::new(), recent: VecDeque::new() }
    }

    pub(super) fn reserve(&mut self, vm: VmUuid, server: ServerUuid, promise: Arc<alloc::Extra>) {
        self.fleet.reserve(vm.0, &server.into(), promise);
    }

    pub(super) fn release(&mut self, vm: VmUuid) {
        self.fleet.release(vm.0);
    }

    /// Takes over the open tickets that promise room.
    pub(super) fn take_over_tickets(&mut self, open: Vec<Arc<TicketRecord>>) {
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
    pub(super) fn recent(&mut self, policy: &Config, now: Duration) -> Value {
        while self.recent.front().is_some_and(|(at, _)| now.saturating_sub(*at) > MEMORY) {
            self.recent.pop_front();
        }
        if !policy.remembers() {
            return Value::Null;
        }
        let age = |at: &Duration| now.saturating_sub(*at).as_secs_f64() * 1e3;
        let vm = |(at, vm): &(Duration, PlacedVm)| json!({ "age_ms": age(at), "vm": vm.to_json() });
        let server = |(at, vm): &(Duration, PlacedVm)| json!({ "age_ms": age(at), "server_uuid": vm.server_uuid });
        json!({
            "recent_servers": self.recent.iter().map(server).collect::<Vec<_>>(),
            "recent_vms": self.recent.iter().map(vm).collect::<Vec<_>>(),
        })
    }

    pub(super) fn remember(&mut self, request: &Request, server: ServerUuid, now: Duration) {
        self.recent.extend(request.recent_vm(server).map(|vm| (now, vm)));
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
    }
}
