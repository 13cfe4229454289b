//! Files that operators write in YAML or JSON: read with the lines of everything in them, and all
//! that is wrong said at once. JSON is read as the YAML that it is.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use muster_shared::config::{Check, Problems, keep_shape};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;
use utoipa::ToSchema;

use crate::CliError;

/// A file, parsed.
#[derive(Debug)]
struct Document {
    value: Value,
    /// Where keys and items stand, by their path.
    lines: BTreeMap<String, u64>,
}

/// Reads a file that holds an object of somebody else's.
///
/// # Errors
/// [`CliError::Usage`].
pub(crate) fn object(path: &Path, text: &str) -> Result<Map<String, Value>, CliError> {
    let bad = |why: String| CliError::Usage(format!("{}: {why}", path.display()));
    match Document::parse(text).map_err(bad)?.value {
        Value::Object(members) => Ok(members),
        _ => Err(bad("not an object".to_owned())),
    }
}

/// Reads a file as `T`.
///
/// # Errors
/// [`CliError::Usage`] that names each problem with its line.
pub(crate) fn read<T>(path: &Path, text: &str) -> Result<T, CliError>
where
    T: Check + DeserializeOwned + ToSchema,
{
    let file = path.display();
    let Document { mut value, lines } =
        Document::parse(text).map_err(|error| CliError::Usage(format!("{file}: {error}")))?;
    let mut problems = Problems::default();
    keep_shape::<T>(&mut value, &mut problems);
    let read: Result<T, _> = serde_json::from_value(value);
    match &read {
        Ok(read) => read.check(&mut problems),
        Err(error) => problems.add("", error.to_string()),
    }
    let Err(wrong) = problems.into_result() else {
        return read.map_err(|error| CliError::Usage(format!("{file}: {error}")));
    };
    let mut messages: Vec<(u64, String)> = Vec::new();
    for problem in wrong.problems {
        let line = line_of(&lines, &problem.key);
        let key = if problem.key.is_empty() { String::new() } else { format!("{}: ", problem.key) };
        messages.push((line, format!("line {line}: {key}{}", problem.message)));
    }
    messages.sort();
    let messages: Vec<String> = messages.into_iter().map(|(_, text)| text).collect();
    Err(CliError::Usage(match messages.as_slice() {
        [only] => format!("{file}, {only}"),
        all => format!("{file} has {} problems:\n  {}", all.len(), all.join("\n  ")),
    }))
}

/// Where a path stands, or the innermost part of it that does.
fn line_of(lines: &BTreeMap<String, u64>, path: &str) -> u64 {
    let mut path = path;
    loop {
        if let Some(line) = lines.get(path) {
            return *line;
        }
        match path.rsplit_once('.') {
            Some((outer, _)) => path = outer,
            None => return 1,
        }
    }
}

impl Document {
    fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| syntax_message(&error))?;
        let mut lines = BTreeMap::new();
        let value = plain(tree.value, "", &mut lines);
        Ok(Self { value, lines })
    }
}

/// What is wrong with the text, in the words of the file and not of the code that reads it.
fn syntax_message(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let ends = [", set ", "; use ", " at line "];
    let end = ends.iter().filter_map(|end| message.find(end)).min().unwrap_or(message.len());
    match error.location() {
        Some(place) => format!("line {}: {}", place.line(), &message[..end]),
        None => message[..end].to_owned(),
    }
}

fn plain(tree: Tree, path: &str, lines: &mut BTreeMap<String, u64>) -> Value {
    let inner = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match tree {
        Tree::Plain(value) => value,
        Tree::List(items) => {
            let items = items.into_iter().enumerate().map(|(number, item)| {
                let path = inner(&number.to_string());
                lines.insert(path.clone(), item.referenced.line());
                plain(item.value, &path, lines)
            });
            items.collect()
        }
        Tree::Table(members) => {
            let mut table = Map::new();
            for (name, value) in members {
                let path = inner(&name.value);
                lines.insert(path.clone(), name.referenced.line());
                table.insert(name.value, plain(value.value, &path, lines));
            }
            Value::Object(table)
        }
    }
}

/// What a file holds, with its places.
#[derive(Debug)]
enum Tree {
    Plain(Value),
    List(Vec<Spanned<Tree>>),
    Table(Vec<(Spanned<String>, Spanned<Tree>)>),
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Builder)
    }
}

struct Builder;

impl<'de> Visitor<'de> for Builder {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(flag.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Tree, E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("not a number"))?;
        Ok(Tree::Plain(Value::Number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Plain(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Tree::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut all: Vec<(Spanned<String>, Spanned<Tree>)> = Vec::new();
        while let Some(name) = members.next_key::<Spanned<String>>()? {
            if all.iter().any(|(other, _)| other.value == name.value) {
                return Err(A::Error::custom(format!("`{}` is given twice", name.value)));
            }
            all.push((name, members.next_value()?));
        }
        Ok(Tree::Table(all))
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::vm::SpecFile;

    use super::*;

    #[track_caller]
    fn refused(text: &str) -> String {
        read::<SpecFile>(Path::new("vm.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn yaml_and_json_are_read_alike() {
        let yaml = "# a machine\nname: web1\ndisks:\n  - size: 20GiB\ntags: { on: yes, a: 1 }\n";
        let json = "{\n\t\"name\": \"web1\", \"disks\": [{ \"size\": \"20GiB\" }],\n\
                    \t\"tags\": { \"on\": \"yes\", \"a\": 1 }\n}\n";
        let read = |text| read::<SpecFile>(Path::new("vm"), text).unwrap();
        assert_eq!(read(yaml), read(json));
        assert_eq!(
            read("{\"name\": \"a\\/b\"}".replace("\\/", "-").as_str()).name.as_deref(),
            Some("a-b")
        );
    }

    #[test]
    fn each_problem_has_its_line() {
        let text = "name: web1\nrma: 2GiB\ndisks:\n  - size: 20GiB\n  - siez: 5GiB\n    size: 5GB\n\
                    vcpus: two\ntags:\n  role:\n    - db\n";
        assert_eq!(
            refused(text),
            "vm.yaml has 5 problems:\n  \
             line 2: rma: unknown field, did you mean `ram`?\n  \
             line 5: disks.1.siez: unknown field, did you mean `size`?\n  \
             line 6: disks.1.size: must be a size with its unit, e.g. 512MiB or 20GiB, not \"5GB\"\n  \
             line 7: vcpus: expected a whole number, found \"two\"\n  \
             line 9: tags.role: must be text, a number or `true` or `false`"
        );
        let json = "{\n  \"name\": \"web1\",\n  \"vcpu\": 2\n}\n";
        assert_eq!(refused(json), "vm.yaml, line 3: vcpu: unknown field, did you mean `vcpus`?");
        assert_eq!(refused(""), "vm.yaml, line 1: expected a table, found nothing");
    }

    #[test]
    fn what_is_no_yaml_is_said_in_plain_words() {
        for (text, wanted) in [
            ("name: a\nname: b\n", "vm.yaml: line 2: duplicate mapping key: name"),
            ("name: a\n---\nname: b\n", "vm.yaml: line 3: multiple YAML documents detected"),
            ("name: [a\n", "vm.yaml: line 1: unclosed bracket '['"),
        ] {
            assert_eq!(refused(text), wanted);
        }
    }
}
