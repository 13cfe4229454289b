//! Jobs, with real daemons: a coordinator is killed in the middle and the job ends all the same,
//! with each of its effects once.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

async fn ended(client: &Client, job: &str) -> Value {
    let path = format!("/jobs/{job}");
    wait_for("the job ends", Duration::from_secs(120), || async {
        let answer = client.get(&path).await;
        let execution = answer.json["execution"].as_str().unwrap_or_default();
        if matches!(execution, "succeeded" | "failed") { Ok(answer.json) } else { Err(answer.text) }
    })
    .await
}

fn job_of(answer: &Value) -> String {
    answer["job_uuid"].as_str().unwrap_or_else(|| panic!("no job in {answer:#}")).to_owned()
}

fn states(job: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = job["steps"].as_array().cloned().unwrap_or_default();
    steps.iter().map(|step| (text(&step["name"]), text(&step["state"]))).collect()
}

/// How many tasks of a kind the agent was ever given.
async fn tasks(client: &Client, server: &str, kind: &str) -> usize {
    let path = format!("/tasks?server_uuid={server}&task={kind}");
    client.get(&path).await.expect(200).as_array().map_or(0, Vec::len)
}

async fn new_server(coordinator: &Coordinator, client: &Client) -> Agent {
    let url = coordinator.agent_url();
    let agent = Agent::with(&[&url], &["setup.auto=false"], &[]);
    agent.wait_status(client, "running", SOON).await;
    agent
}

#[tokio::test]
async fn a_setup_makes_a_server_usable() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = new_server(&coordinator, &client).await;
    let server = format!("/servers/{}", agent.server_uuid);
    assert_eq!(client.get(&server).await.expect(200)["setup"], false);

    let wanted = json!({
        "hostname": "cn7", "postsetup_script": "#!/bin/sh\nexit 0\n", "disk_layout": "mirror",
        "encryption_enabled": "false", "disk_spares": "1", "nics": [{ "mac": "x" }],
    });
    let job = job_of(&client.put(&format!("{server}/setup"), &wanted).await.expect(202));
    let job = ended(&client, &job).await;
    assert_eq!(job["execution"], "succeeded", "{job:#}");
    assert_eq!(job["name"], "server-setup-1.1.0");
    assert_eq!(job["target"], agent.server_uuid);
    assert_eq!(
        job["params"],
        json!({
            "nic_action": "update", "nics": [], "postsetup_script": "#!/bin/sh\nexit 0\n",
            "disk_layout": "mirror", "encryption_enabled": false, "disk_spares": 1,
            "hostname": "cn7", "server_uuid": agent.server_uuid, "target": agent.server_uuid,
        })
    );
    for result in job["chain_results"].as_array().expect("results") {
        assert_eq!((&result["result"], &result["error"]), (&json!("OK"), &json!("")));
    }
    let record = client.get(&server).await.expect(200);
    assert_eq!((&record["setup"], &record["setting_up"]), (&json!(true), &json!(false)));
    assert_eq!(record["hostname"], "cn7");
    wait_for("the agent says so itself", SOON, || async {
        let sysinfo = client.get(&server).await.json["sysinfo"].clone();
        if sysinfo["Setup"] == "true" { Ok(()) } else { Err(sysinfo["Setup"].to_string()) }
    })
    .await;
    client.put(&format!("{server}/setup"), &json!({})).await.expect(204);
    assert_eq!(tasks(&client, &agent.server_uuid, "server_setup").await, 1);
}

#[tokio::test]
async fn a_coordinator_killed_in_the_middle_finishes_the_job_and_reboots_once() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let server = format!("/servers/{}", agent.server_uuid);
    let body = json!({ "drain": true, "origin": "test" });
    for _round in 0..3 {
        let before = tasks(&client, &agent.server_uuid, "server_reboot").await;
        let job = job_of(&client.post(&format!("{server}/reboot"), &body).await.expect(202));
        // Somewhere between its creation and its end, a little later each time.
        coordinator.kill9();
        coordinator.restart();
        let job = ended(&client, &job).await;
        assert_eq!(job["execution"], "succeeded", "{job:#}");
        assert!(states(&job)[..5].iter().all(|(_, state)| state == "ok"), "{job:#}");
        let reboots = tasks(&client, &agent.server_uuid, "server_reboot").await;
        assert_eq!(reboots, before + 1, "one reboot per job");
        // Simulated: nothing rebooted, so the agent stays drained until it is resumed.
        client.post(&format!("{server}/cn-agent/resume"), &json!({})).await.expect(204);
    }
}

#[tokio::test]
async fn a_kill_while_the_agent_is_away_loses_nothing() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let server = format!("/servers/{}", agent.server_uuid);
    agent.daemon().signal(nix::sys::signal::Signal::SIGSTOP);
    let job = job_of(&client.post(&format!("{server}/reboot"), &json!({})).await.expect(202));
    let path = format!("/jobs/{job}");
    wait_for("the job has made its task", SOON, || async {
        let job = client.get(&path).await.json;
        let task = &job["steps"][4]["task"];
        if task.is_string() { Ok(()) } else { Err(job.to_string()) }
    })
    .await;
    coordinator.kill9();
    coordinator.restart();
    agent.daemon().signal(nix::sys::signal::Signal::SIGCONT);
    let job = ended(&client, &job).await;
    assert_eq!(job["execution"], "succeeded", "{job:#}");
    assert_eq!(tasks(&client, &agent.server_uuid, "server_reboot").await, 1);
}

#[tokio::test]
async fn refused_host_actions_fail_the_job_and_leave_no_mark() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let url = coordinator.agent_url();
    let agent = Agent::with(&[&url], &["host.actions=refuse"], &[]);
    agent.wait_status(&client, "running", SOON).await;
    let server = format!("/servers/{}", agent.server_uuid);
    let body = json!({ "drain": true });
    let job = job_of(&client.post(&format!("{server}/reboot"), &body).await.expect(202));
    let job = ended(&client, &job).await;
    assert_eq!(job["execution"], "failed");
    let last = job["chain_results"].as_array().and_then(|all| all.last()).expect("results");
    assert_eq!(last["name"], "cnapi.send_reboot_message");
    assert!(last["error"].as_str().is_some_and(|e| e.contains("host.actions")), "{job:#}");
    let record = client.get(&server).await.expect(200);
    assert_eq!(record["transitional_status"], Value::Null);
    // Resumed: the agent takes tasks again.
    client.post(&format!("{server}/cn-agent/pause"), &json!({})).await.expect(204);
    client.post(&format!("{server}/cn-agent/resume"), &json!({})).await.expect(204);
    let refused = client.post(&format!("{server}/reboot"), &json!({ "nojob": true })).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json["code"]),
        (403, &json!("HostActionsDisabled"))
    );
}

#[tokio::test]
async fn nics_and_resets_are_jobs_too() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let server = format!("/servers/{}", agent.server_uuid);
    client.post(&format!("{server}/reboot"), &json!({ "nojob": true })).await.expect(204);

    let record = client.get(&server).await.expect(200);
    let interfaces = record["sysinfo"]["Network Interfaces"].as_object().expect("interfaces");
    let mac = interfaces.values().find_map(|nic| nic["MAC Address"].as_str());
    if let Some(mac) = mac {
        let body = json!({
            "action": "update", "nics": [{ "mac": mac, "nic_tags_provided": ["storage"] }],
        });
        let job = job_of(&client.put(&format!("{server}/nics"), &body).await.expect(202));
        let job = ended(&client, &job).await;
        assert_eq!(job["execution"], "succeeded", "{job:#}");
        let record = client.get(&server).await.expect(200);
        let names = record["sysinfo"]["Network Interfaces"].to_string();
        assert!(names.contains("storage"), "{names}");
    }

    let job = job_of(&client.put(&format!("{server}/factory-reset"), &json!({})).await.expect(202));
    let job = ended(&client, &job).await;
    assert_eq!(job["execution"], "succeeded", "{job:#}");
    let list = client.get(&format!("/jobs?server_uuid={}&limit=1", agent.server_uuid)).await;
    assert_eq!(list.expect(200)[0]["uuid"], job["uuid"], "the newest first");
    let none = client.get("/jobs?execution=failed").await.expect(200);
    assert_eq!(none, json!([]));
}

#[tokio::test]
async fn bad_input_names_the_field() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let server = format!("/servers/{}", agent.server_uuid);
    for (path, body, code, says) in [
        ("setup", json!({ "disk_layout": "raid5" }), "InvalidArgument", "'raidz3'"),
        ("setup", json!({ "disk_width": -1 }), "InvalidParameters", "disk_width"),
        ("setup", json!({ "disk_spares": "x" }), "InvalidParameters", "disk_spares"),
        ("setup", json!({ "disk_cache": 1 }), "InvalidParameters", "disk_cache"),
        ("setup", json!({ "no": 1 }), "InvalidArgument", "no is not an explicitly"),
        ("factory-reset", json!({ "origin": 1 }), "InvalidParameters", "origin"),
        ("nics", json!({ "action": "x", "nics": [] }), "InvalidParameters", "action"),
        ("nics", json!({ "action": "update" }), "InvalidParameters", "nics"),
        ("nics", json!({ "action": "update", "nics": [1] }), "InvalidParameters", "nics"),
    ] {
        let answer = client.put(&format!("{server}/{path}"), &body).await;
        assert_eq!(answer.status, 409, "{path} {body}: {}", answer.text);
        assert_eq!(answer.json["code"], code, "{path} {body}");
        assert!(answer.text.contains(says), "{path} {body}: {}", answer.text);
    }
    let answer = client.post(&format!("{server}/reboot"), &json!({ "drain": "true" })).await;
    assert_eq!((answer.status.as_u16(), &answer.json["code"]), (409, &json!("InvalidParameters")));
    for path in ["/jobs?limit=0", "/jobs?execution=x", "/jobs?server_uuid=x", "/jobs?offset=-1"] {
        assert_eq!(client.get(path).await.status, 409, "{path}");
    }
    client.get("/jobs/x").await.expect(404);
    assert_eq!(client.get("/jobs").await.expect(200), json!([]), "nothing was started");
}
