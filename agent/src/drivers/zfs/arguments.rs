//! The command lines of [`CommandZfs`](super::CommandZfs), and what it makes of refusals. Pure.

use std::collections::BTreeMap;

use muster_shared::wire::Code;

use super::{
    Dataset, Name, Properties, Snapshot, Wanted, check_property, check_setting, is_user_property,
};
use crate::drivers::DriverError;

pub(super) fn checked(properties: &Properties) -> Result<(), DriverError> {
    for (name, value) in properties {
        check_setting(name, value)?;
    }
    Ok(())
}

pub(super) fn options(properties: &Properties) -> impl Iterator<Item = String> {
    properties.iter().flat_map(|(name, value)| ["-o".to_owned(), format!("{name}={value}")])
}

/// All of one dataset: `dataset@a,b,c`.
pub(super) fn by_dataset(snapshots: &[Snapshot]) -> Vec<String> {
    let mut names: BTreeMap<&Dataset, Vec<&str>> = BTreeMap::new();
    for snapshot in snapshots {
        names.entry(snapshot.dataset()).or_default().push(snapshot.name());
    }
    names.into_iter().map(|(dataset, names)| format!("{dataset}@{}", names.join(","))).collect()
}

pub(super) fn texts(snapshots: &[Snapshot]) -> Vec<String> {
    snapshots.iter().map(Snapshot::to_string).collect()
}

pub(super) fn words(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Users' properties, and those of ZFS's own as the numbers that the kernel keeps of them: what
/// `libzfs_core` takes. `None`: one of them is left to the programs to translate.
pub(super) fn for_library(properties: &Properties) -> Option<(Properties, BTreeMap<String, u64>)> {
    let (mut texts, mut numbers) = (Properties::new(), BTreeMap::new());
    for (name, value) in properties {
        let number = match (name.as_str(), value.as_str()) {
            ("canmount", "off") => 0,
            ("volsize" | "refreservation", bytes) => bytes.parse().ok()?,
            _ if is_user_property(name) => {
                texts.insert(name.clone(), value.clone());
                continue;
            }
            _ => return None,
        };
        numbers.insert(name.clone(), number);
    }
    Some((texts, numbers))
}

/// The arguments of a question: type, depth, columns come before.
pub(super) fn scope(wanted: &Wanted<'_>) -> Result<Vec<String>, DriverError> {
    for property in wanted.properties {
        check_property(property)?;
    }
    // Asked for snapshots of a dataset alone, `zfs list` tells of its children as well.
    let kinds = match (&wanted.root, wanted.datasets, wanted.snapshots) {
        (Some(Name::Snapshot(_)), ..) | (_, false, true) => "snapshot",
        (None, true, true) => "filesystem,volume,snapshot",
        (Some(Name::Dataset(_)), true, true) if wanted.below => "filesystem,volume,snapshot",
        _ => "filesystem,volume",
    };
    let mut arguments = vec!["-H".to_owned()];
    if wanted.parseable {
        arguments.push("-p".to_owned());
    }
    arguments.extend(["-t".to_owned(), kinds.to_owned()]);
    if wanted.below {
        arguments.push("-r".to_owned());
    }
    Ok(arguments)
}

pub(super) fn name_of(wanted: &Wanted<'_>) -> Option<String> {
    wanted.root.as_ref().map(Name::to_string)
}

pub(super) fn says(error: &DriverError, part: &str) -> bool {
    error.to_string().contains(part)
}

/// What was not found was a snapshot.
pub(super) fn of_snapshot(done: Result<(), DriverError>) -> Result<(), DriverError> {
    match done {
        Err(DriverError::Refused { code: Code::DatasetNotFound, message, source }) => {
            Err(DriverError::Refused { code: Code::SnapshotNotFound, message, source })
        }
        done => done,
    }
}

/// The tag of a hold: a word.
pub(super) fn check_tag(tag: &str) -> Result<(), DriverError> {
    let usable = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    let fits = (1..=200).contains(&tag.len())
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric())
        && tag.chars().all(usable);
    if fits {
        return Ok(());
    }
    Err(DriverError::refused(Code::InvalidName, format!("{tag:?} is no tag of a hold")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_given_numbers_and_what_users_made_up() {
        let of = |set: &[(&str, &str)]| {
            let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            for_library(&set.collect())
        };
        let (texts, numbers) =
            of(&[("a:b", "7"), ("canmount", "off"), ("volsize", "4096")]).unwrap();
        assert_eq!(texts, Properties::from([("a:b".to_owned(), "7".to_owned())]));
        let wanted = [("canmount".to_owned(), 0), ("volsize".to_owned(), 4096)];
        assert_eq!(numbers, BTreeMap::from(wanted));
        for translated in [("canmount", "on"), ("refreservation", "auto"), ("compression", "lz4")] {
            assert_eq!(of(&[translated]), None, "{translated:?}");
        }
    }
}
