//! What can be done to a VM and a node beside create, power and destroy, with a real hypervisor.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::{Answer, Client};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

/// A coordinator, an agent, and a running VM.
struct Cluster {
    client: Client,
    agent: Agent,
    image: String,
    vm: String,
    _coordinator: Coordinator,
}

impl Cluster {
    async fn new() -> Self {
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let agent = Agent::start(&coordinator.agent_url());
        agent.wait_allocatable(&client).await;
        let image = guest::import(&client).await;
        let vm = fresh_uuid();
        // On the node itself: what else needs the disk of this machine is not of interest here.
        let body = json!({
            "uuid": vm, "brand": "kvm", "ram": 192, "vcpus": 1, "alias": "changes",
            "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        });
        let path = format!("/servers/{}/vms", agent.server_uuid);
        let made = client.post(&path, &body).await.expect(200);
        client.complete_task(made["id"].as_str().expect("a task id"), 120).await;
        Self { client, agent, image, vm, _coordinator: coordinator }
    }

    fn path(&self, more: &str) -> String {
        format!("/servers/{}/vms/{}{more}", self.agent.server_uuid, self.vm)
    }

    async fn vm(&self) -> Value {
        self.client.get(&self.path("")).await.expect(200)
    }

    /// The result of the task that an answer names.
    async fn done(&self, answer: Answer) -> Value {
        let started = answer.expect(200);
        self.client.complete_task(started["id"].as_str().expect("a task id"), 240).await
    }

    async fn snapshot_names(&self) -> Vec<String> {
        let vm = self.vm().await;
        let snapshots = vm["snapshots"].as_array().expect("a list").clone();
        snapshots
            .iter()
            .map(|snapshot| snapshot["name"].as_str().expect("a name").to_owned())
            .collect()
    }
}

#[tokio::test]
async fn a_running_vm_is_snapshotted_updated_rolled_back_and_reprovisioned() {
    let cluster = Cluster::new().await;
    let (client, path) = (&cluster.client, |more: &str| cluster.path(more));
    for name in ["one", "two"] {
        let body = json!({ "snapshot_name": name });
        cluster.done(client.put(&path("/snapshots"), &body).await).await;
    }
    assert_eq!(cluster.snapshot_names().await, ["two", "one"]);
    let pids = cluster.agent.guest_pids();
    assert_eq!(pids.len(), 1);

    let change = json!({ "alias": "other", "ram": 256, "set_tags": { "a": "b" } });
    let updated = cluster.done(client.post(&path("/update"), &change).await).await;
    assert_eq!(updated["pending_reboot"], json!(["ram"]));
    assert_eq!(updated["vm"]["alias"], "other");
    assert_eq!(cluster.agent.guest_pids(), pids, "an update is no restart");

    let rolled = client.put(&path("/snapshots/one/rollback"), &json!({})).await;
    cluster.done(rolled).await;
    assert_eq!(cluster.snapshot_names().await, ["one"]);
    assert_eq!(cluster.vm().await["state"], "running");
    assert_ne!(cluster.agent.guest_pids(), pids, "the guest was started again");
    let missing = client.put(&path("/snapshots/two/rollback"), &json!({})).await.expect(200);
    let failed = client.wait_task(missing["id"].as_str().unwrap(), 60).await;
    assert_eq!(failed["error"]["code"], "SnapshotNotFound", "{failed:#}");

    let body = json!({ "image_uuid": cluster.image });
    let reprovisioned = cluster.done(client.post(&path("/reprovision"), &body).await).await;
    assert_eq!(reprovisioned["lost_snapshots"], json!(["one"]));
    assert_eq!(reprovisioned["vm"]["state"], "running");
    assert_eq!(cluster.snapshot_names().await, Vec::<String>::new());
    let folder = cluster.agent.data_dir().join("vols").join(&cluster.vm);
    assert!(!folder.join("stash0.qcow2").exists());

    cluster.done(client.delete(&path("")).await).await;
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_stopped_vm_keeps_its_snapshots_and_a_running_one_shows_its_process() {
    let cluster = Cluster::new().await;
    let (client, path) = (&cluster.client, |more: &str| cluster.path(more));
    let processes = client.get(&path("/proc")).await.expect(200);
    let pid = cluster.agent.guest_pids()[0].to_string();
    assert_eq!(processes[&pid]["psinfo"]["pr_pid"].to_string(), pid);

    // Anybody on the node could use a port without a password.
    let refused = client.get(&path("/vnc")).await;
    assert!(refused.status == 412 && refused.text.contains("vnc_password"), "{}", refused.text);
    let body = json!({ "vnc_password": "secret" });
    cluster.done(client.post(&path("/update"), &body).await).await;
    let restart = json!({ "force": true });
    cluster.done(client.post(&path("/reboot"), &restart).await).await;
    let display = client.get(&path("/vnc")).await.expect(200);
    let address = format!("{}:{}", display["host"].as_str().unwrap(), display["port"]);
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("a display");
    let mut greeting = [0; 4];
    let read = stream.read_exact(&mut greeting);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("in time").expect("bytes");
    assert_eq!(&greeting, b"RFB ");

    let body = json!({ "force": true });
    cluster.done(client.post(&path("/stop"), &body).await).await;
    for name in ["off", "odd.name:1%2"] {
        let body = json!({ "snapshot_name": name });
        cluster.done(client.put(&path("/snapshots"), &body).await).await;
    }
    cluster.done(client.put(&path("/snapshots/off/rollback"), &json!({})).await).await;
    assert_eq!(cluster.snapshot_names().await, ["off"]);
    assert_eq!(cluster.vm().await["state"], "stopped");
    assert_eq!(client.get(&path("/proc")).await.status, 409);
    cluster.done(client.delete(&path("/snapshots/off")).await).await;
    assert_eq!(cluster.snapshot_names().await, Vec::<String>::new());

    let server = format!("/servers/{}", cluster.agent.server_uuid);
    let installed = client.get(&format!("{server}/images/{}", cluster.image)).await.expect(200);
    assert_eq!(installed["uuid"], cluster.image);
    for missing in [fresh_uuid(), "x".to_owned()] {
        let answer = client.get(&format!("{server}/images/{missing}")).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json["code"]),
            (404, &json!("ResourceNotFound"))
        );
    }
}

#[tokio::test]
async fn what_the_agent_lacks_is_refused_before_anything_is_made() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let server = format!("/servers/{}", agent.server_uuid);
    let pool = format!("{server}/datasets");
    for (answer, what) in [
        (client.get(&pool).await, "zfs_list_datasets"),
        (client.post(&pool, &json!({ "dataset": "zones/x" })).await, "zfs_create_dataset"),
        (
            client.get(&format!("{pool}/zones%2Fx/properties?prop1=used")).await,
            "zfs_get_properties",
        ),
        (client.get(&format!("{server}/zpools")).await, "zfs_list_pools"),
        (client.post(&format!("{server}/install-agent"), &json!({})).await, "agent_install"),
    ] {
        let code = (answer.status.as_u16(), answer.json["code"].clone());
        assert_eq!(code, (501, json!("NotSupported")), "{what}: {}", answer.text);
        assert!(answer.text.contains(what), "{}", answer.text);
    }
    let refused = client.post(&format!("{server}/execute"), &json!({ "script": "x" })).await;
    assert_eq!((refused.status.as_u16(), &refused.json["code"]), (403, &json!("NotAuthorized")));
    let recovery = client.post(&format!("{server}/recovery-config"), &json!({})).await;
    assert_eq!(recovery.status, 412, "{}", recovery.text);
    let tasks = client.get(&format!("/tasks?server_uuid={}", agent.server_uuid)).await.expect(200);
    assert_eq!(tasks, json!([]), "nothing may have been made");
}

#[tokio::test]
async fn scripts_run_where_both_sides_allow_it() {
    let coordinator = Coordinator::with_settings(&["security.allow_command_execute=true"]);
    let client = coordinator.client();
    let allowed = ["security.allow_command_execute=true"];
    let agent = Agent::with(&[&coordinator.agent_url()], &allowed, &[]);
    let strict = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    strict.wait_allocatable(&client).await;
    let script = json!({ "script": "#!/bin/sh\necho hi\n", "json": true, "timeout": 5000 });
    let path = |agent: &Agent| format!("/servers/{}/execute", agent.server_uuid);
    let ran = client.post(&path(&agent), &script).await.expect(200);
    // The host driver of this agent only notes what it would have done.
    assert_eq!(ran, json!({ "exitCode": 0, "stdout": "", "stderr": "" }));
    let plain = client.post(&path(&agent), &json!({ "script": "#!/bin/sh\n" })).await;
    assert_eq!(plain.expect(200), json!(""));
    let refused = client.post(&path(&strict), &script).await;
    assert_eq!((refused.status.as_u16(), &refused.json["code"]), (403, &json!("NotAuthorized")));
    for (field, bad) in [
        ("script", json!({})),
        ("args", json!({ "script": "x", "args": "y" })),
        ("env", json!({ "script": "x", "env": [] })),
        ("json", json!({ "script": "x", "json": "maybe" })),
        ("timeout", json!({ "script": "x", "timeout": -1 })),
    ] {
        let refused = client.post(&path(&agent), &bad).await;
        assert_eq!(refused.status, 409, "{field}: {}", refused.text);
        assert_eq!(refused.json["errors"][0]["field"], field);
    }
}
