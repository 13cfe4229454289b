//! What is wrong with a configuration, collected before anything is said.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Bits of the mode of a file with a secret that must not be set.
const OPEN_TO_OTHERS: u32 = 0o027;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, parts joined by dots; empty when a whole source is unusable.
    pub key: String,
    /// Where the value came from, e.g. `file /etc/muster/agent.toml`; empty if unknown.
    pub origin: String,
    /// What is wrong with it, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if !self.origin.is_empty() {
            write!(f, " ({})", self.origin)?;
        }
        Ok(())
    }
}

/// Collects problems during a check.
#[derive(Debug, Default)]
pub struct Problems {
    prefix: Vec<String>,
    found: Vec<Problem>,
}

impl Problems {
    /// Adds a problem with `key`, which is relative to the surrounding [`Problems::within`].
    pub fn add(&mut self, key: &str, message: impl Into<String>) {
        let mut parts = self.prefix.clone();
        if !key.is_empty() {
            parts.push(key.to_owned());
        }
        self.push(Problem { key: parts.join("."), origin: String::new(), message: message.into() });
    }

    /// Adds a problem unless `holds`.
    pub fn require(&mut self, holds: bool, key: &str, message: impl Into<String>) {
        if !holds {
            self.add(key, message);
        }
    }

    /// Adds a problem unless the file, if one is named, can be read.
    pub fn readable(&mut self, key: &str, path: Option<&Path>) {
        let Some(path) = path else { return };
        let is_folder = |file: File| file.metadata().map(|found| found.is_dir());
        let refused = match File::open(path).and_then(is_folder) {
            Ok(false) => return,
            Ok(true) => "it is a folder".to_owned(),
            Err(error) => plain(&error),
        };
        self.add(key, format!("cannot read {}: {refused}", path.display()));
    }

    /// As [`Self::readable`], of a file with a secret: nobody but its owner and group may read it, and
    /// nobody but its owner write.
    pub fn secret(&mut self, key: &str, path: Option<&Path>) {
        self.readable(key, path);
        let Some((path, found)) = path.and_then(|path| Some((path, path.metadata().ok()?))) else {
            return;
        };
        let mode = found.mode() & 0o777;
        if found.is_file() && mode & OPEN_TO_OTHERS != 0 {
            let path = path.display();
            let message = format!("others can use {path} (mode {mode:o}), `chmod g-w,o-rwx` it");
            self.add(key, message);
        }
    }

    /// Runs a check of the keys below `section`.
    pub fn within(&mut self, section: &str, check: impl FnOnce(&mut Self)) {
        self.prefix.push(section.to_owned());
        check(self);
        self.prefix.pop();
    }

    /// Adds a finished problem, unless its key has one already: the first cause is the real one.
    pub(super) fn push(&mut self, problem: Problem) {
        let known = |other: &Problem| !problem.key.is_empty() && other.key == problem.key;
        if !self.found.iter().any(known) {
            self.found.push(problem);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// Fills in where values came from; an item of a list came from where the list did.
    pub(super) fn name_origins(&mut self, origin: impl Fn(&str) -> Option<String>) {
        for problem in self.found.iter_mut().filter(|problem| problem.origin.is_empty()) {
            let list = problem.key.rsplit_once('.').filter(|(_, item)| item.parse::<u32>().is_ok());
            let known = origin(&problem.key).or_else(|| origin(list?.0));
            problem.origin = known.unwrap_or_default();
        }
    }

    /// `Err` with all problems, if there is one.
    ///
    /// # Errors
    /// [`ConfigError`] when anything was added.
    pub fn into_result(self) -> Result<(), ConfigError> {
        if self.found.is_empty() { Ok(()) } else { Err(ConfigError { problems: self.found }) }
    }
}

/// The system's words for an error, without its number.
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" (os error ").map_or_else(|| text.clone(), |(words, _)| words.to_owned())
}

/// A configuration that can't be used; displays every problem on a line of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// Everything that is wrong, in the order of the sources.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "configuration: {only}"),
            all => {
                write!(f, "configuration: {} problems", all.len())?;
                for problem in all {
                    write!(f, "\n  {problem}")?;
                }
                Ok(())
            }
        }
    }
}
