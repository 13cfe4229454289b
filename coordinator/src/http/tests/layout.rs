//! JSON as people read it: what fits a line stands in one, and short members share lines.

use serde_json::Value;

const WIDTH: usize = 100;

/// The text of a value.
pub(super) fn layout(value: &Value) -> String {
    lines(value, 0, 0)
}

/// `before`: characters that stand before it in its first line.
fn lines(value: &Value, indent: usize, before: usize) -> String {
    let line = flat(value);
    // With the comma that may follow.
    if before + line.chars().count() < WIDTH {
        return line;
    }
    match value {
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                let name = format!("{}: ", Value::from(name.as_str()));
                let before = indent + 2 + name.chars().count();
                name + &lines(value, indent + 2, before)
            };
            block(["{", "}"], members.iter().map(member), indent)
        }
        Value::Array(items) => {
            let item = |item| lines(item, indent + 2, indent + 2);
            block(["[", "]"], items.iter().map(item), indent)
        }
        _ => line,
    }
}

/// Parts between brackets, as many in a line as fit it.
fn block(brackets: [&str; 2], parts: impl Iterator<Item = String>, indent: usize) -> String {
    let inner = " ".repeat(indent + 2);
    let mut rows: Vec<String> = Vec::new();
    for part in parts {
        let fits = |row: &String| {
            let one_line = !row.contains('\n') && !part.contains('\n');
            one_line && inner.len() + row.chars().count() + part.chars().count() + 3 <= WIDTH
        };
        match rows.last_mut() {
            Some(row) if fits(row) => *row += &format!(", {part}"),
            _ => rows.push(part),
        }
    }
    let rows = rows.join(&format!(",\n{inner}"));
    format!("{}\n{inner}{rows}\n{}{}", brackets[0], " ".repeat(indent), brackets[1])
}

fn flat(value: &Value) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Object(members) if !members.is_empty() => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), flat(value))
            };
            format!("{{ {} }}", join(members.iter().map(member).collect()))
        }
        Value::Array(items) => format!("[{}]", join(items.iter().map(flat).collect())),
        other => other.to_string(),
    }
}

#[test]
fn the_layout_is_the_same_value() {
    let long = serde_json::json!({
        "a": 1, "b": "x\"y", "list": [1, 2, { "c": null }], "empty": {},
        "a long name": { "g": "x".repeat(70) }, "inner": { "d": "x".repeat(60), "e": "y".repeat(60), "f": [true, "z".repeat(90)] },
    });
    let text = layout(&long);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), long);
    assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
    assert!(text.starts_with("{\n  \"a\": 1, \"b\": \"x\\\"y\", "), "{text}");
    assert_eq!(layout(&serde_json::json!({ "a": [1] })), "{ \"a\": [1] }");
}
