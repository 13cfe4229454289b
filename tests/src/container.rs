//! Containers of tests: an image that is made from the machine's static busybox, and the end of what
//! tests leave running.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::daemon::{fresh_uuid, temp_dir};
use crate::http::Client;
use crate::own_network::run;
use crate::process;

/// Longest wait for the monitors of containers that were killed.
const END: Duration = Duration::from_secs(10);
/// What the shell of the image finds.
const APPLETS: [&str; 23] = [
    "cat", "chmod", "chown", "cut", "dd", "echo", "env", "head", "hostname", "httpd", "id", "ip",
    "ln", "ls", "mkdir", "ps", "rm", "sh", "sleep", "stty", "tr", "true", "wget",
];

/// Whether this machine can run containers; says what is missing.
#[must_use]
pub fn can_run() -> bool {
    let has = |program: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|dir| Path::new(dir).join(program).exists())
    };
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root runs containers");
        return false;
    }
    for program in ["runc", "busybox", "tar"] {
        if !has(program) {
            println!("SKIPPED: {program} is not installed");
            return false;
        }
    }
    true
}

/// Uploads an image of containers that run this program; returns its uuid.
///
/// # Panics
/// If it can't be made, or the coordinator refuses it.
pub async fn import(client: &Client, config: &Value) -> String {
    import_with(client, config, &json!({})).await
}

/// As [`import`], with further members of its manifest.
///
/// # Panics
/// As [`import`].
pub async fn import_with(client: &Client, config: &Value, members: &Value) -> String {
    let archive = archive(config);
    let uuid = fresh_uuid();
    let sum = hex::encode(Sha256::digest(&archive));
    let mut manifest = json!({
        "v": 2, "uuid": uuid, "name": "busybox", "version": "1", "type": "docker", "os": "linux",
        "files": [{ "size": archive.len(), "compression": "none" }],
    });
    let members = members.as_object().expect("an object").clone();
    manifest.as_object_mut().expect("it is one").extend(members);
    client.post("/images", &manifest).await.expect(200);
    let query = format!("/images/{uuid}/file?compression=none&sha256={sum}");
    let octets = "application/octet-stream";
    client.send_bytes(Method::PUT, &query, octets, archive).await.expect(200);
    client.post(&format!("/images/{uuid}?action=activate"), &json!({})).await.expect(200);
    uuid
}

/// A container's program: counts the boots of its root in a file of that.
#[must_use]
pub fn counts_boots() -> Value {
    let program = "n=$(cat /count); n=$((${n:-0} + 1)); echo $n > /count; \
                   echo \"boot $n.\"; trap 'exit 0' TERM; sleep 100000 & wait";
    json!({ "Entrypoint": ["/bin/sh", "-c"], "Cmd": [program] })
}

/// The machine's own.
pub(crate) fn busybox() -> &'static Path {
    let places = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    places.into_iter().find(|it| it.exists()).expect("it is installed")
}

/// As `docker save` writes it, of one layer.
pub(crate) fn archive(config: &Value) -> Vec<u8> {
    let folder = temp_dir();
    let at = |name: &str| folder.path().join(name);
    for dir in ["root/bin", "root/etc", "root/www", "root/tmp", "root/proc", "root/sys", "root/dev"]
    {
        std::fs::create_dir_all(at(dir)).expect("a folder");
    }
    std::fs::copy(busybox(), at("root/bin/busybox")).expect("a copy");
    for applet in APPLETS {
        std::os::unix::fs::symlink("busybox", at("root/bin").join(applet)).expect("a link");
    }
    std::fs::write(at("root/etc/passwd"), "root:x:0:0::/:/bin/sh\nweb:x:33:33::/:/bin/sh\n")
        .expect("a file");
    std::fs::write(at("root/etc/group"), "root:x:0:\nweb:x:33:\n").expect("a file");
    std::fs::write(at("root/www/index.html"), "a page of a container\n").expect("a file");
    let tar = |what: &str, from: &str, names: &str| {
        run(&format!("tar -C {} -cf {} {names}", at(from).display(), at(what).display()));
    };
    tar("layer.tar", "root", ".");
    let layer = std::fs::read(at("layer.tar")).expect("a layer");
    let diff_id = format!("sha256:{}", hex::encode(Sha256::digest(&layer)));
    let described = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
        "config": config, "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    std::fs::write(at("config.json"), described.to_string()).expect("a file");
    let manifest = json!([{ "Config": "config.json", "Layers": ["layer.tar"], "RepoTags": [] }]);
    std::fs::write(at("manifest.json"), manifest.to_string()).expect("a file");
    tar("image.tar", "", "manifest.json config.json layer.tar");
    std::fs::read(at("image.tar")).expect("an archive")
}

/// What a script prints that is run in the container of this process.
///
/// # Panics
/// If there is none, or the script fails.
pub fn inside(pid: Option<u64>, script: &str) -> String {
    let pid = pid.expect("it runs").to_string();
    let words = ["--target", &pid, "--all", "--root", "--wd=/", "/bin/sh", "-c", script];
    #[expect(clippy::disallowed_methods, reason = "as somebody on the node would")]
    let ran = std::process::Command::new("nsenter").args(words).output().expect("nsenter runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{script}: {} {said}", ran.status);
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Process ids of the monitors of an agent's containers.
#[must_use]
pub fn monitors(run_dir: &Path) -> Vec<u32> {
    let needle = format!("container-monitor\0{}", run_dir.display());
    process::with_command(&needle)
}

/// The places below a folder on which something is mounted.
#[must_use]
pub fn mounts(below: &Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let place = |line: &str| line.split(' ').nth(4).map(str::to_owned);
    mounts.lines().filter_map(place).filter(|it| Path::new(it).starts_with(below)).collect()
}

/// Where a control group of this name is, in all hierarchies.
#[must_use]
pub fn control_groups(name: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let name = name.strip_prefix("/").unwrap_or(name);
    let is_cgroup = |line: &&str| line.contains(" - cgroup");
    let places = mounts.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(4));
    places.map(|place| Path::new(place).join(name)).filter(|it| it.exists()).collect()
}

/// Ends the containers of an agent that is gone, and takes what is mounted for them away.
pub(crate) fn end_all(data_dir: &Path, run_dir: &Path) {
    let mut groups = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(run_dir.join("ct")).into_iter().flatten().flatten() {
        let config = std::fs::read(entry.path().join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        let group = config["linux"]["cgroupsPath"].as_str().map(Path::new);
        groups.extend(group.and_then(Path::parent).map(Path::to_owned));
        let ready = std::fs::read(entry.path().join("ready.json")).unwrap_or_default();
        let ready: Value = serde_json::from_slice(&ready).unwrap_or_default();
        if let Some(pid) = ready["init"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
    #[expect(clippy::disallowed_methods, reason = "a drop can't wait otherwise")]
    let until = Instant::now() + END;
    #[expect(clippy::disallowed_methods, reason = "a drop can't wait otherwise")]
    while !monitors(run_dir).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Only what is empty goes.
    for group in groups.iter().flat_map(|group| control_groups(group)) {
        std::fs::remove_dir(group).ok();
    }
    for place in mounts(data_dir).into_iter().chain(mounts(run_dir)) {
        nix::mount::umount2(place.as_str(), nix::mount::MntFlags::MNT_DETACH).ok();
    }
}
