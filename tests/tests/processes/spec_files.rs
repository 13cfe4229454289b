//! Files that describe machines: each field arrives, what is wrong is named with its line, a file
//! that is exported makes the same machine again, and an editor changes one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use muster_shared::vm::SpecFile;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::guest;
use muster_tests::http::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Every field that a node without UEFI firmware and without a CD can follow. The machine stays off.
const FILE: &str = "\
# a database
name: db1
image: muster-guest
ram: 192MiB
vcpus: 2
cpu_cap: 150
disks:
  - size: 1536MiB
    model: scsi
    max_iops: 500
    max_mib_per_second: 100
  - size: 1GiB
    pool: zones
networks:
  - name: admin
  - name: admin
    model: e1000
publish:
  - 127.0.0.1:20022:22
  - 20053:53/udp
firmware: bios
autostart: false
restart: on-failure:3
ssh_keys:
  - ssh-ed25519 AAAA first
ssh_key_files: [key.pub]
cloud_config_file: user-data
user_script: |
  #!/bin/sh
  echo hello
tags: { role: db, tier: 1, production: true }
metadata: { colour: blue }
owner: 00000000-0000-4000-8000-00000000000a
brand: kvm
properties:
  cpu_shares: 50
  hostname: db1.example.com
  internal_metadata: { mine: x }
";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("it is written");
    };
    write("vm.yaml", FILE);
    write("key.pub", "ssh-ed25519 BBBB second\n");
    write("user-data", "#cloud-config\npackages: []\n");
    folder
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// The machine as its agent tells it.
async fn machine(client: &Client, agent: &Agent, name: &str) -> Value {
    let all = client.get(&format!("/vms?alias={name}")).await.expect(200);
    let uuid = all[0]["uuid"].as_str().unwrap_or_else(|| panic!("no {name}: {all:#}")).to_owned();
    client.get(&format!("/servers/{}/vms/{uuid}", agent.server_uuid)).await.expect(200)
}

fn exported(coordinator: &Coordinator, name: &str) -> SpecFile {
    serde_json::from_value(cli::json(coordinator, &["vm", "export-spec", name])).expect("a file")
}

#[track_caller]
fn printed(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let text = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_makes_the_machine_that_it_describes_and_is_exported_again() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let folder = folder();
    let file = path(folder.path(), "vm.yaml");

    let dry = cli::text(&coordinator, &["vm", "create", "--file", &file, "--dry-run"]);
    assert!(dry.contains("chosen"), "{dry}");
    let made = cli::text(&coordinator, &["vm", "create", "-f", &file]);
    assert!(made.contains("create db1"), "{made}");
    let vm = machine(&client, &agent, "db1").await;
    is_as_described(&vm, &image);

    let first = exported(&coordinator, "db1");
    is_the_file(&first, folder.path());
    // The text that people get, put back in.
    let text = cli::text(&coordinator, &["vm", "export-spec", "db1"]);
    let copy = path(folder.path(), "copy.yaml");
    std::fs::write(&copy, &text).expect("it is written");
    let made = cli::text(&coordinator, &["vm", "create", "-f", &copy, "--name", "db2"]);
    assert!(made.contains("create db2"), "{made}");
    let second = exported(&coordinator, "db2");
    assert_eq!(SpecFile { name: first.name.clone(), ..second }, first);

    edits(&coordinator, &client, &agent, folder.path()).await;
}

#[track_caller]
fn is_as_described(vm: &Value, image: &str) {
    let at = |path: &str| vm.pointer(path).unwrap_or(&Value::Null).clone();
    for (path, value) in [
        ("/alias", json!("db1")),
        ("/ram", json!(192)),
        ("/vcpus", json!(2)),
        ("/cpu_cap", json!(150)),
        ("/state", json!("stopped")),
        ("/autoboot", json!(false)),
        ("/disks/0/image_uuid", json!(image)),
        ("/disks/0/size", json!(1536)),
        ("/disks/0/model", json!("scsi")),
        ("/disks/0/boot", json!(true)),
        ("/disks/0/max_iops", json!(500)),
        ("/disks/0/max_mib_per_second", json!(100)),
        ("/disks/1/size", json!(1024)),
        ("/disks/1/zpool", json!("zones")),
        ("/disks/2", Value::Null),
        ("/nics/0/nic_tag", json!("admin")),
        ("/nics/1/model", json!("e1000")),
        ("/bootrom", json!("bios")),
        (
            "/internal_metadata",
            json!({
                "mine": "x", "muster:restart_policy": "on-failure:3",
                "muster:hostfwd": "tcp:127.0.0.1:20022-:22,udp::20053-:53",
            }),
        ),
        (
            "/customer_metadata",
            json!({
                "colour": "blue", "user-script": "#!/bin/sh\necho hello\n",
                "root_authorized_keys": "ssh-ed25519 AAAA first\nssh-ed25519 BBBB second",
                "cloud-init:user-data": "#cloud-config\npackages: []\n",
            }),
        ),
        ("/tags", json!({ "role": "db", "tier": 1, "production": true })),
        ("/owner_uuid", json!("00000000-0000-4000-8000-00000000000a")),
        ("/brand", json!("kvm")),
        ("/cpu_shares", json!(50)),
        ("/hostname", json!("db1.example.com")),
    ] {
        assert_eq!(at(path), value, "{path}: {vm:#}");
    }
}

/// What is exported is what was written, in the words of an export.
#[track_caller]
fn is_the_file(spec: &SpecFile, folder: &Path) {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    let version = guest::manifest()["version"].as_str().expect("a version").to_owned();
    let expected = json!({
        "name": "db1", "image": format!("muster-guest@{version}"), "ram": "192MiB", "vcpus": 2,
        "cpu_cap": 150,
        "disks": [
            { "size": "1536MiB", "model": "scsi", "max_iops": 500, "max_mib_per_second": 100 },
            { "size": "1GiB" },
        ],
        "networks": [{ "name": "admin" }, { "name": "admin", "model": "e1000" }],
        "publish": ["127.0.0.1:20022:22", "20053:53/udp"], "autostart": false,
        "restart": "on-failure:3", "ssh_keys": ["ssh-ed25519 AAAA first", read("key.pub").trim()],
        "cloud_config": read("user-data"), "user_script": "#!/bin/sh\necho hello\n",
        "tags": { "role": "db", "tier": 1, "production": true }, "metadata": { "colour": "blue" },
        "owner": "00000000-0000-4000-8000-00000000000a",
        "properties": {
            "cpu_shares": 50, "hostname": "db1.example.com", "internal_metadata": { "mine": "x" },
        },
    });
    assert_eq!(json!(spec), expected);
}

/// An editor that runs this on the file.
fn editor(folder: &Path, script: &str) -> PathBuf {
    let editor = folder.join("editor");
    std::fs::write(&editor, format!("#!/bin/sh\n{script}\n")).expect("it is written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&editor, mode).expect("it can be run");
    editor
}

async fn edits(coordinator: &Coordinator, client: &Client, agent: &Agent, folder: &Path) {
    let edit = |script: &str, code: i32| {
        let editor = editor(folder, script).display().to_string();
        let env = [("VISUAL", editor.as_str()), ("EDITOR", "false")];
        printed(&cli::output_with(coordinator, &["vm", "edit", "db1"], &env), code)
    };
    let before = machine(client, agent, "db1").await;
    assert!(edit("true", 0).contains("nothing was changed"));
    assert!(edit("exit 3", 1).contains("nothing was changed"));
    let bad = edit("sed -i 's/^ram:/rma:/' \"$1\"", 2);
    assert!(bad.contains("did you mean `ram`?") && bad.contains("are kept in "), "{bad}");
    let kept = bad.split("are kept in ").nth(1).and_then(|rest| rest.lines().next());
    std::fs::remove_file(kept.expect("a path")).expect("it was kept");
    let refused = edit("sed -i 's/size: 1GiB/size: 2GiB/' \"$1\"", 2);
    assert!(refused.contains("disks cannot be edited"), "{refused}");
    assert_eq!(machine(client, agent, "db1").await, before);

    let changes = "sed -i -e 's/^vcpus: 2/vcpus: 1/' -e 's/role: db/role: web/' -e '/tier: 1/d' \
                   -e 's/on-failure:3/always/' -e 's/^  cpu_shares: 50/  cpu_shares: 70/' \"$1\"";
    let shown = edit(changes, 0);
    for line in ["-vcpus: 2", "+vcpus: 1", "-  role: db", "+  role: web", "-  tier: 1"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let after = machine(client, agent, "db1").await;
    assert_eq!((&after["vcpus"], &after["cpu_shares"]), (&json!(1), &json!(70)), "{after:#}");
    assert_eq!(after["tags"], json!({ "role": "web", "production": true }));
    assert_eq!(after["internal_metadata"]["muster:restart_policy"], "always");
    assert_eq!(after["internal_metadata"]["mine"], "x");
    assert_eq!(after["disks"], before["disks"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_in_a_file_is_named_with_its_line_before_anything_is_asked() {
    let coordinator = Coordinator::start();
    let folder = folder();
    let refused = |text: &str| {
        let file = path(folder.path(), "bad.yaml");
        std::fs::write(&file, text).expect("it is written");
        printed(&cli::output(&coordinator, &["vm", "create", "-f", &file]), 2)
    };
    let text = refused(
        "nmae: web1\nimage: debian\nram: 2GB\ndisks:\n  - siez: 5GiB\nnetworks: [admin]\n\
         publish: [\"80:80\"]\nproperties:\n  cpu_share: 5\n  dns_domain: x\n",
    );
    for problem in [
        "line 1: nmae: unknown field, did you mean `name`?",
        "line 3: ram: must be a size with its unit, e.g. 512MiB or 20GiB, not \"2GB\"",
        "line 5: disks.0.siez: unknown field, did you mean `size`?",
        "line 6: networks.0: expected a table, found \"admin\"",
        "line 7: publish.0: must be [ADDRESS:]PORT:GUEST_PORT",
        "line 9: properties.cpu_share: unknown property, did you mean `cpu_shares`?",
        "line 10: properties.dns_domain: has no effect",
    ] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
    assert!(refused("name: web1\n").contains("no image given"));
    assert!(refused("image: [a\n").contains("line 1: unclosed bracket"));
    let text = refused("image: a\nuser_script_file: gone.sh\n");
    assert!(text.contains("gone.sh"), "{text}");
    // JSON is read alike.
    let text = refused("{\n  \"image\": \"a\",\n  \"vcpu\": 2\n}\n");
    assert!(text.contains("line 3: vcpu: unknown field, did you mean `vcpus`?"), "{text}");
}
