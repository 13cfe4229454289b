//! Who is alive, and how little is written for it.

use super::*;
use crate::app::fields::Extras;
use crate::roster::Via;

#[tokio::test(start_paused = true)]
async fn silence_is_written_once_and_its_end_once() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let status = || app.fleet.with(server(1), |e| e.stored_status()).unwrap();
    eventually(|| status() == "unknown").await;
    for seq in 0..30 {
        agent.send(Heartbeat { seq, ts: String::new() }).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(status(), "running");
    assert_eq!(app.why.server(server(1)).unwrap()["status_writes_total"], 2);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_deleted_under_its_agent_registers_again() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    app.servers.delete(server(1), &Expected::ANY).await.unwrap();
    assert!(app.servers.get(server(1), Extras::default()).is_err());
    agent.report(true, &BTreeMap::new(), &BTreeMap::new()).await;
    let FromCoordinator::Sysinfo(asked) = agent.next().await else { panic!("not asked") };
    assert_eq!(asked.sysinfo, None);
    let sysinfo = Some(sysinfo(server(1)).into());
    agent.send(Sysinfo { sysinfo, agents: None, hash: "h".to_owned() }).await;
    eventually(|| app.servers.get(server(1), Extras::default()).is_ok()).await;
    assert!(matches!(agent.next().await, FromCoordinator::Status(_)), "all of its VMs are wanted");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_excuses_a_server_that_posts_no_longer_than_its_grace() {
    let disk = Disk::new();
    let app = disk.start().await;
    app.reports.register(server(1), sysinfo(server(1))).await.unwrap();
    let via = |app: &App| app.fleet.with(server(1), |e| e.roster.as_ref().unwrap().value.via);
    assert_eq!(via(&app), Some(Via::Sysinfo));
    app.reports.heartbeat_posted(server(1));
    eventually(|| via(&app) == Some(Via::Post)).await;
    app.shutdown().await;

    let app = disk.start().await;
    let status = || app.fleet.with(server(1), |e| e.stored_status()).unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(status(), "running");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(status(), "unknown");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_newer_connection_closes_the_older() {
    let app = Disk::new().start().await;
    let mut older = Agent::connect(&app, server(1)).await;
    let _newer = Agent::connect_only(&app, server(1)).await;
    let end = tokio::time::timeout(SOON, older.connection.stream.next()).await.unwrap();
    assert!(matches!(end, Ok(None)), "{end:?}");
    assert_eq!(older.connection.stream.close_code(), Some(4001));
    assert!(app.agents().is_connected(server(1)));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_delta_makes_the_coordinator_ask_for_all() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let none = BTreeMap::new();
    let one = BTreeMap::from([(vm(1), a_vm(vm(1), "running"))]);
    let two = BTreeMap::from([(vm(1), a_vm(vm(1), "running")), (vm(2), a_vm(vm(2), "running"))]);
    agent.report(false, &none, &one).await;
    eventually(|| app.fleet.vm_get(vm(1)).is_ok()).await;
    // The delta from one to two VMs, of which the coordinator must not know the first.
    let mut lost = two.clone();
    lost.insert(vm(3), a_vm(vm(3), "running"));
    agent.report(false, &lost, &two).await;
    let FromCoordinator::Status(asked) = agent.next().await else { panic!("not asked") };
    assert_eq!(asked.report, None);
    agent.report(true, &none, &two).await;
    eventually(|| app.fleet.vm_get(vm(2)).is_ok()).await;
    agent.report(false, &two, &one).await;
    eventually(|| app.fleet.vm_get(vm(2)).is_err()).await;
    app.shutdown().await;
    drop(agent);
    // The index answers also while the server is away.
    let app = disk.start().await;
    assert_eq!(app.fleet.vm_get(vm(1)).unwrap().vm.state.as_deref(), Some("running"));
    assert!(app.fleet.vm_get(vm(2)).is_err());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_fleet_causes_no_writes() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let one = BTreeMap::from([(vm(1), a_vm(vm(1), "running"))]);
    agent.report(true, &BTreeMap::new(), &one).await;
    eventually(|| app.fleet.vm_get(vm(1)).is_ok()).await;
    for seq in 0..3 {
        agent.send(Heartbeat { seq, ts: String::new() }).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let before = disk.kv.written();
    for seq in 0..60 {
        agent.send(Heartbeat { seq, ts: String::new() }).await;
        agent.report(true, &one, &one).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(disk.kv.written(), before);
    app.shutdown().await;
}
