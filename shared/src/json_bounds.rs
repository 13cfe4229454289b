//! What a JSON text will take in memory, told before it is parsed.
//!
//! A text of zeros and commas grows forty times when it becomes values, so a bound on the text
//! alone is no bound on memory.

use serde_json::Value;

/// Most values in one request or message; the largest honest ones have a tenth of it.
pub const MAX_VALUES: usize = 250_000;
/// What an entry of an object takes beside its value: name, hash and place in the index.
const ENTRY_BYTES: usize = 40;

/// How many values a JSON text holds, at most; of what is no JSON, any number.
#[must_use]
pub fn values(text: &[u8]) -> usize {
    let mut values = 1_usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values = values.saturating_add(1),
            _ => {}
        }
    }
    values
}

/// Whether a JSON text may hold more than [`MAX_VALUES`]. Short texts, which are most, are not even
/// looked at: every value but the first comes after a separator.
#[must_use]
pub fn is_over(text: &[u8]) -> bool {
    text.len() >= MAX_VALUES && values(text) > MAX_VALUES
}

/// The memory that a text of so many bytes and [`values`] needs, itself and parsed, bytes.
#[must_use]
pub fn weight(bytes: usize, values: usize) -> usize {
    // Texts are kept a second time, in the values.
    bytes.saturating_mul(2).saturating_add(values.saturating_mul(size_of::<Value>() + ENTRY_BYTES))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(members) => members.values().map(count).sum(),
            _ => 0,
        }
    }

    #[test]
    fn separators_in_texts_are_not_counted() {
        assert_eq!(values(br#""a,[{\",,\\""#), 1);
        assert_eq!(values(br#"{"a,":["x,y",1]}"#), 4);
    }

    #[test]
    fn the_shortest_text_of_too_many_values_is_noticed() {
        let commas = |count: usize| ",".repeat(count);
        assert!(!is_over(commas(MAX_VALUES - 1).as_bytes()));
        assert!(is_over(commas(MAX_VALUES).as_bytes()));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            ".*".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_value_is_missed(value in any_json()) {
            let text = value.to_string();
            let counted = values(text.as_bytes());
            prop_assert!(counted >= count(&value), "{counted} in {text}");
            // An empty list or object is counted twice.
            prop_assert!(counted <= 2 * count(&value), "{counted} in {text}");
        }
    }

    #[test]
    fn zeros_weigh_more_than_their_text() {
        let text = json!(vec![0; 1000]).to_string();
        assert!(weight(text.len(), values(text.as_bytes())) > 30 * text.len());
    }
}
