//! The configuration in force: every key with its value and where that came from. Secrets are
//! masked, so that the page may be passed on.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use super::reference::toml_text;
use super::schema::{Node, join};
use crate::secrets::masked;

/// What stands for a secret.
const MASK: &str = "***";

/// A key in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The key, parts joined by dots.
    pub key: String,
    /// Its value, secrets masked; `null` if it is not set.
    pub value: Value,
    /// Where the value came from: `default`, `--set …`, `file /etc/… line 3`, …
    pub source: String,
}

impl Setting {
    /// Whether somebody set it.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.source != super::sources::DEFAULTS
    }
}

/// A configuration, and its settings in the order of the reference page.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The configuration.
    pub config: T,
    /// What it was made of.
    pub settings: Vec<Setting>,
}

/// The settings of a configuration, given as JSON.
pub(super) fn settings(
    tree: &Node,
    values: &Value,
    source: impl Fn(&str) -> Option<String>,
) -> Vec<Setting> {
    let mut leaves = Vec::new();
    collect(tree, "", values, &mut leaves);
    let setting = |(key, value): (String, Value)| {
        let source = source(&key).unwrap_or_else(|| super::sources::DEFAULTS.to_owned());
        Setting { value: shown(&key, &value), key, source }
    };
    leaves.into_iter().map(setting).collect()
}

fn collect(node: &Node, key: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match node {
        Node::Table(entries) => {
            for (name, entry) in entries {
                collect(&entry.node, &join(key, name), &value[name], leaves);
            }
        }
        Node::Map(inner) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                collect(inner, &join(key, name), value, leaves);
            }
        }
        _ => leaves.push((key.to_owned(), value.clone())),
    }
}

/// Whether the value of this key must not be shown.
fn is_secret(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or_default();
    // The name of a file is none, whatever is in it.
    !name.ends_with("_file") && masked(&json!({ name: "value" }))[name] == MASK
}

fn shown(key: &str, value: &Value) -> Value {
    match value {
        Value::String(_) if is_secret(key) => Value::from(MASK),
        Value::String(text) => Value::from(without_password(text)),
        Value::Array(items) => items.iter().map(|item| shown(key, item)).collect(),
        other => masked(other),
    }
}

/// A value as a source told it, without what must not be shown.
pub(super) fn masked_for_key(key: &str, text: &str) -> String {
    if is_secret(key) { MASK.to_owned() } else { without_password(text) }
}

/// A URL may carry a password.
fn without_password(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    if url.password().is_none() || url.set_password(Some(MASK)).is_err() {
        return text.to_owned();
    }
    url.to_string()
}

/// A TOML file that says the same, each line with its source; keys that are not set are comments.
#[must_use]
pub fn show(settings: &[Setting]) -> String {
    let lines: Vec<(String, &str)> = settings.iter().map(|it| (line(it), &*it.source)).collect();
    // Long lists push only their own source aside.
    let short = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= 60);
    let width = short.max().unwrap_or(0);
    lines.iter().fold(String::new(), |mut page, (line, source)| {
        writeln!(page, "{line:width$}  # {source}").expect("a String takes every write");
        page
    })
}

fn line(setting: &Setting) -> String {
    match toml_text(&setting.value) {
        Some(value) => format!("{} = {value}", setting.key),
        None => format!("# {} is not set", setting.key),
    }
}
