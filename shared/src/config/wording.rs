//! What is said of a value of the wrong type: in the words of the file, not in those of the code.

use figment::error::{Actual, Kind};

use super::schema::{Node, nearest};

/// What is wrong with the value at `node`, and what would be right.
pub(super) fn wording(kind: &Kind, node: Option<&Node>) -> String {
    match kind {
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            format!("expected {}, found {}", wanted(actual, expected, node), found(actual))
        }
        Kind::UnknownVariant(name, choices) => {
            let meant = nearest(name, choices.iter().copied());
            let hint = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            let choices: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
            format!("expected {}, found {name:?}{hint}", choices.join(" or "))
        }
        Kind::MissingField(name) => format!("`{name}` is missing"),
        Kind::InvalidLength(length, _) => format!("has the wrong number of items, {length}"),
        Kind::ISizeOutOfRange(_) | Kind::USizeOutOfRange(_) => "the number is too large".to_owned(),
        other => other.to_string(),
    }
}

fn wanted(actual: &Actual, expected: &str, node: Option<&Node>) -> String {
    let is_number = matches!(actual, Actual::Signed(_) | Actual::Unsigned(_));
    match (range(expected), node) {
        (Some(range), _) if is_number => format!("a whole number {range}"),
        (Some(_), None) => "a whole number".to_owned(),
        (_, Some(node)) => node.one(),
        (None, None) => expected.to_owned(),
    }
}

/// The numbers that a type of the code holds.
fn range(expected: &str) -> Option<&'static str> {
    Some(match expected {
        "u8" => "from 0 to 255",
        "u16" => "from 0 to 65535",
        "u32" => "from 0 to 4294967295",
        "u64" | "u128" | "usize" => "of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "that is not as large",
        _ => return None,
    })
}

/// What stands there, as it may have been written.
pub(super) fn found(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(value) => value.to_string(),
        Actual::Signed(value) => value.to_string(),
        Actual::Float(value) => value.to_string(),
        Actual::Char(value) => format!("{:?}", value.to_string()),
        Actual::Str(value) => format!("{value:?}"),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a table".to_owned(),
        Actual::Unit | Actual::Option => "nothing".to_owned(),
        _ => "something else".to_owned(),
    }
}
