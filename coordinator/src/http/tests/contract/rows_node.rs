//! What a server's agent does beside VMs: boot parameters, ZFS, images, its own software.

use serde_json::{Value, json};

use super::row::{Row, row};

const ARGUMENT: &str = "InvalidArgument";
const PARAMETERS: &str = "InvalidParameters";

pub(super) fn rows() -> Vec<Row> {
    [boot(), node(), zfs()].concat()
}

fn boot() -> Vec<Row> {
    let get = |route: &'static str| row(route, 200);
    let write = |route: &'static str| {
        let body = json!({
            "platform": "20260101T000000Z", "kernel_args": { "a": 1 }, "kernel_flags": { "-k": true },
            "boot_modules": [{ "path": "etc/x", "content": "eA==" }],
        });
        let module = |module: Value| json!({ "boot_modules": [module] });
        let large = "A".repeat(5464);
        row(route, 204)
            .sends(&body)
            .bad_header("if-match: \"no such\"", 412, "PreconditionFailed")
            .bad_body(&json!({ "platform": "20990101T000000Z" }), 409, ARGUMENT)
            .bad_body(&json!({ "platform": "latest" }), 409, ARGUMENT)
            .bad_body(&json!({ "platform": 7 }), 409, PARAMETERS)
            .bad_body(&json!({ "kernel_args": [] }), 409, PARAMETERS)
            .bad_body(&json!({ "kernel_flags": "-k" }), 409, PARAMETERS)
            .bad_body(&module(json!({ "path": "a/../b", "content": "eA==" })), 409, ARGUMENT)
            .bad_body(&module(json!({ "path": "x", "content": "?" })), 409, ARGUMENT)
            .bad_body(&module(json!({ "path": "x" })), 409, ARGUMENT)
            .bad_body(&module(json!({ "path": "x", "content": large })), 409, ARGUMENT)
            .bad_json("{\"platform\":", 400, "InvalidContent")
            .bad_json("[]", 400, "InvalidContent")
    };
    vec![
        get("GET /boot/default").plain(),
        write("PUT /boot/default"),
        write("POST /boot/default"),
        get("GET /boot/:server_uuid").of_server(),
        write("PUT /boot/:server_uuid").of_server(),
        write("POST /boot/:server_uuid").of_server(),
        get("GET /platforms")
            .asks("os=true")
            .bad_query("os=maybe", 409, PARAMETERS)
            .bad_query("sort=x", 409, ARGUMENT),
    ]
}

fn node() -> Vec<Row> {
    let task = |route: &'static str, body: &Value| row(route, 200).sends(body).of_running();
    let recovery = json!({
        "action": "stage", "recovery_uuid": "{missing}", "pivtoken": "x", "template": "t",
        "token": "u",
    });
    let script = json!({ "script": "#!/bin/sh\necho hi", "json": true });
    vec![
        task("POST /servers/:server_uuid/nop", &json!({ "sleep": 0 })),
        task("POST /servers/:server_uuid/install-agent", &json!({ "image_uuid": "{missing}" })),
        task("POST /servers/:server_uuid/nics/update", &json!({ "nics": [] })),
        task("POST /servers/:server_uuid/uninstall-agents", &json!({ "agents": ["x"] })).bad_body(
            &json!({}),
            409,
            PARAMETERS,
        ),
        row("POST /servers/:server_uuid/recovery-config", 200)
            .at("{server_uuid}", "{victim}")
            .sends(&recovery)
            .bad_at("{victim}", "{away}", 409, "ServerNotRunning")
            .bad_body(&json!({}), 412, "PreconditionFailed")
            .bad_body(
                &json!({ "action": "x", "recovery_uuid": "{missing}", "pivtoken": "x" }),
                412,
                "PreconditionFailed",
            ),
        task("POST /servers/:server_uuid/execute", &script)
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "script": "x", "args": {} }), 409, PARAMETERS)
            .bad_body(&json!({ "script": "x", "timeout": "soon" }), 409, PARAMETERS)
            .bad_body(&json!({ "script": "x", "json": "maybe" }), 409, PARAMETERS),
        row("GET /servers/:server_uuid/orphans", 200).of_server(),
        row("GET /servers/:server_uuid/logs", 200)
            .asks("after=0&limit=5&level=warn&task=t&wait=1&max_age=60")
            .of_server()
            .bad_at("{server_uuid}", "{away}", 503, "ServiceUnavailable")
            .bad_query("after=-1", 409, PARAMETERS)
            .bad_query("instance=x", 409, PARAMETERS)
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("level=loud", 409, PARAMETERS)
            .bad_query("task=a%2Fb", 409, PARAMETERS)
            .bad_query("vm=x", 409, PARAMETERS)
            .bad_query("max_age=soon", 409, PARAMETERS)
            .bad_query("wait=31", 409, PARAMETERS),
        task("POST /servers/:server_uuid/orphans/:uuid/adopt", &json!({})),
        row("DELETE /servers/:server_uuid/orphans/:uuid", 200).asks("confirm=x").of_running(),
        row("GET /servers/:server_uuid/images", 200).of_server(),
        row("DELETE /servers/:server_uuid/images/:uuid", 200).of_running().bad_at(
            "{uuid}",
            "nonsense",
            404,
            "ResourceNotFound",
        ),
        row("GET /servers/:server_uuid/images/:uuid", 200).of_server().bad_at(
            "{uuid}",
            "nonsense",
            404,
            "ResourceNotFound",
        ),
    ]
}

fn zfs() -> Vec<Row> {
    let of = |route: &'static str, status| {
        row(route, status).at("{dataset}", "zones%2Fx").of_server().bad_at(
            "{server_uuid}",
            "{away}",
            503,
            "ServiceUnavailable",
        )
    };
    let lacking = |route: &'static str| {
        of(route, 200).bad_at("zones%2Fx", "fail-DatasetNotFound", 404, "DatasetNotFound")
    };
    let snapshot = |route: &'static str| {
        row(route, 204)
            .at("{dataset}", "zones%2Fx")
            .sends(&json!({ "name": "before" }))
            .of_server()
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "name": 7 }), 409, PARAMETERS)
    };
    vec![
        of("GET /servers/:server_uuid/datasets", 200),
        row("POST /servers/:server_uuid/datasets", 204)
            .sends(&json!({ "dataset": "zones/x" }))
            .of_server()
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "dataset": [] }), 409, PARAMETERS),
        of("DELETE /servers/:server_uuid/datasets/:dataset", 204),
        snapshot("POST /servers/:server_uuid/datasets/:dataset/snapshot"),
        snapshot("POST /servers/:server_uuid/datasets/:dataset/rollback"),
        lacking("GET /servers/:server_uuid/datasets/:dataset/snapshots"),
        lacking("GET /servers/:server_uuid/datasets/:dataset/properties"),
        row("POST /servers/:server_uuid/datasets/:dataset/properties", 204)
            .at("{dataset}", "zones%2Fx")
            .sends(&json!({ "properties": { "quota": "1G" } }))
            .of_server()
            .bad_body(&json!({ "properties": "quota" }), 409, PARAMETERS),
        of("GET /servers/:server_uuid/dataset-properties", 200).asks("prop1=quota"),
        of("GET /servers/:server_uuid/zpools", 200),
    ]
}
