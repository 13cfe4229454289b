//! The host goes down: its guests leave in order, each in its time.

use std::process::Command;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::wait::wait_for;
use serde_json::json;

const LONG: Duration = Duration::from_secs(120);

#[tokio::test]
async fn guests_leave_with_their_host_in_order_and_are_not_cut_off() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let mut vms = Vec::new();
    // The one without a system hears no button.
    for (alias, disk, wishes) in [
        (
            "database",
            json!({ "image_uuid": image, "boot": true }),
            json!({ "muster:boot_priority": 1 }),
        ),
        ("web", json!({ "image_uuid": image, "boot": true }), json!({ "muster:boot_priority": 2 })),
        ("deaf", json!({ "size": 8 }), json!({ "muster:shutdown_timeout": 2 })),
    ] {
        let vm = fresh_uuid();
        let payload = json!({
            "uuid": vm, "brand": "kvm", "alias": alias, "ram": 192, "autoboot": true,
            "disks": [disk], "nics": [{ "nic_tag": "admin" }], "internal_metadata": wishes,
        });
        agent.run_task("machine_create", &payload).await;
        vms.push(vm);
    }
    for vm in &vms[..2] {
        let log = agent.data_dir().join(format!("guests/{vm}/console.log"));
        wait_for("the guest is up", LONG, || async {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains("muster-guest up") { Ok(()) } else { Err(text) }
        })
        .await;
    }
    // The agent may be gone by then, and need not be.
    agent.kill9();
    let program = muster_tests::binary("muster-agent");
    let (data_dir, run_dir) = (agent.data_dir(), agent.run_dir());
    #[expect(clippy::disallowed_methods, reason = "a test calls the real tool")]
    let ran = Command::new(program)
        .args(["--data-dir", &data_dir.display().to_string()])
        .args(["--run-dir", &run_dir.display().to_string()])
        .args(["shutdown-guests", "--timeout", "100"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("VM ")).collect();
    assert_eq!(lines.len(), 3, "{stderr}");
    assert!(lines[0].contains("(deaf) was killed, its time was over"), "{stderr}");
    assert!(lines[1].contains("(web) shut down"), "{stderr}");
    assert!(lines[2].contains("(database) shut down"), "{stderr}");
    assert_eq!(agent.guest_pids(), Vec::<u32>::new());

    agent.restart();
    for vm in &vms {
        let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
        let loaded = wait_for("the agent is back", LONG, || async {
            let answer = client.get(&path).await;
            if answer.status == 200 { Ok(answer.json) } else { Err(answer.text) }
        })
        .await;
        assert_eq!((&loaded["state"], &loaded["autoboot"]), (&json!("stopped"), &json!(true)));
    }
}
