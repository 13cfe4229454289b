//! The OpenAPI 3.1 document, made from the route table.

use http::Method;
use serde_json::{Map, Value, json};

use super::dispatch::X_MUSTER_TICKET;
use super::matcher::first_segment;
use super::params::longest_text;
use super::route::{Also, BodyRule, Param, Reply, Route};
use super::rule::{FLAG_PATTERN, Rule, UUID_PATTERN};
use super::schema;

/// Longest text that is documented for a query or a header; 64 KiB would not fit there.
const HEAD_TEXT: u64 = 1024;
const JSON: &str = "application/json";
const X_REQUEST_ID: &str = "x-request-id";
/// Text without whitespace at its ends, as [`Rule::Trim`] wants it.
const TRIMMED: &str = r"^(\S([\s\S]*\S)?)?$";
/// Text without control characters, as [`Rule::Plain`] wants it.
const PLAIN: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";
/// Both.
const TRIMMED_PLAIN: &str =
    r"^([^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f])?)?$";
const DESCRIPTION: &str = "\
Compute nodes, their virtual machines and tasks; compatible with CNAPI. Members of the query, of a \
form and of a JSON body are one set of parameters: what a path or a query names is not replaced by \
the body. Unknown members are ignored unless an operation says that it is strict. Any request may \
get 503 while the coordinator stops. In a query, longer texts than documented are accepted as long \
as the whole head of a request is within its limits.";

/// The document of a route table.
pub(crate) fn document<'a>(routes: impl Iterator<Item = &'a Route>) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let item = paths.entry(path_template(route.pattern)).or_insert_with(|| json!({}));
        item[route.method.as_str().to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Muster coordinator",
            "description": DESCRIPTION,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schema::components(), "parameters": shared_parameters(),
            "headers": shared_headers(),
        },
    })
}

/// Request headers that mean the same everywhere.
fn shared_parameters() -> Value {
    let header = |name: &str, doc: &str, schema: Value| {
        json!({
            "name": name, "in": "header", "required": false, "description": doc, "schema": schema,
        })
    };
    let id = json!({ "type": "string", "pattern": "^[!-~]{1,256}$", "example": "a-1" });
    let version = json!({ "type": "string", "pattern": "^(\\*|\"[!-~]{1,64}\")$", "example": "*" });
    json!({
        "RequestId": header(
            X_REQUEST_ID,
            "Names the request in answers, tasks and logs; else it gets a new UUID",
            id,
        ),
        "Ticket": header(
            X_MUSTER_TICKET,
            "The ticket under which the task or job is started; refused with 409 unless it is \
             active",
            schema::uuid(),
        ),
        "IfMatch": header(
            "If-Match",
            "The version (ETag) that may be changed; another one gets 412",
            version,
        ),
    })
}

/// Headers of answers that mean the same everywhere.
fn shared_headers() -> Value {
    let header = |doc: &str| json!({ "description": doc, "schema": { "type": "string" } });
    json!({
        "RequestId": header("The request's `x-request-id`, or its new UUID"),
        "ETag": header("The record's version, for `If-Match`"),
    })
}

fn shared(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

/// `/servers/:server_uuid` → `/servers/{server_uuid}`.
pub(super) fn path_template(pattern: &str) -> String {
    let parts = pattern.split('/').map(|part| match part.strip_prefix(':') {
        Some(name) => format!("{{{name}}}"),
        None => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

/// The names of a pattern's parameters.
pub(super) fn path_params(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.split('/').filter_map(|part| part.strip_prefix(':'))
}

/// Whether a route's parameters are documented as members of the query.
fn in_query(route: &Route) -> bool {
    matches!(route.method, Method::GET | Method::DELETE) || route.body == BodyRule::Stream
}

fn operation(route: &Route) -> Value {
    let id = match route.alias {
        Some(_) => format!("{}By{}", route.operation, route.method),
        None => route.operation.to_owned(),
    };
    let mut operation = json!({
        "operationId": id,
        "summary": route.summary,
        "tags": [first_segment(route.pattern)],
    });
    if route.strict {
        operation["description"] = json!("Strict: any other parameter is refused.");
    }
    let parameters = parameters(route);
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if let Some(body) = request_body(route) {
        operation["requestBody"] = body;
    }
    operation["responses"] = Value::Object(responses(route));
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut all: Vec<Value> = path_params(route.pattern)
        .map(|name| {
            let param = route.params.iter().find(|param| param.name == name);
            let of_path = || schema::path_parameter(route, name);
            json!({
                "name": name, "in": "path", "required": true,
                "description": schema::path_parameter_doc(route, name),
                "schema": param.map_or_else(of_path, param_schema),
            })
        })
        .collect();
    let named = |param: &Param, place: &str| {
        json!({
            "name": param.name, "in": place, "required": !param.is_optional(),
            "description": param.doc, "schema": param_schema(param),
        })
    };
    if in_query(route) {
        all.extend(own_params(route).map(|param| in_head(named(param, "query"))));
    }
    all.extend(route.headers.iter().map(|param| in_head(named(param, "header"))));
    let may = [
        ("RequestId", true),
        ("Ticket", route.fenced),
        ("IfMatch", route.versioned && route.method != Method::GET),
    ];
    all.extend(may.iter().filter(|(_, has)| *has).map(|(name, _)| shared("parameters", name)));
    all
}

/// Parameters that are not part of the path.
fn own_params(route: &Route) -> impl Iterator<Item = &Param> {
    let in_path = |name: &str| path_params(route.pattern).any(|part| part == name);
    route.params.iter().filter(move |param| !in_path(param.name))
}

/// Text in the head of a request can't be as long as in a body.
fn in_head(mut parameter: Value) -> Value {
    if parameter["schema"]["maxLength"].as_u64().is_some_and(|length| length > HEAD_TEXT) {
        parameter["schema"]["maxLength"] = json!(HEAD_TEXT);
    }
    parameter
}

fn request_body(route: &Route) -> Option<Value> {
    if route.body == BodyRule::Stream {
        let octets = json!({ "schema": { "type": "string", "format": "binary" } });
        return Some(json!({
            "required": true, "content": { "application/octet-stream": octets },
        }));
    }
    if in_query(route) {
        return None;
    }
    let mut properties = Map::new();
    let mut required = Vec::new();
    for param in own_params(route) {
        let mut schema = param_schema(param);
        schema["description"] = json!(param.doc);
        properties.insert(param.name.to_owned(), schema);
        if !param.is_optional() {
            required.push(param.name);
        }
    }
    let mut object = json!({ "type": "object" });
    if !properties.is_empty() {
        object["properties"] = Value::Object(properties);
    }
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if route.strict {
        object["additionalProperties"] = json!(false);
    }
    if let Some(payload) = route.payload {
        object["allOf"] = json!([payload()]);
    }
    let needed = own_params(route).any(|param| !param.is_optional());
    let mut content = Map::new();
    for kind in [JSON, "application/x-www-form-urlencoded"] {
        // What has structure can only be said in JSON.
        if kind == JSON || (route.payload.is_none() && own_params(route).all(fits_form)) {
            content.insert(kind.to_owned(), json!({ "schema": object }));
        }
    }
    Some(json!({ "required": needed, "content": content }))
}

/// Whether a parameter can be given as text.
fn fits_form(param: &Param) -> bool {
    let structured =
        |rule: &Rule| matches!(rule, Rule::ObjectType | Rule::ArrayType | Rule::BooleanType);
    param.schema.is_none() && !param.rules.iter().any(structured)
}

/// The type and limits that a parameter's rules ask for.
fn param_schema(param: &Param) -> Value {
    if let Some(schema) = param.schema {
        return schema();
    }
    let mut schema = json!({});
    for rule in param.rules {
        match rule {
            Rule::Optional | Rule::Nullable | Rule::ToBoolean => {}
            Rule::Trim => schema["pattern"] = json!(TRIMMED),
            Rule::Plain if param.rules.contains(&Rule::Trim) => {
                schema["pattern"] = json!(TRIMMED_PLAIN);
            }
            Rule::Plain => schema["pattern"] = json!(PLAIN),
            Rule::StringType => {
                schema["type"] = json!("string");
                schema["maxLength"] = json!(longest_text(param.name));
            }
            Rule::ObjectType => schema["type"] = json!("object"),
            Rule::ArrayType => schema["type"] = json!("array"),
            Rule::BooleanType | Rule::BooleanString | Rule::Regex(FLAG_PATTERN) => {
                schema["type"] = json!("boolean");
            }
            Rule::NumberType | Rule::NotNegative => schema["type"] = json!("number"),
            Rule::NumberOrString => schema["type"] = json!(["number", "string"]),
            Rule::Int => schema["type"] = json!("integer"),
            Rule::Regex(pattern) => {
                schema["type"] = json!("string");
                schema["pattern"] = json!(pattern);
            }
            Rule::Uuid => {
                schema["type"] = json!("string");
                schema["format"] = json!("uuid");
                schema["pattern"] = json!(UUID_PATTERN);
            }
        }
    }
    if param.rules.contains(&Rule::Nullable) {
        schema["type"] = json!([schema["type"], "null"]);
    }
    schema
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut all = Map::new();
    let mut success = match route.reply {
        Reply::Empty => json!({ "description": "Done" }),
        Reply::Json(schema) => {
            json!({ "description": "Done", "content": { JSON: { "schema": schema() } } })
        }
        Reply::Bytes(kind) => json!({
            "description": "Done",
            "content": { kind: { "schema": bytes_schema(kind) } },
        }),
        Reply::Websocket => json!({ "description": "The connection is a websocket now" }),
    };
    let mut headers = Map::new();
    headers.insert(X_REQUEST_ID.to_owned(), shared("headers", "RequestId"));
    if route.versioned && matches!(route.reply, Reply::Json(_)) {
        headers.insert("ETag".to_owned(), shared("headers", "ETag"));
    }
    for (name, doc) in route.reply_headers {
        let header = json!({ "description": doc, "schema": { "type": "string" } });
        headers.insert((*name).to_owned(), header);
    }
    success["headers"] = Value::Object(headers);
    all.insert(route.success.as_str().to_owned(), success);
    for status in route.error_statuses() {
        all.insert(status.to_string(), refusal(status));
    }
    for Also { status, doc, schema } in route.also {
        let mut answer = json!({ "description": doc });
        if let Some(schema) = schema {
            answer["content"] = json!({ JSON: { "schema": schema() } });
        }
        all.insert(status.to_string(), answer);
    }
    all
}

fn bytes_schema(kind: &str) -> Value {
    if kind != "text/event-stream" {
        return json!({ "type": "string" });
    }
    let text = json!({ "type": "string" });
    json!({
        "type": "object", "description": "One event of the stream",
        "properties": { "id": text, "event": text, "data": text },
    })
}

fn refusal(status: u16) -> Value {
    let description = match status {
        414 => "The path and the query are too long",
        431 => "The head of the request is too large",
        400 => "The query or the body can't be read, or a number is out of its range",
        403 => "Not allowed by the configuration",
        404 => "It does not exist",
        406 => "No acceptable media type",
        409 => "A parameter is wrong, or the state does not allow it",
        412 => "The condition of the request does not hold",
        413 => "The body or a record made of it is too large",
        426 => "Not a websocket handshake",
        500 => "A failure of the coordinator or the server",
        501 => "The server's agent can't do this",
        503 => "Try again later: the server is away, or its queue is full",
        _ => "Refused",
    };
    if matches!(status, 414 | 431) {
        // Refused before it is a request.
        return json!({ "description": description });
    }
    json!({
        "description": description,
        "content": { JSON: { "schema": { "$ref": "#/components/schemas/Error" } } },
    })
}
