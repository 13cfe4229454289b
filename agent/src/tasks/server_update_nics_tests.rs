//! Tags on a simulated host: what is tried out, what is taken back, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine_tests::{Host, one_vm, run};
use super::{Params, TaskFailure};
use crate::drivers::faults::Fault;
use crate::drivers::host::refuse::RefuseHost;
use crate::drivers::host::sim::{HostLog, SimHost};
use crate::drivers::host::{HostAction, NicBridge};
use crate::drivers::settings::NicTag;
use crate::node::{Drivers, bridges};

/// Of the simulated host's one interface.
const MAC: &str = "02:00:00:00:00:00";
const KIND: &str = "server_update_nics";
/// More attempts to reach a coordinator than one change makes.
const ATTEMPTS: u64 = 60;

struct Bench {
    host: Host,
    log: HostLog,
    drivers: Arc<Drivers>,
}

impl Bench {
    /// With a VM that is in the network `admin`.
    async fn new() -> Self {
        let (host, log) = (Host::new(), HostLog::default());
        let mut drivers = Arc::into_inner(one_vm(&host).await).unwrap();
        drivers.host = Arc::new(SimHost::new(log.clone(), host.faults.clone()));
        Self { host, log, drivers: Arc::new(drivers) }
    }

    async fn set(&self, tags: &[&str]) -> Result<Value, TaskFailure> {
        run(&self.host.context(&self.drivers, &params(tags)), KIND, true).await
    }

    async fn tags(&self) -> Vec<(String, bool)> {
        let tags = self.drivers.settings.nic_tags().await.unwrap();
        tags.into_iter().map(|tag| (tag.name, tag.bridge)).collect()
    }

    fn bridges(&self) -> Vec<String> {
        self.log.bridges().into_iter().flat_map(|bridge| bridge.tags).collect()
    }
}

fn params(tags: &[&str]) -> Params {
    let nics = json!([{ "mac": MAC, "nic_tags_provided": tags }]);
    Params::from_iter([("nics".to_owned(), nics)])
}

fn has(name: &str, bridge: bool) -> (String, bool) {
    (name.to_owned(), bridge)
}

#[tokio::test(start_paused = true)]
async fn tags_come_and_go_and_a_used_one_stays() {
    let bench = Bench::new().await;
    // It is the admin tag's already, without anybody having said so.
    assert!(bench.set(&["admin"]).await.unwrap()["sysinfo"].is_object());
    assert_eq!((bench.tags().await, bench.log.actions()), (vec![], vec![]));
    bench.set(&["admin", "x", "y"]).await.unwrap();
    assert_eq!(bench.tags().await, [has("admin", false), has("x", true), has("y", true)]);
    let expected = NicBridge { nic: MAC.to_owned(), tags: vec!["x".to_owned(), "y".to_owned()] };
    assert_eq!(bench.log.bridges(), [expected]);
    bench.set(&["admin", "y"]).await.unwrap();
    bench.set(&["admin", "y"]).await.unwrap();
    assert_eq!((bench.bridges(), bench.log.actions().len()), (vec!["y".to_owned()], 2));
    let refused = bench.set(&["y"]).await.unwrap_err();
    assert_eq!(refused.code, Code::NicTagInUse);
    assert!(refused.message.contains("NIC tag admin is used by VM"), "{refused:?}");
    let nics = json!([{ "mac": "02:99:99:99:99:99", "nic_tags_provided": [] }]);
    let unknown = Params::from_iter([("nics".to_owned(), nics)]);
    let refused = run(&bench.host.context(&bench.drivers, &unknown), KIND, true).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, Code::InvalidParameters);
    assert!(refused.message.contains("02:99:99:99:99:99"), "{refused:?}");
    assert_eq!(bench.tags().await, [has("admin", false), has("y", true)]);
}

#[tokio::test(start_paused = true)]
async fn what_cuts_the_node_off_is_taken_back_in_time() {
    let bench = Bench::new().await;
    bench.set(&["admin", "x"]).await.unwrap();
    let (before, faults) = (bench.tags().await, &bench.host.faults);
    // Not reached at all: nothing is tried.
    faults.fail_nth("coordinators.reach", 1, Fault::before());
    let failed = bench.set(&["admin", "y"]).await.unwrap_err();
    assert_eq!((failed.code, bench.log.actions().len()), (Code::ServiceUnavailable, 1));
    // Not reached afterwards, because nobody answers, or because the question itself hangs.
    for fault in [Fault::before(), Fault::hangs()] {
        for nth in 2..ATTEMPTS {
            faults.fail_nth("coordinators.reach", nth, fault.clone());
        }
        let began = bench.drivers.clock.monotonic();
        let failed = bench.set(&["admin", "y"]).await.unwrap_err();
        let took = bench.drivers.clock.monotonic().saturating_sub(began);
        assert_eq!(failed.code, Code::Timeout);
        assert!(failed.message.contains("within 30 s of the change"), "{failed:?}");
        assert!(took < bridges::CONFIRM + Duration::from_secs(5), "{took:?}");
        assert_eq!((bench.tags().await, bench.bridges()), (before.clone(), vec!["x".to_owned()]));
        let used = faults.calls("coordinators.reach");
        for _ in 0..ATTEMPTS {
            drop(bench.drivers.coordinators.reach().await);
        }
        assert!(faults.calls("coordinators.reach") > used);
    }
    bench.set(&["admin", "y"]).await.unwrap();
    assert_eq!(bench.bridges(), ["y"]);
}

/// The table is what counts, whatever failed on the way to it.
#[tokio::test(start_paused = true)]
async fn bridges_and_table_agree_after_each_fault() {
    for operation in ["host.act", "settings.get", "settings.set", "coordinators.reach"] {
        for nth in 1..3 {
            for fault in [Fault::before(), Fault::after()] {
                let bench = Bench::new().await;
                bench.set(&["admin", "x"]).await.unwrap();
                bench.host.faults.fail_nth(operation, nth, fault);
                drop(bench.set(&["admin", "y"]).await);
                // What an undo could not do, the next look does.
                bridges::mend(&bench.drivers).await;
                bridges::mend(&bench.drivers).await;
                let tags = bench.tags().await;
                let bridged = tags.iter().filter(|(_, bridge)| *bridge);
                let bridged: Vec<String> = bridged.map(|(name, _)| name.clone()).collect();
                assert_eq!(bench.bridges(), bridged, "{operation} {nth}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_goes_down_takes_the_change_back_when_it_starts() {
    let bench = Bench::new().await;
    bench.set(&["admin", "x"]).await.unwrap();
    let tried =
        HostAction::SetBridges(vec![NicBridge { nic: MAC.to_owned(), tags: vec!["y".to_owned()] }]);
    bench.drivers.host.act(&tried).await.unwrap();
    bridges::mend(&bench.drivers).await;
    assert_eq!(bench.bridges(), ["x"]);
    let mut resumed = bench.host.context(&bench.drivers, &params(&["admin", "y"]));
    resumed.resumed = true;
    let failed = run(&resumed, KIND, true).await.unwrap_err();
    assert_eq!((failed.code, bench.bridges()), (Code::Interrupted, vec!["x".to_owned()]));
    // It went down after the table was written.
    let mut resumed = bench.host.context(&bench.drivers, &params(&["admin", "x"]));
    resumed.resumed = true;
    run(&resumed, KIND, true).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_host_actions_only_tags_that_need_no_bridge_change() {
    let bench = Bench::new().await;
    let Bench { host, drivers, .. } = bench;
    let mut drivers = Arc::into_inner(drivers).unwrap();
    drivers.host = Arc::new(RefuseHost);
    let drivers = Arc::new(drivers);
    let act = async |tags: &[&str]| run(&host.context(&drivers, &params(tags)), KIND, true).await;
    let refused = act(&["admin", "x"]).await.unwrap_err();
    assert_eq!(refused.code, Code::HostActionsDisabled);
    assert_eq!(drivers.settings.nic_tags().await.unwrap(), []);
    // One that the operator keeps goes.
    let tag =
        |name: &str| NicTag { name: name.to_owned(), mac: MAC.to_owned(), ..NicTag::default() };
    drivers.settings.set_nic_tags(&[tag("admin"), tag("x")]).await.unwrap();
    act(&["admin"]).await.unwrap();
    assert_eq!(drivers.settings.nic_tags().await.unwrap(), [tag("admin")]);
    bridges::mend(&drivers).await;
    assert_eq!(drivers.report.remarks(), Vec::<String>::new());
    drivers.settings.set_nic_tags(&[NicTag { bridge: true, ..tag("x") }]).await.unwrap();
    bridges::mend(&drivers).await;
    assert!(drivers.report.remarks()[0].contains("host.actions"), "{:?}", drivers.report.remarks());
}
