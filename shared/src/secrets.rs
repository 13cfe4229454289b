//! What is never shown, whatever it is part of: one rule for agent and coordinator. What is stored
//! and what is sent to be carried out stays whole.

use serde_json::{Map, Value};

/// A copy without secrets: values of telling names, and all metadata values, become `***`.
#[must_use]
pub fn masked(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(masked_members(members)),
        Value::Array(items) => items.iter().map(masked).collect(),
        other => other.clone(),
    }
}

/// As [`masked`], of an object's members.
#[must_use]
pub fn masked_members(members: &Map<String, Value>) -> Map<String, Value> {
    let member = |(key, value): (&String, &Value)| {
        let hidden = match value {
            Value::Object(metadata) if is_metadata(key) => {
                let hide = |k: &String| (k.clone(), Value::from("***"));
                Value::Object(metadata.keys().map(hide).collect())
            }
            Value::Null | Value::Bool(_) => value.clone(),
            _ if is_secret(key) || is_metadata(key) => Value::from("***"),
            _ => masked(value),
        };
        (key.clone(), hidden)
    };
    members.iter().map(member).collect()
}

fn is_metadata(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["customer_metadata", "internal_metadata"].iter().any(|m| key.ends_with(m))
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let words = ["password", "passwd", "token", "secret", "private_key", "recovery"];
    key.ends_with("_pw") || words.iter().any(|word| key.contains(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_at_any_depth() {
        let params = json!({
            "alias": "web", "root_pw": "x", "nested": [{ "Secret_Key": "y", "n": 1 }],
            "customer_metadata": { "user-script": "z" }, "internal_metadata": { "a": { "b": 1 } },
            "set_customer_metadata": { "k": "v" },
        });
        let expected = json!({
            "alias": "web", "root_pw": "***", "nested": [{ "Secret_Key": "***", "n": 1 }],
            "customer_metadata": { "user-script": "***" }, "internal_metadata": { "a": "***" },
            "set_customer_metadata": { "k": "***" },
        });
        assert_eq!(masked(&params), expected);
    }
}
