//! Capacity that is promised but not yet visible: provisioning tickets and reservations.
//!
//! A VM is counted once: as itself when its server reports it (in a state that takes room), else
//! by its first open ticket with figures, else by its reservation.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::ServerUuid;
use muster_shared::vm::overhead_mib;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::num::{num, some_truthy};
use crate::server_name::ServerName;
use crate::vm::{Brand, State, Vm, memory, unknown_as_null};

const GIB: f64 = 1_073_741_824.0;

/// What a promised VM will take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Extra {
    /// Its owner.
    pub owner_uuid: String,
    /// MiB, without the hypervisor's overhead; NaN if nobody says how much, so that the server has
    /// no room until it is known.
    #[serde(with = "unknown_as_null")]
    pub max_physical_memory: f64,
    /// Percent of one core; `None`: uncapped.
    pub cpu_cap: Option<f64>,
    /// GiB.
    pub quota: f64,
    /// `kvm`, `bhyve`, `joyent`, …
    pub brand: String,
    /// Sum of the sizes of its disks, MiB.
    pub disks_mib: f64,
}

impl Extra {
    /// Reads a ticket's `extra`. Members of the wrong type count as absent, and absent numbers as 0;
    /// memory is not known then.
    #[must_use]
    pub fn from_json(extra: &Value) -> Self {
        let number = |name: &str| some_truthy(extra.get(name)).map(num).filter(|x| x.is_finite());
        let text =
            |name: &str| extra.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let disks_mib = match extra.get("disks") {
            Some(Value::Array(disks)) => {
                disks.iter().filter_map(|d| d.get("size").and_then(Value::as_f64)).sum()
            }
            _ => 0.0,
        };
        Self {
            owner_uuid: text("owner_uuid"),
            max_physical_memory: memory(extra.get("max_physical_memory")),
            cpu_cap: number("cpu_cap"),
            quota: number("quota").unwrap_or(0.0),
            brand: text("brand"),
            disks_mib,
        }
    }
}

/// An open (`queued` or `active`) ticket of scope `vm` with action `provision`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ticket {
    /// The ticket.
    pub uuid: String,
    /// The server it is for.
    pub server_uuid: ServerUuid,
    /// The VM it is for.
    pub vm_uuid: String,
    /// The VM's figures. A ticket without them makes its server unusable, as in the reference.
    pub extra: Option<Extra>,
}

impl Ticket {
    /// Reads a ticket as CNAPI shows it; `None` if it is not an open one for provisioning a VM.
    ///
    /// # Errors
    /// The reference's text for a malformed ticket.
    pub fn from_json(ticket: &Value) -> Result<Option<Self>, String> {
        use crate::validate::{ensure, is_uuid};
        ensure(ticket.is_object(), "\"ticket\" has invalid type")?;
        let text = |name: &str| ticket.get(name).and_then(Value::as_str);
        ensure(text("id").is_some_and(is_uuid), "\"id\" is not a valid UUID")?;
        let server = text("server_uuid").filter(|uuid| is_uuid(uuid));
        let server = server.and_then(|uuid| uuid.parse().ok());
        let server_uuid = server.ok_or("\"server_uuid\" is not a valid UUID")?;
        for name in ["scope", "action", "status"] {
            ensure(text(name).is_some(), &format!("\"{name}\" is not a string"))?;
        }
        let open = matches!(text("status"), Some("queued" | "active"))
            && text("scope") == Some("vm")
            && text("action") == Some("provision");
        Ok(open.then(|| Self {
            uuid: text("uuid").or(text("id")).unwrap_or_default().to_owned(),
            server_uuid,
            vm_uuid: text("id").unwrap_or_default().to_owned(),
            extra: some_truthy(ticket.get("extra")).map(Extra::from_json),
        }))
    }
}

/// Bytes that VMs will add to a server's disk figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DiskPromise {
    pub(crate) zone_quota: f64,
    pub(crate) zvol: f64,
}

/// What is promised on one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Promised {
    /// The VMs: those of tickets, then those of reservations.
    pub(crate) vms: Vec<Arc<Vm>>,
    /// How many of them are of tickets.
    pub(crate) ticketed: usize,
    /// Bytes to add to the server's disk figures.
    pub(crate) disk: DiskPromise,
    /// The part of that which is for reservations.
    pub(crate) reserved_disk: DiskPromise,
    /// A ticket says nothing about its VM.
    pub(crate) bare: bool,
}

impl Promised {
    pub(crate) fn is_empty(&self) -> bool {
        self.vms.is_empty() && !self.bare
    }

    fn add(&mut self, promise: &Promise) {
        self.vms.push(Arc::clone(&promise.vm));
        self.disk.zone_quota += promise.disk.zone_quota;
        self.disk.zvol += promise.disk.zvol;
    }
}

/// A promised VM and the bytes it adds to its server's disk figures. Made once: whatever else
/// changes on the server, its lists share the VM, and those of snapshots that are held do, too.
#[derive(Clone, Debug)]
struct Promise {
    vm: Arc<Vm>,
    disk: DiskPromise,
}

impl Promise {
    fn new(uuid: Uuid, extra: &Extra) -> Self {
        // Written so that a disk list that is no number (NaN) counts as none.
        let disks = if extra.disks_mib > 0.0 { (extra.disks_mib / 1024.0).ceil() } else { 0.0 };
        let brand = Brand::of(&extra.brand);
        let (quota, zvol) = match brand {
            Brand::Kvm => (extra.quota, disks),
            Brand::Bhyve => (extra.quota + disks, 0.0),
            Brand::Other => (extra.quota, 0.0),
        };
        let vm = Vm {
            uuid,
            owner: Uuid::parse_str(&extra.owner_uuid).unwrap_or_default(),
            brand,
            state: State::Up,
            max_physical_memory: extra.max_physical_memory + f64::from(overhead_mib(&extra.brand)),
            cpu_cap: extra.cpu_cap.filter(|cap| *cap != 0.0),
            quota,
            ..Vm::default()
        };
        let disk = DiskPromise { zone_quota: quota * GIB, zvol: zvol * GIB };
        Self { vm: Arc::new(vm), disk }
    }
}

/// What counts of an open ticket.
#[derive(Clone, Debug)]
struct Open {
    ticket: String,
    vm: Uuid,
    /// `None`: it says nothing about its VM.
    promise: Option<Promise>,
}

/// What is reserved for a VM.
#[derive(Clone, Debug)]
struct Reservation {
    server: ServerName,
    extra: Arc<Extra>,
}

/// All promises of a fleet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    next: u64,
    /// By ticket: its place in the order of creation.
    order: BTreeMap<String, (ServerName, u64)>,
    tickets: BTreeMap<ServerName, BTreeMap<u64, Open>>,
    /// How many open tickets with figures each VM has.
    ticketed: BTreeMap<Uuid, usize>,
    reservations: BTreeMap<Uuid, Reservation>,
    /// By server, for each VM with a reservation there, in the order of their uuids. A server may have
    /// hundreds, and all are read with each change of one; most have few.
    reserved_on: BTreeMap<ServerName, Vec<Promise>>,
}

impl Promises {
    /// Notes an open ticket; returns the servers whose promises may have changed.
    pub(crate) fn open(&mut self, ticket: Ticket) -> Vec<ServerName> {
        let mut touched = self.close(&ticket.uuid);
        self.next += 1;
        let vm = Uuid::parse_str(&ticket.vm_uuid).unwrap_or_default();
        let promise = ticket.extra.map(|extra| Promise::new(vm, &extra));
        if promise.is_some() {
            *self.ticketed.entry(vm).or_default() += 1;
        }
        let server = ServerName::from(ticket.server_uuid);
        touched.push(server.clone());
        touched.extend(self.reserved_where(vm));
        self.order.insert(ticket.uuid.clone(), (server.clone(), self.next));
        let open = Open { ticket: ticket.uuid, vm, promise };
        self.tickets.entry(server).or_default().insert(self.next, open);
        touched
    }

    /// Forgets a ticket.
    pub(crate) fn close(&mut self, uuid: &str) -> Vec<ServerName> {
        let Some((server, place)) = self.order.remove(uuid) else { return Vec::new() };
        let Some(list) = self.tickets.get_mut(&server) else { return Vec::new() };
        let open = list.remove(&place);
        if list.is_empty() {
            self.tickets.remove(&server);
        }
        let mut touched = vec![server];
        if let Some(Open { vm, .. }) = open.filter(|open| open.promise.is_some()) {
            if let Some(n) = self.ticketed.get_mut(&vm) {
                *n -= 1;
                if *n == 0 {
                    self.ticketed.remove(&vm);
                }
            }
            touched.extend(self.reserved_where(vm));
        }
        touched
    }

    /// Reserves for a VM, in place of an earlier reservation for it.
    pub(crate) fn reserve(
        &mut self,
        vm: Uuid,
        server: &ServerName,
        extra: Arc<Extra>,
    ) -> Vec<ServerName> {
        let mut touched = self.release(vm);
        let promise = Promise::new(vm, &extra);
        self.reservations.insert(vm, Reservation { server: server.clone(), extra });
        let on = self.reserved_on.entry(server.clone()).or_default();
        // What was reserved for it before is released.
        on.reserve_exact(1);
        on.insert(on.partition_point(|other| other.vm.uuid < vm), promise);
        touched.push(server.clone());
        touched
    }

    /// Ends a reservation.
    pub(crate) fn release(&mut self, vm: Uuid) -> Vec<ServerName> {
        let Some(Reservation { server, .. }) = self.reservations.remove(&vm) else {
            return Vec::new();
        };
        if let Some(on) = self.reserved_on.get_mut(&server) {
            on.retain(|promise| promise.vm.uuid != vm);
            if on.is_empty() {
                self.reserved_on.remove(&server);
            }
        }
        vec![server]
    }

    /// Forgets all that is promised to a VM.
    pub(crate) fn forget(&mut self, vm: Uuid) -> Vec<ServerName> {
        let mut touched = self.release(vm);
        let open = self.tickets.values().flat_map(BTreeMap::values).filter(|open| open.vm == vm);
        for ticket in open.map(|open| open.ticket.clone()).collect::<Vec<_>>() {
            touched.extend(self.close(&ticket));
        }
        touched
    }

    /// Whether an open ticket with figures counts a VM.
    pub(crate) fn is_ticketed(&self, vm: Uuid) -> bool {
        self.ticketed.contains_key(&vm)
    }

    /// What a VM has reserved.
    pub(crate) fn reserved(&self, vm: Uuid) -> Option<&Extra> {
        self.reservations.get(&vm).map(|reservation| reservation.extra.as_ref())
    }

    fn reserved_where(&self, vm: Uuid) -> Option<ServerName> {
        self.reservations.get(&vm).map(|reservation| reservation.server.clone())
    }

    /// What is promised on a server beside the VMs that it shows.
    pub(crate) fn on(&self, server: &ServerName, shown: &[Uuid]) -> Promised {
        let mut promised = Promised::default();
        for Open { vm, promise, .. } in
            self.tickets.get(server).into_iter().flat_map(BTreeMap::values)
        {
            match promise {
                None => promised.bare = true,
                Some(_) if shown.contains(vm) || promised.vms.iter().any(|v| v.uuid == *vm) => {}
                Some(promise) => promised.add(promise),
            }
        }
        promised.ticketed = promised.vms.len();
        let before = promised.disk;
        if let Some(reserved) = self.reserved_on.get(server) {
            // Hardly any: a reservation ends when its server shows the VM.
            let is_reserved =
                |vm: &&Uuid| reserved.binary_search_by_key(*vm, |on| on.vm.uuid).is_ok();
            let shown: Vec<_> = shown.iter().filter(is_reserved).collect();
            promised.vms.reserve_exact(reserved.len());
            for promise in reserved {
                let vm = &promise.vm.uuid;
                if !shown.contains(&vm) && !self.ticketed.contains_key(vm) {
                    promised.add(promise);
                }
            }
        }
        // Whole bytes far below 2^53, so the difference is exact.
        promised.reserved_disk = DiskPromise {
            zone_quota: promised.disk.zone_quota - before.zone_quota,
            zvol: promised.disk.zvol - before.zvol,
        };
        promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promised_vm_is_made_once() {
        let mut promises = Promises::default();
        let server_uuid = ServerUuid(Uuid::from_u128(1));
        let server = ServerName::from(server_uuid);
        let extra = Extra { brand: "bhyve".to_owned(), quota: 25.0, ..Extra::default() };
        promises.reserve(Uuid::from_u128(2), &server, Arc::new(extra.clone()));
        promises.open(Ticket {
            uuid: "ticket".to_owned(),
            server_uuid,
            vm_uuid: Uuid::from_u128(3).to_string(),
            extra: Some(extra.clone()),
        });
        let before = promises.on(&server, &[]);
        promises.reserve(Uuid::from_u128(4), &server, Arc::new(extra));
        let after = promises.on(&server, &[]);
        assert_eq!((before.vms.len(), after.vms.len()), (2, 3));
        let is_shared = |(before, after)| Arc::ptr_eq(before, after);
        assert!(before.vms.iter().zip(&after.vms).all(is_shared));
    }
}
