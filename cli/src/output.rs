//! Results on stdout: a table or JSON.

use std::io::Write as _;

use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};

use crate::CliError;
use crate::answer::Answer;

/// The form of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// Prints results.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
}

/// A column of a list: its heading, and what of an item stands in it.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether programs read the result.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints a list.
    pub(crate) fn list<T>(
        &self,
        items: &[Answer<T>],
        columns: &[Column<T>],
    ) -> Result<(), CliError> {
        if self.is_json() {
            return self.json(&json!(items));
        }
        self.table(items.iter().map(|item| &**item), columns)
    }

    /// Prints a table, for people only.
    pub(crate) fn table<'a, T: 'a>(
        &self,
        items: impl IntoIterator<Item = &'a T>,
        columns: &[Column<T>],
    ) -> Result<(), CliError> {
        let mut table = bare_table();
        table.set_header(columns.iter().map(|(heading, _)| *heading));
        for item in items {
            table.add_row(columns.iter().map(|(_, cell)| cell(item)));
        }
        print(&trimmed(&table))
    }

    /// Prints one object: its members one below the other, inner ones as `outer.inner`.
    pub(crate) fn object(&self, object: &Value) -> Result<(), CliError> {
        if self.is_json() {
            return self.json(object);
        }
        let mut table = bare_table();
        for row in rows("", object) {
            table.add_row(row);
        }
        print(&trimmed(&table))
    }

    /// Prints a sentence for people, or the object for programs.
    pub(crate) fn done(&self, sentence: &str, object: &Value) -> Result<(), CliError> {
        if self.is_json() { self.json(object) } else { print(sentence) }
    }

    fn json(&self, value: &Value) -> Result<(), CliError> {
        print(&format!("{value:#}"))
    }
}

/// Prints lines to stdout.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(|source| CliError::Terminal { action: "print the result", source })
}

fn bare_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn trimmed(table: &Table) -> String {
    // The preset pads every cell by a blank on both sides.
    let line = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Name and value of everything in an object.
fn rows(outer: &str, value: &Value) -> Vec<[String; 2]> {
    let named = |name: &str| match outer {
        "" => name.to_owned(),
        outer => format!("{outer}.{name}"),
    };
    let is_plain = |value: &Value| !value.is_object() && !value.is_array();
    match value {
        Value::Object(members) if !members.is_empty() => {
            members.iter().flat_map(|(name, value)| rows(&named(name), value)).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            if items.iter().all(is_plain) {
                let items: Vec<_> = items.iter().map(compact).collect();
                return vec![[outer.to_owned(), items.join(", ")]];
            }
            let items = items.iter().enumerate();
            items.flat_map(|(index, value)| rows(&named(&index.to_string()), value)).collect()
        }
        value => vec![[outer.to_owned(), compact(value)]],
    }
}

/// A value in a table cell.
pub(crate) fn compact(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A member in a table cell.
pub(crate) fn shown(member: &impl Serialize) -> String {
    compact(&json!(member))
}

/// Bytes as MiB.
pub(crate) fn mib(bytes: Option<u64>) -> String {
    shown(&bytes.map(|bytes| bytes / (1024 * 1024)))
}

/// A member, for a column.
macro_rules! member {
    ($($name:ident).+) => {
        |item| $crate::output::shown(&item.$($name).+)
    };
}
pub(crate) use member;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_plain_columns() {
        let mut table = bare_table();
        table.set_header(["UUID", "STATE"]);
        table.add_row([compact(&json!("a")), compact(&json!(null))]);
        assert_eq!(trimmed(&table), "UUID  STATE\na     -");
    }

    #[test]
    fn inner_members_have_rows_of_their_own() {
        let value = json!({
            "a": 1, "b": { "c": "x", "d": {} }, "e": ["y", 2], "f": [{ "g": null }], "h": [],
        });
        let expected =
            [["a", "1"], ["b.c", "x"], ["b.d", "{}"], ["e", "y, 2"], ["f.0.g", "-"], ["h", "[]"]];
        assert_eq!(rows("", &value), expected);
    }
}
