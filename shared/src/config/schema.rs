//! The tree of keys a configuration struct has, read from its schema.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A similarity under which a name is no likely misspelling.
const LIKELY: f64 = 0.6;

/// The name most like `wrong`, if one is likely to be meant.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likely = names
        .into_iter()
        .map(|name| (likeness(name, wrong), name))
        .filter(|(likeness, _)| *likeness >= LIKELY);
    likely.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// How like two names are, 1 for equal ones; 0 below [`LIKELY`] where their lengths tell: comparing
/// takes as long as their product.
fn likeness(known: &str, wrong: &str) -> f64 {
    let lengths = [known.chars().count(), wrong.chars().count()];
    let [shorter, longer] = [lengths[0].min(lengths[1]), lengths[0].max(lengths[1])];
    // Each character that one has more is a change.
    let most = f64::from(u32::try_from(shorter).unwrap_or(0))
        / f64::from(u32::try_from(longer.max(1)).unwrap_or(u32::MAX));
    if most < LIKELY { 0.0 } else { strsim::normalized_damerau_levenshtein(known, wrong) }
}

/// A key and its meaning.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The doc comment of the field.
    pub(super) doc: String,
    /// What may stand there.
    pub(super) node: Node,
}

/// What may stand at a key.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// A table with these keys, in the order of the struct.
    Table(IndexMap<String, Entry>),
    /// A table with keys of the operator's choice.
    Map(Box<Node>),
    /// A list.
    List(Box<Node>),
    /// A text.
    Text,
    /// One of these texts.
    Choice(Vec<String>),
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// Anything.
    Any,
}

impl Node {
    /// The tree of `T`.
    pub(super) fn of<T: ToSchema>() -> Self {
        let mut schemas = Vec::new();
        T::schemas(&mut schemas);
        let definitions: BTreeMap<String, Value> =
            schemas.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
        Self::read(&json!(T::schema()), &definitions)
    }

    fn read(schema: &Value, definitions: &BTreeMap<String, Value>) -> Self {
        if let Some(target) = definition(schema, definitions) {
            return Self::read(target, definitions);
        }
        // `Option<T>` is either of null and T.
        for combined in ["oneOf", "anyOf", "allOf"] {
            if let Some(parts) = schema[combined].as_array() {
                let mut parts = parts.iter().filter(|part| part["type"] != "null");
                return match (parts.next(), parts.next()) {
                    (Some(only), None) => Self::read(only, definitions),
                    _ => Self::Any,
                };
            }
        }
        if let Some(values) = schema["enum"].as_array() {
            let texts = values.iter().filter_map(Value::as_str).map(str::to_owned);
            return Self::Choice(texts.collect());
        }
        match type_name(schema) {
            "object" => Self::read_object(schema, definitions),
            "array" => Self::List(Box::new(Self::read(&schema["items"], definitions))),
            "string" => Self::Text,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => Self::Any,
        }
    }

    fn read_object(schema: &Value, definitions: &BTreeMap<String, Value>) -> Self {
        if let Some(properties) = schema["properties"].as_object() {
            let entry = |(key, property): (&String, &Value)| {
                let doc = text(&property["description"])
                    .or_else(|| {
                        definition(property, definitions).and_then(|d| text(&d["description"]))
                    })
                    .unwrap_or_default();
                (key.clone(), Entry { doc, node: Self::read(property, definitions) })
            };
            Self::Table(properties.iter().map(entry).collect())
        } else if schema["additionalProperties"].is_object() {
            Self::Map(Box::new(Self::read(&schema["additionalProperties"], definitions)))
        } else {
            Self::Any
        }
    }

    /// The node at a key; `None` when there is no such key.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match self {
            Self::Table(entries) => entries.get(*first)?.node.at(rest),
            Self::Map(inner) => inner.at(rest),
            Self::List(inner) if first.parse::<usize>().is_ok() => inner.at(rest),
            Self::Any => Some(self),
            _ => None,
        }
    }

    /// Every key that can hold a value, with its meaning; `<name>` stands for a key of choice.
    pub(super) fn leaves(&self) -> Vec<(String, &Entry)> {
        let mut leaves = Vec::new();
        self.collect("", &mut leaves);
        leaves
    }

    fn collect<'a>(&'a self, prefix: &str, leaves: &mut Vec<(String, &'a Entry)>) {
        match self {
            Self::Table(entries) => {
                for (key, entry) in entries {
                    let path = join(prefix, key);
                    match &entry.node {
                        Self::Table(_) => entry.node.collect(&path, leaves),
                        Self::Map(inner) if matches!(**inner, Self::Table(_)) => {
                            inner.collect(&join(&path, "<name>"), leaves);
                        }
                        _ => leaves.push((path, entry)),
                    }
                }
            }
            Self::Map(inner) => inner.collect(&join(prefix, "<name>"), leaves),
            _ => {}
        }
    }

    /// The known key most like `wrong`, if one is likely to be meant.
    pub(super) fn nearest(&self, wrong: &str) -> Option<String> {
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        let likeness = |path: &str| {
            let whole = likeness(path, wrong);
            // The right name in the wrong section is a likely mistake, too.
            let name = likeness(&last(path), &last(wrong));
            whole.max(name * 0.95)
        };
        let mut leaves: Vec<_> =
            self.leaves().into_iter().map(|(path, _)| (likeness(&path), path)).collect();
        leaves.sort_by(|a, b| b.0.total_cmp(&a.0));
        leaves.into_iter().next().filter(|(best, _)| *best >= LIKELY).map(|(_, path)| path)
    }

    /// What may stand here, for people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Table(_) | Self::Map(_) => "table".to_owned(),
            Self::List(inner) => format!("list of {}", inner.describe()),
            Self::Text => "text".to_owned(),
            Self::Choice(choices) => {
                choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(" or ")
            }
            Self::Integer => "whole number".to_owned(),
            Self::Number => "number".to_owned(),
            Self::Boolean => "`true` or `false`".to_owned(),
            Self::Any => "value".to_owned(),
        }
    }

    /// As [`Self::describe`], within a sentence.
    pub(super) fn one(&self) -> String {
        let what = self.describe();
        match self {
            Self::Text | Self::Choice(_) | Self::Boolean => what,
            _ => format!("a {what}"),
        }
    }
}

/// Joins two parts of a key.
pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

fn definition<'a>(schema: &Value, definitions: &'a BTreeMap<String, Value>) -> Option<&'a Value> {
    let name = schema["$ref"].as_str()?.rsplit('/').next()?;
    definitions.get(name)
}

fn type_name(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(name) => name,
        Value::Array(names) => {
            names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        _ => "",
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
