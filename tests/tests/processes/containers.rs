//! Containers by the machine's runc: made from an image, on a bridge, through the life of their agent
//! and their own, and gone without a trace.

use std::path::Path;
use std::time::Duration;

use muster_tests::container;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::Client;
use muster_tests::own_network::{self, run};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);
const ADDRESS: &str = "10.78.0.11:80";
/// Ends with 3 when it is asked to stop; its page stays up until then.
const SERVER: &str = "echo started; trap 'echo asked; exit 3' TERM; httpd -f -p 80 -h /www & wait";

struct World {
    coordinator: Coordinator,
    client: Client,
    agent: Agent,
    image: String,
    /// Prefix of everything host-wide.
    instance: String,
}

impl World {
    /// `None`: containers can't run here, which was said.
    async fn new() -> Option<Self> {
        if !container::can_run() || !own_network::enter() {
            return None;
        }
        own_network::add_bridge("one", &["10.78.0.1/24"]);
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        // Several tests run at once.
        let instance = format!("c{}", &fresh_uuid()[..6]);
        let named = format!("instance={instance}");
        // The host stands in for everything else on the bridge.
        let reaches_host = r#"network.server_tags=["one"]"#;
        let settings = [named.as_str(), reaches_host];
        let agent = Agent::with(&[&coordinator.agent_url()], &settings, &[]);
        agent.wait_allocatable(&client).await;
        let config = json!({
            "Entrypoint": ["/bin/sh", "-c"], "Cmd": [SERVER], "Env": ["COLOUR=blue"],
            "WorkingDir": "/tmp",
        });
        let image = container::import(&client, &config).await;
        Some(Self { coordinator, client, agent, image, instance })
    }

    fn payload(&self, more: &Value) -> Value {
        let mut payload = json!({
            "uuid": fresh_uuid(), "brand": "joyent-minimal", "ram": 64, "alias": "box",
            "image_uuid": self.image,
            "image": { "uuid": self.image, "files": [{ "compression": "none" }] },
            "owner_uuid": fresh_uuid(), "hostname": "box",
            "nics": [{
                "nic_tag": "one", "mac": "02:00:00:00:00:11", "primary": true,
                "ips": ["10.78.0.11/24"], "gateways": ["10.78.0.1"],
            }],
        });
        for (name, value) in more.as_object().expect("an object") {
            payload[name] = value.clone();
        }
        payload
    }

    async fn task(&self, path: &str, body: &Value) -> Value {
        let answer = self.client.post(path, body).await.expect(200);
        self.client.complete_task(answer["id"].as_str().expect("a task"), 120).await
    }

    async fn create(&self, more: &Value) -> String {
        let path = format!("/servers/{}/vms", self.agent.server_uuid);
        let made = self.task(&path, &self.payload(more)).await;
        made["vm"]["uuid"].as_str().expect("a VM").to_owned()
    }

    fn path(&self, vm: &str, action: &str) -> String {
        format!("/servers/{}/vms/{vm}{action}", self.agent.server_uuid)
    }

    async fn vm(&self, vm: &str) -> Value {
        self.client.get(&self.path(vm, "")).await.expect(200)
    }

    async fn ends(&self, vm: &str) -> Value {
        wait_for("the container ends", LONG, || async {
            let vm = self.vm(vm).await;
            if vm["state"] == "stopped" { Ok(vm) } else { Err(vm.to_string()) }
        })
        .await
    }

    async fn destroy(&self, vm: &str) {
        let answer = self.client.delete(&self.path(vm, "")).await.expect(200);
        self.client.complete_task(answer["id"].as_str().expect("a task"), 120).await;
    }

    /// What is on this host of the agent's containers.
    fn traces(&self, vm: &str) -> Vec<String> {
        let (data, run_dir) = (self.agent.data_dir(), self.agent.run_dir());
        let mut traces = container::mounts(&data);
        traces.extend(container::mounts(&run_dir));
        traces.extend(container::monitors(&run_dir).iter().map(|pid| format!("process {pid}")));
        let links = run("ip -o link show type veth");
        traces.extend(links.lines().filter(|line| line.contains(": mt")).map(str::to_owned));
        for folder in [
            data.join("containers").join(vm),
            data.join("roots").join(vm),
            run_dir.join("ct").join(vm),
            run_dir.join("netns").join(vm),
            run_dir.join("oci").join(vm),
        ] {
            traces.extend(folder.exists().then(|| folder.display().to_string()));
        }
        let shared = format!("{}-vms", self.instance);
        let groups = container::control_groups(Path::new(&shared));
        traces.extend(groups.iter().map(|group| group.display().to_string()));
        traces
    }
}

async fn shows(address: &str) -> String {
    wait_for(&format!("{address} answers"), LONG, || async { guest::page(address, "/") }).await
}

#[tokio::test]
async fn a_container_serves_stops_starts_and_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let vm = world.create(&json!({})).await;
    assert_eq!(shows(ADDRESS).await, "a page of a container");
    let shown = world.vm(&vm).await;
    assert_eq!((&shown["state"], &shown["type"]), (&json!("running"), &json!("OS")));
    let first = shown["pid"].as_u64().expect("a process");

    let stopped = world.task(&world.path(&vm, "/stop"), &json!({})).await;
    assert_eq!(stopped["vm"]["state"], "stopped");
    assert_eq!((&stopped["vm"]["exit_status"], stopped.get("forced")), (&json!(3), None));
    assert!(container::monitors(&world.agent.run_dir()).is_empty());
    guest::page(ADDRESS, "/").expect_err("nobody is there");

    world.task(&world.path(&vm, "/start"), &json!({})).await;
    shows(ADDRESS).await;
    world.task(&world.path(&vm, "/reboot"), &json!({})).await;
    shows(ADDRESS).await;
    let second = world.vm(&vm).await["pid"].as_u64().expect("a process");
    assert_ne!(first, second);

    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
    drop(world.coordinator);
}

#[tokio::test]
async fn a_container_outlives_its_agent_and_its_monitor_keeps_its_end() {
    let Some(mut world) = World::new().await else { return };
    let vm = world.create(&json!({})).await;
    shows(ADDRESS).await;
    let pid = world.vm(&vm).await["pid"].clone();
    world.agent.kill9();
    assert_eq!(shows(ADDRESS).await, "a page of a container");
    world.agent.restart();
    world.agent.wait_allocatable(&world.client).await;
    assert_eq!(world.vm(&vm).await["pid"], pid);

    // It ends while no agent looks.
    world.agent.kill9();
    let number = i32::try_from(pid.as_i64().expect("a process")).expect("a pid");
    let init = nix::unistd::Pid::from_raw(number);
    nix::sys::signal::kill(init, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    let run_dir = world.agent.run_dir();
    wait_for("its monitor ends", LONG, || async {
        let left = container::monitors(&run_dir);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    world.agent.restart();
    world.agent.wait_allocatable(&world.client).await;
    let ended = world.ends(&vm).await;
    assert_eq!(ended["exit_status"], 3, "{ended:#}");
    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
}

#[tokio::test]
async fn limits_are_hit_and_told() {
    let Some(world) = World::new().await else { return };
    // `dd` takes a buffer as large as its block: more than memory and swap together.
    let cmd = json!(["dd if=/dev/zero of=/dev/null bs=400M count=1; exit $?"]).to_string();
    let greedy = json!({
        "nics": [], "internal_metadata": { "docker:cmd": cmd }, "max_swap": 256,
        "max_physical_memory": 64,
    });
    let vm = world.create(&greedy).await;
    let ended = world.ends(&vm).await;
    assert_eq!(ended["state_reason"], "out-of-memory", "{ended:#}");
    assert_eq!(ended["exit_status"], 137);
    world.destroy(&vm).await;

    // A shell that can't fork ends.
    let fork = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done";
    let cmd = json!([format!("sh -c '{fork}'; exec sleep 1000")]);
    let forks = json!({
        "nics": [], "max_lwps": 10, "internal_metadata": { "docker:cmd": cmd.to_string() },
    });
    let vm = world.create(&forks).await;
    let info = wait_for("the limit of processes is hit", LONG, || async {
        let params = json!({ "uuid": vm });
        let info = world.agent.run_task("machine_info", &params).await;
        let refused = info["pids"]["refused"].as_u64().unwrap_or(0);
        if refused > 0 { Ok(info) } else { Err(info.to_string()) }
    })
    .await;
    assert!(info["pids"]["current"].as_u64().expect("a number") <= 10, "{info:#}");
    assert!(info["memory"]["limit_bytes"].as_u64() == Some(64 << 20), "{info:#}");
    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
}

#[tokio::test]
async fn a_reprovisioned_container_has_the_files_of_its_image_and_its_own_address() {
    let Some(world) = World::new().await else { return };
    let vm = world.create(&json!({})).await;
    shows(ADDRESS).await;
    let before = world.vm(&vm).await;
    let inside = |vm: &Value, script: &str| container::inside(vm["pid"].as_u64(), script);
    inside(&before, "echo mine > /www/index.html; echo no > /etc/left");
    assert_eq!(shows(ADDRESS).await, "mine");
    let config = json!({ "Entrypoint": ["/bin/sh", "-c"], "Cmd": [SERVER], "Env": ["COLOUR=red"] });
    let other = container::import(&world.client, &config).await;
    let path = world.path(&vm, "/reprovision");
    let done = world.task(&path, &json!({ "image_uuid": other })).await;
    assert_eq!(done["vm"]["state"], "running", "{done:#}");
    assert_eq!(shows(ADDRESS).await, "a page of a container");
    let after = world.vm(&vm).await;
    assert_eq!((&after["nics"], &after["alias"]), (&before["nics"], &before["alias"]));
    assert_eq!(after["image_uuid"], json!(other));
    assert!(inside(&after, "cat /proc/1/environ").contains("COLOUR=red"));
    assert_eq!(inside(&after, "ls /etc"), "group\nhostname\nhosts\npasswd\nresolv.conf\n");
    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
}

#[tokio::test]
async fn a_snapshot_of_a_container_that_writes_is_gone_back_to() {
    let Some(world) = World::new().await else { return };
    // It writes all the time: two files that are equal whenever it is held still between two writes.
    let writer = "i=0; while :; do i=$((i+1)); echo $i > /tmp/a; echo $i > /tmp/b; done & ";
    let cmd = json!([format!("{writer}{SERVER}")]).to_string();
    let vm = world.create(&json!({ "internal_metadata": { "docker:cmd": cmd } })).await;
    shows(ADDRESS).await;
    let inside =
        async |script: &str| container::inside(world.vm(&vm).await["pid"].as_u64(), script);
    let count = async || -> u64 {
        wait_for("it writes", LONG, || async {
            inside("cat /tmp/a").await.trim().parse().map_err(|error| format!("{error}"))
        })
        .await
    };
    inside("echo before > /www/index.html; ln /www/index.html /www/same; rm /etc/group").await;
    let snapshots = world.path(&vm, "/snapshots");
    let asked = world.client.put(&snapshots, &json!({ "snapshot_name": "a" })).await.expect(200);
    let done = world.client.complete_task(asked["id"].as_str().expect("a task"), 120).await;
    assert_eq!(done["vm"]["snapshots"][0]["name"], "a", "{done:#}");
    let taken = count().await;
    wait_for("it goes on", LONG, || async {
        let now = count().await;
        if now > taken { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
    inside("echo after > /www/index.html; echo new > /www/new; mkdir /etc/group").await;
    assert_eq!(shows(ADDRESS).await, "after");

    let path = world.path(&vm, "/snapshots/a/rollback");
    let asked = world.client.put(&path, &json!({})).await.expect(200);
    let done = world.client.complete_task(asked["id"].as_str().expect("a task"), 120).await;
    assert_eq!(done["vm"]["state"], "running", "{done:#}");
    assert_eq!(shows(ADDRESS).await, "before");
    assert_eq!(inside("ls /www").await, "index.html\nsame\n");
    assert_eq!(inside("echo linked > /www/same; cat /www/index.html").await, "linked\n");
    assert_eq!(inside("ls /etc").await, "hostname\nhosts\npasswd\nresolv.conf\n");

    let asked = world.client.delete(&world.path(&vm, "/snapshots/a")).await.expect(200);
    world.client.complete_task(asked["id"].as_str().expect("a task"), 120).await;
    let left = std::fs::read_dir(world.agent.data_dir().join("roots").join(&vm).join("snapshots"));
    assert_eq!(left.expect("a folder").count(), 0);
    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
}

#[tokio::test]
async fn an_image_of_a_container_makes_others_with_its_files() {
    let Some(world) = World::new().await else { return };
    let vm = world.create(&json!({})).await;
    shows(ADDRESS).await;
    let first = world.vm(&vm).await;
    let script = "echo made > /www/index.html; ln /www/index.html /www/same; rm /etc/group; \
                  mkdir -m 1777 /srv; echo run > /srv/tool; chown 33 /srv/tool; chmod 4755 /srv/tool; \
                  ln -s /srv/tool /srv/link";
    container::inside(first["pid"].as_u64(), script);
    world.task(&world.path(&vm, "/stop"), &json!({})).await;
    let wanted = json!({ "compression": "zstd", "manifest": { "name": "web", "version": "2" } });
    let made = world.task(&world.path(&vm, "/images"), &wanted).await;
    let image = made["image_uuid"].as_str().expect("an image").to_owned();
    assert_eq!(made["manifest"]["files"][0]["format"], "docker-archive", "{made:#}");
    let roots = world.agent.data_dir().join("roots").join(&vm);
    for left in ["snapshots", "packs"] {
        assert_eq!(std::fs::read_dir(roots.join(left)).expect("a folder").count(), 0, "{left}");
    }
    world.destroy(&vm).await;

    let manifest = world.client.get(&format!("/images/{image}")).await.expect(200);
    let other = world.create(&json!({ "image_uuid": image, "image": manifest })).await;
    assert_eq!(shows(ADDRESS).await, "made", "its program is that of the first image");
    let pid = world.vm(&other).await["pid"].as_u64();
    let listed =
        container::inside(pid, "ls /etc; ls -ln /srv /www | tr -s ' ' | cut -d ' ' -f 1-4,9-");
    assert!(listed.starts_with("hostname\nhosts\npasswd\nresolv.conf\n"), "{listed}");
    assert!(listed.contains("-rwsr-xr-x 1 33 0 tool"), "{listed}");
    assert!(listed.contains("link -> /srv/tool"), "{listed}");
    assert!(listed.contains("-rw-r--r-- 2 0 0 same"), "{listed}");
    world.destroy(&other).await;
    for vm in [vm, other] {
        assert_eq!(world.traces(&vm), Vec::<String>::new());
    }
}

/// The ids of the node that a container's own are, as it sees them: its first one, the node's, how many.
fn ids_of(vm: &Value) -> Vec<u32> {
    let map = container::inside(vm["pid"].as_u64(), "cat /proc/self/uid_map");
    map.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

/// User and group of a process, as the node knows them.
fn owner_of(vm: &Value) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", vm["pid"])).expect("it runs");
    let ids = status.lines().filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:"));
    ids.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

#[tokio::test]
async fn root_of_a_container_is_nobody_on_the_node() {
    let Some(world) = World::new().await else { return };
    let one = world.create(&json!({})).await;
    let two = world.create(&json!({ "nics": [], "alias": "two" })).await;
    // Root in it listens on the port of every web server.
    assert_eq!(shows(ADDRESS).await, "a page of a container");
    let (shown, other) = (world.vm(&one).await, world.vm(&two).await);
    let ids = ids_of(&shown);
    let first = ids[1];
    assert!(ids[0] == 0 && first > 65_535 && ids[2] == 65_536, "{ids:?}");
    assert!(first.abs_diff(ids_of(&other)[1]) >= 65_536, "each has ids of its own");
    assert_eq!(owner_of(&shown), [first.to_string(), first.to_string()]);

    // It sees files as ever; on the node they are under its ids, and on disk under those it knows.
    let pid = shown["pid"].as_u64();
    let listed =
        "ls -ln /www | tr -s ' ' | cut -d ' ' -f 1-4,9-; ls -lnd / /proc/1 /tmp | cut -c 1-24";
    let files = "echo x > /srv; chown 33:34 /srv; chmod 4755 /srv; rm /etc/group; \
                 chown 5 /www/index.html; ln /srv /linked";
    container::inside(pid, files);
    let listed = container::inside(pid, listed);
    assert!(listed.contains("-rw-r--r-- 1 5 0 index.html"), "{listed}");
    let owners = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::symlink_metadata(path).expect("it is there");
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    let upper = world.agent.data_dir().join("roots").join(&one).join("upper");
    let node = Path::new("/proc").join(shown["pid"].to_string()).join("root");
    for name in ["srv", "linked"] {
        assert_eq!(owners(&node.join(name)), (first + 33, first + 34, 0o4755), "{name}");
        assert_eq!(owners(&upper.join(name)), (33, 34, 0o4755), "{name}");
    }
    assert_eq!(owners(&upper.join("www/index.html")).0, 5);
    assert_eq!(owners(&node.join("bin/busybox")).0, first);
    assert!(!node.join("etc/group").exists());

    // The same ones at each start, for its files and for itself.
    world.task(&world.path(&one, "/reboot"), &json!({})).await;
    shows(ADDRESS).await;
    let again = world.vm(&one).await;
    assert_eq!(ids_of(&again), ids);
    let script = "ls -ln /srv | tr -s ' ' | cut -d ' ' -f 1-4";
    let listed = container::inside(again["pid"].as_u64(), script);
    assert_eq!(listed, "-rwsr-xr-x 2 33 34\n");
    for vm in [&one, &two] {
        world.destroy(vm).await;
    }
    for vm in [one, two] {
        assert_eq!(world.traces(&vm), Vec::<String>::new());
    }
}

#[tokio::test]
async fn what_needs_the_ids_of_the_node_has_them() {
    let Some(world) = World::new().await else { return };
    // A container that was made with them keeps them, until it is one of another image.
    let mut image = world.client.get(&format!("/images/{}", world.image)).await.expect(200);
    let config = json!({ "Entrypoint": ["/bin/sh", "-c"], "Cmd": [SERVER] });
    let needs = json!({ "requirements": { "host_ids": true } });
    let closed = container::import_with(&world.client, &config, &needs).await;
    image["uuid"] = json!(closed);
    let vm = world.create(&json!({ "image_uuid": closed, "image": image })).await;
    shows(ADDRESS).await;
    let shown = world.vm(&vm).await;
    assert_eq!((ids_of(&shown), owner_of(&shown)[0].as_str()), (vec![0, 0, u32::MAX], "0"));
    let path = world.path(&vm, "/reprovision");
    world.task(&path, &json!({ "image_uuid": world.image })).await;
    shows(ADDRESS).await;
    assert!(ids_of(&world.vm(&vm).await)[1] > 65_535);
    world.destroy(&vm).await;
    assert_eq!(world.traces(&vm), Vec::<String>::new());
}

#[tokio::test]
async fn what_a_container_can_not_have_is_refused_and_leaves_nothing() {
    let Some(world) = World::new().await else { return };
    let refused = async |more: Value, code: &str, named: &str| {
        let payload = world.payload(&more);
        let answer = world.agent.ask_task("machine_create", &payload).await;
        let text = answer.text.clone();
        assert!(text.contains(code) && text.contains(named), "{more}: {} {text}", answer.status);
        let vm = payload["uuid"].as_str().expect("a uuid");
        assert_eq!(world.traces(vm), Vec::<String>::new(), "{more}");
    };
    let nic = |ips: &str, tag: &str| json!({ "nics": [{ "nic_tag": tag, "ips": [ips] }] });
    refused(json!({ "disks": [{ "size": 8 }] }), "InvalidVmPayload", "disks").await;
    refused(json!({ "image_uuid": null }), "InvalidVmPayload", "image_uuid").await;
    refused(json!({ "brand": "builder" }), "ContainerNotSupported", "builder").await;
    refused(nic("dhcp", "one"), "InvalidParameters", "nics.0.ips").await;
    refused(nic("10.78.0.12/24", "two"), "InvalidParameters", "nics.0.nic_tag").await;
    let cmd = json!({ "internal_metadata": { "docker:cmd": "sh" } });
    refused(cmd, "InvalidParameters", "docker:cmd").await;
    let cmd = json!({ "internal_metadata": { "docker:entrypoint": "[\"/absent\"]" } });
    refused(cmd, "InternalError", "/absent").await;
    let user = json!({ "internal_metadata": { "docker:user": "nobody-here" } });
    refused(user, "InvalidParameters", "nobody-here").await;
}
