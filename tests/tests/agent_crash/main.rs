//! An agent that is killed: its tasks end exactly once, its guests go on.

use std::time::Duration;

use muster_shared::wire::Code;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::{Answer, Client};
use muster_tests::kill_points::{chosen, fault_points};
use muster_tests::pool::Pool;
use muster_tests::wait::wait_for;
use muster_tests::{container, guest, own_network};
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

/// What the tasks are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    HardwareVm,
    Container,
}

impl Of {
    fn agent(self, coordinator: &Coordinator, pool: Option<&Pool>) -> Agent {
        let mut settings: Vec<String> = pool.into_iter().flat_map(Pool::settings).collect();
        if self == Self::Container {
            settings.push(format!("instance=k{}", &fresh_uuid()[..6]));
        }
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        Agent::with(&[&coordinator.agent_url()], &settings, &[])
    }

    async fn image(self, client: &Client, kind: &str) -> String {
        match self {
            Self::HardwareVm if kind == "machine_reprovision" => guest::import(client).await,
            Self::HardwareVm => String::new(),
            Self::Container => {
                let config = json!({ "Entrypoint": ["/bin/sleep", "100000"] });
                container::import(client, &config).await
            }
        }
    }

    /// Without a system, or with a program that asks for nothing, so that it is quick.
    fn payload(self, vm: &str, image: &str) -> Value {
        let owner = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01";
        match self {
            Self::HardwareVm => json!({
                "uuid": vm, "brand": "kvm", "alias": "one", "ram": 64, "owner_uuid": owner,
                "disks": [{ "size": 8, "boot": true }],
            }),
            Self::Container => json!({
                "uuid": vm, "brand": "joyent-minimal", "alias": "one", "ram": 64,
                "owner_uuid": owner, "image_uuid": image,
                "image": { "uuid": image, "files": [{ "compression": "none" }] },
            }),
        }
    }

    fn change(self) -> Value {
        let nic = json!({ "nic_tag": "admin", "mac": "02:00:00:00:00:77" });
        let disk = json!({ "size": 8, "uuid": "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c09" });
        match self {
            Self::HardwareVm => {
                json!({ "alias": "other", "add_nics": [nic], "add_disks": [disk] })
            }
            Self::Container => json!({ "alias": "other", "cpu_cap": 50 }),
        }
    }

    fn assert_clean(self, agent: &Agent, vm: &str, point: &str) {
        assert_clean(agent, vm, point);
        let (data, run) = (agent.data_dir(), agent.run_dir());
        let mounts = [container::mounts(&data), container::mounts(&run)].concat();
        assert_eq!(mounts, Vec::<String>::new(), "{point}: a mount");
        assert_eq!(container::monitors(&run), Vec::<u32>::new(), "{point}: a monitor");
        for folder in [data.join("roots"), data.join("containers"), run.join("ct"), run.join("oci")]
        {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let left: Vec<_> = entries.map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{point}: {left:?}");
        }
    }
}

/// Asks for a task of a kind about one VM.
async fn ask(of: Of, client: &Client, vms: &str, vm: &str, kind: &str, image: &str) -> Answer {
    let path = |more: &str| format!("{vms}/{vm}{more}");
    let force = json!({ "force": true });
    let update = json!({ "set_internal_metadata": { "a": "b" } });
    match kind {
        "machine_create" => client.post(vms, &of.payload(vm, image)).await,
        "machine_create_image" => {
            let manifest = json!({ "name": "made", "version": "1" });
            let wanted = json!({ "compression": "none", "manifest": manifest });
            client.post(&path("/images"), &wanted).await
        }
        "machine_boot" if of == Of::Container => {
            client.post(&path("/start"), &json!({ "update": update })).await
        }
        "machine_boot" => {
            client.post(&path("/start"), &json!({ "update": update, "once": "c" })).await
        }
        "machine_shutdown" => client.post(&path("/stop"), &force).await,
        "machine_reboot" => {
            client.post(&path("/reboot"), &json!({ "force": true, "update": update })).await
        }
        "machine_kill" => client.post(&path("/kill"), &json!({ "signal": "SIGKILL" })).await,
        "machine_update" => client.post(&path("/update"), &of.change()).await,
        "machine_create_snapshot" => {
            client.put(&path("/snapshots"), &json!({ "snapshot_name": "a" })).await
        }
        "machine_rollback_snapshot" => client.put(&path("/snapshots/a/rollback"), &json!({})).await,
        "machine_delete_snapshot" => client.delete(&path("/snapshots/a")).await,
        "machine_reprovision" => {
            client.post(&path("/reprovision"), &json!({ "image_uuid": image })).await
        }
        "machine_destroy" => client.delete(&path("")).await,
        other => panic!("no request for {other}"),
    }
}

/// What has to be done before a VM is as the kind wants it. Its guest has no system, so that it is
/// quick, and does not hear its power button.
fn before(kind: &str) -> &'static [&'static str] {
    match kind {
        "machine_boot" | "machine_reprovision" | "machine_create_image" => &["machine_shutdown"],
        "machine_rollback_snapshot" | "machine_delete_snapshot" => &["machine_create_snapshot"],
        _ => &[],
    }
}

/// What a task may say that finds its work done by the one before.
const EXCUSES: [Code; 8] = [
    Code::AlreadyRunning,
    Code::NotRunning,
    Code::SnapshotExists,
    Code::SnapshotNotFound,
    Code::VmExists,
    Code::VmNotFound,
    Code::VmNotRunning,
    Code::VmNotUsable,
];

/// The task that was asked for has ended, well or with an excuse.
async fn assert_ended(client: &Client, answer: &Answer, case: &str) {
    let Some(id) = answer.json["id"].as_str() else {
        assert_eq!(answer.status, 404, "{case}: {}", answer.text);
        return;
    };
    let ended = client.wait_task(id, 120).await;
    let excused = EXCUSES.iter().any(|code| ended["error"]["code"] == code.as_str());
    assert!(ended["status"] == "complete" || excused, "{case}: {ended:#}");
}

/// The agent is killed at points of a kind: the task ends, can be asked for again, and its VM can
/// be destroyed without a trace.
async fn killed(of: Of, kind: &str) {
    if of == Of::Container && (!container::can_run() || !own_network::enter()) {
        return;
    }
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let pool = Pool::wanted();
    let mut agent = of.agent(&coordinator, pool.as_ref());
    agent.wait_allocatable(&client).await;
    let image = of.image(&client, kind).await;
    let vms = format!("/servers/{}/vms", agent.server_uuid);
    let (points, mut died) = (chosen(kind), 0);
    for point in &points {
        println!("{point}");
        let vm = fresh_uuid();
        if kind != "machine_create" {
            agent.run_task("machine_create", &of.payload(&vm, &image)).await;
        }
        for earlier in before(kind) {
            let asked = ask(of, &client, &vms, &vm, earlier, &image).await.expect(200);
            client.complete_task(asked["id"].as_str().expect("a task id"), 120).await;
        }
        agent.restart_with_env(&[("MUSTER_FAULT", &format!("{point}:kill"))]);
        agent.wait_allocatable(&client).await;
        let asked = ask(of, &client, &vms, &vm, kind, &image).await;
        let task = format!("/tasks/{}", asked.json["id"].as_str().unwrap_or_default());
        let daemon = agent.daemon();
        // Some steps are for other parameters.
        died += wait_for(&format!("the agent dies at {point}"), Duration::from_secs(120), || {
            let exited = daemon.has_exited();
            let (client, task) = (&client, &task);
            async move {
                let status = client.get(task).await.json["status"].clone();
                match exited {
                    true => Ok(1),
                    false if status == "complete" || status == "failure" => Ok(0),
                    false => Err(status.to_string()),
                }
            }
        })
        .await;
        agent.restart_with_env(&[]);
        assert_ended(&client, &asked, point).await;
        agent.wait_allocatable(&client).await;
        let again = ask(of, &client, &vms, &vm, kind, &image).await;
        assert_ended(&client, &again, &format!("{point}, again")).await;
        let gone = ask(of, &client, &vms, &vm, "machine_destroy", &image).await;
        assert_ended(&client, &gone, &format!("{point}, destroyed")).await;
        of.assert_clean(&agent, &vm, point);
        let datasets = pool.as_ref().map(|pool| pool.datasets(&vm)).unwrap_or_default();
        assert_eq!(datasets, Vec::<String>::new(), "{point}: a dataset");
    }
    let storage = if pool.is_some() { "zfs" } else { "file" };
    println!(
        "{of:?} × {storage}: {kind}: {} points tried, {died} were reached, nothing was left of any",
        points.len()
    );
    // The guests of the agent use it.
    drop(agent);
    drop(pool);
}

macro_rules! killed_at_points_of {
    ($of:ident: $($kind:ident)+) => {
        $(
            #[tokio::test]
            async fn $kind() {
                killed(Of::$of, stringify!($kind)).await;
            }
        )+
    };
}

killed_at_points_of! {
    HardwareVm:
    machine_boot
    machine_create_image
    machine_create_snapshot
    machine_delete_snapshot
    machine_destroy
    machine_kill
    machine_reboot
    machine_reprovision
    machine_rollback_snapshot
    machine_shutdown
    machine_update
}

mod containers {
    use super::*;

    killed_at_points_of! {
        Container:
        machine_boot
        machine_create
        machine_create_image
        machine_create_snapshot
        machine_delete_snapshot
        machine_destroy
        machine_kill
        machine_reboot
        machine_reprovision
        machine_rollback_snapshot
        machine_shutdown
        machine_update
    }
}
