//! A network of the test's own, in which it may do what an operator does.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};

/// Runs a command as an operator would; what it printed.
///
/// # Panics
/// If it failed.
#[track_caller]
pub fn run(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new(words[0]).args(&words[1..]).output().expect(command);
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// From here on this thread, and what it starts, has a network of its own, with an interface `eth0`.
/// False where there is no right to make one.
///
/// # Panics
/// If it can't be made for another reason.
#[must_use]
pub fn enter() -> bool {
    if !leave_host(CloneFlags::CLONE_NEWNET) {
        return false;
    }
    run("ip link set lo up");
    // The node's own interface, without which no VM is placed on it.
    run("ip link add eth0 type veth peer name far0");
    for link in ["eth0", "far0"] {
        run(&format!("ip link set {link} up"));
    }
    run("ip addr add 198.18.0.1/30 dev eth0");
    true
}

/// Where daemons look for programs.
const PROGRAMS: [&str; 4] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];

/// From here on this thread, and what it starts, runs a shell script in the place of a program. The
/// program itself is `real` in `folder` then. Only after [`enter`].
///
/// # Panics
/// If there is no such program, or it can't be replaced.
pub fn replace_program(program: &str, folder: &Path, script: &str) {
    let found = PROGRAMS.iter().map(|dir| Path::new(dir).join(program)).find(|path| path.exists());
    let program = found.unwrap_or_else(|| panic!("{program} is installed"));
    std::fs::copy(&program, folder.join("real")).expect("it can be copied");
    let path = folder.join("script");
    write_script(&path, script);
    // What is mounted goes with the last process that sees it.
    assert!(leave_host(CloneFlags::CLONE_NEWNS), "this thread has a network of its own");
    run("mount --make-rprivate /");
    run(&format!("mount --bind {} {}", path.display(), program.display()));
}

/// Writes a shell script that can be run.
///
/// # Panics
/// If it can't be written.
pub fn write_script(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}")).expect("the folder is there");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("it can be run");
}

fn leave_host(flags: CloneFlags) -> bool {
    match unshare(flags) {
        Ok(()) => true,
        Err(Errno::EPERM) => {
            println!("SKIPPED: no right to make a network namespace");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// A network that this thread is in, and a node with a network of its own that two cables lead to.
#[derive(Debug)]
pub struct Apart {
    near: File,
    node: File,
}

/// Where the near end of the node's first cable answers.
pub const NEAR: &str = "10.88.0.1";

impl Apart {
    /// Makes both. `eth0` of the node has the address `10.88.0.2/24` and a route to everywhere, `eth1`
    /// none. Here, host actions are allowed as by the agent's package. `None` where there is no right
    /// to do that.
    ///
    /// # Panics
    /// If it can't be made for another reason.
    #[must_use]
    pub fn new() -> Option<Self> {
        if !leave_host(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS) {
            return None;
        }
        // What is mounted goes with the last process that sees it.
        for command in [
            "mount --make-rprivate /",
            "mount -t tmpfs tmpfs /mnt",
            "cp -a /etc /mnt/etc",
            "mkdir -p /mnt/etc/muster",
            "touch /mnt/etc/muster/host-actions",
            "mount --bind /mnt/etc /etc",
            "ip link set lo up",
        ] {
            run(command);
        }
        let near = network();
        unshare(CloneFlags::CLONE_NEWNET).expect("a second one");
        let apart = Self { near, node: network() };
        run("ip link set lo up");
        // It shows the network that it was mounted in.
        run("mount -t sysfs sysfs /sys");
        let there = format!("/proc/{}/fd/{}", std::process::id(), apart.near.as_raw_fd());
        for number in 0..2 {
            run(&format!(
                "ip link add eth{number} address {} type veth peer name up{number} netns {there}",
                Self::mac(number)
            ));
            run(&format!("ip link set eth{number} up"));
        }
        run("ip addr add 10.88.0.2/24 dev eth0");
        run(&format!("ip route add default via {NEAR} dev eth0"));
        enter_network(&apart.near);
        run("ip link set up0 up");
        run("ip link set up1 up");
        run(&format!("ip addr add {NEAR}/24 dev up0"));
        Some(apart)
    }

    /// The address of the node's interface of this number.
    #[must_use]
    pub fn mac(number: u8) -> String {
        format!("02:00:00:00:00:a{number}")
    }

    /// Does something on the node: what is started there stays there.
    pub fn on_node<T>(&self, act: impl FnOnce() -> T) -> T {
        enter_network(&self.node);
        let done = act();
        enter_network(&self.near);
        done
    }
}

fn enter_network(network: &File) {
    setns(network, CloneFlags::CLONE_NEWNET).expect("it is kept");
}

/// The one that this thread is in.
fn network() -> File {
    File::open("/proc/thread-self/ns/net").expect("each thread has one")
}

/// How many taps there are.
#[must_use]
pub fn taps() -> usize {
    run("ip -o link show type tun").lines().count()
}

/// How many ports the bridge of a nic tag has.
#[must_use]
pub fn ports(tag: &str) -> usize {
    run(&format!("ip -o link show master mt-{tag}")).lines().count()
}

/// Makes the bridge of a nic tag, on which this host has these addresses.
pub fn add_bridge(tag: &str, addresses: &[&str]) {
    run(&format!("ip link add mt-{tag} type bridge"));
    run(&format!("ip link set mt-{tag} up"));
    for address in addresses {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        run(&format!("ip addr add {address} dev mt-{tag}{nodad}"));
    }
}
