//! Numbers as the reference's language treats them: conversion, truth, and text.
//!
//! Reasons are compared byte for byte with the reference's, so these follow ECMAScript
//! (`Number()`, `String()`, `toFixed(2)`), not Rust's own conventions.

use std::fmt::Write as _;

pub use muster_shared::lenient::truthy;
use serde_json::{Number, Value};

/// The value if it is truthy.
#[must_use]
pub fn some_truthy(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| truthy(Some(value)))
}

/// Lenient conversion to a number: text is trimmed and parsed, the empty text is 0, what can't be
/// converted is NaN.
#[must_use]
pub fn num(value: &Value) -> f64 {
    match value {
        Value::Null => 0.0,
        Value::Bool(b) => f64::from(u8::from(*b)),
        Value::Number(n) => n.as_f64().unwrap_or(f64::NAN),
        Value::String(s) => match s.trim() {
            "" => 0.0,
            // Rust would also accept "nan", "inf" and "infinity" in any case.
            s if s.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => {
                s.parse().unwrap_or(f64::NAN)
            }
            _ => f64::NAN,
        },
        Value::Array(_) | Value::Object(_) => f64::NAN,
    }
}

/// `Some` unless the number is 0 or NaN.
#[must_use]
pub fn nonzero(x: f64) -> Option<f64> {
    (x != 0.0 && !x.is_nan()).then_some(x)
}

/// A number's text: the shortest decimal that reads back as the same number.
#[must_use]
pub fn text(x: f64) -> String {
    if x.is_nan() {
        "NaN".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else if x == 0.0 {
        "0".to_owned()
    } else if x.abs() >= 1e21 {
        format!("{x:e}").replace('e', "e+")
    } else if x.abs() < 1e-6 {
        format!("{x:e}")
    } else {
        format!("{x}")
    }
}

/// Two decimals of the exact value; a tie goes away from zero.
#[must_use]
pub fn fix2(x: f64) -> String {
    let mut out = String::new();
    push_fix2(&mut out, x);
    out
}

/// Appends [`fix2`].
pub(crate) fn push_fix2(out: &mut String, x: f64) {
    let scaled = x.abs() * 100.0;
    if scaled < 1e9 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked: from 0 to 10^9"
        )]
        let whole = scaled as u64;
        let rest = scaled - float(whole);
        // The product is off by less than a millionth: far from the middle it is near enough.
        if (rest - 0.5).abs() > 1e-6 {
            let hundredths = whole + u64::from(rest > 0.5);
            let sign = if x < 0.0 { "-" } else { "" };
            let (units, parts) = (hundredths / 100, hundredths % 100);
            write!(out, "{sign}{units}.{parts:02}").expect("writing to a String does not fail");
            return;
        }
    }
    out.push_str(&exact_fix2(x));
}

fn exact_fix2(x: f64) -> String {
    if x == 0.0 {
        return "0.00".to_owned();
    }
    // Only an odd number of eighths lies exactly between two hundredths.
    let eighths = x.abs() * 8.0;
    if eighths < 1e15 && eighths.fract() == 0.0 && eighths % 2.0 == 1.0 {
        // (m/8)·100 = 12.5·m, whose half is rounded up; exact in an f64 at this size.
        let hundredths = eighths * 12.5 + 0.5;
        let sign = if x < 0.0 { "-" } else { "" };
        let whole = (hundredths / 100.0).trunc();
        return format!("{sign}{whole}.{:02}", hundredths - whole * 100.0);
    }
    format!("{x:.2}")
}

/// A number as JSON, integers without a fraction.
#[must_use]
pub fn json(x: f64) -> Value {
    if x.fract() == 0.0 && x.abs() < 9_007_199_254_740_992.0 {
        #[expect(clippy::cast_possible_truncation, reason = "checked: an integer below 2^53")]
        let integer = x as i64;
        return Value::from(integer);
    }
    Number::from_f64(x).map_or(Value::Null, Value::Number)
}

/// A value's text as in string concatenation.
#[must_use]
pub fn display(value: Option<&Value>) -> String {
    match value {
        None => "undefined".to_owned(),
        Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(b)) => b.to_string(),
        Some(Value::Number(n)) => n.as_f64().map_or_else(|| n.to_string(), text),
        Some(Value::String(s)) => s.clone(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| if item.is_null() { String::new() } else { display(Some(item)) })
            .collect::<Vec<_>>()
            .join(","),
        Some(Value::Object(_)) => "[object Object]".to_owned(),
    }
}

/// The value's type as the validators name it.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A size as the arithmetic's number.
#[expect(clippy::cast_precision_loss, reason = "JSON numbers are doubles in the reference, too")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

/// A count as a number.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub fn count(n: usize) -> f64 {
    n as f64
}

/// The whole part of a non-negative number as a count; 0 for anything below 1 or not a number.
#[must_use]
pub fn trunc(x: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and saturation is what a count wants"
    )]
    let n = x as usize;
    n
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_decimals_round_ties_up() {
        for (x, want) in [
            (0.125, "0.13"),
            (0.375, "0.38"),
            (0.625, "0.63"),
            (1.125, "1.13"),
            (2.875, "2.88"),
            (0.005, "0.01"),
            (1.005, "1.00"),
            (0.995, "0.99"),
            (9.999, "10.00"),
            (-0.125, "-0.13"),
            (0.0, "0.00"),
            (-0.0, "0.00"),
            (100.125, "100.13"),
            (4.0, "4.00"),
        ] {
            assert_eq!(fix2(x), want, "{x}");
        }
    }

    proptest::proptest! {
        #[test]
        fn short_and_exact_ways_to_two_decimals_agree(
            x in -1e8..1e8_f64, eighths in -4000..4000_i32, hundredths in -4000..4000_i32,
        ) {
            for x in [x, x / 1e6, f64::from(eighths) / 8.0, f64::from(hundredths) / 200.0] {
                proptest::prop_assert_eq!(fix2(x), exact_fix2(x), "{}", x);
            }
        }
    }

    #[test]
    fn numbers_have_no_needless_digits() {
        for (x, want) in [(4.0, "4"), (37.5, "37.5"), (-1126.0, "-1126"), (-0.0, "0"), (0.1, "0.1")]
        {
            assert_eq!(text(x), want);
        }
        for (x, want) in [
            (1e-7, "1e-7"),
            (-1.25e-9, "-1.25e-9"),
            (0.000_001, "0.000001"),
            (1.024e21, "1.024e+21"),
            (1e20, "100000000000000000000"),
        ] {
            assert_eq!(text(x), want);
        }
    }

    #[test]
    fn conversion_is_lenient() {
        for (value, want) in [
            (json!(" 1.5 "), 1.5),
            (json!(""), 0.0),
            (json!("1e3"), 1000.0),
            (json!(true), 1.0),
            (json!(null), 0.0),
            (json!(7), 7.0),
        ] {
            assert_eq!(num(&value), want, "{value}");
        }
        for value in [json!("x"), json!("inf"), json!("nan"), json!([1]), json!({})] {
            assert!(num(&value).is_nan(), "{value}");
        }
    }
}
