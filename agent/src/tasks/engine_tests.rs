//! The engine under crashes, failures, limits and orders from outside, on simulated time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::kv::{Kv as _, MemKv, MemOptions};
use muster_shared::wire::{Intake, Outcome, TaskResult, Ticket, Token};
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::machine_tests::Host;
use super::record::{Origin, State};
use super::registry::{Faults, Moment, Registry};
use super::{
    Class, Engine, EngineParts, HANDLERS, Handler, Kind, Lock, OnFailure, Params, Plan, Queue,
    Refusal, Step, Submission, TaskContext, TaskFailure,
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

#[async_trait]
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
            "fail" => return Err(TaskFailure::new("Scripted", "as scripted")),
            "panic" => panic!("as scripted"),
            "hang" => std::future::pending().await,
            "wait" => {
                let limit = tokio::time::sleep(Duration::from_secs(200));
                ctx.cancelled.run_until_cancelled(limit).await;
            }
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        Ok(())
    }

    async fn undo(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.log(ctx, "-");
        if self.what == "stays" {
            return Err(TaskFailure::new("Scripted", "can't be undone"));
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
struct CutAt(String);

impl Faults for CutAt {
    fn reached(&self, task: &str, step: &str, moment: Moment) -> bool {
        format!("{task}:{step}:{}", moment.name()) == self.0
    }
}

/// The journal and host that survive; engines come and go on them.
struct Node {
    host: Host,
    kv: Mutex<Arc<MemKv>>,
    handlers: &'static [&'static dyn Handler],
}

impl Node {
    fn new(handlers: &'static [&'static dyn Handler]) -> Self {
        let kv = Mutex::new(Arc::new(MemKv::new(MemOptions::default())));
        Self { host: Host::new(), kv, handlers }
    }

    async fn boot(&self, boot_id: &str, faults: Option<Arc<dyn Faults>>) -> Arc<Engine> {
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

    async fn start(&self) -> Arc<Engine> {
        self.boot("boot-1", None).await
    }

    /// What was not acknowledged by the disk is gone; the old engine can do nothing more.
    fn cut_power(&self) {
        let mut kv = self.kv.lock();
        let survivor = kv.crash(&SeededEntropy::new(3));
        *kv = Arc::new(survivor);
    }
}

fn submission(id: &str, task: &str, params: Value) -> Submission {
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
    }
}

fn task(id: &str) -> TaskId {
    id.parse().unwrap()
}

async fn ended(engine: &Arc<Engine>, id: &str) -> TaskResult {
    assert!(engine.wait(&task(id), LONG).await, "{id} never ends");
    engine.result(&task(id)).await.unwrap_or_else(|| panic!("{id} has no result"))
}

fn code(result: &TaskResult) -> &str {
    result.error.as_ref().map_or("", |error| error.code.as_str())
}

fn refused(outcome: Result<(), Refusal>) -> &'static str {
    outcome.err().map_or("accepted", |refusal| refusal.code)
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

#[tokio::test(start_paused = true)]
async fn cancel_stops_what_waits_and_what_runs() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for id in ["run", "wait"] {
        let params = json!({ "steps": ["ok", "wait"], "vm": 1, "undo": true });
        engine.submit(submission(id, "script", params)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.cancel(&task("wait")).unwrap();
    engine.cancel(&task("run")).unwrap();
    for id in ["run", "wait"] {
        assert_eq!(code(&ended(&engine, id).await), "Cancelled", "{id}");
        assert_eq!(engine.record(&task(id)).await.unwrap().state, State::Cancelled);
    }
    check_log("run", &["+a", "+b", "-b", "-a"]);
    check_log("wait", &[]);
    assert_eq!(engine.cancel(&task("none")).unwrap_err().code, "UnknownTask");
    engine.cancel(&task("run")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_urgent_task_shortens_the_wait_of_another_on_its_vm() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let waits = json!({ "steps": ["wait"], "vm": 1 });
    engine.submit(submission("slow", "script", waits)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let urgent = json!({ "steps": ["ok"], "vm": 1 });
    engine.submit(submission("urgent", "urgent", urgent)).await.unwrap();
    assert!(engine.wait(&task("urgent"), Duration::from_secs(1)).await);
    assert_eq!(ended(&engine, "slow").await.status, Outcome::Complete, "its outcome is its own");
    assert_eq!(ended(&engine, "urgent").await.status, Outcome::Complete);
}

#[tokio::test(start_paused = true)]
async fn queues_have_limits_of_places_depth_and_patience() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let hang = json!({ "steps": ["hang"] });
    for n in 0..2 + super::order::MAX_DEPTH {
        let id = format!("q{n}");
        engine.submit(submission(&id, "script", hang.clone())).await.unwrap();
    }
    assert_eq!(refused(engine.submit(submission("over", "script", hang)).await), "QueueFull");
    assert_eq!(engine.counts().active, 2);
    tokio::time::sleep(Duration::from_secs(101)).await;
    assert_eq!(code(&ended(&engine, "q2").await), "QueueTimeout");
    assert_eq!(code(&ended(&engine, "q0").await), "Timeout");
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_what_waits_and_ends_by_itself() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let mut returned = engine.returned();
    let params = json!({ "steps": ["wait"], "vm": 1 });
    for id in ["runs", "waits"] {
        engine.submit(submission(id, "script", params.clone())).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.drain("test", &task("token"), Duration::from_secs(500)).await.unwrap();
    assert_eq!(returned.recv().await.unwrap(), task("waits"));
    assert_eq!(engine.intake(), Intake::Draining);
    let more = submission("more", "script", params.clone());
    assert_eq!(refused(engine.submit(more.clone()).await), "Draining");
    engine.submit(submission("look", "nop", json!({}))).await.unwrap();
    ended(&engine, "runs").await;
    assert_eq!(engine.intake(), Intake::Drained);
    assert!(engine.record(&task("waits")).await.is_none(), "it left no trace");
    // The drain is durable, but not for ever.
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.intake(), Intake::Drained);
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(engine.intake(), Intake::Accepting);
    engine.submit(more).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_lasts_until_resume_or_the_next_boot() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    engine.pause("test").await.unwrap();
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.intake(), Intake::Paused);
    engine.resume().await.unwrap();
    assert_eq!(engine.intake(), Intake::Accepting);
    engine.pause("test").await.unwrap();
    node.cut_power();
    assert_eq!(node.boot("boot-2", None).await.intake(), Intake::Accepting);
}

#[tokio::test(start_paused = true)]
async fn an_older_ticket_is_refused_even_after_a_restart() {
    let node = Node::new(SCRIPTS);
    let with = |id: &str, epoch, counter| {
        let token = Token { epoch, counter };
        let ticket = Some(Ticket { resource: "vm/1".to_owned(), token });
        Submission { ticket, ..submission(id, "script", json!({})) }
    };
    let engine = node.start().await;
    engine.submit(with("t1", 2, 5)).await.unwrap();
    assert_eq!(refused(engine.submit(with("t2", 2, 4)).await), "StaleTicket");
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(refused(engine.submit(with("t3", 1, 9)).await), "StaleTicket");
    engine.submit(with("t4", 2, 5)).await.unwrap();
    engine.submit(with("t5", 3, 0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_query_under_a_ticket_makes_older_ones_stale_too() {
    let node = Node::new(SCRIPTS);
    let with = |id: &str, task: &str, counter| {
        let ticket =
            Some(Ticket { resource: "vm/1".to_owned(), token: Token { epoch: 1, counter } });
        Submission { ticket, volatile: true, ..submission(id, task, json!({})) }
    };
    let engine = node.start().await;
    engine.submit(with("q1", "query", 5)).await.unwrap();
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(refused(engine.submit(with("t1", "script", 4)).await), "StaleTicket");
    assert_eq!(refused(engine.submit(with("q2", "query", 4)).await), "StaleTicket");
}

#[tokio::test(start_paused = true)]
async fn the_tokens_that_are_kept_are_bounded_also_on_disk() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for counter in 0..10_010 {
        let resource = format!("vm/{counter}");
        let ticket = Some(Ticket { resource, token: Token { epoch: 1, counter } });
        let id = format!("q{counter}");
        let wanted = Submission { ticket, volatile: true, ..submission(&id, "query", json!({})) };
        engine.submit(wanted).await.unwrap();
        ended(&engine, &id).await;
    }
    let kv = node.kv.lock().clone();
    let stored = kv.scan(b"ticket/", None, 20_000).await.unwrap();
    assert_eq!(stored.len(), 10_000);
    assert!(stored.iter().all(|(key, _)| key.as_ref() != b"ticket/vm/9"));
}

#[tokio::test(start_paused = true)]
async fn results_are_kept_until_acknowledged_and_bound_the_journal() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for id in ["r1", "r2"] {
        engine.submit(submission(id, "script", json!({ "steps": ["ok"] }))).await.unwrap();
        ended(&engine, id).await;
    }
    engine.acknowledge(&task("r1"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.unacked_ids(10), [task("r2")]);
    {
        let mut shared = engine.shared.lock();
        for n in 0..10_000 {
            shared.unacked.insert((n, format!("many{n}").parse().unwrap()));
        }
    }
    assert_eq!(refused(engine.submit(submission("r3", "script", json!({}))).await), "JournalFull");
    engine.submit(submission("query", "nop", json!({}))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_tasks_are_forgotten_but_never_unacknowledged_ones() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let count = super::house::KEPT_TASKS + 3;
    for n in 0..count {
        let wanted = Submission {
            origin: if n == 0 { Origin::Coordinator } else { Origin::Local },
            ..submission(&format!("n{n}"), "script", json!({ "n": n }))
        };
        engine.submit(wanted).await.unwrap();
        ended(&engine, &format!("n{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(3 * 24 * 3600)).await;
    assert!(engine.record(&task("n1")).await.is_some(), "younger than seven days");
    tokio::time::sleep(Duration::from_secs(5 * 24 * 3600)).await;
    for (id, kept) in [("n0", true), ("n1", false), ("n2", false), ("n3", true)] {
        assert_eq!(engine.record(&task(id)).await.is_some(), kept, "{id}");
    }
    let left = node.kv.lock().contents().iter().filter(|(k, _)| k.starts_with(b"params/")).count();
    assert_eq!(left, super::house::KEPT_TASKS + 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_device_refuses_and_a_broken_one_ends_the_agent() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let kv = node.kv.lock().clone();
    kv.set_full(true);
    let wanted = submission("full", "script", json!({ "steps": ["ok"] }));
    assert_eq!(refused(engine.submit(wanted.clone()).await), "StoreFull");
    kv.set_full(false);
    engine.submit(wanted).await.unwrap();
    kv.set_full(true);
    assert!(!engine.wait(&task("full"), Duration::from_secs(60)).await, "it waits for room");
    kv.set_full(false);
    assert_eq!(ended(&engine, "full").await.status, Outcome::Complete);
    kv.break_device();
    let broken = engine.broken();
    assert_eq!(refused(engine.submit(submission("b", "script", json!({}))).await), "JournalFull");
    assert!(broken.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn large_parameters_and_results_survive() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let text = "x".repeat(900_000);
    let params = json!({ "steps": ["ok", "hang"], "text": text, "uuid": Uuid::nil() });
    engine.submit(submission("large", "script", params.clone())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let engine = node.start().await;
    let record = engine.record(&task("large")).await.unwrap();
    assert_eq!(Value::Object(record.params.clone()), params);
    assert_eq!(record.result["a"], true, "the result was journaled with its step");
}

/// Every registered kind: the power is cut at each point; afterwards the task ends as if nothing
/// had happened, and the host looks the same.
#[tokio::test(start_paused = true)]
async fn every_kind_survives_a_cut_at_each_of_its_points() {
    let journaled = |h: &&&dyn Handler| h.kind().class == Class::Mutate && h.lacks().is_none();
    for handler in HANDLERS.iter().filter(journaled) {
        let kind = handler.kind().name;
        let expected = run_kind(*handler, None).await;
        let points = Registry::new(HANDLERS).fault_points(Some(kind));
        assert!(!points.is_empty(), "{kind} has no fault points");
        for point in points {
            let got = run_kind(*handler, Some(&point)).await;
            if kind == "command_execute" && got.1 == "Interrupted" {
                // A script is never started twice.
                continue;
            }
            assert_eq!(got, expected, "{point}");
        }
    }
}

/// Runs a kind's example, cut at `point`; returns how it ended and what the host then holds.
async fn run_kind(handler: &'static dyn Handler, point: Option<&str>) -> (Outcome, String, String) {
    let node = Node::new(HANDLERS);
    prepare(&node, handler.kind().name).await;
    let faults = point.map(|point| -> Arc<dyn Faults> { Arc::new(CutAt(point.to_owned())) });
    let mut engine = node.boot("boot-1", faults).await;
    let wanted = submission("kind", handler.kind().name, Value::Object(handler.example()));
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
    (result.status, code(&result).to_owned(), format!("{:?}", node.host.content()))
}

/// Kinds about a VM need one.
async fn prepare(node: &Node, kind: &str) {
    if !kind.starts_with("machine_") || kind == "machine_create" {
        return;
    }
    let engine = node.start().await;
    let create = HANDLERS.iter().find(|h| h.kind().name == "machine_create").unwrap().example();
    engine.submit(submission("vm", "machine_create", Value::Object(create))).await.unwrap();
    assert_eq!(ended(&engine, "vm").await.status, Outcome::Complete);
    let first = match kind {
        "machine_boot" => Some("machine_kill"),
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
