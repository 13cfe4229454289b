//! What a VM on a clone in a pool costs over the clone and QEMU alone: on the emulated machine of
//! `make bench-zfs`. Its one processor takes a nanosecond for an instruction by its own clock, however
//! busy this machine is: several times as long as a real one. What it waits for takes as long as here.
//! How many times is measured as well, by what both machines do: QEMU that starts on a new file. The
//! last rows say how long the same work takes here by that; a machine with more than one processor does
//! some of it at the same time.

use muster_tests::daemon::{fresh_uuid, temp_dir};
use muster_tests::system::System;
use muster_tests::system::node::{LONG, Node, parse};
use serde_json::{Value, json};

use super::row;

/// Measured creates; one more before them is not, which fetches the image.
const CREATES: usize = 10;
/// Starts of QEMU that tell how slow the emulated machine is.
const STARTS: usize = 15;
/// As the tests of pools have one.
const POOL: &str = "set -eu
zpool create -O compression=lz4 zones mirror \
    /dev/disk/by-id/virtio-spare0 /dev/disk/by-id/virtio-spare1
sed -i '1i storage = \"zfs\"' /etc/muster/agent.toml
systemctl restart muster-agent";
/// Before what is timed; `ENDED` is behind it. `PRINTED` says how long it took, and for how much of that the
/// processor had nothing to do, us.
const BEGUN: &str = "idle() { awk '{ printf \"%d\", $2 * 1000000 }' /proc/uptime; }
idle_from=$(idle)
from=$(date +%s%N)";
const ENDED: &str = "to=$(date +%s%N)
idle_to=$(idle)";
const PRINTED: &str = "echo $(((to - from) / 1000)) $((idle_to - idle_from))";
/// How long it takes until QEMU's CPUs run on a new disk.
const BARE: &str = "set -eu
BEGUN
CLIENT
MAKE
qemu-system-x86_64 -nodefaults -no-user-config -display none -M q35 -accel tcg -m 64 \
    -drive DRIVE,if=virtio -daemonize -pidfile /run/bare.pid
ENDED
pid=$(cat /run/bare.pid)
kill -KILL $pid
while [ -e /proc/$pid ]; do sleep 0.1; done
REMOVE
PRINTED";
/// What curl takes by itself is in what it takes to ask for a create: here it asks for next to nothing.
const CLIENT: &str =
    "curl -sS --fail-with-body --unix-socket /run/muster/agent.sock http://agent/ping >/run/pong";
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
/// As an empty file: what any machine with QEMU can do.
const EMPTY: Bare = Bare {
    make: "qemu-img create -q -f qcow2 /run/bare.qcow2 1G",
    drive: "file=/run/bare.qcow2,format=qcow2",
    remove: "rm /run/bare.qcow2",
};
/// How long the agent takes for what is in `/root/create.json`.
const CREATE: &str = "set -eu
BEGUN
curl -sS --fail-with-body --unix-socket /run/muster/agent.sock --data @/root/create.json \
    http://agent/tasks >/root/created.json
ENDED
curl -sS --fail-with-body --unix-socket /run/muster/agent.sock --data @- http://agent/tasks \
    >/dev/null <<'END'
DESTROY
END
PRINTED";

/// What an operator would do without an agent.
struct Bare {
    make: &'static str,
    drive: &'static str,
    remove: &'static str,
}

impl Bare {
    fn script(&self, client: &str) -> String {
        let script = BARE.replace("CLIENT", client).replace("MAKE", self.make);
        script.replace("DRIVE", self.drive).replace("REMOVE", self.remove)
    }
}

pub(super) async fn run() {
    if !System::is_there() {
        println!("SKIPPED: zfs: there is no machine with OpenZFS, run `make bench-zfs`");
        return;
    }
    let node = Node::install(System::start_counted().await).await;
    let image = parse(&node.system.run("muster image get button -o json").await);
    let on_files = creates(&node, &image, &OVERLAY).await;
    script(&node, POOL).await;
    node.wait_usable().await;
    let on_clones = creates(&node, &image, &CLONE).await;
    for (what, times) in [("file", &on_files), ("clone", &on_clones)] {
        let of = |what: &str| format!("emulated machine: {what}");
        row(&of(&format!("{what} + QEMU until its CPUs run")), &times.bare.shown(), "-");
        row(&of(&format!("VM create on a {what}")), &times.created.shown(), "-");
        row(&of(&format!("overhead on a {what}")), &times.overhead().shown(), "-");
    }
    let (there, here) = (starts(Some(&node)).await, starts(None).await);
    row("emulated machine: empty file + QEMU until its CPUs run", &there.shown(), "-");
    row("this machine: empty file + QEMU until its CPUs run", &ms(here.took), "-");
    for (what, times, goal) in [("file", &on_files, "50 ms"), ("clone", &on_clones, "60 ms")] {
        let overhead = times.overhead();
        let worked = overhead.took.saturating_sub(overhead.idle) * here.took / there.took.max(1);
        row(&format!("overhead on a {what}, by this machine"), &ms(worked + overhead.idle), goal);
    }
}

/// How long QEMU takes to start on an empty file, there or here.
async fn starts(node: Option<&Node>) -> Took {
    let script = EMPTY.script("");
    let folder = temp_dir();
    let here = in_full(&script).replace("/run/", &format!("{}/", folder.path().display()));
    let mut took = Vec::new();
    for _ in 0..STARTS {
        took.push(match node {
            Some(node) => timed(node, &script).await,
            None => parsed(&ran_here(&here)),
        });
    }
    Took::of(&mut took)
}

/// How long something took, us.
#[derive(Clone, Copy)]
struct Took {
    took: u64,
    /// For so much of it the processor had nothing to do.
    idle: u64,
}

impl Took {
    fn shown(self) -> String {
        format!("{}, {} idle", ms(self.took), ms(self.idle))
    }

    /// Of several: the median, and the mean of what was idle, which the kernel counts in steps of
    /// 10 ms.
    fn of(all: &mut [Self]) -> Self {
        all.sort_unstable_by_key(|one| one.took);
        let count = u64::try_from(all.len()).expect("few");
        let idle = all.iter().map(|one| one.idle).sum::<u64>() / count;
        Self { took: all[all.len() / 2].took, idle }
    }
}

struct Times {
    created: Took,
    bare: Took,
}

impl Times {
    fn overhead(&self) -> Took {
        let Self { created, bare } = self;
        Took {
            took: created.took.saturating_sub(bare.took),
            idle: created.idle.saturating_sub(bare.idle),
        }
    }
}

async fn creates(node: &Node, image: &Value, bare: &Bare) -> Times {
    let uuid = image["uuid"].as_str().expect("a uuid");
    let alone_script = bare.script(CLIENT).replace("IMAGE", uuid);
    let (mut created, mut alone) = (Vec::new(), Vec::new());
    for number in 0..=CREATES {
        let took = create(node, image).await;
        // In turns: whatever else this machine does meets both.
        let took_alone = timed(node, &alone_script).await;
        if number > 0 {
            created.push(took);
            alone.push(took_alone);
        }
    }
    Times { created: Took::of(&mut created), bare: Took::of(&mut alone) }
}

/// Has the agent make a VM, and destroy it again; how long the first took.
async fn create(node: &Node, image: &Value) -> Took {
    let vm = fresh_uuid();
    let payload = json!({
        "uuid": vm, "brand": "kvm", "alias": "bench", "ram": 64, "vnc_port": -1,
        "max_physical_memory": 320, "owner_uuid": fresh_uuid(), "image": image,
        "disks": [{ "image_uuid": image["uuid"], "boot": true }],
    });
    let body = json!({ "task": "machine_create", "params": payload });
    let write = format!("cat >/root/create.json <<'END'\n{body}\nEND\n");
    let destroy = json!({ "task": "machine_destroy", "params": { "uuid": vm } }).to_string();
    timed(node, &(write + &CREATE.replace("DESTROY", &destroy))).await
}

/// Runs a script with the parts that take the time.
async fn timed(node: &Node, parts: &str) -> Took {
    parsed(&script(node, &in_full(parts)).await)
}

fn in_full(parts: &str) -> String {
    parts.replace("BEGUN", BEGUN).replace("ENDED", ENDED).replace("PRINTED", PRINTED)
}

fn parsed(printed: &str) -> Took {
    let mut numbers = printed.split_whitespace().map(|number| number.parse().expect("a number"));
    Took { took: numbers.next().expect("a time"), idle: numbers.next().expect("an idle time") }
}

fn ran_here(script: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own comparison")]
    let ran = std::process::Command::new("bash").args(["-c", script]).output();
    let ran = ran.expect("bash runs");
    assert!(ran.status.success(), "{script}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Runs a script that may take its time; what it printed.
async fn script(node: &Node, script: &str) -> String {
    let ran = node.system.try_run(script, LONG).await.expect("the machine answers");
    assert_eq!(ran.code, 0, "{script}: {ran:#?}");
    ran.stdout
}

fn ms(microseconds: u64) -> String {
    super::ms(std::time::Duration::from_micros(microseconds))
}
