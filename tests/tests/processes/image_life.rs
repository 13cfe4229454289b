//! The life of an image on a node: it comes, is used, and goes.

use std::path::Path;
use std::time::Duration;

use muster_shared::wire::Code;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const LONG: Duration = Duration::from_secs(120);
const OCTETS: &str = "application/octet-stream";

struct Cluster {
    client: Client,
    agent: Agent,
    image: String,
    _coordinator: Coordinator,
}

impl Cluster {
    /// A node and an image that it does not have yet: an empty disk.
    async fn start(settings: &[&str]) -> Self {
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let agent = Agent::with(&[&coordinator.agent_url()], settings, &[]);
        agent.wait_allocatable(&client).await;
        let image = fresh_uuid();
        let manifest = json!({
            "v": 2, "uuid": image, "name": "empty", "version": "1.2", "type": "zvol", "os": "linux",
            "files": [{ "format": "raw" }],
        });
        client.post("/images", &manifest).await.expect(200);
        let disk = vec![0; 1 << 20];
        let sum = hex::encode(Sha256::digest(&disk));
        let path = format!("/images/{image}/file?compression=none&sha256={sum}");
        client.send_bytes(Method::PUT, &path, OCTETS, disk).await.expect(200);
        client.post(&format!("/images/{image}?action=activate"), &json!({})).await.expect(200);
        Self { client, agent, image, _coordinator: coordinator }
    }

    fn server(&self) -> String {
        format!("/servers/{}", self.agent.server_uuid)
    }

    async fn listed(&self) -> Value {
        self.client.get(&format!("{}/images", self.server())).await.expect(200)["images"].clone()
    }

    /// A VM with a disk of the image; it is not started.
    async fn create(&self) -> String {
        let vm = fresh_uuid();
        let payload = json!({
            "uuid": vm, "brand": "kvm", "ram": 64, "owner_uuid": fresh_uuid(), "autoboot": false,
            "disks": [{ "image_uuid": self.image, "boot": true, "model": "virtio" }],
        });
        self.agent.run_task("machine_create", &payload).await;
        vm
    }

    async fn destroy(&self, vm: &str) {
        self.agent.run_task("machine_destroy", &json!({ "uuid": vm })).await;
    }

    /// Asks for the image to be removed; the task's record.
    async fn remove(&self) -> Value {
        let path = format!("{}/images/{}", self.server(), self.image);
        let task = self.client.delete(&path).await.expect(200)["id"].clone();
        self.client.wait_task(task.as_str().expect("an id"), 60).await
    }

    async fn degraded(&self) -> String {
        self.agent.client().get("/ping").await.expect(200)["degraded"].to_string()
    }
}

#[tokio::test]
async fn an_image_goes_when_no_vm_needs_it_and_comes_again() {
    let cluster = Cluster::start(&[]).await;
    assert_eq!(cluster.listed().await, json!([]));
    let vm = cluster.create().await;
    let first = cluster.listed().await;
    let image = &first[0];
    let members = (&image["uuid"], &image["name"], &image["version"], &image["origin"]);
    assert_eq!(
        members,
        (&json!(cluster.image), &json!("empty"), &json!("1.2"), &Value::Null),
        "{first}"
    );
    assert_eq!((&image["disks"], &image["vms"]), (&json!(1), &json!(1)), "{first}");
    assert!(image["size_bytes"].as_u64() > Some(0), "{first}");
    assert!(image["last_used_at"].as_str() >= image["installed_at"].as_str(), "{first}");

    let refused = cluster.remove().await;
    assert_eq!(refused["status"], "failure", "{refused}");
    let error = &refused["error"];
    assert_eq!(error["code"], "ImageHasDependentClones", "{refused:#}");
    let text = error["message"].as_str().expect("a text");
    assert!(text.contains("in use by 1 VM (1 disk)"), "{text}");
    assert_eq!(Code::ImageHasDependentClones.status(), 409);
    cluster.destroy(&vm).await;
    assert_eq!(cluster.listed().await[0]["disks"], 0);
    for _ in 0..2 {
        let removed = cluster.remove().await;
        assert_eq!(removed["status"], "complete", "{removed}");
        assert_eq!(cluster.listed().await, json!([]));
    }
    let folder = cluster.agent.data_dir().join("images");
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), 0);

    cluster.create().await;
    let again = cluster.listed().await;
    assert_eq!(again[0]["uuid"], *cluster.image);
    assert!(again[0]["installed_at"].as_str() > image["installed_at"].as_str(), "{again}");
}

#[tokio::test]
async fn an_agent_removes_what_nobody_needs_and_says_when_it_can_not() {
    let always = [
        "images.gc.enabled=true",
        "images.gc.high_percent=0",
        "images.gc.low_percent=0",
        "images.gc.min_age_s=0",
    ];
    let mut cluster = Cluster::start(&always).await;
    let vm = cluster.create().await;
    cluster.agent.restart();
    wait_for("it says that nothing can go", LONG, || async {
        let degraded = cluster.degraded().await;
        if degraded.contains("no image here can be removed") { Ok(()) } else { Err(degraded) }
    })
    .await;
    cluster.agent.wait_status(&cluster.client, "running", LONG).await;
    let listed = cluster.listed().await;
    assert_eq!(listed[0]["disks"], 1, "{listed}");

    cluster.destroy(&vm).await;
    cluster.agent.restart();
    wait_for("the image is gone", LONG, || async {
        let left = std::fs::read_dir(cluster.agent.data_dir().join("images"));
        let left = left.expect("a folder").count();
        if left == 0 { Ok(()) } else { Err(format!("{left} files")) }
    })
    .await;
    let tasks = cluster.agent.client().get("/tasks?task=image_delete").await;
    assert!(tasks.text.contains(&cluster.image), "{}", tasks.text);
}

/// What the operator has a guest do before an image is made of its disk.
const PREPARES: &str = "#!/bin/sh\n\
    mdata put prepare-image:state running\n\
    mkdir /run/boot && mount -t vfat /dev/vda1 /run/boot && echo prepared >/run/boot/mark && sync &&\n\
      umount /run/boot || {\n\
        mdata put prepare-image:error 'the boot disk can not be written'\n\
        mdata put prepare-image:state error\n\
        poweroff -f\n\
      }\n\
    mdata put kept no\n\
    mdata put prepare-image:state success\n\
    poweroff -f\n";
/// Says what is on its boot disk.
const TELLS: &str = "#!/bin/sh\n\
    mkdir /run/boot && mount -t vfat -o ro /dev/vda1 /run/boot\n\
    echo \"mark is $(cat /run/boot/mark 2>/dev/null || echo missing)\"\n";

/// Makes a VM of an image that says what is on its boot disk; returns its uuid.
async fn teller(agent: &Agent, image: &str) -> String {
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "ram": 192, "owner_uuid": fresh_uuid(),
        "customer_metadata": { "user-script": TELLS },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
    });
    agent.run_task("machine_create", &payload).await;
    vm
}

/// How often the guest has said this.
fn said(agent: &Agent, vm: &str, what: &str) -> usize {
    let console = agent.data_dir().join(format!("guests/{vm}/console.log"));
    let printed = std::fs::read(console).unwrap_or_default();
    String::from_utf8_lossy(&printed).matches(what).count()
}

async fn says(agent: &Agent, vm: &str, what: &str, times: usize) {
    wait_for(&format!("{vm} says {what} {times} times"), guest::BOOT, || async {
        let found = said(agent, vm, what);
        if found == times { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

/// The snapshots in a file that somebody may have open.
fn snapshots(disk: &Path) -> String {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start real programs")]
    let mut program = std::process::Command::new("qemu-img");
    let listed = program.args(["snapshot", "-l", "-U"]).arg(disk).output().expect("qemu-img runs");
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// What of a VM must be as before: whether it runs, its metadata, the snapshots of its disks.
async fn state(client: &Client, agent: &Agent, vm: &str) -> Value {
    let found = client.get(&format!("/servers/{}/vms/{vm}", agent.server_uuid)).await.expect(200);
    let disk = agent.data_dir().join(format!("vols/{vm}/disk0.qcow2"));
    json!([
        found["state"],
        found["customer_metadata"],
        found["internal_metadata"],
        snapshots(&disk),
    ])
}

/// A VM that runs prepares itself, also when its agent dies meanwhile. Only the difference is kept, and is
/// installed on another node.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_prepares_itself_and_what_differs_makes_others_like_it() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = teller(&agent, &image).await;
    says(&agent, &vm, "mark is missing", 1).await;
    let before = state(&client, &agent, &vm).await;
    let path = format!("/servers/{}/vms/{vm}/images", agent.server_uuid);
    let made = fresh_uuid();
    let body = json!({
        "compression": "gzip", "prepare_image_script": PREPARES, "incremental": true,
        "manifest": { "uuid": made, "name": "made", "version": "1" },
    });

    agent.restart_with_env(&[("MUSTER_FAULT", "machine_create_image:prepare:after:kill")]);
    agent.wait_status(&client, "running", LONG).await;
    let asked = client.post(&path, &body).await.expect(200);
    agent.daemon().wait_exit(guest::BOOT).await;
    agent.restart_with_env(&[]);
    let ended = client.wait_task(asked["id"].as_str().expect("a task"), 240).await;
    assert_eq!(ended["error"]["code"], "Interrupted", "{ended:#}");
    says(&agent, &vm, "mark is missing", 2).await;
    assert_eq!(state(&client, &agent, &vm).await, before);
    assert_eq!(client.get(&format!("/images/{made}")).await.status, 404);

    let asked = client.post(&path, &body).await.expect(200);
    client.complete_task(asked["id"].as_str().expect("a task"), 600).await;
    says(&agent, &vm, "mark is missing", 3).await;
    assert_eq!(state(&client, &agent, &vm).await, before);
    let manifest = client.get(&format!("/images/{made}")).await.expect(200);
    let file = &manifest["files"][0];
    assert_eq!((&manifest["origin"], &manifest["state"]), (&json!(image), &json!("active")));
    assert!(file["size"].as_u64() < Some(1 << 20), "{manifest:#}");

    let other = Agent::start(&coordinator.agent_url());
    other.wait_allocatable(&client).await;
    let copy = teller(&other, &made).await;
    says(&other, &copy, "mark is prepared", 1).await;
    let images = format!("/servers/{}/images", other.server_uuid);
    let listed = client.get(&images).await.expect(200)["images"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed:#}");
    // What others build on stays, on a node and in the repository.
    let asked = client.delete(&format!("{images}/{image}")).await.expect(200);
    let refused = client.wait_task(asked["id"].as_str().expect("a task"), 60).await;
    assert_eq!(refused["error"]["code"], "ImageHasDependentClones", "{refused:#}");
    let refused = client.delete(&format!("/images/{image}")).await.expect(409);
    assert_eq!(refused["code"], "ImageHasDependentClones", "{refused:#}");
    client.delete(&format!("/images/{made}")).await.expect(204);
    client.delete(&format!("/images/{image}")).await.expect(204);
}
