//! Machines that are copied: to a file and back, and into an image; with everything that may get in
//! between.

use std::path::{Path, PathBuf};
use std::process::Output;

use futures_util::StreamExt as _;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::exported::{Exported, Piece};
use muster_tests::guest::{self, BOOT};
use muster_tests::http::Client;
use muster_tests::kill_points::fault_points;
use muster_tests::wait::wait_for;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_tungstenite::tungstenite::Message;

const OCTETS: &str = "application/octet-stream";
const USAGE: i32 = 2;
const REFUSED: i32 = 6;

/// Marks the last sector of the boot disk and the start of the other one, or finds the marks.
const MARKS: &str = "#!/bin/sh\n\
    for disk in /sys/block/vd*; do\n\
      case $(cat $disk/serial) in\n\
      disk0) boot=/dev/${disk##*/} last=$(($(cat $disk/size) - 1)) ;;\n\
      disk1) other=/dev/${disk##*/} ;;\n\
      esac\n\
    done\n\
    mark() { dd if=$1 bs=512 skip=$2 count=1 2>/dev/null | head -c 6; }\n\
    if [ \"$(mark $boot $last)\" = marked ]; then\n\
      echo \"boot disk kept\" >/dev/console\n\
    else\n\
      echo marked | dd of=$boot bs=512 seek=$last 2>/dev/null; sync\n\
      echo \"boot disk marked\" >/dev/console\n\
    fi\n\
    if [ -n \"$other\" ]; then\n\
      if [ \"$(mark $other 0)\" = marked ]; then\n\
        echo \"other disk kept\" >/dev/console\n\
      else\n\
        echo marked | dd of=$other 2>/dev/null; sync\n\
        echo \"other disk marked\" >/dev/console\n\
      fi\n\
    fi\n";

struct Cluster {
    coordinator: Coordinator,
    client: Client,
    agent: Agent,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let agent = Agent::start(&coordinator.agent_url());
        agent.wait_allocatable(&client).await;
        let folder = tempfile::tempdir().expect("a folder");
        Self { coordinator, client, agent, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn muster(&self, words: &[&str]) -> Output {
        cli::output(&self.coordinator, words)
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str]) {
        let output = self.muster(words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }

    #[track_caller]
    fn fails(&self, words: &[&str], code: i32, text: &str) {
        let output = self.muster(words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(text), "{words:?}: {said}");
    }

    /// Waits until a machine's console says this.
    async fn says(&self, vm: &str, text: &str) {
        let url = format!("{}/vms/{vm}/console", self.coordinator.agent_url());
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.expect("a console");
        let mut seen = String::new();
        let read = async {
            while !seen.contains(text) {
                match socket.next().await {
                    Some(Ok(Message::Binary(bytes))) => {
                        seen.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    Some(Ok(_)) => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Ok(())
        };
        let read = tokio::time::timeout(BOOT, read).await;
        assert!(matches!(read, Ok(Ok(()))), "never {text:?}: {read:?}: {seen}");
    }

    async fn vm(&self, vm: &str) -> Value {
        let path = format!("/servers/{}/vms/{vm}", self.agent.server_uuid);
        self.client.get(&path).await.expect(200)
    }

    /// What is in the folder of a machine's disks.
    fn disk_files(&self, vm: &str) -> Vec<String> {
        let folder = self.agent.data_dir().join("vols").join(vm);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("an entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    /// An image of so many KiB of bytes that are not alike.
    async fn noise(&self, kib: usize) -> String {
        let image = fresh_uuid();
        let manifest = json!({
            "v": 2, "uuid": image, "name": "noise", "version": "1", "type": "zvol", "os": "linux",
            "files": [{ "format": "raw" }],
        });
        self.client.post("/images", &manifest).await.expect(200);
        let blocks = (0..kib).flat_map(|number| {
            let block = Sha256::digest(number.to_be_bytes());
            std::iter::repeat_n(block, 32).flatten()
        });
        let disk: Vec<u8> = blocks.collect();
        let sum = hex::encode(Sha256::digest(&disk));
        let path = format!("/images/{image}/file?compression=none&sha256={sum}");
        self.client.send_bytes(Method::PUT, &path, OCTETS, disk).await.expect(200);
        self.client.post(&format!("/images/{image}?action=activate"), &json!({})).await.expect(200);
        image
    }

    /// A machine that was never started, with a disk of noise.
    async fn quiet_vm(&self, alias: &str, kib: usize) -> String {
        let image = self.noise(kib).await;
        let vm = fresh_uuid();
        let payload = json!({
            "uuid": vm, "brand": "kvm", "ram": 64, "owner_uuid": fresh_uuid(), "autoboot": false,
            "alias": alias, "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        });
        let path = format!("/servers/{}/vms", self.agent.server_uuid);
        let made = self.client.post(&path, &payload).await.expect(200);
        self.client.complete_task(made["id"].as_str().expect("a task"), 120).await;
        wait_for("the coordinator knows the machine", BOOT, || async {
            let answer = self.client.get(&format!("/vms/{vm}")).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.text) }
        })
        .await;
        vm
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_exported_destroyed_and_imported_with_its_data() {
    let cluster = Cluster::start().await;
    let image = guest::import(&cluster.client).await;
    let payload = json!({
        "brand": "kvm", "ram": 192, "alias": "web", "tags": { "role": "test" },
        "image_uuid": image, "customer_metadata": { "user-script": MARKS },
        "disks": [
            { "image_uuid": image, "boot": true, "model": "virtio", "size": 64 },
            { "size": 8, "model": "virtio" },
        ],
    });
    let made = cluster.client.post("/vms", &payload).await.expect(202);
    cluster.client.complete_task(made["id"].as_str().expect("a task"), 240).await;
    let vm = made["vm_uuid"].as_str().expect("a uuid").to_owned();
    cluster.says(&vm, "other disk marked").await;
    let before = cluster.vm(&vm).await;

    let (file, live) = (cluster.file("web.muster"), cluster.file("live.muster"));
    let (file, live) = (file.display().to_string(), live.display().to_string());
    cluster.fails(&["vm", "export", "web", &file], USAGE, "--live");
    cluster.succeeds(&["vm", "export", "web", &live, "--live", "--quiesce", "pause"]);
    cluster.succeeds(&["vm", "stop", "web"]);
    cluster.succeeds(&["vm", "export", "web", &file]);
    cluster.fails(&["vm", "export", "web", &file], USAGE, "--force");
    let Exported { header, pieces } = Exported::read(Path::new(&file));
    assert_eq!(header.vm["alias"], "web");
    assert!(Exported::read(Path::new(&live)).header.live && !header.live);
    let stored: usize = pieces.iter().map(|piece| piece.data.len()).sum();
    assert!(stored < 60 << 20, "{stored} bytes: what was never written is not in the file");
    wait_for("the snapshots of both are gone", BOOT, || async {
        let snapshots = cluster.vm(&vm).await["snapshots"].clone();
        if snapshots == json!([]) { Ok(()) } else { Err(snapshots) }
    })
    .await;

    // Another byte in the middle: it is named, and nothing is made.
    let damaged = cluster.file("damaged.muster");
    let mut bytes = std::fs::read(&file).expect("the export");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, &bytes).expect("a copy");
    let damaged = damaged.display().to_string();
    cluster.fails(
        &["vm", "import", &damaged, "--new-uuid", "--name", "x"],
        USAGE,
        "of disk 0 from byte",
    );
    // The file is whole, but there is such a machine.
    cluster.fails(&["vm", "import", &file], REFUSED, "exists");
    let all = cluster.client.get("/vms").await.expect(200);
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all:#}");

    cluster.succeeds(&["vm", "delete", "web", "--yes"]);
    assert!(!cluster.agent.data_dir().join("vols").join(&vm).exists());
    cluster.succeeds(&["vm", "import", &file]);
    let after = cluster.vm(&vm).await;
    assert_eq!(after["state"], "stopped", "{after:#}");
    for name in ["alias", "ram", "vcpus", "tags", "customer_metadata", "nics", "owner_uuid"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert_eq!(after["disks"][0].get("image_uuid"), None, "it needs no image any more");
    let wanted = ["disk0.json", "disk0.qcow2", "disk1.json", "disk1.qcow2"];
    assert_eq!(cluster.disk_files(&vm), wanted);
    cluster.succeeds(&["vm", "start", "web"]);
    cluster.says(&vm, "boot disk kept").await;
    cluster.says(&vm, "other disk kept").await;
    cluster.succeeds(&["vm", "delete", "web", "--yes"]);

    // The one of the guest that ran has what was written by then.
    cluster.succeeds(&["vm", "import", &live, "--new-uuid", "--name", "web2", "--start"]);
    let other = cli::json(&cluster.coordinator, &["vm", "get", "web2"]);
    let other = other["uuid"].as_str().expect("a uuid").to_owned();
    assert_ne!(other, vm);
    cluster.says(&other, "other disk kept").await;
    cluster.succeeds(&["vm", "delete", "web2", "--yes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_was_cut_goes_on_and_ends_as_the_same_file() {
    let mut cluster = Cluster::start().await;
    let vm = cluster.quiet_vm("quiet", 6 * 1024).await;
    cluster.succeeds(&["vm", "snapshot", "create", "quiet", "one"]);
    let whole = cluster.file("whole");
    let name = whole.display().to_string();
    cluster.succeeds(&["vm", "export", "quiet", &name, "--snapshot", "one"]);
    let bytes = std::fs::read(&whole).expect("the export");
    assert!(!cluster.file("whole.partial").exists());

    // Cut within the first frame of data, and within the last.
    for cut in [4096, bytes.len() - 100] {
        let file = cluster.file(&format!("cut-{cut}"));
        let name = file.display().to_string();
        std::fs::write(format!("{name}.partial"), &bytes[..cut]).expect("a part");
        cluster.agent.kill9();
        let url = format!("http://{}", cluster.coordinator.address());
        let words = ["vm", "export", "quiet", &name, "--snapshot", "one"].map(str::to_owned);
        // It is begun while the agent is away.
        #[expect(clippy::disallowed_methods, reason = "a command that runs beside the test")]
        let export = tokio::task::spawn_blocking(move || {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            cli::output_at(&url, &words, &[])
        });
        cluster.agent.wait_status(&cluster.client, "unknown", BOOT).await;
        cluster.agent.restart();
        let output = export.await.expect("it ends");
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(std::fs::read(&file).expect("the export") == bytes, "{cut}: it differs");
    }

    // A part that is damaged is not gone on with, nor one of another machine.
    let other = cluster.quiet_vm("other", 64).await;
    assert_ne!(vm, other);
    for (part, vm, text) in [
        ([&bytes[..5000], &[bytes[5000] ^ 1], &bytes[5001..]].concat(), "quiet", "damaged"),
        (bytes.clone(), "other", "is of VM"),
    ] {
        let file = cluster.file("bad");
        let name = file.display().to_string();
        std::fs::write(format!("{name}.partial"), &part).expect("a part");
        cluster.fails(&["vm", "export", vm, &name, "--snapshot", "one"], USAGE, text);
        assert!(!file.exists());
    }

    // To a pipe as well.
    let piped = cluster.muster(&["vm", "export", "quiet", "--snapshot", "one"]);
    assert!(piped.status.success(), "{}", stderr(&piped));
    let file = cluster.file("piped");
    std::fs::write(&file, &piped.stdout).expect("a file");
    assert_eq!(Exported::read(&file).pieces, Exported::read(&whole).pieces);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_was_cut_goes_on_and_one_that_is_damaged_leaves_nothing() {
    let mut cluster = Cluster::start().await;
    let vm = cluster.quiet_vm("quiet", 6 * 1024).await;
    let file = cluster.file("quiet.muster");
    let name = file.display().to_string();
    cluster.succeeds(&["vm", "export", "quiet", &name]);
    let exported = Exported::read(&file);
    cluster.succeeds(&["vm", "delete", "quiet", "--yes"]);

    // A client that does not get beyond half of it.
    let placed = cluster.client.post("/vms/import", &exported.request(&vm)).await.expect(202);
    cluster.client.complete_task(placed["id"].as_str().expect("a task"), 120).await;
    let path = format!("/servers/{}/vms/{vm}/import", cluster.agent.server_uuid);
    let half = exported.pieces.len() / 2;
    for (number, piece) in exported.pieces[..half].iter().enumerate() {
        piece.write(&cluster.client, &path, number + 2 == half).await;
    }
    let start = format!("/servers/{}/vms/{vm}/start", cluster.agent.server_uuid);
    let started = cluster.client.post(&start, &json!({})).await.expect(200);
    let started = cluster.client.wait_task(started["id"].as_str().expect("a task"), 60).await;
    assert_eq!(started["status"], "failure", "what is half there does not start: {started:#}");
    cluster.agent.kill9();
    cluster.agent.restart();
    cluster.agent.wait_status(&cluster.client, "running", BOOT).await;
    let state = cluster.client.get(&path).await.expect(200);
    let Piece { offset, data, .. } = &exported.pieces[half - 2];
    assert_eq!(state["offset"], json!(offset + data.len() as u64), "{state:#}");

    // The same command goes on with it.
    cluster.succeeds(&["vm", "import", &name]);
    assert_eq!(cluster.disk_files(&vm), ["disk0.json", "disk0.qcow2"]);
    let again = cluster.file("again.muster");
    cluster.succeeds(&["vm", "export", "quiet", &again.display().to_string()]);
    assert!(Exported::read(&again).content() == exported.content(), "it has other content");
    cluster.succeeds(&["vm", "delete", "quiet", "--yes"]);

    // What comes on stdin is only seen to be damaged at the end: the machine is destroyed again.
    let mut bytes = std::fs::read(&file).expect("the export");
    let last = bytes.len() - 60;
    bytes[last] ^= 1;
    let damaged = cluster.file("damaged");
    std::fs::write(&damaged, &bytes).expect("a copy");
    let url = format!("http://{}", cluster.coordinator.address());
    let output = cli::output_from(&url, &["vm", "import", "-"], &damaged);
    let said = stderr(&output);
    assert!(output.status.code() == Some(USAGE) && said.contains("damaged"), "{said}");
    wait_for("nothing is left", BOOT, || async {
        let vms = cluster.client.get("/vms").await.expect(200);
        let folder = cluster.agent.data_dir().join("vols").join(&vm);
        if vms == json!([]) && !folder.exists() { Ok(()) } else { Err(vms) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_vm_makes_others_like_it() {
    let cluster = Cluster::start().await;
    let image = guest::import(&cluster.client).await;
    let payload = json!({
        "brand": "kvm", "ram": 192, "alias": "build",
        "customer_metadata": { "user-script": MARKS },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio", "size": 64 }],
    });
    let made = cluster.client.post("/vms", &payload).await.expect(202);
    cluster.client.complete_task(made["id"].as_str().expect("a task"), 240).await;
    let vm = made["vm_uuid"].as_str().expect("a uuid").to_owned();
    cluster.says(&vm, "boot disk marked").await;
    let create = ["image", "create", "build", "--name", "app", "--version", "7"];
    cluster.fails(&create, 4, "not stopped");
    cluster.succeeds(&["vm", "stop", "build"]);
    let before = (cluster.disk_files(&vm), cluster.vm(&vm).await["snapshots"].clone());
    cluster.succeeds(&[&create[..], &["--compression", "bzip2"]].concat());
    assert_eq!((cluster.disk_files(&vm), cluster.vm(&vm).await["snapshots"].clone()), before);
    let images = cluster.agent.data_dir().join("images");
    let packed = std::fs::read_dir(images).expect("a folder").filter(|entry| {
        entry.as_ref().is_ok_and(|it| it.file_name().to_string_lossy().starts_with("packed-"))
    });
    assert_eq!(packed.count(), 0);
    let app = cli::json(&cluster.coordinator, &["image", "get", "app"]);
    assert_eq!((&app["state"], &app["image_size"]), (&json!("active"), &json!(64)), "{app:#}");
    assert_eq!(app["files"][0]["compression"], "bzip2", "{app:#}");

    // No larger than the other one, or the mark would not be at the end of its disk.
    let payload = json!({
        "brand": "kvm", "ram": 192, "alias": "copy",
        "customer_metadata": { "user-script": MARKS },
        "disks": [{ "image_uuid": app["uuid"], "boot": true, "model": "virtio", "size": 64 }],
    });
    let made = cluster.client.post("/vms", &payload).await.expect(202);
    cluster.client.complete_task(made["id"].as_str().expect("a task"), 240).await;
    cluster.says(made["vm_uuid"].as_str().expect("a uuid"), "boot disk kept").await;
}

/// At each step; what is in the repository, and what the machine is, are right whatever comes of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_while_it_makes_an_image_makes_it_or_leaves_nothing() {
    let mut cluster = Cluster::start().await;
    let vm = cluster.quiet_vm("quiet", 256).await;
    let before = cluster.disk_files(&vm);
    let path = format!("/servers/{}/vms/{vm}/images", cluster.agent.server_uuid);
    let points = fault_points("machine_create_image");
    assert!(points.len() >= 10, "{points:?}");
    for point in points {
        cluster.agent.restart_with_env(&[("MUSTER_FAULT", &format!("{point}:kill"))]);
        cluster.agent.wait_allocatable(&cluster.client).await;
        let image = fresh_uuid();
        let manifest = json!({ "uuid": image, "name": "made", "version": "1" });
        let body = json!({ "compression": "gzip", "manifest": manifest });
        let asked = cluster.client.post(&path, &body).await.expect(200);
        let task = asked["id"].as_str().expect("a task").to_owned();
        let daemon = cluster.agent.daemon();
        wait_for(&format!("the agent dies at {point}"), BOOT, || {
            let exited = daemon.has_exited();
            async move { if exited { Ok(()) } else { Err("still running") } }
        })
        .await;
        cluster.agent.restart_with_env(&[]);
        cluster.client.complete_task(&task, 120).await;
        let there = cluster.client.get(&format!("/images/{image}")).await.expect(200);
        assert_eq!(there["state"], "active", "{point}: {there:#}");
        assert_eq!(cluster.disk_files(&vm), before, "{point}");
        assert_eq!(cluster.vm(&vm).await["state"], "stopped", "{point}");
        cluster.client.delete(&format!("/images/{image}")).await.expect(204);
    }
}
