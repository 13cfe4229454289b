//! Reading what `zfs` and `zpool` print with `-H`: a line for each thing, a tab between fields. Pure.

use std::collections::BTreeMap;

use super::Properties;
use crate::drivers::DriverError;

/// Lines of fields in the order of `columns`. The last field may hold tabs: it is the only one that
/// can be a user's words.
///
/// # Errors
/// A line has fewer fields.
pub(super) fn rows(text: &str, columns: &[&str]) -> Result<Vec<Properties>, DriverError> {
    text.lines()
        .map(|line| {
            let fields: Vec<_> = line.splitn(columns.len(), '\t').collect();
            if fields.len() < columns.len() {
                return Err(unreadable(line));
            }
            let named = columns.iter().zip(fields);
            Ok(named.map(|(name, value)| ((*name).to_owned(), value.to_owned())).collect())
        })
        .collect()
}

/// Lines of name, property, value.
///
/// # Errors
/// A line has fewer fields.
pub(super) fn properties(text: &str) -> Result<BTreeMap<String, Properties>, DriverError> {
    let mut found: BTreeMap<String, Properties> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(name), Some(property), Some(value)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return Err(unreadable(line));
        };
        let of = found.entry(name.to_owned()).or_default();
        of.insert(property.to_owned(), value.to_owned());
    }
    Ok(found)
}

fn unreadable(line: &str) -> DriverError {
    let mut shown = line.to_owned();
    shown.truncate(shown.floor_char_boundary(200));
    DriverError::failed("read what ZFS prints", format!("this line has too few fields: {shown:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_columns_that_were_asked_for() {
        let text = "zones\t1.2G\t-\nzones/a b\t96K\t/a\tb\n";
        let rows = rows(text, &["name", "used", "mountpoint"]).unwrap();
        assert_eq!(rows[0]["used"], "1.2G");
        assert_eq!((&*rows[1]["name"], &*rows[1]["mountpoint"]), ("zones/a b", "/a\tb"));
        assert_eq!(super::rows("", &["name"]).unwrap(), Vec::<Properties>::new());
        super::rows("zones\n", &["name", "used"]).unwrap_err();
    }

    #[test]
    fn properties_are_gathered_by_name() {
        let found = properties("z\tquota\t0\nz\ta:b\tx\ty\nz/a\tquota\t1\n").unwrap();
        assert_eq!((&*found["z"]["quota"], &*found["z"]["a:b"]), ("0", "x\ty"));
        assert_eq!(found["z/a"]["quota"], "1");
        properties("z\tquota\n").unwrap_err();
    }
}
