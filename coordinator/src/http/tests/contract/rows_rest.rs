//! The coordinator itself, tasks, images, packages, the allocator.

use serde_json::{Value, json};

use super::row::{Row, Sent, row};

const PARAMETERS: &str = "InvalidParameters";
const NOT_FOUND: &str = "ResourceNotFound";

pub(super) fn rows() -> Vec<Row> {
    [itself(), tasks(), images(), packages(), placement()].concat()
}

fn itself() -> Vec<Row> {
    vec![
        row("GET /ping", 200).plain(),
        row("GET /info", 200).plain(),
        row("GET /diagnostics", 200).plain(),
        row("GET /openapi.json", 200).plain(),
        row("GET /metrics", 200).bad_query("x=%ff", 400, "InvalidContent").bad_query(
            &"a=1&".repeat(1001),
            400,
            "InvalidContent",
        ),
        row("GET /logs", 200)
            .elsewhere("a test has no log to read; the daemons' tests read theirs")
            .bad_query("level=loud", 409, PARAMETERS)
            .bad_query("wait=31", 409, PARAMETERS),
        row("GET /loglevel", 200).plain(),
        row("POST /loglevel", 200)
            .sends(&json!({ "level": "info" }))
            .elsewhere("a test has no log to change; the daemons' tests change theirs")
            .bad_body(&json!({ "level": "loud" }), 409, PARAMETERS)
            .bad_body(&json!({ "level": 31 }), 409, PARAMETERS)
            .bad_body(&json!({}), 409, PARAMETERS),
        row("GET /why/:kind/:id", 200)
            .at("{kind}/{id}", "server/{server_uuid}")
            .bad_at("{server_uuid}", "{missing}", 404, NOT_FOUND)
            .bad_at("server/", "weather/", 404, NOT_FOUND),
    ]
}

/// Makes a task, known as `taskid`.
fn a_task() -> Sent {
    Sent::new("POST", "/servers/{server_uuid}/nop").json(&json!({})).keep("id", "taskid")
}

fn tasks() -> Vec<Row> {
    vec![
        row("GET /tasks", 200)
            .asks("limit=5&status=complete")
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("status=done", 409, PARAMETERS)
            .bad_query("server_uuid=x", 409, PARAMETERS),
        row("GET /tasks/:taskid", 200)
            .after(a_task())
            .bad_at("{taskid}", "{missing}", 404, NOT_FOUND)
            .bad_at("{taskid}", "any%20text", 404, NOT_FOUND),
        row("GET /tasks/:taskid/wait", 200)
            .after(a_task())
            .asks("timeout=5")
            .bad_at("{taskid}", "{missing}", 404, NOT_FOUND)
            .bad_at("{taskid}", "any%20text", 404, NOT_FOUND),
        row("POST /tasks/:taskid/cancel", 202)
            .after(a_task())
            .elsewhere("the agent here ends every task at once; app::tests cancels one")
            .bad_header("if-match: \"no such\"", 412, "PreconditionFailed")
            .bad_query("", 409, "NotCancellable")
            .bad_at("{taskid}", "{missing}", 404, NOT_FOUND)
            .bad_at("{taskid}", "any%20text", 404, NOT_FOUND),
    ]
}

fn manifest() -> Value {
    json!({ "name": "x", "version": "1", "type": "zvol", "os": "linux" })
}

/// Makes an image, known as `image`.
fn an_image() -> Sent {
    Sent::new("POST", "/images").json(&manifest()).keep("uuid", "image")
}

fn images() -> Vec<Row> {
    let of = |route: &'static str, status| {
        row(route, status)
            .after(an_image())
            .at("{uuid}", "{image}")
            .bad_at("{image}", "{missing}", 404, NOT_FOUND)
            .bad_at("{image}", "nonsense", 404, NOT_FOUND)
    };
    let file = || Sent { body: b"disk".to_vec(), ..Sent::new("PUT", "/images/{image}/file") };
    let octets = "content-type: application/octet-stream";
    vec![
        row("GET /images", 200)
            .asks("state=all&limit=1000")
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("owner=x", 409, PARAMETERS),
        row("POST /images", 200)
            .sends(&manifest())
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(
                &json!({ "name": "x", "version": "1", "type": "?", "os": "linux" }),
                409,
                PARAMETERS,
            )
            .bad_json("{", 400, "InvalidContent"),
        of("GET /images/:uuid", 200),
        row("POST /images/:uuid", 200)
            .after(an_image())
            .after(file())
            .at("{uuid}", "{image}")
            .sends(&json!({ "action": "activate" }))
            .bad_header("if-match: \"no such\"", 412, "PreconditionFailed")
            .bad_body(&json!({ "action": "burn" }), 409, PARAMETERS)
            .bad_body(&json!({}), 409, PARAMETERS),
        of("DELETE /images/:uuid", 204).bad_header(
            "if-match: \"no such\"",
            412,
            "PreconditionFailed",
        ),
        of("PUT /images/:uuid/file", 200)
            .header(octets)
            .sends_bytes(b"disk")
            .bad_query("compression=rar", 409, PARAMETERS)
            .bad_query("sha256=x", 409, PARAMETERS),
        row("GET /images/:uuid/file", 200)
            .after(an_image())
            .after(file())
            .at("{uuid}", "{image}")
            .bad_at("{image}", "{missing}", 404, NOT_FOUND)
            .bad_at("{image}", "nonsense", 404, NOT_FOUND),
    ]
}

/// Makes a package, known as `package`.
fn a_package(name: &str) -> Sent {
    let body = json!({ "name": name, "max_physical_memory": 128 });
    Sent::new("POST", "/packages").json(&body).keep("uuid", "package")
}

fn packages() -> Vec<Row> {
    let of = |route: &'static str, status, name: &str| {
        row(route, status)
            .after(a_package(name))
            .bad_at("{package}", "{missing}", 404, NOT_FOUND)
            .bad_at("{package}", "no%20name", 404, NOT_FOUND)
    };
    let changes = |row: Row| row.bad_header("if-match: \"no such\"", 412, "PreconditionFailed");
    vec![
        row("GET /packages", 200).plain(),
        row("POST /packages", 200)
            .after(a_package("taken"))
            .sends(&json!({ "name": "made", "max_physical_memory": "128", "vcpus": 2 }))
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "name": "x", "max_physical_memory": 1 }), 409, PARAMETERS)
            .bad_body(&json!({ "name": "x", "max_physical_memory": 128, "r": 1 }), 409, PARAMETERS)
            .bad_body(&json!({ "name": "taken", "max_physical_memory": 64 }), 409, "PackageExists"),
        of("GET /packages/:package", 200, "shown"),
        changes(of("POST /packages/:package", 200, "changed").sends(&json!({ "vcpus": 4 })))
            .bad_body(&json!({ "vcpus": 0 }), 409, PARAMETERS)
            .bad_body(&json!({ "name": "other" }), 409, PARAMETERS),
        changes(of("DELETE /packages/:package", 204, "deleted")),
    ]
}

/// Makes a decision, known as `allocation`.
fn an_allocation(request: &Value) -> Sent {
    Sent::new("POST", "/allocate").json(request).keep("id", "allocation")
}

fn placement() -> Vec<Row> {
    let owner = "00000000-0000-4000-8000-0000000000bb";
    let request = json!({
        "image": {}, "nic_tags": ["admin"],
        "vm": { "vm_uuid": owner, "owner_uuid": owner, "ram": 128, "cpu_cap": 100 },
    });
    let mut nowhere = request.clone();
    nowhere["nic_tags"] = json!(["none such"]);
    vec![
        row("POST /allocate", 200)
            .sends(&request)
            .bad_body(&nowhere, 409, "NoAllocatableServersError")
            .bad_body(&json!({ "vm": 7, "image": {}, "nic_tags": [] }), 409, PARAMETERS)
            .bad_body(&json!({ "package": "none such" }), 409, PARAMETERS)
            .bad_query("steps=some", 409, PARAMETERS),
        row("GET /allocations", 200)
            .asks("limit=5")
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("marker=x", 409, PARAMETERS),
        row("GET /allocations/:id", 200)
            .after(an_allocation(&request))
            .at("{id}", "{allocation}")
            .bad_at("{allocation}", "{missing}", 404, NOT_FOUND)
            .bad_at("{allocation}", "nonsense", 404, NOT_FOUND),
        row("POST /allocations/:id/replay", 200)
            .after(an_allocation(&request))
            .at("{id}", "{allocation}")
            .bad_at("{allocation}", "{missing}", 404, NOT_FOUND)
            .bad_body(&json!({ "steps": "some" }), 409, PARAMETERS),
        row("POST /capacity/plan", 200)
            .sends(
                &json!({ "vm": { "owner_uuid": owner, "ram": 128 }, "image": {}, "nic_tags": [] }),
            )
            .bad_json("{", 400, "InvalidContent")
            .bad_body(&json!({ "vm": 7 }), 409, PARAMETERS),
        row("POST /capacity", 200)
            .sends(&json!({ "servers": [["{server_uuid}"]] }))
            .bad_body(&json!({ "servers": ["x"] }), 409, PARAMETERS)
            .bad_body(&json!({ "servers": 7 }), 409, PARAMETERS),
    ]
}
