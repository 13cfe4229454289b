//! A Debian as clouds have it, with cloud-init, as a VM: it comes up as its record says, and is
//! reached as docs/guests.md says.

use std::time::Duration;

use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::system::{free_port, guest_folder};
use muster_tests::wait::wait_for;
use serde_json::json;

use crate::node::LONG;

/// Longest wait for one `ssh`.
const ANSWER: Duration = Duration::from_secs(90);

/// What the guest does on its first boot, after cloud-init has named it and given it keys.
const SCRIPT: &str = "#!/bin/sh
{
    echo
    echo \"guest: host $(hostname)\"
    echo \"guest: key $(cat /root/.ssh/authorized_keys)\"
    echo \"guest: address $(ip -4 -o addr show scope global | awk '{ print $4 }')\"
    echo 'guest: all'
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
        if text.contains("guest: all") { Ok(text) } else { Err(last) }
    })
    .await;
    let lines: Vec<&str> =
        printed.lines().map(str::trim_end).filter(|line| line.starts_with("guest: ")).collect();
    println!("{}", lines.join("\n"));
    assert!(lines.contains(&"guest: host cloudy"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("guest: key") && line.contains(KEY)),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("guest: address 10.0.2.")), "{lines:?}");
}

/// `ssh` as a person would type it, but for what is asked of one who never logged in there.
async fn ssh(port: &str, key: &str, command: &str) -> Result<String, String> {
    #[expect(clippy::disallowed_methods, reason = "black-box tests start real programs")]
    let mut ssh = tokio::process::Command::new("ssh");
    let options = [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "BatchMode=yes",
        "LogLevel=ERROR",
    ];
    let options = options.iter().flat_map(|option| ["-o", option]);
    // A guest that is busy with its first boot takes its time to answer.
    let words = ["-o", "ConnectTimeout=30", "-i", key, "-p", port, "debian@127.0.0.1", command];
    let ran = ssh.args(options).args(words).kill_on_drop(true).output();
    let ran = tokio::time::timeout(ANSWER, ran).await.map_err(|_| "ssh hangs".to_owned())?;
    let ran = ran.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) }
}

/// The way of docs/guests.md: import, create, log in.
#[tokio::test(flavor = "multi_thread")]
async fn from_a_cloud_image_to_ssh_in_three_commands() {
    // The VM asks for more disk than a machine of tests may have free.
    let anywhere =
        "dapi.allocationDescription=[\"pipe\", \"hard-filter-setup\", \"hard-filter-running\"]";
    let coordinator = Coordinator::with_settings(&[anywhere]);
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&coordinator.client()).await;
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let key = path("id_ed25519");
    #[expect(clippy::disallowed_methods, reason = "black-box tests start real programs")]
    let mut keygen = std::process::Command::new("ssh-keygen");
    let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &key]).status();
    assert!(made.expect("ssh-keygen runs").success());
    let port = free_port().to_string();
    // The image's kernel has drivers for such a disk only.
    let spec = format!(
        "name: web1\nimage: debian@12\nram: 768MiB\nvcpus: 2\ndisks: [{{ model: nvme }}]\n\
         networks: [{{ name: admin }}]\npublish: [\"{port}:22\"]\nssh_key_files: [{key}.pub]\n"
    );
    std::fs::write(path("web1.yaml"), spec).expect("the folder is there");

    let file = guest_folder().join("cloud.qcow2").display().to_string();
    let import = ["image", "import", &file, "--name", "debian", "--version", "12"];
    println!("{}", cli::text(&coordinator, &import));
    println!("{}", cli::text(&coordinator, &["vm", "create", "--file", &path("web1.yaml")]));
    let host = wait_for("ssh logs in", LONG, || ssh(&port, &key, "hostname; id -un")).await;
    assert_eq!(host, "web1\ndebian");
}
