//! Names of datasets, snapshots and properties: ZFS's rules, and no more than they need. Pure.
//!
//! Whatever is handed to the programs of ZFS has gone through here, so that no name can be taken for
//! an option, reach outside its pool, or mean something else than it says.

use std::fmt;
use std::str::FromStr;

use muster_shared::wire::Code;

use crate::drivers::DriverError;
use crate::failure::TaskFailure;

/// Longest name of a dataset or snapshot, bytes, as in ZFS.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest name of a property, bytes, as in ZFS.
const MAX_PROPERTY_BYTES: usize = 255;
/// Longest value of a property, bytes; ZFS takes 8 KiB of a user property.
const MAX_VALUE_BYTES: usize = 8 * 1024 - 1;

/// A name that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(String);

impl From<BadName> for DriverError {
    fn from(bad: BadName) -> Self {
        Self::refused(Code::InvalidName, bad.0)
    }
}

impl From<BadName> for TaskFailure {
    fn from(bad: BadName) -> Self {
        Self::new(Code::InvalidName, bad.0)
    }
}

/// A property, or a value of one, that can't be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadProperty(String);

impl From<BadProperty> for DriverError {
    fn from(bad: BadProperty) -> Self {
        Self::refused(Code::InvalidProperty, bad.0)
    }
}

impl From<BadProperty> for TaskFailure {
    fn from(bad: BadProperty) -> Self {
        Self::new(Code::InvalidProperty, bad.0)
    }
}

/// A file system or volume: `pool/a/b`, or a pool's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dataset(String);

impl Dataset {
    /// As ZFS spells it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pool it is in.
    #[must_use]
    pub fn pool(&self) -> &str {
        self.components().next().unwrap_or_default()
    }

    /// Whether it is the root of its pool.
    #[must_use]
    pub fn is_pool(&self) -> bool {
        !self.0.contains('/')
    }

    /// Its parts, the pool first.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The dataset it lies in; none of a pool's own.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(parent, _)| Self(parent.to_owned()))
    }

    /// Whether it is `root` or lies below it.
    #[must_use]
    pub fn is_within(&self, root: &Self) -> bool {
        let rest = self.0.strip_prefix(root.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// A dataset below it.
    ///
    /// # Errors
    /// There can be none of this name.
    pub fn child(&self, name: &str) -> Result<Self, BadName> {
        format!("{self}/{name}").parse()
    }

    /// A snapshot of it.
    ///
    /// # Errors
    /// There can be none of this name.
    pub fn at(&self, name: &str) -> Result<Snapshot, BadName> {
        format!("{self}@{name}").parse()
    }
}

impl FromStr for Dataset {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        check_length(text)?;
        if text.contains('@') {
            return Err(bad(text, "is a snapshot, not a dataset"));
        }
        check_path(text, text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A snapshot: `pool/a/b@name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    dataset: Dataset,
    name: String,
}

impl Snapshot {
    /// What it is a snapshot of.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// What stands after the `@`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Snapshot {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        check_length(text)?;
        let Some((dataset, name)) = text.split_once('@') else {
            return Err(bad(text, "is no snapshot: it has no @"));
        };
        check_path(text, dataset)?;
        check_component(text, name)?;
        Ok(Self { dataset: Dataset(dataset.to_owned()), name: name.to_owned() })
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.dataset, self.name)
    }
}

/// A dataset or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A file system or volume.
    Dataset(Dataset),
    /// A snapshot of one.
    Snapshot(Snapshot),
}

impl Name {
    /// The dataset, or what it is a snapshot of.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        match self {
            Self::Dataset(dataset) => dataset,
            Self::Snapshot(snapshot) => snapshot.dataset(),
        }
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        if text.contains('@') {
            text.parse().map(Self::Snapshot)
        } else {
            text.parse().map(Self::Dataset)
        }
    }
}

impl From<&Dataset> for Name {
    fn from(dataset: &Dataset) -> Self {
        Self::Dataset(dataset.clone())
    }
}

impl From<&Snapshot> for Name {
    fn from(snapshot: &Snapshot) -> Self {
        Self::Snapshot(snapshot.clone())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dataset(dataset) => dataset.fmt(f),
            Self::Snapshot(snapshot) => snapshot.fmt(f),
        }
    }
}

fn bad(text: &str, problem: &str) -> BadName {
    let mut shown = text.to_owned();
    shown.truncate(shown.floor_char_boundary(MAX_NAME_BYTES));
    BadName(format!("{shown:?} {problem}"))
}

fn check_length(text: &str) -> Result<(), BadName> {
    if text.len() > MAX_NAME_BYTES {
        return Err(bad(text, &format!("is too long: a name has at most {MAX_NAME_BYTES} bytes")));
    }
    Ok(())
}

fn check_path(whole: &str, path: &str) -> Result<(), BadName> {
    path.split('/').try_for_each(|component| check_component(whole, component))
}

fn check_component(whole: &str, component: &str) -> Result<(), BadName> {
    let Some(first) = component.chars().next() else {
        return Err(bad(whole, "has an empty part"));
    };
    if !first.is_ascii_alphanumeric() {
        return Err(bad(whole, "has a part that begins with neither a letter nor a digit"));
    }
    let usable = |c: char| c.is_ascii_alphanumeric() || "_.:-".contains(c);
    if let Some(strange) = component.chars().find(|c| !usable(*c)) {
        return Err(bad(whole, &format!("has an invalid character: {strange:?}")));
    }
    Ok(())
}

/// Checks the name of a property that is to be read: ZFS's own or a user's, or `all`.
///
/// # Errors
/// There can be none of this name.
pub fn check_property(name: &str) -> Result<(), BadProperty> {
    let usable = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":._-@".contains(c);
    let fits = (1..=MAX_PROPERTY_BYTES).contains(&name.len())
        && !name.starts_with('-')
        && name.chars().all(usable);
    if fits {
        return Ok(());
    }
    let mut shown = name.to_owned();
    shown.truncate(shown.floor_char_boundary(MAX_PROPERTY_BYTES));
    Err(BadProperty(format!("there is no property {shown:?}")))
}

/// Whether a property is one that users make up: it has a colon.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
}

/// Properties of ZFS's own that nobody sets, as of OpenZFS 2.3.
const READ_ONLY: &[&str] = &[
    "all",
    "available",
    "clones",
    "compressratio",
    "createtxg",
    "creation",
    "defer_destroy",
    "encryptionroot",
    "filesystem_count",
    "guid",
    "inconsistent",
    "iscsioptions",
    "ivsetguid",
    "key_guid",
    "keystatus",
    "logicalreferenced",
    "logicalused",
    "mounted",
    "name",
    "numclones",
    "objsetid",
    "origin",
    "pbkdf2salt",
    "prev_snap",
    "receive_resume_token",
    "redact_snaps",
    "redacted",
    "refcompressratio",
    "referenced",
    "remaptxg",
    "snapshot_count",
    "snapshots_changed",
    "type",
    "unique",
    "used",
    "usedbychildren",
    "usedbydataset",
    "usedbyrefreservation",
    "usedbysnapshots",
    "userrefs",
    "version_current",
    "written",
];
/// Beginnings of further ones, which name a user, a group, a project or a snapshot.
const READ_ONLY_STARTS: &[&str] =
    &["userused@", "userobjused@", "groupused@", "groupobjused@", "projectused@", "written@"];

/// Checks a property that is to be set.
///
/// # Errors
/// There can be none of this name or value, or nobody can set it.
pub fn check_setting(name: &str, value: &str) -> Result<(), BadProperty> {
    check_property(name)?;
    let is_read_only =
        READ_ONLY.contains(&name) || READ_ONLY_STARTS.iter().any(|start| name.starts_with(start));
    if is_read_only {
        return Err(BadProperty(format!("property {name:?} can only be read")));
    }
    if value.len() > MAX_VALUE_BYTES {
        let text = format!("property {name:?} has at most {MAX_VALUE_BYTES} bytes");
        return Err(BadProperty(text));
    }
    // They would end a line or a field of what ZFS prints.
    if value.chars().any(char::is_control) {
        return Err(BadProperty(format!("property {name:?} must not have control characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_paths_of_plain_parts() {
        for good in ["zones", "zones/a", "zones/a.b/c:d/e-f_g", "0/1", &"z".repeat(255)] {
            assert_eq!(good.parse::<Dataset>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "/",
            "zones/",
            "/zones",
            "zones//a",
            "zones/../a",
            "zones/.",
            "zones/ a",
            "zones/a b",
            "-r",
            "zones/-r",
            "zones/a@b",
            "zones/a#b",
            "zones/a%b",
            "zones/é",
            "zones/a\n",
            "zones/_a",
            &"z".repeat(256),
        ] {
            let error = bad.parse::<Dataset>().unwrap_err();
            assert!(error.to_string().len() < 400, "{error}");
            assert_eq!(TaskFailure::from(error).code, Code::InvalidName, "{bad:?}");
        }
    }

    #[test]
    fn snapshots_have_one_at_sign() {
        let snapshot: Snapshot = "zones/a@b-1".parse().unwrap();
        assert_eq!((snapshot.dataset().as_str(), snapshot.name()), ("zones/a", "b-1"));
        assert_eq!(snapshot.to_string(), "zones/a@b-1");
        assert_eq!("zones/a@b-1".parse(), Ok(Name::Snapshot(snapshot)));
        for bad in ["zones/a", "zones/a@", "@a", "zones@a@b", "zones@a/b", "zones@-r", "zones@a b"]
        {
            bad.parse::<Snapshot>().unwrap_err();
        }
    }

    #[test]
    fn a_dataset_knows_its_pool_its_parent_and_what_lies_below() {
        let dataset: Dataset = "zones/a/b".parse().unwrap();
        let within = |root: &str| dataset.is_within(&root.parse().unwrap());
        assert!(within("zones") && within("zones/a") && within("zones/a/b"));
        assert!(!within("zone") && !within("zones/a/bc") && !within("zones/a/b/c"));
        assert_eq!(dataset.pool(), "zones");
        assert_eq!(dataset.parent().unwrap().as_str(), "zones/a");
        let pool: Dataset = "zones".parse().unwrap();
        assert!(pool.is_pool() && !dataset.is_pool() && pool.parent().is_none());
        assert_eq!(dataset.child("c").unwrap().as_str(), "zones/a/b/c");
        dataset.child("../c").unwrap_err();
        assert_eq!(dataset.at("s").unwrap().to_string(), "zones/a/b@s");
    }

    #[test]
    fn only_properties_that_somebody_can_set_are_set() {
        for (name, value) in [("quota", "10G"), ("muster:task", "x y"), ("userquota@joe", "1G")] {
            check_setting(name, value).unwrap();
        }
        for (name, value) in [
            ("", "x"),
            ("-o", "x"),
            ("Quota", "1"),
            ("quota=1", "1"),
            ("used", "1"),
            ("all", "x"),
            ("userused@joe", "1"),
            ("a:b", "x\ny"),
            ("a:b", &"x".repeat(8192)),
            ("a b", "x"),
        ] {
            check_setting(name, value).unwrap_err();
        }
    }
}
