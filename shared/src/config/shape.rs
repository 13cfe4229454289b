//! Holds a document that somebody wrote against the type that it is to be read as.

use serde_json::Value;
use utoipa::ToSchema;

use super::Problems;
use super::schema::{Node, join, nearest};

/// Takes out of a document what is not as `T` has it, and adds each to `problems` under its path:
/// unknown members with the name that may have been meant, values of the wrong type, and empty ones.
pub fn keep_shape<T: ToSchema>(document: &mut Value, problems: &mut Problems) {
    if !keep(&Node::of::<T>(), document, "", problems) {
        *document = Value::Object(serde_json::Map::new());
    }
}

/// Whether the value may stay; if not, why is said.
fn keep(node: &Node, value: &mut Value, path: &str, problems: &mut Problems) -> bool {
    match (node, &mut *value) {
        (Node::Any, _)
        | (Node::Text, Value::String(_))
        | (Node::Boolean, Value::Bool(_))
        | (Node::Number, Value::Number(_)) => return true,
        (Node::Integer, Value::Number(number)) if number.is_u64() => return true,
        (Node::Choice(choices), Value::String(word)) => {
            if choices.contains(word) {
                return true;
            }
            let meant = nearest(word, choices.iter().map(String::as_str));
            let hint = meant.map(|meant| format!(", did you mean `{meant}`?")).unwrap_or_default();
            problems.add(path, format!("expected {}, found {word:?}{hint}", node.one()));
            return false;
        }
        (Node::Table(entries), Value::Object(members)) => {
            members.retain(|name, value| {
                let path = join(path, name);
                let Some(entry) = entries.get(name) else {
                    let meant = nearest(name, entries.keys().map(String::as_str));
                    let hint = meant.map(|it| format!(", did you mean `{it}`?"));
                    problems.add(&path, format!("unknown field{}", hint.unwrap_or_default()));
                    return false;
                };
                keep(&entry.node, value, &path, problems)
            });
            return true;
        }
        (Node::Map(inner), Value::Object(members)) => {
            members.retain(|name, value| keep(inner, value, &join(path, name), problems));
            return true;
        }
        (Node::List(inner), Value::Array(items)) => {
            let mut good = true;
            for (number, item) in items.iter_mut().enumerate() {
                good &= keep(inner, item, &join(path, &number.to_string()), problems);
            }
            // Without an item those behind it would have other numbers.
            return good;
        }
        _ => {}
    }
    problems.add(path, format!("expected {}, found {}", node.one(), found(value)));
    false
}

fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Shelf {
        /// How many boards.
        boards: Option<u32>,
        label: String,
        books: Vec<Book>,
        notes: std::collections::BTreeMap<String, bool>,
        kind: Kind,
    }

    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is looked at")]
    struct Book {
        title: String,
    }

    #[derive(ToSchema)]
    #[schema(rename_all = "lowercase")]
    #[expect(dead_code, reason = "only its schema is looked at")]
    enum Kind {
        Wood,
        Steel,
    }

    #[track_caller]
    fn check(mut document: Value, kept: &Value, wrong: &[(&str, &str)]) {
        let mut problems = Problems::default();
        keep_shape::<Shelf>(&mut document, &mut problems);
        let found = problems.into_result().err().map(|error| error.problems).unwrap_or_default();
        let found: Vec<_> = found.iter().map(|it| (it.key.as_str(), it.message.as_str())).collect();
        assert_eq!(found, wrong);
        assert_eq!(document, *kept);
    }

    #[test]
    fn what_fits_stays() {
        let good = json!({
            "boards": 3, "label": "x", "books": [{ "title": "y" }], "notes": { "a.b": true },
            "kind": "wood",
        });
        check(good.clone(), &good, &[]);
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let bad = json!({
            "bords": 3, "label": 7, "books": [{ "titel": "y" }, "z"], "notes": { "a": 1 },
            "kind": "woood", "boards": -1,
        });
        let wrong = [
            ("bords", "unknown field, did you mean `boards`?"),
            ("label", "expected text, found 7"),
            ("books.0.titel", "unknown field, did you mean `title`?"),
            ("books.1", "expected a table, found \"z\""),
            ("notes.a", "expected `true` or `false`, found 1"),
            ("kind", "expected `wood` or `steel`, found \"woood\", did you mean `wood`?"),
            ("boards", "expected a whole number, found -1"),
        ];
        check(bad, &json!({ "notes": {} }), &wrong);
        check(json!([]), &json!({}), &[("", "expected a table, found a list")]);
        check(json!(null), &json!({}), &[("", "expected a table, found nothing")]);
    }
}
