//! Jobs, on the server that nothing else needs, and the stream of events.

use serde_json::json;

use super::row::{Row, Sent, row};

const ARGUMENT: &str = "InvalidArgument";
const PARAMETERS: &str = "InvalidParameters";
const NICS: &str = "/servers/{victim}/nics";

/// Starts a job, known as `job_uuid`.
fn a_job() -> Sent {
    let body = json!({ "action": "update", "nics": [] });
    Sent::new("PUT", NICS).json(&body).keep("job_uuid", "job_uuid")
}

fn set_up(setup: bool) -> Sent {
    Sent::new("POST", "/servers/{victim}").json(&json!({ "setup": setup }))
}

pub(super) fn rows() -> Vec<Row> {
    let of = |route: &'static str| {
        row(route, 202)
            .at("{server_uuid}", "{victim}")
            .bad_at("{victim}", "nonsense", 409, ARGUMENT)
            .bad_at("{victim}", "default", 409, ARGUMENT)
            .bad_at("{victim}", "{missing}", 404, "ResourceNotFound")
            .bad_at("{victim}", "{away}", 409, "ServerNotRunning")
    };
    vec![
        row("GET /events", 200)
            .asks("kind=server,task")
            .bad_query("kind=weather", 409, PARAMETERS)
            .bad_query("server_uuid=x", 409, PARAMETERS)
            .bad_query("last_event_id=x", 409, PARAMETERS),
        row("GET /jobs", 200)
            .after(a_job())
            .asks("server_uuid={victim}&limit=1")
            .bad_query("limit=x", 409, PARAMETERS)
            .bad_query("server_uuid=x", 409, PARAMETERS),
        row("GET /jobs/:job_uuid", 200)
            .after(a_job())
            .bad_at("{job_uuid}", "{missing}", 404, "ResourceNotFound")
            .bad_at("{job_uuid}", "nonsense", 404, "ResourceNotFound"),
        of("PUT /servers/:server_uuid/nics")
            .sends(&json!({ "action": "replace", "nics": [] }))
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "action": "burn", "nics": [] }), 409, PARAMETERS)
            .bad_body(&json!({ "action": "update", "nics": {} }), 409, PARAMETERS),
        of("PUT /servers/:server_uuid/factory-reset")
            .bad_query("force=true", 409, ARGUMENT)
            .bad_body(&json!({ "origin": 7 }), 409, PARAMETERS),
        of("POST /servers/:server_uuid/reboot")
            .sends(&json!({ "drain": false }))
            .bad_body(&json!({ "drain": "yes" }), 409, PARAMETERS)
            .bad_body(&json!({ "force": true }), 409, ARGUMENT),
        of("PUT /servers/:server_uuid/setup")
            .after(set_up(false))
            .sends(&json!({ "hostname": "new" }))
            .bad_body(&json!({ "disk_layout": "raidz9" }), 409, ARGUMENT)
            .bad_body(&json!({ "disk_spares": -1 }), 409, PARAMETERS)
            .bad_body(&json!({ "disk_cache": "maybe" }), 409, PARAMETERS)
            .bad_body(&json!({ "nics": {} }), 409, PARAMETERS)
            .bad_body(&json!({ "more": 1 }), 409, ARGUMENT),
    ]
}
