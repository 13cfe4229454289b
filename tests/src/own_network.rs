//! A network of the test's own, in which it may do what an operator does.

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

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
    match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            println!("SKIPPED: no right to make a network namespace");
            return false;
        }
        Err(error) => panic!("{error}"),
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

/// Makes the bridge of a nic tag, on which this host has these addresses.
pub fn add_bridge(tag: &str, addresses: &[&str]) {
    run(&format!("ip link add mt-{tag} type bridge"));
    run(&format!("ip link set mt-{tag} up"));
    for address in addresses {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        run(&format!("ip addr add {address} dev mt-{tag}{nodad}"));
    }
}
