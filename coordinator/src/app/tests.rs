//! The application with a fake agent on an in-memory connection, on paused time.

mod allocate;
mod bounds;
mod creates;
mod decisions;
mod dropped;
mod events;
mod examples;
mod jobs;
mod packages;
mod pair;
mod peers;
mod records;
mod roster;
mod sessions;
mod slow_blobs;
pub(crate) mod sound;
mod tasks;
mod tickets;
mod unsure;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::api::task::TaskStatus;
use muster_shared::clock::{Clock as _, TokioClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::kv::{MemKv, MemOptions};
use muster_shared::link::{Connection, Frame, memory};
use muster_shared::threads::SameRuntime;
use muster_shared::wire::status::{Report, Status, VmReport, delta};
use muster_shared::wire::{
    Accepted, Dispatch, Error as WireError, FromAgent, FromCoordinator, Heartbeat, Hello, Intake,
    Outcome, Sysinfo, TaskResult, Welcome, decode, encode,
};
use object_store::memory::InMemory;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::tasks::TaskFilter;
use super::{App, AppConfig, AppError, Caller, Context, Expected, Parts};
use crate::store::{KvStore, SharedStore};

const SOON: Duration = Duration::from_secs(5);

fn caller() -> &'static Caller {
    static CALLER: LazyLock<Caller> = LazyLock::new(|| Caller::new("r"));
    &CALLER
}

fn server(n: u128) -> ServerUuid {
    ServerUuid(Uuid::from_u128(n))
}

fn vm(n: u128) -> VmUuid {
    VmUuid(Uuid::from_u128(n))
}

/// What an agent says first. Without a list of tasks it is taken to have them all.
pub(crate) fn hello(server: ServerUuid) -> Hello {
    Hello {
        server_uuid: server,
        boot_id: "b".to_owned(),
        agent_instance_id: Uuid::nil(),
        version: "1".to_owned(),
        capabilities: vec![],
        sysinfo_hash: "h".to_owned(),
        running_task_ids: vec![],
        unacked_result_ids: vec![],
        intake: Intake::Accepting,
        cluster: None,
    }
}

/// One coordinator's disk, which its restarts share.
#[derive(Clone)]
struct Disk {
    kv: Arc<MemKv>,
    blobs: Arc<InMemory>,
    clock: Arc<TokioClock>,
}

impl Disk {
    fn new() -> Self {
        let origin = "2026-01-01T00:00:00Z".parse().unwrap();
        Self {
            kv: Arc::new(MemKv::new(MemOptions::default())),
            blobs: Arc::new(InMemory::new()),
            clock: Arc::new(TokioClock::new(origin)),
        }
    }

    async fn start(&self) -> Arc<App> {
        self.start_with(AppConfig::default()).await
    }

    async fn start_with(&self, config: AppConfig) -> Arc<App> {
        let store = self.store().await;
        self.start_on(&store, "a", 7, config).await
    }

    /// A store that several applications may share.
    async fn store(&self) -> SharedStore {
        let tracker = TaskTracker::new();
        Arc::new(KvStore::open(self.kv.clone(), self.clock.clone(), &tracker).await.unwrap())
    }

    async fn start_on(
        &self,
        store: &SharedStore,
        instance: &str,
        seed: u64,
        config: AppConfig,
    ) -> Arc<App> {
        crate::start(config, self.parts(store, instance, seed)).await.unwrap()
    }

    fn parts(&self, store: &SharedStore, instance: &str, seed: u64) -> Parts {
        Parts {
            clock: self.clock.clone(),
            entropy: Arc::new(SeededEntropy::new(seed)),
            threads: Arc::new(SameRuntime),
            store: Arc::clone(store),
            blobs: self.blobs.clone(),
            instance: instance.to_owned(),
        }
    }

    /// As [`Disk::start_on`], with the default configuration and a seed of the instance's own.
    async fn join(&self, store: &SharedStore, instance: &str) -> Arc<App> {
        let seed = u64::from(instance.as_bytes()[0]);
        self.start_on(store, instance, seed, AppConfig::default()).await
    }
}

/// A coordinator on stores in memory.
pub(crate) async fn start() -> Arc<App> {
    Disk::new().start().await
}

/// What one service alone is built on.
pub(crate) async fn context() -> Arc<Context> {
    let disk = Disk::new();
    let store = disk.store().await;
    Context::new(AppConfig::default(), disk.parts(&store, "a", 7))
}

/// The agent's end of a connection.
struct Agent {
    connection: Connection,
    server: ServerUuid,
    welcome: Welcome,
}

impl Agent {
    /// Connects and registers.
    async fn connect(app: &Arc<App>, server: ServerUuid) -> Self {
        let mut agent = Self::connect_only(app, server).await;
        let known = !agent.welcome.sysinfo_hash.is_empty();
        if !known {
            agent
                .send(Sysinfo {
                    sysinfo: Some(sysinfo(server).into()),
                    agents: None,
                    hash: "h".to_owned(),
                })
                .await;
            // A server that registers is asked for a whole report.
            assert!(matches!(agent.next().await, FromCoordinator::Status(_)));
        }
        agent.report(true, &BTreeMap::new(), &BTreeMap::new()).await;
        eventually(|| {
            app.fleet.with(server, |e| e.figures.exact("memory_total_bytes")).flatten().is_some()
        })
        .await;
        eventually(|| app.servers.get(server, super::fields::Extras::default()).is_ok()).await;
        agent
    }

    async fn connect_only(app: &Arc<App>, server: ServerUuid) -> Self {
        Self::connect_as(app, hello(server)).await
    }

    async fn connect_as(app: &Arc<App>, hello: Hello) -> Self {
        let server = hello.server_uuid;
        let (ours, theirs) = memory::pair();
        app.agents().accept(theirs);
        let welcome = Welcome {
            instance: String::new(),
            capabilities: vec![],
            members: vec![],
            open_task_ids: vec![],
            sysinfo_hash: String::new(),
            cluster: None,
        };
        let mut agent = Self { connection: ours, server, welcome };
        agent.send(hello).await;
        let FromCoordinator::Welcome(welcome) = agent.next().await else { panic!("no welcome") };
        agent.welcome = welcome;
        agent
    }

    async fn send(&mut self, message: impl Into<FromAgent>) {
        self.connection.sink.send(Frame::Text(encode(&message.into()))).await.unwrap();
    }

    async fn next(&mut self) -> FromCoordinator {
        let frame = tokio::time::timeout(SOON, self.connection.stream.next()).await;
        let Ok(Ok(Some(Frame::Text(text)))) = frame else { panic!("no frame: {frame:?}") };
        decode(&text).unwrap()
    }

    async fn dispatched(&mut self) -> Dispatch {
        loop {
            if let FromCoordinator::Dispatch(dispatch) = self.next().await {
                return *dispatch;
            }
        }
    }

    async fn acknowledged(&mut self, id: &TaskId) {
        loop {
            if let FromCoordinator::Acknowledge(ack) = self.next().await {
                assert_eq!(ack.id, *id);
                return;
            }
        }
    }

    async fn refuse(&mut self, id: &TaskId, code: &str) {
        let id = Some(id.to_string());
        self.send(WireError { id, code: code.into(), message: code.to_owned() }).await;
    }

    async fn finish(&mut self, id: &TaskId, result: Value) {
        self.send(Accepted { id: id.clone(), intake: None }).await;
        let ended = TaskResult {
            id: id.clone(),
            status: Outcome::Complete,
            result,
            error: None,
            finished_at: String::new(),
        };
        self.send(ended).await;
    }

    async fn report(
        &mut self,
        full: bool,
        old: &BTreeMap<VmUuid, VmReport>,
        new: &BTreeMap<VmUuid, VmReport>,
    ) {
        let mut report = if full { Report::whole(new) } else { delta(old, new) };
        let posted =
            json!({ "availrmem_bytes": 8u64 << 30, "arcsize_bytes": 0, "total_bytes": 8u64 << 30 });
        report.meminfo = serde_json::from_value(posted).ok();
        report.diskinfo = serde_json::from_value(json!({ "pool_size_bytes": 500u64 << 30 })).ok();
        self.send(Box::new(Status { report: Some(report) })).await;
    }
}

fn sysinfo(server: ServerUuid) -> Object {
    let value = json!({
        "UUID": server, "Hostname": format!("cn-{server}"), "Live Image": "20260101T000000Z",
        "System Type": "Linux", "Boot Time": "1700000000", "SDC Version": "7.0", "Setup": true,
        "CPU Total Cores": 8, "CPU Online Count": 8, "MiB of Memory": "8192",
        "VM Capable": true, "HVM API": true, "Bhyve Capable": true,
        "Network Interfaces": { "eth0": { "Link Status": "up", "NIC Names": ["admin"] } },
    });
    Object::of(&value)
}

fn a_vm(uuid: VmUuid, state: &str) -> VmReport {
    let value = json!({
        "uuid": uuid, "owner_uuid": Uuid::nil(), "brand": "kvm", "max_physical_memory": 1280,
        "cpu_cap": 100, "quota": 1, "state": state, "zone_state": state,
        "last_modified": "2026-01-01T00:00:00.000Z", "index": { "alias": "x" },
    });
    serde_json::from_value(value).unwrap()
}

fn body(uuid: VmUuid) -> Object {
    let image = Uuid::from_u128(99);
    let value = json!({ "uuid": uuid, "image_uuid": image, "ram": 512, "quota": 1 });
    Object::of(&value)
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never held");
}

async fn nop(app: &Arc<App>) -> TaskId {
    app.tasks.create(server(1), "nop", Object::new(), caller()).await.unwrap()
}

async fn ended(app: &Arc<App>, id: &TaskId) -> Value {
    json!(app.tasks.wait(id, Duration::from_secs(60)).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_refused_vm_goes_to_another_server_under_the_same_task() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agents = [Agent::connect(&app, server(1)).await, Agent::connect(&app, server(2)).await];
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    assert!(matches!(
        app.placement.create(&body(vm(5)), caller()).await,
        Err(AppError::VmExists(_))
    ));
    let first = usize::from(placed.server_uuid == agents[1].server);
    let dispatch = agents[first].dispatched().await;
    assert_eq!(dispatch.params["uuid"], json!(vm(5)));
    agents[first].refuse(&placed.id, "Draining").await;
    let other = 1 - first;
    assert_eq!(agents[other].dispatched().await.id, placed.id);
    let shown = app.tasks.get(&placed.id).await.unwrap();
    assert_eq!(shown.server_uuid, agents[other].server);
    assert_eq!(shown.refusals[0].code.as_str(), "Draining");
    app.shutdown().await;
    drop(agents);

    // Killed here, the operation goes on where it was.
    let app = disk.start().await;
    assert!(matches!(
        app.placement.create(&body(vm(5)), caller()).await,
        Err(AppError::VmExists(_))
    ));
    let mut agent = Agent::connect(&app, shown.server_uuid).await;
    assert_eq!(agent.welcome.open_task_ids, std::slice::from_ref(&placed.id));
    agent.finish(&placed.id, json!({ "vm": a_vm(vm(5), "running").vm })).await;
    assert_eq!(ended(&app, &placed.id).await["status"], "complete");
    assert_eq!(app.fleet.vm_get(vm(5)).unwrap().vm.state.as_deref(), Some("running"));
    assert!(matches!(
        app.placement.create(&body(vm(5)), caller()).await,
        Err(AppError::VmExists(_))
    ));
    app.shutdown().await;
}

/// The report comes later, and an older word does not undo it.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_task_shows_what_became_of_its_vm() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let mut running = a_vm(vm(5), "running");
    running.index.image_uuid = Some(Uuid::from_u128(99).to_string());
    agent.report(true, &BTreeMap::new(), &BTreeMap::from([(vm(5), running)])).await;
    eventually(|| app.fleet.vm_get(vm(5)).is_ok()).await;
    for (state, at, shown) in [
        ("stopped", "2026-01-01T00:00:01.000Z", "stopped"),
        ("running", "2026-01-01T00:00:00.500Z", "stopped"),
        ("running", "2026-01-01T00:00:02.000Z", "running"),
    ] {
        let params = Object::from_iter([("uuid", json!(vm(5)))]);
        let id = app.tasks.create(server(1), "machine_reboot", params, caller()).await.unwrap();
        agent.dispatched().await;
        let mut reported = json!(a_vm(vm(5), state).vm);
        (reported["last_modified"], reported["alias"]) = (json!(at), json!("x"));
        agent.finish(&id, json!({ "vm": reported })).await;
        assert_eq!(ended(&app, &id).await["status"], "complete");
        let vm = app.fleet.vm_get(vm(5)).unwrap();
        assert_eq!(vm.vm.state.as_deref(), Some(shown));
        assert_eq!(vm.index.alias.as_deref(), Some("x"));
        assert_eq!(vm.index.image_uuid, Some(Uuid::from_u128(99).to_string()));
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_refused_everywhere_fails_with_the_reason_and_can_be_tried_again() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    agent.dispatched().await;
    agent.refuse(&placed.id, "HvmNotSupported").await;
    assert_eq!(ended(&app, &placed.id).await["error"]["code"], "HvmNotSupported");
    app.placement.create(&body(vm(5)), caller()).await.unwrap();
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_promised_is_not_promised_twice() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    // 8 GiB less the reservation of 15 % hold four VMs of 512 + 1024 MiB.
    let bodies: Vec<_> = (10..20).map(|n| body(vm(n))).collect();
    let placing = bodies.iter().map(|body| app.placement.create(body, caller()));
    let results = futures_util::future::join_all(placing).await;
    let placed = results.iter().filter(|r| r.is_ok()).count();
    assert_eq!(placed, 4, "{results:?}");
    let refused = results.into_iter().find_map(Result::err);
    assert!(matches!(refused, Some(AppError::NoServer { .. })), "{refused:?}");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_destroyed_before_any_report_shows_it_takes_no_room() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    // More than fit at a time.
    for n in 10..20 {
        let placed = app.placement.create(&body(vm(n)), caller()).await.unwrap();
        agent.finish(&placed.id, Value::Null).await;
        ended(&app, &placed.id).await;
        let params = Object::from_iter([("uuid", json!(vm(n)))]);
        let id = app.tasks.create(server(1), "machine_destroy", params, caller()).await.unwrap();
        agent.finish(&id, Value::Null).await;
        ended(&app, &id).await;
        assert_eq!(app.ctx.parts.store.get(&super::keys::place(vm(n))).await.unwrap(), None);
    }
    app.placement.create(&body(vm(10)), caller()).await.unwrap();
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_query_is_answered_by_its_result_only() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let query = |timeout| crate::agents::Query {
        server: server(1),
        task: "machine_load",
        label: None,
        params: Object::new(),
        req_id: &caller().req_id,
        timeout,
    };
    let answer = async {
        let dispatch = agent.dispatched().await;
        assert!(dispatch.volatile);
        agent.finish(&dispatch.id, json!({ "uuid": "u" })).await;
    };
    let (loaded, ()) = tokio::join!(app.nodes.query(caller(), query(SOON)), answer);
    assert_eq!(loaded.unwrap()["uuid"], "u");
    let late = app.nodes.query(caller(), query(Duration::from_millis(10))).await;
    let text = late.unwrap_err().to_string();
    assert_eq!(text, "Time-out reached waiting for machine_load request to return");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn protocol_errors_are_answered_and_the_connection_stays() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    for (text, code) in [
        ("{", "Malformed"),
        ("{\"kind\":\"x\"}", "UnknownKind"),
        ("{\"kind\":\"accepted\"}", "Malformed"),
    ] {
        agent.connection.sink.send(Frame::Text(text.to_owned())).await.unwrap();
        let FromCoordinator::Error(error) = agent.next().await else { panic!("no error") };
        assert_eq!(error.code, code, "{text}");
    }
    let id = nop(&app).await;
    assert_eq!(agent.dispatched().await.id, id);
    app.shutdown().await;
}
