//! `docs/api.md`, written from the OpenAPI document.
//!
//! `MUSTER_WRITE_DOCS=1` (as in `make docs`) writes the page instead of comparing it.

use std::collections::BTreeMap;
use std::path::Path;

use http::Method;
use serde_json::{Map, Value};

use super::super::openapi;
use super::super::route::Route;
use super::contract::{Sample, Samples, recorded};
use super::layout::layout;
use super::{resolved, table};

const INTRODUCTION: &str = "\
# The coordinator's API

Written by `make docs` from the route table; the same as an OpenAPI 3.1 document is at
`/openapi.json` of every coordinator. Rules that hold for every operation (parameters, bodies,
headers, the order of refusals) are in [adding-an-endpoint.md](adding-an-endpoint.md).

## Before you start

Examples use `$MUSTER_URL`, e.g. `http://127.0.0.1:8480`. With TLS add `--cacert ca.pem --cert me.pem
--key me.key` to `curl`. Names like `$server_uuid` stand for what you fill in.

```sh run
curl -s \"$MUSTER_URL/ping\"
server_uuid=$(curl -s \"$MUSTER_URL/servers\" | jq -r '.[0].uuid')
curl -s \"$MUSTER_URL/servers/$server_uuid\" | jq '{hostname, status, setup}'
image_uuid=$(curl -s \"$MUSTER_URL/images\" | jq -r '.[0].uuid')
curl -s \"$MUSTER_URL/vms\" -H 'content-type: application/json' -d '{
  \"owner_uuid\": \"00000000-0000-0000-0000-000000000000\", \"brand\": \"kvm\", \"alias\": \"api1\",
  \"ram\": 256, \"vcpus\": 1, \"cpu_cap\": 100, \"disks\": [{ \"image_uuid\": \"'$image_uuid'\" }]
}' > created.json
cat created.json
id=$(jq -r .id created.json) vm_uuid=$(jq -r .vm_uuid created.json)
curl -s \"$MUSTER_URL/tasks/$id/wait?timeout=300\" | jq '{task, status, error}'
curl -s \"$MUSTER_URL/vms/$vm_uuid\" | jq '{alias, state, server_uuid}'
```

- **Work is accepted, then done.** An answer with an `id` is that of a task; `GET /tasks/:id/wait`
  waits for its end.
- **A failed validation is a 409**, not a 400 or 422, because clients of CNAPI read it so
  (`api.validation_status`). Its body is `{\"code\", \"message\"}`; `InvalidParameters` has `errors` with
  each bad `field`. 400 is a body or query that cannot be parsed.
- A member of the path, the query, a form or a JSON body is the same parameter.
- Lists of tasks, VMs and images are continued with `marker` from the header `x-next-marker`; those
  of servers, jobs and tickets with `offset`.
- A request may be named by the header `x-request-id` (at most 256 characters); the answer has it, or
  a new UUID, and so have tasks and logs.
- Statuses that any operation may answer are left out below: 400, 406 (no acceptable media type),
  413, 414 and 431 (too large), 500. A 503 (busy) comes with `Retry-After`.
- `GET /ping` says `amqp: online` for clients that look for it; there is no message broker.
- Answers shown below were recorded by a test, against a coordinator with three small servers, and are
  held against what is answered now. Lists are cut to their first item, long texts to their beginning.
";

/// The end of the introduction.
const EFFECTS: &str = "\
- **Some GETs change something**, because clients of CNAPI call them so. Never let a crawler, a
  prefetching proxy or a browser near them (browsers are refused unless they send `x-request-id`):
";

/// Statuses of every operation.
const COMMON: [&str; 6] = ["400", "406", "413", "414", "431", "500"];

fn page(samples: &Samples) -> String {
    let routes: Vec<Route> = table();
    let document = openapi::document(routes.iter());
    let of_path = |route: &Route| {
        let sample = samples.get(&format!("{} {}", route.method, route.pattern))?;
        let method = route.method.as_str().to_ascii_lowercase();
        Some((openapi::path_template(route.pattern) + &method, sample))
    };
    let samples: BTreeMap<String, &Sample> = routes.iter().filter_map(of_path).collect();
    let mut by_tag: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, item) in members(&document["paths"]) {
        for (method, operation) in members(item) {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            let sample = samples.get(&(path.clone() + method)).copied();
            by_tag
                .entry(tag)
                .or_default()
                .push(section(&document, path, method, operation, sample));
        }
    }
    let mut page = INTRODUCTION.to_owned() + EFFECTS;
    for route in routes.iter().filter(|route| route.method == Method::GET && route.changes()) {
        page += &format!("  - `GET {}`\n", route.pattern);
    }
    for (tag, sections) in by_tag {
        page += &format!("\n## {tag}\n\n{}", sections.join("\n"));
    }
    page += "\n## Records\n";
    for (name, schema) in members(&document["components"]["schemas"]) {
        page += &record(name, schema);
    }
    page
}

fn members(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn section(
    document: &Value,
    path: &str,
    method: &str,
    operation: &Value,
    sample: Option<&Sample>,
) -> String {
    let mut section = format!(
        "### {}\n\n`{} {path}`: {}. {}\n",
        text(operation, "operationId"),
        method.to_ascii_uppercase(),
        text(operation, "summary"),
        text(operation, "description"),
    );
    let mut rows = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let parameter = resolved(document, parameter);
        let name = text(parameter, "name");
        if name == "x-request-id" {
            // Of every operation.
            continue;
        }
        let place = text(parameter, "in");
        let required = parameter["required"] == true;
        let doc = text(parameter, "description");
        rows.push(line(name, place, &parameter["schema"], required, doc));
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    let needed = |name: &str| {
        body["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
    };
    for (name, schema) in body["properties"].as_object().into_iter().flatten() {
        rows.push(line(name, "body", schema, needed(name), text(schema, "description")));
    }
    for payload in body["allOf"].as_array().into_iter().flatten() {
        let of = kind(payload);
        rows.push(format!("| … | body | {of} | The members of this record |\n"));
    }
    if !rows.is_empty() {
        section += "\n| parameter | in | type | |\n| --- | --- | --- | --- |\n";
        section += &rows.concat();
    }
    section += &format!("\n{}\n", answers(&operation["responses"]));
    section += &example(path, method, operation, sample);
    if let Some(answer) = sample.and_then(|sample| sample.answer.as_ref()) {
        section += &format!("\n```json\n{}\n```\n", layout(answer));
    }
    section.replace(". \n", ".\n")
}

/// A command that calls the operation as the sample does, else with what it needs.
fn example(path: &str, method: &str, operation: &Value, played: Option<&Sample>) -> String {
    if operation["responses"].get("101").is_some() {
        // A websocket, which curl can't speak.
        return String::new();
    }
    let mut url = path.replace('{', "$").replace('}', "");
    if let Some(query) = played.and_then(|sample| sample.query.as_ref()) {
        url += &format!("?{query}");
    } else {
        let query = operation["parameters"].as_array().into_iter().flatten();
        let query = query.filter(|it| it["in"] == "query" && it["required"] == true);
        for (n, parameter) in query.enumerate() {
            let name = text(parameter, "name");
            url += &format!("{}{name}=${name}", if n == 0 { '?' } else { '&' });
        }
    }
    let mut command = match method {
        "get" => "curl -s".to_owned(),
        "head" => "curl -sI".to_owned(),
        _ => format!("curl -s -X {}", method.to_ascii_uppercase()),
    };
    command += &format!(" \"$MUSTER_URL{url}\"");
    let content = &operation["requestBody"]["content"];
    let body = &content["application/json"]["schema"];
    if let Some(body) = played.and_then(|sample| sample.body.as_ref()) {
        let body = layout(body).replace('\'', "'\\''");
        command += &format!(" \\\n    -H 'content-type: application/json' -d '{body}'");
    } else if body.is_object() && method != "get" {
        let required = body["required"].as_array().cloned().unwrap_or_default();
        let names = required.iter().filter_map(Value::as_str);
        let members = names.map(|name| (name.to_owned(), sample(&body["properties"][name])));
        let members: Map<String, Value> = members.collect();
        if !members.is_empty() {
            let body = Value::Object(members);
            command += &format!(" \\\n    -H 'content-type: application/json' -d '{body}'");
        }
    } else if content.is_object() && method != "get" {
        command += " -T FILE";
    }
    format!("\n```sh\n{command}\n```\n")
}

/// A value that the schema takes, or a dummy of its type.
fn sample(schema: &Value) -> Value {
    let example = schema.get("example").or_else(|| schema["examples"].get(0));
    if let Some(value) = example.or_else(|| schema["enum"].get(0)).or_else(|| schema.get("const")) {
        return value.clone();
    }
    if let Some(any) = schema["anyOf"].get(0).or_else(|| schema["oneOf"].get(0)) {
        return sample(any);
    }
    let of = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match of {
        Some("array") => Value::Array(vec![sample(&schema["items"])]),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| 1.into()),
        Some("boolean") => Value::Bool(true),
        Some("string") if schema["format"] == "uuid" => "$uuid".into(),
        Some("string") => "…".into(),
        _ => Value::Object(Map::new()),
    }
}

fn line(name: &str, place: &str, schema: &Value, required: bool, doc: &str) -> String {
    let needed = if required { "**required**; " } else { "" };
    format!("| `{name}` | {place} | {} | {needed}{doc} |\n", kind(schema))
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_ascii_lowercase());
    }
    if let Some(any) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if schema["enum"].as_array().is_some_and(|values| values.contains(&Value::Bool(true))) {
        return "boolean, `\"true\"` or `\"false\"`".to_owned();
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    let mut words = match &schema["type"] {
        Value::String(of) if of == "array" => match schema.get("items") {
            Some(items) => format!("array of {}", kind(items)),
            None => "array".to_owned(),
        },
        Value::String(of) => of.clone(),
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or ")
        }
        _ => return "any".to_owned(),
    };
    if schema["format"] == "uuid" {
        return "uuid".to_owned();
    }
    let range = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    if let (Some(least), Some(most)) = range {
        words += &format!(", {least} to {most}");
    }
    words
}

fn answers(responses: &Value) -> String {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for (status, response) in members(responses) {
        if COMMON.contains(&status.as_str()) {
            continue;
        }
        let body = members(response).get("content").and_then(Value::as_object);
        let content = body.and_then(|content| content.iter().next());
        let shown = content.map(|(media, content)| match &content["schema"] {
            schema if media == "application/json" => kind(schema),
            _ => media.clone(),
        });
        let success = status.starts_with(['1', '2']);
        match (success, shown) {
            (true, Some(shown)) => good.push(format!("{status} ({shown})")),
            (true, None) => good.push(status.clone()),
            (false, _) => bad.push(status.clone()),
        }
    }
    let refused =
        if bad.is_empty() { String::new() } else { format!(" Refused with {}.", bad.join(", ")) };
    format!("Answers {}.{refused}", good.join(", "))
}

fn record(name: &str, schema: &Value) -> String {
    let mut section = format!("\n### {name}\n\n{}.\n", text(schema, "description"));
    let Some(properties) = schema["properties"].as_object() else { return section };
    section += "\n| member | type | |\n| --- | --- | --- |\n";
    for (name, member) in properties {
        let doc = text(member, "description");
        section += &format!("| `{name}` | {} | {doc} |\n", kind(member));
    }
    section
}

#[tokio::test]
async fn the_api_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
    let page = page(&recorded().await);
    if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/api.md is out of date: run `make docs`");
}
