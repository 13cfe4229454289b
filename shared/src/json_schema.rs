//! Whether a value is what a JSON schema says: the keywords that Muster's own documents use. So
//! what a document promises, what is accepted, and what tests expect is one text.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use parking_lot::Mutex;
use regex::Regex;
use serde_json::{Map, Value};

/// Keywords that say nothing about validity here.
const SILENT: &[&str] = &["description", "format", "example", "default", "components"];
/// Keywords that are checked.
const CHECKED: &[&str] = &[
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "enum",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
];
/// Alternatives of an `enum` that a problem names.
const MAX_NAMED: usize = 12;

/// One thing that is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, as `nics.0.mac`; empty: the value itself.
    pub at: String,
    /// What is wrong there.
    pub problem: String,
}

/// Everything that is wrong with `value` under `schema`; `document` holds what `$ref` names.
#[must_use]
pub fn faults(document: &Value, schema: &Value, value: &Value) -> Vec<Fault> {
    let mut checker = Checker { document, found: Vec::new() };
    checker.check(schema, value, "");
    checker.found
}

/// A keyword in a schema, or below it, that [`faults`] does not know.
#[must_use]
pub fn unknown_keyword(schema: &Value) -> Option<&str> {
    for (keyword, below) in schema.as_object()? {
        let found = match keyword.as_str() {
            "properties" => below.as_object()?.values().find_map(unknown_keyword),
            "items" | "additionalProperties" => unknown_keyword(below),
            "anyOf" | "oneOf" => below.as_array()?.iter().find_map(unknown_keyword),
            known if CHECKED.contains(&known) || SILENT.contains(&known) => None,
            other => Some(other),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

struct Checker<'a> {
    document: &'a Value,
    found: Vec<Fault>,
}

impl Checker<'_> {
    fn fault(&mut self, at: &str, problem: impl Into<String>) {
        self.found.push(Fault { at: at.to_owned(), problem: problem.into() });
    }

    fn check(&mut self, schema: &Value, value: &Value, at: &str) {
        let Some(keywords) = schema.as_object() else { return };
        // What is of another type breaks everything else too, which nobody wants to read.
        if let Some(kinds) = keywords.get("type")
            && !is_of(kinds, value)
        {
            return self.fault(at, format!("value was not {}", kind_words(kinds)));
        }
        for (keyword, wanted) in keywords {
            match keyword.as_str() {
                "$ref" => {
                    let pointer = wanted.as_str().unwrap_or_default().trim_start_matches('#');
                    match self.document.pointer(pointer) {
                        Some(referred) => self.check(referred, value, at),
                        None => self.fault(at, format!("{wanted} is no schema")),
                    }
                }
                "anyOf" | "oneOf" => self.alternatives(keyword == "oneOf", wanted, value, at),
                "properties" => self.properties(wanted, value, at),
                "required" => self.required(wanted, value, at),
                "additionalProperties" => self.others(wanted, keywords, value, at),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(wanted, item, &joined(at, &index.to_string()));
                    }
                }
                other => {
                    if let Some(problem) = bound(other, wanted, value) {
                        self.fault(at, problem);
                    }
                }
            }
        }
    }

    /// Reports what is wrong with the alternative that comes closest.
    fn alternatives(&mut self, only_one: bool, all: &Value, value: &Value, at: &str) {
        let all = all.as_array().map_or(&[][..], Vec::as_slice);
        let tried: Vec<Vec<Fault>> =
            all.iter().map(|one| faults(self.document, one, value)).collect();
        match tried.iter().filter(|faults| faults.is_empty()).count() {
            0 => {}
            count if count > 1 && only_one => return self.fault(at, "value is ambiguous"),
            _ => return,
        }
        let of_itself = |faults: &Vec<Fault>| faults.iter().any(|fault| fault.at.is_empty());
        let closest = tried.into_iter().min_by_key(|faults| (of_itself(faults), faults.len()));
        for Fault { at: below, problem } in closest.into_iter().flatten() {
            let at = if below.is_empty() { at.to_owned() } else { joined(at, &below) };
            self.found.push(Fault { at, problem });
        }
    }

    fn properties(&mut self, named: &Value, value: &Value, at: &str) {
        for (name, schema) in named.as_object().into_iter().flatten() {
            if let Some(member) = value.get(name) {
                self.check(schema, member, &joined(at, name));
            }
        }
    }

    fn required(&mut self, names: &Value, value: &Value, at: &str) {
        let Some(members) = value.as_object() else { return };
        for name in names.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !members.contains_key(name) {
                self.fault(&joined(at, name), "value is missing");
            }
        }
    }

    fn others(&mut self, wanted: &Value, schema: &Map<String, Value>, value: &Value, at: &str) {
        let named = schema.get("properties").and_then(Value::as_object);
        let known = |name: &String| named.is_some_and(|named| named.contains_key(name));
        let members = value.as_object().into_iter().flatten();
        for (name, member) in members.filter(|(name, _)| !known(name)) {
            match wanted {
                Value::Bool(false) => self.fault(&joined(at, name), "no such member"),
                schema => self.check(schema, member, &joined(at, name)),
            }
        }
    }
}

fn joined(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// The problem with a keyword that concerns the value alone.
fn bound(keyword: &str, wanted: &Value, value: &Value) -> Option<String> {
    let number = value.as_f64().zip(wanted.as_f64());
    let count = wanted.as_u64().and_then(|limit| usize::try_from(limit).ok());
    let chars = || value.as_str().map(|text| text.chars().count()).zip(count);
    let items = value.as_array().map(Vec::len).zip(count);
    let (broken, problem) = match keyword {
        "const" => (value != wanted, format!("value was not {wanted}")),
        "enum" => {
            let all = wanted.as_array().map_or(&[][..], Vec::as_slice);
            let named: Vec<_> = all.iter().take(MAX_NAMED).map(Value::to_string).collect();
            (!all.contains(value), format!("value was not one of {}", named.join(", ")))
        }
        "pattern" => {
            let pattern = wanted.as_str().unwrap_or_default();
            let broken = value.as_str().is_some_and(|text| !matches(pattern, text));
            (broken, format!("value does not match {pattern}"))
        }
        "minimum" => (number.is_some_and(|(n, l)| n < l), format!("value was less than {wanted}")),
        "maximum" => {
            (number.is_some_and(|(n, l)| n > l), format!("value was greater than {wanted}"))
        }
        "minLength" => {
            let broken = chars().is_some_and(|(n, limit)| n < limit);
            (broken, format!("value was shorter than {wanted} characters"))
        }
        "maxLength" => {
            let broken = chars().is_some_and(|(n, limit)| n > limit);
            (broken, format!("value was longer than {wanted} characters"))
        }
        "minItems" => {
            let broken = items.is_some_and(|(n, limit)| n < limit);
            (broken, format!("value had less than {wanted} elements"))
        }
        "maxItems" => {
            let broken = items.is_some_and(|(n, limit)| n > limit);
            (broken, format!("value had more than {wanted} elements"))
        }
        known if SILENT.contains(&known) || known == "type" => return None,
        other => return Some(format!("the schema's keyword {other} is unknown")),
    };
    broken.then_some(problem)
}

/// Whether a pattern is found in a text. Compiled once per pattern; schemas are constants, so
/// there are only so many. A pattern that is none fits nothing.
fn matches(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<BTreeMap<String, Option<Regex>>>> =
        LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock();
    if !compiled.contains_key(pattern) {
        compiled.insert(pattern.to_owned(), Regex::new(pattern).ok());
    }
    compiled.get(pattern).and_then(Option::as_ref).is_some_and(|regex| regex.is_match(text))
}

fn kinds(kinds: &Value) -> impl Iterator<Item = &str> {
    let all = match kinds {
        Value::Array(kinds) => kinds.as_slice(),
        one => std::slice::from_ref(one),
    };
    all.iter().filter_map(Value::as_str)
}

fn is_of(wanted: &Value, value: &Value) -> bool {
    kinds(wanted).any(|kind| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    })
}

fn kind_words(wanted: &Value) -> String {
    let words = kinds(wanted).filter_map(|kind| match kind {
        "boolean" => Some("true or false"),
        "string" => Some("a string"),
        "array" => Some("an array"),
        "object" => Some("an object"),
        "number" => Some("a number"),
        "integer" => Some("a whole number"),
        // Means that it is left out.
        _ => None,
    });
    let words: Vec<_> = words.collect();
    if words.is_empty() { "null".to_owned() } else { words.join(" or ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: &Value, value: &Value, expected: &[(&str, &str)]) {
        let document = json!({ "components": { "schemas": { "Id": { "type": "string" } } } });
        let found = faults(&document, schema, value);
        let found: Vec<_> = found.iter().map(|f| (f.at.as_str(), f.problem.as_str())).collect();
        assert_eq!(found, expected, "{value} under {schema}");
        assert_eq!(unknown_keyword(schema), None);
    }

    #[test]
    fn every_keyword_can_fail() {
        let object = json!({
            "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": { "id": { "$ref": "#/components/schemas/Id" }, "n": { "minimum": 1 } },
        });
        check(&object, &json!({ "id": "x", "n": 1 }), &[]);
        let bad = json!({ "id": 7, "n": 0, "more": 1 });
        let expected = [
            ("more", "no such member"),
            ("id", "value was not a string"),
            ("n", "value was less than 1"),
        ];
        check(&object, &bad, &expected);
        check(&object, &json!({}), &[("id", "value is missing")]);
        check(&object, &json!([]), &[("", "value was not an object")]);
        let list = json!({ "minItems": 1, "maxItems": 2, "items": { "enum": ["a", "b"] } });
        check(&list, &json!(["a"]), &[]);
        check(&list, &json!(["c"]), &[("0", "value was not one of \"a\", \"b\"")]);
        check(&list, &json!([]), &[("", "value had less than 1 elements")]);
        check(&list, &json!(["a", "b", "a"]), &[("", "value had more than 2 elements")]);
        let others = json!({ "additionalProperties": { "const": 1 } });
        check(&others, &json!({ "a": 1, "b": 2 }), &[("b", "value was not 1")]);
        let text = json!({ "pattern": "^a", "maxLength": 2, "minLength": 1 });
        check(&text, &json!("ab"), &[]);
        let expected =
            [("", "value does not match ^a"), ("", "value was longer than 2 characters")];
        check(&text, &json!("bbb"), &expected);
        check(&json!({ "maximum": 2 }), &json!(3), &[("", "value was greater than 2")]);
        let kinds = json!({ "type": ["integer", "string", "null"] });
        check(&kinds, &json!(1.5), &[("", "value was not a whole number or a string")]);
        check(&kinds, &Value::Null, &[]);
    }

    #[test]
    fn the_closest_alternative_is_told() {
        let nic = json!({ "type": "object", "properties": { "mac": { "type": "string" } } });
        let either = json!({ "anyOf": [{ "type": "string" }, nic] });
        check(&either, &json!("x"), &[]);
        check(&either, &json!({ "mac": 7 }), &[("mac", "value was not a string")]);
        check(&either, &json!(7), &[("", "value was not a string")]);
        let one = json!({ "oneOf": [{}, { "const": 1 }] });
        check(&one, &json!(1), &[("", "value is ambiguous")]);
        check(&one, &json!(2), &[]);
        let deep = json!({ "properties": { "a": { "items": { "anyOf": [{ "const": 1 }] } } } });
        check(&deep, &json!({ "a": [1, 2] }), &[("a.1", "value was not 1")]);
    }

    #[test]
    fn what_is_not_understood_is_no_success() {
        let schema = json!({ "properties": { "a": { "items": { "multipleOf": 2 } } } });
        assert_eq!(unknown_keyword(&schema), Some("multipleOf"));
        let found = faults(&Value::Null, &json!({ "multipleOf": 2 }), &json!(2));
        assert_eq!(found.len(), 1);
        assert_eq!(faults(&Value::Null, &json!({ "$ref": "#/x" }), &json!(2)).len(), 1);
        assert_eq!(faults(&Value::Null, &json!({ "pattern": "(" }), &json!("x")).len(), 1);
    }
}
