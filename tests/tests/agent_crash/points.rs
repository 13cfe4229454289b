//! The agent is killed at points of each kind of task about a VM. All of it is run once more on a node
//! whose VMs are in a pool, see `tests/zfs/crash.rs`.

use std::time::Duration;

use muster_shared::wire::Code;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::exported::Exported;
use muster_tests::http::{Answer, Client};
use muster_tests::kill_points::chosen;
use muster_tests::pool::Pool;
use muster_tests::wait::wait_for;
use muster_tests::{container, guest, own_network};
use serde_json::{Value, json};

use super::assert_clean;

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
            Self::HardwareVm if ["machine_create", "machine_reprovision"].contains(&kind) => {
                guest::import(client).await
            }
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

    /// What the API makes VMs from.
    fn payload_of_image(self, vm: &str, image: &str) -> Value {
        let mut payload = self.payload(vm, image);
        if self == Self::HardwareVm {
            payload["disks"] = json!([{ "image_uuid": image, "boot": true, "model": "virtio" }]);
            payload["image"] = json!({ "uuid": image, "files": [{ "compression": "none" }] });
        }
        payload
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

/// What is asked of one node.
struct Asked {
    of: Of,
    client: Client,
    server: String,
    image: String,
    /// What VMs that are imported are filled with.
    exported: Option<Exported>,
}

impl Asked {
    fn path(&self, vm: &str, more: &str) -> String {
        format!("/servers/{}/vms/{vm}{more}", self.server)
    }

    /// Asks for a task of a kind about one VM.
    async fn ask(&self, vm: &str, kind: &str) -> Answer {
        let path = |more: &str| self.path(vm, more);
        let (of, client) = (self.of, &self.client);
        let force = json!({ "force": true });
        let update = json!({ "set_internal_metadata": { "a": "b" } });
        match kind {
            "machine_create" => {
                let payload = of.payload_of_image(vm, &self.image);
                client.post(&format!("/servers/{}/vms", self.server), &payload).await
            }
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
            "machine_rollback_snapshot" => {
                client.put(&path("/snapshots/a/rollback"), &json!({})).await
            }
            "machine_delete_snapshot" => client.delete(&path("/snapshots/a")).await,
            "machine_reprovision" => {
                client.post(&path("/reprovision"), &json!({ "image_uuid": self.image })).await
            }
            "machine_import" => {
                let exported = self.exported.as_ref().expect("there is an export");
                let mut request = exported.request(vm);
                // The pool of a test is too small for the allocator.
                request["server_uuid"] = json!(self.server);
                client.post("/vms/import", &request).await
            }
            "machine_import_end" => client.post(&path("/import"), &json!({})).await,
            "machine_destroy" => client.delete(&path("")).await,
            other => panic!("no request for {other}"),
        }
    }

    async fn complete(&self, vm: &str, kind: &str) {
        let asked = self.ask(vm, kind).await;
        assert!(asked.status.is_success(), "{kind}: {}", asked.text);
        self.client.complete_task(asked.json["id"].as_str().expect("a task id"), 120).await;
    }

    /// Makes a VM as the kind wants it.
    async fn prepare(&self, agent: &Agent, vm: &str, kind: &str) {
        match kind {
            "machine_create" | "machine_import" => return,
            "machine_import_end" => {
                self.complete(vm, "machine_import").await;
                let pieces = self.exported.iter().flat_map(|exported| &exported.pieces);
                for piece in pieces {
                    piece.write(&self.client, &self.path(vm, "/import"), true).await;
                }
            }
            _ => {
                let payload = self.of.payload(vm, &self.image);
                agent.run_task("machine_create", &payload).await;
            }
        }
        for earlier in before(kind) {
            self.complete(vm, earlier).await;
        }
    }
}

/// An export of a VM that is gone again.
async fn exported(coordinator: &Coordinator, agent: &Agent, of: Of, image: &str) -> Exported {
    let vm = fresh_uuid();
    agent.run_task("machine_create", &of.payload(&vm, image)).await;
    let folder = temp_dir();
    let file = folder.path().join("export");
    let client = coordinator.client();
    let known = async |wanted: u16| {
        wait_for("the coordinator knows of the VM", Duration::from_secs(60), || async {
            let answer = client.get(&format!("/vms/{vm}")).await;
            if answer.status == wanted { Ok(()) } else { Err(answer.text) }
        })
        .await;
    };
    known(200).await;
    let words = ["vm", "export", &vm, file.to_str().expect("a path"), "--live"];
    let exported = cli::output(coordinator, &words);
    assert!(exported.status.success(), "{exported:?}");
    agent.run_task("machine_destroy", &json!({ "uuid": vm })).await;
    known(404).await;
    Exported::read(&file)
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
        assert!([404, 409].contains(&answer.status.as_u16()), "{case}: {}", answer.text);
        return;
    };
    let ended = client.wait_task(id, 120).await;
    let excused = EXCUSES.iter().any(|code| ended["error"]["code"] == code.as_str());
    assert!(ended["status"] == "complete" || excused, "{case}: {ended:#}");
}

/// Waits until the agent dies, or its task has ended: some steps are for other parameters. Whether it
/// died.
async fn dies(agent: &mut Agent, client: &Client, asked: &Answer, point: &str) -> bool {
    let id = asked.json["id"].as_str().unwrap_or_else(|| panic!("{point}: {}", asked.text));
    let task = format!("/tasks/{id}");
    let daemon = agent.daemon();
    wait_for(&format!("the agent dies at {point}"), Duration::from_secs(120), || {
        let exited = daemon.has_exited();
        let task = &task;
        async move {
            let status = client.get(task).await.json["status"].clone();
            match exited {
                true => Ok(true),
                false if status == "complete" || status == "failure" => Ok(false),
                false => Err(status.to_string()),
            }
        }
    })
    .await
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
    let exported = match kind {
        "machine_import" | "machine_import_end" => {
            Some(exported(&coordinator, &agent, of, &image).await)
        }
        _ => None,
    };
    let server = agent.server_uuid.clone();
    let node = Asked { of, client: client.clone(), server, image, exported };
    let (points, mut died) = (chosen(kind), 0);
    for point in &points {
        println!("{point}");
        let vm = fresh_uuid();
        node.prepare(&agent, &vm, kind).await;
        agent.restart_with_env(&[("MUSTER_FAULT", &format!("{point}:kill"))]);
        agent.wait_allocatable(&client).await;
        let asked = node.ask(&vm, kind).await;
        died += usize::from(dies(&mut agent, &client, &asked, point).await);
        agent.restart_with_env(&[]);
        assert_ended(&client, &asked, point).await;
        agent.wait_allocatable(&client).await;
        let again = node.ask(&vm, kind).await;
        assert_ended(&client, &again, &format!("{point}, again")).await;
        let gone = node.ask(&vm, "machine_destroy").await;
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
    ($($kind:ident)+) => {
        $(
            #[tokio::test]
            async fn $kind() {
                killed(Of::HardwareVm, stringify!($kind)).await;
            }
        )+

        mod containers {
            use super::*;

            $(
                #[tokio::test]
                async fn $kind() {
                    killed(Of::Container, stringify!($kind)).await;
                }
            )+
        }
    };
}

killed_at_points_of! {
    machine_boot
    machine_create
    machine_create_image
    machine_create_snapshot
    machine_delete_snapshot
    machine_destroy
    machine_import
    machine_import_end
    machine_kill
    machine_reboot
    machine_reprovision
    machine_rollback_snapshot
    machine_shutdown
    machine_update
}
