//! Reads and merges the sources of a configuration.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Tag, Value};
use figment::{Error as FigmentError, Figment, Metadata, Profile, Provider};
use serde::Serialize;
use utoipa::ToSchema;

use super::effective::{Loaded, masked_for_key, settings};
use super::file;
use super::problems::{Problem, Problems, plain};
use super::schema::{Node, join};
use super::wording::{found, wording};
use super::{Config, ConfigError};

/// Origin of values that no source named.
pub(super) const DEFAULTS: &str = "default";

/// Where a configuration comes from; see the module's example.
#[derive(Debug)]
pub struct Sources {
    environment_prefix: &'static str,
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    /// Variables that look like ours but lack the second underscore.
    misnamed: Vec<String>,
    sets: Vec<String>,
    flags: Vec<(String, Result<Flag, FigmentError>)>,
}

#[derive(Debug)]
struct Flag {
    key: &'static str,
    value: Value,
}

/// One source's values.
struct Layer {
    origin: String,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, FigmentError> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

impl Sources {
    /// No source but the defaults; environment variables will be those that start with the
    /// prefix, which ends in two underscores.
    #[must_use]
    pub fn new(environment_prefix: &'static str) -> Self {
        Self {
            environment_prefix,
            file: None,
            environment: Vec::new(),
            misnamed: Vec::new(),
            sets: Vec::new(),
            flags: Vec::new(),
        }
    }

    /// Reads a TOML file, if one is given; it must then exist.
    #[must_use]
    pub fn file(mut self, path: Option<&Path>) -> Self {
        self.file = path.map(Path::to_owned);
        self
    }

    /// Reads the process's environment variables.
    #[must_use]
    pub fn process_environment(self) -> Self {
        // `std::env::vars` panics at a foreign variable that is no UTF-8.
        let texts = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        };
        self.environment(std::env::vars_os().filter_map(texts))
    }

    /// Reads these environment variables instead of the process's.
    #[must_use]
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let prefix = self.environment_prefix;
        let almost = prefix.strip_suffix('_').unwrap_or(prefix);
        let like_ours = variables.into_iter().filter(|(name, _)| name.starts_with(almost));
        let (mine, misnamed): (Vec<_>, Vec<_>) =
            like_ours.partition(|(name, _)| name.starts_with(prefix));
        self.environment = mine;
        self.environment.sort();
        self.misnamed = misnamed.into_iter().map(|(name, _)| name).collect();
        self.misnamed.sort();
        self
    }

    /// Reads `key=value` texts.
    #[must_use]
    pub fn set<T: Into<String>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        self.sets.extend(texts.into_iter().map(Into::into));
        self
    }

    /// Sets `key` to a flag's value, if the flag was given. For a flag that may be repeated give
    /// `None` when there was none, else the list.
    #[must_use]
    pub fn flag<T: Serialize>(mut self, key: &'static str, name: &str, value: Option<T>) -> Self {
        if let Some(value) = value {
            let flag = Value::serialize(value).map(|value| Flag { key, value });
            self.flags.push((format!("flag {name}"), flag));
        }
        self
    }

    /// Reads everything and checks the result.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem of every source: unreadable files, unknown keys, wrong
    /// types, and what [`super::Check`] finds.
    pub fn load<T: Config>(self) -> Result<T, ConfigError> {
        Loader::new().load(self)
    }

    /// As [`Self::load`], with every key's value and source.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with_settings<T: Config>(self) -> Result<Loaded<T>, ConfigError> {
        let loader = Loader::<T>::new();
        let (config, figment) = loader.read(self)?;
        let values = serde_json::to_value(&config).unwrap_or_default();
        let settings = settings(&loader.tree, &values, |key| source_of(&figment, key));
        Ok(Loaded { config, settings })
    }

    /// Every source but the defaults, the weakest first.
    fn layers(self, tree: &Node, aliases: Aliases, problems: &mut Problems) -> Vec<Layer> {
        let mut layers = Vec::new();
        if let Some(path) = &self.file {
            layers.extend(read_file(path, aliases, problems));
        }
        for name in &self.misnamed {
            let (prefix, key) =
                (self.environment_prefix, &name[self.environment_prefix.len() - 1..]);
            let message =
                format!("keys' variables begin with {prefix}, did you mean {prefix}{key}?");
            let origin = format!("environment variable {name}");
            problems.push(Problem { key: String::new(), origin, message });
        }
        for (name, text) in self.environment {
            let path =
                name[self.environment_prefix.len()..].to_ascii_lowercase().replace("__", ".");
            let path = meant(&path, aliases).to_owned();
            let value = typed(&text, tree, &path);
            layers.push(Layer {
                origin: format!("environment variable {name}"),
                values: nested(&path, value),
            });
        }
        for text in self.sets {
            let Some((key, value)) = text.split_once('=') else {
                let (origin, message) =
                    (format!("--set {text}"), "expected `key=value`".to_owned());
                problems.push(Problem { key: String::new(), origin, message });
                continue;
            };
            let name = key.trim();
            let key = meant(name, aliases);
            let origin = format!("--set {name}={}", masked_for_key(key, value));
            let values = nested(key, typed(value, tree, key));
            layers.push(Layer { origin, values });
        }
        for (origin, flag) in self.flags {
            match flag {
                Ok(Flag { key, value }) => {
                    layers.push(Layer { origin, values: nested(key, value) });
                }
                Err(error) => problems.push(Problem {
                    key: String::new(),
                    origin,
                    message: error.to_string(),
                }),
            }
        }
        layers
    }
}

/// Reads configurations of one type. What is the same for all of them takes most of the time and is
/// made once.
#[derive(Debug)]
pub struct Loader<T> {
    tree: Node,
    defaults: Dict,
    of: PhantomData<fn() -> T>,
}

impl<T: Config> Default for Loader<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Config> Loader<T> {
    /// Learns the keys and their defaults.
    #[must_use]
    pub fn new() -> Self {
        let defaults = dict(Value::serialize(T::default())).unwrap_or_default();
        Self { tree: Node::of::<T>(), defaults, of: PhantomData }
    }

    /// As [`Sources::load`].
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn load(&self, sources: Sources) -> Result<T, ConfigError> {
        self.read(sources).map(|(config, _)| config)
    }

    fn read(&self, sources: Sources) -> Result<(T, Figment), ConfigError> {
        let Self { tree, defaults, .. } = self;
        let mut problems = Problems::default();
        let base = Layer { origin: DEFAULTS.to_owned(), values: defaults.clone() };
        let mut figment = Figment::from(base);
        for mut layer in sources.layers(tree, T::aliases(), &mut problems) {
            layer.values = known_only(layer.values, tree, &layer.origin, "", &mut problems);
            figment = figment.merge(layer);
        }
        let (config, figment) = extract::<T>(figment, tree, defaults, &mut problems);
        if let Some(config) = &config {
            config.check(&mut problems);
        }
        problems.name_origins(|key| source_of(&figment, key));
        problems.into_result()?;
        let config = config.ok_or(ConfigError { problems: Vec::new() })?;
        Ok((config, figment))
    }
}

/// Other names of keys, see [`super::Check::aliases`].
type Aliases = &'static [(&'static str, &'static str)];

/// The key that a name stands for.
fn meant(name: &str, aliases: Aliases) -> &str {
    aliases.iter().find(|(other, _)| *other == name).map_or(name, |(_, key)| key)
}

/// A layer for each value of the file, so that each knows its line.
fn read_file(path: &Path, aliases: Aliases, problems: &mut Problems) -> Vec<Layer> {
    let file = format!("file {}", path.display());
    let unusable = |message: String| Problem { key: String::new(), origin: file.clone(), message };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(unusable(format!("cannot be read: {}", plain(&error))));
            return Vec::new();
        }
    };
    let values = match file::values(&text) {
        Ok(values) => values,
        Err(file::NotToml { line, message }) => {
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            problems.push(unusable(format!("not TOML: {place}{message}")));
            return Vec::new();
        }
    };
    // Who names the key itself means that, whatever stands under its other name.
    let (others, keys): (Vec<_>, Vec<_>) =
        values.into_iter().partition(|it| aliases.iter().any(|(other, _)| it.path == [*other]));
    let layer = |placed: file::Placed| {
        let file::Placed { path, line, value } = placed;
        let path = match path.as_slice() {
            [only] => meant(only, aliases).split('.').map(str::to_owned).collect(),
            _ => path,
        };
        Layer { origin: format!("{file} line {line}"), values: below(&path, value) }
    };
    others.into_iter().chain(keys).map(layer).collect()
}

/// Tables around a value; unlike [`nested`] it takes names with dots.
fn below(path: &[String], value: Value) -> Dict {
    let Some((first, rest)) = path.split_first() else { return Dict::new() };
    let value = if rest.is_empty() { value } else { Value::from(below(rest, value)) };
    Dict::from([(first.clone(), value)])
}

fn source_of(figment: &Figment, key: &str) -> Option<String> {
    figment.find_metadata(key).map(|found| found.name.to_string())
}

/// Takes out what no key of the tree can hold, and says so.
fn known_only(
    values: Dict,
    tree: &Node,
    origin: &str,
    prefix: &str,
    problems: &mut Problems,
) -> Dict {
    let mut known = Dict::new();
    for (key, value) in values {
        let path = join(prefix, &key);
        let parts: Vec<&str> = path.split('.').collect();
        let problem = |message| Problem { key: path.clone(), origin: origin.to_owned(), message };
        match (tree.at(&parts), value) {
            (None, _) => {
                let meant = tree.nearest(&path);
                let hint = meant.map(|name| format!(", did you mean `{name}`?"));
                let message = format!("unknown key{}", hint.unwrap_or_default());
                problems.push(problem(message));
            }
            (Some(Node::Table(_) | Node::Map(_)), Value::Dict(tag, inner)) => {
                let inner = known_only(inner, tree, origin, &path, problems);
                known.insert(key, Value::Dict(tag, inner));
            }
            (Some(Node::Table(_) | Node::Map(_)), value) => {
                let found = found(&value.to_actual());
                problems.push(problem(format!("expected a table, found {found}")));
            }
            (Some(_), value) => drop(known.insert(key, value)),
        }
    }
    known
}

/// Makes the struct. A value of a wrong type is reported and replaced by its default, so that
/// the next one is found as well.
fn extract<T: Config>(
    mut figment: Figment,
    tree: &Node,
    defaults: &Dict,
    problems: &mut Problems,
) -> (Option<T>, Figment) {
    loop {
        let errors = match figment.extract::<T>() {
            Ok(config) => return (Some(config), figment),
            Err(errors) => errors,
        };
        let before = problems.len();
        let mut repaired = figment.clone();
        for error in errors {
            let key = error.path.join(".");
            let origin = error.metadata.as_ref().map(|found| found.name.to_string());
            let origin = origin.unwrap_or_default();
            let items = bad_items::<T>(&figment, tree, &error.path);
            if items.is_empty() {
                let message = wording(&error.kind, node_at(tree, &error.path));
                problems.push(Problem { key, origin: origin.clone(), message });
            }
            for (key, message) in items {
                problems.push(Problem { key, origin: origin.clone(), message });
            }
            if let Some((path, value)) = default_above(defaults, &error.path) {
                let values = nested(&path, value);
                repaired = repaired.merge(Layer { origin: DEFAULTS.to_owned(), values });
            }
        }
        // No new problem: the default did not help, which a map of the operator's keys can cause.
        if problems.len() == before {
            return (None, figment);
        }
        figment = repaired;
    }
}

/// Key and problem of every unusable item of the list that holds `path`, the first bad one.
fn bad_items<T: Config>(figment: &Figment, tree: &Node, path: &[String]) -> Vec<(String, String)> {
    let Some((_, list)) = path.split_last().filter(|(last, _)| last.parse::<u32>().is_ok()) else {
        return Vec::new();
    };
    let key = list.join(".");
    let Ok(Value::Array(_, items)) = figment.find_value(&key) else { return Vec::new() };
    let problem = |item: Value| {
        let values = nested(&key, Value::from(vec![item]));
        let alone = figment.clone().merge(Layer { origin: DEFAULTS.to_owned(), values });
        let mut errors = alone.extract::<T>().err()?.into_iter();
        let error = errors.find(|error| error.path.starts_with(list))?;
        Some(wording(&error.kind, node_at(tree, path)))
    };
    let problems = items.into_iter().enumerate();
    problems.filter_map(|(index, item)| Some((format!("{key}.{index}"), problem(item)?))).collect()
}

fn node_at<'a>(tree: &'a Node, path: &[String]) -> Option<&'a Node> {
    tree.at(&path.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The default at the longest part of `path` that has one.
fn default_above(defaults: &Dict, path: &[String]) -> Option<(String, Value)> {
    let root = Value::from(defaults.clone());
    (1..=path.len()).rev().find_map(|length| {
        let key = path[..length].join(".");
        root.find_ref(&key).map(|value| (key.clone(), value.clone()))
    })
}

/// Reads a text as what the key wants; what doesn't fit stays a text, for the type check to name.
fn typed(text: &str, tree: &Node, key: &str) -> Value {
    let parts: Vec<&str> = key.split('.').collect();
    tree.at(&parts).map_or_else(|| Value::from(text), |node| typed_as(text, node))
}

fn typed_as(text: &str, node: &Node) -> Value {
    match node {
        Node::Text | Node::Choice(_) => Value::from(text),
        Node::List(inner) if !text.trim_start().starts_with('[') => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::from(items.map(|item| typed_as(item, inner)).collect::<Vec<_>>())
        }
        _ => toml_value(text).unwrap_or_else(|| Value::from(text)),
    }
}

fn toml_value(text: &str) -> Option<Value> {
    toml::from_str::<Dict>(&format!("value = {text}")).ok()?.remove("value")
}

fn nested(key: &str, value: Value) -> Dict {
    let nested = figment::util::nest(key, value);
    nested.into_dict().unwrap_or_default()
}

fn dict(value: Result<Value, FigmentError>) -> Option<Dict> {
    match value {
        Ok(Value::Dict(Tag { .. }, dict)) => Some(dict),
        _ => None,
    }
}

/// The defaults of a configuration, as JSON.
pub(super) fn defaults<T: Default + Serialize + ToSchema>() -> serde_json::Value {
    serde_json::to_value(T::default()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
