//! Faults around guests on bridges, in a network namespace of the test: an agent that is killed between
//! a guest's tap and its process, and another agent on the same host.

use std::path::Path;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid, temp_dir};
use muster_tests::guest;
use muster_tests::http::Client;
use muster_tests::own_network::{self, ports, run, taps};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// Until a daemon has done what it does at once.
const SOON: Duration = Duration::from_secs(60);

/// Where an agent that starts a guest is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// The guest's tap is there, and nothing filters it.
    BeforeRules,
    /// Rules are in force, and the tap is in no bridge.
    AfterRules,
    /// The tap is in its bridge, and the guest's process ends before it begins.
    NoProcess,
    /// The same, and the process begins.
    Process,
}

impl Moment {
    const ALL: [Self; 4] = [Self::BeforeRules, Self::AfterRules, Self::NoProcess, Self::Process];

    fn ports(self) -> usize {
        usize::from(matches!(self, Self::NoProcess | Self::Process))
    }
}

/// In the place of `nft`, which makes a table with `-f -`.
fn nft(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "moment=$(cat {folder}/moment 2>/dev/null)\n\
         [ \"$*\" = '-f -' ] || moment=\n\
         end() {{ rm {folder}/moment; kill -9 $(cat {folder}/agent); }}\n\
         if [ \"$moment\" = BeforeRules ]; then end; exit 1; fi\n\
         {folder}/real \"$@\"\n\
         status=$?\n\
         [ \"$moment\" != AfterRules ] || end\n\
         exit $status\n"
    )
}

/// In the place of the hypervisor, which gets the name of a pid file with each guest.
fn qemu(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "moment=\n\
         case \" $* \" in *' -pidfile '*) moment=$(cat {folder}/moment 2>/dev/null) ;; esac\n\
         end() {{ rm {folder}/moment; kill -9 $(cat {folder}/agent); }}\n\
         case \"$moment\" in NoProcess) end; exit 1 ;; Process) end ;; esac\n\
         exec qemu-system-x86_64 \"$@\"\n"
    )
}

/// A VM whose firewall needs sets.
fn payload(image: &str, vm: &str) -> Value {
    let rule = json!({ "rule": "FROM all vms TO any BLOCK tcp PORT 25", "enabled": true });
    json!({
        "uuid": vm, "brand": "kvm", "ram": 192, "owner_uuid": fresh_uuid(),
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "firewall_enabled": true, "firewall_rules": [rule],
        "nics": [{ "nic_tag": "one", "ips": ["10.77.0.11/24"] }],
    })
}

/// Asks for a VM; the task's id.
async fn ask(client: &Client, agent: &Agent, image: &str, vm: &str) -> String {
    let path = format!("/servers/{}/vms", agent.server_uuid);
    let asked = client.post(&path, &payload(image, vm)).await.expect(200);
    asked["id"].as_str().expect("a task").to_owned()
}

async fn destroy(client: &Client, agent: &Agent, vm: &str) {
    let path = format!("/servers/{}/vms/{vm}", agent.server_uuid);
    let asked = client.delete(&path).await.expect(200);
    client.complete_task(asked["id"].as_str().expect("a task"), 120).await;
}

/// Taps, ports of the bridge, and names of sets of nftables.
fn host() -> (usize, usize, usize) {
    let sets = run("nft list sets");
    (taps(), ports("one"), sets.lines().filter(|line| line.contains("set ")).count())
}

fn nothing_is_left(agent: &Agent, vm: &str, case: &str) {
    assert_eq!(host(), (0, 0, 0), "{case}");
    assert_eq!(run("nft list ruleset"), "", "{case}");
    assert_eq!(agent.guest_pids(), Vec::<u32>::new(), "{case}");
    let data = agent.data_dir();
    let nics = data.join(format!("nics/{vm}.json"));
    for left in [nics, data.join(format!("vms/{vm}.json")), agent.run_dir().join("vm").join(vm)] {
        assert!(!left.exists(), "{case}: {} is left", left.display());
    }
}

#[tokio::test]
async fn an_agent_killed_between_tap_and_qemu_leaves_a_whole_vm_or_nothing() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    own_network::replace_program("nft", folder.path(), &nft(folder.path()));
    own_network::write_script(&path("qemu"), &qemu(folder.path()));
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let setting = format!("compute.qemu={}", path("qemu").display());
    let mut agent = Agent::with(&[&coordinator.agent_url()], &[&setting], &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    for moment in Moment::ALL {
        agent.wait_allocatable(&client).await;
        let (vm, case) = (fresh_uuid(), format!("{moment:?}"));
        std::fs::write(path("agent"), agent.daemon().pid().to_string()).expect("a folder");
        std::fs::write(path("moment"), &case).expect("a folder");
        let task = ask(&client, &agent, &image, &vm).await;
        let daemon = agent.daemon();
        wait_for(&format!("the agent dies, {case}"), SOON, || {
            let exited = daemon.has_exited();
            async move { if exited { Ok(()) } else { Err("it runs") } }
        })
        .await;
        assert_eq!((taps(), ports("one")), (1, moment.ports()), "{case}");

        agent.restart();
        let ended = client.wait_task(&task, 120).await;
        let is_made = ended["status"] == "complete";
        println!("{case}: the VM {}", if is_made { "runs" } else { "is gone" });
        if is_made {
            let (taps, ports, sets) = host();
            assert_eq!((agent.guest_pids().len(), taps, ports), (1, 1, 1), "{case}: {ended:#}");
            assert!(sets > 0, "{case}: rules are in force");
            destroy(&client, &agent, &vm).await;
        }
        nothing_is_left(&agent, &vm, &case);
    }
}

#[tokio::test]
async fn two_agents_on_one_host_leave_each_others_guests_alone() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut first = Agent::start(&coordinator.agent_url());
    let second = Agent::start(&coordinator.agent_url());
    let image = guest::import(&client).await;
    let vms = [fresh_uuid(), fresh_uuid()];
    for (agent, vm) in [&first, &second].into_iter().zip(&vms) {
        agent.wait_allocatable(&client).await;
        let task = ask(&client, agent, &image, vm).await;
        client.complete_task(&task, 120).await;
    }
    let (table, both) = (|| run("nft list tables"), host());
    assert_eq!((both.0, both.1, table().lines().count()), (2, 2, 2));
    let of_second = format!("_{}_nics", &second.server_uuid[..8]);

    // An agent that starts mends what is its own, and takes nothing else for anybody's.
    let rules = run("nft list ruleset");
    first.kill9();
    first.restart();
    first.wait_status(&client, "running", SOON).await;
    assert_eq!((host(), run("nft list ruleset")), (both, rules));
    let orphans = client.get(&format!("/servers/{}/orphans", first.server_uuid)).await;
    assert!(!orphans.text.contains(&vms[1]), "{}", orphans.text);

    let pids = second.guest_pids();
    destroy(&client, &first, &vms[0]).await;
    assert_eq!((taps(), ports("one"), second.guest_pids()), (1, 1, pids));
    let left = table();
    assert!(left.lines().count() == 1 && left.contains(&of_second), "{left}");
    destroy(&client, &second, &vms[1]).await;
    nothing_is_left(&first, &vms[0], "the first agent");
    nothing_is_left(&second, &vms[1], "the second agent");
}
