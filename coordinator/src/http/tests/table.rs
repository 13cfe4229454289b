//! What every route of the table owes.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;

use super::super::matcher::{Match, find, segments};
use super::super::openapi;
use super::super::route::{Reply, Route, ServerRule};
use super::super::rule::Rule;
use super::super::schema::Checker;
use super::{resolved, table};

#[test]
fn operations_are_unique_and_documented() {
    let mut seen = BTreeSet::new();
    for route in table().iter().filter(|route| route.alias.is_none()) {
        assert!(seen.insert(route.operation), "{route:?}: the operation's name is taken");
        assert!(!route.summary.is_empty(), "{route:?} has no summary");
        assert!(!route.operation.is_empty());
    }
}

#[test]
fn patterns_are_well_formed_and_reachable() {
    let routes = table();
    let mut seen = BTreeSet::new();
    for route in &routes {
        assert!(seen.insert((route.method.to_string(), route.pattern)), "{route:?} twice");
        assert!(route.pattern.starts_with('/') && !route.pattern.ends_with('/'), "{route:?}");
        assert!(!route.pattern.split('/').next().is_some_and(|first| first.starts_with(':')));
        let path = route.pattern.replace(':', "x");
        match find(routes.iter(), &route.method, &segments(&path)) {
            Match::Route(found, _) => assert_eq!(found.pattern, route.pattern),
            other => panic!("{route:?} is not found: {other:?}"),
        }
    }
}

#[test]
fn preconditions_name_what_the_path_has() {
    for route in table() {
        let has = |name: &str| route.pattern.split('/').any(|part| part == name);
        assert!(route.server == ServerRule::None || has(":server_uuid"), "{route:?}");
        assert!(!route.vm || has(":uuid"), "{route:?}");
        let exists = matches!(route.server, ServerRule::Exists | ServerRule::ExistsOrDefault);
        assert!(!route.running || exists, "{route:?}: R without S");
        let empty = route.success == http::StatusCode::NO_CONTENT;
        assert!(!empty || matches!(route.reply, Reply::Empty), "{route:?}: 204 with a body");
    }
}

#[test]
fn rules_are_usable() {
    for route in table() {
        let mut names = BTreeSet::new();
        for param in route.params {
            assert!(names.insert(param.name), "{route:?}: {} twice", param.name);
            assert!(!param.doc.is_empty(), "{route:?}: {} has no doc", param.name);
            for (place, rule) in param.rules.iter().enumerate() {
                assert!(
                    !matches!(rule, Rule::Optional | Rule::Nullable) || place == 0,
                    "{route:?}: {}",
                    param.name
                );
                if let Rule::Regex(pattern) = rule {
                    Regex::new(pattern).unwrap_or_else(|error| panic!("{route:?}: {error}"));
                }
            }
        }
    }
}

#[test]
fn the_openapi_document_has_every_route() {
    let routes: Vec<Route> = table();
    let document = openapi::document(routes.iter());
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    for route in &routes {
        let method = route.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][openapi::path_template(route.pattern)][&method];
        assert!(operation.is_object(), "{route:?} is not in the document");
        assert!(ids.insert(operation["operationId"].to_string()), "{route:?}: id twice");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.contains_key(route.success.as_str()), "{route:?}");
        if let Reply::Json(_) = route.reply {
            let success = &responses[route.success.as_str()];
            assert!(success["content"]["application/json"]["schema"].is_object(), "{route:?}");
        }
        for status in route.error_statuses() {
            assert!(responses.contains_key(&status.to_string()), "{route:?}: {status}");
        }
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let parameters: Vec<&Value> =
            parameters.iter().map(|parameter| resolved(&document, parameter)).collect();
        let listed: BTreeSet<&str> =
            parameters.iter().filter_map(|parameter| parameter["name"].as_str()).collect();
        assert!(listed.contains("x-request-id"), "{route:?}");
        assert_eq!(listed.contains("x-muster-ticket"), route.fenced || waits(route), "{route:?}");
        let changes = route.versioned && route.method != http::Method::GET;
        assert_eq!(listed.contains("If-Match"), changes, "{route:?}");
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["properties"];
        for name in openapi::path_params(route.pattern) {
            assert!(listed.contains(name), "{route:?}: {name} is not documented");
        }
        for param in route.params {
            let documented = listed.contains(param.name) || body[param.name].is_object();
            assert!(documented, "{route:?}: {} is not documented", param.name);
        }
    }
}

/// The one GET that takes a ticket without starting anything.
fn waits(route: &Route) -> bool {
    route.operation == "ServerWaitlistTicketsWait"
}

/// A parameter says what it is, in words and as a schema of keywords that are checked.
#[test]
fn every_parameter_has_a_type_and_a_description() {
    let routes: Vec<Route> = table();
    let document = openapi::document(routes.iter());
    let mut lacking = Vec::new();
    let mut look = |place: String, schema: &Value, description: &Value| {
        let typed = ["type", "enum", "const", "anyOf", "oneOf", "$ref", "allOf"];
        if !typed.iter().any(|keyword| schema.get(*keyword).is_some()) {
            lacking.push(format!("{place} has no type"));
        }
        if description.as_str().is_none_or(str::is_empty) {
            lacking.push(format!("{place} is not described"));
        }
        if let Err(error) = Checker::new(&document, schema) {
            lacking.push(format!("{place}: {error}"));
        }
    };
    for route in &routes {
        let method = route.method.as_str().to_ascii_lowercase();
        let operation = &document["paths"][openapi::path_template(route.pattern)][&method];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = resolved(&document, parameter);
            let place = format!("{route:?} {}", parameter["name"]);
            look(place, &parameter["schema"], &parameter["description"]);
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        for (name, schema) in body["properties"].as_object().into_iter().flatten() {
            look(format!("{route:?} {name}"), schema, &schema["description"]);
        }
    }
    for payload in ["VmCreate", "VmUpdate", "VmPlace", "Nic", "Disk"] {
        let properties = &document["components"]["schemas"][payload]["properties"];
        for (name, schema) in properties.as_object().unwrap() {
            // Of some it is told once, by the record's own description.
            look(format!("{payload} {name}"), schema, &schema["description"]);
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        look(name.clone(), schema, &schema["description"]);
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
}

/// Everything that is referred to is there, and everything that is there is referred to.
#[test]
fn references_of_the_openapi_document_lead_somewhere() {
    let routes: Vec<Route> = table();
    let document = openapi::document(routes.iter());
    let text = document.to_string();
    let reference = Regex::new(r##""\$ref":"#(/components/[A-Za-z/]+)""##).unwrap();
    let used: BTreeSet<&str> =
        reference.captures_iter(&text).map(|found| found.get(1).unwrap().as_str()).collect();
    for pointer in &used {
        assert!(document.pointer(pointer).is_some(), "{pointer} is no component");
    }
    for kind in ["schemas", "parameters", "headers"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            let pointer = format!("/components/{kind}/{name}");
            assert!(used.contains(pointer.as_str()), "{pointer} is not used");
        }
    }
}
