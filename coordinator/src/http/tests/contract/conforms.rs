//! Whether a body is what a JSON schema says: the keywords that this API's document uses, and a
//! fault for any other, so that none is passed over.

use regex::Regex;
use serde_json::{Map, Value};

/// Keywords that say nothing about validity here.
const SILENT: [&str; 4] = ["description", "format", "example", "components"];

/// Every fault of `value` under `schema`, each with its place.
pub(super) fn faults(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    Checker { document, found: &mut found }.check(schema, value, "");
    found
}

struct Checker<'a> {
    document: &'a Value,
    found: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn fault(&mut self, at: &str, what: &str) {
        self.found.push(format!("{at}: {what}"));
    }

    fn check(&mut self, schema: &Value, value: &Value, at: &str) {
        for (keyword, wanted) in schema.as_object().expect("a schema is an object") {
            let holds = match keyword.as_str() {
                "$ref" => {
                    let pointer = wanted.as_str().unwrap().trim_start_matches('#');
                    let referred = self.document.pointer(pointer).expect("the reference leads on");
                    self.check(referred, value, at);
                    true
                }
                "anyOf" | "oneOf" => {
                    let fits = |one: &&Value| faults(self.document, one, value).is_empty();
                    let count = wanted.as_array().unwrap().iter().filter(fits).count();
                    if keyword == "anyOf" { count > 0 } else { count == 1 }
                }
                "type" => is_of(wanted, value),
                "const" => value == wanted,
                "enum" => wanted.as_array().unwrap().contains(value),
                "properties" | "required" | "additionalProperties" => {
                    self.members(keyword, wanted, schema, value, at);
                    true
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(wanted, item, &format!("{at}/{index}"));
                    }
                    true
                }
                _ => self.bound(keyword, wanted, value),
            };
            if !holds {
                self.fault(at, &format!("{value} breaks {keyword}: {wanted}"));
            }
        }
    }

    fn bound(&self, keyword: &str, wanted: &Value, value: &Value) -> bool {
        let limit = wanted.as_f64();
        let length = value.as_array().map(Vec::len);
        let within = |limit: f64| -> Option<bool> {
            #[expect(clippy::cast_precision_loss, reason = "lengths in tests are small")]
            let size = |length: usize| length as f64;
            match keyword {
                "minimum" => Some(value.as_f64()? >= limit),
                "maximum" => Some(value.as_f64()? <= limit),
                "minLength" => Some(size(value.as_str()?.chars().count()) >= limit),
                "maxLength" => Some(size(value.as_str()?.chars().count()) <= limit),
                "minItems" => Some(size(length?) >= limit),
                "maxItems" => Some(size(length?) <= limit),
                _ => None,
            }
        };
        match (keyword, limit) {
            ("pattern", _) => {
                let pattern = Regex::new(wanted.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            (
                "minimum" | "maximum" | "minLength" | "maxLength" | "minItems" | "maxItems",
                Some(l),
            ) => within(l).unwrap_or(true),
            _ => SILENT.contains(&keyword),
        }
    }

    fn members(&mut self, keyword: &str, wanted: &Value, schema: &Value, value: &Value, at: &str) {
        let Some(members) = value.as_object() else { return };
        let none = Map::new();
        let named = schema["properties"].as_object().unwrap_or(&none);
        match keyword {
            "required" => {
                for name in wanted.as_array().unwrap() {
                    if !members.contains_key(name.as_str().unwrap()) {
                        self.fault(at, &format!("{name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, member) in members {
                    if let Some(schema) = named.get(name) {
                        self.check(schema, member, &format!("{at}/{name}"));
                    }
                }
            }
            _ => {
                for (name, member) in members.iter().filter(|(name, _)| !named.contains_key(*name))
                {
                    match wanted {
                        Value::Bool(true) => {}
                        Value::Bool(false) => self.fault(at, &format!("{name} is not declared")),
                        schema => self.check(schema, member, &format!("{at}/{name}")),
                    }
                }
            }
        }
    }
}

fn is_of(kinds: &Value, value: &Value) -> bool {
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("{other} is no type"),
    };
    match kinds {
        Value::String(kind) => is(kind),
        kinds => kinds.as_array().unwrap().iter().any(|kind| is(kind.as_str().unwrap())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, value: &Value, count: usize) {
        let document = json!({ "components": { "schemas": { "Id": { "type": "string" } } } });
        let found = faults(&document, schema, value);
        assert_eq!(found.len(), count, "{found:?}");
    }

    #[test]
    fn every_keyword_can_fail() {
        let object = json!({
            "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": { "id": { "$ref": "#/components/schemas/Id" }, "n": { "minimum": 1 } },
        });
        check(&object, &json!({ "id": "x", "n": 1 }), 0);
        check(&object, &json!({ "id": 7, "n": 0, "more": 1 }), 3);
        check(&object, &json!({}), 1);
        check(&object, &json!([]), 1);
        let list = json!({ "type": "array", "minItems": 1, "items": { "enum": ["a", "b"] } });
        check(&list, &json!(["a"]), 0);
        check(&list, &json!(["c", "d"]), 2);
        check(&list, &json!([]), 1);
        let either = json!({ "anyOf": [{ "const": 1 }, { "type": ["string", "null"] }] });
        check(&either, &json!(null), 0);
        check(&either, &json!(2), 1);
        check(&json!({ "oneOf": [{}, { "const": 1 }] }), &json!(1), 1);
        check(&json!({ "pattern": "^a", "maxLength": 1 }), &json!("ba"), 2);
        check(&json!({ "type": "integer" }), &json!(1.5), 1);
        check(&json!({ "unknown": 1 }), &json!(1), 1);
    }
}
