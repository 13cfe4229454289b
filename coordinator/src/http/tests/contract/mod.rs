//! Every endpoint of the route table: what a good request gets, its body against the OpenAPI
//! schema, and what bad requests get, which change nothing.
//!
//! A route without a row fails [`every_route_has_a_row`]; a row needs two bad requests.

mod agent;
mod bytes;
mod cluster;
mod daggers;
mod dropped;
mod errors;
mod refusals;
mod row;
mod rows_jobs;
mod rows_node;
mod rows_rest;
mod rows_servers;
mod rows_tickets;
mod rows_vms;
mod samples;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::Cluster;
use parking_lot::Mutex;
use row::{Good, Row, Sent};
use serde_json::Value;

use super::super::openapi;
use super::super::route::{Reply, Route};
use super::super::schema::Checker;
use super::{Answer, table};

pub(super) use samples::{Sample, Samples, recorded};

fn rows() -> Vec<Row> {
    [
        rows_tickets::rows(),
        rows_vms::rows(),
        rows_node::rows(),
        rows_rest::rows(),
        rows_jobs::rows(),
        rows_servers::rows(),
    ]
    .concat()
}

fn name(route: &Route) -> String {
    format!("{} {}", route.method, route.pattern)
}

#[test]
fn every_route_has_a_row() {
    let mut seen = BTreeSet::new();
    for row in rows() {
        assert!(seen.insert(row.route), "{} has two rows", row.route);
        assert!(row.bad.len() >= 2, "{} needs two bad requests", row.route);
        if let Good::Elsewhere(reason) = row.good {
            assert!(!reason.is_empty(), "{} says no reason", row.route);
        }
    }
    let routes: BTreeSet<String> = table().iter().map(name).collect();
    let rows: BTreeSet<String> = seen.into_iter().map(str::to_owned).collect();
    let missing: Vec<_> = routes.difference(&rows).collect();
    let strange: Vec<_> = rows.difference(&routes).collect();
    assert!(
        missing.is_empty() && strange.is_empty(),
        "no row: {missing:#?}, no route: {strange:#?}"
    );
}

/// The document, and what its bodies are checked with.
struct Contract {
    document: Value,
    routes: BTreeMap<String, Route>,
    /// By the schema's text.
    checkers: Mutex<BTreeMap<String, Arc<Checker>>>,
}

impl Contract {
    fn new() -> Self {
        let routes: Vec<Route> = table();
        let document = openapi::document(routes.iter());
        let routes = routes.into_iter().map(|route| (name(&route), route)).collect();
        Self { document, routes, checkers: Mutex::default() }
    }

    fn checker(&self, schema: &Value) -> Arc<Checker> {
        let compile = || Arc::new(Checker::new(&self.document, schema).unwrap());
        Arc::clone(self.checkers.lock().entry(schema.to_string()).or_insert_with(compile))
    }

    /// What is wrong with a body of an answer, if anything.
    fn fault(&self, route: &Route, answer: &Answer) -> Option<String> {
        let path = openapi::path_template(route.pattern);
        let method = route.method.as_str().to_ascii_lowercase();
        let operation = &self.document["paths"][path][method];
        let declared = &operation["responses"][answer.status.to_string()];
        if !declared.is_object() {
            return Some(format!("{} is not declared", answer.status));
        }
        let schema = &declared["content"]["application/json"]["schema"];
        if !schema.is_object() {
            let json = answer.headers.get("content-type").is_some_and(|t| t == "application/json");
            return (json && !answer.body.is_empty()).then(|| "a body is not declared".to_owned());
        }
        let body: Value = match serde_json::from_slice(&answer.body) {
            Ok(body) => body,
            Err(error) => return Some(format!("no JSON: {error}")),
        };
        let faults = self.checker(schema).faults("", &body);
        (!faults.is_empty()).then(|| format!("{faults:?} in {body}"))
    }
}

/// Plays one row; every finding is a line.
async fn play(cluster: &mut Cluster, contract: &Contract, row: &Row) -> Vec<String> {
    let Some(route) = contract.routes.get(row.route) else {
        return vec![format!("{}: no such route", row.route)];
    };
    let mut findings = Vec::new();
    for sent in &row.before {
        let answer = cluster.send(sent).await;
        if answer.status >= 300 {
            findings.push(format!("{}: preparation: {}", row.route, answer.text()));
        }
        cluster.remember(sent, &answer);
    }
    let before = cluster.records().await;
    for bad in &row.bad {
        let answer = cluster.send(&bad.sent).await;
        let code = answer.value()["code"].as_str().unwrap_or_default().to_owned();
        let case = format!("{} {}: {} {code}", row.route, bad.sent, answer.status);
        if (answer.status, code.as_str()) != (bad.status, bad.code) {
            findings.push(format!("{case}, not {} {}: {}", bad.status, bad.code, answer.text()));
        }
        // Another method than the route's is not the route's own answer.
        let own = bad.sent.method == route.method.as_str() && answer.status != 405;
        findings
            .extend(contract.fault(route, &answer).filter(|_| own).map(|f| format!("{case} {f}")));
    }
    let after = cluster.records().await;
    if after != before {
        let changed = after.iter().filter(|record| !before.contains(record));
        let gone = before.iter().filter(|record| !after.contains(record));
        let keys: BTreeSet<_> = changed.chain(gone).map(|record| record.key.as_str()).collect();
        findings.push(format!("{}: a bad request changed records: {keys:?}", row.route));
    }
    let Good::Answers(status) = row.good else { return findings };
    let answer = cluster.send(&row.sent).await;
    if answer.status != status {
        findings.push(format!("{}: {} {}", row.route, answer.status, answer.text()));
    } else if status != route.success.as_u16() {
        findings.push(format!("{}: {status} is not its declared success", row.route));
    }
    findings.extend(contract.fault(route, &answer).map(|f| format!("{}: {f}", row.route)));
    if matches!(route.reply, Reply::Empty) && !answer.body.is_empty() {
        findings.push(format!("{}: a body: {}", row.route, answer.text()));
    }
    findings
}

#[tokio::test]
async fn every_route_answers_as_declared() {
    let mut cluster = Cluster::start().await;
    let contract = Contract::new();
    let mut findings = Vec::new();
    for row in rows() {
        findings.extend(play(&mut cluster, &contract, &row).await);
    }
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    cluster.stop().await;
}

/// HEAD of every GET has its status and no body; other methods than a path's get 405.
#[tokio::test]
async fn head_and_foreign_methods_follow_from_the_table() {
    let cluster = Cluster::start().await;
    let contract = Contract::new();
    for row in rows() {
        let route = &contract.routes[row.route];
        let foreign = Sent { method: "PATCH", ..row.sent.clone() };
        let answer = cluster.send(&foreign).await;
        answer.expect(405, "MethodNotAllowedError");
        let allow: Vec<String> = answer.headers["allow"].split(", ").map(str::to_owned).collect();
        assert!(allow.contains(&route.method.to_string()), "{}: {allow:?}", row.route);
        if route.method == http::Method::GET && route.alias == Some(true) {
            let head = cluster.send(&Sent { method: "HEAD", ..row.sent.clone() }).await;
            assert_eq!(head.status, 405, "{}", row.route);
        }
    }
    cluster.stop().await;
}
