//! A request of each operation and its answer, which `docs/api.md` shows. They are recorded from the
//! rows, and compared with what the rows get now: members that come or go, or are of another kind.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::cluster::Cluster;
use super::row::{Good, Row};
use super::rows;

const FILE: &str = "src/http/tests/contract/samples.json";
/// Longer texts are cut.
const MAX_TEXT: usize = 160;
/// Larger answers, of which one sees nothing, are left out.
const MAX_ANSWER: usize = 12 * 1024;

/// What was sent and answered.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::http::tests) struct Sample {
    /// Without its question mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::http::tests) query: Option<String>,
    /// A JSON body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::http::tests) body: Option<Value>,
    /// Lists are cut to their first item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::http::tests) answer: Option<Value>,
}

/// By route.
pub(in crate::http::tests) type Samples = BTreeMap<String, Sample>;

impl Sample {
    fn is_like(&self, other: &Self) -> bool {
        let alike = |a: &Option<Value>, b: &Option<Value>| match (a, b) {
            (Some(a), Some(b)) => is_like(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        self.query == other.query
            && alike(&self.body, &other.body)
            && alike(&self.answer, &other.answer)
    }
}

/// Plays the good request of every row.
async fn played() -> Samples {
    let mut cluster = Cluster::start().await;
    let mut samples = Samples::new();
    for row in rows() {
        for sent in &row.before {
            let answer = cluster.send(sent).await;
            cluster.remember(sent, &answer);
        }
        // What was begun before has ended.
        cluster.records().await;
        if let Good::Answers(status) = row.good {
            let answer = cluster.send(&row.sent).await;
            assert_eq!(answer.status, status, "{}: {}", row.route, answer.text());
            let is_json =
                answer.headers.get("content-type").is_some_and(|t| t == "application/json");
            let answer = is_json.then(|| cut(&answer.value())).filter(says_something);
            samples.insert(row.route.to_owned(), sample(&cluster, &row, answer));
        }
    }
    cluster.stop().await;
    samples
}

fn sample(cluster: &Cluster, row: &Row, answer: Option<Value>) -> Sample {
    let query = row.sent.path.split_once('?').map(|(_, query)| cluster.filled(query));
    let is_json = row.sent.headers.iter().any(|header| header == "content-type: application/json");
    let body = std::str::from_utf8(&row.sent.body).ok().filter(|_| is_json);
    let body = body.and_then(|body| serde_json::from_str(&cluster.filled(body)).ok());
    Sample { query, body, answer }
}

fn says_something(answer: &Value) -> bool {
    let empty = match answer {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        other => other.is_null(),
    };
    !empty && answer.to_string().len() <= MAX_ANSWER
}

/// An answer with the first item of each list, the first entry of each table by uuid, and no long
/// text.
fn cut(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().take(1).map(cut).collect()),
        Value::Object(members) => {
            let by_uuid = !members.is_empty() && members.keys().all(|key| is_uuid(key));
            let most = if by_uuid { 1 } else { members.len() };
            members.iter().take(most).map(|(name, value)| (name.clone(), cut(value))).collect()
        }
        Value::String(text) if text.chars().count() > MAX_TEXT => {
            text.chars().take(MAX_TEXT).chain(['…']).collect::<String>().into()
        }
        other => other.clone(),
    }
}

fn is_uuid(text: &str) -> bool {
    text.parse::<Uuid>().is_ok()
}

/// Whether both have the same members, of the same kinds. Nothing is said of what is null or empty.
fn is_like(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Null, _) | (_, Value::Null) => true,
        (Value::Object(a), Value::Object(b)) => objects_alike(a, b),
        (Value::Array(a), Value::Array(b)) => match (a.first(), b.first()) {
            (Some(a), Some(b)) => is_like(a, b),
            _ => true,
        },
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

fn objects_alike(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    match (a.iter().next(), b.iter().next()) {
        (Some((id, a)), Some((other, b))) if is_uuid(id) && is_uuid(other) => is_like(a, b),
        _ => {
            let same = |(name, a)| b.get(name).is_some_and(|b| is_like(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
    }
}

/// The recorded samples, which are like what is answered now. `MUSTER_WRITE_DOCS=1` records those
/// anew that are not.
pub(in crate::http::tests) async fn recorded() -> Samples {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
    let mut old: Samples = serde_json::from_str(&text).expect("samples");
    let mut now = played().await;
    let differ: Vec<String> = now
        .iter()
        .filter(|(route, sample)| !old.get(*route).is_some_and(|old| old.is_like(sample)))
        .map(|(route, _)| route.clone())
        .collect();
    if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
        for (route, sample) in &mut now {
            if !differ.contains(route) {
                *sample = old.remove(route).expect("it is like the old one");
            }
        }
        let text = serde_json::to_string_pretty(&now).expect("samples");
        std::fs::write(&path, text + "\n").unwrap();
        return now;
    }
    assert!(differ.is_empty(), "{FILE} is out of date: run `make docs`: {differ:#?}");
    let gone: Vec<_> = old.keys().filter(|route| !now.contains_key(*route)).collect();
    assert!(gone.is_empty(), "{FILE} is out of date: run `make docs`: no more {gone:#?}");
    old
}

#[test]
fn samples_differ_when_members_do() {
    let like = |a: &str, b: &str| {
        let [a, b] = [a, b].map(|text| serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(is_like(&a, &b), is_like(&b, &a));
        is_like(&a, &b)
    };
    assert!(like(r#"{"a":1,"b":[{"c":"x"}]}"#, r#"{"a":2,"b":[{"c":"y"}, 7]}"#));
    assert!(like(r#"{"a":null,"b":[]}"#, r#"{"a":2,"b":["y"]}"#));
    assert!(!like(r#"{"a":1}"#, r#"{"a":"1"}"#));
    assert!(!like(r#"{"a":1}"#, r#"{"a":1,"b":1}"#));
    assert!(!like(r#"{"a":{"b":[{"c":1}]}}"#, r#"{"a":{"b":[{"d":1}]}}"#));
    let by_id = |n: u128, member: &str| format!("{{\"{}\":{{{member}:1}}}}", Uuid::from_u128(n));
    assert!(like(&by_id(1, "\"a\""), &by_id(2, "\"a\"")));
    assert!(!like(&by_id(1, "\"a\""), &by_id(2, "\"b\"")));
}

#[test]
fn samples_are_cut() {
    let all = serde_json::json!({ "list": [1, 2], "text": "x".repeat(500) });
    let cut = cut(&all);
    assert_eq!(cut["list"], serde_json::json!([1]));
    assert_eq!(cut["text"].as_str().map(|text| text.chars().count()), Some(MAX_TEXT + 1));
}
