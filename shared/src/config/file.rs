//! A TOML file as single values, each with the line on which its key stands.

use figment::value::{Dict, Value};
use toml::de::{DeTable, DeValue};

/// A value of the file.
#[derive(Debug)]
pub(super) struct Placed {
    /// Its key, the outermost table first.
    pub(super) path: Vec<String>,
    /// Counted from 1.
    pub(super) line: usize,
    /// What stands there; a table only if it is empty.
    pub(super) value: Value,
}

/// The text is not TOML.
#[derive(Debug)]
pub(super) struct NotToml {
    /// Counted from 1, if it is known where.
    pub(super) line: Option<usize>,
    /// What was expected there.
    pub(super) message: String,
}

/// Every value of a file, in the order of the lines.
pub(super) fn values(text: &str) -> Result<Vec<Placed>, NotToml> {
    let failed = |error: toml::de::Error| NotToml {
        line: error.span().map(|span| line_of(text, span.start)),
        message: error.message().to_owned(),
    };
    let table = DeTable::parse(text).map_err(failed)?;
    let values: Dict = toml::from_str(text).map_err(failed)?;
    let mut placed = Vec::new();
    collect(text, &[], table.get_ref(), values, &mut placed);
    placed.sort_by_key(|placed| placed.line);
    Ok(placed)
}

fn collect(
    text: &str,
    path: &[String],
    table: &DeTable<'_>,
    mut values: Dict,
    placed: &mut Vec<Placed>,
) {
    for (key, place) in table {
        let name: &str = key.get_ref();
        let Some(value) = values.remove(name) else { continue };
        let path = [path, &[name.to_owned()]].concat();
        match (place.get_ref(), value) {
            (DeValue::Table(inner), Value::Dict(_, values)) if !values.is_empty() => {
                collect(text, &path, inner, values, placed);
            }
            (_, value) => {
                placed.push(Placed { path, line: line_of(text, key.span().start), value });
            }
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_lines() {
        let text = "# first\na = 1\n[b]\n\nc = [\n  2,\n]\nd.e = 'x'\n[f]\n";
        let found = values(text).unwrap();
        let shown: Vec<_> = found.iter().map(|one| (one.path.join("."), one.line)).collect();
        let expected = [("a", 2), ("b.c", 5), ("b.d.e", 8), ("f", 9)];
        assert_eq!(shown, expected.map(|(key, line)| (key.to_owned(), line)));
    }

    #[test]
    fn what_is_no_toml_is_found() {
        let refused = values("a = 1\nb = \n").unwrap_err();
        assert_eq!(refused.line, Some(2), "{refused:?}");
        assert_eq!(values("a = 1\n[b\n").unwrap_err().line, Some(2));
    }
}
