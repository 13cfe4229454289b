//! Chooses servers: keeps the allocator's fleet in step with what is reported and promised.
//!
//! The allocator takes over a server only when somebody asks for an allocation and the server
//! changed since, so that reports cost it nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::{Diskinfo, Meminfo, Report};
use serde_json::{Map, Value, json};

use super::App;
use super::error::AppError;
use super::fields::Extras;
use super::fleet::Entry;
use crate::alloc::{
    self, Config, Detail, HostOs, Options, Outcome, RatioPolicy, Ratios, Request, Snapshot,
    Unreserved, allocate, default_expression, num,
};
use crate::store::Revision;

/// The allocator and what it knows.
#[derive(Debug)]
pub(crate) struct Allocator {
    fleet: alloc::Fleet,
    /// CNAPI's policy.
    reference: Config,
    /// The same with a check of the disk, for VMs that this coordinator creates itself.
    placing: Config,
    /// The records it took over.
    known: BTreeMap<ServerUuid, (Revision, Revision)>,
}

impl Allocator {
    pub(crate) fn new() -> Self {
        let reference = Config::reference_default(HostOs::Any);
        let placing = Config::new(&default_expression(true), &json!({}), HostOs::Any)
            .expect("the built-in expression is valid");
        Self { fleet: alloc::Fleet::new(&reference), reference, placing, known: BTreeMap::new() }
    }

    pub(super) fn reserve(&mut self, vm: VmUuid, server: ServerUuid, promise: alloc::Extra) {
        self.fleet.reserve(vm.0, &server.to_string(), promise);
    }

    pub(super) fn release(&mut self, vm: VmUuid) {
        self.fleet.release(vm.0);
    }

    fn take_over(&mut self, server: ServerUuid, entry: Option<&Entry>) {
        let name = server.to_string();
        let Some((entry, record)) = entry.and_then(|e| Some((e, e.record.as_ref()?))) else {
            self.known.remove(&server);
            return self.fleet.remove_server(&name);
        };
        let sysinfo = entry.sysinfo.as_ref().map(|held| held.revision).unwrap_or_default();
        let versions = (record.revision, sysinfo);
        if self.known.get(&server) != Some(&versions) {
            let mut whole = (*record.value).clone();
            whole.insert("sysinfo".to_owned(), Value::Object(entry.sysinfo()));
            if self.fleet.upsert_server(Arc::new(whole)).is_ok() {
                self.known.insert(server, versions);
            }
        }
        self.fleet.set_status(&name, entry.stored_status());
        self.fleet.apply_report(&name, &report_of(entry));
    }
}

fn report_of(entry: &Entry) -> Report {
    let figure = |name: &str| u64::try_from(entry.figures.exact(name).unwrap_or(0)).unwrap_or(0);
    let meminfo = entry.figures.exact("memory_total_bytes").map(|_| Meminfo {
        availrmem_bytes: figure("memory_available_bytes"),
        arcsize_bytes: figure("memory_arc_bytes"),
        total_bytes: figure("memory_total_bytes"),
    });
    let disk: Map<String, Value> = entry
        .figures
        .with_prefix("disk_")
        .map(|(name, bytes)| (name["disk_".len()..].to_owned(), json!(bytes.max(0))))
        .collect();
    let diskinfo: Option<Diskinfo> =
        (!disk.is_empty()).then(|| serde_json::from_value(Value::Object(disk)).ok()).flatten();
    let vms = entry.vms.iter().map(|(vm, report)| (*vm, Some((**report).clone()))).collect();
    Report { full: true, vms, meminfo, diskinfo, ..Report::default() }
}

impl App {
    /// The allocator's view of the fleet as it is now.
    fn snapshot(&self, allocator: &mut Allocator) -> Arc<Snapshot> {
        for server in self.fleet.take_stale() {
            let entry = self.fleet.get(server);
            allocator.take_over(server, entry.as_ref());
        }
        allocator.fleet.snapshot()
    }

    /// The overprovision ratios with which capacity is computed; no server has its own.
    pub(super) fn ratios(&self) -> Ratios {
        match self.placing.lock().allocator.reference.ratio_policy() {
            RatioPolicy::Forced(ratios) => ratios,
            RatioPolicy::Own => Ratios::DEFAULT,
        }
    }

    /// What is left of a server that could get a VM; `None` for others.
    pub(super) fn capacity_of(&self, server: ServerUuid, entry: &Entry) -> Option<Unreserved> {
        let set_up = entry.record.as_ref()?.value.get("setup") == Some(&json!(true));
        if !set_up || entry.stored_status() != "running" {
            return None;
        }
        let name = server.to_string();
        let snapshot = self.snapshot(&mut self.placing.lock().allocator);
        if snapshot.fault(&name).is_some() { None } else { snapshot.unreserved(&name) }
    }

    /// The server for a VM, and what the VM will take of it.
    pub(super) fn choose(
        &self,
        allocator: &mut Allocator,
        params: &Map<String, Value>,
        exclude: &BTreeSet<ServerUuid>,
    ) -> Result<(ServerUuid, alloc::Extra), AppError> {
        let mut body = request_body(params, true);
        if !exclude.is_empty() {
            let mut left = self.fleet.registered();
            left.retain(|server| !exclude.contains(server));
            body.insert("servers".to_owned(), json!(left));
        }
        let request = parse(&body)?;
        let snapshot = self.snapshot(allocator);
        let outcome = allocate(&snapshot, &request, &allocator.placing, &self.options());
        let chosen = chosen(&outcome)?;
        let server = chosen.parse().map_err(|_| no_server(&outcome))?;
        Ok((server, promise_of(params)))
    }

    fn options(&self) -> Options {
        Options { only_ready: true, seed: self.parts.entropy.u64(), ..Options::default() }
    }

    /// `POST /allocate`: the server for a VM that somebody else creates.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::NoServer`].
    pub fn allocate(&self, body: &Map<String, Value>) -> Result<Value, AppError> {
        let request = parse(body)?;
        let outcome = {
            let allocator = &mut self.placing.lock().allocator;
            let snapshot = self.snapshot(allocator);
            allocate(&snapshot, &request, &allocator.reference, &self.options())
        };
        let server: ServerUuid = chosen(&outcome)?.parse().map_err(|_| no_server(&outcome))?;
        let extras = Extras { sysinfo: true, memory: true, disk: true, ..Extras::default() };
        let mut view = self.server_get(server, extras)?;
        if let Some(choice) = &outcome.server {
            view.insert("score".to_owned(), num::json(choice.score));
            view.insert("overprovision_ratios".to_owned(), ratios_json(&choice.ratios));
            if let Some(left) = choice.unreserved {
                insert_unreserved(&mut view, left);
            }
        }
        let steps = outcome.steps_json(Detail::Full);
        Ok(json!({ "server": view, "steps": steps, "imgapiPeers": [], "seed": outcome.seed }))
    }

    /// `POST /capacity`: what servers have left.
    ///
    /// # Errors
    /// [`AppError::Invalid`].
    pub fn capacity(&self, body: &Map<String, Value>) -> Result<Value, AppError> {
        let servers = alloc::parse_capacity(body).map_err(invalid)?;
        let allocator = &mut self.placing.lock().allocator;
        let snapshot = self.snapshot(allocator);
        let found = alloc::capacity(&snapshot, servers.as_deref(), &allocator.reference, true);
        let mut answer = json!({ "capacities": found.capacities_json() });
        if !found.errors.is_empty() {
            answer["errors"] = Value::Object(found.errors);
        }
        Ok(answer)
    }
}

/// The ratios of a server in CNAPI's form.
pub(super) fn ratios_json(ratios: &alloc::Ratios) -> Value {
    let number = |ratio: Option<f64>| ratio.map(num::json);
    json!({ "cpu": number(ratios.cpu), "ram": number(ratios.ram), "disk": number(ratios.disk) })
}

pub(super) fn insert_unreserved(view: &mut Map<String, Value>, left: Unreserved) {
    for (name, value) in
        [("unreserved_cpu", left.cpu), ("unreserved_ram", left.ram), ("unreserved_disk", left.disk)]
    {
        view.insert(name.to_owned(), num::json(value));
    }
}

fn parse(body: &Map<String, Value>) -> Result<Request, AppError> {
    Request::parse(body).map_err(invalid)
}

fn invalid(errors: Vec<alloc::FieldError>) -> AppError {
    AppError::Invalid(errors.into_iter().map(|e| (e.field.to_string(), e.message)).collect())
}

fn chosen(outcome: &Outcome) -> Result<&str, AppError> {
    let choice = outcome.server.as_ref().ok_or_else(|| no_server(outcome))?;
    Ok(&choice.server_uuid)
}

fn no_server(outcome: &Outcome) -> AppError {
    AppError::NoServer {
        reason: outcome.failure(),
        volumes: outcome.failed_for_volumes(),
        steps: outcome.steps_json(Detail::Full),
    }
}

/// The parameters of a `machine_create` as a request to the allocator. The reference's RAM filter
/// leaves the hypervisor's overhead out, so that a server's last VM could take more than there is;
/// `with_overhead` puts it in. A promise counts it by itself.
fn request_body(params: &Map<String, Value>, with_overhead: bool) -> Map<String, Value> {
    let number = |name: &str| {
        let value = params.get(name)?;
        value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())
    };
    let mut vm = Map::new();
    for name in
        ["owner_uuid", "brand", "tags", "locality", "affinity", "internal_metadata", "docker"]
    {
        if let Some(value) = params.get(name) {
            vm.insert(name.to_owned(), value.clone());
        }
    }
    let lower = |name: &str| params.get(name)?.as_str().map(str::to_lowercase);
    vm.insert("vm_uuid".to_owned(), json!(lower("uuid")));
    vm.insert("owner_uuid".to_owned(), json!(lower("owner_uuid").unwrap_or_else(nobody)));
    let brand = params.get("brand").and_then(Value::as_str).unwrap_or_default();
    let overhead = if with_overhead { overhead_mib(brand) } else { 0 };
    vm.insert("ram".to_owned(), json!(number("ram").unwrap_or(256) + overhead));
    for name in ["cpu_cap", "quota", "vcpus"] {
        if let Some(value) = number(name) {
            vm.insert(name.to_owned(), json!(value));
        }
    }
    let list = |name: &str| params.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let disks: u64 = list("disks").iter().filter_map(|disk| disk.get("size")?.as_u64()).sum();
    let tags: Vec<_> = list("nics").iter().filter_map(|nic| nic.get("nic_tag").cloned()).collect();
    // Without the ratios of a package the reference's filters let everything pass.
    let package =
        json!({ "overprovision_cpu": 4, "overprovision_memory": 1, "overprovision_storage": 1 });
    let image = json!({ "image_size": disks });
    let body = json!({ "vm": vm, "image": image, "package": package, "nic_tags": tags });
    body.as_object().cloned().unwrap_or_default()
}

/// What a hypervisor takes beside the guest's memory, MiB.
fn overhead_mib(brand: &str) -> u64 {
    match brand {
        "kvm" => 1024,
        "bhyve" => 1280,
        _ => 0,
    }
}

fn nobody() -> String {
    uuid::Uuid::nil().to_string()
}

/// What a VM that is created on a server of the client's choice will take of it.
pub(super) fn promise_of(params: &Map<String, Value>) -> alloc::Extra {
    match Request::parse(&request_body(params, false)) {
        Ok(request) => request.promise(),
        Err(_) => alloc::Extra::from_json(&Value::Object(params.clone())),
    }
}
