//! The rule vocabulary of parameter validation (sdc-cnapi `lib/validation/endpoints.js`): rules
//! run in the order in which they are listed, and each one that fails adds an error.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use muster_shared::api::FieldError;
use muster_shared::api::Object;
use muster_shared::lenient::{flag_in_any_case, js_number};
use parking_lot::Mutex;
use regex::Regex;
use serde_json::Value;

/// One check of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Skips all later rules when the parameter is absent. Must be first.
    Optional,
    /// As [`Rule::Optional`], and also when it is null.
    Nullable,
    /// A JSON string.
    StringType,
    /// A JSON object; neither an array nor null.
    ObjectType,
    /// A JSON array.
    ArrayType,
    /// `true` or `false`.
    BooleanType,
    /// The text `true` or `false` in any case, or a boolean.
    BooleanString,
    /// Anything that JavaScript's `Number(x)` does not turn into NaN.
    NumberType,
    /// As [`Rule::NumberType`], and not less than zero.
    NotNegative,
    /// A string, or number-like.
    NumberOrString,
    /// Neither leading nor trailing whitespace.
    Trim,
    /// No control character: it is a name, and is printed.
    Plain,
    /// Decimal integer text.
    Int,
    /// Text in which the pattern is found.
    Regex(&'static str),
    /// A hyphenated UUID in either case.
    Uuid,
    /// Replaces the accepted text by a boolean; list it after [`Rule::BooleanString`].
    ToBoolean,
}

/// For [`Rule::Regex`]: `true` or `false` in any case.
pub(crate) const FLAG_PATTERN: &str = "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$";
/// The pattern of [`Rule::Uuid`].
pub(crate) const UUID_PATTERN: &str =
    "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";

/// Runs a parameter's rules over the map; conversions are applied to it in place.
pub(crate) fn check(name: &str, rules: &[Rule], params: &mut Object, errors: &mut Vec<FieldError>) {
    for rule in rules {
        match rule {
            Rule::Optional if !params.has(name) => return,
            Rule::Nullable if params.get(name).is_none_or(Value::is_null) => return,
            Rule::Optional | Rule::Nullable => {}
            Rule::ToBoolean => {
                if let Some(value) = params.get_mut(name)
                    && let Some(flag) = flag_in_any_case(value)
                {
                    *value = Value::Bool(flag);
                }
            }
            _ => {
                if let Some(message) = judge(*rule, name, params.get(name)) {
                    errors.push(FieldError::new(name, message));
                }
            }
        }
    }
}

/// The message of a failed rule; `None` when it passes.
fn judge(rule: Rule, name: &str, value: Option<&Value>) -> Option<String> {
    let fail = |failed: bool, message: &str| failed.then(|| message.to_owned());
    let invalid = || Some(format!("Invalid value for param '{name}'"));
    match rule {
        Rule::Optional | Rule::Nullable | Rule::ToBoolean => None,
        Rule::StringType => {
            fail(!matches!(value, Some(Value::String(_))), "value was not a string")
        }
        Rule::ObjectType => {
            let was = match value {
                Some(Value::Object(_)) => return None,
                None => "Undefined",
                Some(Value::Null) => "Null",
                Some(Value::String(_)) => "String",
                Some(Value::Number(_)) => "Number",
                Some(Value::Bool(_)) => "Boolean",
                Some(Value::Array(_)) => "Array",
            };
            Some(format!("value is not an object. (was: [object {was}])"))
        }
        Rule::ArrayType => fail(!matches!(value, Some(Value::Array(_))), "value was not an array"),
        Rule::BooleanType => {
            fail(!matches!(value, Some(Value::Bool(_))), "value was not true or false")
        }
        Rule::BooleanString => {
            fail(value.and_then(flag_in_any_case).is_none(), "value was not 'true' or 'false'")
        }
        Rule::NumberType => fail(value.and_then(js_number).is_none(), "value was not a number"),
        Rule::NotNegative => match value.and_then(js_number) {
            None => fail(true, "value was not a number"),
            Some(number) => fail(number < 0.0, "value was not greater than or equal to zero"),
        },
        Rule::NumberOrString => {
            let fits =
                matches!(value, Some(Value::String(_))) || value.and_then(js_number).is_some();
            fail(!fits, "value was not a number or string")
        }
        Rule::Trim => {
            let loose = matches!(value, Some(Value::String(text)) if text.trim() != text);
            fail(loose, "value contains leading or trailing whitespace")
        }
        Rule::Plain => {
            let acts =
                matches!(value, Some(Value::String(text)) if text.chars().any(char::is_control));
            fail(acts, "value contains control characters")
        }
        Rule::Int => match value.and_then(plain_text) {
            Some(text) if is_int(&text) => None,
            _ => invalid(),
        },
        Rule::Regex(pattern) => match value.and_then(plain_text) {
            Some(text) if found(pattern, &text) => None,
            _ => invalid(),
        },
        Rule::Uuid => judge(Rule::Regex(UUID_PATTERN), name, value),
    }
}

/// Scalars as text. Arrays (repeated parameters) and objects have none, so that no pattern
/// accepts them.
fn plain_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_int(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'))
}

/// Whether a pattern of the route table is found in the text. Compiled once per pattern.
fn found(pattern: &'static str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<BTreeMap<&'static str, Regex>>> = LazyLock::new(Mutex::default);
    COMPILED
        .lock()
        .entry(pattern)
        .or_insert_with(|| {
            Regex::new(pattern).expect("patterns are constants, tested by the table")
        })
        .is_match(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn errors(rules: &[Rule], value: Option<Value>) -> Vec<String> {
        let mut params = Object::new();
        if let Some(value) = value {
            params.set("p", value);
        }
        let mut errors = Vec::new();
        check("p", rules, &mut params, &mut errors);
        errors.into_iter().map(|e| e.message).collect()
    }

    #[test]
    fn number_like_text_passes_as_in_javascript() {
        for value in [
            json!("0.2"),
            json!(null),
            json!(true),
            json!(""),
            json!([]),
            json!(" 7 "),
            json!("0x1f"),
            json!("-Infinity"),
            json!("1e3"),
            json!(["5"]),
            json!(".5"),
        ] {
            assert_eq!(errors(&[Rule::NumberType], Some(value.clone())), [""; 0], "{value}");
        }
        for value in [
            json!("a"),
            json!({}),
            json!([1, 2]),
            json!("1a"),
            json!("inf"),
            json!("nan"),
            json!("0x"),
        ] {
            assert_eq!(
                errors(&[Rule::NumberType], Some(value.clone())),
                ["value was not a number"],
                "{value}"
            );
        }
    }

    #[test]
    fn every_failed_rule_adds_an_error() {
        assert_eq!(
            errors(&[Rule::StringType, Rule::NumberType], Some(json!({}))),
            ["value was not a string", "value was not a number"]
        );
        assert_eq!(
            errors(&[Rule::ObjectType], None),
            ["value is not an object. (was: [object Undefined])"]
        );
        assert_eq!(
            errors(&[Rule::ObjectType], Some(json!([]))),
            ["value is not an object. (was: [object Array])"]
        );
        assert_eq!(
            errors(&[Rule::StringType, Rule::Trim], Some(json!(" a"))),
            ["value contains leading or trailing whitespace"]
        );
    }

    #[test]
    fn names_have_no_control_characters() {
        let message = ["value contains control characters"];
        for bad in ["a\u{1b}[2J", "a\nb", "\u{9b}"] {
            assert_eq!(
                errors(&[Rule::StringType, Rule::Plain], Some(json!(bad))),
                message,
                "{bad:?}"
            );
        }
        assert_eq!(errors(&[Rule::StringType, Rule::Plain], Some(json!("Zürich 1"))), [""; 0]);
    }

    #[test]
    fn optional_skips_only_when_absent() {
        assert_eq!(errors(&[Rule::Optional, Rule::StringType], None), [""; 0]);
        assert_eq!(
            errors(&[Rule::Optional, Rule::StringType], Some(Value::Null)),
            ["value was not a string"]
        );
    }

    #[test]
    fn nullable_also_skips_null() {
        assert_eq!(errors(&[Rule::Nullable, Rule::StringType], None), [""; 0]);
        assert_eq!(errors(&[Rule::Nullable, Rule::StringType], Some(Value::Null)), [""; 0]);
        assert_eq!(
            errors(&[Rule::Nullable, Rule::StringType], Some(json!(7))),
            ["value was not a string"]
        );
    }

    #[test]
    fn a_flag_may_be_a_pattern() {
        for accepted in [json!("TRUE"), json!("false"), json!(true)] {
            assert_eq!(errors(&[Rule::Regex(FLAG_PATTERN)], Some(accepted)), [""; 0]);
        }
        let refused = errors(&[Rule::Regex(FLAG_PATTERN)], Some(json!("yes")));
        assert_eq!(refused, ["Invalid value for param 'p'"]);
    }

    #[test]
    fn repeated_parameters_match_no_pattern() {
        let twice = Some(json!(["5", "6"]));
        assert_eq!(errors(&[Rule::Int], twice.clone()), ["Invalid value for param 'p'"]);
        assert_eq!(errors(&[Rule::Regex("^.*$")], twice.clone()), ["Invalid value for param 'p'"]);
        assert_eq!(errors(&[Rule::BooleanString], twice), ["value was not 'true' or 'false'"]);
        assert_eq!(errors(&[Rule::Int], Some(json!("1.5"))), ["Invalid value for param 'p'"]);
        assert_eq!(errors(&[Rule::Int], Some(json!(5))), [""; 0]);
    }

    #[test]
    fn to_boolean_converts_accepted_text() {
        let mut params = Object::from_iter([("p", json!("TRUE"))]);
        check("p", &[Rule::BooleanString, Rule::ToBoolean], &mut params, &mut Vec::new());
        assert_eq!(params.get("p"), Some(&json!(true)));
    }
}
