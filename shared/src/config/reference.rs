//! Renders the reference page and an example file from a configuration struct.

use std::fmt::Write as _;

use serde_json::Value;

use super::Config;
use super::schema::{Entry, Node};
use super::sources::defaults;

/// A Markdown section: what every key means, its type and its default.
///
/// `title` is the heading, `environment_prefix` as in [`super::Sources::new`].
#[must_use]
pub fn reference<T: Config>(title: &str, environment_prefix: &str) -> String {
    let tree = Node::of::<T>();
    let values = defaults::<T>();
    let mut page = format!("## {title}\n\n");
    let example = tree.leaves().into_iter().map(|(path, _)| path).find(|path| path.contains('.'));
    if let Some(path) = example {
        let variable = path.to_ascii_uppercase().replace('.', "__");
        line(&mut page, &format!("As a variable, `{path}` is `{environment_prefix}{variable}`.\n"));
    }
    line(&mut page, "| Key | Value | Default | Meaning |\n| --- | --- | --- | --- |");
    for (path, Entry { doc, node }) in tree.leaves() {
        let default = default_text(&values, &path);
        let (value, meaning) = (cell(&node.describe()), cell(doc));
        line(&mut page, &format!("| `{path}` | {value} | {default} | {meaning} |"));
    }
    page
}

/// A TOML file with every key at its default, each explained, everything commented out.
#[must_use]
pub fn example_file<T: Config>() -> String {
    let tree = Node::of::<T>();
    let values = defaults::<T>();
    let mut page = String::new();
    for (path, Entry { doc, .. }) in tree.leaves() {
        for sentence in doc.lines() {
            line(&mut page, format!("# {sentence}").trim_end());
        }
        let default = find(&values, &path).and_then(toml_text);
        let default =
            default.map_or_else(|| format!("{path} ="), |text| format!("{path} = {text}"));
        line(&mut page, &format!("#{default}\n"));
    }
    page
}

fn default_text(values: &Value, path: &str) -> String {
    find(values, path)
        .and_then(toml_text)
        .map_or_else(|| "–".to_owned(), |text| format!("`{text}`"))
}

fn find<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(values, |value, key| value.get(key))
}

/// A value as TOML writes it inline; `None` for none.
pub(super) fn toml_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Object(entries) if entries.is_empty() => Some("{}".to_owned()),
        Value::Object(entries) => {
            let entry = |(key, value)| Some(format!("{key} = {}", toml_text(value)?));
            Some(format!(
                "{{ {} }}",
                entries.iter().filter_map(entry).collect::<Vec<_>>().join(", ")
            ))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().filter_map(toml_text).collect();
            Some(format!("[{}]", items.join(", ")))
        }
        simple => Some(simple.to_string()),
    }
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("a String takes every write");
}
