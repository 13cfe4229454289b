//! Disks that come and go while their guest runs, and memory that it gives back, seen from inside it. It
//! stays the same process, and its agent is killed in between.

use std::collections::BTreeSet;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::kill_points::fault_points;
use muster_tests::own_network;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// How far memory may be from what is wanted: tables grow with it.
const NEAR_KB: u64 = 4 * 1024;

/// Tells each second which disks the guest has, by serial and size, and how much memory. On the blank one
/// it writes something; of the one of an image, disk 2, it tells how its first block ends.
const WATCHES: &str = "#!/bin/sh\n\
    while :; do\n\
      { for disk in /sys/block/vd*; do\n\
          serial=$(cat $disk/serial) dev=/dev/${disk##*/}\n\
          echo disk $serial $(cat $disk/size)\n\
          case $serial in\n\
          b1a2c3*) [ \"$(head -c 6 $dev)\" = marked ] || { echo marked >$dev; sync; }\n\
            echo content $(head -c 6 $dev) ;;\n\
          disk2) echo block $(head -c 512 $dev | tail -c 2 | od -An -tx1) ;;\n\
          esac\n\
        done\n\
        grep MemTotal /proc/meminfo\n\
        echo end; } >/run/state 2>/dev/null\n\
      mv /run/state /www/state\n\
      sleep 1\n\
    done\n";

struct Vm<'a> {
    client: &'a Client,
    uuid: String,
    path: String,
}

impl<'a> Vm<'a> {
    async fn create(client: &'a Client, agent: &Agent, image: &str) -> Self {
        let vms = format!("/servers/{}/vms", agent.server_uuid);
        let uuid = fresh_uuid();
        let nic = json!({ "nic_tag": "one", "primary": true, "ips": ["10.77.0.11/24"] });
        let payload = json!({
            "uuid": uuid, "brand": "kvm", "ram": 192, "alias": "changing", "nics": [nic],
            "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
            "owner_uuid": fresh_uuid(), "customer_metadata": { "user-script": WATCHES },
        });
        let asked = client.post(&vms, &payload).await.expect(200);
        client.complete_task(asked["id"].as_str().expect("a task"), 240).await;
        let path = format!("{vms}/{uuid}");
        Self { client, uuid, path }
    }

    /// The task's id.
    async fn ask(&self, change: Value) -> String {
        let asked = self.client.post(&format!("{}/update", self.path), &change).await.expect(200);
        asked["id"].as_str().expect("a task").to_owned()
    }

    /// The task's result.
    async fn update(&self, change: Value) -> Value {
        self.client.complete_task(&self.ask(change).await, 120).await
    }

    async fn get(&self) -> Value {
        self.client.get(&self.path).await.expect(200)
    }

    async fn signal(&self, signal: &str) {
        let kill = format!("{}/kill", self.path);
        let asked = self.client.post(&kill, &json!({ "signal": signal })).await.expect(200);
        self.client.complete_task(asked["id"].as_str().expect("a task"), 60).await;
    }

    /// The path of the disk with this number.
    async fn disk(&self, number: u32) -> Value {
        let disks = self.get().await["disks"].as_array().cloned().unwrap_or_default();
        let name = format!("/disk{number}.qcow2");
        let found = disks.into_iter().map(|disk| disk["path"].clone());
        found
            .into_iter()
            .find(|path| path.as_str().is_some_and(|path| path.ends_with(&name)))
            .expect("the VM has this disk")
    }

    async fn destroy(&self) {
        let gone = self.client.delete(&self.path).await.expect(200);
        self.client.complete_task(gone["id"].as_str().expect("a task"), 120).await;
    }
}

/// What the guest tells: its disks by serial and MiB, its memory in kB, and all of it.
struct Told {
    disks: BTreeSet<(String, u64)>,
    memory_kb: u64,
    text: String,
}

fn told() -> Result<Told, String> {
    let text = guest::page("10.77.0.11:80", "/state")?;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (mut disks, mut memory_kb) = (BTreeSet::new(), 0);
    for line in text.lines().map(words) {
        match line.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["disk", "cidata", _] => {}
            // Of 512 bytes, as the kernel counts them.
            ["disk", serial, sectors] => {
                let sectors: u64 = sectors.parse().map_err(|_| text.clone())?;
                disks.insert((serial.to_owned(), sectors / 2048));
            }
            ["MemTotal:", kb, _] => memory_kb = kb.parse().map_err(|_| text.clone())?,
            _ => {}
        }
    }
    if text.ends_with("end") { Ok(Told { disks, memory_kb, text }) } else { Err(text) }
}

/// Waits until the guest has these disks, by serial and MiB.
async fn has(wanted: &[(&str, u64)]) -> Told {
    let all: BTreeSet<_> =
        wanted.iter().map(|(serial, mib)| ((*serial).to_owned(), *mib)).collect();
    wait_for(&format!("the guest has {wanted:?}"), BOOT, || async {
        let told = told()?;
        if told.disks == all { Ok(told) } else { Err(told.text) }
    })
    .await
}

/// Of a guest that was just started with 192 MiB: what its kernel does not count, kB.
async fn uncounted() -> u64 {
    let told = wait_for("the guest tells", BOOT, || async { told() }).await;
    192 * 1024 - told.memory_kb
}

/// Waits until the guest has so much memory beside what its kernel does not count.
async fn has_memory(mib: u64, uncounted_kb: u64) {
    wait_for(&format!("the guest has {mib} MiB"), BOOT, || async {
        let told = told()?;
        let near = (told.memory_kb + uncounted_kb).abs_diff(mib * 1024) <= NEAR_KB;
        if near { Ok(()) } else { Err(told.text) }
    })
    .await;
}

/// Names of the disks' files.
fn files(agent: &Agent, vm: &Vm<'_>) -> BTreeSet<String> {
    let folder = agent.data_dir().join("vols").join(&vm.uuid);
    let entries = std::fs::read_dir(folder).expect("the VM has disks");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    names.map(|name| name.expect("text")).filter(|name| name.ends_with(".qcow2")).collect()
}

fn disk_files(numbers: &[u32]) -> BTreeSet<String> {
    numbers.iter().map(|number| format!("disk{number}.qcow2")).collect()
}

/// Serials are cut to 20 characters of this.
fn blank() -> (String, String) {
    let uuid = format!("b1a2c300-{}", &fresh_uuid()[9..]);
    let serial = uuid.chars().take(20).collect();
    (uuid, serial)
}

#[tokio::test]
async fn disks_come_and_go_while_their_guest_runs_and_it_sees_them() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent =
        Agent::with(&[&coordinator.agent_url()], &[r#"network.server_tags=["one"]"#], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = Vm::create(&client, &agent, &image).await;
    has(&[("disk0", 32)]).await;
    let pids = agent.guest_pids();

    // One that is blank, with a limit, and one of an image.
    let (uuid, serial) = blank();
    let added = vm
        .update(json!({ "add_disks": [
            { "size": 16, "uuid": uuid, "max_iops": 500 }, { "image_uuid": image },
        ] }))
        .await;
    assert_eq!(added["pending_reboot"], json!([]), "{added:#}");
    let all = [("disk0", 32), (serial.as_str(), 16), ("disk2", 32)];
    has(&all).await;
    wait_for("the guest reads and writes them", BOOT, || async {
        let told = told()?;
        let works = ["content marked", "block 55 aa"].iter().all(|text| told.text.contains(text));
        if works { Ok(()) } else { Err(told.text) }
    })
    .await;
    let throttle = client.get(&format!("{}/info?info=block", vm.path)).await.expect(200);
    let limited = throttle["block"]
        .as_array()
        .expect("disks")
        .iter()
        .any(|it| it["inserted"]["node-name"] == "disk1" && it["inserted"]["iops"] == 500);
    assert!(limited, "{throttle:#}");

    // The next agent knows what the guest has, and takes one of them.
    agent.kill9();
    agent.restart();
    agent.wait_status(&client, "running", BOOT).await;
    let path = vm.disk(1).await;
    let grown = vm.update(json!({ "update_disks": [{ "path": path, "size": 24 }] })).await;
    assert_eq!(grown["pending_reboot"], json!([]), "{grown:#}");
    has(&[("disk0", 32), (serial.as_str(), 24), ("disk2", 32)]).await;
    let removed = vm.update(json!({ "remove_disks": [path] })).await;
    assert_eq!(removed["pending_reboot"], json!([]), "{removed:#}");
    has(&[("disk0", 32), ("disk2", 32)]).await;
    assert_eq!(files(&agent, &vm), disk_files(&[0, 2]));
    assert_eq!(agent.guest_pids(), pids);

    // A guest that is paused hears nothing: it keeps the disk, and the record says so.
    vm.signal("SIGSTOP").await;
    let path = vm.disk(2).await;
    let task = vm.ask(json!({ "remove_disks": [path] })).await;
    let failed = client.wait_task(&task, 120).await;
    assert_eq!(failed["status"], "failure", "{failed:#}");
    let why = failed["history"][0]["event"]["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("did not give up disk 2"), "{failed:#}");
    assert_eq!(vm.disk(2).await, path);
    assert_eq!(files(&agent, &vm), disk_files(&[0, 2]));
    // It may give it up once it goes on; then it gets it again.
    vm.signal("SIGCONT").await;
    wait_for("the agent has settled the guest's disks", BOOT, || async {
        let block = client.get(&format!("{}/info?info=block", vm.path)).await.expect(200);
        let has = |it: &Value| it["inserted"]["node-name"] == "disk2";
        let plugged = block["block"].as_array().is_some_and(|all| all.iter().any(has));
        if plugged && told().is_ok_and(|told| told.disks.len() == 2) { Ok(()) } else { Err(block) }
    })
    .await;

    // After a restart the guest has the same.
    vm.update(json!({ "vcpus": 2, "reboot": "always" })).await;
    assert_ne!(agent.guest_pids(), pids);
    has(&[("disk0", 32), ("disk2", 32)]).await;
    let pids = agent.guest_pids();
    vm.update(json!({ "remove_disks": [vm.disk(2).await] })).await;
    has(&[("disk0", 32)]).await;
    assert_eq!((agent.guest_pids(), files(&agent, &vm)), (pids, disk_files(&[0])));
    vm.destroy().await;
}

#[tokio::test]
async fn a_guest_gives_memory_back_and_takes_it_again() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent =
        Agent::with(&[&coordinator.agent_url()], &[r#"network.server_tags=["one"]"#], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = Vm::create(&client, &agent, &image).await;
    let uncounted = uncounted().await;
    let pids = agent.guest_pids();
    let less = vm.update(json!({ "ram": 128 })).await;
    assert_eq!(less["pending_reboot"], json!([]), "{less:#}");
    has_memory(128, uncounted).await;
    agent.kill9();
    agent.restart();
    agent.wait_status(&client, "running", BOOT).await;
    assert!(vm.get().await.get("running_with").is_none(), "nothing waits");
    // More than it was started with waits for its next start.
    let more = vm.update(json!({ "ram": 256 })).await;
    assert_eq!(more["pending_reboot"], json!(["ram"]), "{more:#}");
    assert_eq!(more["vm"]["running_with"], json!({ "ram": 192 }));
    has_memory(192, uncounted).await;
    assert_eq!(agent.guest_pids(), pids);
    vm.update(json!({ "ram": 256, "vcpus": 2, "reboot": "always" })).await;
    has_memory(256, uncounted).await;
    vm.destroy().await;
}

/// The agent is killed before and after each step that changes the guest or what is written of it.
#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_goes_on_with_the_same_guest() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent =
        Agent::with(&[&coordinator.agent_url()], &[r#"network.server_tags=["one"]"#], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let vm = Vm::create(&client, &agent, &image).await;
    let add = json!({ "add_disks": [{ "size": 8, "uuid": blank().0 }] });
    vm.update(add).await;
    let uncounted = uncounted().await;
    let pids = agent.guest_pids();
    let steps = ["disks", "memory", "record", "purge"];
    let points = fault_points("machine_update").into_iter();
    let points: Vec<_> = points
        .filter(|it| it.split(':').nth(1).is_some_and(|step| steps.contains(&step)))
        .collect();
    assert_eq!(points.len(), 2 * steps.len(), "{points:?}");
    for (turn, point) in points.iter().enumerate() {
        // One disk in place of the other, which has another number, and a little more memory or less.
        let old = vm.get().await["disks"][1]["path"].clone();
        let (uuid, serial) = blank();
        let ram = 176 - 16 * (turn as u64 % 2);
        let change = json!({
            "remove_disks": [old], "add_disks": [{ "size": 8, "uuid": uuid }], "ram": ram,
        });
        agent.restart_with_env(&[("MUSTER_FAULT", &format!("{point}:kill"))]);
        agent.wait_allocatable(&client).await;
        let task = vm.ask(change).await;
        let daemon = agent.daemon();
        wait_for(&format!("the agent dies at {point}"), BOOT, || {
            let exited = daemon.has_exited();
            async move { if exited { Ok(()) } else { Err("still running") } }
        })
        .await;
        agent.restart_with_env(&[]);
        client.complete_task(&task, 120).await;
        has(&[("disk0", 32), (serial.as_str(), 8)]).await;
        has_memory(ram, uncounted).await;
        agent.wait_status(&client, "running", BOOT).await;
        let seen = vm.get().await;
        assert_eq!(
            (&seen["disks"][1]["uuid"], &seen["ram"]),
            (&json!(uuid), &json!(ram)),
            "{point}"
        );
        assert_eq!(seen["disks"].as_array().map(Vec::len), Some(2), "{point}");
        assert!(seen.get("running_with").is_none(), "{point}: {seen:#}");
        let new = if turn % 2 == 0 { 2 } else { 1 };
        assert_eq!(files(&agent, &vm), disk_files(&[0, new]), "{point}");
        assert_eq!(agent.guest_pids(), pids, "{point}");
    }
    vm.destroy().await;
}
