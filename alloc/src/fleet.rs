//! The changing side of the snapshot: takes in records, reports and promises as they arrive and
//! keeps the sums of every server up to date.
//!
//! One task owns a fleet and feeds it; a request takes [`Fleet::snapshot`], which costs a few
//! pointers, and works on that.

use std::sync::Arc;

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::config::Config;
use crate::fingerprint::server_id;
use crate::news::{News, NoUuid};
use crate::num::display;
use crate::order::SortKey;
use crate::owners::{self, OwnerSlots};
use crate::persist::{Classes, ShardMap};
use crate::promises::{Extra, Promised, Promises, Ticket};
use crate::ratios::RatioPolicy;
use crate::server::{Nics, Parsed, Platform, Server};
use crate::server_name::ServerName;
use crate::slot_set::CHUNK;
use crate::snapshot::{Chunk, Snapshot};
use crate::vm::Vm;

/// All servers, kept ready for requests.
#[derive(Clone, Debug)]
pub struct Fleet {
    current: Snapshot,
    taken: Option<Arc<Snapshot>>,
    free: Vec<u32>,
    nics: Classes<Nics>,
    platforms: Classes<Platform>,
    promises: Promises,
}

impl Fleet {
    /// An empty fleet whose sums fit the policy; requests under another policy give the same
    /// answers, only slower.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            current: Snapshot {
                chunks: Vec::new(),
                orders: Default::default(),
                by_name: Arc::default(),
                owners: ShardMap::new(),
                vms: ShardMap::new(),
                shown_twice: Arc::default(),
                nics: Arc::default(),
                platforms: Arc::default(),
                policy: config.ratio_policy(),
                revision: 0,
            },
            taken: None,
            free: Vec::new(),
            nics: Classes::new(),
            platforms: Classes::new(),
            promises: Promises::default(),
        }
    }

    /// Recomputes all sums for another policy.
    pub fn set_policy(&mut self, config: &Config) {
        let policy: RatioPolicy = config.ratio_policy();
        if policy == self.current.policy {
            return;
        }
        self.current.policy = policy;
        let slots: Vec<u32> = self.current.slots().collect();
        for slot in slots {
            let server = self.server(slot);
            self.place(slot, server);
        }
    }

    /// The fleet as it is now; later changes don't touch it.
    pub fn snapshot(&mut self) -> Arc<Snapshot> {
        if self.taken.is_none() {
            // The tables of classes are lent only now, or each new class would copy them.
            let mut snapshot = self.current.clone();
            snapshot.nics = self.nics.items();
            snapshot.platforms = self.platforms.items();
            self.taken = Some(Arc::new(snapshot));
        }
        self.taken.clone().expect("it was just taken")
    }

    /// Takes in a server's record in CNAPI's form, new or changed: the operator's fields and
    /// `sysinfo`. Members that reports bring (`status`, `vms`, `memory_*_bytes`, `disk_*_bytes`)
    /// are taken if the record has them and else stay as they were. The record is kept, so hand
    /// over one that is shared.
    ///
    /// # Errors
    /// [`NoUuid`]; nothing was changed.
    pub fn upsert_server(&mut self, record: Arc<Map<String, Value>>) -> Result<(), NoUuid> {
        let uuid = record.get("uuid").and_then(Value::as_str).ok_or(NoUuid)?;
        self.upsert_named(ServerName::of(uuid), record);
        Ok(())
    }

    /// As [`Fleet::upsert_server`], of a record that need not say its uuid: it is not valid then.
    pub(crate) fn upsert_named(&mut self, name: ServerName, record: Arc<Map<String, Value>>) {
        let news = Arc::clone(&record);
        self.take(name, record, &news);
    }

    /// Lays members over a server's record, those of `sysinfo` one by one; a new server if there
    /// is none of this uuid.
    pub(crate) fn overlay_server(&mut self, name: &ServerName, members: &Map<String, Value>) {
        let known = self.current.slot_of(name);
        let mut record = known.map_or_else(Map::new, |slot| (*self.server(slot).record).clone());
        for (name, value) in members {
            match (record.get_mut(name), value) {
                (Some(Value::Object(old)), Value::Object(new)) if name == "sysinfo" => {
                    old.extend(new.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
                _ => drop(record.insert(name.clone(), value.clone())),
            }
        }
        self.take(name.clone(), Arc::new(record), members);
    }

    /// Takes over a record, of which `news` holds what reports bring.
    fn take(
        &mut self,
        name: ServerName,
        record: Arc<Map<String, Value>>,
        news: &Map<String, Value>,
    ) {
        let slot = self.slot(&name);
        let mut server = match self.current.chunks[slot as usize / CHUNK].servers
            [slot as usize % CHUNK]
            .as_ref()
        {
            Some(server) => Server::clone(server),
            None => Server::new(name, Arc::clone(&record)),
        };
        server.parsed = Arc::new(Parsed::new(&record));
        if let Some(status) = news.get("status") {
            server.status = Some(display(Some(status)).into());
        }
        server.figures.read(news);
        let vms = news.get("vms").and_then(Value::as_object).map(|vms| {
            Arc::new(vms.iter().map(|(key, vm)| Arc::new(Vm::from_json(key, vm))).collect())
        });
        server.record = record;
        if let Some(vms) = vms {
            self.set_vms(slot, server, vms);
        } else {
            server.promised = Arc::new(self.promised(&server));
            self.put(slot, server);
        }
    }

    /// Takes in one server as it is, promises included.
    pub(crate) fn insert(&mut self, server: Server) {
        let slot = self.slot(&server.name);
        self.put(slot, server);
    }

    /// Says on which server a VM is that several show.
    pub(crate) fn set_home(&mut self, vm: Uuid, server: &ServerName) {
        if let Some(slot) = self.current.slot_of(server) {
            self.current.vms.insert(vm, slot);
            self.changed();
        }
    }

    /// Adds a VM to a server, or replaces it there; no effect on an unknown server.
    pub(crate) fn add_vm(&mut self, server: &ServerName, vm: Vm) {
        let Some(slot) = self.current.slot_of(server) else { return };
        let server = self.server(slot);
        let mut vms = server.vms.to_vec();
        vms.retain(|known| known.uuid != vm.uuid);
        vms.push(Arc::new(vm));
        self.set_vms(slot, server, Arc::new(vms));
    }

    /// Removes a VM wherever it is, promised or seen.
    pub(crate) fn remove_vm(&mut self, vm: Uuid) {
        let touched = self.promises.forget(vm);
        self.promises_changed(touched);
        while let Some(slot) = self.current.vms.get(vm).copied() {
            let server = self.server(slot);
            let vms: Vec<_> = server.vms.iter().filter(|v| v.uuid != vm).cloned().collect();
            self.set_vms(slot, server, Arc::new(vms));
        }
    }

    /// Takes over what is new of a server; of one that is unknown, only together with its record.
    /// What turns out to be as it was costs a comparison.
    pub fn take_news(&mut self, name: &ServerName, news: News) {
        let slot = match (self.current.slot_of(name), &news.record) {
            (Some(slot), _) => slot,
            (None, Some(_)) => self.slot(name),
            (None, None) => return,
        };
        let known = self.current.chunks[slot as usize / CHUNK].servers[slot as usize % CHUNK]
            .as_ref()
            .map(|server| Server::clone(server));
        let is_new = known.is_none();
        let mut server = match (known, &news.record) {
            (Some(server), _) => server,
            (None, Some((record, parsed))) => {
                Server::parsed(name.clone(), Arc::clone(record), Arc::clone(parsed))
            }
            (None, None) => return,
        };
        let vms = news.vms(&server.vms);
        let mut changed = is_new;
        if let Some((record, parsed)) = news.record
            && server.record != record
        {
            (server.record, server.parsed, changed) = (record, parsed, true);
        }
        if news.status.is_some() && server.status != news.status {
            (server.status, changed) = (news.status, true);
        }
        if let Some(figures) = news.figures
            && server.figures != figures
        {
            (server.figures, changed) = (figures, true);
        }
        if let Some(vms) = vms {
            self.set_vms(slot, server, Arc::new(vms));
        } else if is_new {
            server.promised = Arc::new(self.promised(&server));
            self.put(slot, server);
        } else if changed {
            self.place(slot, server);
        }
    }

    /// Forgets a server. Its promises stay and count again if it comes back.
    pub fn remove_server(&mut self, name: &ServerName) {
        let Some(slot) = self.current.slot_of(name) else { return };
        let mut server = self.server(slot);
        let before = server.clone();
        server.vms = Arc::default();
        server.promised = Arc::default();
        self.reindex(slot, Some(&before), &server);
        let (nics, platform) = (self.current.nic_class(slot), self.current.platform_class(slot));
        self.nics.release(nics);
        self.platforms.release(platform);
        let chunk = Arc::make_mut(&mut self.current.chunks[slot as usize / CHUNK]);
        let i = slot as usize % CHUNK;
        chunk.flags.set(i, 0);
        chunk.servers[i] = None;
        for (values, order) in chunk.values.iter_mut().zip(&mut self.current.orders) {
            order.change(slot, std::mem::replace(&mut values[i], f64::NAN), f64::NAN);
        }
        Arc::make_mut(&mut self.current.by_name).remove(name);
        self.free.push(slot);
        self.changed();
    }

    /// Counts an open provisioning ticket; again for one that changed.
    pub fn open_ticket(&mut self, ticket: Ticket) {
        let touched = self.promises.open(ticket);
        self.promises_changed(touched);
    }

    /// A ticket was released, deleted or expired.
    pub fn close_ticket(&mut self, ticket_uuid: &str) {
        let touched = self.promises.close(ticket_uuid);
        self.promises_changed(touched);
    }

    /// Counts a VM on a server until it shows there, a ticket for it opens, or
    /// [`Fleet::release`]. An earlier reservation for the same VM is replaced, so that no VM
    /// counts twice. [`crate::Request::promise`] gives the figures.
    pub fn reserve(&mut self, vm: Uuid, server: &ServerName, extra: impl Into<Arc<Extra>>) {
        let touched = self.promises.reserve(vm, server, extra.into());
        self.promises_changed(touched);
    }

    /// Reserves the same for several VMs on one server.
    pub(crate) fn reserve_all(
        &mut self,
        vms: impl IntoIterator<Item = Uuid>,
        server: &ServerName,
        extra: &Arc<Extra>,
    ) {
        let mut touched = Vec::new();
        for vm in vms {
            touched.extend(self.promises.reserve(vm, server, Arc::clone(extra)));
        }
        self.promises_changed(touched);
    }

    /// Ends a VM's reservation, if it has one: its task ended, or its time ran out.
    pub fn release(&mut self, vm: Uuid) {
        let touched = self.promises.release(vm);
        self.promises_changed(touched);
    }

    /// Whether an open ticket with figures counts a VM.
    #[must_use]
    pub fn is_ticketed(&self, vm: Uuid) -> bool {
        self.promises.is_ticketed(vm)
    }

    /// What is reserved for a VM.
    #[must_use]
    pub fn reserved_for(&self, vm: Uuid) -> Option<&Extra> {
        self.promises.reserved(vm)
    }

    fn promises_changed(&mut self, mut servers: Vec<ServerName>) {
        servers.sort_unstable();
        servers.dedup();
        for name in servers {
            if let Some(slot) = self.current.slot_of(&name) {
                let mut server = self.server(slot);
                server.promised = Arc::new(self.promised(&server));
                self.put(slot, server);
            }
        }
    }

    fn promised(&self, server: &Server) -> Promised {
        let shown: Vec<_> = server.loaded().map(|vm| vm.uuid).collect();
        self.promises.on(&server.name, &shown)
    }

    fn server(&self, slot: u32) -> Server {
        self.current.server(slot).clone()
    }

    fn slot(&mut self, name: &ServerName) -> u32 {
        if let Some(slot) = self.current.slot_of(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            let n = self.current.capacity();
            self.current.chunks.push(Arc::new(Chunk::new()));
            let slot = |n: usize| u32::try_from(n).expect("a fleet has fewer than 2^32 servers");
            self.free.extend((n + 1..n + CHUNK).rev().map(slot));
            slot(n)
        });
        Arc::make_mut(&mut self.current.by_name).insert(name.clone(), slot);
        slot
    }

    fn set_vms(&mut self, slot: u32, mut server: Server, vms: Arc<Vec<Arc<Vm>>>) {
        server.vms = vms;
        server.promised = Arc::new(self.promised(&server));
        self.put(slot, server);
    }

    /// Stores a server whose VMs or promises may differ.
    fn put(&mut self, slot: u32, server: Server) {
        let chunk = &self.current.chunks[slot as usize / CHUNK];
        let before = chunk.servers[slot as usize % CHUNK].clone();
        self.reindex(slot, before.as_deref(), &server);
        self.place(slot, server);
    }

    /// Stores a server and its sums.
    fn place(&mut self, slot: u32, server: Server) {
        let i = slot as usize % CHUNK;
        let ratios = match self.current.policy {
            RatioPolicy::Forced(ratios) => ratios,
            RatioPolicy::Own => server.own_ratios(),
        };
        let chunk = Arc::make_mut(&mut self.current.chunks[slot as usize / CHUNK]);
        let before = chunk.servers[i].as_ref().map(|server| &server.parsed);
        if !before.is_some_and(|parsed| Arc::ptr_eq(parsed, &server.parsed)) {
            let nics = self.nics.intern(&server.parsed.nics);
            let platform = self.platforms.intern(&server.parsed.platform);
            if before.is_some() {
                self.nics.release(chunk.nics[i]);
                self.platforms.release(chunk.platform[i]);
            }
            chunk.nics[i] = nics;
            chunk.platform[i] = platform;
        }
        chunk.flags.set(i, server.flags());
        chunk.vm_count[i] = u32::try_from(server.counted().count()).unwrap_or(u32::MAX);
        let left = server.unreserved_promised(ratios);
        let values = [
            (SortKey::Cpu, left.cpu),
            (SortKey::Ram, left.ram),
            (SortKey::Disk, left.disk),
            (SortKey::NextReboot, server.parsed.reboot_ms),
            (SortKey::Platform, server.parsed.platform_ms),
        ];
        for (key, value) in values {
            let before = std::mem::replace(&mut chunk.values[key as usize][i], value);
            self.current.orders[key as usize].change(slot, before, value);
        }
        chunk.free_disk[i] = server.free_disk();
        chunk.id[i] = server_id(&server.name);
        chunk.servers[i] = Some(Arc::new(server));
        self.changed();
    }

    fn changed(&mut self) {
        self.current.revision += 1;
        self.taken = None;
    }

    /// Brings the indices by owner and by VM from one state of a server to the next.
    fn reindex(&mut self, slot: u32, before: Option<&Server>, after: &Server) {
        for (owner, counts) in owners::changed(before, after) {
            if counts.before != counts.after {
                self.set_owner(owner, slot, counts.after);
            }
        }
        if before.is_some_and(|before| Arc::ptr_eq(&before.vms, &after.vms)) {
            return;
        }
        let none = Vec::new();
        let old = before.map_or(&none, |server| &server.vms);
        for vm in old.iter().filter(|vm| !has(&after.vms, vm.uuid)) {
            self.hide(slot, vm.uuid);
        }
        for vm in after.vms.iter() {
            self.show(slot, vm.uuid, !has(old, vm.uuid));
        }
    }

    /// A server shows a VM and is its home: the last one that says so is believed.
    fn show(&mut self, slot: u32, vm: Uuid, is_new: bool) {
        let home = self.current.vms.get(vm).copied();
        if home == Some(slot) {
            return;
        }
        if let Some(home) = home.filter(|_| is_new) {
            let twice = Arc::make_mut(&mut self.current.shown_twice);
            let slots = twice.entry(vm).or_insert_with(|| vec![home]);
            slots.push(slot);
        }
        self.current.vms.insert(vm, slot);
    }

    /// A server shows a VM no longer. It may be on another one.
    fn hide(&mut self, slot: u32, vm: Uuid) {
        let mut others = Vec::new();
        if self.current.shown_twice.contains_key(&vm) {
            let twice = Arc::make_mut(&mut self.current.shown_twice);
            if let Some(slots) = twice.get_mut(&vm) {
                slots.retain(|known| *known != slot);
                others.clone_from(slots);
            }
            if others.len() < 2 {
                twice.remove(&vm);
            }
        }
        if self.current.vms.get(vm) == Some(&slot) {
            match others.last() {
                Some(other) => self.current.vms.insert(vm, *other),
                None => self.current.vms.remove(vm),
            }
        }
    }

    fn set_owner(&mut self, owner: Uuid, slot: u32, count: Option<u32>) {
        let owners = &mut self.current.owners;
        owners.update(owner, |slots| slots.set(slot, count), OwnerSlots::is_empty);
    }
}

fn has(vms: &[Arc<Vm>], uuid: Uuid) -> bool {
    vms.iter().any(|vm| vm.uuid == uuid)
}
