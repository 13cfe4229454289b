//! What containers cost over their runtime alone, and what many of them cost their node. Needs root and
//! runc.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_tests::container;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use serde_json::{Value, json};

use super::node::at_rest;
use super::{kib_to_mib, ms, now, percentile, row, rss_kib};

/// Measured starts; one more before them is not, which fetches the image.
const STARTS: usize = 20;
/// Containers of one node; `MUSTER_BENCH_CONTAINERS` says another number.
const CONTAINERS: usize = 200;
/// MiB of each: what it may use, not what it does.
const MEMORY_MIB: u64 = 64;

pub(crate) async fn run() {
    if !container::can_run() {
        return;
    }
    let coordinator = Coordinator::start();
    let mut agent = Agent::start(&coordinator.agent_url());
    let client = coordinator.client();
    agent.wait_allocatable(&client).await;
    let config = json!({ "Entrypoint": ["/bin/sleep"], "Cmd": ["100000"] });
    let image = container::import(&client, &config).await;
    starts(&agent, &image).await;
    many(&mut agent, &image).await;
}

/// A container without interfaces, as is the one that runc makes alone.
fn payload(image: &str) -> Value {
    let uuid = fresh_uuid();
    json!({
        "uuid": uuid, "brand": "joyent-minimal", "ram": MEMORY_MIB, "alias": format!("ct-{uuid}"),
        "owner_uuid": fresh_uuid(), "image_uuid": image, "nics": [],
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
    })
}

/// Returns once it runs.
async fn create(agent: &Agent, image: &str) -> String {
    let made = agent.run_task("machine_create", &payload(image)).await;
    assert_eq!(made["vm"]["state"], "running", "{made:#}");
    made["vm"]["uuid"].as_str().expect("a VM").to_owned()
}

/// From the request at the agent until the container runs, less what runc takes for one of the same files
/// by itself.
async fn starts(agent: &Agent, image: &str) {
    let first = create(agent, image).await;
    let bare = Bare::of(agent, &first);
    destroy(agent, &first).await;
    let (mut created, mut alone) = (Vec::new(), Vec::new());
    // In turns: whatever else this machine does meets both.
    for number in 0..STARTS {
        let start = now();
        let vm = create(agent, image).await;
        created.push(start.elapsed());
        destroy(agent, &vm).await;
        alone.push(bare.start(number));
    }
    created.sort_unstable();
    alone.sort_unstable();
    let (created, alone) = (percentile(&created, 50), percentile(&alone, 50));
    row("bare runc create + start", &ms(alone), "-");
    row("container create through the agent until it runs", &ms(created), "-");
    row("container create overhead", &ms(created.saturating_sub(alone)), "150 ms");
}

async fn destroy(agent: &Agent, vm: &str) {
    agent.run_task("machine_destroy", &json!({ "uuid": vm })).await;
}

async fn many(agent: &mut Agent, image: &str) {
    let count = std::env::var("MUSTER_BENCH_CONTAINERS").ok().and_then(|count| count.parse().ok());
    let count = count.unwrap_or(CONTAINERS);
    for _ in 0..count {
        create(agent, image).await;
    }
    let rest = at_rest(agent.daemon().pid()).await;
    row(&format!("agent, {count} containers: CPU of a core"), &rest.cpu_share, "3 %");
    row(&format!("agent, {count} containers: memory"), &rest.memory, "40 MiB");
    let monitors = container::monitors(&agent.run_dir());
    assert_eq!(monitors.len(), count, "all of them run");
    let of_monitors: u64 = monitors.iter().map(|pid| rss_kib(*pid)).sum();
    let each = of_monitors / u64::try_from(count.max(1)).unwrap_or(1);
    // Most of it is the program itself, which all of them share.
    row("its monitor, each", &format!("{:.1} MiB", kib_to_mib(each)), "-");
}

/// What runc runs without an agent. Dropped, nothing of it is left.
struct Bare {
    folder: tempfile::TempDir,
    /// Below it are its control groups.
    group: String,
    config: Value,
}

impl Bare {
    /// The bundle of a container that runs, with its files copied.
    fn of(agent: &Agent, vm: &str) -> Self {
        let folder = temp_dir();
        let bundle = agent.run_dir().join("ct").join(vm);
        let config = std::fs::read(bundle.join("config.json")).expect("it runs");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        let from = agent.data_dir().join("roots").join(vm).join("root").display().to_string();
        let to = folder.path().join("root").display().to_string();
        runs("cp", &["-a", "--no-preserve=ownership", &from, &to]);
        // A user namespace, and what it takes to have one, is the agent's to answer for.
        let linux = config["linux"].as_object_mut().expect("an object");
        for member in ["uidMappings", "gidMappings"] {
            linux.shift_remove(member);
        }
        let namespaces = linux["namespaces"].as_array_mut().expect("namespaces");
        namespaces.retain(|namespace| namespace["type"] != "user");
        let group = format!("/bench-{}", &fresh_uuid()[..8]);
        config["root"]["path"] = json!(to);
        // Its files of `/etc` go with the container that they were made for.
        let mounts = config["mounts"].as_array_mut().expect("mounts");
        for mount in mounts.iter_mut().filter(|mount| mount["type"] == "bind") {
            let from = PathBuf::from(mount["source"].as_str().expect("a path"));
            let copy = folder.path().join(from.file_name().expect("a file"));
            std::fs::copy(&from, &copy).expect("a copy");
            mount["source"] = json!(copy);
        }
        Self { folder, group, config }
    }

    fn runc(&self, words: &[&str]) {
        let root = self.folder.path().join("state").display().to_string();
        runs("runc", &[&["--root", &root], words].concat());
    }

    /// How long until one runs; it is gone afterwards.
    fn start(&self, number: usize) -> Duration {
        let (id, bundle) = (format!("bare-{number}"), self.folder.path().display().to_string());
        let mut config = self.config.clone();
        config["linux"]["cgroupsPath"] = json!(format!("{}/{id}", self.group));
        std::fs::write(self.folder.path().join("config.json"), config.to_string()).expect("a file");
        let start = now();
        self.runc(&["create", "--bundle", &bundle, &id]);
        self.runc(&["start", &id]);
        let took = start.elapsed();
        self.runc(&["delete", "--force", &id]);
        took
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let state = self.folder.path().join("state");
        for left in std::fs::read_dir(&state).into_iter().flatten().flatten() {
            let id = left.file_name().to_string_lossy().into_owned();
            let words = ["--root", &state.display().to_string(), "delete", "--force", &id];
            command("runc", &words).status().ok();
        }
        // Only what is empty goes.
        for group in container::control_groups(Path::new(&self.group)) {
            std::fs::remove_dir(group).ok();
        }
    }
}

fn command(program: &str, args: &[&str]) -> std::process::Command {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own comparison")]
    let mut command = std::process::Command::new(program);
    let null = std::process::Stdio::null;
    command.args(args).stdin(null()).stdout(null());
    command
}

fn runs(program: &str, args: &[&str]) {
    let status = command(program, args).status();
    assert!(status.is_ok_and(|status| status.success()), "{program} {args:?} failed");
}
