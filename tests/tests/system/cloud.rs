//! A Debian as clouds have it, with cloud-init, as a VM: it comes up as its record says.

use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::system::guest_folder;
use muster_tests::wait::wait_for;
use serde_json::json;

use crate::node::LONG;

/// What the guest does on its first boot, after cloud-init has named it and given it keys.
const SCRIPT: &str = "#!/bin/sh
{
    echo
    echo \"told: host $(hostname)\"
    echo \"told: key $(cat /root/.ssh/authorized_keys)\"
    echo \"told: address $(ip -4 -o addr show scope global | awk '{ print $4 }')\"
    echo 'told: all'
} >/dev/ttyS0
";
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHBlcnNvbiBvZiB0ZXN0cyBub3QgYSByZWFs op@tests";

#[tokio::test]
async fn a_cloud_image_comes_up_with_its_name_keys_and_user_data() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let file = guest_folder().join("cloud.qcow2").display().to_string();
    let words = ["image", "import", &file, "--name", "debian", "--version", "12"];
    let imported = cli::json(&coordinator, &words);
    let image = imported["uuid"].as_str().unwrap_or_else(|| panic!("{imported}")).to_owned();

    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "bhyve", "alias": "cloudy", "ram": 768, "vcpus": 2, "autoboot": true,
        "disks": [{ "image_uuid": image, "boot": true, "model": "nvme" }],
        "nics": [{ "nic_tag": "admin", "model": "virtio", "primary": true }],
        "customer_metadata": { "root_authorized_keys": KEY, "cloud-init:user-data": SCRIPT },
    });
    agent.run_task("machine_create", &payload).await;
    let log = agent.data_dir().join(format!("guests/{vm}/console.log"));
    let printed = wait_for("the guest's user-data has run", LONG, || async {
        let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
        let last = text.lines().rev().take(30).map(str::to_owned).collect::<Vec<_>>();
        if text.contains("told: all") { Ok(text) } else { Err(last) }
    })
    .await;
    let told: Vec<&str> =
        printed.lines().map(str::trim_end).filter(|line| line.starts_with("told: ")).collect();
    println!("{}", told.join("\n"));
    assert!(told.contains(&"told: host cloudy"), "{told:?}");
    assert!(
        told.iter().any(|line| line.starts_with("told: key") && line.contains(KEY)),
        "{told:?}"
    );
    assert!(told.iter().any(|line| line.starts_with("told: address 10.0.2.")), "{told:?}");
}
