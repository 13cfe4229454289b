//! The engine under crashes, failures, limits and orders from outside, on simulated time.

mod journal;
mod orders;
mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::kv::{Kv as _, MemKv, MemOptions};
use muster_shared::wire::{Code, Intake, OPERATOR, Outcome, TaskResult, Ticket, Token};
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::machine_tests::{Host, IMAGE};
use super::record::{Origin, State};
use super::registry::{Faults, Moment, Registry};
use super::{
    Class, Engine, EngineParts, HANDLERS, Handler, Kind, Lock, OnFailure, Params, Plan, Queue,
    Refusal, Standing, Step, Submission, TaskContext, TaskFailure, image_ensure_present,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(100_000);

/// What scripted steps did, by task.
static DONE: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());

fn done(id: &str) -> Vec<String> {
    DONE.lock().get(id).cloned().unwrap_or_default()
}

/// Steps as the parameters script them: `{"steps": ["ok", "fail", …], "vm": n, "undo": true}`.
#[derive(Debug)]
struct Script {
    name: &'static str,
    preempts: bool,
    class: Class,
}

#[derive(Debug)]
struct ScriptStep {
    name: &'static str,
    what: String,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Handler for Script {
    fn kind(&self) -> Kind {
        let max_wait = Duration::from_secs(100);
        let queue = Queue { name: self.name, max_concurrent: 2, max_wait };
        Kind { name: self.name, class: self.class, queue, limit: Duration::from_secs(300) }
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn preempts(&self, _params: &Params) -> bool {
        self.preempts
    }

    fn preemptible(&self) -> bool {
        true
    }

    fn on_failure(&self, params: &Params) -> OnFailure {
        if params.get("undo") == Some(&Value::Bool(true)) {
            OnFailure::Undo
        } else {
            OnFailure::Keep
        }
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let steps = params.get("steps").and_then(Value::as_array).cloned().unwrap_or_default();
        if steps.first() == Some(&json!("unplannable")) {
            return Err(TaskFailure::bad_param("steps", "can't be planned"));
        }
        let vm = params.get("vm").and_then(Value::as_u64);
        let locks = vm.map(|n| Lock::Vm(VmUuid(Uuid::from_u128(n.into())))).into_iter().collect();
        let step = |(name, what): (&&'static str, &Value)| -> Box<dyn Step> {
            Box::new(ScriptStep { name, what: what.as_str().unwrap().to_owned() })
        };
        Ok(Plan { locks, steps: NAMES.iter().zip(&steps).map(step).collect() })
    }
}

impl ScriptStep {
    fn log(&self, ctx: &TaskContext, verb: &str) {
        let entry = format!("{verb}{}", self.name);
        DONE.lock().entry(ctx.task_id.to_string()).or_default().push(entry);
    }
}

#[async_trait]
impl Step for ScriptStep {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.log(ctx, "+");
        ctx.result.lock()[self.name] = json!(true);
        match self.what.as_str() {
            "fail" => return Err(TaskFailure::new("Scripted".into(), "as scripted")),
            "panic" => panic!("as scripted"),
            "hang" => std::future::pending().await,
            "part" => {
                let params = ctx.params["part"].as_object().cloned().unwrap_or_default();
                let part = ctx.subtasks.run(self.name, "script", params).await?;
                ctx.result.lock()["part"] = part;
            }
            "wait" => {
                let limit = tokio::time::sleep(Duration::from_secs(200));
                let limit = ctx.cancelled.run_until_cancelled(limit);
                ctx.hurried.run_until_cancelled(limit).await;
            }
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        Ok(())
    }

    async fn undo(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.log(ctx, "-");
        if self.what == "stays" {
            return Err(TaskFailure::new("Scripted".into(), "can't be undone"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(())
    }
}

static SCRIPTS: &[&dyn Handler] = &[
    &super::nop::Nop,
    &Script { name: "script", preempts: false, class: Class::Mutate },
    &Script { name: "urgent", preempts: true, class: Class::Mutate },
    &Script { name: "query", preempts: false, class: Class::Query },
];

/// A power cut at a step.
#[derive(Debug)]
pub(super) struct CutAt(pub(super) String);

impl Faults for CutAt {
    fn reached(&self, task: &str, step: &str, moment: Moment) -> bool {
        format!("{task}:{step}:{}", moment.name()) == self.0
    }
}

/// The journal and host that survive; engines come and go on them.
pub(super) struct Node {
    pub(super) host: Host,
    kv: Mutex<Arc<MemKv>>,
    handlers: &'static [&'static dyn Handler],
}

impl Node {
    pub(super) fn new(handlers: &'static [&'static dyn Handler]) -> Self {
        let kv = Mutex::new(Arc::new(MemKv::new(MemOptions::default())));
        Self { host: Host::new(), kv, handlers }
    }

    pub(super) async fn boot(&self, boot_id: &str, faults: Option<Arc<dyn Faults>>) -> Arc<Engine> {
        let kv = self.kv.lock().clone();
        let engine = Engine::open(EngineParts {
            clock: self.host.clock.clone(),
            entropy: Arc::new(SeededEntropy::new(7)),
            kv,
            drivers: self.host.agent(boot_id).await,
            registry: Registry::new(self.handlers),
            boot_id: boot_id.to_owned(),
            instance_id: Uuid::nil(),
            ceiling: Duration::from_secs(3600),
            faults,
        })
        .await
        .unwrap();
        engine.recover().await;
        engine
    }

    pub(super) async fn start(&self) -> Arc<Engine> {
        self.boot("boot-1", None).await
    }

    /// What was not acknowledged by the disk is gone; the old engine can do nothing more.
    pub(super) fn cut_power(&self) {
        let mut kv = self.kv.lock();
        let survivor = kv.crash(&SeededEntropy::new(3));
        *kv = Arc::new(survivor);
    }
}

pub(super) fn submission(id: &str, task: &str, params: Value) -> Submission {
    let Value::Object(params) = params else { panic!("an object is needed") };
    Submission {
        id: id.parse().unwrap(),
        req_id: "req".to_owned(),
        task: task.to_owned(),
        params,
        deadline_ms: None,
        ticket: None,
        volatile: false,
        origin: Origin::Coordinator,
        part_of: None,
    }
}

fn task(id: &str) -> TaskId {
    id.parse().unwrap()
}

pub(super) async fn ended(engine: &Arc<Engine>, id: &str) -> TaskResult {
    assert!(engine.wait(&task(id), LONG).await, "{id} never ends");
    engine.result(&task(id)).await.unwrap_or_else(|| panic!("{id} has no result"))
}

fn code(result: &TaskResult) -> &str {
    result.error.as_ref().map_or("", |error| error.code.as_str())
}

fn refused(outcome: Result<(), Refusal>) -> String {
    outcome.err().map_or_else(|| "accepted".to_owned(), |refusal| refusal.code.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_task_runs_once_however_often_it_is_dispatched() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let wanted = submission("once", "script", json!({ "steps": ["ok", "ok"] }));
    let (first, second) =
        tokio::join!(engine.submit(wanted.clone()), engine.submit(wanted.clone()));
    assert_eq!((first, second), (Ok(()), Ok(())));
    let result = ended(&engine, "once").await;
    assert_eq!(result.result, json!({ "a": true, "b": true }));
    engine.submit(wanted.clone()).await.unwrap();
    let other = submission("once", "script", json!({ "steps": ["ok"] }));
    assert_eq!(refused(engine.submit(other).await), "TaskIdReused");
    node.cut_power();
    let engine = node.start().await;
    engine.submit(wanted).await.unwrap();
    assert_eq!(ended(&engine, "once").await, result);
    assert_eq!(done("once"), ["+a", "+b"]);
}

#[track_caller]
fn check_log(id: &str, expected: &[&str]) {
    assert_eq!(done(id), expected, "{id}");
}

#[tokio::test(start_paused = true)]
async fn failures_end_with_their_reason_and_are_undone_when_wanted() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for (id, steps, undo, expected, log) in [
        ("keep", json!(["ok", "fail", "ok"]), false, "Scripted", vec!["+a", "+b"]),
        ("undo", json!(["ok", "fail", "ok"]), true, "Scripted", vec!["+a", "+b", "-b", "-a"]),
        ("panic", json!(["ok", "panic"]), true, "InternalError", vec!["+a", "+b", "-b", "-a"]),
        ("late", json!(["ok", "hang"]), true, "Timeout", vec!["+a", "+b", "-b", "-a"]),
        ("stays", json!(["stays", "fail"]), true, "Scripted", vec!["+a", "+b", "-b", "-a"]),
        ("bad", json!(["unplannable"]), true, "InvalidParameters", vec![]),
    ] {
        let params = json!({ "steps": steps, "undo": undo });
        engine.submit(submission(id, "script", params)).await.unwrap();
        let result = ended(&engine, id).await;
        assert_eq!((result.status, code(&result)), (Outcome::Failure, expected), "{id}");
        check_log(id, &log);
    }
    let stays = engine.result(&task("stays")).await.unwrap().error.unwrap();
    assert_eq!(stays.message, "as scripted; left behind: a: can't be undone");
    assert_eq!(
        refused(engine.submit(submission("x", "nonsense", json!({}))).await),
        "NotSupported"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cut_at_any_step_repeats_at_most_that_step() {
    for (step, moment, log) in [
        ("a", "before", vec!["+a", "+b", "+c"]),
        ("a", "after", vec!["+a", "+a", "+b", "+c"]),
        ("b", "before", vec!["+a", "+b", "+c"]),
        ("b", "after", vec!["+a", "+b", "+b", "+c"]),
        ("c", "after", vec!["+a", "+b", "+c", "+c"]),
    ] {
        let node = Node::new(SCRIPTS);
        let cut = CutAt(format!("script:{step}:{moment}"));
        let engine = node.boot("boot-1", Some(Arc::new(cut))).await;
        let id = format!("cut-{step}-{moment}");
        let params = json!({ "steps": ["ok", "ok", "ok"] });
        engine.submit(submission(&id, "script", params)).await.unwrap();
        assert!(!engine.wait(&task(&id), Duration::from_secs(10)).await);
        node.cut_power();
        let engine = node.start().await;
        assert_eq!(ended(&engine, &id).await.status, Outcome::Complete, "{id}");
        assert_eq!(done(&id), log, "{id}");
        assert_eq!(engine.record(&task(&id)).await.unwrap().attempt, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_in_the_middle_of_a_step_or_an_undo_goes_on_there() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let params = json!({ "steps": ["ok", "ok", "fail"], "undo": true });
    engine.submit(submission("mid", "script", params)).await.unwrap();
    // Each step and undo takes 10 ms: cut in the second step, then in the undo of the second.
    tokio::time::sleep(Duration::from_millis(15)).await;
    node.cut_power();
    let engine = node.start().await;
    tokio::time::sleep(Duration::from_millis(25)).await;
    node.cut_power();
    let engine_3 = node.start().await;
    drop(engine);
    let result = ended(&engine_3, "mid").await;
    assert_eq!(code(&result), "Scripted", "the reason survives");
    assert_eq!(done("mid"), ["+a", "+b", "+b", "+c", "-c", "-b", "-b", "-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_brings_the_agent_down_each_time_is_given_up() {
    let node = Node::new(SCRIPTS);
    let params = json!({ "steps": ["ok", "hang"], "undo": true });
    let engine = node.start().await;
    engine.submit(submission("loop", "script", params)).await.unwrap();
    for _ in 0..super::run::MAX_ATTEMPTS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        node.cut_power();
        drop(node.start().await);
    }
    let engine = node.start().await;
    let result = ended(&engine, "loop").await;
    assert_eq!(code(&result), "Interrupted");
    assert_eq!(done("loop").last().unwrap(), "-a");
}

#[tokio::test(start_paused = true)]
async fn a_task_of_an_unknown_kind_ends_after_an_upgrade() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let params = json!({ "steps": ["hang"] });
    engine.submit(submission("old", "script", params)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let later = Node { handlers: &[&super::nop::Nop], ..node };
    let engine = later.start().await;
    assert_eq!(code(&ended(&engine, "old").await), "Interrupted");
    assert_eq!(engine.unacked_ids(10), [task("old")]);
}

/// What is not begun twice: a script; a change of the node's own networks, which may be what brought
/// the agent down.
const ONCE: &[&str] = &["command_execute", "server_update_nics"];

/// Every registered kind: the power is cut at each point; afterwards the task ends as if nothing
/// had happened, and the host looks the same.
#[tokio::test(start_paused = true)]
async fn every_kind_survives_a_cut_at_each_of_its_points() {
    let journaled = |h: &&&dyn Handler| h.kind().class == Class::Mutate && h.lacks().is_none();
    for handler in HANDLERS.iter().filter(journaled) {
        let kind = handler.kind().name;
        let points = Registry::new(HANDLERS).fault_points(Some(kind));
        assert!(!points.is_empty(), "{kind} has no fault points");
        for wanted in variants(*handler) {
            let expected = run_kind(*handler, &wanted, None).await;
            for point in &points {
                let got = run_kind(*handler, &wanted, Some(point)).await;
                if ONCE.contains(&kind) && got.1 == "Interrupted" {
                    continue;
                }
                assert_eq!(got, expected, "{point}");
            }
        }
    }
}

/// A kind's example, and other parameters with which the same steps do something else.
fn variants(handler: &dyn Handler) -> Vec<Params> {
    let mut variants = vec![handler.example()];
    if handler.kind().name == "machine_create_image" {
        let mut incremental = handler.example();
        incremental.insert("incremental".to_owned(), json!(true));
        variants.push(incremental);
    }
    variants
}

/// Runs a kind, cut at `point`; returns how it ended and what the host then holds.
async fn run_kind(
    handler: &'static dyn Handler,
    wanted: &Params,
    point: Option<&str>,
) -> (Outcome, String, String) {
    let node = Node::new(HANDLERS);
    prepare(&node, handler.kind().name).await;
    let faults = point.map(|point| -> Arc<dyn Faults> { Arc::new(CutAt(point.to_owned())) });
    let mut engine = node.boot("boot-1", faults).await;
    let wanted = submission("kind", handler.kind().name, Value::Object(wanted.clone()));
    engine.submit(wanted.clone()).await.unwrap();
    if let Some(point) = point {
        let ended = engine.wait(&task("kind"), Duration::from_secs(1000)).await;
        if !ended {
            node.cut_power();
            engine = node.start().await;
        } else {
            // A step behind the one at which the example fails is never reached.
            let result = engine.result(&task("kind")).await.unwrap();
            assert_eq!(result.status, Outcome::Failure, "{point} was not reached");
        }
    }
    engine.submit(wanted).await.unwrap();
    let result = ended(&engine, "kind").await;
    let (content, images) = (node.host.content(), node.host.pool.images());
    (result.status, code(&result).to_owned(), format!("{content:?} {:?}", images.keys()))
}

/// Kinds about a VM or an image need one.
pub(super) async fn prepare(node: &Node, kind: &str) {
    if kind == "image_delete" {
        let ensure = image_ensure_present::ImageEnsurePresent.example();
        let engine = node.start().await;
        engine.submit(submission("image", "image_ensure_present", json!(ensure))).await.unwrap();
        assert_eq!(ended(&engine, "image").await.status, Outcome::Complete);
        assert_eq!(node.host.pool.images().len(), 1);
        node.cut_power();
        return;
    }
    if kind.starts_with("zfs_") {
        super::zfs::tests::prepare(&node.host.zfs);
        return;
    }
    if !kind.starts_with("machine_") || kind == "machine_create" || kind == "machine_import" {
        return;
    }
    let engine = node.start().await;
    let makes = if kind == "machine_import_end" { "machine_import" } else { "machine_create" };
    let mut create = HANDLERS.iter().find(|h| h.kind().name == makes).unwrap().example();
    if kind == "machine_create_image" {
        create.insert("disks".to_owned(), json!([{ "image_uuid": IMAGE, "size": 64 }]));
    }
    engine.submit(submission("vm", makes, Value::Object(create))).await.unwrap();
    assert_eq!(ended(&engine, "vm").await.status, Outcome::Complete);
    let first = match kind {
        "machine_boot" | "machine_create_image" => Some("machine_kill"),
        "machine_rollback_snapshot" | "machine_delete_snapshot" => Some("machine_create_snapshot"),
        _ => None,
    };
    if let Some(first) = first {
        let params = HANDLERS.iter().find(|h| h.kind().name == first).unwrap().example();
        engine.submit(submission("first", first, Value::Object(params))).await.unwrap();
        assert_eq!(ended(&engine, "first").await.status, Outcome::Complete);
    }
    node.cut_power();
}
