//! What clients ask for, as requests of the API.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request};
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use serde_json::{Map, Value, json};

use super::IMAGE;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// `POST /vms`: a VM with so much memory, MiB.
    Place(VmUuid, u64),
    /// The same of an image that there is not.
    PlaceInVain(VmUuid, u64),
    /// `POST /servers/:server/vms`.
    CreateOn(ServerUuid, VmUuid, u64),
    /// `POST /allocate`.
    Allocate(VmUuid, u64),
    /// Something with a VM on a server.
    Vm(ServerUuid, VmUuid, VmVerb),
    /// `POST /servers/:server/nop`.
    Nop(ServerUuid),
    /// Any of these under a ticket.
    Under(TicketUuid, Box<Self>),
    /// A task of any kind, past the API.
    Task {
        /// Where.
        server: ServerUuid,
        /// Which.
        kind: &'static str,
        /// With what.
        params: Map<String, Value>,
    },
    /// `POST /tasks/:id/cancel`.
    Cancel(TaskId),
    /// `POST /servers/:server/tickets`.
    Ticket {
        /// Whose waitlist.
        server: ServerUuid,
        /// For what.
        id: &'static str,
        /// When it ends by itself.
        expires_at: String,
    },
    /// `PUT /tickets/:uuid/release`.
    Release(TicketUuid),
    /// `DELETE /tickets/:uuid`.
    DeleteTicket(TicketUuid),
    /// `GET /tickets/:uuid/wait`, for so many seconds.
    WaitTicket(TicketUuid, u32),
    /// `POST /servers/:server/reboot`: a job, which drains the agent first or does not.
    Reboot(ServerUuid, bool),
    /// `POST /images`.
    ImageCreate(u64),
    /// `PUT /images/:uuid/file`.
    ImageUpload(u64),
    /// `POST /images/:uuid`.
    ImageActivate(u64),
    /// `GET /images/:uuid/file`.
    ImageFile(u64),
    /// What the agent of another kind POSTs.
    Post(ServerUuid, Post),
    /// `GET /tasks?status=active`.
    ListActive,
    /// `POST /capacity/plan`: how many VMs of so much memory fit, MiB.
    Plan(u64),
    /// Any path.
    Get(String),
}

/// What an agent without a connection says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// What the server is.
    Sysinfo,
    /// It is alive.
    Heartbeat,
    /// Its VMs and figures.
    Status,
}

impl Post {
    fn request(self, server: ServerUuid) -> (String, Value) {
        let (rest, body) = match self {
            Self::Sysinfo => {
                let sysinfo = json!({ "UUID": server, "Hostname": "poster" });
                ("sysinfo", json!({ "sysinfo": sysinfo }))
            }
            Self::Heartbeat => ("events/heartbeat", json!({})),
            Self::Status => {
                let memory = json!({ "availrmem_bytes": 1 << 30, "total_bytes": 2 << 30 });
                ("events/status", json!({ "vms": {}, "meminfo": memory }))
            }
        };
        (format!("/servers/{server}/{rest}"), body)
    }
}

/// What is asked of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmVerb {
    /// Shut down.
    Stop,
    /// Start.
    Start,
    /// Shut down and start.
    Reboot,
    /// Remove.
    Destroy,
    /// Make the snapshot `one`.
    Snapshot,
    /// Go back to it.
    Rollback,
    /// Remove it.
    DropSnapshot,
    /// A new disk.
    Reprovision,
    /// Other properties.
    Update,
}

impl VmVerb {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::Stop,
        Self::Start,
        Self::Reboot,
        Self::Destroy,
        Self::Snapshot,
        Self::Rollback,
        Self::DropSnapshot,
        Self::Reprovision,
        Self::Update,
    ];

    fn request(self) -> (Method, &'static str, Value) {
        match self {
            Self::Stop => (Method::POST, "/stop", json!({ "timeout": 2 })),
            Self::Start => (Method::POST, "/start", json!({})),
            Self::Reboot => (Method::POST, "/reboot", json!({ "timeout": 2 })),
            Self::Destroy => (Method::DELETE, "", json!({})),
            Self::Snapshot => (Method::PUT, "/snapshots", json!({ "snapshot_name": "one" })),
            Self::Rollback => (Method::PUT, "/snapshots/one/rollback", json!({})),
            Self::DropSnapshot => (Method::DELETE, "/snapshots/one", json!({})),
            Self::Reprovision => (Method::POST, "/reprovision", json!({ "image_uuid": IMAGE })),
            Self::Update => (
                Method::POST,
                "/update",
                json!({ "set_tags": { "a": 1 }, "add_nics": [{ "nic_tag": "b" }] }),
            ),
        }
    }
}

/// Who asks for all VMs.
const OWNER: &str = "99999999-2222-4333-8444-555555555555";

fn vm_body(vm: VmUuid, ram: u64) -> Value {
    json!({
        "uuid": vm, "image_uuid": IMAGE, "ram": ram, "max_physical_memory": ram, "cpu_cap": 10,
        "quota": 1, "owner_uuid": OWNER, "networks": ["admin"],
    })
}

/// The same for a client that chooses the server, and so knows the image.
fn vm_body_on(vm: VmUuid, ram: u64) -> Value {
    json!({
        "uuid": vm, "brand": "kvm", "ram": ram, "vcpus": 1, "max_physical_memory": ram,
        "cpu_cap": 10, "quota": 1, "owner_uuid": OWNER, "nics": [{ "nic_tag": "admin" }],
        "disks": [{ "image_uuid": IMAGE, "boot": true, "model": "virtio" }],
        "image": { "uuid": IMAGE, "files": [{ "compression": "none" }] },
    })
}

fn package(ram: u64) -> Value {
    json!({
        "max_physical_memory": ram, "cpu_cap": 10, "quota": 1024,
        "overprovision_cpu": 4, "overprovision_memory": 1, "overprovision_storage": 1,
    })
}

fn image_uuid(image: u64) -> uuid::Uuid {
    uuid::Builder::from_random_bytes((0x5eed_u128 << 64 | u128::from(image)).to_be_bytes())
        .into_uuid()
}

/// What the file of an image holds.
#[must_use]
pub fn image_text(image: u64) -> String {
    format!("image {image} ").repeat(500)
}

impl Ask {
    /// The VM that it asks for.
    #[must_use]
    pub fn makes(&self) -> Option<VmUuid> {
        match self {
            Self::Place(vm, _) | Self::PlaceInVain(vm, _) | Self::CreateOn(_, vm, _) => Some(*vm),
            Self::Under(_, ask) => ask.makes(),
            Self::Task { kind: "machine_create", params, .. } => {
                params.get("uuid")?.as_str()?.parse().ok()
            }
            _ => None,
        }
    }

    /// Whether the answer names a task.
    #[must_use]
    pub fn makes_task(&self) -> bool {
        match self {
            Self::Under(_, ask) => ask.makes_task(),
            Self::Place(..) | Self::PlaceInVain(..) | Self::CreateOn(..) | Self::Vm(..) => true,
            Self::Nop(_) | Self::Task { .. } => true,
            _ => false,
        }
    }

    fn line(&self) -> (Method, String, Value) {
        let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
        match self {
            Self::Place(vm, ram) => (post, "/vms".to_owned(), vm_body(*vm, *ram)),
            Self::PlaceInVain(vm, ram) => {
                let mut body = vm_body(*vm, *ram);
                body["image_uuid"] = json!(image_uuid(u64::MAX));
                (post, "/vms".to_owned(), body)
            }
            Self::CreateOn(server, vm, ram) => {
                (post, format!("/servers/{server}/vms"), vm_body_on(*vm, *ram))
            }
            Self::Allocate(vm, ram) => {
                let vm = json!({ "vm_uuid": vm, "owner_uuid": OWNER, "ram": ram,
                    "brand": "bhyve", "cpu_cap": 10, "quota": 1 });
                let body = json!({ "vm": vm, "image": {}, "package": package(*ram),
                    "nic_tags": ["admin"], "least_changes": false, "steps": "none" });
                (post, "/allocate".to_owned(), body)
            }
            Self::Vm(server, vm, verb) => {
                let (method, rest, body) = verb.request();
                (method, format!("/servers/{server}/vms/{vm}{rest}"), body)
            }
            Self::Nop(server) => (post, format!("/servers/{server}/nop"), json!({})),
            Self::Under(_, ask) => ask.line(),
            Self::Cancel(id) => (post, format!("/tasks/{id}/cancel"), json!({})),
            Self::Ticket { server, id, expires_at } => {
                let body = json!({ "scope": "sim", "id": id, "expires_at": expires_at });
                (post, format!("/servers/{server}/tickets"), body)
            }
            Self::Release(uuid) => (put, format!("/tickets/{uuid}/release"), json!({})),
            Self::DeleteTicket(uuid) => (Method::DELETE, format!("/tickets/{uuid}"), json!({})),
            Self::WaitTicket(uuid, s) => {
                (get, format!("/tickets/{uuid}/wait?timeout={s}"), Value::Null)
            }
            Self::Reboot(server, drain) => {
                (post, format!("/servers/{server}/reboot"), json!({ "drain": drain }))
            }
            Self::ImageCreate(image) => {
                let body = json!({ "v": 2, "uuid": image_uuid(*image), "name": "small",
                    "version": image.to_string(), "type": "zvol", "os": "linux" });
                (post, "/images".to_owned(), body)
            }
            Self::ImageUpload(image) => {
                let path = format!("/images/{}/file?compression=none", image_uuid(*image));
                (put, path, Value::Null)
            }
            Self::ImageActivate(image) => {
                (post, format!("/images/{}?action=activate", image_uuid(*image)), json!({}))
            }
            Self::ImageFile(image) => {
                (get, format!("/images/{}/file", image_uuid(*image)), Value::Null)
            }
            Self::Post(server, what) => {
                let (path, body) = what.request(*server);
                (post, path, body)
            }
            Self::ListActive => (get, "/tasks?status=active&limit=1000".to_owned(), Value::Null),
            Self::Plan(ram) => {
                let body = json!({ "package": package(*ram), "nic_tags": ["admin"] });
                (post, "/capacity/plan".to_owned(), body)
            }
            Self::Get(path) => (get, path.clone(), Value::Null),
            Self::Task { .. } => (get, "/ping".to_owned(), Value::Null),
        }
    }

    /// The request, named by its number.
    #[must_use]
    pub fn request(&self, number: u64) -> Request<Full<Bytes>> {
        let (method, path, body) = self.line();
        let (kind, bytes) = match self {
            Self::ImageUpload(image) => ("application/octet-stream", image_text(*image)),
            _ if body.is_null() => ("application/json", String::new()),
            _ => ("application/json", body.to_string()),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-request-id", format!("request-{number}"))
            .header("content-type", kind)
            .header("content-length", bytes.len());
        if let Self::Under(ticket, _) = self {
            request = request.header("x-muster-ticket", ticket.to_string());
        }
        request.body(Full::new(Bytes::from(bytes))).expect("paths are made of ids")
    }
}
