//! The hash by which a sysinfo document is known to be unchanged.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// SHA-256 (hex) over the document's JSON with sorted keys, without `Muster.agent_instance_id`,
/// which changes with every start of the agent, and without the counters of interfaces, which always
/// change.
#[must_use]
pub fn hash(document: &Map<String, Value>) -> String {
    let mut document = document.clone();
    if let Some(Value::Object(muster)) = document.get_mut("Muster") {
        muster.shift_remove("agent_instance_id");
    }
    if let Some(Value::Object(interfaces)) = document.get_mut("Network Interfaces") {
        for interface in interfaces.values_mut().filter_map(Value::as_object_mut) {
            interface.shift_remove("Counters");
        }
    }
    hex::encode(Sha256::digest(sorted(&Value::Object(document)).to_string()))
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<&String, Value> =
                members.iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(members.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(one: &Value, other: &Value, equal: bool) {
        let hash_of = |value: &Value| hash(value.as_object().unwrap());
        assert_eq!(hash_of(one) == hash_of(other), equal);
    }

    #[test]
    fn neither_order_nor_the_agents_instance_matter() {
        check(
            &json!({"a": {"x": 1, "y": 2}, "b": 3}),
            &json!({"b": 3, "a": {"y": 2, "x": 1}}),
            true,
        );
        check(
            &json!({"Muster": {"agent_instance_id": "1", "boot_id": "b"}}),
            &json!({"Muster": {"agent_instance_id": "2", "boot_id": "b"}}),
            true,
        );
        check(&json!({"Muster": {"boot_id": "a"}}), &json!({"Muster": {"boot_id": "b"}}), false);
        let counted = |name: &str, count: u64| json!({"Network Interfaces": {"eth0": {name: {"rx_errors": count}}}});
        check(&counted("Counters", 1), &counted("Counters", 2), true);
        check(&counted("Other", 1), &counted("Other", 2), false);
        check(&json!({"a": [1, 2]}), &json!({"a": [2, 1]}), false);
    }
}
