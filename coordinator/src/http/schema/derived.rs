//! Schemas of the types in `muster_shared::api`, in the words of this document:
//!
//! - components are named; every other type stands where it is used,
//! - a record is closed, unless its type keeps members that it does not know,
//! - a member that may be missing is never null,
//! - numbers have no width, UUIDs have a pattern, descriptions no full stop.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::super::rule::UUID_PATTERN;
use super::COMPONENTS;

const SCHEMAS: &str = "#/components/schemas/";

/// The schema of a type.
pub(super) fn of<T: ToSchema>() -> Value {
    let mut used = Vec::new();
    T::schemas(&mut used);
    let used = used.into_iter().map(|(name, schema)| (name, json!(schema)));
    Types(used.collect()).shown(json!(T::schema()))
}

/// The types that a type uses, by name.
struct Types(BTreeMap<String, Value>);

impl Types {
    fn shown(&self, schema: Value) -> Value {
        let Value::Object(keywords) = schema else { return schema };
        let mut keywords = self.merged(self.inlined(keywords));
        if let Some(Value::String(text)) = keywords.get_mut("description") {
            *text = text.trim_end_matches('.').replace('\n', " ");
        }
        if keywords.get("format").is_some_and(|format| format == "uuid") {
            keywords.insert("pattern".to_owned(), json!(UUID_PATTERN));
        } else if keywords.get("type").is_some_and(is_numeric) {
            keywords.shift_remove("format");
        }
        if let Some(items) = keywords.get_mut("items") {
            *items = self.shown(items.take());
        }
        if let Some(Value::Array(choices)) = keywords.shift_remove("oneOf") {
            let choices = choices.into_iter().map(|choice| self.shown(choice));
            keywords.insert("anyOf".to_owned(), choices.collect());
        }
        self.members(&mut keywords);
        hoist_description(&mut keywords);
        Value::Object(keywords)
    }

    /// Puts a type that is no component in the place of its name. What is said there, above all
    /// about the member that has this type, counts more.
    fn inlined(&self, keywords: Map<String, Value>) -> Map<String, Value> {
        match named(&keywords) {
            Some(name) if !is_component(name) => self.whole(keywords),
            _ => keywords,
        }
    }

    /// Puts a type in the place of its name, component or not.
    fn whole(&self, mut keywords: Map<String, Value>) -> Map<String, Value> {
        let Some(Value::Object(used)) = named(&keywords).and_then(|name| self.0.get(name)) else {
            return keywords;
        };
        let mut whole = self.whole(used.clone());
        keywords.shift_remove("$ref");
        whole.extend(keywords);
        whole
    }

    /// Makes one object of the parts of which a type with flattened members consists.
    fn merged(&self, mut keywords: Map<String, Value>) -> Map<String, Value> {
        let Some(Value::Array(parts)) = keywords.shift_remove("allOf") else { return keywords };
        let mut whole = Map::new();
        for part in parts {
            let Value::Object(part) = part else { continue };
            for (keyword, value) in self.merged(self.whole(part)) {
                match (whole.get_mut(&keyword), value) {
                    (Some(Value::Object(have)), Value::Object(more)) => have.extend(more),
                    (Some(Value::Array(have)), Value::Array(more)) => have.extend(more),
                    (_, value) => drop(whole.insert(keyword, value)),
                }
            }
        }
        whole.extend(keywords);
        whole
    }

    /// The members of an object, and whether there may be others.
    fn members(&self, keywords: &mut Map<String, Value>) {
        keywords.shift_remove("propertyNames");
        let required = keywords.get("required").cloned().unwrap_or_default();
        let is_required =
            |name: &str| required.as_array().is_some_and(|all| all.iter().any(|one| one == name));
        if let Some(Value::Object(properties)) = keywords.get_mut("properties") {
            for (name, member) in properties.iter_mut() {
                let raw = member.take();
                *member = self.shown(if is_required(name) { raw } else { never_null(raw) });
            }
        }
        let others = keywords.shift_remove("additionalProperties").map(|others| self.shown(others));
        match others {
            // Whatever there is.
            Some(others) if others == json!({}) => {}
            Some(others) => drop(keywords.insert("additionalProperties".to_owned(), others)),
            None if keywords.contains_key("properties") => {
                keywords.insert("additionalProperties".to_owned(), json!(false));
            }
            None => {}
        }
    }
}

/// The type that a schema names.
fn named(keywords: &Map<String, Value>) -> Option<&str> {
    keywords.get("$ref")?.as_str()?.strip_prefix(SCHEMAS)
}

pub(super) fn is_component(name: &str) -> bool {
    COMPONENTS.iter().any(|(component, _)| *component == name)
}

fn is_numeric(kind: &Value) -> bool {
    let numeric = |kind: &Value| kind == "integer" || kind == "number";
    numeric(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(numeric))
}

/// Without the choice of null that comes from an `Option`; a type of its own may have one.
fn never_null(schema: Value) -> Value {
    let Value::Object(mut keywords) = schema else { return schema };
    if let Some(Value::Array(kinds)) = keywords.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            keywords.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(choices)) = keywords.get_mut("oneOf") {
        choices.retain(|choice| *choice != json!({ "type": "null" }));
        if let [Value::Object(choice)] = choices.as_slice() {
            let mut only = choice.clone();
            keywords.shift_remove("oneOf");
            only.extend(keywords);
            return Value::Object(only);
        }
    }
    Value::Object(keywords)
}

/// A member that may be null is described as a whole, not its one choice.
fn hoist_description(keywords: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = keywords.get_mut("anyOf") else { return };
    if !choices.contains(&json!({ "type": "null" })) {
        return;
    }
    let described = choices.iter_mut().filter_map(Value::as_object_mut);
    let description = described.filter_map(|choice| choice.shift_remove("description")).next();
    if let Some(description) = description {
        keywords.entry("description").or_insert(description);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_shared::ids::{ServerUuid, TaskId};

    use super::*;

    /// What happened.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    #[serde(rename_all = "snake_case")]
    enum Outcome {
        Good,
        Bad,
    }

    /// Where.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Place {
        /// The server.
        server_uuid: ServerUuid,
    }

    /// An example
    /// of a record.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Example {
        #[serde(flatten)]
        place: Place,
        /// How it went.
        outcome: Outcome,
        /// How it went before, if there was a before.
        #[schema(required)]
        earlier: Option<Outcome>,
        /// How it goes next.
        next: Option<Outcome>,
        /// MiB.
        size: Option<u64>,
        /// Its tasks.
        tasks: Vec<TaskId>,
        /// Whatever the client wants.
        extra: Map<String, Value>,
    }

    /// One that keeps what it does not know.
    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Open {
        /// Counts.
        counts: BTreeMap<String, u32>,
        #[serde(flatten)]
        extra: Map<String, Value>,
    }

    #[test]
    fn a_record_is_closed_and_its_types_stand_in_it() {
        let uuid = json!({
            "type": "string", "format": "uuid", "pattern": UUID_PATTERN, "description": "The server",
        });
        let outcome =
            |doc: &str| json!({ "type": "string", "enum": ["good", "bad"], "description": doc });
        let expected = json!({
            "type": "object", "description": "An example of a record",
            "required": ["server_uuid", "outcome", "earlier", "tasks", "extra"],
            "properties": {
                "server_uuid": uuid,
                "outcome": outcome("How it went"),
                "earlier": {
                    "anyOf": [{ "type": "string", "enum": ["good", "bad"] }, { "type": "null" }],
                    "description": "How it went before, if there was a before",
                },
                "next": outcome("How it goes next"),
                "size": { "type": "integer", "minimum": 0, "description": "MiB" },
                "tasks": {
                    "type": "array", "description": "Its tasks",
                    "items": of::<TaskId>(),
                },
                "extra": { "type": "object", "description": "Whatever the client wants" },
            },
            "additionalProperties": false,
        });
        assert_eq!(of::<Example>(), expected);
    }

    #[test]
    fn a_record_that_keeps_what_it_does_not_know_is_open() {
        let counts = json!({
            "type": "object", "description": "Counts",
            "additionalProperties": { "type": "integer", "minimum": 0 },
        });
        let expected = json!({
            "type": "object", "description": "One that keeps what it does not know",
            "required": ["counts"], "properties": { "counts": counts },
        });
        assert_eq!(of::<Open>(), expected);
    }
}
