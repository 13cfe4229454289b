//! Values as clients write them: numbers and switches also as text, lists also as one text with
//! commas, and whatever JavaScript takes for a number. Whoever accepts such values reads them
//! through here, so that all places agree about them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A whole number, or its text; blanks around it do not count.
#[must_use]
pub fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A number, or its text.
#[must_use]
pub fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// As [`number`], with a sign.
#[must_use]
pub fn signed(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// `true` or `false`, or exactly that text.
#[must_use]
pub fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// As [`flag`], with the text in any case.
#[must_use]
pub fn flag_in_any_case(value: &Value) -> Option<bool> {
    match value {
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        other => flag(other),
    }
}

/// An array of texts, or one text with commas; blanks around the parts and empty parts do not
/// count there.
#[must_use]
pub fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        Value::String(text) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Some(items.map(str::to_owned).collect())
        }
        _ => None,
    }
}

/// Whether JavaScript takes a value for true: not absent, null, false, 0 or the empty text.
#[must_use]
pub fn truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(Value::Number(number)) => number.as_f64().is_some_and(|number| number != 0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(_) | Value::Object(_)) => true,
    }
}

/// JavaScript's `Number(x)`; `None` for NaN.
#[must_use]
pub fn js_number(value: &Value) -> Option<f64> {
    match value {
        Value::Null => Some(0.0),
        Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => js_number_text(text),
        Value::Array(items) => match items.as_slice() {
            [] => Some(0.0),
            // An array is first turned into text: `[true]` is "true", which is no number.
            [Value::Bool(_)] => None,
            [one] => js_number(one),
            _ => None,
        },
        Value::Object(_) => None,
    }
}

fn js_number_text(text: &str) -> Option<f64> {
    let text = text.trim();
    let radix = |digits: &str, base: u32| {
        let parsed = u64::from_str_radix(digits, base).ok()?;
        #[expect(clippy::cast_precision_loss, reason = "JavaScript numbers are doubles")]
        let number = parsed as f64;
        (!digits.starts_with('+')).then_some(number)
    };
    match text.get(..2).map(str::to_ascii_lowercase).as_deref() {
        _ if text.is_empty() => Some(0.0),
        Some("0x") => radix(&text[2..], 16),
        Some("0o") => radix(&text[2..], 8),
        Some("0b") => radix(&text[2..], 2),
        _ => match text.trim_start_matches(['+', '-']) {
            "Infinity" if text.len() <= "-Infinity".len() => text.parse().ok(),
            digits if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                text.parse().ok()
            }
            _ => None,
        },
    }
}

/// JavaScript's `parseInt` of a number or a text that starts with one.
#[must_use]
pub fn js_parse_int(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| truncated(number.as_f64()?)),
        Value::String(text) => {
            let text = text.trim_start();
            let end = text
                .char_indices()
                .find(|(at, c)| !(c.is_ascii_digit() || (*at == 0 && matches!(c, '-' | '+'))))
                .map_or(text.len(), |(at, _)| at);
            text[..end].parse().ok()
        }
        _ => None,
    }
}

/// The whole part; `None` far from what a double holds exactly.
#[must_use]
pub fn truncated(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be far inside i64")]
    (number.abs() < 9e15).then_some(number.trunc() as i64)
}

/// A member of somebody else's record (`deserialize_with`), as `read` reads it.
///
/// # Errors
/// It is no JSON.
pub fn member<'de, D: Deserializer<'de>, T>(
    from: D,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    Ok(read(&Value::deserialize(from)?))
}

/// As [`member`]: what is not of the type is as if it were not there.
///
/// # Errors
/// It is no JSON.
pub fn if_fits<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Option<T>, D::Error> {
    member(from, |value| T::deserialize(value).ok())
}

/// Whether a text is a UUID of the form `8-4-4-4-12`, in either case.
#[must_use]
pub fn is_uuid(text: &str) -> bool {
    text.parse::<crate::ids::VmUuid>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_and_switches_are_also_read_from_text() {
        for (value, expected) in [
            (json!(7), Some(7)),
            (json!("7"), Some(7)),
            (json!(" 7 "), Some(7)),
            (json!(-7), None),
            (json!(7.5), None),
            (json!(""), None),
            (json!("7x"), None),
            (json!(null), None),
            (json!([7]), None),
        ] {
            assert_eq!(number(&value), expected, "{value}");
        }
        assert_eq!(signed(&json!("-1")), Some(-1));
        assert_eq!((flag(&json!("true")), flag(&json!(false))), (Some(true), Some(false)));
        assert_eq!((flag(&json!("TRUE")), flag(&json!(1))), (None, None));
        assert_eq!(flag_in_any_case(&json!("False")), Some(false));
        assert_eq!(flag_in_any_case(&json!("yes")), None);
    }

    #[test]
    fn lists_are_also_read_from_text_with_commas() {
        assert_eq!(words(&json!("a, b,,c ")).unwrap(), ["a", "b", "c"]);
        assert_eq!(words(&json!(["a,b", ""])).unwrap(), ["a,b", ""]);
        assert_eq!(words(&json!("")).unwrap(), [""; 0]);
        assert_eq!(words(&json!(["a", 1])), None);
        assert_eq!(words(&json!(1)), None);
    }

    #[test]
    fn number_like_text_is_read_as_in_javascript() {
        for (value, expected) in [
            (json!("0.2"), 0.2),
            (json!(null), 0.0),
            (json!(true), 1.0),
            (json!(""), 0.0),
            (json!([]), 0.0),
            (json!(" 7 "), 7.0),
            (json!("0x1f"), 31.0),
            (json!("-Infinity"), f64::NEG_INFINITY),
            (json!("1e3"), 1000.0),
            (json!(["5"]), 5.0),
            (json!(".5"), 0.5),
        ] {
            assert_eq!(js_number(&value), Some(expected), "{value}");
        }
        for value in
            [json!("a"), json!({}), json!([1, 2]), json!("inf"), json!("0x"), json!("0x+1")]
        {
            assert_eq!(js_number(&value), None, "{value}");
        }
        assert_eq!(js_parse_int(&json!(" 12.9kg")), Some(12));
        assert_eq!(js_parse_int(&json!(-12.9)), Some(-12));
        assert_eq!(js_parse_int(&json!("kg")), None);
    }

    #[test]
    fn uuids_have_hyphens_and_any_case() {
        assert!(is_uuid("929bdb5b-4232-48b6-a4ec-d94cbc265ab2"));
        assert!(is_uuid("929BDB5B-4232-48B6-A4EC-D94CBC265AB2"));
        for text in ["929bdb5b423248b6a4ecd94cbc265ab2", "{929bdb5b-4232-48b6-a4ec-d94cbc265ab}"] {
            assert!(!is_uuid(text), "{text}");
        }
    }
}
