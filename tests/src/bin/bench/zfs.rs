//! What a VM on a clone in a pool costs over the clone and QEMU alone: on the emulated machine of
//! `make bench-zfs`, so that only the difference says something.

use muster_tests::daemon::fresh_uuid;
use muster_tests::system::System;
use muster_tests::system::node::{LONG, Node, parse};
use serde_json::{Value, json};

use super::row;

/// Measured creates; one more before them is not, which fetches the image.
const CREATES: usize = 10;
/// As the tests of pools have one.
const POOL: &str = "set -eu
zpool create -O compression=lz4 zones mirror \
    /dev/disk/by-id/virtio-spare0 /dev/disk/by-id/virtio-spare1
sed -i '1i storage = \"zfs\"' /etc/muster/agent.toml
systemctl restart muster-agent";
/// Prints how long it takes until QEMU's CPUs run on a new disk, us.
const BARE: &str = "set -eu
from=$(date +%s%N)
MAKE
qemu-system-x86_64 -nodefaults -no-user-config -display none -M q35 -accel tcg -m 64 \
    -drive DRIVE,if=virtio -daemonize -pidfile /run/bare.pid
to=$(date +%s%N)
pid=$(cat /run/bare.pid)
kill -KILL $pid
while [ -e /proc/$pid ]; do sleep 0.1; done
REMOVE
echo $(((to - from) / 1000))";
/// The disk as a clone: there when its device is.
const CLONE: Bare = Bare {
    make: "zfs clone zones/IMAGE@final zones/bare
until [ -e /dev/zvol/zones/bare ]; do :; done",
    drive: "file=/dev/zvol/zones/bare,format=raw",
    remove: "udevadm settle
until zfs destroy zones/bare; do sleep 0.1; done",
};
/// As a file over one with the image.
const OVERLAY: Bare = Bare {
    make: "qemu-img create -q -f qcow2 -F raw -b /mnt/payload/guest/button.raw /run/bare.qcow2",
    drive: "file=/run/bare.qcow2,format=qcow2",
    remove: "rm /run/bare.qcow2",
};
/// Prints how long the agent takes for what is in `/root/create.json`, us.
const CREATE: &str = "set -eu
from=$(date +%s%N)
curl -sS --fail-with-body --unix-socket /run/muster/agent.sock --data @/root/create.json \
    http://agent/tasks >/root/created.json
to=$(date +%s%N)
curl -sS --fail-with-body --unix-socket /run/muster/agent.sock --data @- http://agent/tasks \
    >/dev/null <<'END'
DESTROY
END
echo $(((to - from) / 1000))";

/// What an operator would do without an agent.
struct Bare {
    make: &'static str,
    drive: &'static str,
    remove: &'static str,
}

pub(super) async fn run() {
    if !System::is_there() {
        println!("SKIPPED: zfs: there is no machine with OpenZFS, run `make bench-zfs`");
        return;
    }
    let node = Node::install(System::start().await).await;
    let image = parse(&node.system.run("muster image get button -o json").await);
    // What this machine makes of a figure that real ones have as well, see `bench foundation`.
    let on_files = creates(&node, &image, &OVERLAY).await;
    script(&node, POOL).await;
    node.wait_usable().await;
    let on_clones = creates(&node, &image, &CLONE).await;
    for (what, times) in [("file", &on_files), ("clone", &on_clones)] {
        row(&format!("emulated machine: {what} + QEMU until its CPUs run"), &ms(times.bare), "-");
        row(&format!("emulated machine: VM create on a {what}"), &ms(times.created), "-");
    }
    let overhead = on_clones.overhead();
    row("emulated machine: VM create overhead on a clone", &ms(overhead), "60 ms on a real one");
    // On a real machine the goals are 60 ms, and 50 ms for a file.
    let ratio = percent(overhead, on_files.overhead());
    row("that of the overhead on a file", &format!("{ratio} %"), "120 %");
}

/// Medians, us.
struct Times {
    created: u64,
    bare: u64,
}

impl Times {
    fn overhead(&self) -> u64 {
        self.created.saturating_sub(self.bare)
    }
}

fn percent(of: u64, whole: u64) -> u64 {
    of.saturating_mul(100) / whole.max(1)
}

async fn creates(node: &Node, image: &Value, bare: &Bare) -> Times {
    let uuid = image["uuid"].as_str().expect("a uuid");
    let script_of = BARE.replace("MAKE", bare.make).replace("DRIVE", bare.drive);
    let alone_script = script_of.replace("REMOVE", bare.remove).replace("IMAGE", uuid);
    let (mut created, mut alone) = (Vec::new(), Vec::new());
    for number in 0..=CREATES {
        let took = create(node, image).await;
        // In turns: whatever else this machine does meets both.
        let took_alone = microseconds(&script(node, &alone_script).await);
        if number > 0 {
            created.push(took);
            alone.push(took_alone);
        }
    }
    created.sort_unstable();
    alone.sort_unstable();
    Times { created: created[CREATES / 2], bare: alone[CREATES / 2] }
}

/// Has the agent make a VM, and destroy it again; how long the first took, us.
async fn create(node: &Node, image: &Value) -> u64 {
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "alias": "bench", "ram": 64, "vnc_port": -1,
        "max_physical_memory": 320, "owner_uuid": fresh_uuid(), "image": image,
        "disks": [{ "image_uuid": image["uuid"], "boot": true }],
    });
    let body = json!({ "task": "machine_create", "params": payload });
    let write = format!("cat >/root/create.json <<'END'\n{body}\nEND\n");
    let destroy = json!({ "task": "machine_destroy", "params": { "uuid": vm } }).to_string();
    let took = script(node, &(write + &CREATE.replace("DESTROY", &destroy))).await;
    microseconds(&took)
}

/// Runs a script that may take its time; what it printed.
async fn script(node: &Node, script: &str) -> String {
    let ran = node.system.try_run(script, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{script}: {ran:#?}");
    ran.stdout
}

fn microseconds(printed: &str) -> u64 {
    printed.trim().parse().expect("a number")
}

fn ms(microseconds: u64) -> String {
    super::ms(std::time::Duration::from_micros(microseconds))
}
