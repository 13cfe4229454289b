//! A guest and its agent: networks that its metadata disk tells it of, metadata on its second serial
//! port, and the guest agent inside. Seen from inside and from outside of the guest.

use std::time::Duration;

use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::own_network::{self, run};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// Makes a VM of the tiny image with these members; returns its uuid.
async fn create(client: &Client, agent: &Agent, image: &str, more: &Value) -> String {
    let mut payload = json!({
        "uuid": fresh_uuid(), "brand": "kvm", "ram": 192, "owner_uuid": fresh_uuid(),
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
    });
    for (name, value) in more.as_object().expect("an object") {
        payload[name] = value.clone();
    }
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let asked = client.post(&path, &payload).await.expect(200);
    client.complete_task(asked["id"].as_str().expect("a task"), 300).await;
    payload["uuid"].as_str().expect("a uuid").to_owned()
}

/// What a guest shows of its network at this address.
async fn network(address: &str) -> String {
    wait_for(&format!("{address} shows its network"), BOOT, || async {
        guest::page(address, "/network")
    })
    .await
}

/// Gives an address of the network to whoever asks, until it is dropped.
struct DhcpServer {
    child: std::process::Child,
    _folder: tempfile::TempDir,
}

impl DhcpServer {
    fn start(interface: &str, address: &str, router: &str) -> Self {
        let folder = temp_dir();
        let path = folder.path().join("udhcpd.conf");
        let leases = folder.path().join("leases");
        let config = format!(
            "start {address}\nend {address}\ninterface {interface}\nlease_file {}\npidfile {}\n\
             opt subnet 255.255.255.0\nopt router {router}\n",
            leases.display(),
            folder.path().join("pid").display(),
        );
        std::fs::write(&path, config).expect("the folder is there");
        std::fs::write(leases, "").expect("the folder is there");
        #[expect(clippy::disallowed_methods, reason = "black-box tests start real programs")]
        let mut server = std::process::Command::new("busybox");
        server.args(["udhcpd", "-f", &path.display().to_string()]);
        server.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        Self { child: server.spawn().expect("busybox runs"), _folder: folder }
    }
}

impl Drop for DhcpServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn guests_come_up_reachable_from_their_metadata_disk_alone() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24", "fd77::1/64"]);
    // Where a route of the first guest leads.
    run("ip addr add 10.99.0.1/32 dev mt-one");
    let _dhcp = DhcpServer::start("mt-one", "10.77.0.50", "10.77.0.1");
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::with(&[&coordinator.agent_url()], &[r#"network.server_tags=["one"]"#], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let shows = "#!/bin/sh\n\
                 { ip addr show eth0; ip route; ip -6 route; cat /etc/resolv.conf; } >/run/network\n\
                 mv /run/network /www/network\n";
    let fixed = json!({
        "alias": "fixed", "resolvers": ["10.77.0.53", "fd77::53"],
        "nics": [{
            "nic_tag": "one", "mac": "02:00:00:00:00:01", "primary": true, "mtu": 1400,
            "ips": ["10.77.0.11/24", "fd77::11/64"], "gateways": ["10.77.0.1", "fd77::1"],
        }],
        "routes": { "10.99.0.0/16": "10.77.0.1", "fd99::/64": "fd77::1", "10.98.0.0/16": "10.76.0.9" },
        "customer_metadata": { "user-script": shows },
    });
    create(&client, &agent, &image, &fixed).await;
    let asks = json!({
        "alias": "asks", "customer_metadata": { "user-script": shows },
        "nics": [{ "nic_tag": "one", "mac": "02:00:00:00:00:02", "primary": true, "ips": ["dhcp"] }],
    });
    create(&client, &agent, &image, &asks).await;

    let text = network("10.77.0.11:80").await;
    for part in [
        "10.77.0.11/24",
        "mtu 1400",
        "default via 10.77.0.1",
        "default via fd77::1",
        "10.99.0.0/16 via 10.77.0.1",
        "fd99::/64 via fd77::1",
        "10.98.0.0/16 via 10.76.0.9",
        "nameserver 10.77.0.53",
        "nameserver fd77::53",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(network("[fd77::11]:80").await, text);
    let text = network("10.77.0.50:80").await;
    assert!(text.contains("default via 10.77.0.1") && text.contains("10.77.0.50"), "{text}");
}

/// On a network that its host alone hands out addresses of, nothing else is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_reads_and_changes_its_metadata_while_it_runs() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    // Says so when it is set up, and waits for a change.
    let script = "#!/bin/sh\n\
        mdata put answer 'forty two' && mdata put gone x && mdata delete gone\n\
        mdata put sdc:uuid x; echo readonly=$?\n\
        mdata get nothing; echo absent=$?\n\
        echo uuid=$(mdata get sdc:uuid) nics=$(mdata get sdc:nics) routes=$(mdata get sdc:routes)\n\
        echo keys=$(mdata list)\n\
        mdata put provision_state done\n\
        until [ \"$(mdata get color)\" = red ]; do sleep 1; done\n\
        mdata put seen red\n";
    let vm = create(
        &client,
        &agent,
        &image,
        &json!({
            "alias": "talks",
            "customer_metadata": { "user-script": script, "color": "blue" },
            "routes": { "10.99.0.0/16": "10.77.0.1" },
            "nics": [{ "nic_tag": "admin", "primary": true, "ips": ["10.77.0.11/24"] }],
        }),
    )
    .await;
    let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
    let made = wait_for("the guest says that it is set up", BOOT, || async {
        let vm = client.get(&path).await.expect(200);
        if vm["customer_metadata"]["provision_state"] == "done" { Ok(vm) } else { Err(vm) }
    })
    .await;
    let metadata = &made["customer_metadata"];
    assert_eq!(metadata["answer"], "forty two", "{metadata}");
    assert!(metadata.get("gone").is_none(), "{metadata}");
    let log = agent.data_dir().join(format!("guests/{vm}/console.log"));
    let printed = String::from_utf8_lossy(&std::fs::read(log).expect("a console")).into_owned();
    for part in
        ["readonly=3", "absent=1", &format!("uuid={vm}"), "routes=[]", "keys=user-script color"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!printed.contains("10.77.0.11"), "{printed}");

    let change = json!({ "set_customer_metadata": { "color": "red" } });
    let asked = client.post(&format!("{path}/update"), &change).await.expect(200);
    client.complete_task(asked["id"].as_str().expect("a task"), 60).await;
    wait_for("the guest has seen the change", BOOT, || async {
        let vm = client.get(&path).await.expect(200);
        if vm["customer_metadata"]["seen"] == "red" { Ok(()) } else { Err(vm) }
    })
    .await;
}

/// Counts on a disk of its own, so that it stands still while that disk's file system does.
const COUNTS: &str = "#!/bin/sh\n\
    mkdir /run/disk && mke2fs /dev/vdb >/dev/null 2>&1 && mount -t ext4 /dev/vdb /run/disk && n=0\n\
    while :; do\n\
      n=$((n + 1)); echo $n >/run/disk/n; cp /run/disk/n /www/new; mv /www/new /www/n\n\
      usleep 100000\n\
    done\n";

/// Runs the program; its exit code, what it printed, and its complaint.
fn muster(coordinator: &Coordinator, words: &[&str]) -> (i32, String, String) {
    let done = cli::output(coordinator, words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code().unwrap_or(-1), text(&done.stdout), text(&done.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_agent_tells_runs_copies_and_freezes() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let port = muster_tests::system::free_port();
    let vm = create(
        &client,
        &agent,
        &image,
        &json!({
            "alias": "inside",
            "internal_metadata": {
                "muster:wait_guest": "true", "muster:hostfwd": format!("tcp:127.0.0.1:{port}-:80"),
            },
            "customer_metadata": { "user-script": COUNTS },
            "disks": [
                { "image_uuid": image, "boot": true, "model": "virtio" },
                { "size": 16, "model": "virtio" },
            ],
            "nics": [{ "nic_tag": "admin", "primary": true }],
        }),
    )
    .await;

    // The create ended when its guest agent answered.
    let (status, out, err) = muster(&coordinator, &["vm", "exec", "inside", "hostname"]);
    assert_eq!((status, out.as_str()), (0, "inside\n"), "{err}");
    let fails = ["vm", "exec", "inside", "--", "sh", "-c", "echo out; echo err >&2; exit 7"];
    let (status, out, err) = muster(&coordinator, &fails);
    assert_eq!((status, out.as_str()), (7, "out\n"));
    assert!(err.contains("err") && err.contains("exited with 7"), "{err}");
    let (status, _, err) = muster(&coordinator, &["vm", "exec", "inside", "no-such-program"]);
    assert!(status == 6 && err.contains("guest-exec"), "{status} {err}");
    let slow = ["vm", "exec", "inside", "--timeout", "1", "--", "sleep", "30"];
    assert_eq!(muster(&coordinator, &slow).0, 7);
    let much = ["vm", "exec", "inside", "--", "sh", "-c", "head -c 300000 /dev/zero"];
    let (status, out, err) = muster(&coordinator, &much);
    assert_eq!((status, out.len()), (0, 256 * 1024));
    assert!(err.contains("longer"), "{err}");

    // There and back, in more than one piece.
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let content: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(path("there"), &content).expect("the folder is there");
    let (status, _, err) = muster(&coordinator, &["vm", "cp", &path("there"), "inside:/tmp/file"]);
    assert_eq!(status, 0, "{err}");
    let (status, _, err) = muster(&coordinator, &["vm", "cp", "inside:/tmp/file", &path("back")]);
    assert_eq!(status, 0, "{err}");
    assert!(std::fs::read(path("back")).expect("a file") == content);
    let (status, _, err) = muster(&coordinator, &["vm", "cp", "inside:/no/file", &path("none")]);
    assert!(status == 6 && err.contains("No such file"), "{status} {err}");

    // What it says of itself reaches the fleet.
    wait_for("the fleet knows the guest's address", BOOT, || async {
        let vm = cli::json(&coordinator, &["vm", "get", "inside"]);
        let guest = vm["guest"].clone();
        let known = guest["hostname"] == "inside"
            && guest["interfaces"][0]["ips"][0] == "10.0.2.15"
            && vm["vm"]["guest"] == guest;
        if known { Ok(()) } else { Err(vm) }
    })
    .await;

    // Frozen for a snapshot, and it goes on; also when the agent dies while it is frozen.
    let counted = || async {
        let page = guest::page(&format!("127.0.0.1:{port}"), "/n");
        page.and_then(|n| n.parse::<u64>().map_err(|error| error.to_string()))
    };
    wait_for("the guest counts", BOOT, counted).await;
    let (status, _, err) = muster(
        &coordinator,
        &["vm", "snapshot", "create", "inside", "first", "--quiesce", "guest"],
    );
    assert_eq!(status, 0, "{err}");
    goes_on(&counted).await;
    agent.restart_with_env(&[("MUSTER_FAULT", "machine_create_snapshot:take:after:kill")]);
    agent.wait_status(&client, "running", BOOT).await;
    let snapshots = format!("/servers/{}/vms/{vm}/snapshots", agent.server_uuid);
    let wanted = json!({ "snapshot_name": "second", "quiesce": "guest" });
    let asked = client.put(&snapshots, &wanted).await.expect(200);
    agent.daemon().wait_exit(BOOT).await;
    let before = counted().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counted().await, before, "it is frozen");
    agent.restart_with_env(&[]);
    client.complete_task(asked["id"].as_str().expect("a task"), 120).await;
    goes_on(&counted).await;
}

async fn goes_on<Fut: Future<Output = Result<u64, String>>>(counted: &impl Fn() -> Fut) {
    let from = wait_for("the guest answers", BOOT, counted).await;
    wait_for("the guest counts on", BOOT, || async {
        let now = counted().await?;
        if now > from + 5 { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}
