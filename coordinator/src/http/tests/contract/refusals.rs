//! Refusals that every route owes, tried on all of them: wrong values, tickets that are not active,
//! bodies beyond the limits. None of them changes a record or reaches an agent.

use serde_json::{Map, Value, json};

use super::super::super::params::{MAX_DEPTH, MAX_STRING_BYTES};
use super::super::super::route::{BodyRule, Route};
use super::super::resolved;
use super::cluster::Cluster;
use super::row::{Row, Sent};
use super::{Contract, rows};

/// Parameters that stay tolerated whatever they are, and why; `*`: all of the operation.
const TOLERATED: &[(&str, &str, &str)] = &[
    ("TaskWait", "timeout", "unparsable: an hour"),
    ("ServerWaitlistTicketsWait", "timeout", "the reference has none and ignores it"),
    ("ServerList", "offset", "any integer"),
    ("VmSnapshotCreate", "snapshot_name", "the task refuses it, as in the reference"),
    ("VmLoad", "include_dni", "any other text is false"),
    ("ServerEventStatusUpdate", "*", "nothing is validated"),
];

fn operation<'a>(contract: &'a Contract, route: &Route) -> &'a Value {
    let path = super::openapi::path_template(route.pattern);
    &contract.document["paths"][path][route.method.as_str().to_ascii_lowercase()]
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

/// Values that are not of the schema's type, or beyond its bounds; none, when anything goes.
fn wrong(contract: &Contract, schema: &Value) -> Vec<Value> {
    let checker = contract.checker(schema);
    let is_wrong = |value: &Value| !checker.faults("", value).is_empty();
    let of_another_type = [json!({ "x": { "y": 1 } }), json!([[1]]), json!(7)];
    let number = |keyword: &str, step: i64| schema[keyword].as_i64().map(|n| json!(n + step));
    let long = schema["maxLength"].as_u64().and_then(|most| usize::try_from(most).ok());
    // Longer texts are refused as such, wherever they are.
    let long = long.filter(|most| *most <= MAX_STRING_BYTES);
    let words = || schema["enum"].is_array().then(|| json!("no such word"));
    let beyond = [
        number("minimum", -1),
        number("maximum", 1),
        long.map(|most| json!("x".repeat(most + 1))),
        words(),
        schema["pattern"].is_string().then(|| json!(" ? ")),
    ];
    let type_fault = of_another_type.into_iter().find(is_wrong);
    type_fault.into_iter().chain(beyond.into_iter().flatten().filter(is_wrong)).collect()
}

fn body_of(row: &Row) -> Map<String, Value> {
    match serde_json::from_slice(&row.sent.body) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

fn with_body(row: &Row, name: &str, value: Value) -> Sent {
    let mut body = body_of(row);
    body.insert(name.to_owned(), value);
    let mut headers = row.sent.headers.clone();
    headers.retain(|header| !header.starts_with("content-type"));
    Sent { headers, ..row.sent.clone() }.json(&Value::Object(body))
}

/// Text where the value is text or a number, else what brackets make of it.
fn with_query(row: &Row, name: &str, value: &Value) -> Sent {
    let (path, query) = row.sent.path.split_once('?').unwrap_or((&row.sent.path, ""));
    let others = query.split('&').filter(|pair| pair.split('=').next() != Some(name));
    let member = match value {
        Value::String(text) => format!("{name}={}", text.replace(' ', "%20").replace('?', "%3F")),
        Value::Number(number) => format!("{name}={number}"),
        _ => format!("{name}[x][y]=1"),
    };
    let query: Vec<&str> =
        others.chain([member.as_str()]).filter(|pair| !pair.is_empty()).collect();
    let query = query.join("&");
    Sent { path: format!("{path}?{query}"), ..row.sent.clone() }
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
async fn a_wrong_value_is_refused_by_the_parameter_s_name() {
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
            let of = |op: &str| op == route.operation;
            if TOLERATED.iter().any(|(op, param, _)| of(op) && [name, "*"].contains(param)) {
                continue;
            }
            for value in wrong(&contract, schema) {
                // After the end of every list is no error, and texts in a query may be longer than
                // documented.
                let far = name == "offset" && value.as_u64().is_some_and(|n| n > 1_000_000);
                let long = value.as_str().is_some_and(|text| in_query && text.len() > 100);
                if far || long {
                    continue;
                }
                let case = value.to_string().chars().take(60).collect::<String>();
                let sent = if in_query {
                    with_query(&row, name, &value)
                } else {
                    with_body(&row, name, value)
                };
                tried += 1;
                let answer = cluster.send(&sent).await;
                let refused = (400..500).contains(&answer.status);
                if !refused || !names(&answer.value(), name) {
                    let (status, text) = (answer.status, answer.text());
                    findings.push(format!("{} {name} {case}: {status} {text}", row.route));
                }
            }
        }
        if cluster.records().await != before || cluster.received_of_server() != received {
            findings.push(format!("{}: a wrong value changed something", row.route));
        }
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    assert!(tried > 600, "only {tried} parameters were tried");
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
            let case = format!("{} under {ticket}: {}", row.route, answer.text());
            assert_eq!(answer.status, 409, "{case}");
            assert_eq!(answer.value()["code"], "TicketNotActive", "{case}");
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
