//! Triton's published node client `sdc-clients`, in the version of `tests/sdc-clients`, against a
//! real coordinator with a real agent. It is installed from its registry into `target/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::{guest, repository};
use serde_json::Value;

#[expect(clippy::disallowed_methods, reason = "black-box tests run programs")]
fn program(name: &str) -> Command {
    Command::new(name)
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// The folder of installed packages; installed anew when the lock file differs.
fn packages() -> PathBuf {
    let source = repository().join("tests/sdc-clients");
    let folder = repository().join("target/sdc-clients");
    let lock = std::fs::read_to_string(source.join("package-lock.json")).expect("a lock file");
    let stamp = folder.join("installed");
    let modules = folder.join("node_modules");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == lock) {
        return modules;
    }
    std::fs::create_dir_all(&folder).expect("target/ can be written");
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(name), folder.join(name)).expect("target/ can be written");
    }
    // Exactly what the lock file says; no package's own scripts are needed.
    let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    let output = program("npm").args(arguments).current_dir(&folder).output();
    let output = output.expect("npm: run scripts/setup.sh test");
    assert!(output.status.success(), "npm ci: {}", text(&output));
    std::fs::write(&stamp, lock).expect("target/ can be written");
    modules
}

/// A NIC of the server that a test may give another tag.
fn some_mac(server: &Value) -> String {
    let nics = server["sysinfo"]["Network Interfaces"].as_object();
    let mut macs = nics.into_iter().flatten().filter_map(|(_, nic)| nic["MAC Address"].as_str());
    macs.next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_node_client_works_unchanged() {
    let modules = packages();
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let path = format!("/servers/{}", agent.server_uuid);
    let mac = some_mac(&client.get(&path).await.expect(200));
    let script = Path::new(&repository()).join("tests/sdc-clients/drive.js");
    let mut node = program("node");
    node.arg(script)
        .env("NODE_PATH", modules)
        .env("MUSTER_URL", client.base())
        .env("MUSTER_SERVER", &agent.server_uuid)
        .env("MUSTER_IMAGE", image)
        .env("MUSTER_MAC", mac);
    let output = tokio::task::block_in_place(|| node.output());
    let output = output.expect("node: run scripts/setup.sh test");
    assert!(output.status.success(), "{}", text(&output));
    print!("{}", text(&output));
    assert_eq!(agent.guest_pids(), Vec::<u32>::new());
}
