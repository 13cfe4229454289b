//! Refusals that every route owes, tried on all of them: wrong types, tickets that are not active,
//! bodies beyond the limits. None of them changes a record or reaches an agent.

use serde_json::{Map, Value, json};

use super::super::super::params::{MAX_DEPTH, MAX_STRING_BYTES};
use super::super::super::route::{BodyRule, Route};
use super::cluster::Cluster;
use super::row::{Row, Sent};
use super::{Contract, rows};
use muster_shared::json_schema;

/// Parameters that stay tolerated whatever their type, and why.
const TOLERATED: &[(&str, &str, &str)] = &[
    ("TaskWait", "timeout", "unparsable: an hour (cnapi.md 10.3)"),
    ("ServerWaitlistTicketsWait", "timeout", "the reference has none and ignores it"),
    ("VmLoad", "include_dni", "any other text is false (cnapi.md 11)"),
    ("VmInfo", "info", "checked"),
];

fn operation<'a>(contract: &'a Contract, route: &Route) -> &'a Value {
    let path = super::openapi::path_template(route.pattern);
    &contract.document["paths"][path][route.method.as_str().to_ascii_lowercase()]
}

fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => value,
    }
}

/// Members of a route's query and body with their schemas; true: of the query.
fn members<'a>(contract: &'a Contract, route: &Route) -> Vec<(bool, &'a str, &'a Value)> {
    let document = &contract.document;
    let operation = operation(contract, route);
    let mut all = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let parameter = resolved(document, parameter);
        if parameter["in"] == "query" {
            all.push((true, parameter["name"].as_str().unwrap(), &parameter["schema"]));
        }
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    let payloads = body["allOf"].as_array().into_iter().flatten();
    for object in std::iter::once(body).chain(payloads.map(|one| resolved(document, one))) {
        for (name, schema) in object["properties"].as_object().into_iter().flatten() {
            all.push((false, name.as_str(), schema));
        }
    }
    all
}

/// A value that is not of the schema's type; none, when anything goes.
fn wrong(document: &Value, schema: &Value) -> Option<Value> {
    let candidates = [json!({ "x": { "y": 1 } }), json!([[1]]), json!(7)];
    let is_wrong = |value: &Value| !json_schema::faults(document, schema, value).is_empty();
    candidates.into_iter().find(is_wrong)
}

fn body_of(row: &Row) -> Map<String, Value> {
    match serde_json::from_slice(&row.sent.body) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

fn with_body(row: &Row, body: Map<String, Value>) -> Sent {
    let mut headers = row.sent.headers.clone();
    headers.retain(|header| !header.starts_with("content-type"));
    Sent { headers, ..row.sent.clone() }.json(&Value::Object(body))
}

fn names(answer: &Value, name: &str) -> bool {
    let named = |error: &Value| {
        let field = error["field"].as_str().unwrap_or_default();
        field == name || field.starts_with(&format!("{name}."))
    };
    answer["errors"].as_array().is_some_and(|errors| errors.iter().any(named))
        || answer["message"].as_str().is_some_and(|message| message.contains(name))
}

async fn prepare(cluster: &mut Cluster, row: &Row) {
    for sent in &row.before {
        let answer = cluster.send(sent).await;
        assert!(answer.status < 300, "{}: {}", row.route, answer.text());
        cluster.remember(sent, &answer);
    }
}

#[tokio::test]
async fn a_wrong_type_is_refused_by_the_parameter_s_name() {
    let mut cluster = Cluster::start().await;
    let contract = Contract::new();
    let mut findings = Vec::new();
    let mut tried = 0;
    for row in rows() {
        let route = &contract.routes[row.route];
        prepare(&mut cluster, &row).await;
        let before = cluster.records().await;
        let received = cluster.received_of_server();
        for (in_query, name, schema) in members(&contract, route) {
            let Some(value) = wrong(&contract.document, schema) else { continue };
            if TOLERATED.iter().any(|(op, param, _)| (*op, *param) == (route.operation, name)) {
                continue;
            }
            let sent = if in_query {
                let path = row.sent.path.split('?').next().unwrap_or_default();
                Sent { path: format!("{path}?{name}[x][y]=1"), ..row.sent.clone() }
            } else {
                let mut body = body_of(&row);
                body.insert(name.to_owned(), value);
                with_body(&row, body)
            };
            tried += 1;
            let answer = cluster.send(&sent).await;
            let refused = (400..500).contains(&answer.status);
            if !refused || !names(&answer.value(), name) {
                findings.push(format!("{} {name}: {} {}", row.route, answer.status, answer.text()));
            }
        }
        if cluster.records().await != before || cluster.received_of_server() != received {
            findings.push(format!("{}: a wrong type changed something", row.route));
        }
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    assert!(tried > 300, "only {tried} parameters were tried");
    cluster.stop().await;
}

#[tokio::test]
async fn nothing_is_started_under_a_ticket_that_is_not_active() {
    let mut cluster = Cluster::start().await;
    let contract = Contract::new();
    let ticket = json!({ "scope": "vm", "id": "fence", "expires_at": "2099-01-01T00:00:00.000Z" });
    let create = |name| {
        let sent = Sent::new("POST", "/servers/default/tickets").json(&ticket);
        sent.keep("uuid", name)
    };
    for name in ["finished", "active", "queued"] {
        let sent = create(name);
        let answer = cluster.send(&sent).await;
        cluster.remember(&sent, &answer);
        if name == "finished" {
            let release = Sent::new("PUT", "/tickets/{finished}/release");
            assert_eq!(cluster.send(&release).await.status, 204);
        }
    }
    let mut started = 0;
    for row in rows().iter().filter(|row| contract.routes[row.route].fenced) {
        prepare(&mut cluster, row).await;
        let before = cluster.records().await;
        let received = cluster.received.lock().clone();
        for ticket in ["{finished}", "{queued}", "{missing}", "nonsense"] {
            let mut sent = row.sent.clone();
            sent.headers.push(format!("x-muster-ticket: {ticket}"));
            let answer = cluster.send(&sent).await;
            let told = format!("{} under {ticket}: {}", row.route, answer.text());
            assert_eq!(answer.status, 409, "{told}");
            assert_eq!(answer.value()["code"], "TicketNotActive", "{told}");
        }
        assert_eq!(*cluster.received.lock(), received, "{}", row.route);
        assert_eq!(cluster.records().await, before, "{}", row.route);
        started += 1;
    }
    assert!(started > 40, "only {started} routes start something");
    let jobs = cluster.send(&Sent::new("GET", "/jobs")).await;
    assert_eq!(jobs.value(), json!([]));
    // The holder of the active one may.
    let mut sent = Sent::new("POST", "/servers/{server_uuid}/nop").json(&json!({}));
    sent.headers.push("x-muster-ticket: {active}".to_owned());
    let sent = sent.keep("id", "taskid");
    let answer = cluster.send(&sent).await;
    cluster.remember(&sent, &answer);
    let task = cluster.send(&Sent::new("GET", "/tasks/{taskid}")).await.value();
    assert_eq!(task["ticket_uuid"], cluster.name("active"));
    cluster.stop().await;
}

/// Without a member of the body that has this name already.
fn odd(value: &Value) -> Value {
    json!({ "unheard_of": value })
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!(1), |inner, _| json!([inner]))
}

#[tokio::test]
async fn deep_long_and_large_bodies_are_refused_by_every_route() {
    let cluster = Cluster::start().await;
    let contract = Contract::new();
    let before = cluster.records().await;
    let mut tried = 0;
    for row in rows() {
        let route = &contract.routes[row.route];
        let BodyRule::Params(limit) = route.body else { continue };
        if route.method == http::Method::GET {
            continue;
        }
        tried += 1;
        let send = |body: Vec<u8>| {
            let mut sent = Sent { headers: Vec::new(), ..row.sent.clone() }.json(&Value::Null);
            sent.body = body;
            let cluster = &cluster;
            async move { cluster.send(&sent).await }
        };
        // A body is an object, so its members are one level down.
        let deep = odd(&nested(MAX_DEPTH)).to_string();
        send(deep.into_bytes()).await.expect(400, "InvalidContent");
        let long = odd(&json!("x".repeat(MAX_STRING_BYTES + 1))).to_string();
        send(long.into_bytes()).await.expect(400, "InvalidContent");
        let mut large = b"{}".to_vec();
        large.resize(limit + 1, b' ');
        let answer = send(large).await;
        answer.expect(413, "RequestEntityTooLarge");
        assert_eq!(contract.fault(route, &answer), None, "{}", row.route);
    }
    assert!(tried > 50, "only {tried} routes take a body");
    assert_eq!(cluster.records().await, before);
    // What is just within the limits is read, scripts and metadata beyond that of a string.
    let tickets = "/servers/default/tickets";
    let ticket = json!({ "scope": "vm", "id": "x", "expires_at": "3000" });
    for (name, value, read) in [
        ("more", nested(MAX_DEPTH - 1), true),
        ("more", nested(MAX_DEPTH), false),
        ("more", json!("x".repeat(MAX_STRING_BYTES)), true),
        ("script", json!("x".repeat(MAX_STRING_BYTES + 1)), true),
        ("customer_metadata", json!({ "a": "x".repeat(MAX_STRING_BYTES + 1) }), true),
        ("set_internal_metadata", json!({ "a": "x".repeat(MAX_STRING_BYTES + 1) }), true),
    ] {
        let mut body = ticket.clone();
        body[name] = value;
        let answer = cluster.send(&Sent::new("POST", tickets).json(&body)).await;
        assert_eq!(answer.status == 202, read, "{name}: {}", answer.text());
    }
    cluster.stop().await;
}
