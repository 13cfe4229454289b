//! VMs of one server and of the fleet.

use serde_json::{Value, json};

use super::agent::{DISK, HANDSHAKE};
use super::row::{Row, row};

const PARAMETERS: &str = "InvalidParameters";

pub(super) fn rows() -> Vec<Row> {
    [of_server(), actions(), guest(), snapshots(), transfers(), docker(), fleet(), vec![destroy()]]
        .concat()
}

/// After the others, which need the VM.
fn destroy() -> Row {
    row("DELETE /servers/:server_uuid/vms/:uuid", 200).of_vm()
}

fn create() -> Value {
    json!({
        "uuid": "00000000-0000-4000-8000-0000000000aa", "brand": "joyent-minimal", "cpu_cap": 100,
        "image_uuid": "{missing}", "image": { "files": [{ "compression": "gzip" }] },
    })
}

fn of_server() -> Vec<Row> {
    let query = |route| row(route, 200).of_vm();
    vec![
        row("GET /servers/:server_uuid/vms", 200).of_server(),
        row("POST /servers/:server_uuid/vms", 200)
            .sends(&create())
            .of_running()
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "uuid": 7 }), 409, PARAMETERS)
            .bad_body(&json!({ "uuid": "x" }), 409, PARAMETERS)
            .bad_body(&json!({ "uuid": "{ghost}", "image_uuid": "{missing}" }), 409, PARAMETERS)
            .bad_body(&json!({ "uuid": "{ghost}", "image": { "files": [{}] } }), 409, PARAMETERS),
        query("GET /servers/:server_uuid/vms/:uuid").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        ),
        query("GET /servers/:server_uuid/vms/:uuid/proc").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        ),
        query("GET /servers/:server_uuid/vms/:uuid/info").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        ),
        query("GET /servers/:server_uuid/vms/:uuid/vnc").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        ),
        query("GET /servers/:server_uuid/vms/:uuid/screenshot").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "VmNotFound",
        ),
        row("POST /servers/:server_uuid/vms/nics/update", 200)
            .sends(&json!({ "nics": [] }))
            .of_running(),
    ]
}

fn actions() -> Vec<Row> {
    let act = |route: &'static str, body: &Value| {
        let row = row(route, 200).sends(body).of_vm();
        row.bad_header("if-match: \"no such\"", 412, "PreconditionFailed")
    };
    let bad_update = json!({ "update": { "ram": 1 } });
    let migration = json!({ "migrationTask": { "action": "begin", "record": {} } });
    let image = json!({ "compression": "gzip", "imgapi_url": "http://x", "manifest": { "v": 2 } });
    vec![
        act("POST /servers/:server_uuid/vms/:uuid/update", &json!({ "ram": 512 })).bad_body(
            &json!({ "jobid": 7 }),
            409,
            PARAMETERS,
        ),
        act("POST /servers/:server_uuid/vms/:uuid/start", &json!({ "once": "d" }))
            .bad_body(&bad_update, 409, "InvalidArgument")
            .bad_body(&json!({ "once": "x" }), 409, PARAMETERS),
        act("POST /servers/:server_uuid/vms/:uuid/stop", &json!({ "force": true })),
        act("POST /servers/:server_uuid/vms/:uuid/kill", &json!({ "signal": "SIGTERM" })).bad_body(
            &json!({ "signal": {} }),
            409,
            PARAMETERS,
        ),
        act("POST /servers/:server_uuid/vms/:uuid/reboot", &json!({})).bad_body(
            &bad_update,
            409,
            "InvalidArgument",
        ),
        act(
            "POST /servers/:server_uuid/vms/:uuid/reprovision",
            &json!({ "image_uuid": "{missing}" }),
        )
        .bad_body(&json!({}), 409, PARAMETERS)
        .bad_body(&json!({ "image_uuid": " x" }), 409, PARAMETERS),
        act("POST /servers/:server_uuid/vms/:uuid/migrate", &migration)
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "migrationTask": { "action": 1 } }), 409, PARAMETERS),
        act("POST /servers/:server_uuid/vms/:uuid/images", &image)
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "compression": 1 }), 409, PARAMETERS),
    ]
}

fn guest() -> Vec<Row> {
    let command = json!({ "argv": ["uname"], "timeout": 30 });
    let piece = json!({ "path": "/etc/hostname", "data": "d2ViMQo=" });
    let password = json!({ "user": "root", "password": "secret" });
    let at_ghost = |row: Row| row.bad_at("{uuid}", "{ghost}", 404, "ResourceNotFound");
    vec![
        at_ghost(row("POST /servers/:server_uuid/vms/:uuid/exec", 200).sends(&command).of_vm())
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "argv": ["uname"], "timeout": 0 }), 409, PARAMETERS),
        at_ghost(
            row("GET /servers/:server_uuid/vms/:uuid/file", 200).asks("path=/etc/hostname").of_vm(),
        ),
        at_ghost(row("PUT /servers/:server_uuid/vms/:uuid/file", 200).sends(&piece).of_vm())
            .bad_body(&json!({ "path": "/etc/hostname" }), 409, PARAMETERS)
            .bad_body(&json!({ "path": "/x", "data": "", "offset": -1 }), 409, PARAMETERS),
        at_ghost(row("POST /servers/:server_uuid/vms/:uuid/login", 204).sends(&password).of_vm())
            .bad_body(&json!({ "password": "secret" }), 409, PARAMETERS)
            .bad_body(&json!({ "user": "root", "ssh_keys": "x" }), 409, PARAMETERS),
    ]
}

fn snapshots() -> Vec<Row> {
    let at = |route: &'static str| row(route, 200).at("{snapshot_name}", "before").of_vm();
    vec![
        row("PUT /servers/:server_uuid/vms/:uuid/snapshots", 200)
            .sends(&json!({ "snapshot_name": "before" }))
            .of_vm(),
        at("PUT /servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name/rollback"),
        at("DELETE /servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name"),
    ]
}

fn transfers() -> Vec<Row> {
    let at_ghost = |row: Row| row.bad_at("{uuid}", "{ghost}", 404, "ResourceNotFound");
    let of_vm = |route: &'static str| row(route, 200).of_vm();
    let asks = |route: &'static str, query: &str| at_ghost(of_vm(route).asks(query));
    let piece = format!("volume=0&sha256={DISK}&durable=true");
    let volume = json!({ "role": "disk", "index": 0, "size_bytes": 1_048_576 });
    let vm = json!({ "brand": "kvm", "ram": 256, "cpu_cap": 100, "disks": [{ "size": 1 }] });
    let import = json!({ "vm": vm, "export": "one", "volumes": [volume] });
    let without = |name: &str| {
        let mut import = import.clone();
        import.as_object_mut().expect("it is one").shift_remove(name);
        import
    };
    let strange = json!({ "vm": { "brand": "xen" }, "export": "one", "volumes": [] });
    vec![
        asks("GET /servers/:server_uuid/vms/:uuid/export", "snapshot_name=one")
            .bad_query("snapshot_name=", 409, PARAMETERS)
            .bad_query("snapshot_name=a/b", 409, PARAMETERS),
        asks(
            "GET /servers/:server_uuid/vms/:uuid/export/piece",
            "snapshot_name=one&disk=0&offset=512",
        )
        .bad_query("snapshot_name=one&disk=-1", 409, PARAMETERS)
        .bad_query("snapshot_name=one&offset=x", 409, PARAMETERS),
        row("POST /vms/import", 202)
            .sends(&import)
            .bad_body(&without("vm"), 409, PARAMETERS)
            .bad_body(&without("export"), 409, PARAMETERS)
            .bad_body(&without("volumes"), 409, PARAMETERS)
            .bad_body(&strange, 409, PARAMETERS),
        at_ghost(of_vm("GET /servers/:server_uuid/vms/:uuid/import")),
        asks("PUT /servers/:server_uuid/vms/:uuid/import", &piece)
            .header("content-type: application/octet-stream")
            .sends_bytes(b"disk")
            .bad_query("volume=0&sha256=x", 409, PARAMETERS)
            .bad_query(&format!("volume=-1&sha256={DISK}"), 409, PARAMETERS),
        row("POST /servers/:server_uuid/vms/:uuid/import", 200)
            .sends(&json!({ "start": true }))
            .of_vm()
            .bad_body(&json!({ "start": "perhaps" }), 409, PARAMETERS),
    ]
}

fn docker() -> Vec<Row> {
    let session = |route: &'static str, body: &Value| row(route, 200).sends(body).of_vm();
    let payload = json!({ "payload": { "Resource": "/x", "id": "y" } });
    vec![
        session(
            "POST /servers/:server_uuid/vms/:uuid/docker-exec",
            &json!({ "command": { "Cmd": ["ls"] } }),
        )
        .bad_body(&json!({}), 409, PARAMETERS)
        .bad_body(&json!({ "command": "ls" }), 409, PARAMETERS),
        session(
            "POST /servers/:server_uuid/vms/:uuid/docker-copy",
            &json!({ "path": "/x", "mode": "read" }),
        )
        .bad_body(&json!({ "path": 7 }), 409, PARAMETERS),
        session("POST /servers/:server_uuid/vms/:uuid/docker-stats", &payload).bad_body(
            &json!({}),
            409,
            PARAMETERS,
        ),
        session("POST /servers/:server_uuid/vms/:uuid/docker-build", &payload).bad_body(
            &json!({ "payload": [] }),
            409,
            PARAMETERS,
        ),
    ]
}

fn fleet() -> Vec<Row> {
    let place = json!({ "image_uuid": "{missing}", "ram": 256, "cpu_cap": 100, "alias": "small" });
    let socket = |route: &'static str| {
        HANDSHAKE[..4].iter().fold(row(route, 101), |row, header| row.header(header))
    };
    let stream = |route: &'static str| {
        socket(route).bad_at("{uuid}", "nonsense", 409, "InvalidArgument").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        )
    };
    vec![
        row("GET /vms", 200)
            .asks("tag.role=test&limit=5")
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("limit=x", 409, PARAMETERS)
            .bad_query("offset=-1", 409, PARAMETERS)
            .bad_query("server_uuid=x", 409, PARAMETERS)
            .bad_query("marker=x", 409, PARAMETERS)
            .bad_query("state=a&state=b", 409, PARAMETERS),
        row("GET /vms/usage", 200)
            .asks("max_age=0&limit=5")
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("max_age=-1", 409, PARAMETERS)
            .bad_query("max_age=x", 409, PARAMETERS)
            .bad_query("server_uuid=x", 409, PARAMETERS)
            .bad_query("marker=x", 409, PARAMETERS),
        row("POST /vms", 202)
            .sends(&place)
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "image_uuid": "{missing}", "ram": "much" }), 409, PARAMETERS)
            .bad_body(&json!({ "image_uuid": "{missing}", "package": "x" }), 409, PARAMETERS)
            .bad_body(
                &json!({ "image_uuid": "{missing}", "ram": 16_000_000 }),
                409,
                "NoAllocatableServersError",
            ),
        row("GET /vms/:uuid", 200).bad_at("{uuid}", "nonsense", 409, "InvalidArgument").bad_at(
            "{uuid}",
            "{ghost}",
            404,
            "ResourceNotFound",
        ),
        stream("GET /vms/:uuid/console"),
        stream("GET /vms/:uuid/display"),
        socket("GET /agent")
            .header(&format!("sec-websocket-protocol: {}", muster_shared::wire::PROTOCOL))
            .bad_at("/agent", "/agent?x=%ff", 400, "InvalidContent")
            .bad_bare(426, "UpgradeRequired"),
        socket("GET /agent/streams/:id")
            .elsewhere("the good request of the console needs one")
            .bad_at("{id}", "nonsense", 404, "ResourceNotFound")
            .bad_at("{id}", "{missing}", 404, "ResourceNotFound"),
    ]
}
