//! The task kinds about VMs, run step by step on a simulated host.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use muster_shared::clock::{SharedClock, TokioClock};
use muster_shared::entropy::{SeededEntropy, SharedEntropy};
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::kv::MemKv;
use muster_shared::telemetry::LogRing;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::record::{Origin, bounded_result};
use super::registry::Registry;
use super::{
    Engine, EngineParts, EventSink, HANDLERS, OnFailure, Params, Submission, Subtasks, TaskContext,
    TaskFailure, machine,
};
use crate::drivers::builder::Builder;
use crate::drivers::cluster::Cluster;
use crate::drivers::compute::sim::{SimCompute, SimGuests};
use crate::drivers::coordinators::SimCoordinators;
use crate::drivers::faults::{Fault, Faults};
use crate::drivers::host::sim::SimHost;
use crate::drivers::images::sim::{SimImages, SimRepository};
use crate::drivers::network::sim::{SimHolders, SimNetworks};
use crate::drivers::node::{NodeDocuments, SimDocuments};
use crate::drivers::settings::sim::SimSettings;
use crate::drivers::storage::sim::{SimImage, SimPool, SimStorage};
use crate::drivers::storage::{Pools, Storage};
use crate::drivers::zfs::Delegated;
use crate::drivers::zfs::sim::{SimPools, SimZfs};
use crate::guest_agent::GuestAgents;
use crate::node::bridges::Bridges;
use crate::node::{Drivers, startup};
use crate::report::sim::SimFacts;
use crate::report::{Reporter, ReporterParts, Zpools};
use crate::sessions::Sessions;
use crate::vms::copies::CopiedRecords;
use crate::vms::sim::SimVmRecords;
use crate::vms::{Node, VmTable};

/// The image of the kinds' examples.
const EXAMPLE_IMAGE: &str = "01020304-0506-4708-890a-0b0c0d0e0f10";
pub(super) const IMAGE: &str = "11111111-2222-4333-8444-555555555555";
/// Of containers.
pub(super) const CONTAINER_IMAGE: &str = "22222222-2222-4333-8444-555555555555";
/// Those of a host that runs containers too.
const ALL_BRANDS: &[&str] = &["bhyve", "docker", "joyent", "joyent-minimal", "kvm", "lx"];

#[derive(Debug)]
pub(super) struct NoEvents;
impl EventSink for NoEvents {
    fn event(&self, _name: &str, _event: Value) {}
}

/// Steps that are run without an engine have no parts.
#[derive(Debug)]
pub(super) struct NoSubtasks;
#[async_trait]
impl Subtasks for NoSubtasks {
    async fn run(&self, part: &str, kind: &str, _: Params) -> Result<Value, TaskFailure> {
        panic!("part {part} of kind {kind} without an engine")
    }
}

/// A simulated host; agents come and go on it.
pub(crate) struct Host {
    pub(crate) guests: SimGuests,
    pub(crate) pool: SimPool,
    /// A second pool, `fast`, of a host that has one.
    pub(crate) fast: Option<SimPool>,
    pub(crate) networks: SimHolders,
    pub(crate) records: SimVmRecords,
    pub(crate) documents: SimDocuments,
    /// What there is of ZFS, beside the disks of VMs.
    pub(crate) zfs: SimPools,
    pub(super) faults: Faults,
    /// It has a runtime.
    runs_containers: bool,
    pub(crate) clock: SharedClock,
    tasks: Mutex<u32>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let faults = Faults::none();
        Self {
            guests: SimGuests::default(),
            pool: SimPool::default(),
            fast: None,
            networks: SimHolders::default(),
            records: SimVmRecords::new(faults.clone()),
            documents: SimDocuments::default(),
            zfs: SimPools::new("zones"),
            faults,
            runs_containers: false,
            clock: Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH)),
            tasks: Mutex::new(0),
        }
    }

    /// One that runs containers beside hardware VMs.
    pub(super) fn of_containers() -> Self {
        Self { runs_containers: true, ..Self::new() }
    }

    /// An agent that has just started.
    pub(crate) async fn agent(&self, boot_id: &str) -> Arc<Drivers> {
        let repository = SimRepository::default();
        let image = SimImage { manifest: json!({ "state": "active" }), size_bytes: 1 << 20 };
        for uuid in [IMAGE, EXAMPLE_IMAGE] {
            repository.publish(uuid.parse().unwrap(), image.clone());
        }
        let of_containers = SimImage { manifest: json!({ "type": "docker" }), ..image };
        repository.publish(CONTAINER_IMAGE.parse().unwrap(), of_containers);
        let node = Node { boot_id: boot_id.to_owned(), ..Node::default() };
        let (clock, faults) = (Arc::clone(&self.clock), || self.faults.clone());
        let mut compute = SimCompute::new(self.guests.clone(), clock.clone(), faults());
        if self.runs_containers {
            compute = compute.for_brands(ALL_BRANDS);
        }
        let compute = Arc::new(compute);
        let storage = self.storage();
        let server = uuid::Uuid::nil().into();
        let cluster = Cluster::open(Arc::new(self.documents.clone())).await.unwrap();
        let cluster = Arc::new(cluster);
        let records = Arc::new(self.records.clone());
        let records = CopiedRecords::new(records, storage.clone(), server, cluster.clone());
        let vms = Arc::new(VmTable::new(Arc::new(records), clock.clone(), node));
        let facts = SimFacts::new(server, 0, Timestamp::UNIX_EPOCH, boot_id);
        let networks = Arc::new(SimNetworks::new(self.networks.clone(), faults()));
        let report = Arc::new(Reporter::new(ReporterParts {
            clock: clock.clone(),
            facts: Arc::new(facts),
            vms: vms.clone(),
            compute: compute.clone(),
            storage: storage.clone(),
            networks: networks.clone(),
            zpools: Arc::new(Zpools::none(clock.clone())),
        }));
        let node: Arc<dyn NodeDocuments> = Arc::new(self.documents.clone());
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(1));
        let drivers = Drivers {
            builder: Arc::new(Builder::none("this is no real node")),
            sessions: Arc::new(Sessions::new(
                std::net::Ipv4Addr::LOCALHOST.into(),
                true,
                entropy.clone(),
            )),
            guest_agents: Arc::new(GuestAgents::new(compute.clone(), entropy.clone())),
            cluster,
            node,
            entropy,
            compute,
            networks,
            storage,
            images: Arc::new(SimImages::new(
                self.pool.clone(),
                repository,
                clock.clone(),
                faults(),
            )),
            settings: Arc::new(SimSettings::new(faults())),
            host: Arc::new(SimHost::default()),
            bridges: Bridges::default(),
            coordinators: Arc::new(SimCoordinators(faults())),
            vms,
            report,
            log: Arc::new(LogRing::new(uuid::Uuid::nil(), clock.clone())),
            zfs: Delegated {
                zfs: Arc::new(SimZfs::new(self.zfs.clone(), faults())),
                roots: vec!["zones".parse().unwrap()],
            },
            clock,
        };
        startup::find(&drivers).await.unwrap();
        Arc::new(drivers)
    }

    fn storage(&self) -> Arc<dyn Storage> {
        let (zones, faults) = (self.pool.clone(), || self.faults.clone());
        let first = Arc::new(SimStorage::new(zones.clone(), faults()));
        match self.fast.clone() {
            None => first,
            Some(fast) => {
                let fast = SimStorage::further(fast, "fast", zones, faults());
                Arc::new(Pools::new(first, vec![Arc::new(fast)]))
            }
        }
    }

    pub(super) fn context(&self, drivers: &Arc<Drivers>, params: &Params) -> TaskContext {
        *self.tasks.lock() += 1;
        let task_id: TaskId = format!("task-{}", self.tasks.lock()).parse().unwrap();
        TaskContext {
            task_id,
            params: params.clone(),
            origin: Origin::Coordinator,
            drivers: Arc::clone(drivers),
            started_at: self.clock.wall(),
            rebooted: false,
            resumed: false,
            cancelled: CancellationToken::new(),
            hurried: CancellationToken::new(),
            hurries: false,
            events: Arc::new(NoEvents),
            subtasks: Arc::new(NoSubtasks),
            result: Mutex::new(Value::Null),
            notes: Mutex::new(Value::Null),
        }
    }

    /// Everything that must not be left behind: disks, processes, records, other files, NICs.
    pub(crate) fn content(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        (
            self.pool.disks(),
            self.pool.firmware(),
            (self.pool.roots(), self.pool.stashed_roots()),
            self.guests.running(),
            self.records.records().into_keys().collect::<Vec<_>>(),
            self.guests.leftovers(),
            self.networks.vms(),
            self.zfs.content(),
        )
    }
}

/// Runs a task as the engine does; with `twice`, each step is repeated, as after a crash.
pub(super) async fn run(ctx: &TaskContext, kind: &str, twice: bool) -> Result<Value, TaskFailure> {
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind).unwrap();
    let plan = handler.plan(&ctx.params)?;
    for (index, step) in plan.steps.iter().enumerate() {
        let mut applied = step.apply(ctx).await;
        if twice && applied.is_ok() {
            applied = step.apply(ctx).await;
        }
        let Err(failure) = applied else { continue };
        if handler.on_failure(&ctx.params) == OnFailure::Undo {
            for step in plan.steps[..=index].iter().rev() {
                // Repeated: a crash may come between an undo and its mark.
                for _ in 0..2 {
                    if let Err(failure) = step.undo(ctx).await {
                        tracing::warn!(%failure, "undo failed");
                    }
                }
            }
        }
        return Err(failure);
    }
    Ok(ctx.result.lock().clone())
}

/// The engine of an agent with an empty journal.
pub(super) async fn engine(drivers: Arc<Drivers>, ceiling: Duration) -> Arc<Engine> {
    let parts = EngineParts {
        clock: Arc::clone(&drivers.clock),
        entropy: Arc::new(SeededEntropy::new(2)),
        kv: Arc::new(MemKv::default()),
        boot_id: drivers.vms.boot_id().to_owned(),
        drivers,
        registry: Registry::new(HANDLERS),
        instance_id: uuid::Uuid::nil(),
        ceiling,
        faults: None,
    };
    Engine::open(parts).await.unwrap()
}

/// A task of the agent's own.
pub(super) fn submission(id: &TaskId, kind: &str, params: Params) -> Submission {
    Submission {
        id: id.clone(),
        req_id: String::new(),
        task: kind.to_owned(),
        params,
        deadline_ms: None,
        ticket: None,
        volatile: false,
        origin: Origin::Local,
        part_of: None,
    }
}

pub(super) fn params(value: Value) -> Params {
    let Value::Object(params) = value else { panic!("an object is needed") };
    let mut all = machine::example();
    all.extend(params);
    all
}

pub(crate) fn create_params(extra: Value) -> Params {
    let mut all = params(json!({
        "brand": "kvm", "alias": "one", "ram": 128,
        "disks": [{"image_uuid": IMAGE}, {"size": 8}],
        "nics": [{"nic_tag": "admin"}],
    }));
    all.extend(params(extra));
    all
}

pub(crate) fn uuid() -> VmUuid {
    machine::vm(&machine::example()).unwrap()
}

pub(crate) async fn one_vm(host: &Host) -> Arc<Drivers> {
    let drivers = host.agent("boot-1").await;
    let ctx = host.context(&drivers, &create_params(json!({})));
    run(&ctx, "machine_create", false).await.unwrap();
    drivers
}

pub(super) async fn act(
    host: &Host,
    drivers: &Arc<Drivers>,
    kind: &str,
    extra: Value,
) -> Result<Value, TaskFailure> {
    run(&host.context(drivers, &params(extra)), kind, true).await
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_made_loaded_and_destroyed() {
    let host = Host::new();
    let empty = host.content();
    let drivers = host.agent("boot-1").await;
    let ctx = host.context(&drivers, &create_params(json!({})));
    let result = run(&ctx, "machine_create", true).await.unwrap();
    assert_eq!(result["vm"]["state"], "running");
    assert_eq!(result["vm"]["disks"][1]["size"], 8);
    assert!(result["vm"]["nics"][0]["mac"].as_str().unwrap().starts_with("02:"));
    assert_eq!(host.guests.starts(uuid()), 1);
    let loaded = act(&host, &drivers, "machine_load", json!({})).await.unwrap();
    assert_eq!(loaded, result["vm"]);
    let info = act(&host, &drivers, "machine_info", json!({ "types": "status" })).await.unwrap();
    assert_eq!(info["status"]["status"], "running");
    for _ in 0..2 {
        act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
        assert_eq!(host.pool.disks().len(), 0);
    }
    assert_eq!(host.content(), empty);
    let gone = act(&host, &drivers, "machine_load", json!({})).await.unwrap_err();
    assert_eq!(gone.code, "VmNotFound");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_wants_it_is_archived_before_it_is_destroyed() {
    let host = Host::new();
    let drivers = host.agent("boot-1").await;
    let wanted = create_params(json!({ "archive_on_delete": true }));
    run(&host.context(&drivers, &wanted), "machine_create", false).await.unwrap();
    host.faults.fail_nth("vms.archive", 1, Fault::before());
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap_err();
    assert_eq!(host.pool.disks().len(), 2, "nothing goes before it is archived");
    act(&host, &drivers, "machine_destroy", json!({})).await.unwrap();
    assert_eq!(host.pool.disks().len(), 0);
    assert_eq!(host.records.archived()[&uuid()].text("alias"), Some("one"));
    // Nobody asked for it.
    let other = "99999999-5b5c-4d4e-9f43-2a1f0e2b7c01";
    let plain = create_params(json!({ "uuid": other }));
    run(&host.context(&drivers, &plain), "machine_create", false).await.unwrap();
    act(&host, &drivers, "machine_destroy", json!({ "uuid": other })).await.unwrap();
    assert_eq!(host.records.archived().len(), 1);
}

/// Runs a task with an agent that dies in it: before step `step` is done (`done` false) or after
/// it, but before the journal knew; the next agent applies the step again and goes on. Returns
/// false when the task has no such step.
pub(super) async fn run_with_crash(
    host: &Host,
    kind: &str,
    params: &Params,
    step: usize,
    done: bool,
) -> bool {
    let handler = HANDLERS.iter().find(|handler| handler.kind().name == kind).unwrap();
    let plan = handler.plan(params).unwrap();
    if step >= plan.steps.len() {
        return false;
    }
    let first = host.context(&host.agent("boot-1").await, params);
    for step in &plan.steps[..step] {
        step.apply(&first).await.unwrap();
    }
    let result = bounded_result(first.result.lock().clone());
    let notes = first.notes.lock().clone();
    if done {
        plan.steps[step].apply(&first).await.unwrap();
    }
    let mut second = host.context(&host.agent("boot-1").await, params);
    second.task_id = first.task_id.clone();
    second.started_at = first.started_at;
    second.finish_with(result);
    *second.notes.lock() = notes;
    for step in &plan.steps[step..] {
        step.apply(&second).await.unwrap();
    }
    true
}

#[tokio::test(start_paused = true)]
async fn tasks_go_on_after_a_crash_at_any_step() {
    let kinds = [
        ("machine_create", "running", 1),
        ("machine_boot", "running", 2),
        ("machine_shutdown", "stopped", 1),
        ("machine_reboot", "running", 2),
        ("machine_kill", "stopped", 1),
        ("machine_destroy", "gone", 1),
    ];
    for (kind, state, starts) in kinds {
        for (step, done) in (0..16).flat_map(|step| [(step, false), (step, true)]) {
            let host = Host::new();
            let empty = host.content();
            if kind != "machine_create" {
                let drivers = one_vm(&host).await;
                if kind == "machine_boot" {
                    act(&host, &drivers, "machine_shutdown", json!({})).await.unwrap();
                }
            }
            let extra =
                if kind == "machine_kill" { json!({ "signal": "KILL" }) } else { json!({}) };
            let params =
                if kind == "machine_create" { create_params(extra) } else { params(extra) };
            if !run_with_crash(&host, kind, &params, step, done).await {
                break;
            }
            let drivers = host.agent("boot-1").await;
            let vm = drivers.vms.object(uuid(), true);
            let now = vm.as_ref().map_or("gone", |vm| vm["state"].as_str().unwrap());
            assert_eq!(now, state, "{kind}, step {step}, done {done}");
            assert_eq!(host.guests.starts(uuid()), starts, "{kind}, step {step}, done {done}");
            if state == "gone" {
                assert_eq!(host.content(), empty, "{kind}, step {step}, done {done}");
            }
        }
    }
}
