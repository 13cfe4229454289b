//! A pool without a byte to spare: guests stand still and say why, what makes room is done, and
//! they go on by themselves.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, TEMP_DIR, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(180);

/// A small file system over the folder of temporary files, in a mount namespace of this test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, and said so, where this process may not.
    fn new(mib: u32) -> Option<Self> {
        let folder = PathBuf::from(TEMP_DIR);
        match unshare(CloneFlags::CLONE_NEWNS) {
            Ok(()) => {}
            Err(Errno::EPERM) => {
                println!("SKIPPED: no right to make a mount namespace");
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let path = folder.display().to_string();
        run(&["mount", "--make-rprivate", "/"]);
        run(&["mount", "-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs", &path]);
        Some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}

#[track_caller]
fn run(words: &[&str]) {
    #[expect(clippy::disallowed_methods, reason = "a test prepares its machine as people would")]
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.is_ok_and(|status| status.success()), "{words:?}");
}

/// A VM that fills its second disk as soon as it is up.
async fn greedy(agent: &Agent, image: &str, alias: &str, mib: u64) -> String {
    let script = "#!/bin/sh\ndd if=/dev/zero of=/dev/vdb bs=1M\necho filled\n";
    let vm = fresh_uuid();
    // No allocator would place so much here.
    let payload = json!({
        "uuid": vm, "brand": "kvm", "alias": alias, "ram": 192, "autoboot": true,
        "disks": [{ "image_uuid": image, "boot": true }, { "size": mib }],
        "nics": [{ "nic_tag": "admin" }],
        "customer_metadata": { "user-script": script },
    });
    agent.run_task("machine_create", &payload).await;
    vm
}

async fn wait_filled(agent: &Agent, vm: &str) {
    let log = agent.data_dir().join(format!("guests/{vm}/console.log"));
    wait_for("the guest has filled its disk", LONG, || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("\nfilled") { Ok(()) } else { Err(text) }
    })
    .await;
}

async fn wait_state(client: &Client, vm: &str, state: &str) -> Value {
    wait_for(&format!("VM {vm} is {state}"), LONG, || async {
        let answer = client.get(&format!("/vms/{vm}")).await;
        if answer.json["state"] == state { Ok(answer.json) } else { Err(answer.text) }
    })
    .await
}

#[tokio::test]
async fn guests_on_a_full_disk_wait_for_room_and_go_on() {
    // In this machine's own folder: only the agent's disk is full.
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let Some(disk) = SmallDisk::new(480) else { return };
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let settled = greedy(&agent, &image, "settled", 200).await;
    wait_filled(&agent, &settled).await;
    let hungry = greedy(&agent, &image, "hungry", 320).await;
    let stopped = wait_state(&client, &hungry, "io-error").await;
    let reason = stopped["state_reason"].as_str().unwrap_or_default();
    assert!(reason.contains("No space left"), "{stopped:#}");

    let why = client.get(&format!("/why/vm/{hungry}")).await.expect(200);
    let text = why["text"].as_str().unwrap_or_default();
    assert!(text.contains("io-error (disk1: write: No space left"), "{why:#}");

    // There is no room for the journal either.
    let vms = format!("/servers/{}/vms", agent.server_uuid);
    let refused = client.post(&format!("{vms}/{hungry}/update"), &json!({ "alias": "x" })).await;
    if let Some(id) = refused.json["id"].as_str() {
        let task = client.wait_task(id, 60).await;
        assert_eq!(task["error"]["code"], "StoreFull", "{task:#}");
    }
    let destroyed = client.delete(&format!("{vms}/{settled}")).await;
    let id = destroyed.json["id"].as_str().unwrap_or_else(|| panic!("{}", destroyed.text));
    client.complete_task(id, 120).await;
    wait_state(&client, &hungry, "running").await;
    wait_filled(&agent, &hungry).await;
    drop(agent);
    drop(disk);
}

/// Takes what is free, to the last byte.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.0.join("others");
    let mut file = File::create(&path).expect("it is writable");
    for bytes in [1 << 20, 4_096, 1] {
        while file.write_all(&vec![0; bytes]).is_ok() {}
    }
    path
}

#[tokio::test]
async fn daemons_start_on_a_full_disk_and_remove_what_is_there() {
    const TICKETS: &str = "/servers/default/tickets";
    let Some(disk) = SmallDisk::new(400) else { return };
    let mut coordinator = Coordinator::start();
    let mut agent = Agent::start(&coordinator.agent_url());
    let client = coordinator.client();
    agent.wait_allocatable(&client).await;
    let ticket = json!({ "scope": "test", "id": "1", "expires_at": "3000" });
    let made = client.post(TICKETS, &ticket).await.expect(202)["uuid"].clone();
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "alias": "small", "ram": 128,
        "disks": [{ "size": 64 }], "nics": [],
    });
    agent.run_task("machine_create", &payload).await;

    coordinator.kill9();
    agent.kill9();
    let others = fill(&disk);
    coordinator.restart();
    agent.restart();

    client.get("/ping").await.expect(200);
    agent.wait_status(&client, "running", LONG).await;
    // Its report comes after the first sign of life.
    wait_for("the VM is known", LONG, || async {
        let answer = client.get(&format!("/vms/{vm}")).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    let refused = client.post(TICKETS, &ticket).await;
    let made = made.as_str().expect("a uuid");
    client.delete(&format!("/tickets/{made}")).await.expect(204);
    assert_eq!(client.get(&format!("/tickets/{made}")).await.status, 404);
    agent.run_task("machine_destroy", &json!({ "uuid": vm })).await;

    std::fs::remove_file(others).expect("it is there");
    wait_for("tickets are taken again", LONG, || async {
        let answer = client.post(TICKETS, &ticket).await;
        if answer.status == 202 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    println!("on the full disk a ticket was answered {}", refused.status);
    drop((agent, coordinator));
    drop(disk);
}
