//! A compute node's agent as the rows need it: it does every task at once, and answers as the real
//! one does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::ServerUuid;
use muster_shared::link::{Connection, Frame};
use muster_shared::wire::status::{Report, Status, VmReport};
use muster_shared::wire::{
    Accepted, Code, Dispatch, Error as WireError, FromAgent, FromCoordinator, Heartbeat, Outcome,
    StreamOpen, Sysinfo, TaskError, TaskResult, decode, encode,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::app::tests::hello;

pub(super) const SERVER: u128 = 1;
pub(super) const VICTIM: u128 = 2;
pub(super) const VM: u128 = 0x10;
pub(super) const GHOST: u128 = 0x11;
/// A request of this id gets a sysinfo without content.
pub(super) const NO_SYSINFO: &str = "no sysinfo";

/// Servers and kinds of tasks, in the order in which they came.
pub(super) type Received = Arc<Mutex<Vec<(Uuid, String)>>>;

pub(super) fn uuid(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

/// An agent that does every task at once.
pub(super) struct Agent {
    pub(super) address: String,
    pub(super) server: Uuid,
    pub(super) received: Received,
}

impl Agent {
    pub(super) async fn run(self, mut connection: Connection) {
        let server = ServerUuid(self.server);
        let vms = self.vms();
        let sysinfo = sysinfo(self.server);
        let report = Report {
            meminfo: serde_json::from_value(json!({
                "availrmem_bytes": 8u64 << 30, "arcsize_bytes": 0, "total_bytes": 8u64 << 30,
            }))
            .ok(),
            diskinfo: serde_json::from_value(json!({ "pool_size_bytes": 500u64 << 30 })).ok(),
            ..Report::whole(&vms)
        };
        let agents = vec![json!({ "name": "cn-agent", "version": "2.14.0" })];
        let described = Sysinfo {
            sysinfo: sysinfo.as_object().cloned(),
            agents: Some(agents),
            hash: "h".to_owned(),
        };
        send(&mut connection, hello(server).into()).await;
        send(&mut connection, described.into()).await;
        send(&mut connection, Box::new(Status { report: Some(report) }).into()).await;
        let mut beat = tokio::time::interval(Duration::from_millis(300));
        loop {
            tokio::select! {
                biased;
                frame = connection.stream.next() => match frame {
                    Ok(Some(Frame::Text(text))) => self.answer(&mut connection, &text).await,
                    _ => return,
                },
                _ = beat.tick() => {
                    send(&mut connection, Heartbeat { seq: 1, ts: String::new() }.into()).await;
                }
            }
        }
    }

    fn vms(&self) -> BTreeMap<muster_shared::ids::VmUuid, VmReport> {
        if self.server != Uuid::from_u128(SERVER) {
            return BTreeMap::new();
        }
        let report = json!({
            "uuid": uuid(VM), "owner_uuid": Uuid::nil(), "brand": "kvm",
            "max_physical_memory": 1280, "cpu_cap": 100, "quota": 1, "state": "running",
            "zone_state": "running", "last_modified": "2026-01-01T00:00:00.000Z",
            "index": { "alias": "x", "tags": { "role": "test" }, "vcpus": 1 },
        });
        let report: VmReport = serde_json::from_value(report).unwrap();
        BTreeMap::from([(report.vm.uuid, report)])
    }

    async fn answer(&self, connection: &mut Connection, text: &str) {
        match decode::<FromCoordinator>(text).unwrap() {
            FromCoordinator::Dispatch(dispatch) => {
                self.received.lock().push((self.server, dispatch.task.clone()));
                send(connection, Accepted { id: dispatch.id.clone(), intake: None }.into()).await;
                send(connection, self.result(*dispatch).into()).await;
            }
            FromCoordinator::Pause(pause) => {
                send(connection, Accepted { id: pause.token, intake: None }.into()).await;
            }
            FromCoordinator::Resume(resume) => {
                send(connection, Accepted { id: resume.token, intake: None }.into()).await;
            }
            FromCoordinator::Cancel(cancel) => {
                let code = Code::NotCancellable;
                let message = "the task has ended".to_owned();
                let id = Some(cancel.id.to_string());
                send(connection, WireError { id, code, message }.into()).await;
            }
            FromCoordinator::StreamOpen(open) => self.open(&open).await,
            _ => {}
        }
    }

    /// Dials the byte stream; the coordinator accepts it or the client's request fails.
    async fn open(&self, open: &StreamOpen) {
        let head = format!(
            "GET /agent/streams/{} HTTP/1.1\r\nhost: x\r\n{}\r\n\r\n",
            open.stream_id,
            HANDSHAKE.join("\r\n").replace("PROTOCOL", muster_shared::wire::stream::PROTOCOL),
        );
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 101");
        // It stays open for as long as the test needs it.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(stream);
        });
    }

    fn result(&self, dispatch: Dispatch) -> TaskResult {
        let result = self.work(&dispatch);
        let (status, result, error) = match result {
            Ok(result) => (Outcome::Complete, result, None),
            Err(code) => {
                let code = Code::from(code);
                let message = format!("it failed with {code}");
                (Outcome::Failure, Value::Null, Some(TaskError { code, message, details: None }))
            }
        };
        TaskResult { id: dispatch.id, status, result, error, finished_at: String::new() }
    }

    /// The result of a task, or the code of its failure. A dataset `fail-CODE` asks for one.
    fn work(&self, dispatch: &Dispatch) -> Result<Value, String> {
        let text = |name: &str| dispatch.params.get(name).and_then(Value::as_str);
        if let Some(code) = text("dataset").and_then(|name| name.strip_prefix("fail-")) {
            return Err(code.to_owned());
        }
        let of_ghost = dispatch.task.starts_with("machine_") && text("uuid") == Some(&uuid(GHOST));
        if of_ghost {
            return Err("VmNotFound".to_owned());
        }
        Ok(match dispatch.task.as_str() {
            "task_history" => json!([{ "task": "nop", "status": "finished" }]),
            // An agent that has nothing to tell yet.
            "server_sysinfo" if dispatch.req_id == NO_SYSINFO => json!({ "sysinfo": null }),
            "server_sysinfo" | "server_update_nics" => json!({ "sysinfo": sysinfo(self.server) }),
            "machine_info" => json!({
                "status": { "running": true, "status": "running" },
                "kvm": { "enabled": false, "present": true },
                "vnc": { "enabled": true, "host": "10.0.0.1", "port": 5900, "display": 0 },
            }),
            "machine_proc" => json!({ "4711": { "psinfo": {
                "pr_pid": 4711, "pr_ppid": 1, "pr_uid": 0, "pr_euid": 0, "pr_gid": 0, "pr_egid": 0,
                "pr_fname": "qemu-system-x86", "pr_psargs": "qemu-system-x86_64 -S",
                "pr_size": 2_097_152, "pr_rssize": 524_288, "pr_nlwp": 7,
            } } }),
            "machine_screenshot" => json!({ "format": "png", "data": "iVBORw0KGgo=" }),
            "machine_exec" => json!({
                "exit_status": 0, "timed_out": false, "stdout": "TGludXg=", "stderr": "",
                "stdout_truncated": false, "stderr_truncated": false,
            }),
            "machine_file_read" => json!({ "data": "d2ViMQo=" }),
            "machine_file_write" => json!({ "bytes": 5 }),
            "machine_login" => json!({}),
            "machine_export" => json!({
                "exported_at": "2026-01-01T00:00:00.000Z", "vm": { "brand": "kvm", "ram": 256 },
                "volumes": [{ "role": "disk", "index": 0, "number": 0, "size_bytes": 1_048_576 }],
            }),
            "machine_export_read" => json!({
                "size_bytes": 1_048_576, "offset": 0, "next": 4, "data": "ZGlzaw==", "sha256": DISK,
            }),
            "machine_import_state" | "machine_import_write" => json!({
                "export": "one", "volume": 0, "offset": 4, "boot": "boot-1",
                "until": "2026-01-02T00:00:00.000Z",
            }),
            "machine_load" => vm_object(text("uuid")),
            "machine_update_nics" => json!({ "updated": [], "unchanged": [], "failed": [] }),
            task if task.starts_with("machine_") && task != "machine_migrate" => {
                json!({ "vm": vm_object(text("uuid")) })
            }
            "server_orphans" => json!({ "orphans": [{
                "uuid": self.server, "alias": null, "owner_uuid": null, "runs": true, "pid": 42,
                "ram_mib": 256, "disks": 1, "disk_bytes": 4096, "adoptable": false, "reason": "x",
            }] }),
            "server_images" => json!({ "images": [{
                "uuid": uuid(VM), "name": "x", "version": null, "origin": null,
                "size_bytes": 4096, "installed_at": "2026-01-02T03:04:05.000Z",
                "last_used_at": null, "disks": 1, "vms": 1,
            }] }),
            "server_logs" => json!({ "instance": self.server, "next": 1, "lost": 0, "lines": [{
                "seq": 1, "time": "2026-01-02T03:04:05.000Z", "level": "info", "target": "x",
                "message": "task begins", "task_id": "t", "fields": { "task": "nop" },
            }] }),
            "vms_usage" => json!({ "usage": { uuid(VM): {
                "at_ms": 2, "started_at_ms": 1, "booted_at_ms": 1, "cpu_ms": 10, "rss_bytes": 4096,
                "disk": { "at_ms": 2, "read_bytes": 1, "written_bytes": 0, "reads": 1, "writes": 0,
                          "flushes": 0, "errors": 0 },
            } } }),
            "image_get" => json!({
                "v": 2, "uuid": text("uuid"), "name": "x", "version": "1", "type": "zvol",
                "os": "linux", "state": "active", "files": [{ "size": 4, "sha1": "00" }],
            }),
            "command_execute" => json!({ "exitCode": 0, "stdout": "hi\n", "stderr": "" }),
            "docker_exec" | "docker_copy" | "docker_stats" | "docker_build" => {
                json!({ "host": "10.0.0.1", "port": 5000 })
            }
            "zfs_list_datasets" | "zfs_list_snapshots" => json!([{
                "name": "zones", "used": "1.2G", "avail": "10G", "refer": "24K",
                "type": "filesystem", "mountpoint": "/zones",
            }]),
            "zfs_list_pools" => json!([{
                "name": "zones", "size": "12G", "allocated": "1.2G", "free": "10.8G",
                "cap": "10%", "health": "ONLINE", "altroot": "-",
            }]),
            "zfs_get_properties" => json!({ "zones/x": { "quota": "0" } }),
            _ => json!({}),
        })
    }
}

/// SHA-256 of `disk`.
pub(super) const DISK: &str = "1044dec7206e8d7c9fbb4ae8f766668406d2567fc7fc1a160a9d4700fcf8f8e9";

/// A VM as the agent tells it.
fn vm_object(uuid: Option<&str>) -> Value {
    json!({
        "uuid": uuid, "v": 1, "brand": "kvm", "type": "KVM", "hvm": true, "state": "running",
        "zone_state": "running", "alias": "x", "owner_uuid": Uuid::nil(), "autoboot": true,
        "billing_id": Uuid::nil(), "ram": 256, "max_physical_memory": 1280, "max_swap": 1280,
        "max_locked_memory": 1280, "vcpus": 1, "cpu_cap": 100, "cpu_shares": 100, "quota": 10,
        "zfs_io_priority": 100, "max_lwps": 2000, "zpool": "zones", "tags": { "role": "test" },
        "customer_metadata": {}, "internal_metadata": {}, "zonepath": "/zones/x", "pid": 4711,
        "boot_timestamp": "2026-01-01T00:00:00.000Z", "last_modified": "2026-01-01T00:00:00.000Z",
        "nics": [{
            "mac": "02:00:00:00:00:01", "nic_tag": "admin", "interface": "net0", "primary": true,
            "model": "virtio", "ips": ["dhcp"],
        }],
        "disks": [{
            "path": "/vols/x/disk0.qcow2", "size": 10240, "boot": true, "model": "virtio",
            "media": "disk", "image_uuid": Uuid::nil(),
        }],
        "snapshots": [{ "name": "one", "size": 0, "created_at": "2026-01-01T00:00:00.000Z" }],
        "server_uuid": Uuid::from_u128(SERVER), "datacenter_name": "test",
    })
}

/// A websocket's handshake.
pub(super) const HANDSHAKE: [&str; 5] = [
    "upgrade: websocket",
    "connection: upgrade",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-protocol: PROTOCOL",
];

async fn send(connection: &mut Connection, message: FromAgent) {
    // A coordinator that has stopped needs no answer.
    connection.sink.send(Frame::Text(encode(&message))).await.ok();
}

fn sysinfo(server: Uuid) -> Value {
    json!({
        "UUID": server, "Hostname": format!("cn-{server}"), "Live Image": "20260101T000000Z",
        "System Type": "Linux", "Boot Time": "1700000000", "SDC Version": "7.0", "Setup": true,
        "CPU Total Cores": 8, "CPU Online Count": 8, "MiB of Memory": "8192",
        "VM Capable": true, "HVM API": true, "Bhyve Capable": true,
        // The allocator leaves such a server out; recovery configurations need one.
        "Zpool Encrypted": server == Uuid::from_u128(VICTIM),
        "Network Interfaces": { "eth0": {
            "MAC Address": "02:00:00:00:00:01", "Link Status": "up", "NIC Names": ["admin"],
        } },
    })
}
