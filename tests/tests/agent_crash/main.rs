//! An agent that is killed: its tasks end exactly once, its guests go on.

mod points;

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::kill_points::fault_points;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

fn payload(image: &str, uuid: &str) -> Value {
    json!({
        "uuid": uuid, "image_uuid": image, "brand": "kvm", "ram": 192, "vcpus": 1,
        "cpu_cap": 100, "quota": 1, "owner_uuid": fresh_uuid(),
    })
}

#[tokio::test]
async fn killed_at_each_step_of_machine_create_leaves_one_vm_or_none() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;

    let points = fault_points("machine_create");
    assert!(points.len() >= 10, "machine_create has at least ten points: {points:?}");
    for point in points {
        let fault = format!("{point}:kill");
        agent.restart_with_env(&[("MUSTER_FAULT", &fault)]);
        agent.wait_allocatable(&client).await;
        let vm = fresh_uuid();
        let placed = client.post("/vms", &payload(&image, &vm)).await.expect(202);
        let id = placed["id"].as_str().expect("a task id").to_owned();
        let daemon = agent.daemon();
        wait_for(&format!("the agent dies at {point}"), Duration::from_secs(60), || {
            let exited = daemon.has_exited();
            async move { if exited { Ok(()) } else { Err("still running") } }
        })
        .await;

        agent.restart_with_env(&[]);
        let ended = client.wait_task(&id, 120).await;
        let pids = agent.guest_pids();
        if ended["status"] == "complete" {
            assert_eq!(pids.len(), 1, "{point}: one VM: {ended:#}");
            agent.wait_allocatable(&client).await;
            let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
            let task = client.delete(&path).await.expect(200);
            client.complete_task(task["id"].as_str().unwrap(), 60).await;
        } else {
            assert_eq!(pids, Vec::<u32>::new(), "{point}: no VM: {ended:#}");
        }
        assert_clean(&agent, &vm, &point);
    }
}

fn assert_clean(agent: &Agent, vm: &str, point: &str) {
    assert_eq!(agent.guest_pids(), Vec::<u32>::new(), "{point}: a stray process");
    let data = agent.data_dir();
    let run = agent.run_dir().join("vm").join(vm);
    let record = data.join("vms").join(format!("{vm}.json"));
    for left in [record, data.join("vols").join(vm), run] {
        assert!(!left.exists(), "{point}: {} is left", left.display());
    }
}

#[tokio::test]
async fn a_running_guest_survives_its_agent() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = fresh_uuid();
    let placed = client.post("/vms", &payload(&image, &vm)).await.expect(202);
    client.complete_task(placed["id"].as_str().unwrap(), 120).await;
    let before = agent.guest_pids();
    assert_eq!(before.len(), 1);
    let started = start_time(before[0]);

    agent.kill9();
    assert_eq!(agent.guest_pids(), before, "the guest died with its agent");
    agent.restart();
    agent.wait_status(&client, "running", Duration::from_secs(20)).await;

    assert_eq!(agent.guest_pids(), before);
    assert_eq!(start_time(before[0]), started, "another process under the same pid");
    let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
    let info = client.get(&format!("{path}/info?info=status")).await.expect(200);
    assert_eq!(info["status"]["running"], true);
    let task = client.post(&format!("{path}/stop"), &json!({ "force": true })).await.expect(200);
    client.complete_task(task["id"].as_str().unwrap(), 60).await;
    assert_eq!(agent.guest_pids(), Vec::<u32>::new());
}

/// Field 22 of `/proc/<pid>/stat`: the start time in clock ticks.
fn start_time(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the guest runs");
    let after_name = stat.rsplit(')').next().expect("stat has a name");
    after_name.split_whitespace().nth(19).expect("stat has 22 fields").to_owned()
}

#[tokio::test]
async fn a_graceful_stop_leaves_guests_running() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = fresh_uuid();
    let placed = client.post("/vms", &payload(&image, &vm)).await.expect(202);
    client.complete_task(placed["id"].as_str().unwrap(), 120).await;
    let before = agent.guest_pids();

    assert_eq!(agent.daemon().terminate().await, Some(0));
    assert_eq!(agent.guest_pids(), before);
    agent.wait_status(&client, "unknown", Duration::from_secs(60)).await;
    let seen = client.get(&format!("/vms/{vm}")).await.expect(200);
    assert_eq!(seen["server_uuid"], agent.server_uuid, "the index answers for a server away");
}
