//! Containers that operators make, export, destroy and import with `muster`.

use std::path::Path;
use std::time::Duration;

use muster_tests::container;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::wait::wait_for;
use muster_tests::{cli, own_network};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

/// A coordinator with a node that runs containers, and an image of one that sleeps.
struct World {
    coordinator: Coordinator,
    agent: Agent,
    image: String,
}

impl World {
    /// `None`: containers can't run here, which was said.
    async fn new() -> Option<Self> {
        if !container::can_run() || !own_network::enter() {
            return None;
        }
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let named = format!("instance=e{}", &fresh_uuid()[..6]);
        let agent = Agent::with(&[&coordinator.agent_url()], &[&named], &[]);
        agent.wait_allocatable(&client).await;
        let config = json!({ "Entrypoint": ["/bin/sleep", "100000"], "Env": ["COLOUR=blue"] });
        let image = container::import(&client, &config).await;
        Some(Self { coordinator, agent, image })
    }

    fn muster(&self, words: &[&str]) -> String {
        cli::text(&self.coordinator, words)
    }

    fn refused(&self, words: &[&str], text: &str) {
        let output = cli::output(&self.coordinator, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(text), "{words:?}: {said}");
    }

    fn create(&self, alias: &str) -> String {
        let image = self.image.as_str();
        let words = ["vm", "create", "--brand", "joyent-minimal", "--image", image];
        self.muster(&[&words[..], &["--ram", "64", "--alias", alias]].concat());
        cli::json(&self.coordinator, &["vm", "get", alias])["uuid"].as_str().expect("it").to_owned()
    }

    /// The VM as its agent knows it.
    async fn running(&self, alias: &str) -> Value {
        let vm = cli::json(&self.coordinator, &["vm", "get", alias]);
        let uuid = vm["uuid"].as_str().expect("a uuid");
        let path = format!("/servers/{}/vms/{uuid}", self.agent.server_uuid);
        let client = self.coordinator.client();
        wait_for("it runs", LONG, || async {
            let vm = client.get(&path).await.expect(200);
            if vm["pid"].is_u64() { Ok(vm) } else { Err(vm.to_string()) }
        })
        .await
    }

    async fn inside(&self, alias: &str, script: &str) -> String {
        container::inside(self.running(alias).await["pid"].as_u64(), script)
    }

    fn roots(&self) -> usize {
        std::fs::read_dir(self.agent.data_dir().join("roots")).map_or(0, Iterator::count)
    }
}

/// All entries of a tree, but those that every container has of its node.
const LIST: &str = "cd /; ls -lnR bin etc srv www tmp | tr -s ' ' | cut -d ' ' -f 1-5,9-";

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_exported_destroyed_and_imported_with_its_files() {
    let Some(world) = World::new().await else { return };
    let uuid = world.create("box");
    let script = "echo mine > /www/index.html; ln /www/index.html /www/same; rm /etc/group; \
                  mkdir /srv; dd if=/dev/zero of=/srv/large bs=1M count=3; chmod 4711 /srv/large";
    world.inside("box", script).await;
    let before = world.inside("box", LIST).await;
    let folder = muster_tests::daemon::temp_dir();
    let file = folder.path().join("box.muster");
    let file = file.to_str().expect("a path");
    world.refused(&["vm", "export", "box", file], "--live");
    world.muster(&["vm", "export", "box", file, "--live"]);
    assert!(Path::new(file).metadata().expect("a file").len() > 3 << 20);
    let vm = world.running("box").await;
    assert_eq!((&vm["state"], &vm["snapshots"]), (&json!("running"), &json!([])));
    world.inside("box", "rm /www/same").await;
    world.muster(&["vm", "delete", "box", "--yes"]);
    assert_eq!(world.roots(), 0);

    world.muster(&["vm", "import", file, "--start"]);
    assert_eq!(world.running("box").await["uuid"], json!(uuid));
    assert_eq!(world.inside("box", LIST).await, before);
    assert!(world.inside("box", "cat /proc/1/environ").await.contains("COLOUR=blue"));
    world.muster(&["vm", "delete", "box", "--yes"]);
    assert_eq!(world.roots(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_goes_to_a_server_with_a_runtime_or_its_operator_is_told_why_not() {
    let Some(mut world) = World::new().await else { return };
    let client = world.coordinator.client();
    let named = format!("instance=e{}", &fresh_uuid()[..6]);
    let absent = r#"compute.oci_runtime="/nonexistent/runc""#;
    let other = Agent::with(&[&world.coordinator.agent_url()], &[&named, absent], &[]);
    other.wait_allocatable(&client).await;
    for alias in ["one", "two", "three"] {
        world.create(alias);
        let vm = cli::json(&world.coordinator, &["vm", "get", alias]);
        assert_eq!(vm["server_uuid"], json!(world.agent.server_uuid), "{alias}");
    }
    assert_eq!(world.agent.daemon().terminate().await, Some(0));
    world.agent.wait_status(&client, "unknown", LONG).await;
    let image = world.image.as_str();
    let words = ["vm", "create", "--brand", "lx", "--image", image, "--alias", "four"];
    world.refused(&words, "no runtime for containers");
    // Of a hardware VM nobody asks for a runtime.
    let dry = ["vm", "create", "--image", image, "--alias", "five", "--dry-run"];
    world.muster(&dry);
}
