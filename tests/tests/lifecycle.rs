//! A VM from its making to its end, once by each driver that runs VMs: all that can be done to one, with
//! what it has written watched. Afterwards the host is as before: processes, links, mounts, files and
//! control groups are counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::{Answer, Client};
use muster_tests::own_network::{self, run};
use muster_tests::wait::wait_for;
use muster_tests::{cli, container};
use serde_json::{Value, json};

/// Counts the boots of its disk in the last sector of that.
const COUNTS_ON_DISK: &str = "#!/bin/sh\n\
    for disk in /sys/block/vd*; do\n\
      case $(cat $disk/serial) in\n\
      disk0) boot=/dev/${disk##*/} last=$(($(cat $disk/size) - 1)) ;;\n\
      esac\n\
    done\n\
    n=$(dd if=$boot bs=512 skip=$last count=1 2>/dev/null | head -c 4)\n\
    n=$((${n:-0} + 1))\n\
    echo $n | dd of=$boot bs=512 seek=$last 2>/dev/null; sync\n\
    echo \"boot $n.\" >/dev/console\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Qemu,
    Oci,
}

struct Cell {
    driver: Driver,
    coordinator: Coordinator,
    client: Client,
    agent: Agent,
    folder: tempfile::TempDir,
    instance: String,
    image: String,
    vm: String,
}

impl Cell {
    /// `None`: it can't be had on this machine, which was said.
    async fn new(driver: Driver) -> Option<Self> {
        if (driver == Driver::Oci && !container::can_run()) || !own_network::enter() {
            return None;
        }
        own_network::add_bridge("one", &["10.79.0.1/24"]);
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let instance = format!("l{}", &fresh_uuid()[..6]);
        let named = format!("instance={instance}");
        let reaches_host = r#"network.server_tags=["one"]"#;
        let agent = Agent::with(&[&coordinator.agent_url()], &[&named, reaches_host], &[]);
        agent.wait_allocatable(&client).await;
        let image = match driver {
            Driver::Qemu => guest::import(&client).await,
            Driver::Oci => container::import(&client, &container::counts_boots()).await,
        };
        let (folder, vm) = (muster_tests::daemon::temp_dir(), fresh_uuid());
        Some(Self { driver, coordinator, client, agent, folder, instance, image, vm })
    }

    fn payload(&self, vm: &str, image: &str, nics: &Value) -> Value {
        let mut payload = json!({
            "uuid": vm, "ram": 192, "alias": format!("vm-{}", &vm[..8]), "owner_uuid": fresh_uuid(),
            "image": { "uuid": image, "files": [{ "compression": "none" }] }, "nics": nics,
        });
        let own = match self.driver {
            Driver::Qemu => json!({
                "brand": "kvm", "vcpus": 1, "customer_metadata": { "user-script": COUNTS_ON_DISK },
                "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
            }),
            Driver::Oci => json!({ "brand": "joyent-minimal", "image_uuid": image }),
        };
        let members = payload.as_object_mut().expect("an object");
        members.extend(own.as_object().expect("an object").clone());
        payload
    }

    fn path(&self, vm: &str, more: &str) -> String {
        format!("/servers/{}/vms/{vm}{more}", self.agent.server_uuid)
    }

    async fn done(&self, answer: Answer) -> Value {
        let started = answer.expect(200);
        self.client.complete_task(started["id"].as_str().expect("a task id"), 240).await
    }

    async fn post(&self, more: &str, body: &Value) -> Value {
        self.done(self.client.post(&self.path(&self.vm, more), body).await).await
    }

    async fn create(&self, vm: &str, image: &str, nics: &Value) {
        let path = format!("/servers/{}/vms", self.agent.server_uuid);
        self.done(self.client.post(&path, &self.payload(vm, image, nics)).await).await;
    }

    async fn destroy(&self, vm: &str) {
        self.done(self.client.delete(&self.path(vm, "")).await).await;
    }

    /// What a VM has printed of its boots.
    fn boots(&self, vm: &str) -> Vec<u32> {
        let folder = match self.driver {
            Driver::Qemu => "guests",
            Driver::Oci => "containers",
        };
        let log = self.agent.data_dir().join(folder).join(vm).join("console.log");
        let text = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let boots = text.split("boot ").skip(1).filter_map(|rest| rest.split_once('.'));
        boots.filter_map(|(number, _)| number.parse().ok()).collect()
    }

    /// Waits for the boot of this number among all that a VM has seen, which its disk says is this one.
    async fn booted(&self, vm: &str, count: usize, says: u32) {
        let what = format!("boot {count} of {vm} is {says} of its disk");
        wait_for(&what, BOOT, || async {
            let boots = self.boots(vm);
            if boots.len() == count { Ok(()) } else { Err(format!("{boots:?}")) }
        })
        .await;
        assert_eq!(self.boots(vm).last(), Some(&says), "{what}");
    }

    fn step(&self, step: &str) {
        println!("lifecycle {:?} × file: {step}", self.driver);
    }

    /// What there is on this host of the agent's VMs.
    fn counted(&self) -> BTreeMap<&'static str, usize> {
        let (data, run_dir) = (self.agent.data_dir(), self.agent.run_dir());
        let entries = |folder: PathBuf| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let data_files = ["vols", "roots", "containers", "guests", "vms", "records"]
            .map(|name| entries(data.join(name)));
        let run_files = ["vm", "ct", "netns", "oci"].map(|name| entries(run_dir.join(name)));
        let links = run("ip -o link show");
        let is_ours = |line: &&str| line.contains(": mt") && !line.contains(": mt-");
        let shared = format!("{}-vms", self.instance);
        [
            ("processes", self.agent.guest_pids().len() + container::monitors(&run_dir).len()),
            ("links", links.lines().filter(is_ours).count()),
            ("mounts", container::mounts(&data).len() + container::mounts(&run_dir).len()),
            ("files", data_files.iter().chain(&run_files).sum()),
            ("control groups", container::control_groups(Path::new(&shared)).len()),
        ]
        .into()
    }
}

/// Made, stopped, started, changed.
async fn lives(cell: &Cell) {
    let vm = cell.vm.as_str();
    let nics = json!([{
        "nic_tag": "one", "mac": "02:00:00:00:00:21", "primary": true, "ips": ["10.79.0.11/24"],
    }]);
    cell.create(vm, &cell.image, &nics).await;
    cell.booted(vm, 1, 1).await;
    cell.step("create");
    let stopped = cell.post("/stop", &json!({})).await;
    assert_eq!(stopped["vm"]["state"], "stopped");
    cell.step("stop");
    cell.post("/start", &json!({})).await;
    cell.booted(vm, 2, 2).await;
    cell.step("start");
    cell.post("/reboot", &json!({})).await;
    cell.booted(vm, 3, 3).await;
    cell.step("reboot");
    let updated = cell
        .post("/update", &json!({ "set_tags": { "a": "b" }, "resolvers": ["192.0.2.53"] }))
        .await;
    assert_eq!(updated["vm"]["tags"], json!({ "a": "b" }));
    cell.step("update");
    let changed = cell.post("/update", &json!({ "cpu_cap": 90 })).await;
    assert_eq!(changed["vm"]["cpu_cap"], 90);
    assert!(!changed["pending_reboot"].as_array().expect("a list").contains(&json!("cpu_cap")));
    cell.step("hot change");
}

/// What it writes goes and comes back.
async fn remembers(cell: &Cell) {
    let vm = cell.vm.as_str();
    let put = async |more: &str, body: &Value| {
        cell.done(cell.client.put(&cell.path(vm, more), body).await).await
    };
    let taken = put("/snapshots", &json!({ "snapshot_name": "a" })).await;
    assert_eq!(taken["vm"]["snapshots"][0]["name"], "a");
    cell.step("snapshot");
    cell.post("/reboot", &json!({})).await;
    cell.booted(vm, 4, 4).await;
    cell.step("write");
    let back = put("/snapshots/a/rollback", &json!({})).await;
    assert_eq!(back["vm"]["state"], "running");
    cell.booted(vm, 5, 4).await;
    cell.step("rollback: data back");
    let fresh = cell.post("/reprovision", &json!({ "image_uuid": cell.image })).await;
    assert_eq!(fresh["lost_snapshots"], json!(["a"]));
    cell.booted(vm, 6, 1).await;
    cell.step("reprovision");
}

/// Others are made from it, and it from a copy of itself.
async fn is_copied(cell: &Cell) {
    let vm = cell.vm.as_str();
    cell.post("/stop", &json!({})).await;
    let wanted = json!({ "compression": "none", "manifest": { "name": "copy", "version": "1" } });
    let made = cell.post("/images", &wanted).await;
    let image = made["image_uuid"].as_str().expect("an image");
    cell.step("image from VM");
    let other = fresh_uuid();
    cell.create(&other, image, &json!([])).await;
    cell.booted(&other, 1, 2).await;
    cell.destroy(&other).await;
    cell.step("create from that image");
    let file = cell.folder.path().join("copy").display().to_string();
    let name = format!("vm-{}", &vm[..8]);
    let said = cli::text(&cell.coordinator, &["vm", "export", &name, &file]);
    cell.step(&format!("export: {}", said.trim()));
    cell.destroy(vm).await;
    assert_eq!(cell.boots(vm), Vec::<u32>::new(), "its log is gone");
    let server = cell.agent.server_uuid.as_str();
    let words = ["vm", "import", &file, "--start", "--server", server];
    let said = cli::text(&cell.coordinator, &words);
    cell.booted(vm, 1, 2).await;
    cell.step(&format!("import: {}", said.trim()));
}

async fn lifecycle(driver: Driver) {
    let Some(cell) = Cell::new(driver).await else { return };
    let before = cell.counted();
    lives(&cell).await;
    let during = cell.counted();
    for what in ["processes", "links", "files"] {
        assert!(during[what] > before[what], "{what} are counted: {during:?}");
    }
    remembers(&cell).await;
    is_copied(&cell).await;
    cell.destroy(&cell.vm).await;
    assert_eq!(cell.counted(), before);
    cell.step(&format!("destroy; as before: {before:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hardware_vm_on_files() {
    lifecycle(Driver::Qemu).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_on_files() {
    lifecycle(Driver::Oci).await;
}
