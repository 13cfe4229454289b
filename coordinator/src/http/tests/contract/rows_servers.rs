//! `/servers`, without their VMs.

use serde_json::json;

use super::row::{Row, row};

const ARGUMENT: &str = "InvalidArgument";
const PARAMETERS: &str = "InvalidParameters";

pub(super) fn rows() -> Vec<Row> {
    let sysinfo = json!({ "sysinfo": { "UUID": "{server_uuid}", "Hostname": "x" } });
    let image = json!({ "image_uuid": "{missing}" });
    [
        records(),
        vec![
            row("POST /servers/:server_uuid/sysinfo", 200)
                .sends(&sysinfo)
                .bad_at("{server_uuid}", "nonsense", 409, ARGUMENT)
                .bad_at("{server_uuid}", "default", 409, ARGUMENT)
                .bad_at("{server_uuid}/sysinfo", "{victim}/sysinfo", 409, ARGUMENT)
                .bad_body(&json!({}), 409, PARAMETERS)
                .bad_body(&json!({ "sysinfo": [] }), 409, PARAMETERS)
                .bad_body(&json!({ "sysinfo": { "UUID": "x" } }), 409, ARGUMENT)
                .bad_body(&json!({ "sysinfo": {}, "more": 1 }), 409, ARGUMENT),
            row("POST /servers/:server_uuid/sysinfo-refresh", 200)
                .of_running()
                .bad_query("x=1", 409, ARGUMENT),
            row("POST /servers/:server_uuid/events/heartbeat", 204)
                .bad_at("{server_uuid}", "nonsense", 409, ARGUMENT)
                .bad_query("x=1", 409, ARGUMENT),
            row("POST /servers/:server_uuid/events/status", 204)
                .sends(&json!({ "meminfo": { "total_bytes": 8_589_934_592_u64 } }))
                .of_server()
                .bad_json("[1]", 400, "InvalidContent"),
            row("GET /servers/:server_uuid/task-history", 200)
                .of_server()
                .bad_at("{server_uuid}", "{away}", 503, "ServiceUnavailable")
                .bad_query("limit=1", 409, ARGUMENT),
        ],
        pausing(),
        vec![
            row("POST /servers/:server_uuid/ensure-image", 200)
                .sends(&image)
                .of_running()
                .bad_body(&json!({}), 409, PARAMETERS)
                .bad_body(&json!({ "image_uuid": 7 }), 409, PARAMETERS)
                .bad_body(&json!({ "image_uuid": "x", "more": 1 }), 409, ARGUMENT),
            row("GET /servers/:server_uuid/ensure-image", 200)
                .asks("image_uuid={missing}")
                .bad_query("", 409, PARAMETERS)
                .bad_query("image_uuid=a&image_uuid=b", 409, PARAMETERS)
                .bad_query("image_uuid=a&x=1", 409, ARGUMENT),
            row("DELETE /servers/:server_uuid", 204)
                .at("{server_uuid}", "{victim}")
                .bad_header("if-match: \"0.0\"", 412, "PreconditionFailed")
                .bad_query("force=true", 409, ARGUMENT)
                .bad_at("{victim}", "default", 409, ARGUMENT)
                .bad_at("{victim}", "{missing}", 404, "ResourceNotFound"),
        ],
    ]
    .concat()
}

fn records() -> Vec<Row> {
    let update = json!({ "comments": "rack 7", "reservation_ratio": "0.2", "etag_retries": "3" });
    vec![
        row("GET /servers", 200)
            .asks("extras=all&setup=true&limit=10")
            .bad_query("limit=0", 400, PARAMETERS)
            .bad_query("limit=1001", 400, PARAMETERS)
            .bad_query("limit=x", 409, PARAMETERS)
            .bad_query("limit=5&limit=6", 409, PARAMETERS)
            .bad_query("offset=1.5", 409, PARAMETERS)
            .bad_query("setup=yes", 409, PARAMETERS)
            .bad_query("setup=true&setup=false", 409, PARAMETERS)
            .bad_query("uuids=a,,b", 409, PARAMETERS)
            .bad_query("extras=a-b", 409, PARAMETERS)
            .bad_query("fields=", 409, PARAMETERS)
            .bad_query("hostname=%20x", 409, PARAMETERS)
            .bad_query("sort=x", 409, ARGUMENT)
            .bad_query("a=%ff", 400, "InvalidContent"),
        row("GET /servers/:server_uuid", 200).of_server().bad_query("extras=vms", 409, ARGUMENT),
        row("POST /servers/:server_uuid", 204)
            .sends(&update)
            .of_server()
            .bad_at("{server_uuid}", "default", 409, ARGUMENT)
            .bad_header("if-match: \"0.0\"", 412, "PreconditionFailed")
            .bad_header("if-match: W/\"1.1\"", 412, "PreconditionFailed")
            .bad_body(&json!({ "hostname": "x" }), 409, ARGUMENT)
            .bad_body(&json!({ "uuid": "x" }), 409, ARGUMENT)
            .bad_body(&json!({ "kernel_flags": {} }), 409, ARGUMENT)
            .bad_body(&json!({ "comments": 7 }), 409, PARAMETERS)
            .bad_body(&json!({ "comments": " x" }), 409, PARAMETERS)
            .bad_body(&json!({ "comments": null }), 409, PARAMETERS)
            .bad_body(&json!({ "traits": [] }), 409, PARAMETERS)
            .bad_body(&json!({ "agents": {} }), 409, PARAMETERS)
            .bad_body(&json!({ "reserved": "true" }), 409, PARAMETERS)
            .bad_body(&json!({ "reservation_ratio": "lots" }), 409, PARAMETERS)
            .bad_body(&json!({ "reservation_ratio": "Infinity" }), 409, PARAMETERS)
            .bad_body(&json!({ "etag_retries": {} }), 409, PARAMETERS)
            .bad_body(&json!({ "next_reboot": "garbage" }), 409, ARGUMENT)
            .bad_body(&json!({ "next_reboot": "2026-01-01T00:00:00Z" }), 409, ARGUMENT)
            .bad_body(&json!({ "transitional_status": "sleeping" }), 409, ARGUMENT)
            .bad_body(&json!({ "overprovision_ratios": { "gpu": 1 } }), 409, ARGUMENT)
            .bad_body(&json!({ "overprovision_ratios": { "ram": "1" } }), 409, ARGUMENT)
            .bad_body(&json!({ "overprovision_ratios": { "ram": -1 } }), 409, ARGUMENT)
            .bad_body(&json!({ "comments": "x".repeat(70_000) }), 400, "InvalidContent")
            .bad_json("{\"comments\":", 400, "InvalidContent")
            .bad_json("[]", 400, "InvalidContent")
            .bad_json("\"x\"", 400, "InvalidContent"),
    ]
}

fn pausing() -> Vec<Row> {
    let pause = |route| row(route, 204).at("{server_uuid}", "{victim}");
    [
        "POST /servers/:server_uuid/cn-agent/pause",
        "GET /servers/:server_uuid/cn-agent/pause",
        "POST /servers/:server_uuid/cn-agent/resume",
        "GET /servers/:server_uuid/cn-agent/resume",
    ]
    .map(|route| {
        pause(route).bad_at("{victim}", "nonsense", 409, ARGUMENT).bad_at(
            "{victim}",
            "{away}",
            409,
            "ServerNotRunning",
        )
    })
    .to_vec()
}
