//! Results on stdout, in the form that was asked for.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::CliError;
use crate::cell::{safe, safe_lines};
use crate::table::{Column, ListArgs, Room, drawn, selected};
use crate::wrap::{pairs, wrapped};

/// Between two looks at a list that is watched.
const WATCH: Duration = Duration::from_secs(2);
/// Puts the cursor to the top left and empties the screen below it.
pub(crate) const CLEAR: &str = "\x1b[H\x1b[J";

/// The form of results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people: as much as fits the terminal.
    #[default]
    Table,
    /// For people: all columns, ids in full.
    Wide,
    /// For programs: whole records.
    Json,
    /// For programs: a whole record in each line.
    Jsonl,
    /// Whole records.
    Yaml,
    /// Names alone, one in each line.
    Name,
}

/// Prints results.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
}

/// A record in a list.
pub(crate) trait Item: Sized + 'static {
    /// What people are shown of it.
    const COLUMNS: &'static [Column<Self>];

    /// Its id, in full.
    fn id(&self) -> String;

    /// What operators call it.
    fn name(&self) -> String {
        self.id()
    }

    /// The whole record.
    fn json(&self) -> &Value;
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether programs read the result.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.format, Format::Json | Format::Jsonl | Format::Yaml)
    }

    /// Whether people want all there is.
    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    /// Prints an object of a stream, for programs.
    pub(crate) fn line(&self, value: &Value) -> Result<(), CliError> {
        match self.format {
            Format::Yaml => write_out(&format!("---\n{}", yaml(value)?)),
            _ => write_out(&tame(&value.to_string())),
        }
    }

    /// Prints a list, and does so again for as long as it is watched.
    pub(crate) async fn list<T: Item>(
        &self,
        args: &ListArgs,
        fetch: impl AsyncFn() -> Result<Vec<T>, CliError>,
    ) -> Result<(), CliError> {
        let redrawn = args.watch && !self.is_json() && std::io::stdout().is_terminal();
        loop {
            let text = match fetch().await {
                Ok(items) => self.listed(&selected(items, T::COLUMNS, args)?, args)?,
                Err(lost @ CliError::Unreachable { .. }) if args.watch => {
                    format!("{lost}, retrying")
                }
                Err(other) => return Err(other),
            };
            let clear = if redrawn { CLEAR } else { "" };
            if !text.is_empty() {
                write_out(&format!("{clear}{text}"))?;
            }
            if !args.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH).await;
        }
    }

    fn listed<T: Item>(&self, items: &[T], args: &ListArgs) -> Result<String, CliError> {
        let each =
            |line: &dyn Fn(&T) -> String| items.iter().map(line).collect::<Vec<_>>().join("\n");
        if args.quiet {
            return Ok(each(&|item| safe(&item.id())));
        }
        let all = || Value::Array(items.iter().map(|item| item.json().clone()).collect());
        match self.format {
            Format::Json => Ok(pretty(&all())),
            Format::Jsonl => Ok(each(&|item| tame(&item.json().to_string()))),
            Format::Yaml => yaml(&all()),
            Format::Name => Ok(each(&|item| safe(&item.name()))),
            Format::Table | Format::Wide => drawn(items, T::COLUMNS, args, self.room()),
        }
    }

    /// Prints a table, for people only.
    pub(crate) fn table<T>(&self, items: &[T], columns: &[Column<T>]) -> Result<(), CliError> {
        write_out(&drawn(items, columns, &ListArgs::default(), self.room())?)
    }

    fn room(&self) -> Room {
        let wide = self.format == Format::Wide;
        let width = (!wide).then(terminal_width).flatten();
        Room { width, colour: has_colour(), wide }
    }

    /// Prints one object: its members one below the other, inner ones as `outer.inner`.
    pub(crate) fn object(&self, object: &Value) -> Result<(), CliError> {
        if self.is_json() {
            return self.json(object);
        }
        let rows: Vec<_> =
            rows("", object).iter().map(|row| row.each_ref().map(|it| safe(it))).collect();
        write_out(&pairs(&rows, terminal_width()))
    }

    /// Prints a sentence for people, or the object for programs.
    pub(crate) fn done(&self, sentence: &str, object: &Value) -> Result<(), CliError> {
        if self.is_json() { self.json(object) } else { print(sentence) }
    }

    fn json(&self, value: &Value) -> Result<(), CliError> {
        match self.format {
            Format::Jsonl => write_out(&tame(&value.to_string())),
            Format::Yaml => write_out(&yaml(value)?),
            _ => write_out(&pretty(value)),
        }
    }
}

/// Prints lines to stdout, in as many as the terminal needs; what it would obey is escaped.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    write_out(&wrapped(&safe_lines(text), terminal_width()))
}

/// Prints lines to stderr likewise.
pub(crate) fn warn(text: &str) {
    eprintln!("{}", fitting(text));
}

/// What is printed to stderr then.
pub(crate) fn fitting(text: &str) -> String {
    wrapped(&safe_lines(text), width_of(&std::io::stderr()))
}

/// Prints what is safe already.
pub(crate) fn write_out(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(|source| CliError::Terminal { action: "print the result", source })
}

/// Width of the terminal, if stdout is one.
pub(crate) fn terminal_width() -> Option<usize> {
    width_of(&std::io::stdout())
}

/// Width of the terminal that this is, if it is one and knows.
fn width_of(stream: &impl std::os::fd::AsFd) -> Option<usize> {
    let (terminal_size::Width(width), _) = terminal_size::terminal_size_of(stream)?;
    Some(usize::from(width)).filter(|width| *width > 0)
}

/// Whether the terminal shows colours and nobody is against it (no-color.org).
pub(crate) fn has_colour() -> bool {
    let unset = |name: &str| std::env::var_os(name).is_none_or(|value| value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && unset("NO_COLOR") && !dumb
}

fn pretty(value: &Value) -> String {
    tame(&format!("{value:#}"))
}

/// JSON without the controls that it may hold and terminals obey.
pub(crate) fn tame(json: &str) -> String {
    let mut tame = String::with_capacity(json.len());
    for c in json.chars() {
        // They can only be within texts, where each character may be written so.
        match c {
            '\u{7f}'..='\u{9f}' => tame.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => tame.push(c),
        }
    }
    tame
}

fn yaml(value: &Value) -> Result<String, CliError> {
    let text = serde_saphyr::to_string(value);
    let text = text.map_err(|error| CliError::Ended(format!("cannot write YAML: {error}")))?;
    Ok(safe_lines(text.trim_end()))
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

/// A value in a line.
pub(crate) fn compact(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A member in a line.
pub(crate) fn shown(member: &impl serde::Serialize) -> String {
    compact(&json!(member))
}

/// A member, for a column.
macro_rules! member {
    ($of:ty: $($name:ident).+) => {
        |item: &$of| $crate::cell::Cell::of(&item.$($name).+)
    };
}
pub(crate) use member;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_members_have_rows_of_their_own() {
        let value = json!({
            "a": 1, "b": { "c": "x", "d": {} }, "e": ["y", 2], "f": [{ "g": null }], "h": [],
        });
        let expected =
            [["a", "1"], ["b.c", "x"], ["b.d", "{}"], ["e", "y, 2"], ["f.0.g", "-"], ["h", "[]"]];
        assert_eq!(rows("", &value), expected);
    }

    struct Named(Value);

    impl Item for Named {
        const COLUMNS: &'static [Column<Self>] =
            &[Column::new("NAME", |item: &Self| crate::cell::Cell::text(item.name()))];

        fn id(&self) -> String {
            shown(&self.0["id"])
        }

        fn name(&self) -> String {
            shown(&self.0["name"])
        }

        fn json(&self) -> &Value {
            &self.0
        }
    }

    #[test]
    fn a_list_has_a_form_for_each_reader() {
        let listed = |format, args: &ListArgs| {
            let items = [("b", "x"), ("a", "y\u{1b}[31m\u{9b}")];
            let items = items.map(|(id, name)| Named(json!({ "id": id, "name": name })));
            Output::new(format).listed(&items, args).unwrap()
        };
        let args = ListArgs::default();
        assert_eq!(listed(Format::Name, &args), "x\ny\\u{1b}[31m\\u{9b}");
        assert_eq!(listed(Format::Table, &args), "NAME\nx\ny\\u{1b}[31m\\u{9b}");
        let lines = listed(Format::Jsonl, &args);
        assert_eq!(lines.lines().next(), Some(r#"{"id":"b","name":"x"}"#));
        let second: Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
        assert_eq!(second["name"], "y\u{1b}[31m\u{9b}");
        let yaml = listed(Format::Yaml, &args);
        assert!(yaml.contains("id: b") && yaml.contains("name: x"), "{yaml}");
        let all: Value = serde_json::from_str(&listed(Format::Json, &args)).unwrap();
        assert_eq!(all[0]["id"], "b");
        let quiet = ListArgs { quiet: true, ..ListArgs::default() };
        assert_eq!(listed(Format::Json, &quiet), "b\na");
        for format in Format::value_variants() {
            let text = listed(*format, &args);
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        }
    }
}
