//! A Debian as clouds have it, with cloud-init, as a VM: it comes up as its record says, and is
//! reached as docs/guests.md says.

use std::path::Path;
use std::time::Duration;

use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::own_network;
use muster_tests::system::{free_port, guest_folder};
use muster_tests::wait::wait_for;
use serde_json::json;

use muster_tests::system::node::LONG;

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
async fn ssh(to: &str, port: &str, key: &str, command: &str) -> Result<String, String> {
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
    let words = ["-o", "ConnectTimeout=30", "-i", key, "-p", port, to, command];
    let ran = ssh.args(options).args(words).kill_on_drop(true).output();
    let ran = tokio::time::timeout(ANSWER, ran).await.map_err(|_| "ssh hangs".to_owned())?;
    let ran = ran.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) }
}

/// Makes a key pair; the path of the private one.
fn new_key(folder: &Path) -> String {
    let key = folder.join("id_ed25519").display().to_string();
    #[expect(clippy::disallowed_methods, reason = "black-box tests start real programs")]
    let mut keygen = std::process::Command::new("ssh-keygen");
    let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &key]).status();
    assert!(made.expect("ssh-keygen runs").success());
    key
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
    let key = new_key(folder.path());
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
    let host =
        wait_for("ssh logs in", LONG, || ssh("debian@127.0.0.1", &port, &key, "hostname; id -un"))
            .await;
    assert_eq!(host, "web1\ndebian");
}

/// Runs a command in the guest `routed`; what it printed, or its complaint.
fn inside(coordinator: &Coordinator, command: &str) -> Result<String, String> {
    let words = ["vm", "exec", "routed", "--", "sh", "-c", command];
    let ran = cli::output(coordinator, &words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match ran.status.success() {
        true => Ok(text(&ran.stdout)),
        false => Err(text(&ran.stdout) + &text(&ran.stderr)),
    }
}

/// Has a login of the guest changed; the exit status, and what was said.
fn set_login(coordinator: &Coordinator, user: &str, more: &[&str]) -> (i32, String) {
    let words = [&["vm", "set-login", "routed", "--user", user][..], more].concat();
    let ran = cli::output(coordinator, &words);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    (ran.status.code().unwrap_or(-1), said)
}

/// Logs in as `debian` with a password, as somebody who may not do so without.
fn with_password(coordinator: &Coordinator, password: &str) -> Result<String, String> {
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    inside(coordinator, &format!("echo '{password}' | {nobody} su debian -c 'id -un'"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_image_takes_its_routes_and_its_logins() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24", "fd77::1/64"]);
    let coordinator = Coordinator::start();
    // The host, which logs in, stands in for everything else on the bridge.
    let reaches_host = r#"network.server_tags=["one"]"#;
    let agent = Agent::with(&[&coordinator.agent_url()], &[reaches_host], &[]);
    agent.wait_allocatable(&coordinator.client()).await;
    let file = guest_folder().join("cloud.qcow2").display().to_string();
    let words = ["image", "import", &file, "--name", "debian", "--version", "12"];
    let imported = cli::json(&coordinator, &words);
    let payload = json!({
        "uuid": fresh_uuid(), "brand": "bhyve", "alias": "routed", "ram": 768, "vcpus": 2,
        "autoboot": true, "resolvers": ["10.77.0.53"],
        "disks": [{ "image_uuid": imported["uuid"], "boot": true, "model": "nvme" }],
        "nics": [{
            "nic_tag": "one", "model": "virtio", "primary": true, "mac": "02:00:00:00:00:01",
            "ips": ["10.77.0.11/24", "fd77::11/64"], "gateways": ["10.77.0.1", "fd77::1"],
        }],
        "routes": {
            "10.99.0.0/16": "10.77.0.1", "fd99::/64": "fd77::1",
        },
    });
    agent.run_task("machine_create", &payload).await;
    let is_up = "systemctl is-active ssh && id -un debian";
    wait_for("the guest agent runs commands", LONG, || async { inside(&coordinator, is_up) }).await;

    let network = inside(&coordinator, "ip -4 addr; ip -6 addr; ip route; ip -6 route");
    let network = network.expect("it tells");
    println!("{network}");
    for part in [
        "inet 10.77.0.11/24",
        "inet6 fd77::11/64",
        "default via 10.77.0.1",
        "default via fd77::1",
        "10.99.0.0/16 via 10.77.0.1",
        "fd99::/64 via fd77::1",
    ] {
        assert!(network.contains(part), "{part} in {network}");
    }

    // A key.
    let folder = temp_dir();
    let key = new_key(folder.path());
    let log_in = || ssh("debian@10.77.0.11", "22", &key, "hostname; id -un");
    log_in().await.expect_err("nobody has given it the key");
    let (status, said) = set_login(&coordinator, "debian", &["--ssh-key", &format!("{key}.pub")]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(wait_for("ssh logs in", LONG, log_in).await, "routed\ndebian");
    // A password.
    let file = folder.path().join("password").display().to_string();
    std::fs::write(&file, "correct horse\n").expect("the folder is there");
    with_password(&coordinator, "correct horse").expect_err("it has no password");
    let (status, said) = set_login(&coordinator, "debian", &["--password-file", &file]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(with_password(&coordinator, "correct horse").as_deref(), Ok("debian\n"));
    with_password(&coordinator, "wrong horse").expect_err("it is another one");
    // Refused by the guest, in its own words.
    let (status, said) = set_login(&coordinator, "nobody-there", &["--password-file", &file]);
    assert!(status == 6 && said.contains("guest-set-user-password"), "{status} {said}");
}
