//! The waitlist.

use serde_json::{Value, json};

use super::row::{Row, Sent, row};

const PARAMETERS: &str = "InvalidParameters";
const NOT_FOUND: &str = "ResourceNotFound";
const TICKETS: &str = "/servers/{server_uuid}/tickets";

fn ticket() -> Value {
    json!({
        "scope": "vm", "id": "{uuid}", "expires_at": "2099-01-01T00:00:00.000Z",
        "action": "start", "extra": { "why": "test" },
    })
}

/// Makes a ticket, known as `ticket_uuid`; the queue is empty, so it is active.
fn a_ticket() -> Sent {
    Sent::new("POST", TICKETS).json(&ticket()).keep("uuid", "ticket_uuid")
}

fn no_tickets() -> Sent {
    Sent::new("DELETE", "/servers/{server_uuid}/tickets?force=true")
}

pub(super) fn rows() -> Vec<Row> {
    let list = row("GET /servers/:server_uuid/tickets", 200).after(a_ticket());
    let of = |route: &'static str, status| {
        row(route, status)
            .after(no_tickets())
            .after(a_ticket())
            .bad_at("{ticket_uuid}", "{missing}", 404, NOT_FOUND)
            .bad_at("{ticket_uuid}", "nonsense", 404, NOT_FOUND)
    };
    let changed = |row: Row| row.bad_header("if-match: \"no such\"", 412, "PreconditionFailed");
    vec![
        list.asks("limit=10&offset=0&attribute=created_at&order=DESC")
            .of_server()
            .bad_query("limit=0", 409, PARAMETERS)
            .bad_query("limit=x", 409, PARAMETERS)
            .bad_query("limit=1001", 409, "InvalidArgument")
            .bad_query("offset=-1", 409, PARAMETERS)
            .bad_query("sort=x", 409, "InvalidArgument"),
        row("POST /servers/:server_uuid/tickets", 202)
            .sends(&ticket())
            .of_server()
            .bad_body(&json!({}), 409, PARAMETERS)
            .bad_body(&json!({ "scope": "vm", "id": "x" }), 409, PARAMETERS)
            .bad_body(&json!({ "scope": 1, "id": "x", "expires_at": "3000" }), 409, PARAMETERS)
            .bad_body(
                &json!({ "scope": "vm", "id": "x", "expires_at": "3000", "extra": "y" }),
                409,
                PARAMETERS,
            )
            .bad_body(
                &json!({ "scope": "vm", "id": "x", "expires_at": "3000", "action": 7 }),
                409,
                PARAMETERS,
            ),
        of("GET /tickets/:ticket_uuid", 200),
        of("POST /tickets/:ticket_uuid", 200),
        of("GET /tickets/:ticket_uuid/wait", 204),
        changed(of("PUT /tickets/:ticket_uuid/release", 204)),
        of("GET /tickets/:ticket_uuid/release", 204),
        changed(of("DELETE /tickets/:ticket_uuid", 204)),
        row("DELETE /servers/:server_uuid/tickets", 204)
            .asks("force=true")
            .of_server()
            .bad_query("", 412, "PreconditionFailed")
            .bad_query("force=yes", 412, "PreconditionFailed"),
    ]
}
