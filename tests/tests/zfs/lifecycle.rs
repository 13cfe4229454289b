//! A VM in a pool from its making to its end, once by each driver that runs VMs: all that can be done to
//! one, with what it has written watched. Afterwards the host is as before: processes, links, mounts,
//! datasets, files and control groups are counted.

use muster_tests::system::node::{LONG, Node, console, parse};
use serde_json::{Value, json};

use crate::machines::{act, device, read, take_snapshot, try_run, write};
use crate::pools::{MIRROR, node_with, property};

/// What the VMs' nics are on.
const BRIDGE: &str = "ip link add mt-one type bridge
ip addr add 10.79.0.1/24 dev mt-one
ip link set mt-one up";
const NIC: &str = r#"{ "nic_tag": "one", "mac": "02:00:00:00:00:21", "primary": true,
    "ips": ["10.79.0.11/24"] }"#;
/// What there is on the host of VMs, a count of each.
const COUNT: &str = "echo processes $(pgrep -fc 'qemu-system|container-monitor')
echo links $(ip -o link show | grep -c ': mt[^-]')
echo mounts $(grep -c ' /run/muster/' /proc/mounts)
echo files $(find /var/lib/muster-agent/{containers,guests,vms} /run/muster/{vm,ct,netns,oci,roots,images} \
    /zones/muster/{records,packs,imports} -mindepth 1 2>/dev/null | wc -l)
echo control groups $(find /sys/fs/cgroup -type d -name '*-vm-*' | wc -l)
zfs list -H -o name -t all -r zones";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Qemu,
    Oci,
}

struct Cell {
    node: Node,
    driver: Driver,
    vm: String,
}

impl Cell {
    async fn new(driver: Driver) -> Self {
        let node = node_with(&format!("{BRIDGE}\n{MIRROR}")).await;
        let file = "/mnt/payload/guest/container.tar --format docker-archive";
        try_run(&node, &format!("muster image import {file} --name counts --version 1")).await;
        Self { node, driver, vm: String::new() }
    }

    /// The image of this name.
    async fn image(&self, name: &str) -> String {
        let found = self.node.system.run(&format!("muster image get {name} -o json")).await;
        parse(&found)["uuid"].as_str().expect("a uuid").to_owned()
    }

    async fn create(&self, alias: &str, image: &str, nics: &Value) -> String {
        let mut wishes = json!({ "nics": nics });
        if self.driver == Driver::Oci {
            let own = json!({
                "brand": "joyent-minimal", "image_uuid": self.image(image).await, "disks": [],
                "quota": 5, "zfs_root_recsize": 16384,
            });
            let members = wishes.as_object_mut().expect("an object");
            members.extend(own.as_object().expect("an object").clone());
        }
        let (vm, asked) = self.node.ask_for_vm(alias, image, &wishes).await;
        self.node.complete(&asked).await;
        vm
    }

    async fn post(&self, path: &str, body: &Value) {
        act(&self.node, "POST", &self.vm, path, body).await;
    }

    async fn destroy(&self, vm: &str) {
        act(&self.node, "DELETE", vm, "", &json!({})).await;
    }

    /// The dataset with what a VM has written.
    fn dataset(&self, vm: &str) -> String {
        match self.driver {
            Driver::Qemu => format!("zones/{vm}/disk0"),
            Driver::Oci => format!("zones/{vm}/root"),
        }
    }

    /// Waits for the boot of this number.
    async fn booted(&self, vm: &str, count: usize) {
        let (log, line) = match self.driver {
            Driver::Qemu => (console(vm), "button: up"),
            Driver::Oci => (printed(vm), "boot [0-9]*[.]"),
        };
        let script = format!("test \"$(grep -o '{line}' {log} | wc -l)\" = {count}");
        self.node.system.wait(&format!("boot {count} of {vm}"), LONG, &script).await;
    }

    /// Waits for the boot of this number among all that a container has seen, which its root says is this
    /// one.
    async fn counted_boot(&self, vm: &str, count: usize, says: u32) {
        self.booted(vm, count).await;
        let last = format!("grep -o 'boot [0-9]*[.]' {} | tail -n 1", printed(vm));
        assert_eq!(self.node.system.run(&last).await, format!("boot {says}.\n"), "boot {count}");
    }

    fn step(&self, step: &str) {
        println!("lifecycle {:?} × zfs: {step}", self.driver);
    }

    /// What there is on the host of VMs, images apart.
    async fn counted(&self) -> Vec<String> {
        let images = self.node.system.run("muster image list -o json").await;
        let images = parse(&images);
        let images = images.as_array().expect("a list").iter().filter_map(|it| it["uuid"].as_str());
        let images: Vec<_> = images.map(|image| format!("zones/{image}")).collect();
        let told = self.node.system.run(COUNT).await;
        let is_image = |line: &&str| images.iter().any(|image| line.starts_with(image));
        told.lines().filter(|line| !is_image(line)).map(str::to_owned).collect()
    }
}

/// Where a container's console is kept.
fn printed(vm: &str) -> String {
    format!("/var/lib/muster-agent/containers/{vm}/console.log")
}

/// Made, stopped, started, changed.
async fn lives(cell: &mut Cell, image: &str) {
    let nic: Value = serde_json::from_str(NIC).expect("JSON");
    cell.vm = cell.create("one", image, &json!([nic])).await;
    let (vm, system) = (cell.vm.as_str(), &cell.node.system);
    cell.booted(vm, 1).await;
    let dataset = cell.dataset(vm);
    let origin = format!("zones/{}@final", cell.image(image).await);
    assert_eq!(property(system, &dataset, "origin").await, origin);
    assert_eq!(property(system, &dataset, "muster:vm_uuid").await, vm);
    cell.step("create");
    cell.post("/stop", &json!({})).await;
    assert_eq!(cell.node.vm(vm).await["state"], "stopped");
    cell.step("stop");
    cell.post("/start", &json!({})).await;
    cell.booted(vm, 2).await;
    cell.step("start");
    cell.post("/reboot", &json!({})).await;
    cell.booted(vm, 3).await;
    cell.step("reboot");
    cell.post("/update", &json!({ "set_tags": { "a": "b" } })).await;
    assert_eq!(cell.node.vm(vm).await["tags"], json!({ "a": "b" }));
    cell.step("update");
    cell.post("/update", &json!({ "cpu_cap": 90 })).await;
    assert_eq!(cell.node.vm(vm).await["cpu_cap"], 90);
    cell.step("hot change");
}

/// The limit of a root holds inside, and changes while its container runs.
async fn keeps_within_its_quota(cell: &Cell) {
    let (system, root) = (&cell.node.system, cell.dataset(&cell.vm));
    assert_eq!(property(system, &root, "quota").await, (5_u64 << 30).to_string());
    assert_eq!(property(system, &root, "recordsize").await, "16384");
    // Smaller than any that a VM can be given: the pool is smaller as well.
    system.run(&format!("zfs set quota=16M {root}")).await;
    let pid = cell.node.vm(&cell.vm).await["pid"].as_u64().expect("it runs");
    let inside = format!("nsenter --target {pid} --all --root --wd=/ /bin/sh -c");
    let fill = format!("{inside} 'dd if=/dev/urandom of=/big bs=1048576 count=40 2>&1; rm /big'");
    let said = system.try_run(&fill, LONG).await.expect("the machine answers").stdout;
    assert!(said.contains("quota exceeded"), "{said}");
    cell.post("/update", &json!({ "quota": 6 })).await;
    assert_eq!(property(system, &root, "quota").await, (6_u64 << 30).to_string());
    cell.post("/update", &json!({ "quota": 0 })).await;
    assert_eq!(property(system, &root, "quota").await, "0");
    cell.booted(&cell.vm, 3).await;
    cell.step("hot change of quota");
}

/// An image of it, a copy of it, and it again from the copy.
async fn is_copied(cell: &Cell, holds: impl AsyncFn(&Cell, &str)) {
    let vm = cell.vm.as_str();
    try_run(&cell.node, "muster image create --name made --version 1 one").await;
    cell.step("image from VM");
    let other = cell.create("two", "made", &json!([])).await;
    holds(cell, &other).await;
    let origin = format!("zones/{}@final", cell.image("made").await);
    assert_eq!(property(&cell.node.system, &cell.dataset(&other), "origin").await, origin);
    cell.destroy(&other).await;
    cell.step("create from that image");
    try_run(&cell.node, "muster vm export one /root/one.vm").await;
    cell.step("export");
    cell.destroy(vm).await;
    let server = &cell.node.server;
    try_run(&cell.node, &format!("muster vm import /root/one.vm --start --server {server}")).await;
    holds(cell, vm).await;
    cell.step("import");
}

/// It goes, and the host is as before.
async fn leaves_nothing(cell: &Cell, before: &[String]) {
    cell.destroy(&cell.vm).await;
    assert_eq!(cell.counted().await, before);
    cell.step(&format!("destroy; as before: {before:?}"));
}

/// Everything that is counted is more while a VM runs.
fn check_counted(before: &[String], during: &[String], what: &[&str]) {
    let figure = |lines: &[String], what: &str| -> u32 {
        let line = lines.iter().find_map(|line| line.strip_prefix(what)?.trim().parse().ok());
        line.unwrap_or_else(|| panic!("no {what}: {lines:?}"))
    };
    for what in what {
        assert!(figure(during, what) > figure(before, what), "{what}: {before:?} {during:?}");
    }
    assert!(during.len() > before.len(), "datasets: {during:?}");
}

#[tokio::test]
async fn lifecycle_of_a_machine_on_zfs() {
    let mut cell = Cell::new(Driver::Qemu).await;
    let before = cell.counted().await;
    lives(&mut cell, "button").await;
    let what = ["processes", "links", "files", "control groups"];
    check_counted(&before, &cell.counted().await, &what);
    let (vm, node) = (cell.vm.as_str(), &cell.node);

    cell.post("/stop", &json!({ "force": true })).await;
    write(node, &device(vm), "a").await;
    take_snapshot(node, vm, "a").await;
    cell.step("snapshot");
    write(node, &device(vm), "b").await;
    assert_eq!(read(node, &device(vm)).await, "b");
    cell.step("write");
    act(node, "PUT", vm, "/snapshots/a/rollback", &json!({})).await;
    assert_eq!(read(node, &device(vm)).await, "a");
    cell.step("rollback: data back");
    cell.post("/start", &json!({})).await;
    cell.booted(vm, 4).await;
    cell.post("/reprovision", &json!({ "image_uuid": cell.image("button").await })).await;
    cell.booted(vm, 5).await;
    assert_eq!(read(node, &device(vm)).await, "");
    cell.step("reprovision");

    cell.post("/stop", &json!({ "force": true })).await;
    write(node, &device(vm), "c").await;
    is_copied(&cell, async |cell: &Cell, vm: &str| {
        cell.booted(vm, 1).await;
        assert_eq!(read(&cell.node, &device(vm)).await, "c");
    })
    .await;
    leaves_nothing(&cell, &before).await;
}

#[tokio::test]
async fn lifecycle_of_a_container_on_zfs() {
    let mut cell = Cell::new(Driver::Oci).await;
    let before = cell.counted().await;
    lives(&mut cell, "counts").await;
    let what = ["processes", "links", "mounts", "files", "control groups"];
    check_counted(&before, &cell.counted().await, &what);
    keeps_within_its_quota(&cell).await;
    let (vm, node) = (cell.vm.as_str(), &cell.node);

    take_snapshot(node, vm, "a").await;
    cell.step("snapshot");
    cell.post("/reboot", &json!({})).await;
    cell.counted_boot(vm, 4, 4).await;
    cell.step("write");
    act(node, "PUT", vm, "/snapshots/a/rollback", &json!({})).await;
    cell.counted_boot(vm, 5, 4).await;
    cell.step("rollback: data back");
    cell.post("/reprovision", &json!({ "image_uuid": cell.image("counts").await })).await;
    cell.counted_boot(vm, 6, 1).await;
    cell.step("reprovision");

    cell.post("/stop", &json!({})).await;
    is_copied(&cell, async |cell: &Cell, vm: &str| cell.counted_boot(vm, 1, 2).await).await;
    leaves_nothing(&cell, &before).await;
}

#[tokio::test]
async fn a_container_on_zfs_runs_again_after_a_reboot_of_its_host() {
    let cell = Cell::new(Driver::Oci).await;
    let vm = cell.create("one", "counts", &json!([])).await;
    cell.counted_boot(&vm, 1, 1).await;
    let system = &cell.node.system;
    let boot_id = system.run("cat /proc/sys/kernel/random/boot_id").await;
    system.run("systemd-run --quiet --no-block systemctl reboot").await;
    let booted = format!(
        "test \"$(cat /proc/sys/kernel/random/boot_id)\" != {} && systemctl is-active muster-agent",
        boot_id.trim()
    );
    system.wait("the machine was booted anew", LONG, &booted).await;
    cell.counted_boot(&vm, 2, 2).await;
    let shown = system.run("grep ' /run/muster/roots/' /proc/mounts").await;
    assert!(shown.starts_with(&format!("{} ", cell.dataset(&vm))), "{shown}");
}
