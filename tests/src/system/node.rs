//! A node with everything on it: coordinator, agent, the command line, and guests.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SHORT, System};
use crate::daemon::fresh_uuid;
use crate::wait::wait_for;

/// For what takes a moment on a machine of its own, and minutes in an emulated one.
pub const LONG: Duration = Duration::from_secs(600);

/// As the README says it, from the payload's disk.
const INSTALL: &str = "set -eu
mkdir -p /mnt/payload
mount -o ro /dev/disk/by-id/virtio-payload /mnt/payload
install -m 755 /mnt/payload/bin/* /usr/bin/
install -m 644 /mnt/payload/systemd/*.service /mnt/payload/systemd/*.slice \
    /mnt/payload/systemd/*.timer /etc/systemd/system/
install -D -m 644 -t /etc/muster /mnt/payload/systemd/*.toml
systemctl daemon-reload
systemctl enable muster-coordinator muster-agent muster-agent-early muster-guests-shutdown \
    muster-guest-logs.timer
systemctl start muster-coordinator muster-agent muster-guests-shutdown muster-guest-logs.timer
";

/// The node.
#[derive(Debug)]
pub struct Node {
    /// The machine.
    pub system: System,
    /// The UUID under which the coordinator knows it.
    pub server: String,
}

impl Node {
    /// Installs everything on a fresh machine; returns when VMs can be made there.
    ///
    /// # Panics
    /// If it fails.
    pub async fn start() -> Self {
        Self::install(System::start().await).await
    }

    /// Installs everything on this one.
    ///
    /// # Panics
    /// If it fails.
    pub async fn install(system: System) -> Self {
        let ran = system.try_run(INSTALL, LONG).await.expect("the machine answers");
        assert_eq!(ran.code, 0, "{ran:#?}\n{}", log(&system).await);
        let server = usable(&system).await["uuid"].as_str().expect("a uuid").to_owned();
        for name in ["button", "busy"] {
            let file = format!("/mnt/payload/guest/{name}.raw");
            system.run(&format!("muster image import {file} --name {name} --version 1")).await;
        }
        Self { system, server }
    }

    /// Makes a VM whose system is the image `button` or `busy`, with further properties; returns
    /// when that is up.
    ///
    /// # Panics
    /// If it fails.
    pub async fn create(&self, alias: &str, image: &str, wishes: &Value) -> String {
        let (vm, asked) = self.ask_for_vm(alias, image, wishes).await;
        self.complete(&asked).await;
        self.printed(&vm, "button: up").await;
        vm
    }

    /// Asks for such a VM: its uuid, and the answer.
    ///
    /// # Panics
    /// If the request is refused.
    pub async fn ask_for_vm(&self, alias: &str, image: &str, wishes: &Value) -> (String, Value) {
        let image = parse(&self.system.run(&format!("muster image get {image} -o json")).await);
        let vm = fresh_uuid();
        let mut payload = json!({
            "uuid": vm, "brand": "kvm", "alias": alias, "ram": 64, "vnc_port": -1,
            "max_physical_memory": 320, "image": image, "disks": [{ "image_uuid": image["uuid"], "boot": true }],
        });
        let wishes = wishes.as_object().expect("an object").clone();
        payload.as_object_mut().expect("an object").extend(wishes);
        let path = format!("/servers/{}/vms", self.server);
        let asked = self.api("POST", &path, &payload).await;
        (vm, asked)
    }

    /// Changes a VM.
    ///
    /// # Panics
    /// If it fails.
    pub async fn update(&self, vm: &str, changes: &Value) {
        let path = format!("/servers/{}/vms/{vm}/update", self.server);
        let asked = self.api("POST", &path, changes).await;
        self.complete(&asked).await;
    }

    /// Waits for a task that must end well.
    ///
    /// # Panics
    /// If it fails.
    pub async fn complete(&self, asked: &Value) {
        let task = asked["id"].as_str().unwrap_or_else(|| panic!("no task: {asked}"));
        let wait = format!("muster task wait {task} --timeout 580 -o json");
        let ran = self.system.try_run(&wait, LONG).await.expect("the machine answers");
        assert_eq!(ran.code, 0, "{ran:#?}\n{}", log(&self.system).await);
    }

    /// Waits for a task that must fail; why it did, as the command line says it.
    ///
    /// # Panics
    /// If it does not fail.
    pub async fn failure(&self, asked: &Value) -> String {
        let task = asked["id"].as_str().unwrap_or_else(|| panic!("no task: {asked}"));
        let wait = format!("muster task wait {task} --timeout 580 -o json");
        let ran = self.system.try_run(&wait, LONG).await.expect("the machine answers");
        assert_ne!(ran.code, 0, "{ran:#?}");
        ran.stdout + &ran.stderr
    }

    /// What is wrong with the server, as the coordinator shows it.
    ///
    /// # Panics
    /// If it does not show the server.
    pub async fn degraded(&self) -> String {
        let server = self.api("GET", &format!("/servers/{}", self.server), &Value::Null).await;
        server["sysinfo"]["Muster"]["degraded"].to_string()
    }

    /// Asks the coordinator, which listens on the node's loopback only.
    ///
    /// # Panics
    /// If it fails.
    pub async fn api(&self, method: &str, path: &str, body: &Value) -> Value {
        let script = format!(
            "curl -sS --fail-with-body -X {method} -H content-type:application/json --data @- \
             http://127.0.0.1:8480{path} <<'END'\n{body}\nEND\n"
        );
        parse(&self.system.run(&script).await)
    }

    /// The VM as the agent tells of it now.
    ///
    /// # Panics
    /// If it fails.
    pub async fn vm(&self, vm: &str) -> Value {
        let path = format!("/servers/{}/vms/{vm}", self.server);
        parse(&self.system.run(&format!("curl -sS http://127.0.0.1:8480{path}")).await)
    }

    /// Waits for a line on a VM's console.
    ///
    /// # Panics
    /// If it fails.
    pub async fn printed(&self, vm: &str, line: &str) {
        let script = format!("grep -q '{line}' {}", console(vm));
        self.system.wait(&format!("VM {vm} prints {line:?}"), LONG, &script).await;
    }

    /// The process of a VM: pid and start time.
    ///
    /// # Panics
    /// If it fails.
    pub async fn process(&self, vm: &str) -> String {
        let script = format!(
            "pid=$(pgrep -f 'qemu-system.* -uuid {vm} '); echo \"$pid $(cut -d' ' -f22 /proc/$pid/stat)\""
        );
        self.system.run(&script).await.trim().to_owned()
    }

    /// Waits until the coordinator shows the server, running and set up.
    ///
    /// # Panics
    /// If it fails.
    pub async fn wait_usable(&self) {
        usable(&self.system).await;
    }
}

/// Where a VM's console is kept.
#[must_use]
pub fn console(vm: &str) -> String {
    format!("/var/lib/muster-agent/guests/{vm}/console.log")
}

/// JSON that a program printed.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn usable(system: &System) -> Value {
    wait_for("the server is usable", LONG, || async {
        let ran = system.try_run("muster server list -o json", SHORT).await;
        let ran = ran.map_err(|error| error.to_string())?;
        let listed: Value = serde_json::from_str(&ran.stdout).map_err(|_| format!("{ran:?}"))?;
        let server = &listed[0];
        let usable = server["status"] == "running" && server["setup"] == true;
        if usable { Ok(server.clone()) } else { Err(ran.stdout) }
    })
    .await
}

/// What Muster and systemd said.
async fn log(system: &System) -> String {
    let script = "systemctl --failed; journalctl --no-pager -n 80 -u 'muster*'";
    system.try_run(script, SHORT).await.map_or_else(|e| e.to_string(), |ran| ran.stdout)
}
