//! Setups of a simulated host with a pool.

use std::sync::Arc;

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine_tests::{Host, run};
use super::server_setup::ServerSetup;
use super::{Handler as _, Params, TaskFailure};
use crate::drivers::faults::Fault;
use crate::drivers::host::HostAction;
use crate::drivers::host::refuse::RefuseHost;
use crate::drivers::host::sim::{HostLog, SimHost};
use crate::drivers::node::Document;
use crate::node::Drivers;

struct Bench {
    host: Host,
    drivers: Arc<Drivers>,
    log: HostLog,
}

impl Bench {
    async fn new() -> Self {
        let (host, log) = (Host::new(), HostLog::default());
        let mut drivers = Arc::into_inner(host.agent("boot-1").await).unwrap();
        drivers.host = Arc::new(SimHost::new(log.clone(), host.faults.clone()));
        Self { host, drivers: Arc::new(drivers), log }
    }

    async fn set_up(&self, params: &Value) -> Result<Value, TaskFailure> {
        run(&self.host.context(&self.drivers, &object(params)), "server_setup", false).await
    }

    async fn record(&self) -> Value {
        self.drivers.node.read(Document::Setup).await.unwrap().unwrap_or_default()
    }

    /// The pools that were made, with whether they may have been begun before.
    fn made(&self) -> Vec<(Value, bool)> {
        let made = |action: &HostAction| match action {
            HostAction::CreatePool { plan, again, .. } => Some((json!(plan), *again)),
            _ => None,
        };
        self.log.actions().iter().filter_map(made).collect()
    }
}

fn object(params: &Value) -> Params {
    params.as_object().cloned().unwrap_or_default()
}

fn mirrored() -> Value {
    json!({ "disk_layout": "mirror", "reboot": false })
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_shows_the_plan_and_changes_nothing() {
    let bench = Bench::new().await;
    let shown = bench.set_up(&json!({ "dry_run": true, "disk_exclude": "SIM3" })).await.unwrap();
    assert_eq!(shown["plan"]["layout"]["vdevs"][0]["type"], "raidz1", "{shown}");
    assert_eq!(shown["plan"]["layout"]["capacity"], 8000);
    let command = shown["command"].as_str().unwrap();
    for text in ["zpool create -o ashift=12 ", " raidz1 /dev/disk/by-id/wwn-sim0 "] {
        assert!(command.contains(text) && !command.contains("sim3"), "{command}");
    }
    assert_eq!((bench.record().await, bench.log.actions()), (Value::Null, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_setup_makes_the_pool_that_it_planned() {
    let bench = Bench::new().await;
    let result = bench.set_up(&mirrored()).await.unwrap();
    let record = bench.record().await;
    assert_eq!(record["seen_states"], json!(["preflight", "layout", "zpool_created", "complete"]));
    assert_eq!(result["setup_state"], record);
    assert_eq!(bench.made(), [(record["pool_plan"].clone(), false)]);
    assert_eq!(bench.set_up(&mirrored()).await.unwrap_err().code, Code::AlreadySetup);
    // To go on is to find everything done.
    let again = json!({ "disk_layout": "raidz1", "reboot": false, "force_resume": true });
    bench.set_up(&again).await.unwrap();
    assert_eq!(
        bench.record().await["pool_plan"],
        record["pool_plan"],
        "what is made stays planned"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_finished_as_it_was_planned() {
    let bench = Bench::new().await;
    bench.host.faults.fail_nth("host.act", 1, Fault::after());
    bench.set_up(&mirrored()).await.unwrap_err();
    let begun = bench.record().await;
    assert_eq!((&begun["current_state"], &begun["pool_begun"]), (&json!("layout"), &json!(true)));
    let other = json!({ "disk_layout": "raidz1", "reboot": false, "force_resume": true });
    bench.set_up(&other).await.unwrap();
    let plan = begun["pool_plan"].clone();
    assert_eq!(bench.made(), [(plan.clone(), false), (plan, true)]);
    assert_eq!(bench.record().await["complete"], true);
}

#[tokio::test(start_paused = true)]
async fn a_plan_of_which_nothing_is_begun_follows_the_wishes() {
    let bench = Bench::new().await;
    // Reading the disks fails once the setup has begun.
    bench.host.faults.fail_nth("host.disks", 2, Fault::before());
    bench.set_up(&mirrored()).await.unwrap_err();
    assert_eq!(bench.record().await["current_state"], "preflight");
    let other = json!({ "disk_layout": "raidz1", "reboot": false });
    bench.set_up(&other).await.unwrap();
    let plan = &bench.record().await["pool_plan"];
    assert_eq!(plan["layout"]["vdevs"][0]["type"], "raidz1");
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_leaves_one_pool_of_one_plan() {
    let plan = ServerSetup.plan(&object(&mirrored())).unwrap();
    for (step, done) in (0..plan.steps.len()).flat_map(|step| [(step, false), (step, true)]) {
        let bench = Bench::new().await;
        let context = || bench.host.context(&bench.drivers, &object(&mirrored()));
        let first = context();
        for step in &plan.steps[..step + usize::from(done)] {
            step.apply(&first).await.unwrap();
        }
        let next = context();
        for step in &plan.steps[step..] {
            step.apply(&next).await.unwrap();
        }
        let made = bench.made();
        assert!(!made.is_empty() && made.iter().all(|(plan, _)| *plan == made[0].0), "{made:#?}");
        assert_eq!(bench.record().await["complete"], true);
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_set_up_is_refused_before_anything_is_done() {
    let bench = Bench::new().await;
    for (params, named) in [
        (json!({ "disk_spares": 4 }), "too many spares (4)"),
        (json!({ "disk_layout": "single", "disk_spares": 1 }), "single disk pool"),
        (json!({ "disk_exclude": "sim0,sim1,sim2,sim3" }), "no primary storage disks"),
        (
            json!({ "disk_layout": "single", "min_disk_to_ram": 1_000_000 }),
            "Cannot setup: system has",
        ),
    ] {
        let refused = bench.set_up(&params).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidParameters, "{params}");
        assert!(refused.message.contains(named), "{refused}");
    }
    assert_eq!((bench.record().await, bench.log.actions()), (Value::Null, Vec::new()));
    let mut drivers = Arc::into_inner(bench.host.agent("boot-1").await).unwrap();
    drivers.host = Arc::new(RefuseHost);
    let context = bench.host.context(&Arc::new(drivers), &object(&mirrored()));
    let refused = run(&context, "server_setup", false).await.unwrap_err();
    assert_eq!(refused.code, Code::HostActionsDisabled);
}
