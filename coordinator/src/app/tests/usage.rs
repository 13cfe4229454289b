//! What VMs use: as agents report it, as they say when asked, and as they said last.

use muster_shared::api::usage::FleetVmUsage;
use muster_shared::wire::usage::{UsageAnswer, Usages, VmUsage};

use super::*;
use crate::app::UsageFilter;

fn used(cpu_ms: u64) -> Usages {
    BTreeMap::from([(vm(5), VmUsage { cpu_ms: Some(cpu_ms), ..VmUsage::default() })])
}

/// The only VM.
async fn listed(app: &App, max_age: Option<Duration>) -> FleetVmUsage {
    let filter = UsageFilter { max_age, ..UsageFilter::default() };
    let mut all = app.usage.list(&filter, "r").await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn cpu_ms(vm: &FleetVmUsage) -> Option<u64> {
    vm.usage.as_ref()?.cpu_ms
}

#[tokio::test(start_paused = true)]
async fn figures_are_the_reported_ones_unless_younger_ones_are_wanted() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let vms = BTreeMap::from([(vm(5), a_vm(vm(5), "running"))]);
    agent.report(true, &BTreeMap::new(), &vms).await;
    eventually(|| app.fleet.vm_get(vm(5)).is_ok()).await;
    let unknown = listed(&app, None).await;
    assert_eq!((cpu_ms(&unknown), unknown.age_ms), (None, None));

    let report = Report { usage: Some(used(10)), ..delta(&vms, &vms) };
    agent.send(Box::new(Status { report: Some(report) })).await;
    eventually(|| app.fleet.with(server(1), |entry| entry.usage.is_some()) == Some(true)).await;
    assert_eq!(cpu_ms(&listed(&app, None).await), Some(10));
    // Young enough: nobody is asked, and so nobody waited for.
    assert_eq!(cpu_ms(&listed(&app, Some(Duration::from_secs(60))).await), Some(10));

    tokio::time::sleep(Duration::from_millis(200)).await;
    let asking = tokio::spawn({
        let app = Arc::clone(&app);
        async move { listed(&app, Some(Duration::from_millis(100))).await }
    });
    let dispatch = agent.dispatched().await;
    assert_eq!((dispatch.task.as_str(), dispatch.volatile), ("vms_usage", true));
    agent.finish(&dispatch.id, json!(UsageAnswer { usage: used(20), left_out: 0 })).await;
    assert_eq!(cpu_ms(&asking.await.unwrap()), Some(20));

    // Of one that does not answer the last figures stay, with their age.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let old = listed(&app, Some(Duration::ZERO)).await;
    assert_eq!(cpu_ms(&old), Some(20));
    assert!(old.age_ms >= Some(300), "{old:?}");
    app.shutdown().await;
}
