//! What an agent does about guests and disks that it has lost the records of.

use std::path::Path;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(120);

/// A VM that runs; it has no system, so it is quick.
async fn running_vm(agent: &Agent, alias: &str) -> String {
    let uuid = fresh_uuid();
    let payload = json!({
        "uuid": uuid, "brand": "kvm", "alias": alias, "ram": 64, "owner_uuid": fresh_uuid(),
        "disks": [{ "size": 8, "boot": true }], "autoboot": true,
    });
    agent.run_task("machine_create", &payload).await;
    uuid
}

async fn loaded(client: &Client, agent: &Agent, vm: &str) -> Value {
    let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
    wait_for("the VM is told", LONG, || async {
        let answer = client.get(&path).await;
        if answer.status == 200 { Ok(answer.json) } else { Err(answer.text) }
    })
    .await
}

async fn degraded(agent: &Agent) -> String {
    agent.client().get("/ping").await.expect(200)["degraded"].to_string()
}

fn storage(at: &Path) -> String {
    format!("storage_dir={}", at.display())
}

#[tokio::test]
async fn guests_of_a_lost_data_folder_are_adopted_and_run_on() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let disks = muster_tests::daemon::temp_dir();
    let mut agent = Agent::with(&[&coordinator.agent_url()], &[&storage(disks.path())], &[]);
    agent.wait_allocatable(&client).await;
    let mut vms = Vec::new();
    for alias in ["one", "two"] {
        let vm = running_vm(&agent, alias).await;
        let before = loaded(&client, &agent, &vm).await;
        vms.push((vm, before));
    }
    let gone = running_vm(&agent, "gone").await;
    let path = format!("/servers/{}/vms/{gone}", agent.server_uuid);
    let task = client.delete(&path).await.expect(200)["id"].clone();
    client.complete_task(task.as_str().expect("an id"), 60).await;

    agent.kill9();
    std::fs::remove_dir_all(agent.data_dir()).expect("it can be removed");
    agent.restart();
    agent.wait_status(&client, "running", LONG).await;
    for (vm, before) in &vms {
        let after = loaded(&client, &agent, vm).await;
        for member in ["pid", "boot_timestamp", "alias", "owner_uuid", "state", "disks", "ram"] {
            assert_eq!(after[member], before[member], "{member} of {vm}");
        }
        assert_eq!(after["state"], "running");
    }
    let remarks = degraded(&agent).await;
    assert!(remarks.contains("2 VMs had lost their records and were adopted"), "{remarks}");
    // They are VMs like any other.
    let (vm, _) = &vms[0];
    let path = format!("/servers/{}/vms/{vm}/stop", agent.server_uuid);
    let task = client.post(&path, &json!({ "force": true })).await.expect(200)["id"].clone();
    client.complete_task(task.as_str().expect("an id"), 60).await;
    assert_eq!(loaded(&client, &agent, vm).await["state"], "stopped");
    // The node still knows its cluster.
    assert!(agent.data_dir().join("cluster.json").exists());
    agent.restart();
    agent.wait_status(&client, "running", LONG).await;
    assert_eq!(degraded(&agent).await, "[]");
}

/// Under a running agent, which could go on for long: all that it has open can still be written.
#[tokio::test]
async fn an_agent_whose_data_folder_is_removed_says_so_ends_and_adopts_its_guests() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let disks = muster_tests::daemon::temp_dir();
    let mut agent = Agent::with(&[&coordinator.agent_url()], &[&storage(disks.path())], &[]);
    agent.wait_allocatable(&client).await;
    let vm = running_vm(&agent, "stays").await;
    let before = loaded(&client, &agent, &vm).await;

    let data = agent.data_dir();
    wait_for("the folder is gone", LONG, || async {
        // The agent may make a file in it meanwhile.
        std::fs::remove_dir_all(&data).ok();
        if data.exists() { Err("it is there") } else { Ok(()) }
    })
    .await;
    let code = agent.daemon().wait_exit(Duration::from_secs(30)).await;
    assert_eq!(code, Some(70), "{}", agent.daemon().log());
    assert!(!data.exists(), "it was made again");
    let why = client.get(&format!("/why/server/{}", agent.server_uuid)).await.expect(200);
    let remarks = why["remarks"].to_string();
    assert!(remarks.contains("the data folder is lost"), "{why:#}");
    assert_eq!(why["remarks"]["intake"], "paused", "{why:#}");

    agent.restart();
    agent.wait_allocatable(&client).await;
    let after = loaded(&client, &agent, &vm).await;
    for member in ["pid", "boot_timestamp", "alias", "state", "disks"] {
        assert_eq!(after[member], before[member], "{member}");
    }
    let remarks = degraded(&agent).await;
    assert!(remarks.contains("1 VMs had lost their records and were adopted"), "{remarks}");
    agent.run_task("machine_reboot", &json!({ "uuid": vm, "force": true })).await;
    assert_ne!(loaded(&client, &agent, &vm).await["pid"], before["pid"]);
}

#[tokio::test]
async fn orphans_are_named_counted_and_left_alone_until_somebody_decides() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let lost = running_vm(&agent, "lost").await;
    let foreign = running_vm(&agent, "foreign").await;
    let pids = agent.guest_pids();
    agent.kill9();
    let data = agent.data_dir();
    for vm in [&lost, &foreign] {
        for name in [format!("{vm}.json"), format!("{vm}.json.bak")] {
            std::fs::remove_file(data.join("vms").join(name)).expect("a record");
        }
    }
    std::fs::remove_file(data.join(format!("records/{lost}.json"))).expect("a copy");
    let copy = data.join(format!("records/{foreign}.json"));
    let text = std::fs::read_to_string(&copy).expect("a copy");
    let mut stamped: Value = serde_json::from_str(&text).expect("JSON");
    stamped["server_uuid"] = json!(fresh_uuid());
    std::fs::write(&copy, stamped.to_string()).expect("it can be written");
    agent.restart();
    agent.wait_allocatable(&client).await;

    let server = format!("/servers/{}", agent.server_uuid);
    let orphans = client.get(&format!("{server}/orphans")).await.expect(200);
    let listed = |vm: &str| {
        let all = orphans["orphans"].as_array().expect("a list");
        all.iter().find(|orphan| orphan["uuid"] == *vm).cloned().expect("it is listed")
    };
    assert_eq!(orphans["orphans"].as_array().map(Vec::len), Some(2));
    let orphan = listed(&lost);
    assert_eq!((&orphan["runs"], &orphan["disks"]), (&json!(true), &json!(1)), "{orphan}");
    assert_eq!((&orphan["adoptable"], &orphan["ram_mib"]), (&json!(false), &json!(64)));
    assert_eq!(listed(&foreign)["adoptable"], true);
    assert_eq!(listed(&foreign)["alias"], "foreign");
    let remarks = degraded(&agent).await;
    assert!(remarks.contains(&format!("orphan_vm: {lost} runs without a record")), "{remarks}");
    // The room that they use is not free.
    let shown = wait_for("the guests count", LONG, || async {
        let shown = client.get(&server).await;
        if shown.json["vms"][&lost]["max_physical_memory"] == 64 {
            Ok(shown.json)
        } else {
            Err(shown.text)
        }
    });
    shown.await;

    // Nothing is made in their place.
    let body = json!({ "uuid": lost, "brand": "kvm", "ram": 64, "owner_uuid": fresh_uuid() });
    let refused = agent.ask_task("machine_create", &body).await;
    assert!(refused.status.as_u16() >= 400 && refused.text.contains("orphans"), "{}", refused.text);

    let adopt = client.post(&format!("{server}/orphans/{foreign}/adopt"), &json!({})).await;
    client.complete_task(adopt.expect(200)["id"].as_str().expect("an id"), 60).await;
    assert_eq!(loaded(&client, &agent, &foreign).await["state"], "running");
    let refused = client.post(&format!("{server}/orphans/{lost}/adopt"), &json!({})).await;
    let refused = client.wait_task(refused.expect(200)["id"].as_str().expect("an id"), 60).await;
    assert_eq!(refused["status"], "failure", "{refused}");

    let other = client.delete(&format!("{server}/orphans/{lost}?confirm={foreign}")).await;
    let other = client.wait_task(other.expect(200)["id"].as_str().expect("an id"), 60).await;
    assert!(other.to_string().contains("confirm"), "{other}");
    assert_eq!(agent.guest_pids().len(), pids.len());
    let removed = client.delete(&format!("{server}/orphans/{lost}?confirm={lost}")).await;
    client.complete_task(removed.expect(200)["id"].as_str().expect("an id"), 60).await;
    assert_eq!(agent.guest_pids().len(), 1);
    assert!(!data.join(format!("vols/{lost}")).exists());
    let orphans = client.get(&format!("{server}/orphans")).await.expect(200);
    assert_eq!(orphans, json!({ "orphans": [] }));
}

#[tokio::test]
async fn a_guest_that_ended_is_started_again_if_its_policy_says_so() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let kept = running_vm(&agent, "kept").await;
    let left = running_vm(&agent, "left").await;
    let server = format!("/servers/{}", agent.server_uuid);
    let path = format!("{server}/vms/{kept}");
    let policy =
        |policy: &str| json!({ "set_internal_metadata": { "muster:restart_policy": policy } });
    let bad = client.post(&format!("{path}/update"), &policy("sometimes")).await;
    let bad = client.wait_task(bad.expect(200)["id"].as_str().expect("an id"), 60).await;
    assert!(bad.to_string().contains("muster:restart_policy"), "{bad}");
    let set = client.post(&format!("{path}/update"), &policy("on-failure:3")).await;
    client.complete_task(set.expect(200)["id"].as_str().expect("an id"), 60).await;

    let kill = |vm: Value| {
        let pid = vm["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
            .expect("it runs");
    };
    kill(loaded(&client, &agent, &left).await);
    let before = loaded(&client, &agent, &kept).await;
    kill(before.clone());
    wait_for("it runs again", LONG, || async {
        let vm = loaded(&client, &agent, &kept).await;
        let again = vm["state"] == "running" && vm["pid"] != before["pid"];
        if again && vm["restarts"] == 1 { Ok(()) } else { Err(vm.to_string()) }
    })
    .await;
    assert_eq!(loaded(&client, &agent, &left).await["state"], "stopped");

    // Whoever ends it himself does not want it back.
    let kill = client.post(&format!("{path}/kill"), &json!({ "signal": "SIGKILL" })).await;
    client.complete_task(kill.expect(200)["id"].as_str().expect("an id"), 60).await;
    let task = client.post(&format!("{server}/vms/{left}/start"), &json!({})).await;
    client.complete_task(task.expect(200)["id"].as_str().expect("an id"), 60).await;
    let vm = loaded(&client, &agent, &kept).await;
    assert_eq!((&vm["state"], vm.get("restarts")), (&json!("stopped"), None));
}
